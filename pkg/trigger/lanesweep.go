package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Numbers of the lane sweep.
const (
	LaneSweepDefault = 5 * time.Second
	// sweepShare is how many times as long as a sweep took the next one waits,
	// at least: a large backlog is not read all the time.
	sweepShare   = 20
	heldSubs     = 500
	heldPage     = 200
	heldPerSweep = 2000
	behindSubs   = 100
	behindPages  = 10
)

// LaneSweeper finds lanes from the rows themselves: lanes are a hint, rows are
// the truth. Whatever mark was lost, by a crash between a row and its lane or
// otherwise, is late by one sweep. It also releases held rows whose
// subscription is not paused any more. Any number of sweepers may run; one is
// preferred.
type LaneSweeper struct {
	Outbox EffectOutbox
	Lanes  Lanes
	Pauses Pauses
	Config interface {
		SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
		SubscriptionsBehind(ctx context.Context, limit int) ([]SubscriptionKey, error)
	}
	// Matcher, if set, matches what paused subscriptions left (MatchHeld).
	Matcher interface {
		MatchHeld(ctx context.Context, key SubscriptionKey) (more bool, err error)
	}
	Clock  Clock
	Logger zerolog.Logger
	Every  time.Duration // LaneSweepDefault if 0
	// Prefers, if set, reports whether this replica is the preferred sweeper.
	Prefers func(key string) bool
	// WakeWorker, if set, is called after lanes were marked.
	WakeWorker func()

	service startstop.Service
}

// Start starts the loop; it returns once it runs.
func (s *LaneSweeper) Start(ctx context.Context) error { return s.service.Start(ctx, s.run) }

// Stop ends the loop and waits for the sweep under way.
func (s *LaneSweeper) Stop() { s.service.Stop() }

func (s *LaneSweeper) run(ctx context.Context) {
	var wait nudge
	pause := orDefault(s.Every, LaneSweepDefault)
	for {
		wait.Wait(ctx, jitter(pause))
		if ctx.Err() != nil {
			return
		}
		if s.Prefers != nil && !s.Prefers("lanes") {
			continue
		}
		began := time.Now()
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn().Err(err).Msg("lane sweeper: a round failed, the next one goes on")
		}
		pause = max(orDefault(s.Every, LaneSweepDefault), sweepShare*time.Since(began))
	}
}

// Sweep marks every lane that is due later than its rows say, and releases
// held rows of subscriptions that are not paused. It may be called at any time.
func (s *LaneSweeper) Sweep(ctx context.Context) error {
	return errors.Join(s.match(ctx), s.release(ctx), s.mark(ctx))
}

// match goes on, by some pages each, with subscriptions that were resumed and
// had left events unmatched.
func (s *LaneSweeper) match(ctx context.Context) error {
	if s.Matcher == nil {
		return nil
	}
	subs, err := s.Config.SubscriptionsBehind(ctx, behindSubs)
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range subs {
		for page, more := 0, true; more && page < behindPages; page++ {
			if more, err = s.Matcher.MatchHeld(ctx, key); err != nil {
				errs = append(errs, err)
				break
			}
		}
	}
	return errors.Join(errs...)
}

func (s *LaneSweeper) mark(ctx context.Context) error {
	late, err := s.Lanes.LanesLate(ctx)
	if err != nil || len(late) == 0 {
		return err
	}
	// Read after the rows: a lane that was resumed since is marked.
	pauses, err := s.Pauses.PauseList(ctx)
	if err != nil {
		return fmt.Errorf("pauses: %w", err)
	}
	paused := newPauseSet(pauses)
	var marks []LaneMark
	for _, m := range late {
		if !paused.holds(laneKey{m.TenantID, m.Lane}) {
			marks = append(marks, m)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	if err := s.Lanes.LaneMarkMany(ctx, marks); err != nil {
		return err
	}
	if s.WakeWorker != nil {
		s.WakeWorker()
	}
	return nil
}

// release lets held rows go on whose subscription is not paused any more, or
// gone (they then end so).
func (s *LaneSweeper) release(ctx context.Context) error {
	var errs []error
	released := 0
	for after := (SubscriptionKey{}); released < heldPerSweep; {
		subs, err := s.Outbox.EffectsHeld(ctx, after, heldSubs)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		n, err := s.releaseUnpaused(ctx, subs, heldPerSweep-released)
		released += n
		errs = append(errs, err)
		if len(subs) < heldSubs {
			break
		}
		after = subs[len(subs)-1]
	}
	return errors.Join(errs...)
}

// releaseUnpaused releases up to limit rows, or a few more, of those of the
// subscriptions that are not paused.
func (s *LaneSweeper) releaseUnpaused(ctx context.Context, subs []SubscriptionKey, limit int) (released int, err error) {
	var errs []error
	for _, key := range subs {
		sub, err := s.Config.SubscriptionGet(ctx, key.TenantID, key.SubscriptionID)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		if sub != nil && sub.Paused || released >= limit {
			continue
		}
		discardTo := int64(0)
		if sub != nil {
			discardTo = sub.Guard.DiscardTo
		}
		n, err := s.releaseOf(ctx, key, discardTo)
		released += n
		if err != nil {
			errs = append(errs, fmt.Errorf("release held rows of %s/%s: %w", key.TenantID, key.SubscriptionID, err))
		}
	}
	return released, errors.Join(errs...)
}

// releaseOf releases a page of held rows, but for those of events up to
// discardTo, which somebody gave up.
func (s *LaneSweeper) releaseOf(ctx context.Context, key SubscriptionKey, discardTo int64) (n int, err error) {
	rows, err := s.Outbox.EffectList(ctx, EffectListParams{
		TenantID: key.TenantID, EffectFilter: EffectFilter{State: StateHeld, SubscriptionID: key.SubscriptionID}, Limit: heldPage,
	})
	if err != nil {
		return 0, err
	}
	var errs []error
	for i := range rows {
		d := Decision{
			TenantID: key.TenantID, EffectID: rows[i].ID, ID: uuid.NewString(), Action: ActionRelease,
			By: "system:sweep", Note: "its subscription is not paused", At: s.Clock.Now(), ClaimID: uuid.NewString(),
		}
		if rows[i].EventSeq <= discardTo {
			d.Action, d.Note = ActionDiscard, "what its subscription held was given up"
		}
		_, err := s.Outbox.EffectDecide(ctx, d)
		switch {
		case err == nil:
			n++
		case !errors.Is(err, tracker.ErrConflict) && !errors.Is(err, tracker.ErrNotFound):
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...) // their lanes are found by the mark that follows
}
