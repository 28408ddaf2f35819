package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// IdleCost is what an idle replica sends.
type IdleCost struct {
	Tenants int `json:"tenants"`
	// CommandsPerS has that of the janitor, which works every ten minutes,
	// spread over them.
	CommandsPerS float64 `json:"commands_per_s"`
	// DocumentsPerS came back, but for the janitor's.
	DocumentsPerS float64          `json:"documents_per_s"`
	ByKind        map[string]int64 `json:"by_kind"`
	// JanitorCommands are those of its round after the first.
	JanitorCommands int64 `json:"janitor_commands"`
	// StartS is how long the replica took to start, in seconds.
	StartS float64 `json:"start_s"`
	Ratio  float64 `json:"ratio"`
}

// idle listens to one idle replica for each number of tenants, at once.
func (g *growth) idle(ctx context.Context) error {
	if len(g.Tenants) == 0 {
		return nil
	}
	costs := make([]IdleCost, len(g.Tenants))
	worlds := make([]*world, len(g.Tenants))
	for i, n := range g.Tenants {
		w, err := g.world(ctx, "tenants", n, func(ctx context.Context, s *boardmongo.Store) error { return loadIdle(ctx, s, n) })
		if err != nil {
			return err
		}
		worlds[i], costs[i].Tenants = w, n
		if err := w.makeSealer(); err != nil {
			return err
		}
		if costs[i].JanitorCommands, err = w.janitor(ctx); err != nil {
			return fmt.Errorf("janitor: %w", err)
		}
	}
	for i, w := range worlds {
		store, closeStore, err := w.open(ctx)
		if err != nil {
			return err
		}
		defer closeStore()
		replica, err := server.New(server.Params{
			Store: store, Sealer: w.sealer, Launcher: noop{w.launched}, Logger: zerolog.Nop(), Listen: "127.0.0.1:0",
			Name: "bench", Timing: server.TimingDefault(),
		})
		if err != nil {
			return err
		}
		g.Progress("idle: start a replica over %d tenants", w.rows)
		began := time.Now()
		if err := replica.Start(ctx); err != nil {
			return err
		}
		defer replica.Stop()
		costs[i].StartS = time.Since(began).Seconds()
	}
	g.Progress("idle: listen for %s", g.IdleFor)
	// After the loops' first rounds.
	if err := sleepUntil(ctx, time.Now().Add(g.IdleFor/10)); err != nil {
		return err
	}
	before, began := make([]Counts, len(worlds)), time.Now()
	for i, w := range worlds {
		before[i] = w.meter.read()
		w.meter.byKind()
	}
	if err := sleepUntil(ctx, began.Add(g.IdleFor)); err != nil {
		return err
	}
	for i, w := range worlds {
		sent, c := w.meter.read().minus(before[i]), &costs[i]
		c.CommandsPerS = float64(sent.Commands)/time.Since(began).Seconds() + float64(c.JanitorCommands)/trigger.JanitorEveryDefault.Seconds()
		c.DocumentsPerS = float64(sent.Documents) / time.Since(began).Seconds()
		c.ByKind = make(map[string]int64)
		for name, k := range w.meter.byKind() {
			c.ByKind[name] = k.Commands
		}
		c.Ratio = c.CommandsPerS / costs[0].CommandsPerS
		if c.Ratio > IdleRatioMax {
			g.failed("an idle replica sends %.1f commands/s over %d tenants, %.1f over %d", c.CommandsPerS, c.Tenants, costs[0].CommandsPerS, costs[0].Tenants)
		}
	}
	g.report.Idle = costs
	return nil
}

// janitor returns what a janitor sends that has been round once.
func (w *world) janitor(ctx context.Context) (int64, error) {
	store, closeStore, err := w.open(ctx)
	if err != nil {
		return 0, err
	}
	defer closeStore()
	j := &trigger.Janitor{Cards: store, Log: store, Heads: store, Retention: store, Clock: store, Logger: zerolog.Nop()}
	var before Counts
	for range 2 {
		before = w.meter.read()
		if err := j.Clean(ctx); err != nil {
			return 0, err
		}
	}
	return w.meter.read().minus(before).Commands, nil
}

// memory has a server work on many pending rows, and reads what it had resident
// at most. It is a process of its own: this one has made the rows.
func (g *growth) memory(ctx context.Context) (err error) {
	if g.Pending == 0 {
		return nil
	}
	w, err := g.world(ctx, "pending", g.Pending, func(context.Context, *boardmongo.Store) error { return nil })
	if err != nil {
		return err
	}
	w.Tenants, w.Bots, w.Subscriptions, w.HTTP = pendingTenants, pendingBots, pendingBots, true
	if err := w.loadPending(ctx, w.database(), g.Pending); err != nil {
		return fmt.Errorf("load %d rows (pending): %w", g.Pending, err)
	}
	stop, err := w.makeLauncher(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := w.configure(ctx); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	g.Progress("memory: serve for %s", g.ServeFor)
	log := &said{}
	cmd := g.Serve(ctx, w.Database, []string{"TRIGGERD_SEAL_KEY=" + w.sealKey})
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, <-ended)
	}()
	for began := time.Now(); w.launched.count() == 0; {
		select {
		case err := <-ended:
			ended <- nil
			return fmt.Errorf("the server ended (%w): %s", err, log)
		default:
		}
		if time.Since(began) > stall {
			return fmt.Errorf("the server launched nothing for %s: %s", stall, log)
		}
		if err := sleepUntil(ctx, time.Now().Add(50*time.Millisecond)); err != nil {
			return err
		}
	}
	if err := sleepUntil(ctx, time.Now().Add(g.ServeFor)); err != nil {
		return err
	}
	g.report.Memory = &ServerMemory{
		PendingRows: g.Pending, Lanes: pendingTenants * pendingBots, Launched: w.launched.count(),
		RSSPeakBytes: peakRSSOf(strconv.Itoa(cmd.Process.Pid)), Warned: log.lines(), Log: log.String(),
	}
	if m := g.report.Memory; m.RSSPeakBytes > RSSMax {
		g.failed("a server with %s pending rows had %d MiB resident, more than %d", size(m.PendingRows), m.RSSPeakBytes>>20, RSSMax>>20)
	}
	return nil
}

// The lanes that pending rows are in.
const (
	pendingTenants = 20
	pendingBots    = 5
)

// said keeps the last of what a process says.
type said struct {
	mu  sync.Mutex
	buf []byte
	n   int
}

const saidKept = 4096

func (t *said) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += bytes.Count(p, []byte("\n"))
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-saidKept):]
	return len(p), nil
}

func (t *said) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.buf))
}

func (t *said) lines() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}
