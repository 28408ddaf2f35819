package trigger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
)

// Defaults of the worker.
const (
	SlotsDefault           = 64
	LeaseDefault           = 2 * time.Minute
	AttemptDeadlineDefault = 90 * time.Second
	RetryBaseDefault       = 15 * time.Second
	RetryCapDefault        = 10 * time.Minute
	GraceDefault           = 30 * time.Second
	StoreTimeoutDefault    = 10 * time.Second

	retryAfterMax = 24 * time.Hour
	lanesPerRound = 64
)

// EffectWorker executes rows: it picks due lanes, claims rows with a lease and
// a fresh claim id, evaluates and settles them. Every write after the claim
// carries the claim id (W2). Any number of workers may run.
type EffectWorker struct {
	Outbox    EffectOutbox
	Lanes     Lanes
	Evaluator *Evaluator
	Clock     Clock
	Logger    zerolog.Logger

	// Name stands on the rows that this worker claims.
	Name            string
	Slots           int           // rows executing at once; SlotsDefault if 0
	Lease           time.Duration // LeaseDefault if 0
	AttemptDeadline time.Duration // of one attempt, shorter than Lease
	RetryBase       time.Duration
	RetryCap        time.Duration
	Poll            time.Duration
	Grace           time.Duration // how long Stop waits for what is in flight
	StoreTimeout    time.Duration // of one settle
	// Settled, if set, is called with each row's settle that stands.
	Settled func(row Effect, s Settle)

	service  startstop.Service
	wake     nudge
	inflight sync.WaitGroup
	mu       sync.Mutex
	busy     int
	// reclaimed is held by the one row in flight whose lease had run out.
	reclaimed bool
}

// Wake makes the worker look for due lanes at once.
func (w *EffectWorker) Wake() { w.wake.Nudge() }

// Start starts the loop; it returns once it runs.
func (w *EffectWorker) Start(ctx context.Context) error { return w.service.Start(ctx, w.run) }

// Stop claims nothing more, waits for what is in flight up to the grace
// period, then cancels it, hands back what was claimed and not started, and
// returns when all of it is settled (W10).
func (w *EffectWorker) Stop() { w.service.Stop() }

func (w *EffectWorker) run(ctx context.Context) {
	// Attempts outlive the loop's context by the grace period.
	attempts, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for ctx.Err() == nil {
		more, err := w.round(ctx, attempts)
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn().Err(err).Msg("worker: look for due lanes")
		}
		if !more {
			w.wake.Wait(ctx, jitter(orDefault(w.Poll, PollDefault)))
		}
	}
	timer := time.AfterFunc(orDefault(w.Grace, GraceDefault), cancel)
	defer timer.Stop()
	w.inflight.Wait()
}

func (w *EffectWorker) free() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return orDefault(w.Slots, SlotsDefault) - w.busy
}

func (w *EffectWorker) take(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy += n
}

// round serves each due lane once and reports whether there may be more to do
// at once. Free slots are shared among the lanes, so that none blocks another
// (W9).
func (w *EffectWorker) round(ctx, attempts context.Context) (more bool, err error) {
	if w.free() <= 0 {
		return false, nil // a freed slot wakes
	}
	lanes, err := w.Lanes.LanesDue(ctx, w.Clock.Now(), lanesPerRound)
	if err != nil {
		return false, err
	}
	var errs []error
	for i, lane := range lanes {
		free := w.free()
		if free <= 0 || ctx.Err() != nil {
			more = false
			break
		}
		share := max(1, free/(len(lanes)-i))
		full, err := w.lane(ctx, attempts, lane, share)
		if err != nil {
			errs = append(errs, fmt.Errorf("lane %s/%s: %w", lane.TenantID, lane.Lane, err))
			continue
		}
		more = more || full
	}
	return more, errors.Join(errs...)
}

