package trigger

import (
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// ChainDepthMax is how long a chain of causes may get before it is cut.
const ChainDepthMax = 8

// Matches reports whether the event fires the subscription
// (docs/triggers-yaml.md). It depends on its arguments alone.
func (s *Subscription) Matches(e *Event) bool {
	if e.Source == SourceVoid || e.After == nil || !s.accepts(e) {
		return false
	}
	if s.firesOnEvent() {
		return s.If.hold(e.After) && s.addedAsked(e)
	}
	// The edge: an unknown before counts as "already so".
	if e.BeforeUnknown || !s.If.hold(e.After) {
		return false
	}
	return e.Before == nil || !s.If.hold(e.Before)
}

// accepts reports whether the event passes the event filters.
func (s *Subscription) accepts(e *Event) bool {
	f := &s.On
	switch {
	case len(f.Kinds) > 0 && !slices.Contains(f.Kinds, e.Kind),
		f.From != "" && f.From != e.FromColumn,
		f.To != "" && f.To != e.ToColumn,
		f.BoardID != "" && f.BoardID != e.BoardID,
		len(f.Sources) > 0 && !slices.Contains(f.Sources, e.Source):
		return false
	}
	named := foldContains(f.Actors, e.Actor.ID)
	if e.Source == SourceBoard && e.Actor.Kind == tracker.ActorBot {
		return named
	}
	return len(f.Actors) == 0 || named
}

// addedAsked: a label condition on card.labeled asks for one of the labels
// that the event added.
func (s *Subscription) addedAsked(e *Event) bool {
	if e.Kind != tracker.KindLabeled || len(s.If.LabelsAll)+len(s.If.LabelsAny) == 0 {
		return true
	}
	return slices.ContainsFunc(e.Added, func(l string) bool {
		return foldContains(s.If.LabelsAll, l) || foldContains(s.If.LabelsAny, l)
	})
}

func (c *Conditions) hold(s *tracker.Snapshot) bool {
	if len(c.Columns) > 0 && !slices.Contains(c.Columns, s.ColumnID) {
		return false
	}
	for _, l := range c.LabelsAll {
		if !s.HasLabel(l) {
			return false
		}
	}
	if slices.ContainsFunc(c.LabelsNone, s.HasLabel) {
		return false
	}
	if len(c.LabelsAny) > 0 && !slices.ContainsFunc(c.LabelsAny, s.HasLabel) {
		return false
	}
	return len(c.Assignees) == 0 || slices.ContainsFunc(c.Assignees, func(a string) bool { return foldContains(s.Assignees, a) })
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
	if e.Cause.Has(s.ID, e.CardID) || len(e.Cause.Chain) >= ChainDepthMax {
		row.State, row.Outcome, row.DoneAt = StateDone, OutcomeLoopCut, now
	}
	return row
}
