package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// decisionTests hold a store to what people decide about rows.
func decisionTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestDecide_ChangesOnlyARowAsItWasSeen": testPortDecideSeen,
		"TestDecide_OneOfSeveralAtOnce":         testDecideOnce,
		"TestDecide_TenantsAndAbsentRows":       testDecideAbsent,
		"TestR2_UnknownKindIsNeverDecided":      testR2Decide,
		"TestR4_OnlyDoneAndDiscardedRowsExpire": testR4Expire,
		"TestEffectList_ByEveryField":           testEffectListFields,
		"TestBulks":                             testBulks,
		"TestR2_ProjectionsAndEventsAreKnown":   testR2Known,
	}
}

func requireConflict(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, tracker.ErrConflict)
}

// inState makes a row that is in the state from the start.
func inState(n int, state trigger.State, at time.Time) trigger.Effect {
	row := effect(n, lane, at)
	row.State, row.ClaimID, row.Attempts = state, uuid.NewString(), 1
	switch state {
	case trigger.StateDone:
		row.Outcome, row.DoneAt = trigger.OutcomeLaunched, at
	case trigger.StateFailed:
		row.Reason = trigger.ReasonExhausted
	case trigger.StateReconcile:
		row.DeliveryStartedAt = startedAt
	}
	return row
}

func testPortDecideSeen(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.materialize(t, inState(1, trigger.StateFailed, b.real.Now().Add(-time.Hour)))
	seen := b.row(t, effect(1, lane, startedAt).ID)
	d := b.decision(seen, trigger.ActionReplay)
	for _, at := range []time.Duration{time.Millisecond, -time.Millisecond} {
		d.SeenAt = seen.UpdatedAt.Add(at)
		_, err := b.real.EffectDecide(ctx, d)
		requireConflict(t, err)
	}
	require.Equal(t, seen, b.row(t, seen.ID))
	d.SeenAt = seen.UpdatedAt
	got, err := b.real.EffectDecide(ctx, d)
	require.NoError(t, err)
	want := *seen
	want.State, want.NotBefore, want.UpdatedAt, want.Attempts, want.Reason = trigger.StatePending, d.At, d.At, 0, ""
	want.History = []trigger.HistoryEntry{{
		ID: d.ID, Action: trigger.ActionReplay, By: "mona", Note: "looked", At: d.At,
		From: trigger.StateFailed, Reason: trigger.ReasonExhausted, Attempts: 1,
	}}
	require.Equal(t, &want, got)
	require.Equal(t, &want, b.row(t, seen.ID))
	_, err = b.real.EffectDecide(ctx, d)
	require.NoError(t, err, "sent again it decides nothing more")
	require.Equal(t, &want, b.row(t, seen.ID))
}

func testDecideOnce(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.materialize(t, inState(1, trigger.StateFailed, b.real.Now()))
	row := b.row(t, effect(1, lane, startedAt).ID)
	errs := make(chan error, 4)
	for i := range cap(errs) {
		d := b.decision(row, trigger.ActionReplay)
		if i%2 == 1 {
			d.Action = trigger.ActionDiscard
		}
		go func() {
			_, err := b.real.EffectDecide(ctx, d)
			errs <- err
		}()
	}
	won := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			won++
		} else {
			requireConflict(t, err)
		}
	}
	require.Equal(t, 1, won)
	require.Len(t, b.row(t, row.ID).History, 1)
}

func testDecideAbsent(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.materialize(t, inState(1, trigger.StateFailed, b.real.Now()))
	row := b.row(t, effect(1, lane, startedAt).ID)
	foreign, absent, unknown := b.decision(row, trigger.ActionReplay), b.decision(row, trigger.ActionReplay), b.decision(row, "teleport")
	foreign.TenantID, absent.EffectID = "other", row.ID+"x"
	for _, d := range []trigger.Decision{foreign, absent} {
		_, err := b.real.EffectDecide(ctx, d)
		require.ErrorIs(t, err, tracker.ErrNotFound)
	}
	_, err := b.real.EffectDecide(ctx, unknown)
	require.ErrorAs(t, err, new(*tracker.FieldError))
	require.Equal(t, row, b.row(t, row.ID))
}

func testR2Decide(t *testing.T, b *bundle) {
	now := b.real.Now()
	for i, state := range trigger.States() {
		row := inState(i+1, state, now)
		row.Kind = "teleport"
		b.materialize(t, row)
		before := b.row(t, row.ID)
		for _, action := range trigger.Actions() {
			_, err := b.real.EffectDecide(t.Context(), b.decision(before, action))
			requireConflict(t, err)
		}
		require.Equal(t, before, b.row(t, row.ID))
	}
}

