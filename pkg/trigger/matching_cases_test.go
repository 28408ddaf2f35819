package trigger_test

import (
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// matchingCase is one line of the table in docs/matching.md.
type matchingCase struct {
	sub string // which of matchingSubs
	// when is what happens to the card, one event a step.
	when []step
	// fires are the steps, from 1, that fire the subscription.
	fires []int
	// why is for people, where the rule is not plain.
	why string
}

// step is one thing that happens to the card, and how a board user says it.
type step struct {
	says string
	do   tracker.Changer
	// bulk: as part of one bulk call.
	bulk bool
	// column: the board's column is renamed instead.
	rename bool
}

// matchingSub is a subscription of the table.
type matchingSub struct {
	name, says string
	sub        trigger.Subscription
}

var shipIt = []string{"ship-it"}

var matchingSubs = []matchingSub{
	{"ready", "State alone: labelled `ship-it` and in *Ready*", trigger.Subscription{
		If: trigger.Conditions{LabelsAll: shipIt, Columns: []string{"ready"}},
	}},
	{"bot-too", "The same, and it names the bot `fixer` and the person `mona`", trigger.Subscription{
		On: trigger.EventFilter{Actors: []string{"fixer", "mona"}}, If: trigger.Conditions{LabelsAll: shipIt, Columns: []string{"ready"}},
	}},
	{"fix", "State alone, with `when`: `card.title.startsWith(\"Fix\")`", trigger.Subscription{When: `card.title.startsWith("Fix")`}},
	{"added", "On `card.labeled`, with any of the labels `ship-it`, `bug`", trigger.Subscription{
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}}, If: trigger.Conditions{LabelsAny: []string{"ship-it", "bug"}},
	}},
	{"both", "On `card.labeled`, with both labels `ship-it` and `bug`", trigger.Subscription{
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}}, If: trigger.Conditions{LabelsAll: []string{"ship-it", "bug"}},
	}},
	{"into", "On a move from *Open* to *Ready*, labelled `ship-it`", trigger.Subscription{
		On: trigger.EventFilter{From: "open", To: "ready"}, If: trigger.Conditions{LabelsAll: shipIt},
	}},
	{"cafe", "State alone: labelled `caf\u00e9`", trigger.Subscription{If: trigger.Conditions{LabelsAll: []string{"caf\u00e9"}}}},
	{"no-wip", "State alone: in *Ready*, not labelled `wip`", trigger.Subscription{
		If: trigger.Conditions{Columns: []string{"ready"}, LabelsNone: []string{"wip"}},
	}},
	{"mine", "State alone: assigned to `mona`", trigger.Subscription{If: trigger.Conditions{Assignees: []string{"mona"}}}},
	{"comments", "On `card.commented`, labelled `ship-it`", trigger.Subscription{
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCommented}}, If: trigger.Conditions{LabelsAll: shipIt},
	}},
	{"order", "On `card.reordered`", trigger.Subscription{On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindReordered}}}},
	{"deleted", "On `card.deleted`, labelled `ship-it`", trigger.Subscription{
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindDeleted}}, If: trigger.Conditions{LabelsAll: shipIt},
	}},
}

