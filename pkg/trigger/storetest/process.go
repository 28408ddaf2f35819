package storetest

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// takenOver is how far a process that takes over is behind the one it takes
// over from: its leases have run out.
const takenOver = 3 * time.Minute

// process is one replica's worker over a store that several share. What it
// sees can end at any of its writes; the store's state stays.
type process struct {
	*bundle
	worker *trigger.EffectWorker
	log    *bytes.Buffer
	// died is closed when the process's view ends.
	died chan struct{}
	// ended gets each row that rests: settled to another state than pending,
	// or parked by the reclaim.
	ended chan trigger.State
}

// spawn makes a process over the bundle's store that launches into its
// launches, and whose clock is later by so much.
func (b *bundle) spawn(t *testing.T, later time.Duration) *process {
	t.Helper()
	p := &process{bundle: newBundle(t, b.real), log: new(bytes.Buffer), died: make(chan struct{}), ended: make(chan trigger.State, 10_000)}
	p.launches = b.launches
	p.pass(later)
	p.worker = p.bundle.worker(func(_ *bundle, w *trigger.EffectWorker) {
		w.Outbox = parked{p.faults, p.ended}
		w.Logger = zerolog.New(zerolog.SyncWriter(p.log))
		w.Grace = time.Millisecond
		w.Settled = func(_ trigger.Effect, s trigger.Settle) {
			if s.To != trigger.StatePending {
				p.ended <- s.To
			}
		}
		w.Evaluator = p.evaluator()
		w.Evaluator.Launcher = cutLauncher{p}
	})
	return p
}

// parked tells of rows that a reclaim parks.
type parked struct {
	*faults
	ended chan<- trigger.State
}

func (f parked) EffectReclaim(ctx context.Context, p trigger.ClaimParams) (*trigger.Effect, error) {
	row, err := f.faults.EffectReclaim(ctx, p)
	if row != nil && row.State != trigger.StateClaimed {
		f.ended <- row.State
	}
	return row, err
}

// cutLauncher is a way to the bots that ends with its process.
type cutLauncher struct{ p *process }

func (l cutLauncher) Launch(ctx context.Context, r trigger.LaunchRequest) (got trigger.Launched, err error) {
	err = l.p.write("Launch", func() error {
		got, err = l.p.launches.Launch(ctx, r)
		return err
	})
	return got, err
}

// dieAt ends the process's view at its nth write, counted in halves: before it
// and after it. It returns how many there were.
func (p *process) dieAt(n int) (seen func() int) {
	count := 0
	var once sync.Once
	p.setCut(func(string) error {
		count++
		if count <= n {
			return nil
		}
		once.Do(func() { close(p.died) })
		return errCut
	})
	return func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return count
	}
}

// run runs the process until n rows rest, or it dies.
func (p *process) run(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, p.worker.Start(t.Context()))
	defer func() {
		p.worker.Stop()
	}()
	for i := range n {
		select {
		case <-p.ended:
		case <-p.died:
			p.kill()
			return
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d rows came to rest\n%s", i, n, p.log)
		}
	}
}

// bear runs the process's tail beside its worker, which takes rows from their
// birth on, until the row rests, or it dies. before is called once the worker
// would take them.
func (p *process) bear(t *testing.T, id string, before func()) {
	t.Helper()
	looks := &looks{Lanes: p.worker.Lanes, twice: make(chan struct{})}
	p.worker.Lanes, p.tail.Worker = looks, p.worker
	require.NoError(t, p.worker.Start(t.Context()))
	defer p.worker.Stop()
	recv(t, looks.twice)
	before()
	for {
		d, err := p.tail.Drain(t.Context(), tenant)
		if err != nil || (!d.More && !d.Moved) {
			break
		}
	}
	for {
		select {
		case <-p.ended:
			if row, err := p.real.EffectGet(t.Context(), tenant, id); err != nil || row.State.Live() {
				continue // another one
			}
		case <-p.died:
			p.kill()
		case <-time.After(30 * time.Second):
			t.Fatalf("%s did not come to rest\n%s", id, p.log)
		}
		return
	}
}

// looks tells when a worker looks for due lanes for the second time: it has
// read by then what is paused.
type looks struct {
	trigger.Lanes
	n     int
	twice chan struct{}
}

func (l *looks) LanesDue(ctx context.Context, now time.Time, limit int) ([]trigger.Lane, error) {
	if l.n++; l.n == 2 {
		close(l.twice)
	}
	return l.Lanes.LanesDue(ctx, now, limit)
}

// sweep finds the lanes from the rows, as each replica does every 5 s.
func (p *process) sweep(t *testing.T) {
	t.Helper()
	s := &trigger.LaneSweeper{Outbox: p.faults, Lanes: p.faults, Pauses: p.faults, Config: p.faults, Clock: p.faults, Logger: zerolog.Nop()}
	require.NoError(t, s.Sweep(t.Context()))
}

// isDatabase reports whether the store is one whose commands take their time.
func (b *bundle) isDatabase() bool {
	_, ok := b.real.(interface{ ClockSync(context.Context) error })
	return ok
}
