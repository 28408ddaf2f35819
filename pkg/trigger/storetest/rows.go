package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const lane = "bot:bot1"

func testR1Keys(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	row := b.row(t, "acme/000000000001|s1")
	require.Equal(t, "acme/000000000001|s1", row.IdempotencyKey())
	byEvent, err := b.real.EffectListByEvent(ctx, tenant, "acme/000000000001")
	require.NoError(t, err)
	require.Len(t, byEvent, 1)
	// No id of another event or tenant reaches it.
	for _, id := range []string{"acme/000000000001", "acme/00000000000", "acme/000000000001|s"} {
		_, err := b.real.EffectGet(ctx, tenant, id)
		require.ErrorIs(t, err, tracker.ErrNotFound)
	}
	byEvent, err = b.real.EffectListByEvent(ctx, tenant, "acme/00000000000")
	require.NoError(t, err)
	require.Empty(t, byEvent)
}

func testR2Kind(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	future, absent := effect(1, lane, now), effect(2, lane, now)
	future.Kind, absent.Kind = "teleport", ""
	b.materialize(t, future, absent)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 10, time.Minute))
	require.NoError(t, err)
	require.Len(t, rows, 1, "an absent kind means launch, an unknown one is left alone")
	require.Equal(t, absent.ID, rows[0].ID)
	due, ok, err := b.real.EffectNextDue(ctx, tenant, lane)
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, due.After(now), "the unknown row does not keep its lane due")
	b.materialize(t, future)
	require.Equal(t, trigger.StatePending, b.row(t, future.ID).State)
	require.Equal(t, trigger.EffectKind("teleport"), b.row(t, future.ID).Kind)
}

func testR3Again(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := effect(1, lane, b.real.Now())
	b.materialize(t, row)
	check := func(state trigger.State) {
		t.Helper()
		before := b.row(t, row.ID)
		require.Equal(t, state, before.State)
		again, other := row, effect(2, lane, b.real.Now())
		again.Lane, again.BotID, again.State = "bot:bot9", "bot9", trigger.StatePending
		other.ID += string(state)
		refs, err := b.real.EffectMaterialize(ctx, tenant, []trigger.Effect{again, other})
		require.NoError(t, err)
		require.Len(t, refs, 2)
		require.Equal(t, before, b.row(t, row.ID))
		i := slices.IndexFunc(refs, func(r trigger.EffectRef) bool { return r.ID == row.ID })
		require.Equal(t, trigger.EffectRef{ID: row.ID, Lane: lane, State: state, NotBefore: before.NotBefore, ClaimID: before.ClaimID}, refs[i], "what the store holds")
	}
	check(trigger.StatePending)
	claimed := b.claimOne(t, lane, time.Minute)
	check(trigger.StateClaimed)
	require.True(t, b.settle(t, b.done(claimed)))
	check(trigger.StateDone)

	// Several replicas at once: each row once.
	var rows []trigger.Effect
	for i := range 20 {
		rows = append(rows, effect(100+i, "bot:race", b.real.Now()))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			refs, err := b.real.EffectMaterialize(ctx, tenant, rows)
			if err != nil || len(refs) != len(rows) {
				t.Errorf("%d refs, %v", len(refs), err)
			}
		})
	}
	wg.Wait()
	claims, err := b.real.EffectClaim(ctx, b.claimParams("bot:race", 100, time.Minute))
	require.NoError(t, err)
	require.Len(t, claims, 20)
}

func testR4Event(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug", "Docs")
	b.change(t, "c1", retitle("new"))
	b.relayed(t, "c1")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 1)
	require.Equal(t, b.events(t)[0], rows[0].Event)
}

