package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Defaults of the tail.
const (
	TailBatchDefault    = 500
	TailParallelDefault = 8
	PollDefault         = 200 * time.Millisecond
	tenantsPerRound     = 100
	deferTenant         = 2 * time.Second
	// stepIn is how long a tenant waits for the replica that it prefers.
	stepIn = 2 * time.Second
	// rowsPerInsert keeps one insert below what servers take in one command.
	rowsPerInsert = 1000
)

// Tail turns the log into rows: for each tenant, over the contiguous prefix
// after the cursor, it matches every event, writes all owed rows that are
// absent, marks their lanes, and only then advances the cursor (T1). Any
// number of tails may work on one tenant at once.
type Tail struct {
	Cards  tracker.CardStore
	Log    EventLog
	Heads  Heads
	Config tailConfig
	Outbox EffectOutbox
	Lanes  Lanes
	Clock  Clock
	Epochs Epochs
	Logger zerolog.Logger

	Batch    int           // events per batch; TailBatchDefault if 0
	Parallel int           // tenants at once; TailParallelDefault if 0
	Poll     time.Duration // PollDefault if 0
	HoleWait time.Duration // HoleWaitDefault if 0 (T3)
	HeldMax  int           // rows held of one subscription; HeldMaxDefault if 0
	// Prefers, if set, reports whether this replica is the one that should
	// drain the tenant; others step in after 2 s. It is preference, never
	// correctness.
	Prefers func(tenantID string) bool
	// WakeWorker, if set, is called after lanes were marked.
	WakeWorker func()
	// Worker, if set, takes rows that it has room for as they are written,
	// instead of looking for them.
	Worker *EffectWorker

	service startstop.Service
	wake    nudge
	mu      sync.Mutex
	woken   map[string]bool
	busy    map[string]bool
	small   map[string]bool // tenants whose last batch could not be written
	away    map[string]time.Time
	cache   subscriptionCache
	warned  onceSet          // features that are not known
	closed  map[string]int64 // each tenant's highest hole that was closed
	panics  panicWatch
	meter   tailMeter
	evals   atomic.Int64
	// evalErrs counts the evaluations that failed.
	evalErrs atomic.Int64
	storm    storms
	paused   atomic.Int64 // subscriptions that the storm guard paused
}

// Wake tells the tail that a tenant's log has grown: it is drained at once.
func (t *Tail) Wake(tenantID string) {
	t.mu.Lock()
	if t.woken == nil {
		t.woken = make(map[string]bool)
	}
	t.woken[tenantID] = true
	t.mu.Unlock()
	t.wake.Nudge()
}

// Healthy reports whether tenants are drained without panics, or have been for
// the last minute.
func (t *Tail) Healthy() bool { return t.panics.healthy(time.Now()) }

// Evaluated counts the evaluations of a subscription against an event.
func (t *Tail) Evaluated() int64 { return t.evals.Load() }

// EvaluationsFailed counts those of them that failed: each makes its event a
// poison row (T5).
func (t *Tail) EvaluationsFailed() int64 { return t.evalErrs.Load() }

// Start starts the loop; it returns once it runs.
func (t *Tail) Start(ctx context.Context) error { return t.service.Start(ctx, t.run) }

// Stop ends the loop and waits for the batches under way.
func (t *Tail) Stop() { t.service.Stop() }

func (t *Tail) run(ctx context.Context) {
	var drains sync.WaitGroup
	defer drains.Wait()
	slots := make(chan struct{}, orDefault(t.Parallel, TailParallelDefault))
	poll := orDefault(t.Poll, PollDefault)
	var next time.Time
	for ctx.Err() == nil {
		tenants := t.takeWoken()
		mine := len(tenants)
		if now := time.Now(); !now.Before(next) {
			next = now.Add(jitter(poll))
			due, n, err := t.due(ctx)
			if err != nil && ctx.Err() == nil {
				t.Logger.Warn().Err(err).Msg("tail: could not look for tenants with work")
			}
			tenants = append(tenants, due...)
			mine += n
		}
		for i, tenant := range tenants {
			if !t.occupy(tenant) {
				continue // under way; if it was woken, it looks once more
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				t.vacate(tenant)
				return
			}
			drains.Go(func() {
				defer func() {
					t.vacate(tenant)
					<-slots
				}()
				t.serve(ctx, tenant, i >= mine)
			})
		}
		t.wake.Wait(ctx, time.Until(next))
	}
}

// takeWoken returns the woken tenants that are not under way.
func (t *Tail) takeWoken() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tenant := range t.woken {
		if !t.busy[tenant] {
			out = append(out, tenant)
			delete(t.woken, tenant)
		}
	}
	return out
}

func (t *Tail) occupy(tenant string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[tenant] {
		return false
	}
	if t.busy == nil {
		t.busy = make(map[string]bool)
	}
	t.busy[tenant] = true
	return true
}

