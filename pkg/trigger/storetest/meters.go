package storetest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// meter keeps what it observes.
type meter struct {
	mu     sync.Mutex
	values []float64
}

func (m *meter) Observe(v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values = append(m.values, v)
}

func (m *meter) all() []float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]float64(nil), m.values...)
}

func sum(list []float64) (total float64) {
	for _, v := range list {
		total += v
	}
	return total
}

// testMetersTail: what a tail counts is what it has moved the cursor past, once.
func testMetersTail(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "x.x")
	huge := b.late(4)
	huge.Source, huge.Payload = trigger.SourceCustom, `"`+strings.Repeat("x", trigger.EventMaxBytes)+`"`
	_, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{huge}))
	b.drain(t)
	require.EqualValues(t, 1, b.tail.Drained())
	require.Zero(t, b.tail.HolesClosed())
	b.pass(trigger.HoleWaitDefault + time.Second)
	b.drain(t)
	require.EqualValues(t, 1, b.tail.HolesClosed())
	require.EqualValues(t, 4, b.tail.Drained())
	require.EqualValues(t, 3, b.tail.Owed(), "two that fired, and the poison row")
	require.EqualValues(t, 1, b.tail.Poisoned())
	require.Equal(t, map[trigger.Ending]int64{{Kind: trigger.KindEvent, State: trigger.StateFailed, Outcome: string(trigger.ReasonPoison)}: 1}, b.tail.Ended())
	b.drain(t)
	require.EqualValues(t, 4, b.tail.Drained())
}

// metered is a worker whose settles and parkings are told to the channel.
func (b *bundle) metered(t *testing.T, slots int, told chan<- trigger.State) (*trigger.EffectWorker, map[string]*meter) {
	t.Helper()
	meters := map[string]*meter{"start": {}, "done": {}, "rows": {}, "seconds": {}}
	return &trigger.EffectWorker{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.real, Name: "w", Slots: slots,
		Logger: zerolog.Nop(), Poll: 10 * time.Millisecond, RetryBase: time.Millisecond, RetryCap: 5 * time.Millisecond,
		Settled: func(_ trigger.Effect, s trigger.Settle) { told <- s.To },
		Parked:  func() { told <- trigger.StateFailed },
		Meters: trigger.WorkerMeters{
			ScheduleToStart: meters["start"], EmitToDone: meters["done"], ClaimRows: meters["rows"], ClaimSeconds: meters["seconds"],
		},
	}, meters
}

func hear(t *testing.T, told <-chan trigger.State, n int) {
	t.Helper()
	for i := range n {
		select {
		case <-told:
		case <-time.After(30 * time.Second):
			require.Failf(t, "waited in vain", "%d of %d", i, n)
		}
	}
}

// testMetersWorker: each attempt's end is counted once, and so is what is
// parked because its lease ran out.
func testMetersWorker(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	const cards = 4
	for i := range cards {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	b.drain(t)
	ago := b.real.Now().Add(-time.Hour)
	spent, doubt := laneRow(901, trigger.StateClaimed, "bot:bot1", ago), laneRow(902, trigger.StateClaimed, "bot:bot1", ago)
	spent.Attempts, doubt.Attempts, doubt.DeliveryStartedAt = trigger.AttemptsMax, 1, ago
	doubt.Reason = trigger.ReasonExhausted // of a failure before somebody replayed it
	b.materialize(t, spent, doubt)
	told := make(chan trigger.State, 100)
	worker, meters := b.metered(t, 8, told)
	require.Equal(t, trigger.WorkerGauges{}, worker.Gauges(), "it does not run")
	b.launches.down = 2
	require.NoError(t, worker.Start(t.Context()))
	defer worker.Stop()
	hear(t, told, 2+cards+2)
	worker.Stop()
	require.Equal(t, map[trigger.Ending]int64{
		{Kind: trigger.KindLaunch, State: trigger.StateDone, Outcome: "launched"}:          cards,
		{Kind: trigger.KindLaunch, State: trigger.StatePending, Outcome: "retried"}:        2,
		{Kind: trigger.KindLaunch, State: trigger.StateFailed, Outcome: "lease_exhausted"}: 1,
		{Kind: trigger.KindLaunch, State: trigger.StateReconcile, Outcome: "reconcile"}:    1,
	}, worker.Ended())
	require.Positive(t, worker.Rounds())
	require.Len(t, meters["start"].all(), cards, "first attempts alone")
	require.Len(t, meters["done"].all(), cards)
	require.InDelta(t, worker.Stats().Claimed, sum(meters["rows"].all()), 0)
	require.Len(t, meters["seconds"].all(), len(meters["rows"].all()))
	require.Equal(t, trigger.WorkerGauges{Free: 8}, worker.Gauges())
}

// testMetersBreaker: a bot that is down is seen from the worker's gauges.
func testMetersBreaker(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	for i := range 12 {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	b.drain(t)
	told := make(chan trigger.State, 100)
	worker, _ := b.metered(t, 64, told)
	worker.RetryBase, worker.RetryCap = time.Hour, 10*time.Hour // open for 20 minutes
	b.launches.down = 1000
	require.NoError(t, worker.Start(t.Context()))
	defer worker.Stop()
	hear(t, told, 10)
	require.Eventually(t, func() bool {
		g := worker.Gauges()
		return g.Open == 1 && g.HalfOpen == 0 && g.Busy == 0 && g.Free == 64
	}, 30*time.Second, 5*time.Millisecond)
}