var matchingCases = []matchingCase{
	{"ready", steps(made("ready", "ship-it")), []int{1}, "a card that was not there before had none of it"},
	{"ready", steps(made("open", "ship-it"), move("ready")), []int{2}, "whichever came last"},
	{"ready", steps(made("ready"), label("ship-it")), []int{2}, "whichever came last"},
	{"ready", steps(made("open"), atOnce("moved to *Ready* and labelled `ship-it`, in one bulk call", "ready", "ship-it")), []int{2}, "one change, one event"},
	{"ready", steps(made("ready", "ship-it"), unlabel("ship-it"), label("ship-it")), []int{1, 3}, "it stopped being so in between"},
	{"ready", steps(made("ready", "ship-it"), move("open"), move("ready")), []int{1, 3}, "it stopped being so in between"},
	{"ready", steps(made("ready"), label("ship-it", "bug")), []int{2}, ""},
	{"ready", steps(made("ready"), label("bug", "ship-it")), []int{2}, "in either order"},
	{"ready", steps(made("ready", "ship-it"), label("bug")), []int{1}, "another label changes nothing"},
	{"ready", steps(made("ready", "ship-it"), reorder()), []int{1}, ""},
	{"ready", steps(made("ready", "ship-it"), commented()), []int{1}, ""},
	{"ready", steps(made("ready", "ship-it"), title("another title")), []int{1}, "an unrelated edit changes nothing"},
	{"ready", steps(made("ready", "ship-it"), renameColumn(), title("another title")), []int{1}, "columns are known by their ids"},
	{"ready", steps(made("open"), renameColumn(), atOnce("moved to the renamed column, and labelled", "ready", "ship-it")), []int{3}, "columns are known by their ids"},
	{"ready", steps(made("ready"), label("Ship-It")), []int{2}, "upper and lower case are one"},
	{"ready", steps(made("ready"), label(" SHIP-IT ")), []int{2}, "so is space around it"},
	{"ready", steps(made("ready"), label("ship-it-now")), nil, "another label"},
	{"ready", steps(made("ready", "ship-it"), deleted()), []int{1}, "the card ended as it was"},
	{"ready", steps(made("ready"), byBot(label("ship-it"))), nil, "a bot's change fires only what names the bot"},
	{"ready", steps(made("ready"), byBot(label("ship-it")), title("another title")), nil, "the bot's event has spent the edge"},
	{"bot-too", steps(made("ready"), byBot(label("ship-it"))), []int{2}, "the bot is named"},
	{"ready", steps(firstSeen("ready", "ship-it"), title("another title")), nil, "what it was before is not known, and counts as already so"},
	{"ready", steps(firstSeen("ready", "ship-it"), unlabel("ship-it"), label("ship-it")), []int{3}, "from then on it is known"},
	{"ready", steps(firstSeen("open", "ship-it"), move("ready")), []int{2}, ""},
	{"fix", steps(made("open"), title("Fix it"), title("Fix it now"), title("Done"), title("Fix it")), []int{2, 5}, "`when` is a condition like the others"},
	{"added", steps(made("open"), label("ship-it"), label("bug")), []int{2, 3}, "each time that one of them is added"},
	{"added", steps(made("open", "ship-it")), nil, "a card made with the label is a `card.created`"},
	{"added", steps(made("open", "ship-it"), label("docs")), nil, "the label was there, it was not added"},
	{"added", steps(made("open"), label("docs", "bug")), []int{2}, "two labels at once are one event"},
	{"added", steps(made("open"), label("bug", "ship-it")), []int{2}, "two labels at once are one event"},
	{"added", steps(made("open"), label("bug"), unlabel("bug"), label("bug")), []int{2, 4}, ""},
	{"both", steps(made("open"), label("ship-it"), label("bug")), []int{3}, "both must be there, one must be new"},
	{"both", steps(made("open"), label("bug"), label("ship-it"), label("docs")), []int{3}, "both must be there, one must be new"},
	{"into", steps(made("open", "ship-it"), move("ready"), move("open"), move("ready")), []int{2, 4}, "every move, though the label was there all along"},
	{"into", steps(made("open", "ship-it"), move("done"), move("ready")), nil, "from another column"},
	{"into", steps(made("open"), move("ready"), label("ship-it")), nil, "the label came too late"},
	{"into", steps(made("ready", "ship-it")), nil, "made there: it came from no column"},
	{"cafe", steps(made("open"), label("cafe\u0301")), []int{2}, "`\u00e9` in one character or in two is one label"},
	{"cafe", steps(made("open"), label("CAF\u00c9")), []int{2}, ""},
	{"cafe", steps(made("open"), label("cafe")), nil, "another letter"},
	{"no-wip", steps(made("ready", "wip"), unlabel("wip")), []int{2}, "taking a label off can make it so"},
	{"no-wip", steps(made("ready", "WIP"), title("another title")), nil, ""},
	{"mine", steps(made("open"), assign("Mona"), title("another title")), []int{2}, ""},
	{"comments", steps(made("open", "ship-it"), commented(), commented(), title("another title")), []int{2, 3}, "each comment"},
	{"comments", steps(made("open"), commented()), nil, ""},
	{"order", steps(made("open"), reorder(), move("ready")), []int{2}, "a move is no reorder"},
	{"deleted", steps(made("ready", "ship-it"), deleted()), []int{2}, "the conditions are asked of the card as it was"},
}