func (t *Tail) vacate(tenant string) {
	t.mu.Lock()
	delete(t.busy, tenant)
	again := t.woken[tenant]
	t.mu.Unlock()
	if again {
		t.wake.Nudge()
	}
}

// due returns the dirty tenants that this replica should drain now (T6): first
// the n that prefer it, then those that it steps in for, in an order that other
// replicas are not likely to take them in.
func (t *Tail) due(ctx context.Context) (tenants []string, n int, err error) {
	now := t.Clock.Now()
	dirty, err := t.Heads.HeadsDirty(ctx, now, tenantsPerRound)
	if err != nil {
		return nil, 0, err
	}
	var others []string
	for _, d := range dirty {
		switch {
		case t.isAway(d.TenantID):
		case t.Prefers == nil || t.Prefers(d.TenantID):
			tenants = append(tenants, d.TenantID)
		case overdue(now, d.Since):
			others = append(others, d.TenantID)
		}
	}
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] }) //nolint:gosec // no secret
	return append(tenants, others...), len(tenants), nil
}

// overdue reports whether a tenant has waited so long for the replica that it
// prefers that others step in.
func overdue(now, dirtySince time.Time) bool { return now.Sub(dirtySince) >= stepIn }

// Serve drains one batch of a tenant. A tenant that fails backs off and does
// not hold up the others (T6); a panic stays with its tenant. It reports what
// goes wrong in the log.
func (t *Tail) Serve(ctx context.Context, tenant string) { t.serve(ctx, tenant, false) }

// serve is Serve; with stepsIn set, for a tenant that prefers another replica.
func (t *Tail) serve(ctx context.Context, tenant string, stepsIn bool) {
	var retry time.Duration
	defer func() {
		if p := recover(); p != nil {
			t.panics.add(time.Now())
			t.Logger.Error().Str("tenant", tenant).Interface("panic", p).Bytes("stack", debug.Stack()).Msg("tail: panic while draining")
			retry = deferTenant
		}
		if retry <= 0 || ctx.Err() != nil {
			return
		}
		if err := t.Heads.HeadDefer(ctx, tenant, t.Clock.Now().Add(retry)); err != nil && ctx.Err() == nil {
			t.Logger.Warn().Err(err).Str("tenant", tenant).Msg("tail: a failing tenant could not be put off")
		}
	}()
	d, err := t.drain(ctx, tenant, stepsIn)
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil && t.foreign(tenant, err):
		// Others may know the feature: this replica alone keeps away.
	case err != nil:
		t.report(tenant, err)
		retry = deferTenant
	case d.More:
		t.Wake(tenant)
	default:
		retry = d.Retry
	}
}

// foreign leaves a tenant that needs an unknown feature to other replicas for
// a while, with one Warn for each such feature.
func (t *Tail) foreign(tenant string, err error) bool {
	unknown := (*UnknownFeatureError)(nil)
	if !errors.As(err, &unknown) {
		return false
	}
	t.mu.Lock()
	if t.away == nil {
		t.away = make(map[string]time.Time)
	}
	t.away[tenant] = time.Now().Add(deferTenant)
	t.mu.Unlock()
	if t.warned.First(tenant + " " + unknown.Error()) {
		t.report(tenant, err)
	}
	return true
}

func (t *Tail) isAway(tenant string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.away[tenant]
	if ok && time.Now().After(until) {
		delete(t.away, tenant)
		return false
	}
	return ok
}

func (t *Tail) report(tenant string, err error) {
	t.Logger.Warn().Err(err).Str("tenant", tenant).Msg("tail: batch aborted, cursor untouched")
}

var errPrimaryChanged = errors.New("the primary changed between the events and the subscriptions")

// Drained is what one Drain did.
type Drained struct {
	// Moved: the cursor was moved, by this tail or another.
	Moved bool
	// More: there is more to drain at once.
	More bool
	// Retry is how long to wait for a hole to be filled or closed.
	Retry time.Duration
}

// Drain handles one batch of one tenant. Any error leaves the cursor where it
// was; rows that were written already are found there by the next try (T1,
// T2).
func (t *Tail) Drain(ctx context.Context, tenantID string) (Drained, error) {
	return t.drain(ctx, tenantID, false)
}

