package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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
	// claimWorth is how many rows a claim asks for at least, if there is room.
	claimWorth = 8
	// reclaimEvery is how often a lane is searched for leases that ran out.
	reclaimEvery = time.Second
	// viewKept is for how long the rows of one claim take over what one of them
	// has read.
	viewKept = 200 * time.Millisecond
	// tenantTurn is how long a lane is put off whose tenant has all the slots
	// that it may have.
	tenantTurn = 500 * time.Millisecond
)

// EffectWorker executes rows: it picks due lanes, claims rows with a lease and
// a fresh claim id, evaluates and settles them. Every write after the claim
// carries the claim id (W2). Any number of workers may run.
type EffectWorker struct {
	Outbox    EffectOutbox
	Lanes     Lanes
	Pauses    Pauses
	Evaluator *Evaluator
	Clock     Clock
	Epochs    Epochs
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
	Meters          WorkerMeters
	// Settled, if set, is called with each row's settle that stands.
	Settled func(row Effect, s Settle)
	// Parked, if set, is called after a row was parked, failed or reconcile.
	Parked func()

	service  startstop.Service
	wake     nudge
	inflight sync.WaitGroup
	slots    *slots
	settler  *settler
	settling chan struct{} // holds one for each settle under way
	paused   pauseWatch
	stats    workerStats
	meter    workerMeter
	// rounds numbers the rounds; servedIn has each busy lane's latest, so that
	// due lanes take turns.
	rounds   int
	servedIn map[laneKey]int
	// searched says until when a lane holds no more leases that ran out than
	// were found.
	searched map[laneKey]time.Time
	// epoch is the primary's, as last seen; nothing is reclaimed before
	// reclaimFrom (W11).
	epoch       int64
	reclaimFrom time.Time
	// lookedAt is when the lanes that are due were last looked for; owing, that
	// they held more rows than there were slots for.
	lookedAt time.Time
	owing    bool

	mu sync.Mutex
	// reclaimed is held by the one row in flight whose lease had run out.
	reclaimed bool
	// running is set while the worker takes rows.
	running atomic.Pointer[workerRun]
}

// workerRun is a worker while it takes rows, as the tail beside it sees it.
type workerRun struct {
	loop, attempts context.Context
	epoch          atomic.Int64
	pauses         atomic.Pointer[pauseSet]

	mu     sync.Mutex
	closed bool
	births sync.WaitGroup
}

// enter has the worker wait for a birth; false if it takes none any more.
func (r *workerRun) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.births.Add(1)
	return true
}

// close takes no more births and waits for those under way.
func (r *workerRun) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.births.Wait()
}

// WorkerStats counts what a worker did since it was made.
type WorkerStats struct {
	// Claimed rows, and Reclaimed ones, whose lease had run out.
	Claimed, Reclaimed int64
	// Settled counts settles that stand; Late those of them whose lease had
	// run out; Refused those whose claim was no longer held (W2).
	Settled, Late, Refused int64
}

type workerStats struct{ claimed, reclaimed, settled, late, refused atomic.Int64 }

// Stats returns the counts. It may be called at any time.
func (w *EffectWorker) Stats() WorkerStats {
	s := &w.stats
	return WorkerStats{s.claimed.Load(), s.reclaimed.Load(), s.settled.Load(), s.late.Load(), s.refused.Load()}
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
	size := orDefault(w.Slots, SlotsDefault)
	base, limit := w.retries()
	w.slots = newSlots(size, base/3, limit/10)
	w.settler = newSettler(w, size)
	w.settling = make(chan struct{}, max(2*settleBatch, size))
	w.servedIn, w.searched = make(map[laneKey]int), make(map[laneKey]time.Time)
	w.epoch, w.reclaimFrom = w.Epochs.Epoch(), time.Time{}
	defer w.settler.close()
	// Attempts outlive the loop's context by the grace period.
	attempts, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	run := &workerRun{loop: ctx, attempts: attempts}
	w.running.Store(run)
	for ctx.Err() == nil {
		more, err := w.round(ctx, attempts)
		if err != nil && ctx.Err() == nil {
			w.Logger.Warn().Err(err).Msg("worker: a round failed, the next one goes on")
		}
		if !more {
			w.wake.Wait(ctx, jitter(orDefault(w.Poll, PollDefault)))
		}
	}
	timer := time.AfterFunc(orDefault(w.Grace, GraceDefault), cancel)
	defer timer.Stop()
	run.close()
	w.inflight.Wait()
}

func (w *EffectWorker) retries() (base, limit time.Duration) {
	return orDefault(w.RetryBase, RetryBaseDefault), orDefault(w.RetryCap, RetryCapDefault)
}

// watchEpoch looks whether another server answers now: the times on the rows
// are then another clock's, and nothing is reclaimed for one lease (W11).
func (w *EffectWorker) watchEpoch() {
	if now := w.Epochs.Epoch(); now != w.epoch {
		w.epoch, w.reclaimFrom = now, time.Now().Add(orDefault(w.Lease, LeaseDefault))
	}
	if run := w.running.Load(); run != nil {
		run.epoch.Store(w.epoch)
	}
}

