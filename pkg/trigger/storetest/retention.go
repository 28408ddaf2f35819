package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (b *bundle) janitor() *trigger.Janitor {
	return &trigger.Janitor{Cards: b.faults, Log: b.faults, Heads: b.faults, Retention: b.faults, Clock: b.faults, Release: b.evaluator().Release}
}

func (b *bundle) clean(t *testing.T) {
	t.Helper()
	require.NoError(t, b.janitor().Clean(t.Context()))
}

func testR4Janitor(t *testing.T, b *bundle) {
	b.holed(t, "xxx")
	// The tail has handled two of the three.
	b.tail.Batch = 2
	_, err := b.tail.Drain(t.Context(), tenant)
	require.NoError(t, err)
	require.EqualValues(t, 2, b.head(t).Cursor)
	b.clean(t)
	require.Len(t, b.events(t), 3, "not before their retention")
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	events := b.events(t)
	require.Len(t, events, 1, "never above the cursor, however old")
	require.EqualValues(t, 3, events[0].Seq)
	b.drain(t)
	require.Equal(t, []int64{1, 2, 3}, b.firedSeqs(t))
	// What is removed is not given out again.
	b.clean(t)
	require.Empty(t, b.events(t))
	first, err := b.allocate(t.Context(), tenant, 1)
	require.NoError(t, err)
	require.EqualValues(t, 4, first)
}

func testR4Pending(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.crashed(t, "c1", "CardPendingRemove:before")
	b.drain(t)
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	require.Len(t, b.events(t), 1, "a resumed relay would emit it a second time")
	_, err := b.sweeper().Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"card.created c1"}, lines(b.events(t)))
	b.clean(t)
	require.Empty(t, b.events(t))
	require.Len(t, b.rows(t), 1)
}

func testR4Rows(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "xxx")
	b.drain(t)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 3, time.Hour))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.True(t, b.settle(t, b.done(rows[0])))
	failed := b.done(rows[1])
	failed.To, failed.Reason = trigger.StateFailed, trigger.ReasonPermanent
	require.True(t, b.settle(t, failed))
	// rows[2] stays claimed.
	b.pass(trigger.RowRetentionDefault + time.Hour)
	j := b.janitor()
	j.Events = 30 * 24 * time.Hour
	require.NoError(t, j.Clean(ctx))
	require.Equal(t, trigger.StateDone, b.row(t, rows[0].ID).State, "its event is still there")
	b.clean(t)
	require.Empty(t, b.events(t))
	require.Eventually(t, func() bool {
		_, err := b.real.EffectGet(ctx, tenant, rows[0].ID)
		return err != nil
	}, 2*time.Minute, 50*time.Millisecond, "a done row goes when its event is gone")
	_, err = b.real.EffectGet(ctx, tenant, rows[0].ID)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	require.Equal(t, trigger.StateFailed, b.row(t, rows[1].ID).State, "a failed row never goes")
	require.Equal(t, trigger.StateClaimed, b.row(t, rows[2].ID).State)
	require.Equal(t, "board", string(b.row(t, rows[1].ID).Event.Source), "and has all it needs")
}

func testReplicas(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	live, err := b.real.ReplicaBeat(ctx, "a", now.Add(-time.Minute), now.Add(-time.Hour))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, live)
	live, err = b.real.ReplicaBeat(ctx, "b", now, now.Add(-time.Hour))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, live)
	live, err = b.real.ReplicaBeat(ctx, "b", now, now.Add(-time.Second))
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, live, "a gives no sign any more")

	one := &trigger.Membership{Replicas: b.real, Clock: b.real, Name: "one"}
	two := &trigger.Membership{Replicas: b.real, Clock: b.real, Name: "two"}
	require.True(t, one.Prefers("x"), "alone")
	require.NoError(t, b.real.ReplicaLeave(ctx, "b"))
	require.NoError(t, one.Beat(ctx))
	require.NoError(t, two.Beat(ctx))
	require.NoError(t, one.Beat(ctx))
	mine := 0
	for i := range 1000 {
		key := string(rune('a'+i%26)) + string(rune('a'+i/26))
		require.NotEqual(t, one.Prefers(key), two.Prefers(key), "exactly one is preferred")
		if one.Prefers(key) {
			mine++
		}
	}
	require.InDelta(t, 500, mine, 150)
	require.NoError(t, b.real.ReplicaLeave(ctx, "two"))
	require.NoError(t, one.Beat(ctx))
	require.True(t, one.Prefers("x"))
}

// askedRetention counts what a janitor asks for.
type askedRetention struct {
	trigger.Retention
	asked int
}

func (r *askedRetention) EventsRemovable(ctx context.Context, tenantID string, upTo int64, before time.Time, limit int) ([]trigger.EventRef, error) {
	r.asked++
	return r.Retention.EventsRemovable(ctx, tenantID, upTo, before, limit)
}

func (r *askedRetention) EffectsSettledBefore(ctx context.Context, tenantID string, before time.Time, afterID string, limit int) ([]trigger.EffectSeq, error) {
	r.asked++
	return r.Retention.EffectsSettledBefore(ctx, tenantID, before, afterID, limit)
}

// testT6Resting: a janitor does not ask again for tenants that have nothing to
// be removed soon, and removes what is due all the same.
func testT6Resting(t *testing.T, b *bundle) {
	b.holed(t, "xxx")
	b.drain(t)
	b.rests(t, func() int { return len(b.events(t)) })
}

// testT6RestingRows: likewise of rows whose events are gone.
func testT6RestingRows(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "xxx")
	b.drain(t)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 3, time.Hour))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	for _, row := range rows {
		require.True(t, b.settle(t, b.done(row)))
	}
	require.NoError(t, b.real.EventRemoveMany(ctx, tenant, []int64{1, 2, 3}))
	b.rests(t, func() int {
		kept, err := b.real.EffectsSettledBefore(ctx, tenant, b.real.Now().Add(time.Hour), "", 10)
		require.NoError(t, err)
		return len(kept)
	})
}

func (b *bundle) rests(t *testing.T, left func() int) {
	t.Helper()
	r := &askedRetention{Retention: b.faults}
	j := b.janitor()
	j.Retention = r
	clean := func() int {
		before := r.asked
		require.NoError(t, j.Clean(t.Context()))
		return r.asked - before
	}
	require.Equal(t, 2, clean(), "one look ahead")
	require.Zero(t, clean(), "nothing gets old enough so soon")
	b.pass(23 * time.Hour)
	require.Zero(t, clean())
	b.pass(2 * time.Hour)
	require.Equal(t, 2, clean(), "it is looked after daily")
	b.pass(trigger.EventRetentionDefault - 26*time.Hour)
	require.NotZero(t, clean(), "an hour before they are due")
	require.NotZero(t, clean(), "it is not let alone")
	require.Equal(t, 3, left())
	b.pass(time.Hour + time.Minute)
	clean()
	require.Zero(t, left(), "they go when they are due")
}
