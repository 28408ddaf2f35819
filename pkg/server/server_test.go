package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// soon is far less than any deadline but the grace period of these tests, and
// far more than stopping takes.
const soon = 15 * time.Second

func TestOneReplicaFromDeliveryToLaunch(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.subscribe(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	sent := recv(t, b.launched)
	require.Equal(t, "acme/000000000001|sub-1", sent.Key)
	require.Equal(t, 1, sent.Attempt)
	require.Equal(t, botSecret, string(sent.Secret))
	require.NotContains(t, sent.Body, botSecret)
	s := recv(t, b.settled)
	require.Equal(t, trigger.StateDone, s.To)

	page := b.page(t, b.token(t, "acme"), "/v1/tenants/acme/effects?state=done")
	require.Len(t, page.Items, 1)
	e := page.Items[0]
	require.Equal(t, sent.Key, e.ID)
	require.Equal(t, trigger.OutcomeLaunched, e.Outcome)
	require.Equal(t, "run-1", e.RunID)
	require.Equal(t, "replica-1", e.Worker)
	require.Equal(t, 1, e.Attempts)
	require.Nil(t, e.NotBefore)
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	b := build(t)
	b.server.Stop() // of one that never ran
	require.NoError(t, b.server.Start(t.Context()))
	addr := b.server.Addr()
	b.url = "http://" + addr
	require.Equal(t, http.StatusOK, b.get(t, "", "/readyz").status)

	require.ErrorIs(t, b.server.Start(t.Context()), startstop.ErrRunning)
	require.Equal(t, addr, b.server.Addr(), "the second Start disturbs nothing")
	require.Equal(t, http.StatusOK, b.get(t, "", "/readyz").status)

	var all sync.WaitGroup
	for range 8 {
		all.Go(b.server.Stop)
	}
	all.Wait()
	_, err := b.client.Get(b.url + "/readyz") //nolint:bodyclose // there is none
	require.Error(t, err)
	select {
	case err := <-b.server.Failed():
		require.NoError(t, err, "to stop is not to fail")
	default:
	}
	require.ErrorIs(t, b.server.Start(t.Context()), startstop.ErrRunning, "a replica runs once")
}

func TestStartOnATakenPort(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	addr := ln.Addr().String()
	b := build(t, func(_ *bundle, p *Params) { p.Listen = addr })
	err = b.server.Start(t.Context())
	require.ErrorContains(t, err, addr)
	require.False(t, b.server.ready.Load())
	b.server.Stop() // nothing runs, and nothing is stuck
}

func TestStartAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	b := build(t)
	b.store.fail("Ping")
	require.ErrorIs(t, b.server.Start(t.Context()), errFault)
	b.store.heal()
	require.NoError(t, b.server.Start(t.Context()))
	b.server.Stop()
}

// The replica does not end with the context that it was started with, but with
// Stop, in its order.
func TestTheStartingContextEnds(t *testing.T) {
	t.Parallel()
	b := build(t)
	b.subscribe(t)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, b.server.Start(ctx))
	defer b.server.Stop()
	cancel()
	b.url = "http://" + b.server.Addr()
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	require.Equal(t, trigger.StateDone, recv(t, b.settled).To)
}

func TestServingThatFailsIsTold(t *testing.T) {
	t.Parallel()
	b := start(t)
	require.NoError(t, b.server.listener.Close())
	require.ErrorIs(t, recv(t, b.server.Failed()), net.ErrClosed)
}

// TestW10_StopFinishesWhatIsInFlight: a launch under way when the replica stops
// is waited for, and settled.
func TestW10_StopFinishesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}), make(chan struct{})
	b := start(t, withLaunch(func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
		close(began)
		select {
		case <-end:
			return trigger.Launched{RunID: "run-late"}, nil
		case <-ctx.Done():
			return trigger.Launched{}, ctx.Err()
		}
	}))
	b.subscribe(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	recv(t, began)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.server.Stop()
	}()
	deadline := time.Now().Add(wait)
	for b.get(t, "", "/readyz").status == http.StatusOK {
		require.True(t, time.Now().Before(deadline), "stopping shows in readiness")
	}
	require.Equal(t, http.StatusOK, b.get(t, "", "/healthz").status, "it still answers")
	// What is delivered meanwhile is stored: another replica launches it.
	other := changed(t, "issues.opened", map[string]any{"issue.number": 2})
	require.Equal(t, "accepted", b.deliver(t, delivery{body: other}).hook(t).Status)
	select {
	case <-stopped:
		require.Fail(t, "Stop did not wait for the launch")
	default:
	}
	close(end)
	recv(t, stopped)
	row, err := b.mem.EffectGet(t.Context(), "acme", "acme/000000000001|sub-1")
	require.NoError(t, err)
	require.Equal(t, trigger.StateDone, row.State)
	require.Equal(t, "run-late", row.RunID)
	require.Len(t, b.events(t), 2)
}