// round serves each due lane once and reports whether there may be more to do
// at once. Free slots are shared among the lanes, so that none blocks another
// (W9).
func (w *EffectWorker) round(ctx, attempts context.Context) (more bool, err error) {
	free, busyLanes := w.slots.free()
	if free <= 0 {
		if w.owing || time.Since(w.lookedAt) > orDefault(w.Poll, PollDefault) {
			w.slots.looked(true) // lanes are due, or may be
		}
		return false, nil // a freed slot wakes
	}
	w.watchEpoch()
	w.lookedAt = time.Now()
	// Lanes that have all they may have in flight stay due: they do not count.
	lanes, err := w.Lanes.LanesDue(ctx, w.Clock.Now(), lanesPerRound+busyLanes)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(lanes, func(l Lane) bool { return w.paused.set.holds(laneKey{l.TenantID, l.Lane}) }) {
		// Read again, after the lanes: one that was resumed before is not put
		// off, and one that is resumed from here on is marked, which wins.
		w.paused.next = time.Time{}
	}
	w.meter.rounds.Add(1)
	pauses, err := w.paused.load(ctx, w.Pauses)
	if err != nil {
		return false, err
	}
	if run := w.running.Load(); run != nil {
		run.pauses.Store(&pauses)
	}
	w.takeTurns(lanes)
	var errs []error
	starved := false
	defer func() {
		w.slots.looked(starved)
		w.owing = starved || more
	}()
	for i, lane := range lanes {
		free, _ := w.slots.free()
		if free <= 0 || ctx.Err() != nil {
			more, starved = false, true
			break
		}
		// Lanes that get nothing this time are first the next. So a claim may
		// be worth its commands.
		share := min(free, max(claimWorth, free/(len(lanes)-i)))
		full, err := w.serve(ctx, attempts, lane, share, pauses)
		if err != nil {
			errs = append(errs, fmt.Errorf("lane %s/%s: %w", lane.TenantID, lane.Lane, err))
			continue
		}
		more = more || full
	}
	return more, errors.Join(errs...)
}

// takeTurns puts the lanes into the order in which they were served last: one
// that could not be put behind the others, since it is marked all the time, or
// that was put off when its tenant had all its slots, gets its turn (W9).
func (w *EffectWorker) takeTurns(lanes []Lane) {
	w.rounds++
	for key, n := range w.servedIn {
		if n < w.rounds-2*lanesPerRound {
			delete(w.servedIn, key)
			delete(w.searched, key)
		}
	}
	slices.SortStableFunc(lanes, func(a, b Lane) int {
		return cmp.Or(cmp.Compare(w.servedIn[laneKey{a.TenantID, a.Lane}], w.servedIn[laneKey{b.TenantID, b.Lane}]), a.DueAt.Compare(b.DueAt))
	})
}

// serve looks whether the lane may have rows begun now, and claims some. One
// that is paused, or waits for its bot or for its tenant's turn, is put off, so
// that it does not stand in the others' way.
func (w *EffectWorker) serve(ctx, attempts context.Context, lane Lane, share int, pauses pauseSet) (full bool, err error) {
	key := laneKey{lane.TenantID, lane.Lane}
	if pauses.holds(key) {
		// Whoever resumes it marks it.
		_, err := w.Lanes.LaneReschedule(ctx, lane, time.Time{})
		return false, err
	}
	room, tenantFull, until := w.slots.room(key, time.Now())
	switch {
	case !until.IsZero():
		_, err := w.Lanes.LaneReschedule(ctx, lane, w.Clock.Now().Add(time.Until(until)))
		return false, err
	case room == 0 && tenantFull && !w.slots.has(key):
		_, err := w.Lanes.LaneReschedule(ctx, lane, w.Clock.Now().Add(tenantTurn))
		return false, err
	case room == 0:
		return false, nil // a freed slot wakes
	}
	w.servedIn[key] = w.rounds
	return w.lane(ctx, attempts, lane, min(share, room))
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
		key := laneKey{lane.TenantID, lane.Lane}
		free := w.slots.takeUpTo(key, share)
		if free == 0 {
			return false, nil // rows that a tail wrote were faster; a freed slot wakes
		}
		queue := w.slots.ahead(key, aheadMax)
		began := time.Now()
		// A claim that has begun is read to its end, also by a worker that is
		// told to stop: it hands the rows back (W10).
		rows, err := w.Outbox.EffectClaim(context.WithoutCancel(ctx), w.claim(lane, free+queue))
		w.stats.claimed.Add(int64(len(rows)))
		w.measureClaim(len(rows), began)
		full = len(rows) == free+queue
		w.slots.claimed(key, full)
		w.start(ctx, attempts, key, rows, free, queue, began)
		if err != nil {
			return false, err
		}
	}
	if w.Epochs.Epoch() != w.epoch {
		// What was read of the lane and of its rows may be of two servers: the
		// lane stays as it is.
		return false, nil
	}
	if full || reclaimed {
		// It goes behind the lanes that have been due since before now: slots
		// that become free one at a time are shared too (W9).
		_, err := w.Lanes.LaneReschedule(ctx, lane, w.Clock.Now())
		return true, err
	}
	// The lane's version was read before its rows: a mark since then wins.
	due, ok, err := w.Outbox.EffectNextDue(ctx, lane.TenantID, lane.Lane)
	if err != nil || w.Epochs.Epoch() != w.epoch {
		return false, err
	}
	now := w.Clock.Now()
	switch {
	case !ok:
		due = time.Time{}
	case due.Before(now) && w.untilReclaim() > 0:
		// An expired claim that may not be taken yet (W11): the lane would be
		// looked at in vain all the time, but it may hold other rows.
		due = now.Add(min(w.untilReclaim(), reclaimEvery))
	case due.Before(now):
		// Rows whose lease has run out, which wait for the one in flight, whose
		// end wakes. Meanwhile the lane stands behind the others (W9).
		due = now
	}
	_, err = w.Lanes.LaneReschedule(ctx, lane, due)
	return false, err
}

