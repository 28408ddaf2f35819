package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// holed makes a log with an event at each seq of a pattern: "x" an event that
// fires s1, "." a seq that was given out and has none.
func (b *bundle) holed(t *testing.T, pattern string) {
	t.Helper()
	b.subscribe(t, "s1", "bug")
	for i, c := range pattern {
		if c == '.' {
			_, err := b.allocate(t.Context(), tenant, 1)
			require.NoError(t, err)
			continue
		}
		id := fmt.Sprint("c", i+1)
		b.create(t, id, "open", "bug")
		require.Len(t, b.relayed(t, id), 1)
	}
}

func (b *bundle) head(t *testing.T) *trigger.Head {
	t.Helper()
	head, err := b.real.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	return head
}

// late is the original that comes to a hole after all.
func (b *bundle) late(seq int64) trigger.Event {
	snap := &tracker.Snapshot{BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}}
	return trigger.Event{TenantID: tenant, Seq: seq, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{
		EID: fmt.Sprint("board:late", seq), Kind: tracker.KindCreated, CardID: "late", BoardID: "b1", Actor: human, After: snap,
	}}
}

func (b *bundle) firedSeqs(t *testing.T) (out []int64) {
	t.Helper()
	for _, row := range b.rows(t) {
		out = append(out, row.EventSeq)
	}
	return out
}

func testT3Close(t *testing.T, b *bundle) {
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.holed(t, "x.x")
	b.drain(t)
	require.EqualValues(t, 1, b.head(t).Cursor)
	require.EqualValues(t, 3, b.head(t).HoleUpTo, "the watch has begun")
	b.pass(trigger.HoleWaitDefault - time.Second)
	b.drain(t)
	require.EqualValues(t, 1, b.head(t).Cursor, "not before its patience")
	require.NotContains(t, log.String(), "closed a hole")
	b.pass(2 * time.Second)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
	require.Equal(t, []int64{1, 3}, b.firedSeqs(t), "a void matches nothing")
	require.Equal(t, trigger.SourceVoid, b.events(t)[1].Source)
	require.Equal(t, 1, strings.Count(log.String(), "closed a hole"), "each closed hole is a Warn")
}

func testT3Several(t *testing.T, b *bundle) {
	b.holed(t, "x..x.x.")
	b.drain(t)
	// What is given out after the watch began is not closed with it.
	_, err := b.allocate(t.Context(), tenant, 1)
	require.NoError(t, err)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 7, b.head(t).Cursor)
	require.Equal(t, []int64{1, 4, 6}, b.firedSeqs(t))
	require.Len(t, b.events(t), 7)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 8, b.head(t).Cursor)
}

func testT3EmptyLog(t *testing.T, b *bundle) {
	b.holed(t, "...")
	b.drain(t)
	require.Zero(t, b.head(t).Cursor)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
	require.False(t, b.head(t).Dirty)
	require.Empty(t, b.rows(t))
}

func testT3Late(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	// The relay is held up between its allocation and its insert, for longer
	// than the patience: its seq is closed meanwhile.
	closed := false
	b.setHook(func(op string) {
		if op != "EventInsertMany" || closed {
			return
		}
		closed = true
		b.drain(t)
		b.pass(trigger.HoleWaitDefault)
		b.drain(t)
		require.EqualValues(t, 1, b.head(t).Cursor)
	})
	seqs := b.relayed(t, "c1")
	b.setHook(nil)
	require.True(t, closed)
	for _, seq := range seqs {
		require.EqualValues(t, 2, seq, "its emitter took a new seq by itself")
	}
	require.Equal(t, 2*trigger.HoleWaitDefault.Milliseconds(), b.head(t).PatienceMS, "and asked for patience")
	b.drain(t)
	require.Equal(t, []int64{2}, b.firedSeqs(t), "matched exactly once")
	contiguous(t, b)

	// The next hole is given that patience.
	_, err := b.allocate(t.Context(), tenant, 1)
	require.NoError(t, err)
	b.drain(t)
	b.pass(trigger.HoleWaitDefault + time.Second)
	b.drain(t)
	require.EqualValues(t, 2, b.head(t).Cursor)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
}

