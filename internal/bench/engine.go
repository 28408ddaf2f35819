package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// stall is how long nothing may be settled before a run is given up.
const stall = time.Minute

// parts says what of a replica runs.
type parts struct{ tail, worker bool }

var (
	tailOnly      = parts{tail: true}
	workerOnly    = parts{worker: true}
	tailAndWorker = parts{true, true}
)

// engine is the replicas of a run, each with a connection of its own, as
// server.New puts them together.
type engine struct {
	run   *run
	stops []func()
	tails []*trigger.Tail
	boost []func() // wakes each replica's worker

	done    atomic.Int64
	changed chan struct{} // has a value when done grew
	wrong   atomic.Pointer[error]
}

// start starts the run's replicas.
func (r *run) start(ctx context.Context, what parts) (*engine, error) {
	e := &engine{run: r, changed: make(chan struct{}, 1)}
	for i := range r.Replicas {
		if err := e.replica(ctx, fmt.Sprint("bench-", i+1), what); err != nil {
			e.stop()
			return nil, err
		}
	}
	return e, nil
}

func (e *engine) replica(ctx context.Context, name string, what parts) error {
	store, closeStore, err := e.run.open(ctx)
	if err != nil {
		return err
	}
	e.stops = append(e.stops, closeStore)
	log := zerolog.Nop()
	members := &trigger.Membership{Replicas: store, Clock: store, Logger: log, Name: name}
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store, Logger: log}
	board := &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}
	tail := &trigger.Tail{
		Cards: store, Log: store, Heads: store, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store, Logger: log,
		Prefers: members.Prefers,
	}
	worker := &trigger.EffectWorker{
		Outbox: store, Lanes: store, Pauses: store, Clock: store, Epochs: store, Logger: log, Name: name, Slots: e.run.Slots,
		Evaluator: &trigger.Evaluator{
			Board: board, Outbox: store, Config: store, Launcher: e.run.launcher, Sealer: e.run.sealer, Logger: log, Matcher: tail,
		},
		Settled: e.settle,
	}
	lanes := &trigger.LaneSweeper{
		Outbox: store, Lanes: store, Pauses: store, Config: store, Clock: store, Logger: log, Prefers: members.Prefers, Matcher: tail,
	}
	tail.WakeWorker, tail.Worker, lanes.WakeWorker = worker.Wake, worker, worker.Wake
	e.tails, e.boost = append(e.tails, tail), append(e.boost, worker.Wake)
	services := []interface {
		Start(ctx context.Context) error
		Stop()
	}{members}
	if what.tail {
		services = append(services, tail)
	}
	if what.worker {
		services = append(services, worker, lanes)
	}
	for _, s := range services {
		if err := s.Start(ctx); err != nil {
			return err
		}
		e.stops = append(e.stops, s.Stop)
	}
	return nil
}

func (e *engine) stop() {
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
	e.stops = nil
}

// settle counts a settle that stands.
func (e *engine) settle(row trigger.Effect, s trigger.Settle) {
	if s.To != trigger.StateDone || s.Outcome != trigger.OutcomeLaunched {
		err := fmt.Errorf("effect %s was settled %s %s %s instead of launched", row.ID, s.To, s.Outcome, s.Reason)
		e.wrong.CompareAndSwap(nil, &err)
	}
	e.done.Add(1)
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// settled waits until as many effects are settled.
func (e *engine) settled(ctx context.Context, owed int) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	for {
		if err := e.wrong.Load(); err != nil {
			return *err
		}
		if int(e.done.Load()) >= owed {
			return nil
		}
		timer.Reset(stall)
		select {
		case <-e.changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return fmt.Errorf("%d of %d effects are settled, and none for %s", e.done.Load(), owed, stall)
		}
	}
}

// drained waits until every tenant's cursor has reached its log's end.
func (e *engine) drained(ctx context.Context) error {
	deadline := time.Now().Add(10 * stall)
	for time.Now().Before(deadline) {
		dirty, err := e.run.store.HeadsDirty(ctx, e.run.store.Now().Add(time.Hour), 1)
		if err != nil {
			return fmt.Errorf("look for tenants that are not drained: %w", err)
		}
		if len(dirty) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return errors.New("the log was not drained in time")
}
