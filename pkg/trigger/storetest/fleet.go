package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// fleetTests hold a store to what it counts for the fleet, the replicas to
// counting once, and the engine to what it counts for itself.
func fleetTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestFleet_CountsRowsOfEachState":       testFleetRows,
		"TestFleet_CountsHeadsAndSubscriptions": testFleetHeads,
		"TestFleet_NumbersAreCutOff":            testFleetCut,
		"TestFleet_OneTurnAtATime":              testFleetTurn,
		"TestFleet_ReplicasCountOnce":           testFleetOnce,
		"TestMeters_OfATail":                    testMetersTail,
		"TestMeters_OfAWorker":                  testMetersWorker,
		"TestMeters_OfABreaker":                 testMetersBreaker,
	}
}

func (b *bundle) fleet(t *testing.T, now time.Time, most int) trigger.FleetNumbers {
	t.Helper()
	n, err := b.real.FleetCount(t.Context(), now, most)
	require.NoError(t, err)
	return n
}

// laneRow is a row of a state in a lane.
func laneRow(n int, state trigger.State, lane string, notBefore time.Time) trigger.Effect {
	r := effect(n, lane, notBefore)
	r.State = state
	if state == trigger.StateClaimed {
		r.ClaimID = uuid.NewString()
	}
	return r
}

func testFleetRows(t *testing.T, b *bundle) {
	now := b.real.Now()
	ago, soon := now.Add(-time.Minute), now.Add(time.Minute)
	none := b.fleet(t, now, 100)
	require.Len(t, none.Effects, len(trigger.FleetStates()))
	for state, n := range none.Effects {
		require.Zero(t, n, state)
	}
	require.Zero(t, none.OldestReadySeconds)

	const lane, other = "bot:bot1", "bot:bot2"
	odd := laneRow(12, trigger.StatePending, lane, ago)
	odd.Kind = "of another version"
	b.materialize(t,
		laneRow(1, trigger.StatePending, lane, ago), laneRow(2, trigger.StatePending, lane, ago.Add(-time.Second)), laneRow(3, trigger.StatePending, other, now),
		laneRow(4, trigger.StatePending, lane, soon), laneRow(5, trigger.StateClaimed, lane, soon), laneRow(6, trigger.StateClaimed, lane, ago.Add(-time.Hour)),
		laneRow(7, trigger.StateFailed, lane, ago), laneRow(8, trigger.StateReconcile, lane, ago), laneRow(9, trigger.StateHeld, lane, ago),
		laneRow(10, trigger.StateDone, lane, ago), laneRow(11, trigger.StateDiscarded, lane, ago), odd,
		laneRow(13, trigger.StatePending, "projection:p1", now),
	)
	want := map[string]int64{
		trigger.FleetReady: 5, trigger.FleetPaused: 0, trigger.FleetRetrying: 1, trigger.FleetInFlight: 1, trigger.FleetExpired: 1,
		trigger.FleetFailed: 1, trigger.FleetReconcile: 1, trigger.FleetHeld: 1,
	}
	got := b.fleet(t, now, 100)
	require.Equal(t, want, got.Effects)
	require.InDelta(t, 61, got.OldestReadySeconds, 1e-6)
	require.Empty(t, got.Capped)

	// What is held up on purpose waits for nobody, whatever is paused.
	for _, p := range []struct {
		pause         trigger.Pause
		ready, paused int64
	}{
		{trigger.Pause{TenantID: tenant, BotID: "bot1"}, 2, 3},
		{trigger.Pause{TenantID: tenant}, 1, 4},
		{trigger.Pause{TenantID: "other"}, 5, 0},
		{trigger.Pause{}, 1, 4}, // a projection goes on
	} {
		require.NoError(t, b.real.PauseSet(t.Context(), p.pause))
		got := b.fleet(t, now, 100)
		want[trigger.FleetReady], want[trigger.FleetPaused] = p.ready, p.paused
		require.Equal(t, want, got.Effects, "%+v", p.pause)
		require.EqualValues(t, 1, got.Pauses[trigger.PauseOfBot]+got.Pauses[trigger.PauseOfTenant]+got.Pauses[trigger.PauseOfFleet])
		if p.paused > 0 {
			require.Zero(t, got.OldestReadySeconds, "%+v", p.pause)
		}
		_, err := b.real.PauseClear(t.Context(), p.pause.TenantID, p.pause.BotID)
		require.NoError(t, err)
	}
}

