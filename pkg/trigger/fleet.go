package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Numbers of the fleet's count.
const (
	FleetEveryDefault = 15 * time.Second
	// FleetMax is how far each of the fleet's numbers is counted: what a count
	// costs does not grow beyond it.
	FleetMax = 50_000
	// fleetStepIn is how many periods the preferred replica may be late before
	// another one counts.
	fleetStepIn = 3
	// fleetShare is how many times as long as a count took the next one waits,
	// at least.
	fleetShare = 20
)

// What of the rows is counted, by state and, of live ones, by when they are
// due.
const (
	// FleetReady rows are pending and due.
	FleetReady = "ready"
	// FleetPaused rows are pending and due, and somebody has paused launches
	// of their bot, tenant or of the fleet.
	FleetPaused = "paused"
	// FleetRetrying rows are pending and not due yet: put off after a failed
	// attempt, or until a label that another row wants is decided about.
	FleetRetrying = "retrying"
	// FleetInFlight rows are claimed; FleetExpired those of them whose lease
	// has run out, which are in flight no more.
	FleetInFlight  = "in_flight"
	FleetExpired   = "expired"
	FleetFailed    = "failed"
	FleetReconcile = "reconcile"
	FleetHeld      = "held"
)

// FleetStates lists what of the rows is counted.
func FleetStates() []string {
	return []string{FleetReady, FleetPaused, FleetRetrying, FleetInFlight, FleetExpired, FleetFailed, FleetReconcile, FleetHeld}
}

// What else may be cut off at FleetMax.
const (
	FleetTenantsBehind       = "tenants_behind"
	FleetPausedSubscriptions = "paused_subscriptions"
)

// Who paused a subscription, and what a pause of launches is of.
const (
	PausedByGuard  = "storm_guard"
	PausedByPerson = "person"
	PauseOfFleet   = "fleet"
	PauseOfTenant  = "tenant"
	PauseOfBot     = "bot"
)

// Fleet is what one replica counted for all of them, and whose turn it was. It
// names no tenant.
type Fleet struct {
	// TakenAt is when a replica took the turn to count, TakenBy which one.
	TakenAt time.Time `json:"taken_at"`
	TakenBy string    `json:"taken_by"`
	// CountedAt is when the count began whose numbers these are; zero if there
	// was none yet.
	CountedAt time.Time    `json:"counted_at,omitempty,omitzero"`
	Numbers   FleetNumbers `json:"numbers,omitempty,omitzero"`
}

// FleetNumbers are the numbers of all tenants together. What is not in a map
// was not counted, by a replica of another version.
type FleetNumbers struct {
	// Effects are the rows by what FleetStates lists.
	Effects map[string]int64 `json:"effects"`
	// OldestReadySeconds is how long the longest waiting one of the ready rows
	// had been due when they were counted; 0 if there is none.
	OldestReadySeconds float64 `json:"oldest_ready_seconds"`
	// TenantsBehind have a log that is ahead of its cursor: by Lag events all
	// of them together, and by LagWorst the one that is furthest behind.
	TenantsBehind int64 `json:"tenants_behind"`
	Lag           int64 `json:"lag"`
	LagWorst      int64 `json:"lag_worst"`
	// PausedSubscriptions are counted by who paused them, Pauses of launches
	// by what is paused.
	PausedSubscriptions map[string]int64 `json:"paused_subscriptions"`
	Pauses              map[string]int64 `json:"pauses"`
	// Capped says which of the numbers were cut off at FleetMax: there are at
	// least as many.
	Capped []string `json:"capped,omitempty"`
}

// CountPauses counts pauses by what is paused.
func CountPauses(pauses []Pause) map[string]int64 {
	n := map[string]int64{PauseOfFleet: 0, PauseOfTenant: 0, PauseOfBot: 0}
	for _, p := range pauses {
		switch {
		case p.TenantID == "":
			n[PauseOfFleet]++
		case p.BotID == "":
			n[PauseOfTenant]++
		default:
			n[PauseOfBot]++
		}
	}
	return n
}

