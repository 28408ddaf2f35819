package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func loopTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestLoops_EchoThroughPromotionAndConsumption": testLoopsPromoteConsume,
		"TestLoops_EchoThroughProjections":             testLoopsProjections,
		"TestLoops_BotsAnswerInheritsItsCause":         testLoopsInherited,
		"TestLoops_AnswerWithinTheLaunch":              testLoopsWithin,
		"TestLoops_AnswerToAnyOfSeveralLaunches":       testLoopsSiblings,
		"TestLoops_AnswerToALaunchForAMirror":          testLoopsMirror,
		"TestLoops_MirrorMadeLate":                     testLoopsMirrorLate,
		"TestLoops_DepthEight":                         testLoopsDepth,
	}
}

// settleAll relays, matches and runs everything by a real worker, until
// nothing is left to do.
func (b *bundle) settleAll(t *testing.T) {
	t.Helper()
	for range 50 {
		pending, err := b.real.CardsPending(t.Context(), b.Now().Add(time.Hour), 1000)
		require.NoError(t, err)
		for _, p := range pending {
			b.relayed(t, p.CardID)
		}
		b.drain(t)
		live := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return !r.State.Live() })
		if len(live)+len(pending) == 0 {
			return
		}
		if len(live) > 0 {
			b.work(t, len(live))
		}
	}
	t.Fatal("it does not come to rest")
}

// outcomes tells of the rows, in the order of their events: who fired on which
// card, and what became of it.
func (b *bundle) outcomes(t *testing.T) (out []string) {
	t.Helper()
	for _, row := range b.rows(t) {
		out = append(out, fmt.Sprintf("%s%s %s %s", row.SubscriptionID, row.ProjectionID, row.CardID, row.Outcome))
	}
	return out
}

// inherited is the cause that a bot's change of the card would get now.
func (b *bundle) inherited(t *testing.T, card string) tracker.Cause {
	t.Helper()
	cause, err := trigger.InheritedCause(t.Context(), b.faults, tenant, "b1", card, b.Now())
	require.NoError(t, err)
	return cause
}

func chain(links ...string) (c tracker.Cause) {
	for i := 0; i < len(links); i += 2 {
		c = c.Then(links[i], links[i+1])
	}
	return c
}

// botEdits has a bot change the card from outside.
func (b *bundle) botEdits(t *testing.T, card, bot string) {
	t.Helper()
	cause := b.inherited(t, card)
	b.change(t, card, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Title += "."
		return card, &tracker.BoardEvent{Kind: tracker.KindEdited, Actor: tracker.Actor{Kind: tracker.ActorBot, ID: bot}, Cause: cause}, nil
	})
}

func (b *bundle) humanEdits(t *testing.T, card string) {
	t.Helper()
	b.change(t, card, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Title += "!"
		return card, &tracker.BoardEvent{Kind: tracker.KindEdited, Actor: human}, nil
	})
}

// onEdits has a subscription fire on edits by anybody named.
func onEdits(bot string, actors ...string) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) {
		s.BotID, s.On = bot, trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}, Actors: actors}
	}
}

// A promotes and moves the card; the move fires B, which spends a label; that
// fires A again, which is cut.
func testLoopsPromoteConsume(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	require.NoError(t, b.real.BoardSave(t.Context(), &tracker.Board{
		TenantID: tenant, ID: "b1", Name: "b1", Revision: 1, Columns: []tracker.Column{{ID: "open"}, {ID: "doing"}},
	}))
	b.subscribe(t, "a", "keep", func(s *trigger.Subscription) {
		s.Mode, s.ToColumn = trigger.ModePromote, "doing"
		s.On = trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated, tracker.KindUnlabeled}, Actors: []string{human.ID, "bot2"}}
	})
	b.subscribe(t, "b", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) {
		s.BotID, s.On = "bot2", trigger.EventFilter{To: "doing", Kinds: []tracker.Kind{tracker.KindMoved}, Actors: []string{"bot1"}}
	})
	b.create(t, "c1", "open", "keep", "ship-it")
	b.settleAll(t)
	require.Equal(t, []string{"a c1 promoted", "b c1 launched", "a c1 loop_cut"}, b.outcomes(t))
	events := b.events(t)
	require.Equal(t, []string{"card.created c1", "card.moved c1", "card.unlabeled c1"}, lines(events))
	require.Empty(t, events[0].Cause)
	require.Equal(t, chain("a", "c1"), events[1].Cause)
	require.Equal(t, chain("a", "c1", "b", "c1"), events[2].Cause)
	// What was cut can't be run again.
	_, err := b.dead().Decide(t.Context(), trigger.Decision{TenantID: tenant, EffectID: b.rows(t)[2].ID, Action: trigger.ActionRerun, By: "cli:mona"})
	var refused *trigger.RefusedError
	require.ErrorAs(t, err, &refused)
	// A person's change begins a chain of its own.
	b.change(t, "c1", addLabel("ship-it"))
	b.change(t, "c1", func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.RemoveLabels([]string{"ship-it"}, func(l string) tracker.LabelStamp { return tracker.LabelStamp{Label: l, Stamp: tracker.Stamp{At: now}} })
		return card, &tracker.BoardEvent{Kind: tracker.KindUnlabeled, Actor: human, Removed: []string{"ship-it"}}, nil
	})
	b.settleAll(t)
	require.Equal(t, "a c1 promoted", b.outcomes(t)[3])
}