// landsFirst lets an original land between the tail's look and its void.
type landsFirst struct {
	*faults
	land func()
}

func (l landsFirst) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	l.land()
	return l.faults.EventFillVoids(ctx, tenantID, seqs)
}

func testT3VoidLoses(t *testing.T, b *bundle) {
	b.holed(t, "x.x")
	b.drain(t)
	b.pass(trigger.HoleWaitDefault)
	b.tail.Log = landsFirst{b.faults, func() {
		require.NoError(t, b.real.EventInsertMany(t.Context(), tenant, []trigger.Event{b.late(2)}))
	}}
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
	require.Equal(t, []int64{1, 2, 3}, b.firedSeqs(t), "the original is there and is used")
}

func testT3Unreadable(t *testing.T, b *bundle) {
	b.holed(t, "x.x")
	b.drain(t)
	b.pass(trigger.HoleWaitDefault)
	b.hidden = map[int64]bool{2: true}
	for range 3 {
		_, err := b.tail.Drain(t.Context(), tenant)
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, b.head(t).Cursor, "nothing is concluded from an insert's answer")
	b.hidden = nil
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
	require.Equal(t, []int64{1, 3}, b.firedSeqs(t))
}

func testT3Replica(t *testing.T, b *bundle) {
	b.holed(t, "x.x")
	b.drain(t)
	since := b.head(t).HoleSince
	require.NoError(t, b.real.HeadWatchHole(t.Context(), tenant, 1, 3, b.Now().Add(time.Hour)))
	require.NoError(t, b.real.HeadWatchHole(t.Context(), tenant, 2, 3, b.Now().Add(time.Hour)))
	require.Equal(t, since, b.head(t).HoleSince, "another replica does not begin it anew")
	b.pass(trigger.HoleWaitDefault / 2)
	b.tail = b.newTail(new(bytes.Buffer)) // another replica, which knows nothing
	b.drain(t)
	require.Equal(t, since, b.head(t).HoleSince)
	b.pass(trigger.HoleWaitDefault / 2)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor, "the watch was not begun anew")
}

func testT4Behind(t *testing.T, b *bundle) {
	ctx := t.Context()
	lift := func() trigger.Lifted {
		l, err := b.real.HeadLift(ctx, tenant)
		require.NoError(t, err)
		return l
	}
	require.Equal(t, trigger.Lifted{Created: true}, lift())
	require.Equal(t, trigger.Lifted{}, lift())
	require.False(t, b.head(t).Dirty)

	// An empty log and rows that know more: nothing is waited for.
	b.materialize(t, effect(5, "l", b.real.Now()))
	require.Equal(t, trigger.Lifted{From: 0, To: 5}, lift())
	require.EqualValues(t, 5, b.head(t).Cursor)
	require.False(t, b.head(t).Dirty)

	// A log that is ahead of the allocator lies there unseen.
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{b.late(8)}))
	require.Equal(t, trigger.Lifted{Log: true, From: 5, To: 8}, lift())
	require.EqualValues(t, 5, b.head(t).Cursor, "what is missing between is a hole")
	require.True(t, b.head(t).Dirty)
	b.subscribe(t, "s1", "bug")
	b.drain(t)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 8, b.head(t).Cursor)
	require.Equal(t, []int64{5, 8}, b.firedSeqs(t))

	// A subscription that knows more.
	require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{TenantID: tenant, ID: "s2", Name: "s2", Revision: 1, ActiveFromSeq: 11}))
	require.Equal(t, trigger.Lifted{Log: true, From: 8, To: 11}, lift())
	require.EqualValues(t, 8, b.head(t).Cursor)
}

func testT4Restored(t *testing.T, b *bundle) {
	ctx := t.Context()
	require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: tenant, Name: tenant, Revision: 1}))
	// An older backup: the log and the head end at 2, the rows at 4.
	b.holed(t, "xx")
	b.drain(t)
	b.materialize(t, effect(4, "l", b.real.Now()))
	require.NoError(t, trigger.LiftAll(ctx, b.faults, b.faults, b.tail.Logger))
	b.create(t, "new", "open", "bug")
	seqs := b.relayed(t, "new")
	for _, seq := range seqs {
		require.EqualValues(t, 5, seq, "no seq that a row knows is given out again")
	}
	b.drain(t)
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 5, b.head(t).Cursor)
	require.Equal(t, []int64{1, 2, 4, 5}, b.firedSeqs(t))
}

