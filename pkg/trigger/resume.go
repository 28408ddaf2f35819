package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// releaseBudget is how long SubscriptionResume and SubscriptionDiscard go
// through held rows themselves.
const releaseBudget = 10 * time.Second

// releasePage is how many held rows are read at once.
const releasePage = 200

// SubscriptionResume ends the subscription's pause and releases its held rows.
// It returns how many it released; after some seconds, or after trouble with
// the store (a Warn), it leaves the others to the sweep, which releases held
// rows of subscriptions that are not paused, and matches events that were left
// because too much was held. Resuming one that is not paused releases what is
// held all the same. The storm guard counts anew.
func (dl *DeadLetters) SubscriptionResume(ctx context.Context, tenantID, id, by string) (s *Subscription, released int, err error) {
	return dl.resume(ctx, tenantID, id, by, func(s *Subscription, seq int64) bool {
		if !s.Paused && s.Guard.DiscardTo == 0 {
			return false
		}
		if s.Paused {
			s.Guard.FromSeq = seq
		}
		s.Guard.DiscardFrom, s.Guard.DiscardTo = 0, 0
		return true
	})
}

// SubscriptionDiscard ends the subscription's pause and gives up what it held:
// rows of events that were in the log when it was called are discarded, and of
// those that were left because too much was held none is matched. It returns
// how many rows it discarded; others follow as SubscriptionResume says.
func (dl *DeadLetters) SubscriptionDiscard(ctx context.Context, tenantID, id, by string) (s *Subscription, discarded int, err error) {
	return dl.resume(ctx, tenantID, id, by, func(s *Subscription, seq int64) bool {
		s.Guard.FromSeq, s.Guard.DiscardTo = seq, seq
		if s.Guard.HeldFrom > 0 {
			if s.Guard.HeldFrom <= seq {
				s.Guard.DiscardFrom = s.Guard.HeldFrom
			}
			// What came since stays to be matched.
			s.Guard.HeldFrom = max(s.Guard.HeldFrom, seq+1)
		}
		return true
	})
}

// resume ends a pause by one write, which also says what becomes of what is
// held, so that nobody goes through it in another way meanwhile; then it goes
// through it.
func (dl *DeadLetters) resume(ctx context.Context, tenantID, id, by string, set func(s *Subscription, seq int64) bool) (s *Subscription, n int, err error) {
	if err := checkWho(by, ""); err != nil {
		return nil, 0, err
	}
	wrap := func(err error) error { return fmt.Errorf("resume subscription %s: %w", id, err) }
	if _, err := dl.Config.SubscriptionGet(ctx, tenantID, id); err != nil {
		return nil, 0, wrap(err)
	}
	// The seq before the write: what comes after it counts, and is owed.
	seq, err := dl.seq(ctx, tenantID)
	if err != nil {
		return nil, 0, wrap(err)
	}
	s, err = dl.setPaused(ctx, tenantID, id, "resume", func(s *Subscription) bool {
		changed := set(s, seq)
		s.Paused, s.PausedBy, s.PausedWhy = false, "", ""
		return changed
	})
	if err != nil {
		return nil, 0, err
	}
	deadline := time.Now().Add(releaseBudget)
	for after, more := "", true; more && time.Now().Before(deadline); {
		var k int
		k, after, more, err = dl.releaseHeld(ctx, s, by, after, deadline)
		n += k
		if err != nil {
			dl.Logger.Warn().Err(err).Str("tenant", tenantID).Str("subscription", id).Msg("dead letters: held rows could not be released, the lane sweeper goes on")
			break
		}
	}
	return s, n, nil
}

// seq returns the highest seq that the tenant's log and rows know (T4).
func (dl *DeadLetters) seq(ctx context.Context, tenantID string) (int64, error) {
	head, err := dl.Heads.HeadGet(ctx, tenantID)
	if errors.Is(err, tracker.ErrNotFound) {
		lifted, err := dl.Heads.HeadLift(ctx, tenantID)
		return lifted.To, err
	}
	if err != nil {
		return 0, err
	}
	return head.Seq, nil
}

// releaseHeld releases or discards a page of the subscription's held rows,
// unless somebody paused it again. It counts those that went the way that
// most should.
func (dl *DeadLetters) releaseHeld(ctx context.Context, s *Subscription, by, after string, deadline time.Time) (n int, last string, more bool, err error) {
	rows, err := dl.Outbox.EffectList(ctx, EffectListParams{
		TenantID: s.TenantID, EffectFilter: EffectFilter{State: StateHeld, SubscriptionID: s.ID}, AfterID: after, Limit: releasePage,
	})
	if err != nil || len(rows) == 0 {
		return 0, after, false, err
	}
	now, err := dl.Config.SubscriptionGet(ctx, s.TenantID, s.ID)
	if err != nil || now.Paused {
		return 0, after, false, err
	}
	marks := laneMarks{}
	defer func() { dl.mark(ctx, marks) }()
	for i := range rows {
		if time.Now().After(deadline) {
			return n, rows[i].ID, false, nil
		}
		d := Decision{TenantID: s.TenantID, EffectID: rows[i].ID, Action: ActionRelease, By: by}
		if rows[i].EventSeq <= now.Guard.DiscardTo {
			d.Action = ActionDiscard
		}
		row, err := dl.decide(ctx, d)
		switch {
		case errors.Is(err, tracker.ErrConflict), errors.Is(err, tracker.ErrNotFound):
			// Somebody else released or discarded it.
		case err != nil:
			return n, after, false, err
		default:
			marks.add(row)
			if (d.Action == ActionDiscard) == (s.Guard.DiscardTo > 0) {
				n++
			}
		}
	}
	return n, rows[len(rows)-1].ID, len(rows) == releasePage, nil
}