func testFleetHeads(t *testing.T, b *bundle) {
	ctx := t.Context()
	for i, name := range []string{"t1", "t2", "t3"} {
		_, err := b.allocate(ctx, name, 3*i+1)
		require.NoError(t, err)
	}
	moved, err := b.real.HeadAdvance(ctx, "t1", 0, 1)
	require.NoError(t, err)
	require.True(t, moved)
	moved, err = b.real.HeadAdvance(ctx, "t3", 0, 2)
	require.NoError(t, err)
	require.True(t, moved)
	require.NoError(t, b.real.HeadDefer(ctx, "t3", b.real.Now().Add(time.Hour)))
	b.subscribe(t, "s1", "go")
	b.subscribe(t, "s2", "go", func(s *trigger.Subscription) { s.Paused, s.PausedBy = true, "mona" })
	for _, id := range []string{"s3", "s4"} {
		b.subscribe(t, id, "go", func(s *trigger.Subscription) { s.Paused, s.PausedBy = true, trigger.StormGuard })
	}
	for _, p := range []trigger.Pause{{TenantID: "t1"}, {TenantID: "t2"}, {TenantID: "t1", BotID: "b"}} {
		require.NoError(t, b.real.PauseSet(ctx, p))
	}
	got := b.fleet(t, b.real.Now(), 100)
	require.Equal(t, []int64{2, 9, 5}, []int64{got.TenantsBehind, got.Lag, got.LagWorst})
	require.Equal(t, map[string]int64{trigger.PausedByGuard: 2, trigger.PausedByPerson: 1}, got.PausedSubscriptions)
	require.Equal(t, map[string]int64{trigger.PauseOfFleet: 0, trigger.PauseOfTenant: 2, trigger.PauseOfBot: 1}, got.Pauses)
	require.Empty(t, got.Capped)

	cut := b.fleet(t, b.real.Now(), 2)
	require.EqualValues(t, 2, cut.TenantsBehind)
	require.Equal(t, []string{trigger.FleetTenantsBehind, trigger.FleetPausedSubscriptions}, cut.Capped)
}

func testFleetCut(t *testing.T, b *bundle) {
	now := b.real.Now()
	for i := range 5 {
		b.materialize(t, laneRow(2*i+1, trigger.StatePending, "bot:bot1", now), laneRow(2*i+2, trigger.StateFailed, "bot:bot1", now))
	}
	b.materialize(t, laneRow(99, trigger.StateReconcile, "bot:zz", now), laneRow(100, trigger.StateClaimed, "bot:zz", now.Add(time.Hour)))
	got := b.fleet(t, now, 3)
	require.EqualValues(t, 3, got.Effects[trigger.FleetReady])
	require.EqualValues(t, 3, got.Effects[trigger.FleetFailed])
	require.EqualValues(t, 1, got.Effects[trigger.FleetReconcile], "many rows of one state hide none of another")
	require.EqualValues(t, 1, got.Effects[trigger.FleetInFlight])
	require.Equal(t, []string{trigger.FleetReady, trigger.FleetFailed}, got.Capped)
}

