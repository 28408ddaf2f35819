// Package bench measures the engine: how fast changes of cards become events,
// events become effects, and effects are through, beside an engine that does
// the same one row at a time. It checks what it measures: each effect is owed
// once, launched once and done.
package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Params says what to measure. The zero value of a field is not its default:
// the command line has those.
type Params struct {
	// MongoURI is the server; a database of the run's own is made on it and
	// dropped at the end. Empty: the embedded store.
	MongoURI string
	Database string
	Timeout  time.Duration

	Events        int
	Tenants       int
	Bots          int     // per tenant
	Subscriptions int     // per tenant
	MatchRatio    float64 // of the events, that fire a subscription
	Replicas      int
	Slots         int
	// HTTP launches by HTTP to a bot on loopback, instead of not at all.
	HTTP bool
	// Slices are how many parts the events come in: what is compared takes
	// turns with them.
	Slices   int
	Baseline bool
	// Rate is how many cards a second are changed to measure latencies, for
	// RateFor; 0: none.
	Rate    float64
	RateFor time.Duration
	// Progress, if set, is told what is under way.
	Progress func(format string, args ...any)
}

// Limits of a run: it loads one machine, for minutes.
const (
	EventsMax   = 2_000_000
	TenantsMax  = 10_000
	PerTenant   = 1000
	ReplicasMax = 16
	RateMax     = 5000
)

// Validate refuses a run that can't be made; the error names the flag.
func (p *Params) Validate() error {
	for _, f := range []struct {
		flag     string
		is       int
		min, max int
	}{
		{"--events", p.Events, 1, EventsMax},
		{"--tenants", p.Tenants, 1, TenantsMax},
		{"--bots", p.Bots, 1, PerTenant},
		{"--subscriptions", p.Subscriptions, 1, PerTenant},
		{"--replicas", p.Replicas, 1, ReplicasMax},
		{"--slots", p.Slots, 1, 10_000},
		{"--slices", p.Slices, 1, 1000},
	} {
		if f.is < f.min || f.is > f.max {
			return tracker.Fieldf(f.flag, "must be %d to %d", f.min, f.max)
		}
	}
	switch {
	case p.Events < p.Slices:
		return tracker.Fieldf("--slices", "must not exceed --events")
	case !(p.MatchRatio >= 0 && p.MatchRatio <= 1):
		return tracker.Fieldf("--match-ratio", "must be 0 to 1")
	case !(p.Rate >= 0 && p.Rate <= RateMax):
		return tracker.Fieldf("--rate", "must be 0 to %d", RateMax)
	case p.Rate > 0 && (p.RateFor < time.Second || p.RateFor > time.Hour):
		return tracker.Fieldf("--rate-for", "must be 1s to 1h")
	case p.Baseline && p.MongoURI == "":
		return tracker.Fieldf("--baseline", "needs a database: set --mongo-uri")
	case p.Baseline && p.MatchRatio == 0:
		return tracker.Fieldf("--baseline", "needs effects: set --match-ratio")
	}
	return nil
}

// run is one run under way.
type run struct {
	Params
	meter    *meter
	store    trigger.Store // that emits, and that is looked into
	open     func(ctx context.Context) (trigger.Store, func(), error)
	launched *ledger
	launcher trigger.Launcher
	sealer   trigger.Sealer
	sealKey  string
	emitter  *emitter
	report   *Report
}