func testR4Expire(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	old := now.Add(-time.Hour)
	var ids, over []string
	rows := make(map[string]trigger.State)
	for i, state := range trigger.States() {
		// One more of each that is too young, one of another tenant.
		row, young, foreign := inState(i+1, state, old), inState(100+i, state, now), inState(200+i, state, old)
		row.CardID = "c1"
		if state == trigger.StateDone {
			row.Consume = []string{"ship-it"}
		}
		foreign.TenantID, foreign.ID = "other", "other/"+foreign.ID
		b.materialize(t, row, young)
		_, err := b.real.EffectMaterialize(ctx, "other", []trigger.Effect{foreign})
		require.NoError(t, err)
		ids, rows[row.ID] = append(ids, row.ID, foreign.ID), state
		if state == trigger.StateDone || state == trigger.StateDiscarded {
			over = append(over, row.ID)
		}
	}
	settled := func(after string, limit int) (out []string) {
		found, err := b.real.EffectsSettledBefore(ctx, tenant, now.Add(-time.Minute), after, limit)
		require.NoError(t, err)
		for _, row := range found {
			require.Equal(t, "c1", row.CardID)
			require.Equal(t, rows[row.ID] == trigger.StateDone, len(row.Consume) > 0)
			require.Equal(t, row.ID, trigger.EffectID(trigger.EventID(tenant, row.EventSeq), "s1"))
			out = append(out, row.ID)
		}
		return out
	}
	require.Equal(t, over, settled("", 10))
	require.Equal(t, over[:1], settled("", 1))
	require.Equal(t, over[1:], settled(over[0], 10))

	require.NoError(t, b.real.EffectExpireMany(ctx, tenant, ids), "of all, in whatever state")
	require.Empty(t, settled("", 10), "what was told to go is not told again")
	require.Eventually(t, func() bool {
		for _, id := range over {
			if _, err := b.real.EffectGet(ctx, tenant, id); err == nil {
				return false
			}
		}
		return true
	}, 2*time.Minute, 50*time.Millisecond)
	for id, state := range rows {
		if !state.Over() {
			require.Equal(t, state, b.row(t, id).State, "never goes")
		}
	}
	others, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: "other", Limit: 100})
	require.NoError(t, err)
	require.Len(t, others, len(rows))
}

func testEffectListFields(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	var all []trigger.Effect
	for i, state := range trigger.States() {
		for j, reason := range []trigger.Reason{"", trigger.ReasonPermanent, trigger.ReasonPoison} {
			row := inState(len(all)+1, state, now.Add(time.Duration(len(all))*time.Second))
			row.Reason = reason
			row.SubscriptionID, row.BotID = fmt.Sprint("s", i%2), fmt.Sprint("bot", j%2)
			all = append(all, row)
		}
	}
	b.materialize(t, all...)
	foreign := inState(1, trigger.StateFailed, now)
	foreign.ID, foreign.TenantID = "acm/"+foreign.ID, "acm"
	_, err := b.real.EffectMaterialize(ctx, "acm", []trigger.Effect{foreign})
	require.NoError(t, err)

	mid := now.Add(10 * time.Second)
	filters := []trigger.EffectFilter{
		{},
		{SubscriptionID: "s1"},
		{BotID: "bot1"},
		{Reason: trigger.ReasonPoison},
		{UpdatedBefore: mid},
		{UpdatedFrom: mid},
		{UpdatedFrom: now.Add(5 * time.Second), UpdatedBefore: mid},
		{SubscriptionID: "nobody"},
		{State: "unheard-of"},
		{State: trigger.StateFailed, SubscriptionID: "s1", BotID: "bot1", Reason: trigger.ReasonPermanent, UpdatedFrom: now, UpdatedBefore: now.Add(time.Hour)},
	}
	for _, state := range trigger.States() {
		filters = append(filters,
			trigger.EffectFilter{State: state}, trigger.EffectFilter{State: state, BotID: "bot1"}, trigger.EffectFilter{State: state, Reason: trigger.ReasonPoison},
			trigger.EffectFilter{State: state, SubscriptionID: "s0"}, trigger.EffectFilter{State: state, UpdatedBefore: mid}, trigger.EffectFilter{State: state, UpdatedFrom: mid})
	}
	for _, f := range filters {
		var want []string
		for i := range all {
			if f.Accepts(&all[i]) {
				want = append(want, all[i].ID)
			}
		}
		var got []string
		after := ""
		for {
			page, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: f, AfterID: after, Limit: 2})
			require.NoError(t, err)
			if len(page) == 0 {
				break
			}
			require.LessOrEqual(t, len(page), 2)
			for _, row := range page {
				got = append(got, row.ID)
			}
			after = got[len(got)-1]
		}
		require.Equal(t, want, got, "%+v", f)
	}
	// Each field of its own makes a difference.
	for _, f := range filters[1:7] {
		n := 0
		for i := range all {
			if f.Accepts(&all[i]) {
				n++
			}
		}
		require.NotZero(t, n)
		require.Less(t, n, len(all))
	}
}