func steps(s ...step) []step { return s }

var byMona = tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}

// existing is a change of the card that is there.
func existing(says string, kind tracker.Kind, f func(card *tracker.Card, e *tracker.BoardEvent)) step {
	return step{says: says, do: func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		e := &tracker.BoardEvent{Kind: kind, Actor: byMona}
		f(card, e)
		return card, e, nil
	}}
}

func made(column string, labels ...string) step {
	return step{says: "made in " + inColumn(column) + withLabels(labels), do: func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: column, Title: "a card", Labels: labels},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: byMona, ToColumn: column}, nil
	}}
}

func firstSeen(column string, labels ...string) step {
	s := made(column, labels...)
	s.says = "first seen by an edit, in " + inColumn(column) + withLabels(labels)
	first := s.do
	s.do = func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card, e, err := first(card, now)
		e.Kind, e.BeforeUnknown, e.ToColumn = tracker.KindEdited, true, ""
		return card, e, err
	}
	return s
}

func move(column string) step {
	return existing("moved to "+inColumn(column), tracker.KindMoved, func(card *tracker.Card, e *tracker.BoardEvent) {
		e.FromColumn, e.ToColumn, card.ColumnID = card.ColumnID, column, column
	})
}

func label(labels ...string) step {
	return existing("labelled "+texts(labels), tracker.KindLabeled, func(card *tracker.Card, e *tracker.BoardEvent) {
		e.Added = labels
		card.Labels = append(card.Labels, labels...)
	})
}

func unlabel(l string) step {
	return existing(texts([]string{l})+" taken off", tracker.KindUnlabeled, func(card *tracker.Card, e *tracker.BoardEvent) {
		e.Removed = card.RemoveLabels([]string{l}, func(l string) tracker.LabelStamp { return tracker.LabelStamp{Label: l} })
	})
}

func atOnce(says, column, l string) step {
	s := existing(says, tracker.KindMoved, func(card *tracker.Card, e *tracker.BoardEvent) {
		e.FromColumn, e.ToColumn, e.Added = card.ColumnID, column, []string{l}
		card.ColumnID, card.Labels = column, append(card.Labels, l)
	})
	s.bulk = true
	return s
}

func title(text string) step {
	return existing("title set to “"+text+"”", tracker.KindEdited, func(card *tracker.Card, _ *tracker.BoardEvent) { card.Title = text })
}

func reorder() step {
	return existing("put elsewhere in its column", tracker.KindReordered, func(card *tracker.Card, _ *tracker.BoardEvent) {
		above, ok := tracker.PositionsBetween("", card.Position, 1)
		if !ok {
			panic("no position above " + card.Position)
		}
		card.Position = above[0]
	})
}

func commented() step {
	return existing("commented", tracker.KindCommented, func(card *tracker.Card, e *tracker.BoardEvent) {
		e.CommentID = "comment-1"
		if err := card.AddComment("a comment"); err != nil {
			panic(err)
		}
	})
}

func assign(who string) step {
	return existing("assigned to "+texts([]string{who}), tracker.KindAssigned, func(card *tracker.Card, e *tracker.BoardEvent) {
		card.Assignees, e.Added = append(card.Assignees, who), []string{who}
	})
}

func deleted() step {
	return existing("deleted", tracker.KindDeleted, func(card *tracker.Card, e *tracker.BoardEvent) {
		card.Deleted, e.FromColumn = true, card.ColumnID
	})
}

func renameColumn() step {
	return step{says: "the column *Ready* renamed to *Next*", rename: true}
}

func byBot(s step) step {
	human := s.do
	s.says += " by the bot `fixer`"
	s.do = func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card, e, err := human(card, now)
		e.Actor = tracker.Actor{Kind: tracker.ActorBot, ID: "fixer"}
		return card, e, err
	}
	return s
}