func testW1Claims(t *testing.T, b *bundle) {
	ctx := t.Context()
	var rows []trigger.Effect
	for i := range 60 {
		rows = append(rows, effect(i+1, lane, b.real.Now()))
	}
	b.materialize(t, rows...)
	var mu sync.Mutex
	held := make(map[string]string)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for range 100 {
				p := b.claimParams(lane, 5, time.Hour)
				p.Worker = fmt.Sprint("w", w)
				got, err := b.real.EffectClaim(ctx, p)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, row := range got {
					if other, taken := held[row.ID]; taken {
						t.Errorf("row %s held by %s and %s", row.ID, other, p.ClaimID)
					}
					held[row.ID] = p.ClaimID
				}
				all := len(held) == len(rows)
				mu.Unlock()
				if all {
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, held, len(rows))
	for id, claim := range held {
		row := b.row(t, id)
		require.Equal(t, claim, row.ClaimID)
		require.Equal(t, 1, row.Attempts)
	}
}

func testW1Due(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	due, later, other, foreign := effect(1, lane, now), effect(2, lane, now.Add(time.Hour)), effect(3, "bot:bot2", now), effect(4, lane, now)
	foreign.TenantID, foreign.ID = "other", "other/000000000004|s1"
	b.materialize(t, due, later, other)
	_, err := b.real.EffectMaterialize(ctx, "other", []trigger.Effect{foreign})
	require.NoError(t, err)
	_, err = b.real.EffectMaterialize(ctx, tenant, []trigger.Effect{foreign})
	require.Error(t, err, "a row of another tenant")

	p := b.claimParams(lane, 10, time.Minute)
	rows, err := b.real.EffectClaim(ctx, p)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	got := rows[0]
	require.Equal(t, due.ID, got.ID)
	require.Equal(t, trigger.StateClaimed, got.State)
	require.Equal(t, p.ClaimID, got.ClaimID)
	require.Equal(t, p.LeaseEnd, got.NotBefore)
	require.Equal(t, 1, got.Attempts)
	next, ok, err := b.real.EffectNextDue(ctx, tenant, lane)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, p.LeaseEnd, next)
	_, ok, err = b.real.EffectNextDue(ctx, tenant, "bot:nobody")
	require.NoError(t, err)
	require.False(t, ok)
}

func testW2Stale(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.materialize(t, effect(1, lane, b.real.Now()))
	stale := b.claimOne(t, lane, -time.Second)
	fresh, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, time.Hour)) // the same worker name
	require.NoError(t, err)
	require.NotNil(t, fresh)
	require.NotEqual(t, stale.ClaimID, fresh.ClaimID)

	before := b.row(t, stale.ID)
	for _, to := range []trigger.State{trigger.StateDone, trigger.StateFailed, trigger.StatePending} {
		s := b.done(stale)
		s.To, s.NotBefore = to, b.real.Now()
		require.False(t, b.settle(t, s))
	}
	require.ErrorIs(t, b.real.EffectPlan(ctx, stale.Fence(), trigger.LaunchPlan{Body: "x"}), trigger.ErrFenceLost)
	require.ErrorIs(t, b.real.EffectMarkConsumed(ctx, stale.Fence()), trigger.ErrFenceLost)
	foreign := fresh.Fence()
	foreign.TenantID = "other"
	require.ErrorIs(t, b.real.EffectMarkConsumed(ctx, foreign), trigger.ErrFenceLost)
	require.Equal(t, before, b.row(t, stale.ID), "a stale worker changes nothing")

	require.NoError(t, b.real.EffectPlan(ctx, fresh.Fence(), trigger.LaunchPlan{BotID: "bot1", Body: "x"}))
	require.True(t, b.settle(t, b.done(*fresh)))
	require.ErrorIs(t, b.real.EffectPlan(ctx, fresh.Fence(), trigger.LaunchPlan{Body: "y"}), trigger.ErrFenceLost, "settled")
	require.Equal(t, "x", b.row(t, stale.ID).Plan.Body)

	// While the claim id still is the row's, a late settle is accepted.
	b.materialize(t, effect(2, lane, b.real.Now()))
	late := b.claimOne(t, lane, -time.Second)
	require.True(t, b.settle(t, b.done(late)))
}

func testW2Again(t *testing.T, b *bundle) {
	b.materialize(t, effect(1, lane, b.real.Now()))
	row := b.claimOne(t, lane, time.Minute)
	s := b.done(row)
	require.True(t, b.settle(t, s))
	after := b.row(t, row.ID)
	require.True(t, b.settle(t, s), "the answer was lost, the same settle comes again")
	require.Equal(t, after, b.row(t, row.ID), "and changes nothing")

	// Parking takes a fresh id: a settle that never took effect is not
	// reported accepted.
	b.materialize(t, effect(2, lane, b.real.Now()))
	last := b.claimOne(t, lane, -time.Second)
	for {
		parked, err := b.real.EffectReclaim(t.Context(), b.claimParams(lane, 1, -time.Second))
		require.NoError(t, err)
		require.NotNil(t, parked)
		if parked.State == trigger.StateFailed {
			break
		}
		last = *parked
	}
	require.False(t, b.settle(t, b.done(last)))
	require.Equal(t, trigger.StateFailed, b.row(t, last.ID).State)
}