func testBulks(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	items := []trigger.BulkItem{{ID: "acme/000000000001|s1", UpdatedAt: now}, {ID: "acme/000000000002|s1", UpdatedAt: now.Add(time.Second)}}
	bulk := trigger.Bulk{
		TenantID: tenant, ID: "b1", Action: trigger.ActionReplay, By: "mona", Note: "why", CreatedAt: now, Items: items,
		Filter: trigger.EffectFilter{State: trigger.StateFailed, UpdatedBefore: now}, Digest: trigger.BulkDigest(trigger.ActionReplay, items),
	}
	require.NoError(t, b.real.BulkCreate(ctx, &bulk))
	requireConflict(t, b.real.BulkCreate(ctx, &bulk))
	get := func() *trigger.Bulk {
		t.Helper()
		got, err := b.real.BulkGet(ctx, tenant, "b1")
		require.NoError(t, err)
		return got
	}
	require.Equal(t, &bulk, get())
	require.Equal(t, bulk.Digest, trigger.BulkDigest(bulk.Action, get().Items), "what comes back has the digest that it went with")

	advance := func(tenantID string, from, to int) bool {
		t.Helper()
		ok, err := b.real.BulkAdvance(ctx, tenantID, "b1", from, to, 2, 1)
		require.NoError(t, err)
		return ok
	}
	require.False(t, advance("other", 0, 1))
	require.False(t, advance(tenant, 1, 2), "it does not stand there")
	require.Equal(t, &bulk, get())
	require.True(t, advance(tenant, 0, 1))
	require.False(t, advance(tenant, 0, 1), "of two that go on from one item one counts")
	bulk.Next, bulk.Applied, bulk.Refused = 1, 2, 1
	require.Equal(t, &bulk, get())

	require.ErrorIs(t, b.real.BulkStop(ctx, "other", "b1"), tracker.ErrNotFound)
	require.ErrorIs(t, b.real.BulkStop(ctx, tenant, "b2"), tracker.ErrNotFound)
	require.NoError(t, b.real.BulkStop(ctx, tenant, "b1"))
	require.NoError(t, b.real.BulkStop(ctx, tenant, "b1"))
	require.True(t, advance(tenant, 1, 2), "what was decided meanwhile is counted")
	bulk.Stopped, bulk.Next, bulk.Applied, bulk.Refused = true, 2, 4, 2
	require.Equal(t, &bulk, get())

	for _, key := range [][2]string{{tenant, "b2"}, {"other", "b1"}} {
		_, err := b.real.BulkGet(ctx, key[0], key[1])
		require.ErrorIs(t, err, tracker.ErrNotFound)
	}
	old := bulk
	old.ID, old.Stopped, old.CreatedAt = "old", false, now.Add(-trigger.BulkKept-time.Minute)
	require.NoError(t, b.real.BulkCreate(ctx, &old))
	_, err := b.real.BulkGet(ctx, tenant, "old")
	require.ErrorIs(t, err, tracker.ErrNotFound, "its time is over, whether or not the store has come to remove it")
	require.ErrorIs(t, b.real.BulkStop(ctx, tenant, "old"), tracker.ErrNotFound)
	ok, err := b.real.BulkAdvance(ctx, tenant, "old", 1, 2, 1, 0)
	require.NoError(t, err)
	require.False(t, ok)
}

func testR2Known(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	var want []string
	for i, kind := range append(trigger.KnownKinds(), "teleport") {
		// One that is pending and one whose lease has run out.
		pending, claimed := effect(i+1, lane, now), effect(100+i, lane, now.Add(-time.Minute))
		pending.Kind, claimed.Kind = kind, kind
		claimed.State, claimed.ClaimID = trigger.StateClaimed, uuid.NewString()
		b.materialize(t, pending, claimed)
		if kind != "teleport" {
			want = append(want, pending.ID, claimed.ID)
		}
	}
	require.Contains(t, trigger.KnownKinds(), trigger.KindProjection)
	require.Contains(t, trigger.KnownKinds(), trigger.KindEvent)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 100, time.Hour))
	require.NoError(t, err)
	var got []string
	for _, row := range rows {
		got = append(got, row.ID)
	}
	for {
		row := b.reclaim(t, time.Hour)
		if row == nil {
			break
		}
		got = append(got, row.ID)
	}
	require.ElementsMatch(t, want, got)
	for _, n := range []int{len(trigger.KnownKinds()) + 1, 100 + len(trigger.KnownKinds())} {
		row := b.row(t, effect(n, lane, now).ID)
		require.EqualValues(t, "teleport", row.Kind)
		require.Zero(t, row.Attempts, "left alone")
	}
}