// untilReclaim is how long nothing may be reclaimed yet (W11).
func (w *EffectWorker) untilReclaim() time.Duration { return time.Until(w.reclaimFrom) }

// reclaim takes one row of the lane whose lease has run out, unless one is in
// flight already: a row that kills its worker must not cost the neighbours it
// was claimed with an attempt each round (W4).
func (w *EffectWorker) reclaim(ctx, attempts context.Context, lane Lane) (bool, error) {
	began := time.Now()
	key := laneKey{lane.TenantID, lane.Lane}
	if w.reclaiming() || w.untilReclaim() > 0 || began.Before(w.searched[key]) {
		return false, nil
	}
	p := w.claim(lane, 1)
	if w.Epochs.Epoch() != w.epoch {
		return false, nil // p.Now may be another clock's than the leases (W11)
	}
	row, err := w.Outbox.EffectReclaim(context.WithoutCancel(ctx), p)
	if err == nil && row == nil {
		w.searched[key] = began.Add(reclaimEvery)
	}
	if err != nil || row == nil {
		return false, err
	}
	w.stats.reclaimed.Add(1)
	if row.State.Parked() {
		w.meter.endings.add(row.Kind, row.State, string(row.Reason))
		w.parked()
	}
	switch row.State {
	case StateFailed:
		w.Logger.Error().Str("tenant", row.TenantID).Str("effect", row.ID).Str("reason", string(row.Reason)).Msg("effect failed")
		return true, nil
	case StateReconcile:
		w.Logger.Error().Str("tenant", row.TenantID).Str("effect", row.ID).Str("claimed_by", row.Worker).Time("delivery_started_at", row.DeliveryStartedAt).
			Msg("effect to be reconciled: nobody knows whether its bot was launched")
		return true, nil
	}
	w.setReclaiming(true)
	w.slots.take(key)
	w.inflight.Go(func() {
		w.execute(ctx, attempts, w.Evaluator, *row, began, func() { w.freed(key) })
		w.setReclaiming(false)
		w.wake.Nudge()
	})
	return true, nil
}

func (w *EffectWorker) parked() {
	if w.Parked != nil {
		w.Parked()
	}
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

// start executes the rows of one claim: the first ones in the slots that were
// taken for them, the others as slots become free, for which places in the
// queue were taken. What was taken and is not needed is given back.
func (w *EffectWorker) start(loop, attempts context.Context, lane laneKey, rows []Effect, free, places int, began time.Time) {
	v := w.Evaluator.forClaim(rows)
	at := min(free, len(rows))
	w.slots.giveBack(lane, free-at)
	queued := rows[at:]
	w.slots.unqueue(places - len(queued))
	if len(rows) == 0 {
		return
	}
	// All of them together: each one's lease runs. What is left of their
	// attempts' time has to be worth it (W3).
	half := orDefault(w.AttemptDeadline, AttemptDeadlineDefault) / 2
	until := time.Now().Add(min(queueWait, half-time.Since(began)))
	w.inflight.Go(func() {
		// What they need is read before their attempts begin, all of it at once.
		read := time.Now()
		if loop.Err() == nil {
			v.prepare(attempts, rows)
		}
		execute := func(loop context.Context, v *Evaluator, r Effect, free func()) {
			w.inflight.Go(func() { w.execute(loop, attempts, v, r, began, free) })
		}
		slot := func() { w.freed(lane) }
		for _, r := range rows[:at] {
			execute(loop, v, r, slot)
		}
		gone, cancel := context.WithCancel(loop)
		defer cancel()
		for i, r := range queued {
			// When one has no turn soon, all that are left are handed back, not
			// started (W10).
			turn := gone.Err() == nil && w.slots.wait(loop, lane, until)
			w.slots.unqueue(1)
			if time.Since(read) > viewKept {
				// What is configured may have changed since (W6).
				v, read = w.Evaluator.forClaim(queued[i:]), time.Now()
			}
			if turn {
				execute(loop, v, r, slot)
				continue
			}
			cancel()
			execute(gone, v, r, func() {})
		}
	})
}

// freed gives a slot back and has the loop look what it is good for.
func (w *EffectWorker) freed(lane laneKey) {
	w.slots.release(lane)
	w.wake.Nudge()
}