// A promotes the card into a2; its mirror is made in c2, where B promotes it
// into c1; the projection back moves the card to a1, which would fire A again.
func testLoopsProjections(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.projected(t)
	b.inverse(t)
	b.subscribe(t, "a", "bug", func(s *trigger.Subscription) {
		s.Mode, s.ToColumn, s.On = trigger.ModePromote, "a2", trigger.EventFilter{To: "a1", BoardID: "b1"}
	})
	b.subscribe(t, "b", "bug", func(s *trigger.Subscription) {
		s.Mode, s.ToColumn, s.BotID = trigger.ModePromote, "c1", "bot2"
		s.If, s.On = trigger.Conditions{}, trigger.EventFilter{To: "c2", BoardID: "b2"}
	})
	b.create(t, "s", "a1", "bug")
	b.settleAll(t)
	var launches []string
	for _, line := range b.outcomes(t) {
		if line[:2] == "a " || line[:2] == "b " {
			launches = append(launches, line)
		}
	}
	require.Equal(t, []string{"a s promoted", "b s@b2 promoted", "a s loop_cut"}, launches)
	require.Equal(t, "a1", b.column(t, "s"), "the projection's own move was made")
	for _, e := range b.events(t) {
		if e.CardID == "s" && e.Kind == tracker.KindMoved && e.ToColumn == "a1" {
			require.True(t, e.Cause.Has("a", "s") && e.Cause.Has("b", mirror) && e.Cause.Has("there", "s") && e.Cause.Has("back", mirror))
			return
		}
	}
	t.Fatal("it was not moved back")
}

// A bot that was launched changes the card outside, after a plain launch.
func testLoopsInherited(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug", onEdits("bot1", human.ID, "one[bot]", "two[bot]"))
	b.subscribe(t, "b", "bug", onEdits("bot2", "one[bot]"))
	b.create(t, "c1", "open", "bug")
	b.create(t, "c2", "open", "bug")
	require.Empty(t, b.inherited(t, "c1"))
	b.humanEdits(t, "c1")
	b.settleAll(t)
	require.Equal(t, chain("a", "c1"), b.inherited(t, "c1"))
	require.Empty(t, b.inherited(t, "c2"), "another card's")
	b.botEdits(t, "c1", "one[bot]") // A → A, A → B
	b.settleAll(t)
	require.Equal(t, []string{"a c1 launched", "a c1 loop_cut", "b c1 launched"}, b.outcomes(t))
	require.Equal(t, chain("a", "c1", "b", "c1"), b.inherited(t, "c1"), "a row that was cut is none that launched")
	b.botEdits(t, "c1", "two[bot]") // A → B → A
	b.settleAll(t)
	require.Equal(t, "a c1 loop_cut", b.outcomes(t)[3])
	// A person's change begins a chain of its own, however often.
	b.humanEdits(t, "c1")
	b.settleAll(t)
	require.Equal(t, "a c1 launched", b.outcomes(t)[4])
	require.Equal(t, chain("a", "c1"), b.inherited(t, "c1"))
	b.botEdits(t, "c1", "one[bot]")
	b.settleAll(t)
	require.Equal(t, []string{"a c1 loop_cut", "b c1 launched"}, b.outcomes(t)[5:], "B is fired again: it is another chain")
	// A later row that launches nobody hides no launch.
	b.subscribe(t, "n", "bug", onEdits("bot9", "nobody"))
	b.change(t, "c1", func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Title += "?"
		return card, &tracker.BoardEvent{Kind: tracker.KindEdited, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "nobody"}}, nil
	})
	b.settleAll(t)
	require.Equal(t, "n c1 bot_gone", b.outcomes(t)[7])
	require.Equal(t, chain("a", "c1", "b", "c1"), b.inherited(t, "c1"))
	// What a bot does of itself much later is no answer.
	b.pass(trigger.CauseKept - time.Minute)
	require.NotEmpty(t, b.inherited(t, "c1"))
	b.pass(2 * time.Minute)
	require.Empty(t, b.inherited(t, "c1"))
	// Not being able to tell is no permission.
	b.setCut(failOnce("EffectsOfCards:before"))
	_, err := trigger.InheritedCause(t.Context(), b.faults, tenant, "b1", "c1", b.Now())
	require.ErrorIs(t, err, errCut)
}

