package trigger

import (
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// facts are one event as the matchers see it: what is compared folded is folded
// once for all of them. Not safe for concurrent use.
type facts struct {
	e             *Event
	after, before cardFacts
	actor         lazyText
	added         lazyTexts
	removed       lazyTexts
	// addedList and removedList are what `event.added` and `event.removed` are.
	addedList, removedList lazyList
	// row is what the event tells of a row, once it was asked for.
	row *Told
	// whens counts how often a `when` was asked.
	whens int
}

// cardFacts is the card on one side of an event. S is never nil.
type cardFacts struct {
	s                        *tracker.Snapshot
	labels, assignees        lazyTexts
	labelsList, assigneeList lazyList
}

var noSnapshot = &tracker.Snapshot{}

func newFacts(e *Event) *facts {
	f := &facts{e: e}
	f.after.s, f.before.s = noSnapshot, noSnapshot
	if e.After != nil {
		f.after.s = e.After
	}
	if e.Before != nil {
		f.before.s = e.Before
	}
	return f
}

// lazyTexts folds a list when it is first asked for.
type lazyTexts struct {
	done bool
	list []string
}

func (l *lazyTexts) of(list []string) []string {
	if !l.done {
		l.list, l.done = foldAll(list), true
	}
	return l.list
}

type lazyText struct {
	done bool
	text string
}

func (l *lazyText) of(s string) string {
	if !l.done {
		l.text, l.done = tracker.Fold(s), true
	}
	return l.text
}

func (c *cardFacts) foldedLabels() []string    { return c.labels.of(c.s.Labels) }
func (c *cardFacts) foldedAssignees() []string { return c.assignees.of(c.s.Assignees) }
func (f *facts) foldedActor() string           { return f.actor.of(f.e.Actor.ID) }
func (f *facts) foldedAdded() []string         { return f.added.of(f.e.Added) }
func (f *facts) foldedRemoved() []string       { return f.removed.of(f.e.Removed) }

func foldAll(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = tracker.Fold(s)
	}
	return out
}

func foldContains(list []string, s string) bool {
	f := tracker.Fold(s)
	return slices.ContainsFunc(list, func(have string) bool { return tracker.Fold(have) == f })
}

// row makes the row that the subscription owes for an event that fires it. A
// chain of causes that comes back to the same subscription and card, or grows
// past ChainDepthMax, is cut: the row is then done from the start, and visible.
func (s *Subscription) row(e *Event, clock Clock) Effect {
	now := clock.Now()
	row := Effect{
		ID: EffectID(e.ID(), s.ID), TenantID: e.TenantID, Kind: KindLaunch, Lane: LaneBot(s.BotID),
		State: StatePending, NotBefore: now,
		SubscriptionID: s.ID, SubscriptionRevision: s.Revision, BotID: s.BotID, Rank: s.Rank,
		Consume:  tracker.UniqueFold(s.Consume),
		EventSeq: e.Seq, CardID: e.CardID, CardRev: e.CardRev, Event: *e,
		CreatedAt: now, UpdatedAt: now,
	}
	if s.Paused {
		row.State = StateHeld
	}
	if cut(e.Cause, s.ID, e.CardID) {
		row.State, row.Outcome, row.DoneAt = StateDone, OutcomeLoopCut, now
	}
	return row
}