func testW2Credential(t *testing.T, b *bundle) {
	b.materialize(t, effect(1, lane, b.real.Now()))
	row := b.claimOne(t, lane, time.Minute)
	for _, f := range []trigger.Fence{
		{TenantID: tenant, EffectID: row.ID},
		{TenantID: tenant, ClaimID: row.ClaimID},
		{EffectID: row.ID, ClaimID: row.ClaimID},
	} {
		bad := b.done(row)
		bad.Fence = f
		_, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{b.done(row), bad})
		require.Error(t, err)
		require.Equal(t, trigger.StateClaimed, b.row(t, row.ID).State, "refused before anything is written")
	}
	bad := b.done(row)
	bad.To = trigger.StateClaimed
	_, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{bad})
	require.Error(t, err)
}

func testW2Batch(t *testing.T, b *bundle) {
	for i := range 3 {
		b.materialize(t, effect(i+1, lane, b.real.Now()))
	}
	rows, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 3, time.Minute))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	settles := []trigger.Settle{b.done(rows[0]), b.done(rows[1]), b.done(rows[2])}
	settles[1].ClaimID = uuid.NewString()
	stands, err := b.real.EffectSettleMany(t.Context(), settles)
	require.NoError(t, err)
	require.Equal(t, []bool{true, false, true}, stands)
	require.Equal(t, trigger.StateDone, b.row(t, rows[0].ID).State)
	require.Equal(t, trigger.StateClaimed, b.row(t, rows[1].ID).State)
	require.Equal(t, trigger.StateDone, b.row(t, rows[2].ID).State)
}

// What ends alike may be written at once: each row keeps its own run, and a row
// that another claim holds is not touched.
func testW2Alike(t *testing.T, b *bundle) {
	ctx := t.Context()
	for i := range 8 {
		b.materialize(t, effect(i+1, lane, b.real.Now()))
	}
	lost, err := b.real.EffectClaim(ctx, b.claimParams(lane, 4, -time.Second))
	require.NoError(t, err)
	require.Len(t, lost, 4)
	again, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, time.Minute))
	require.NoError(t, err)
	fresh, err := b.real.EffectClaim(ctx, b.claimParams(lane, 4, time.Minute))
	require.NoError(t, err)
	require.Len(t, fresh, 4)
	var settles []trigger.Settle
	runs := []string{"$lane", "", "{\"$literal\":1}", "run-3", "", "", "$$ROOT", "run-7"}
	for i, row := range append(lost, fresh...) {
		s := b.done(row)
		s.RunID = runs[i]
		settles = append(settles, s)
	}
	// The one that was claimed anew, by its new claim among the fresh ones.
	settles = append(settles, b.done(*again))
	stands, err := b.real.EffectSettleMany(ctx, settles[:8])
	require.NoError(t, err)
	for i, s := range settles[:8] {
		row := b.row(t, s.EffectID)
		if s.EffectID == again.ID {
			require.False(t, stands[i])
			require.Equal(t, trigger.StateClaimed, row.State)
			require.Equal(t, *again, *row, "nothing was written")
			continue
		}
		require.True(t, stands[i])
		require.Equal(t, trigger.StateDone, row.State)
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		require.Equal(t, runs[i], row.RunID)
		require.Equal(t, row.UpdatedAt, row.DoneAt)
	}
	stands, err = b.real.EffectSettleMany(ctx, settles[4:])
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, true, true}, stands, "again, and the one that is held")
}