// lane claims up to share rows of a lane. It reports true when the lane may
// have more that are due; else it moves the lane's due time to its next row.
func (w *EffectWorker) lane(ctx, attempts context.Context, lane Lane, share int) (full bool, err error) {
	reclaimed, err := w.reclaim(ctx, attempts, lane)
	if err != nil {
		return false, err
	}
	if reclaimed {
		share--
	}
	if share > 0 {
		began := time.Now()
		// A claim that has begun is read to its end, also by a worker that is
		// told to stop: it hands the rows back (W10).
		rows, err := w.Outbox.EffectClaim(context.WithoutCancel(ctx), w.claim(lane, share))
		for _, r := range rows {
			w.dispatch(ctx, attempts, r, began, nil)
		}
		if err != nil {
			return false, err
		}
		full = len(rows) == share
	}
	if full || reclaimed {
		// It goes behind the lanes that have been due since before now: slots
		// that become free one at a time are shared too (W9).
		_, err := w.Lanes.LaneReschedule(ctx, lane, w.Clock.Now())
		return true, err
	}
	if w.reclaiming() {
		// The lane may hold more rows whose lease has run out; it stays due,
		// and the end of the one in flight wakes.
		return false, nil
	}
	// The lane's version was read before its rows: a mark since then wins.
	due, ok, err := w.Outbox.EffectNextDue(ctx, lane.TenantID, lane.Lane)
	if err != nil {
		return false, err
	}
	if !ok {
		due = time.Time{}
	}
	if _, err := w.Lanes.LaneReschedule(ctx, lane, due); err != nil {
		return false, err
	}
	return false, nil
}

// reclaim takes one row of the lane whose lease has run out, unless one is in
// flight already: a row that kills its worker must not cost the neighbours it
// was claimed with an attempt each round (W4).
func (w *EffectWorker) reclaim(ctx, attempts context.Context, lane Lane) (bool, error) {
	if w.reclaiming() {
		return false, nil
	}
	began := time.Now()
	row, err := w.Outbox.EffectReclaim(context.WithoutCancel(ctx), w.claim(lane, 1))
	if err != nil || row == nil {
		return false, err
	}
	if row.State != StateClaimed {
		w.Logger.Error().Str("effect", row.ID).Str("reason", string(row.Reason)).Msg("effect failed")
		return true, nil
	}
	w.setReclaiming(true)
	w.dispatch(ctx, attempts, *row, began, func() { w.setReclaiming(false) })
	return true, nil
}

func (w *EffectWorker) reclaiming() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reclaimed
}

func (w *EffectWorker) setReclaiming(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reclaimed = on
}

func (w *EffectWorker) claim(lane Lane, limit int) ClaimParams {
	now := w.Clock.Now()
	return ClaimParams{
		TenantID: lane.TenantID, Lane: lane.Lane, Worker: w.Name, ClaimID: uuid.NewString(),
		Now: now, LeaseEnd: now.Add(orDefault(w.Lease, LeaseDefault)), Limit: limit,
	}
}

func (w *EffectWorker) dispatch(loop, attempts context.Context, row Effect, began time.Time, ended func()) {
	w.take(1)
	w.inflight.Go(func() {
		defer func() {
			w.take(-1)
			if ended != nil {
				ended()
			}
			w.wake.Nudge()
		}()
		w.execute(loop, attempts, row, began)
	})
}

// execute makes one attempt at a claimed row and settles it.
func (w *EffectWorker) execute(loop, ctx context.Context, row Effect, began time.Time) {
	log := w.Logger.With().Str("effect", row.ID).Str("worker", w.Name).Int("attempt", row.Attempts).Logger()
	// The lease counts from the moment that its acquisition began.
	deadline := began.Add(orDefault(w.AttemptDeadline, AttemptDeadlineDefault))
	if !time.Now().Before(deadline) {
		log.Warn().Msg("worker: claim came back too late to be used") // W3
		return
	}
	actx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	var ev Evaluation
	if loop.Err() != nil {
		ev = Evaluation{Wait: time.Millisecond} // stopping, and not started (W10)
	} else {
		ev = w.evaluate(actx, &row)
	}
	if errors.Is(ev.Err, ErrFenceLost) {
		log.Warn().Msg("effect write refused, claim no longer held")
		return
	}
	s := w.settle(&row, ev)
	// The settle is not the attempt's: it goes on when that was cut short.
	until := began.Add(orDefault(w.Lease, LeaseDefault))
	stands, err := w.send(ctx, s, until)
	switch {
	case err != nil:
		log.Error().Err(err).Msg("worker: settle failed, the lease will run out and the row be tried again")
	case !stands:
		log.Warn().Msg("effect settle refused, claim no longer held")
	default:
		w.after(context.WithoutCancel(ctx), &row, s, log)
	}
}