// FleetCounts keeps the fleet's numbers.
type FleetCounts interface {
	// FleetGet returns the numbers as last saved, or tracker.ErrNotFound.
	FleetGet(ctx context.Context) (*Fleet, error)
	// FleetTake takes the turn to count, if the latest turn was taken at or
	// before ifBefore, or none was. Of any number of replicas that try at once
	// one gets it.
	FleetTake(ctx context.Context, by string, at, ifBefore time.Time) (bool, error)
	// FleetSave saves numbers, unless another turn was taken since.
	FleetSave(ctx context.Context, f *Fleet) error
	// FleetCount counts, by a fixed number of reads, each of which ends at
	// most documents.
	FleetCount(ctx context.Context, now time.Time, most int) (FleetNumbers, error)
}

// FleetWatch knows the fleet's numbers. Once in a period one of the replicas
// counts and the others read what it found, so that neither scrapes nor
// replicas multiply what counting costs. Which one is preference; that only
// one counts is a condition of the write by which it takes its turn.
type FleetWatch struct {
	Counts FleetCounts
	Clock  Clock
	Logger zerolog.Logger
	Name   string
	Every  time.Duration // FleetEveryDefault if 0
	// Prefers, if set, reports whether this replica is the preferred one.
	Prefers func(key string) bool

	service startstop.Service
	latest  atomic.Pointer[Fleet]
	counted atomic.Int64
}

// Latest returns the numbers as this replica last saw them, and their age; nil
// before there are any.
func (w *FleetWatch) Latest() (*FleetNumbers, time.Duration) {
	f := w.latest.Load()
	if f == nil || f.CountedAt.IsZero() {
		return nil, 0
	}
	return &f.Numbers, max(0, w.Clock.Now().Sub(f.CountedAt))
}

// Counted is how often this replica has counted for the fleet.
func (w *FleetWatch) Counted() int64 { return w.counted.Load() }

// Start starts the loop; it returns once it runs.
func (w *FleetWatch) Start(ctx context.Context) error { return w.service.Start(ctx, w.run) }

// Stop ends the loop and waits for the count under way.
func (w *FleetWatch) Stop() { w.service.Stop() }

func (w *FleetWatch) run(ctx context.Context) {
	var wait nudge
	for ctx.Err() == nil {
		began := time.Now()
		if err := w.Look(ctx); err != nil && ctx.Err() == nil {
			w.Logger.Warn().Err(err).Msg("fleet: a round failed, the next one goes on")
		}
		wait.Wait(ctx, jitter(max(orDefault(w.Every, FleetEveryDefault), fleetShare*time.Since(began))))
	}
}

// Look reads the numbers, and counts if it is this replica's turn. It may be
// called at any time.
func (w *FleetWatch) Look(ctx context.Context) error {
	now := w.Clock.Now()
	have, err := w.Counts.FleetGet(ctx)
	if err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return fmt.Errorf("the fleet's numbers: %w", err)
	}
	every := orDefault(w.Every, FleetEveryDefault)
	before := now.Add(-every * 3 / 4) // the shortest that its jitter makes of it
	if w.Prefers != nil && !w.Prefers("fleet") {
		before = now.Add(-fleetStepIn * every)
	}
	if have != nil {
		w.latest.Store(have)
		if have.TakenAt.After(before) {
			return nil
		}
	}
	mine, err := w.Counts.FleetTake(ctx, w.Name, now, before)
	if err != nil {
		return fmt.Errorf("take the turn to count: %w", err)
	}
	if !mine {
		return nil // another one was faster: the next look reads what it found
	}
	next := &Fleet{TakenAt: now, TakenBy: w.Name, CountedAt: now}
	if next.Numbers, err = w.Counts.FleetCount(ctx, now, FleetMax); err != nil {
		return err
	}
	w.counted.Add(1)
	if err := w.Counts.FleetSave(ctx, next); err != nil {
		return fmt.Errorf("save the fleet's numbers: %w", err)
	}
	w.latest.Store(next)
	return nil
}