func testT5Poison(t *testing.T, b *bundle) {
	ctx := t.Context()
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.holed(t, "x")
	huge := b.late(2)
	huge.Source, huge.Payload = trigger.SourceCustom, `"`+strings.Repeat("x", trigger.EventMaxBytes)+`"`
	_, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{huge}))
	b.create(t, "after", "open", "bug")
	b.relayed(t, "after")
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor, "the cursor goes on")
	row := b.row(t, trigger.PoisonID("acme/000000000002"))
	require.Equal(t, trigger.KindEvent, row.Kind)
	require.Equal(t, trigger.StateFailed, row.State)
	require.Equal(t, trigger.ReasonPoison, row.Reason)
	require.Len(t, row.Errors, 1)
	require.Equal(t, "board:late2", row.Event.EID)
	require.Equal(t, 1, strings.Count(log.String(), `"level":"error"`), "ONE Error log")
	require.Len(t, b.rows(t), 3)
	claimed, err := b.real.EffectClaim(ctx, b.claimParams(row.Lane, 10, time.Minute))
	require.NoError(t, err)
	require.Empty(t, claimed)
}

func testT5Tries(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	bare := b.late(2)
	bare.After, bare.CardID = nil, "c1"
	_, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{bare}))
	b.setCut(func(point string) error {
		if point == "CardsGet:before" || point == "CardGet:before" {
			return errCut
		}
		return nil
	})
	try := func() error {
		_, err := b.tail.Drain(ctx, tenant)
		return err
	}
	for range trigger.PoisonTries {
		require.ErrorIs(t, try(), errCut)
	}
	require.Equal(t, trigger.PoisonTries, b.head(t).Poison.Tries)
	require.EqualValues(t, 1, b.head(t).Cursor, "many tries within a short time are not enough")
	b.tail = b.newTail(new(bytes.Buffer)) // the count is on the head
	b.pass(trigger.PoisonAfter)
	require.NoError(t, try())
	require.EqualValues(t, 2, b.head(t).Cursor)
	require.Equal(t, trigger.ReasonPoison, b.row(t, trigger.PoisonID("acme/000000000002")).Reason)

	// A long time with few tries is not enough either.
	bare.Seq, bare.EID = 3, "board:late3"
	_, err = b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{bare}))
	require.ErrorIs(t, try(), errCut)
	b.pass(time.Hour)
	require.ErrorIs(t, try(), errCut)
	b.setCut(nil)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
}

// other makes a tenant with one event that fires a subscription of its own.
func (b *bundle) other(t *testing.T, name string) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: name, ID: "s", Name: "s", Revision: 1, Enabled: true, BotID: "bot1", If: trigger.Conditions{LabelsAll: []string{"bug"}},
	}))
	_, err := b.allocate(ctx, name, 1)
	require.NoError(t, err)
	e := b.late(1)
	e.TenantID = name
	require.NoError(t, b.real.EventInsertMany(ctx, name, []trigger.Event{e}))
}

// onlyFor limits what goes wrong to one tenant.
type onlyFor struct {
	*faults
	tenant string
	do     func() error
}

func (o onlyFor) SubscriptionRefs(ctx context.Context, tenantID string) ([]trigger.SubscriptionRef, error) {
	if tenantID == o.tenant {
		if err := o.do(); err != nil {
			return nil, err
		}
	}
	return o.faults.SubscriptionRefs(ctx, tenantID)
}

// cursors waits until the tenants' cursors are at the end.
func (b *bundle) cursors(t *testing.T, names ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, name := range names {
			head, err := b.real.HeadGet(t.Context(), name)
			if err != nil || head.Cursor != head.Seq {
				return false
			}
		}
		return true
	}, 20*time.Second, 5*time.Millisecond)
}