// evaluate turns a panic into a failed attempt.
func (w *EffectWorker) evaluate(ctx context.Context, row *Effect) (ev Evaluation) {
	defer func() {
		if p := recover(); p != nil {
			ev = Evaluation{Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return w.Evaluator.Evaluate(ctx, row)
}

// settle decides where an attempt leaves its row (W5).
func (w *EffectWorker) settle(row *Effect, ev Evaluation) Settle {
	now := w.Clock.Now()
	s := Settle{Fence: row.Fence(), At: now, To: StateDone, Outcome: ev.Outcome, RunID: ev.RunID}
	switch {
	case ev.Wait > 0:
		s.To, s.NotBefore, s.HandBack = StatePending, now.Add(ev.Wait), true
	case ev.Err != nil:
		s.Rendered = ev.Rendered
		s.Error = &AttemptError{At: now, Attempt: row.Attempts, Message: clip(ev.Err.Error(), 1024)}
		var le *LaunchError
		launch := errors.As(ev.Err, &le)
		switch {
		case launch && le.Permanent:
			s.To, s.Reason = StateFailed, ReasonPermanent
		case ev.Uncounted:
			s.To, s.HandBack = StatePending, true
			s.NotBefore = now.Add(time.Second + backoff(row.Attempts, orDefault(w.RetryBase, RetryBaseDefault), orDefault(w.RetryCap, RetryCapDefault)))
		case row.Attempts >= AttemptsMax:
			s.To, s.Reason = StateFailed, ReasonExhausted
		default:
			wait := backoff(row.Attempts, orDefault(w.RetryBase, RetryBaseDefault), orDefault(w.RetryCap, RetryCapDefault))
			if launch {
				wait = max(wait, min(le.RetryAfter, retryAfterMax))
			}
			s.To, s.NotBefore = StatePending, now.Add(wait)
		}
	}
	return s
}

// send settles the row and repeats after errors until the lease has run out,
// or the grace period of a stop: a settle that is sent again is recognized
// (W2).
func (w *EffectWorker) send(attempts context.Context, s Settle, until time.Time) (bool, error) {
	pause := 50 * time.Millisecond
	for {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(attempts), orDefault(w.StoreTimeout, StoreTimeoutDefault))
		stands, err := w.Outbox.EffectSettleMany(sctx, []Settle{s})
		cancel()
		if err == nil {
			return stands[0], nil
		}
		if time.Now().Add(pause).After(until) || attempts.Err() != nil {
			return false, err
		}
		select {
		case <-time.After(pause):
		case <-attempts.Done(): // one more try
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// after does what follows a settle that stands. None of it is needed for the
// row to end: a lane not marked here is due when the lease would have ended.
func (w *EffectWorker) after(ctx context.Context, row *Effect, s Settle, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(w.StoreTimeout, StoreTimeoutDefault))
	defer cancel()
	switch s.To {
	case StatePending:
		mark := LaneMark{TenantID: row.TenantID, Lane: row.Lane, Due: s.NotBefore}
		if err := w.Lanes.LaneMarkMany(ctx, []LaneMark{mark}); err != nil {
			log.Warn().Err(err).Msg("worker: mark lane after retry")
		}
		if s.Error != nil {
			log.Warn().Str("error", s.Error.Message).Time("not_before", s.NotBefore).Msg("effect attempt failed, will be tried again")
		}
	case StateFailed:
		log.Error().Str("reason", string(s.Reason)).Str("error", s.Error.Message).Msg("effect failed")
	case StateDone:
		if row.ConsumeMarked {
			if err := w.Evaluator.release(ctx, row); err != nil {
				log.Warn().Err(err).Msg("worker: release consumption")
			}
		}
		log.Info().Str("outcome", string(s.Outcome)).Str("run_id", s.RunID).Msg("effect done")
	}
	if w.Settled != nil {
		w.Settled(*row, s)
	}
}

// backoff is exponential with full jitter: up to base·2^(attempt-1), capped,
// at any attempt (W5).
func backoff(attempt int, base, limit time.Duration) time.Duration {
	d := limit
	if shift := max(attempt, 1) - 1; shift < 62 && base <= limit>>shift {
		d = base << shift
	}
	return rand.N(d + 1) //nolint:gosec // jitter is no secret
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 { // not inside a rune
		n--
	}
	return s[:n] + "…"
}
