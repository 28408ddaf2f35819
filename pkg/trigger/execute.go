package trigger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// execute makes one attempt at a claimed row and settles it. It calls free once
// the attempt is made and the settle has begun: what is being settled is
// bounded on its own, and holds slots only when there is too much of it.
func (w *EffectWorker) execute(loop, ctx context.Context, v *Evaluator, row Effect, began time.Time, free func()) {
	free = sync.OnceFunc(free)
	defer free()
	log := w.Logger.With().Str("tenant", row.TenantID).Str("effect", row.ID).Str("worker", w.Name).Int("attempt", row.Attempts).Logger()
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
		w.measureStart(&row)
		start := time.Now()
		ev = evaluateSafely(actx, v, &row)
		w.slots.paced(laneKey{row.TenantID, row.Lane}, time.Since(start))
	}
	if errors.Is(ev.Err, ErrFenceLost) {
		w.stats.refused.Add(1)
		log.Warn().Msg("effect write refused, claim no longer held")
		return
	}
	w.answered(&row, ev, log)
	s := w.settle(&row, ev)
	w.settling <- struct{}{}
	defer func() { <-w.settling }()
	free()
	// The settle is not the attempt's: it goes on when that was cut short.
	lease := orDefault(w.Lease, LeaseDefault)
	leaseEnd := began.Add(lease)
	// It goes on past the lease, too: a row that nobody has taken over by then,
	// or that went to reconcile, ends as its bot said (W2, W8).
	stands, err := w.settler.settle(&settling{Settle: s, lane: row.Lane, until: leaseEnd.Add(lease), urgent: ctx.Done()})
	switch {
	case err != nil:
		log.Error().Err(err).Msg("worker: settle failed, given up: the row is decided about when its lease has run out")
	case !stands:
		w.stats.refused.Add(1)
		log.Warn().Msg("effect settle refused, claim no longer held")
	default:
		w.stats.settled.Add(1)
		w.measureEnd(&row, &s)
		if time.Now().After(leaseEnd) {
			w.stats.late.Add(1)
		}
		w.after(context.WithoutCancel(ctx), &row, s, log)
	}
}

// evaluateSafely turns a panic into a failed attempt.
func evaluateSafely(ctx context.Context, v *Evaluator, row *Effect) (ev Evaluation) {
	defer func() {
		if p := recover(); p != nil {
			ev = Evaluation{Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return v.Evaluate(ctx, row)
}

// answered tells the lane's breaker how its bot did, if it was asked (W9).
func (w *EffectWorker) answered(row *Effect, ev Evaluation, log zerolog.Logger) {
	key := laneKey{row.TenantID, row.Lane}
	var le *LaunchError
	switch {
	case ev.Outcome == OutcomeLaunched:
		w.slots.answered(key, true, 0, time.Now())
	case errors.As(ev.Err, &le) && !le.Permanent:
		if w.slots.answered(key, false, le.RetryAfter, time.Now()) {
			log.Warn().Str("lane", row.Lane).Msg("worker: the bot fails again and again, its rows wait")
		}
	}
}

// settle decides where an attempt leaves its row (W5, W8).
func (w *EffectWorker) settle(row *Effect, ev Evaluation) Settle {
	now := w.Clock.Now()
	s := Settle{Fence: row.Fence(), At: now, To: StateDone, Outcome: ev.Outcome, RunID: ev.RunID}
	switch {
	case ev.Held:
		s.To = StateHeld
	case ev.Reconcile:
		s.To = StateReconcile
	case ev.Wait > 0:
		s.To, s.NotBefore, s.HandBack = StatePending, now.Add(ev.Wait), true
	case ev.Err != nil:
		w.failed(row, ev, &s)
	}
	return s
}

func (w *EffectWorker) failed(row *Effect, ev Evaluation, s *Settle) {
	base, limit := w.retries()
	s.Rendered = ev.Rendered
	s.Error = &AttemptError{At: s.At, Attempt: row.Attempts, Message: clip(ev.Err.Error(), 1024)}
	le := &LaunchError{}
	errors.As(ev.Err, &le)
	wait := backoff(row.Attempts, base, limit)
	switch {
	case ev.Uncounted && !row.DeliveryStartedAt.IsZero():
		s.To, s.Uncount, s.NotBefore = StatePending, true, s.At.Add(time.Second+wait)
	case !row.DeliveryStartedAt.IsZero() && !le.Definite:
		s.To = StateReconcile // of the last attempt too
	case le.Permanent, row.Replay == ReplayUnsafe && le.refuses():
		s.To, s.Reason = StateFailed, ReasonPermanent
		if row.Kind == KindEvent {
			s.Reason = ReasonPoison // as before it was replayed
		}
	case ev.Uncounted:
		s.To, s.HandBack, s.NotBefore = StatePending, true, s.At.Add(time.Second+wait)
	case row.Attempts >= AttemptsMax:
		s.To, s.Reason = StateFailed, ReasonExhausted
	default:
		s.To, s.NotBefore = StatePending, s.At.Add(max(wait, min(le.RetryAfter, retryAfterMax)))
	}
}

// after does what follows a settle that stands. None of it is needed for the
// row to end.
func (w *EffectWorker) after(ctx context.Context, row *Effect, s Settle, log zerolog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(w.StoreTimeout, StoreTimeoutDefault))
	defer cancel()
	message := ""
	if s.Error != nil {
		message = s.Error.Message
	}
	switch s.To {
	case StatePending:
		if s.Error != nil {
			log.Warn().Str("error", message).Time("not_before", s.NotBefore).Msg("effect attempt failed, will be tried again")
		}
	case StateFailed:
		log.Error().Str("reason", string(s.Reason)).Str("error", message).Msg("effect failed")
	case StateReconcile:
		log.Error().Str("error", message).Time("delivery_started_at", row.DeliveryStartedAt).
			Msg("effect to be reconciled: nobody knows whether its bot was launched")
	case StateHeld:
		log.Debug().Str("subscription", row.SubscriptionID).Msg("effect held, its subscription is paused")
	case StateDone:
		if row.ConsumeMarked {
			if err := w.Evaluator.Release(ctx, row.TenantID, row.CardID, row.ID); err != nil {
				log.Warn().Err(err).Msg("worker: a spent label's entry could not be taken off the card")
			}
		}
		log.Debug().Str("outcome", string(s.Outcome)).Str("run", s.RunID).Msg("effect done")
	}
	if s.To.Parked() {
		w.parked()
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