// A bot answers before its launch does, and another one dies after it heard.
func testLoopsWithin(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug", onEdits("bot1", human.ID, "one[bot]"))
	b.create(t, "c1", "open", "bug")
	b.humanEdits(t, "c1")
	b.relayed(t, "c1")
	b.drain(t)
	var within tracker.Cause
	b.work(t, 1, launching(func(trigger.LaunchRequest) error {
		var err error
		within, err = trigger.InheritedCause(t.Context(), b.faults, tenant, "b1", "c1", b.Now())
		return errors.Join(err, &trigger.LaunchError{Permanent: true, Message: "status 400"})
	}))
	require.Equal(t, chain("a", "c1"), within)
	require.Equal(t, trigger.StateFailed, b.rows(t)[0].State)
	require.Equal(t, chain("a", "c1"), b.inherited(t, "c1"), "it was asked, whatever it said")
}

// One event launches two bots: an answer may be either's.
func testLoopsSiblings(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug", onEdits("bot1", human.ID, "one[bot]"))
	b.subscribe(t, "c", "bug", onEdits("bot2", human.ID, "one[bot]"))
	gone := b.subscribe(t, "d", "bug", onEdits("bot2", human.ID, "one[bot]"))
	b.create(t, "c1", "open", "bug")
	b.humanEdits(t, "c1")
	b.relayed(t, "c1")
	b.drain(t)
	require.NoError(t, b.disable(gone))
	b.settleAll(t)
	cause := b.inherited(t, "c1")
	require.ElementsMatch(t, chain("a", "c1", "c", "c1").Chain, cause.Chain, "not D, which did not launch")
	require.Equal(t, 1, cause.Steps())
	require.Equal(t, 2, cause.Then("e", "c1").Steps())
	b.botEdits(t, "c1", "one[bot]")
	b.settleAll(t)
	require.ElementsMatch(t, []string{"a c1 loop_cut", "c c1 loop_cut"}, b.outcomes(t)[3:])
}

// The bot was launched for a mirror, and changes the card that is mirrored.
func testLoopsMirror(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.projected(t)
	b.subscribe(t, "a", "bug", func(s *trigger.Subscription) {
		s.If, s.On = trigger.Conditions{}, trigger.EventFilter{BoardID: "b2", Kinds: []tracker.Kind{tracker.KindCreated, tracker.KindMoved}}
	})
	b.create(t, "s", "a1", "bug")
	b.settleAll(t)
	cause := b.inherited(t, "s")
	require.Equal(t, chain("there", "s", "a", mirror), cause)
	b.change(t, "s", func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.ColumnID = "a2"
		return card, &tracker.BoardEvent{Kind: tracker.KindMoved, FromColumn: "a1", ToColumn: "a2", Actor: tracker.Actor{Kind: tracker.ActorBot, ID: "one[bot]"}, Cause: cause}, nil
	})
	b.settleAll(t)
	require.Equal(t, "there s loop_cut", b.outcomes(t)[2], "it went back to that projection's mirroring")
}

// The mirror is made by the event of before the promotion, where the promotion
// has brought the card meanwhile: it goes back to that.
func testLoopsMirrorLate(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.projected(t)
	b.subscribe(t, "a", "bug", func(s *trigger.Subscription) {
		s.Mode, s.ToColumn, s.On = trigger.ModePromote, "a2", trigger.EventFilter{To: "a1", BoardID: "b1"}
	})
	b.create(t, "s", "a1", "bug")
	b.relayed(t, "s")
	b.drain(t)
	event := b.rows(t)[0].Event.ID()
	b.runs(t, trigger.EffectID(event, "a"))
	b.runs(t, trigger.ProjectionEffectID(event, "there"))
	require.Equal(t, "c2", b.column(t, mirror))
	b.relayed(t, mirror)
	events := b.events(t)
	require.Equal(t, chain("a", "s", "there", "s"), events[len(events)-1].Cause)
}

func testLoopsDepth(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	for i := range 10 {
		b.subscribe(t, fmt.Sprint("s", i), "bug", onEdits("bot1", fmt.Sprintf("bot%d[bot]", i)))
	}
	b.create(t, "c1", "open", "bug")
	for i := range 10 {
		b.botEdits(t, "c1", fmt.Sprintf("bot%d[bot]", i))
		b.settleAll(t)
	}
	var want []string
	for i := range 10 {
		outcome := "launched"
		if i >= trigger.ChainDepthMax {
			outcome = "loop_cut"
		}
		want = append(want, fmt.Sprintf("s%d c1 %s", i, outcome))
	}
	require.Equal(t, want, b.outcomes(t))
	require.Equal(t, trigger.ChainDepthMax, b.inherited(t, "c1").Steps())
}