// Run makes a run and reports. It returns an error also when the engine was
// wrong: an effect that is missing, or was launched twice.
func Run(ctx context.Context, p Params) (_ *Report, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Progress == nil {
		p.Progress = func(string, ...any) {}
	}
	r := &run{Params: p, meter: &meter{}, launched: newLedger(), report: &Report{
		Store: "memory", Events: p.Events, Tenants: p.Tenants, Replicas: p.Replicas, Launcher: "noop",
		GoVersion: runtime.Version(), CPUs: runtime.GOMAXPROCS(0),
	}}
	closeStore, err := r.openStore(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	stop, err := r.makeLauncher(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.configure(ctx); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	if err := r.throughput(ctx); err != nil {
		return nil, err
	}
	if p.Rate > 0 {
		if err := r.latency(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.verify(ctx); err != nil {
		return nil, err
	}
	r.report.RSSPeakBytes = peakRSS()
	return r.report, nil
}

func (r *run) openStore(ctx context.Context) (closeAll func() error, err error) {
	if r.MongoURI == "" {
		mem := boardmem.New()
		r.store = mem
		r.open = func(context.Context) (trigger.Store, func(), error) { return mem, func() {}, nil }
		return func() error { return nil }, nil
	}
	r.report.Store = "mongodb"
	connect := func(ctx context.Context, monitor *event.CommandMonitor) (*boardmongo.Store, func(), error) {
		s, err := boardmongo.Connect(ctx, boardmongo.Params{URI: r.MongoURI, Database: r.Database, Timeout: r.Timeout, Monitor: monitor})
		if err != nil {
			return nil, nil, err
		}
		return s, func() {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = s.Close(cctx)
		}, nil
	}
	store, closeStore, err := connect(ctx, nil)
	if err != nil {
		return nil, err
	}
	if names, err := store.Database().ListCollectionNames(ctx, struct{}{}); err != nil || len(names) > 0 {
		closeStore()
		if err == nil {
			err = fmt.Errorf("the database %s is not empty: a bench makes and drops its own", r.Database)
		}
		return nil, err
	}
	r.store = store
	r.open = func(ctx context.Context) (trigger.Store, func(), error) { return connect(ctx, r.meter.monitor()) }
	closeAll = func() error {
		defer closeStore()
		dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := store.Database().Drop(dctx); err != nil {
			return fmt.Errorf("drop the database %s: %w", r.Database, err)
		}
		return nil
	}
	if err := store.SchemaApply(ctx); err != nil {
		return nil, errors.Join(err, closeAll())
	}
	return closeAll, nil
}

// throughput runs the slices: emit, then see how long it takes until all that
// the log owes is settled.
func (r *run) throughput(ctx context.Context) error {
	var base *baseline
	if r.Baseline {
		var err error
		if base, err = newBaseline(ctx, r); err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
	}
	rep := r.report
	for slice := range r.Slices {
		n := r.Events*(slice+1)/r.Slices - r.Events*slice/r.Slices
		r.Progress("slice %d of %d: emit %d events", slice+1, r.Slices, n)
		began := time.Now()
		owed, err := r.emitter.slice(ctx, n)
		if err != nil {
			return fmt.Errorf("emit: %w", err)
		}
		rep.emit.add(n, time.Since(began))
		if slice == 0 && r.Slices > 1 {
			// One slice in two steps, to tell them apart. It is no part of
			// what is compared: it warms up, too.
			r.Progress("slice 1 of %d: materialize, then execute", r.Slices)
			if err := r.steps(ctx, owed); err != nil {
				return err
			}
		} else {
			r.Progress("slice %d of %d: from the log to settled", slice+1, r.Slices)
			took, err := r.settle(ctx, owed)
			if err != nil {
				return err
			}
			rep.settled.add(owed, took)
			rep.Compared.Effects += owed
		}
		if base == nil {
			continue
		}
		r.Progress("slice %d of %d: the same events, one row at a time", slice+1, r.Slices)
		effects, took, err := base.slice(ctx)
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		if slice > 0 || r.Slices == 1 {
			rep.baseline.add(effects, took)
		}
	}
	rep.finish()
	return nil
}

// steps settles what is owed in two steps, first all rows, then all launches.
func (r *run) steps(ctx context.Context, owed int) error {
	e, err := r.start(ctx, tailOnly)
	if err != nil {
		return err
	}
	began := time.Now()
	err = e.drained(ctx)
	r.report.materialize.add(owed, time.Since(began))
	e.stop()
	if err != nil {
		return err
	}
	if e, err = r.start(ctx, workerOnly); err != nil {
		return err
	}
	defer e.stop()
	began = time.Now()
	err = e.settled(ctx, owed)
	r.report.execute.add(owed, time.Since(began))
	return err
}

// settle starts the replicas on a log that is ahead of them, and returns how
// long it took until all that is owed was settled.
func (r *run) settle(ctx context.Context, owed int) (time.Duration, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	counted := r.meter.read()
	r.meter.byKind()
	began := time.Now()
	e, err := r.start(ctx, tailAndWorker)
	if err != nil {
		return 0, err
	}
	err = errors.Join(e.settled(ctx, owed), e.drained(ctx))
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	e.stop()
	r.report.Compared.add(r.meter.read().minus(counted), r.meter.byKind())
	r.report.Compared.Allocations += after.Mallocs - before.Mallocs
	r.report.Compared.AllocatedBytes += after.TotalAlloc - before.TotalAlloc
	return took, err
}