func (t *Tail) drain(ctx context.Context, tenantID string, stepsIn bool) (Drained, error) {
	wrap := func(err error) error { return fmt.Errorf("drain %s: %w", tenantID, err) }
	head, err := t.Heads.HeadGet(ctx, tenantID)
	if errors.Is(err, tracker.ErrNotFound) {
		return Drained{}, nil
	}
	if err != nil {
		return Drained{}, wrap(err)
	}
	if head.Seq <= head.Cursor {
		return Drained{}, nil
	}
	if stepsIn && !overdue(t.Clock.Now(), head.DrainAfter) {
		return Drained{}, nil // the other replica has come to it meanwhile
	}
	batch := int64(orDefault(t.Batch, TailBatchDefault))
	single := t.isSmall(tenantID)
	if single {
		batch = 1
	}
	end := min(head.Seq, head.Cursor+batch)
	epoch := t.Epochs.Epoch()
	events, err := t.Log.EventList(ctx, tenantID, head.Cursor, end)
	if err != nil {
		return Drained{}, wrap(err)
	}
	events = contiguous(events, head.Cursor)
	hole := int64(len(events)) < end-head.Cursor
	if len(events) == 0 {
		return t.hole(ctx, head)
	}
	judged, err := t.judge(ctx, tenantID, events)
	if err != nil {
		return Drained{}, wrap(err)
	}
	if t.Epochs.Epoch() != epoch {
		// A new primary may not have had the subscriptions that the events'
		// one had (T7).
		return Drained{}, wrap(errPrimaryChanged)
	}
	switch err := t.guard(ctx, tenantID, head.Cursor, &judged); {
	case errors.Is(err, tracker.ErrConflict):
		return Drained{More: true}, nil // somebody changed a subscription: match anew
	case err != nil:
		return Drained{}, wrap(err)
	}
	if err := t.write(ctx, tenantID, judged.rows); err != nil {
		return Drained{}, wrap(t.unwritten(ctx, tenantID, events[:judged.n], single, err))
	}
	to := head.Cursor + int64(judged.n)
	// A lost CAS is silent: another replica did the same work. It goes on with
	// the rest too: two that went on side by side would do all of it twice.
	mine, err := t.Heads.HeadAdvance(ctx, tenantID, head.Cursor, to)
	if err != nil {
		return Drained{}, fmt.Errorf("advance cursor %s from %d to %d: %w", tenantID, head.Cursor, to, err)
	}
	t.setSmall(tenantID, false)
	t.storm.commit(tenantID, judged.storm, to, judged.subs)
	if mine {
		t.passed(&judged)
		t.flag(ctx, judged.failing, to)
	}
	return Drained{Moved: true, More: mine && (to < head.Seq || hole)}, nil
}

// contiguous returns the prefix of the events that follows the cursor without
// a hole: the cursor never passes one (T3).
func contiguous(events []Event, cursor int64) []Event {
	for i := range events {
		if events[i].Seq != cursor+int64(i)+1 {
			return events[:i]
		}
	}
	return events
}

// write writes the rows that are absent and marks the lanes of all of them:
// not only of new ones, since whoever wrote the others may have died before
// marking; and the lanes that the rows carry, since a subscription may have
// moved to another bot meanwhile.
func (t *Tail) write(ctx context.Context, tenantID string, rows []Effect) error {
	if len(rows) == 0 {
		return nil
	}
	// The better-ranked taker of a label is there before the others (W7), as
	// far as the store keeps the order of one insert.
	slices.SortStableFunc(rows, func(a, b Effect) int {
		return cmp.Or(cmp.Compare(a.EventSeq, b.EventSeq), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.SubscriptionID, b.SubscriptionID))
	})
	var refs []EffectRef
	for len(rows) > 0 {
		got, n, err := t.insert(ctx, tenantID, rows[:min(len(rows), rowsPerInsert)])
		if err != nil {
			return fmt.Errorf("write %d rows: %w", n, err)
		}
		refs, rows = append(refs, got...), rows[n:]
	}
	marks, due := laneMarks{}, false
	now := t.Clock.Now()
	for _, ref := range refs {
		if ref.State.Live() {
			marks.at(laneKey{tenantID, ref.Lane}, ref.NotBefore)
			due = due || !ref.NotBefore.After(now)
		}
	}
	if len(marks) == 0 {
		return nil
	}
	if err := t.Lanes.LaneMarkMany(ctx, marks.list()); err != nil {
		return fmt.Errorf("mark %d lanes: %w", len(marks), err)
	}
	if t.WakeWorker != nil && due {
		t.WakeWorker()
	}
	return nil
}

// insert writes those of the first n rows that are absent, as claimed by the
// worker beside this tail what that has room for.
func (t *Tail) insert(ctx context.Context, tenantID string, rows []Effect) (refs []EffectRef, n int, err error) {
	var born *births
	if t.Worker != nil {
		born, n = t.Worker.bear(ctx, rows)
		rows = rows[:n]
	}
	if born != nil {
		defer born.giveUp() // unless they have begun, also in a panic
	}
	refs, err = t.Outbox.EffectMaterialize(ctx, tenantID, rows)
	if err != nil && born != nil {
		// The answer may be lost, and the rows be there: looking again finds
		// them now, instead of when their lease has run out.
		refs, err = t.Outbox.EffectMaterialize(ctx, tenantID, rows)
	}
	if err == nil && born != nil {
		born.begin(refs)
	}
	return refs, len(rows), err
}

// jitter spreads a period over 75 % to 125 % of it, so that replicas that
// started together drift apart.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // jitter is no secret
}