func testT6Alone(t *testing.T, b *bundle) {
	ctx := t.Context()
	for i := range 4 {
		b.other(t, fmt.Sprint("t", i))
	}
	tries := make(chan struct{}, 1000)
	b.tail.Config = onlyFor{b.faults, "t1", func() error { tries <- struct{}{}; return errCut }}
	b.tail.Parallel, b.tail.Poll = 1, 10*time.Millisecond
	require.NoError(t, b.tail.Start(ctx))
	b.cursors(t, "t0", "t2", "t3")
	<-tries
	head, err := b.real.HeadGet(ctx, "t1")
	require.NoError(t, err)
	require.Zero(t, head.Cursor)
	b.tail.Stop()
	require.Less(t, len(tries), 10, "it backs off")
	require.True(t, b.tail.Healthy())
}

func testT6Panic(t *testing.T, b *bundle) {
	ctx := t.Context()
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.other(t, "t0")
	b.other(t, "t1")
	b.tail.Config = onlyFor{b.faults, "t0", func() error { panic("boom") }}
	for range 6 {
		b.tail.Serve(ctx, "t0")
	}
	b.tail.Serve(ctx, "t1")
	head, err := b.real.HeadGet(ctx, "t1")
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Cursor)
	require.Contains(t, log.String(), `"tenant":"t0"`)
	require.False(t, b.tail.Healthy(), "liveness turns red if it goes on")
	dirty, err := b.real.HeadsDirty(ctx, b.real.Now(), 10)
	require.NoError(t, err)
	require.Empty(t, dirty, "the tenant backs off")
}

func testT6Prefers(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.other(t, "mine")
	b.other(t, "theirs")
	b.tail.Prefers = func(tn string) bool { return tn == "mine" }
	b.tail.Poll = 5 * time.Millisecond
	require.NoError(t, b.tail.Start(ctx))
	b.cursors(t, "mine")
	head, err := b.real.HeadGet(ctx, "theirs")
	require.NoError(t, err)
	if head.Cursor == 0 { // else this machine was slower than the patience
		require.Less(t, b.real.Now().Sub(head.DrainAfter), 4*time.Second)
	}
	b.pass(3 * time.Second) // nobody came: this replica steps in
	b.cursors(t, "theirs")
	// An emit in this process is drained here at once, whoever is preferred.
	_, err = b.allocate(ctx, "theirs", 1)
	require.NoError(t, err)
	e := b.late(2)
	e.TenantID = "theirs"
	require.NoError(t, b.real.EventInsertMany(ctx, "theirs", []trigger.Event{e}))
	b.tail.Wake("theirs")
	b.cursors(t, "theirs")
	b.tail.Stop()
}

func testT7Index(t *testing.T, b *bundle) {
	for i := range 100 {
		b.subscribe(t, "other"+strconv.Itoa(i), "bug", func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindAssigned} })
	}
	for i := range 3 {
		b.subscribe(t, "care"+strconv.Itoa(i), "bug", func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindCreated} })
	}
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	require.Len(t, b.rows(t), 3)
	require.EqualValues(t, 3, b.tail.Evaluated())
}

func testT8(t *testing.T, b *bundle) {
	ctx := t.Context()
	sub := b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	sub.Enabled, sub.Revision = false, 2
	require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	settled := make(chan trigger.Settle, 10)
	worker := &trigger.EffectWorker{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.real, Name: "w", Poll: 10 * time.Millisecond,
		Settled: func(_ trigger.Effect, s trigger.Settle) { settled <- s },
	}
	require.NoError(t, worker.Start(ctx))
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, (<-settled).Outcome)
	worker.Stop()
}

// elects changes the primary between the batch's events and its subscriptions.
type elects struct {
	*faults
	epoch int64
}

func (e *elects) Epoch() int64 { return e.epoch }

func (e *elects) SubscriptionRefs(ctx context.Context, tenantID string) ([]trigger.SubscriptionRef, error) {
	e.epoch++
	return nil, nil // the new primary has not had the subscription yet
}

func testT7Primary(t *testing.T, b *bundle) {
	b.holed(t, "x")
	e := &elects{faults: b.faults}
	b.tail.Epochs, b.tail.Config = e, e
	_, err := b.tail.Drain(t.Context(), tenant)
	require.Error(t, err)
	require.Zero(t, b.head(t).Cursor, "no event is passed over")
	b.tail.Config = b.faults
	b.drain(t)
	require.Equal(t, []int64{1}, b.firedSeqs(t))
}
