package github

import (
	"cmp"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	stateOpen   = "open"
	stateClosed = "closed"

	actionOpened     = "opened"
	actionLabeled    = "labeled"
	actionUnlabeled  = "unlabeled"
	actionClosed     = "closed"
	actionReopened   = "reopened"
	actionEdited     = "edited"
	actionAssigned   = "assigned"
	actionUnassigned = "unassigned"
)

// unused are the actions of `issues` deliveries that change no card.
var unused = map[string]string{
	"deleted":     "the deletion of an issue is not mirrored in this version",
	"transferred": "the transfer of an issue is not mirrored in this version",
}

// Unused reports why an action is of no use; "" if it is of use.
func Unused(action string) string { return unused[action] }

// Mapping says where a hook puts cards.
type Mapping struct {
	TenantID, HookID, BoardID string
	OpenColumn, ClosedColumn  string
	// Cause is what a bot's delivery goes back to; empty for a person's, which
	// begins a chain of its own.
	Cause tracker.Cause
}

// Merge is the tracker.Changer of one delivery. GitHub sends whole snapshots,
// out of order, with times of one second. So each field of an existing card is
// judged against that field's own last change, and only its own actions touch
// it: labeled and unlabeled the one label that they name, closed and reopened
// the column, all others title, body and assignees. On a tie the action's own
// delta wins over a value that merely stood in a snapshot; of two deltas within
// one second the delivery ids decide (tracker.DeliveryTie). Any order of
// arrival of GitHub's deliveries ends in the same card.
func Merge(m Mapping, deliveryID string, d *IssueDelivery) tracker.Changer {
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		g := merge{m: m, d: d, stamp: tracker.Stamp{At: d.Issue.UpdatedAt.UTC(), Tie: tracker.DeliveryTie(deliveryID)}}
		g.event.Actor = g.actor()
		g.event.Cause = m.Cause
		if card == nil {
			card = g.firstSight()
		} else {
			if card.HasDelivery(m.HookID, deliveryID) {
				return nil, nil, nil
			}
			g.existing(card)
		}
		// Even a delivery that changes nothing is remembered, and the times
		// that it brought.
		card.AddDelivery(m.HookID, deliveryID, now)
		if g.event.Kind == "" {
			return card, nil, nil
		}
		return card, &g.event, nil
	}
}

type merge struct {
	m     Mapping
	d     *IssueDelivery
	stamp tracker.Stamp // of the snapshot
	event tracker.BoardEvent
}

// delta is the stamp of what the action itself says.
func (g *merge) delta() tracker.Stamp {
	s := g.stamp
	s.Delta = true
	return s
}

func (g *merge) actor() tracker.Actor {
	a := tracker.Actor{Kind: tracker.ActorHuman, ID: g.d.Sender.Login, Via: "hook:" + g.m.HookID}
	if g.d.ByBot() {
		a.Kind = tracker.ActorBot
	}
	return a
}

func (g *merge) column() string {
	if g.d.Issue.State == stateClosed {
		return g.m.ClosedColumn
	}
	return g.m.OpenColumn
}

func (g *merge) snapshotLabels() []string {
	names := make([]string, 0, len(g.d.Issue.Labels))
	for _, l := range g.d.Issue.Labels {
		names = append(names, l.Name)
	}
	return tracker.UniqueFold(names)
}

func (g *merge) snapshotAssignees() []string {
	names := make([]string, 0, len(g.d.Issue.Assignees))
	for _, a := range g.d.Issue.Assignees {
		names = append(names, a.Login)
	}
	names = tracker.UniqueFold(names)
	sortFold(names) // GitHub's order says nothing; a fixed one makes equal sets equal
	return names
}

// firstSight makes the card from the snapshot, with the action's delta on it.
// Only through `opened` is it known that there was nothing before.
func (g *merge) firstSight() *tracker.Card {
	i := g.d.Issue
	card := &tracker.Card{
		BoardID: g.m.BoardID, ColumnID: g.column(), Title: i.Title, Body: i.Body,
		Labels: g.snapshotLabels(), Assignees: g.snapshotAssignees(),
		External: &tracker.External{Provider: Provider, Repo: g.d.Repository.FullName, Number: i.Number, URL: i.HTMLURL},
		Stamps: tracker.Stamps{
			Title: g.textStamp(actionEdited, g.d.Changes.Title != nil), Body: g.textStamp(actionEdited, g.d.Changes.Body != nil),
			Assignees: g.stamp, Column: g.stamp, LabelFloor: g.stamp,
		},
	}
	for _, l := range card.Labels {
		card.Stamps.SetLabel(tracker.LabelStamp{Label: l, Present: true, Stamp: g.stamp})
	}
	g.event.BeforeUnknown = true
	switch g.d.Action {
	case actionOpened:
		g.event.Kind, g.event.ToColumn, g.event.BeforeUnknown = tracker.KindCreated, card.ColumnID, false
	case actionLabeled, actionUnlabeled:
		g.label(card)
		// The snapshot may have told of the delta already.
		g.nameLabel()
	case actionClosed, actionReopened:
		card.Stamps.Column = g.delta()
		g.event.Kind, g.event.ToColumn = tracker.KindMoved, card.ColumnID
	case actionAssigned, actionUnassigned:
		g.assignees(card)
		g.nameAssignee()
	default:
		g.event.Kind = tracker.KindEdited
	}
	return card
}