// TestW10_StopGivesAHangingBotUp: past the grace period the launch is cut short,
// its row goes back to be tried again, and Stop returns. A grace period of
// nothing is none.
func TestW10_StopGivesAHangingBotUp(t *testing.T) {
	t.Parallel()
	for _, grace := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(grace.String(), func(t *testing.T) {
			t.Parallel()
			asked := make(chan struct{}, 1)
			bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // else its client's going is not seen
				asked <- struct{}{}
				<-r.Context().Done()
			}))
			t.Cleanup(bot.Close)
			launcher := launch.NewHTTP(launch.HTTPParams{})
			t.Cleanup(launcher.Close)
			b := start(t, withTiming(func(timing *Timing) { timing.Grace = grace }), withLaunch(launcher.Launch))
			b.subscribe(t)
			saved, err := b.mem.BotGet(t.Context(), "acme", botID)
			require.NoError(t, err)
			saved.URL = bot.URL
			saved.Revision++
			require.NoError(t, b.mem.BotSave(t.Context(), saved))

			require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
			recv(t, asked)
			at := time.Now()
			b.server.Stop()
			took := time.Since(at)
			require.GreaterOrEqual(t, took, grace)
			require.Less(t, took, grace+soon)

			s := recv(t, b.settled)
			require.Equal(t, trigger.StatePending, s.To)
			row, err := b.mem.EffectGet(t.Context(), "acme", s.EffectID)
			require.NoError(t, err)
			require.Equal(t, trigger.StatePending, row.State)
			require.Equal(t, 1, row.Attempts, "it was started")
			require.Len(t, row.Errors, 1)
		})
	}
}

// A request that hangs past the grace period is cut off, too.
func TestStopCutsAHangingRequestOff(t *testing.T) {
	t.Parallel()
	b := start(t, withTiming(func(timing *Timing) { timing.Grace = 100 * time.Millisecond }))
	asked, cut := make(chan struct{}), make(chan error, 1)
	b.store.on("HookGet", func(ctx context.Context) error {
		close(asked)
		<-ctx.Done()
		cut <- ctx.Err()
		return ctx.Err()
	})
	req := b.request(t, delivery{body: payload(t, "issues.opened")})
	failed := make(chan error, 1)
	go func() {
		resp, err := b.client.Do(req)
		if err == nil {
			if _ = resp.Body.Close(); resp.StatusCode == http.StatusServiceUnavailable {
				err = errors.New("the answer was faster than the cut")
			}
		}
		failed <- err
	}()
	recv(t, asked)
	at := time.Now()
	b.server.Stop()
	require.Less(t, time.Since(at), soon)
	require.ErrorIs(t, recv(t, cut), context.Canceled, "not its own timeout")
	require.Error(t, recv(t, failed), "not accepted: GitHub shows it, and it is delivered again")
}

func TestNewRefusesTimingsThatBreakGuarantees(t *testing.T) {
	t.Parallel()
	p := Params{Store: build(t).store, Timing: TimingDefault()}
	p.Timing.Lease = time.Second
	_, err := New(p)
	var field *tracker.FieldError
	require.ErrorAs(t, err, &field)
}

func TestTimingValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, TimingDefault().Validate())
	for name, c := range map[string]struct {
		change func(*Timing)
		flags  []string // that the error names; none if it is fine
	}{
		"no lease":                    {func(t *Timing) { t.Lease = 0 }, []string{"--lease"}},
		"a negative lease":            {func(t *Timing) { t.Lease = -1 }, []string{"--lease"}},
		"no attempt deadline":         {func(t *Timing) { t.AttemptDeadline = 0 }, []string{"--attempt-deadline"}},
		"no HTTP timeout":             {func(t *Timing) { t.HTTPTimeout = 0 }, []string{"--http-timeout"}},
		"no retry base":               {func(t *Timing) { t.RetryBase = 0 }, []string{"--retry-base"}},
		"no retry cap":                {func(t *Timing) { t.RetryCap = 0 }, []string{"--retry-cap"}},
		"no store timeout":            {func(t *Timing) { t.StoreTimeout = 0 }, []string{"--store-timeout"}},
		"no poll":                     {func(t *Timing) { t.Poll = 0 }, []string{"--poll"}},
		"lease of the deadline":       {func(t *Timing) { t.Lease = t.AttemptDeadline }, []string{"--attempt-deadline", "--lease", "W3"}},
		"lease below the deadline":    {func(t *Timing) { t.Lease = time.Second }, []string{"--attempt-deadline", "--lease"}},
		"lease above the deadline":    {func(t *Timing) { t.Lease = t.AttemptDeadline + 1 }, nil},
		"deadline of the timeout":     {func(t *Timing) { t.AttemptDeadline = t.HTTPTimeout }, []string{"--http-timeout", "--attempt-deadline"}},
		"timeout above the deadline":  {func(t *Timing) { t.HTTPTimeout = time.Hour }, []string{"--http-timeout", "--attempt-deadline"}},
		"timeout below the deadline":  {func(t *Timing) { t.HTTPTimeout = t.AttemptDeadline - 1 }, nil},
		"retry base above the cap":    {func(t *Timing) { t.RetryBase = t.RetryCap + 1 }, []string{"--retry-base", "--retry-cap"}},
		"retry base of the cap":       {func(t *Timing) { t.RetryBase = t.RetryCap }, nil},
		"no grace":                    {func(t *Timing) { t.Grace = 0 }, nil},
		"negative grace":              {func(t *Timing) { t.Grace = -1 }, []string{"--grace"}},
		"no slots":                    {func(t *Timing) { t.Slots = 0 }, []string{"--slots"}},
		"one slot":                    {func(t *Timing) { t.Slots = 1 }, nil},
		"too many slots":              {func(t *Timing) { t.Slots = 10_001 }, []string{"--slots"}},
		"no tail batch":               {func(t *Timing) { t.TailBatch = 0 }, []string{"--tail-batch"}},
		"negative tail batch":         {func(t *Timing) { t.TailBatch = -1 }, []string{"--tail-batch"}},
		"too large a tail batch":      {func(t *Timing) { t.TailBatch = 10_001 }, []string{"--tail-batch"}},
		"the largest slots and batch": {func(t *Timing) { t.Slots, t.TailBatch = 10_000, 10_000 }, nil},
	} {
		timing := TimingDefault()
		c.change(&timing)
		err := timing.Validate()
		if c.flags == nil {
			require.NoError(t, err, name)
			continue
		}
		require.Error(t, err, name)
		for _, f := range c.flags {
			require.ErrorContains(t, err, f, name)
		}
	}
}

// clockedStore has a clock of its own.
type clockedStore struct {
	trigger.Store
	syncs atomic.Int32
	epoch atomic.Int64
	err   error
}

func (c *clockedStore) Epoch() int64 { return c.epoch.Load() }

func (c *clockedStore) ClockSync(context.Context) error {
	c.syncs.Add(1)
	return c.err
}

// TestW11_TheClockIsMeasuredWhenThePrimaryChanges: within a second.
func TestW11_TheClockIsMeasuredWhenThePrimaryChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &clockedStore{}
		b := build(t, func(b *bundle, p *Params) { store.Store, p.Store = b.mem, store })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.server.syncClock(ctx)
		}()
		time.Sleep(10 * time.Second) // of the bubble's clock
		require.Zero(t, store.syncs.Load())
		store.epoch.Add(1)
		time.Sleep(2 * time.Second)
		require.EqualValues(t, 1, store.syncs.Load())
		time.Sleep(10 * time.Second)
		require.EqualValues(t, 1, store.syncs.Load())
		cancel()
		<-done
	})
}

// TestW11_TheClockIsMeasuredAgain: as long as the replica runs, whatever comes
// of one measurement.
func TestW11_TheClockIsMeasuredAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &clockedStore{err: errors.New("no answer")}
		b := build(t, func(b *bundle, p *Params) { store.Store, p.Store = b.mem, store })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.server.syncClock(ctx)
		}()
		time.Sleep(5*time.Minute + time.Second) // of the bubble's clock
		require.GreaterOrEqual(t, store.syncs.Load(), int32(10))
		require.Contains(t, b.logs.String(), "the database's clock could not be measured")
		cancel()
		<-done
	})
}

// Every line of the log is JSON, and none has a secret (each test's cleanup
// looks for that).
func TestTheLogIsJSON(t *testing.T) {
	t.Parallel()
	b := build(t)
	b.subscribe(t)
	require.NoError(t, b.server.Start(t.Context()))
	b.url = "http://" + b.server.Addr()
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	recv(t, b.settled)
	b.server.Stop()
	lines := strings.Split(strings.TrimSpace(b.logs.String()), "\n")
	require.GreaterOrEqual(t, len(lines), 3, "ready, effect done, stopped")
	for _, line := range lines {
		require.True(t, json.Valid([]byte(line)), line)
		require.Contains(t, line, `"replica":"replica-1"`)
	}
}