func testW4Reclaim(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.materialize(t, effect(1, lane, b.real.Now()), effect(2, lane, b.real.Now()))
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 2, -time.Second))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	again, err := b.real.EffectClaim(ctx, b.claimParams(lane, 2, time.Minute))
	require.NoError(t, err)
	require.Empty(t, again, "expired claims are not claimed as a batch")
	one, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, time.Hour))
	require.NoError(t, err)
	require.Equal(t, 2, one.Attempts)
	other := rows[0]
	if other.ID == one.ID {
		other = rows[1]
	}
	require.Equal(t, 1, b.row(t, other.ID).Attempts, "the neighbour gained none")

	for attempt := 2; attempt <= trigger.AttemptsMax; attempt++ {
		got, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, -time.Second))
		require.NoError(t, err)
		require.Equal(t, other.ID, got.ID)
		require.Equal(t, attempt, got.Attempts)
	}
	parked, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, -time.Second))
	require.NoError(t, err)
	require.Equal(t, trigger.StateFailed, parked.State)
	require.Equal(t, trigger.ReasonLeaseExhausted, parked.Reason)
	require.Equal(t, trigger.AttemptsMax, parked.Attempts)
	none, err := b.real.EffectReclaim(ctx, b.claimParams(lane, 1, -time.Second))
	require.NoError(t, err)
	require.Nil(t, none)
}

func testW5Errors(t *testing.T, b *bundle) {
	b.materialize(t, effect(1, lane, b.real.Now()))
	for i := 1; i <= trigger.ErrorsKept+2; i++ {
		row := b.claimOne(t, lane, time.Minute)
		s := trigger.Settle{
			Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now(),
			Error: &trigger.AttemptError{At: b.real.Now(), Attempt: row.Attempts, Message: fmt.Sprint("e", i)},
		}
		if i == 1 {
			s.Rendered = "body"
		}
		require.True(t, b.settle(t, s))
	}
	row := b.row(t, effect(1, lane, b.real.Now()).ID)
	require.Len(t, row.Errors, trigger.ErrorsKept)
	require.Equal(t, "e7", row.Errors[4].Message)
	require.Equal(t, "e3", row.Errors[0].Message)
	require.Equal(t, "body", row.Rendered)
	require.Equal(t, 7, row.Attempts)

	// A hand-back takes its attempt with it.
	claimed := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now(), HandBack: true}))
	require.Equal(t, 7, b.row(t, row.ID).Attempts)
	claimed = b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	failed := b.row(t, row.ID)
	require.Equal(t, trigger.StateFailed, failed.State)
	require.Equal(t, trigger.ReasonPermanent, failed.Reason)
}

func testEffectList(t *testing.T, b *bundle) {
	ctx := t.Context()
	var want []string
	for i := range 25 {
		row := effect(i+1, lane, b.real.Now())
		b.materialize(t, row)
		want = append(want, row.ID)
	}
	var got []string
	after := ""
	for {
		page, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: trigger.EffectFilter{State: trigger.StatePending}, AfterID: after, Limit: 7})
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		for _, row := range page {
			got = append(got, row.ID)
		}
		after = got[len(got)-1]
	}
	require.Equal(t, want, got)
	none, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: trigger.EffectFilter{State: trigger.StateDone}, Limit: 7})
	require.NoError(t, err)
	require.Empty(t, none)
	none, err = b.real.EffectList(ctx, trigger.EffectListParams{TenantID: "acm", Limit: 7})
	require.NoError(t, err)
	require.Empty(t, none)
}

func testT1Many(t *testing.T, b *bundle) {
	ctx := t.Context()
	const subs, events = 60, 40
	for i := range subs {
		b.subscribe(t, fmt.Sprint("s", i), "bug")
	}
	var ids []string
	for i := range events {
		ids = append(ids, fmt.Sprint("c", i))
	}
	_, err := b.board.ChangeMany(ctx, tenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	inserts := 0
	b.setHook(func(op string) {
		if op == "EffectMaterialize" {
			inserts++
		}
	})
	b.drain(t)
	require.Equal(t, 3, inserts, "in bounded commands")
	rows, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, Limit: 10_000})
	require.NoError(t, err)
	require.Len(t, rows, subs*events)
}

func testNoBodies(t *testing.T, b *bundle) {
	row := effect(1, lane, b.real.Now())
	row.Plan, row.Rendered = &trigger.LaunchPlan{Body: "large"}, "large"
	b.materialize(t, row)
	byEvent, err := b.real.EffectListByEvent(t.Context(), tenant, trigger.EventID(tenant, 1))
	require.NoError(t, err)
	for _, rows := range [][]trigger.Effect{b.rows(t), byEvent} {
		require.Len(t, rows, 1)
		require.Nil(t, rows[0].Plan)
		require.Empty(t, rows[0].Rendered)
	}
	require.Equal(t, "large", b.row(t, row.ID).Plan.Body)
}
