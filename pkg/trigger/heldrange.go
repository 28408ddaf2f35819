package trigger

import (
	"context"
	"errors"
	"fmt"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// MatchHeld matches again, for one subscription, a page of the events that were
// left because too much was held, once it is no longer paused, and reports
// whether there is more. It may be called at any time, by any number of
// replicas: rows that are there are not made a second time (R3), and events are
// kept longer than rows, so that none is made of an event whose row has gone
// (R4). Of events that are not kept any more it says so, once.
func (t *Tail) MatchHeld(ctx context.Context, key SubscriptionKey) (more bool, err error) {
	more, err = t.matchHeld(ctx, key)
	if errors.Is(err, tracker.ErrConflict) {
		return true, nil // the subscription was changed meanwhile
	}
	if err != nil {
		return false, fmt.Errorf("match what %s/%s left: %w", key.TenantID, key.SubscriptionID, err)
	}
	return more, nil
}

func (t *Tail) matchHeld(ctx context.Context, key SubscriptionKey) (more bool, err error) {
	epoch := t.Epochs.Epoch()
	s, err := t.Config.SubscriptionGet(ctx, key.TenantID, key.SubscriptionID)
	if errors.Is(err, tracker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	from := s.Guard.HeldFrom
	if from == 0 || s.Paused {
		return false, nil
	}
	if err := checkFeatures("subscription "+s.ID, s.Requires); err != nil {
		return false, nil //nolint:nilerr // others know them
	}
	// Read after the resume: whoever still matches by the paused subscription
	// read its events before, and what it left is in the log by now.
	head, err := t.Heads.HeadGet(ctx, key.TenantID)
	if err != nil {
		return false, err
	}
	to := min(head.Seq, from-1+int64(orDefault(t.Batch, TailBatchDefault)))
	var why error
	if s.Enabled && to >= from {
		if to, why, err = t.matchRange(ctx, s, from, to, head.Cursor, epoch); err != nil {
			return false, err
		}
	}
	next := *s
	next.Guard.HeldFrom = to + 1
	if more = s.Enabled && to < head.Seq && why == nil; !more && why == nil {
		next.Guard.HeldFrom = 0
	}
	if why != nil { // nobody mended it
		next.Failing, next.FailingSince = clip(why.Error(), whenErrorMax), t.Clock.Now()
		t.pauseFailing(&next, to)
	}
	next.Edited(t.Clock.Now())
	return more, t.Config.SubscriptionSave(ctx, &next)
}

// matchRange writes the rows that the subscription owes for the events from one
// seq to another. What lies above the cursor and is not in the log yet is the
// tail's. It returns the seq that it has come to: when the evaluation keeps
// failing it stops there, and says why.
func (t *Tail) matchRange(ctx context.Context, s *Subscription, from, to, cursor, epoch int64) (upTo int64, why, err error) {
	events, err := t.Log.EventList(ctx, s.TenantID, from-1, to)
	if err != nil {
		return 0, nil, err
	}
	for i := range events {
		if err := checkFeatures("event "+events[i].ID(), events[i].Requires); err != nil {
			return 0, nil, err
		}
	}
	normalized := NormalizeBoardEvents(ctx, t.Cards, s.TenantID, events)
	if t.Epochs.Epoch() != epoch {
		return 0, nil, errPrimaryChanged
	}
	m := storedMatcher(s)
	var out judged
	var kept int64
	failed := 0
	for i := range events {
		e := &events[i]
		if e.Seq <= cursor {
			kept++
		}
		if err := normalized[i].Err; err != nil {
			return 0, nil, fmt.Errorf("event %d: %w", e.Seq, err)
		}
		if e.Source == SourceVoid || normalized[i].Gone || e.Undecodable != "" || eventSize(e) > EventMaxBytes || e.Seq <= s.ActiveFromSeq {
			continue
		}
		e.timed()
		// What was left made no poison row, whether it matched or failed: what
		// fails now is poison like any (T5).
		t.evals.Add(1)
		switch fires, err := matchesSafely(m, newFacts(e)); {
		case err != nil:
			t.evalErrs.Add(1)
			t.poison(&out, e, fmt.Errorf(evaluationOf+"%s: %w", s.ID, err))
			if failed++; failed >= FailingPauses && s.perMinute() > 0 {
				to, why = e.Seq, err
			}
		case fires:
			out.rows = append(out.rows, s.row(e, t.Clock))
			failed = 0
		}
		if why != nil {
			break
		}
	}
	if gone := min(to, cursor) - from + 1 - kept; gone > 0 {
		t.Logger.Warn().Str("tenant", s.TenantID).Str("subscription", s.ID).Int64("from_seq", from).Int64("to_seq", min(to, cursor)).Int64("gone", gone).
			Msg("storm guard: events are no longer kept: what the subscription owes for them can't be known")
	}
	if err := t.write(ctx, s.TenantID, out.rows); err != nil {
		return 0, nil, err
	}
	out.log(t.Logger)
	return to, why, nil
}