// existing merges the delivery into a card that is there; the event's kind
// stays empty when nothing that an event tells of has changed.
func (g *merge) existing(card *tracker.Card) {
	switch g.d.Action {
	case actionLabeled, actionUnlabeled:
		if g.label(card) {
			g.nameLabel()
		}
	case actionClosed, actionReopened:
		// A card stays on its board: another board's hook, or one that was
		// moved to another board, has no column for it.
		if stamp := g.delta(); card.BoardID == g.m.BoardID && stamp.Newer(card.Stamps.Column) {
			card.Stamps.Column = stamp
			if to := g.column(); to != card.ColumnID {
				g.event.Kind, g.event.FromColumn, g.event.ToColumn = tracker.KindMoved, card.ColumnID, to
				card.ColumnID = to
			}
		}
	default:
		g.text(card)
	}
}

// label applies labeled or unlabeled and reports whether the card changed.
func (g *merge) label(card *tracker.Card) bool {
	name, stamp := g.d.Label.Name, g.delta()
	if !stamp.Newer(card.Stamps.Label(name).Stamp) {
		return false
	}
	labeled := g.d.Action == actionLabeled
	ls := tracker.LabelStamp{Label: name, Present: labeled, Stamp: stamp}
	if labeled == card.HasLabel(name) {
		if was := card.Stamps.Label(name); !labeled {
			// It is still an effect that took the label, if one did.
			ls.SpentBy = was.SpentBy
		}
		card.Stamps.SetLabel(ls)
		return false
	}
	if labeled {
		card.Labels = append(card.Labels, tracker.UniqueFold([]string{name})...)
		card.Stamps.SetLabel(ls)
	} else {
		card.RemoveLabels([]string{name}, func(string) tracker.LabelStamp { return ls })
	}
	return true
}

func (g *merge) nameLabel() {
	names := []string{g.d.Label.Name}
	if g.d.Action == actionLabeled {
		g.event.Kind, g.event.Added = tracker.KindLabeled, names
	} else {
		g.event.Kind, g.event.Removed = tracker.KindUnlabeled, names
	}
}

// textStamp is the stamp of a text: its own action's if the delivery says that
// it edited this very field.
func (g *merge) textStamp(action string, edited bool) tracker.Stamp {
	if edited && g.d.Action == action {
		return g.delta()
	}
	return g.stamp
}

// text updates title, body and assignees, each if the delivery is newer.
func (g *merge) text(card *tracker.Card) {
	edited := false
	for _, f := range []struct {
		have  *string
		stamp *tracker.Stamp
		value string
		named bool
	}{
		{&card.Title, &card.Stamps.Title, g.d.Issue.Title, g.d.Changes.Title != nil},
		{&card.Body, &card.Stamps.Body, g.d.Issue.Body, g.d.Changes.Body != nil},
	} {
		if stamp := g.textStamp(actionEdited, f.named); stamp.Newer(*f.stamp) {
			*f.stamp = stamp
			edited = edited || *f.have != f.value
			*f.have = f.value
		}
	}
	assigned := g.assignees(card)
	switch {
	case assigned && (g.d.Action == actionAssigned || g.d.Action == actionUnassigned):
		g.nameAssignee()
	case edited || assigned:
		g.event.Kind = tracker.KindEdited
	}
}

// assignees updates the assignees and reports whether they changed.
func (g *merge) assignees(card *tracker.Card) bool {
	have := card.Stamps.Assignees
	next := g.snapshotAssignees()
	own := (g.d.Action == actionAssigned || g.d.Action == actionUnassigned) && g.d.Assignee != nil
	switch {
	case !own && !g.stamp.Newer(have), own && have.At.After(g.stamp.At):
		return false
	case !own:
		card.Stamps.Assignees, card.Stamps.AssigneeTies = g.stamp, nil
	case have.Delta && have.At.Equal(g.stamp.At):
		// Several assignments within one second are each a delta on what is
		// there: none may undo another.
		next = g.assign(card, slices.Clone(card.Assignees))
	default:
		card.Stamps.Assignees, card.Stamps.AssigneeTies = tracker.Stamp{At: g.stamp.At, Delta: true}, nil
		next = g.assign(card, next)
	}
	changed := !slices.Equal(next, card.Assignees)
	card.Assignees = next
	return changed
}

// assign applies assigned or unassigned to a list, unless a later delivery of
// the same second has settled that assignee.
func (g *merge) assign(card *tracker.Card, list []string) []string {
	login := tracker.Fold(g.d.Assignee.Login)
	ties := &card.Stamps.AssigneeTies
	i := slices.IndexFunc(*ties, func(t tracker.AssigneeTie) bool { return t.Assignee == login })
	switch {
	case i < 0:
		*ties = append(*ties, tracker.AssigneeTie{Assignee: login, Tie: g.stamp.Tie})
	case (*ties)[i].Tie > g.stamp.Tie:
		return list
	default:
		(*ties)[i].Tie = g.stamp.Tie
	}
	list = slices.DeleteFunc(list, func(a string) bool { return tracker.Fold(a) == login })
	if g.d.Action == actionAssigned {
		list = append(list, g.d.Assignee.Login)
	}
	sortFold(list)
	return list
}

func sortFold(names []string) {
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(tracker.Fold(a), tracker.Fold(b)) })
}

func (g *merge) nameAssignee() {
	var names []string
	if g.d.Assignee != nil {
		names = []string{g.d.Assignee.Login}
	}
	if g.d.Action == actionAssigned {
		g.event.Kind, g.event.Added = tracker.KindAssigned, names
	} else {
		g.event.Kind, g.event.Removed = tracker.KindUnassigned, names
	}
}