func testFleetTurn(t *testing.T, b *bundle) {
	ctx := t.Context()
	_, err := b.real.FleetGet(ctx)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	now := b.real.Now()
	// Of those that try at once one gets it: the first turn, and later ones.
	for round := range 3 {
		at := now.Add(time.Duration(round) * time.Minute)
		var won atomic.Int32
		var tries sync.WaitGroup
		for i := range 8 {
			tries.Go(func() {
				ok, err := b.real.FleetTake(ctx, string(rune('a'+i)), at, at.Add(-time.Second))
				if err == nil && ok {
					won.Add(1)
				}
			})
		}
		tries.Wait()
		require.EqualValues(t, 1, won.Load(), "round %d", round)
	}
	have, err := b.real.FleetGet(ctx)
	require.NoError(t, err)
	require.Equal(t, now.Add(2*time.Minute), have.TakenAt)
	require.Zero(t, have.CountedAt)

	// What comes after the next turn was taken is not saved.
	late := &trigger.Fleet{TakenAt: have.TakenAt, TakenBy: have.TakenBy, CountedAt: now, Numbers: trigger.FleetNumbers{Lag: 7, Effects: map[string]int64{"ready": 1}}}
	require.NoError(t, b.real.FleetSave(ctx, late))
	have, err = b.real.FleetGet(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 7, have.Numbers.Lag)
	require.Equal(t, late.Numbers.Effects, have.Numbers.Effects)
	ok, err := b.real.FleetTake(ctx, "z", now.Add(time.Hour), now.Add(time.Hour-time.Second))
	require.NoError(t, err)
	require.True(t, ok)
	late.Numbers.Lag = 8
	require.NoError(t, b.real.FleetSave(ctx, late))
	have, err = b.real.FleetGet(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 7, have.Numbers.Lag)
	require.Equal(t, "z", have.TakenBy)
}

// readsTogether has all replicas read before one of them goes on.
type readsTogether struct {
	trigger.Store

	mu  sync.Mutex
	all *sync.WaitGroup
}

func (s *readsTogether) FleetGet(ctx context.Context) (*trigger.Fleet, error) {
	f, err := s.Store.FleetGet(ctx)
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	if all != nil {
		all.Done()
		all.Wait()
	}
	return f, err
}

func (s *readsTogether) next(all *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
}

// testFleetOnce has replicas look, each of which believes to be the preferred
// one: one of them counts in a period, and all of them know what it found.
func testFleetOnce(t *testing.T, b *bundle) {
	ctx := t.Context()
	clock := &stepClock{now: b.real.Now()}
	b.materialize(t, laneRow(1, trigger.StateFailed, "bot:bot1", clock.now))
	var all []*trigger.FleetWatch
	store := &readsTogether{Store: b.real}
	for _, name := range []string{"r1", "r2", "r3"} {
		all = append(all, &trigger.FleetWatch{Counts: store, Clock: clock, Logger: zerolog.Nop(), Name: name, Every: 10 * time.Second})
	}
	look := func() {
		var looks, reads sync.WaitGroup
		reads.Add(len(all))
		store.next(&reads)
		for _, w := range all {
			looks.Go(func() { _ = w.Look(context.WithoutCancel(ctx)) })
		}
		looks.Wait()
	}
	counted := func() (n int64) {
		for _, w := range all {
			n += w.Counted()
		}
		return n
	}
	look()
	require.EqualValues(t, 1, counted())
	clock.add(5 * time.Second)
	look()
	require.EqualValues(t, 1, counted(), "the period is not over")
	for _, w := range all {
		n, age := w.Latest()
		require.NotNil(t, n)
		require.EqualValues(t, 1, n.Effects[trigger.FleetFailed])
		require.Equal(t, 5*time.Second, age)
	}
	clock.add(5 * time.Second)
	look()
	require.EqualValues(t, 2, counted())

	// Others step in only when the preferred one is late.
	other := &trigger.FleetWatch{Counts: b.real, Clock: clock, Logger: zerolog.Nop(), Name: "r4", Every: 10 * time.Second, Prefers: func(string) bool { return false }}
	clock.add(20 * time.Second)
	require.NoError(t, other.Look(ctx))
	require.Zero(t, other.Counted())
	clock.add(10 * time.Second)
	require.NoError(t, other.Look(ctx))
	require.EqualValues(t, 1, other.Counted())
}

// stepClock goes on when it is told to.
type stepClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stepClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
