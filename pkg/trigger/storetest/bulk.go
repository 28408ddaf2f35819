package storetest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// failures makes n failed rows.
func (b *bundle) failures(t *testing.T, n int) (rows []trigger.Effect) {
	t.Helper()
	for i := range n {
		row := effect(i+1, lane, b.real.Now().Add(-time.Second))
		row.State, row.Reason, row.Attempts = trigger.StateFailed, trigger.ReasonExhausted, 5
		rows = append(rows, row)
	}
	b.materialize(t, rows...)
	return rows
}

func (b *bundle) bulk(t *testing.T, action trigger.Action, state trigger.State) *trigger.Bulk {
	t.Helper()
	bulk, err := b.dead().BulkPrepare(t.Context(), trigger.BulkParams{
		TenantID: tenant, Action: action, Filter: trigger.EffectFilter{State: state}, By: "cli:mona", Note: "after the outage",
	})
	require.NoError(t, err)
	return bulk
}

func testBulkPrepare(t *testing.T, b *bundle) {
	ctx := t.Context()
	rows := b.failures(t, 5)
	b.in(t, 20, trigger.StateHeld)
	b.in(t, 21, trigger.StateFailed, func(e *trigger.Effect) { e.Kind = "teleport" })
	before := b.rows(t)
	bulk := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	require.Equal(t, before, b.rows(t), "nothing is touched")
	require.Len(t, bulk.Items, 5)
	require.False(t, bulk.More)
	for i, item := range bulk.Items {
		require.Equal(t, trigger.BulkItem{ID: rows[i].ID, UpdatedAt: b.row(t, rows[i].ID).UpdatedAt}, item)
	}
	got, err := b.dead().BulkGet(ctx, tenant, bulk.ID)
	require.NoError(t, err)
	require.Equal(t, bulk, got, "it is kept")

	// The digest is of these rows as they are, and of the action.
	again := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	require.Equal(t, bulk.Digest, again.Digest)
	require.NotEqual(t, bulk.ID, again.ID)
	require.NotEqual(t, bulk.Digest, b.bulk(t, trigger.ActionDiscard, trigger.StateFailed).Digest)
	b.decide(t, rows[2], trigger.ActionReplay)
	require.NotEqual(t, bulk.Digest, b.bulk(t, trigger.ActionReplay, trigger.StateFailed).Digest, "a row less")
	claimed := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	changed := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	require.Len(t, changed.Items, 5)
	require.NotEqual(t, bulk.Digest, changed.Digest, "the same rows, one of them written since")
	_, err = b.dead().BulkRun(ctx, tenant, bulk.ID, changed.Digest, time.Minute)
	require.ErrorIs(t, err, tracker.ErrConflict)
	_, err = b.dead().BulkRun(ctx, tenant, bulk.ID, "", time.Minute)
	require.ErrorIs(t, err, tracker.ErrConflict)

	for name, p := range map[string]trigger.BulkParams{
		"action": {Action: trigger.ActionForce, Filter: trigger.EffectFilter{State: trigger.StateReconcile}, By: "x"},
		"state":  {Action: trigger.ActionReplay, By: "x"},
		"by":     {Action: trigger.ActionReplay, Filter: trigger.EffectFilter{State: trigger.StateFailed}},
		"note":   {Action: trigger.ActionReplay, Filter: trigger.EffectFilter{State: trigger.StateFailed}, By: "x", Note: "\t"},
	} {
		p.TenantID = tenant
		_, err := b.dead().BulkPrepare(ctx, p)
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, name)
		require.Equal(t, name, fe.Field)
	}
	for _, c := range []struct {
		action trigger.Action
		state  trigger.State
	}{
		{trigger.ActionConfirm, trigger.StateReconcile},
		{trigger.ActionReplay, trigger.StateClaimed},
		{trigger.ActionRerun, trigger.StateFailed},
		{trigger.ActionRelease, trigger.StateReconcile},
	} {
		_, err := b.dead().BulkPrepare(ctx, trigger.BulkParams{TenantID: tenant, Action: c.action, Filter: trigger.EffectFilter{State: c.state}, By: "x"})
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, c)
	}
}

func testBulkJustThose(t *testing.T, b *bundle) {
	ctx := t.Context()
	rows := b.failures(t, 25)
	bulk := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	// One failed since, one was discarded, one was replayed and failed again.
	later := b.in(t, 100, trigger.StateFailed)
	gone := b.decide(t, rows[3], trigger.ActionDiscard)
	b.decide(t, rows[4], trigger.ActionReplay)
	claimed := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	again := b.row(t, rows[4].ID)

	got, err := b.dead().BulkRun(ctx, tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.True(t, got.Finished())
	require.Equal(t, 23, got.Applied)
	require.Equal(t, 2, got.Refused)
	kept, err := b.dead().BulkGet(ctx, tenant, bulk.ID)
	require.NoError(t, err)
	require.Equal(t, kept, got)
	require.Equal(t, &later, b.row(t, later.ID))
	require.Equal(t, &gone, b.row(t, gone.ID))
	require.Equal(t, again, b.row(t, again.ID))
	for i, row := range rows {
		if i == 3 || i == 4 {
			continue
		}
		after := b.row(t, row.ID)
		require.Equal(t, trigger.StatePending, after.State)
		require.Len(t, after.History, 1)
		require.Equal(t, "cli:mona", after.History[0].By)
		require.Equal(t, "after the outage", after.History[0].Note)
	}
	// Once more changes nothing.
	before := b.rows(t)
	_, err = b.dead().BulkRun(ctx, tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.Equal(t, before, b.rows(t))
}

func testBulkStop(t *testing.T, b *bundle) {
	ctx := t.Context()
	rows := b.failures(t, 40)
	bulk := b.bulk(t, trigger.ActionDiscard, trigger.StateFailed)
	decided := 0
	b.setHook(func(op string) {
		if op != "EffectDecide" {
			return
		}
		if decided++; decided == 15 {
			_, err := b.dead().BulkStop(ctx, tenant, bulk.ID)
			require.NoError(t, err)
		}
	})
	got, err := b.dead().BulkRun(ctx, tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.True(t, got.Stopped)
	require.False(t, got.Finished())
	discarded := 0
	for _, row := range rows {
		if b.row(t, row.ID).State == trigger.StateDiscarded {
			discarded++
		}
	}
	require.Equal(t, decided, discarded)
	require.Less(t, decided, 25, "within a page")
	require.Equal(t, discarded, got.Applied, "what was decided is counted, though it was stopped meanwhile")
	require.Equal(t, discarded, got.Next)
	// It does not go on.
	b.setHook(nil)
	before := b.rows(t)
	got, err = b.dead().BulkRun(ctx, tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.True(t, got.Stopped)
	require.Equal(t, before, b.rows(t))
	_, err = b.dead().BulkStop(ctx, tenant, "nobody")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}

// The process dies at each of its writes in turn; another goes on. Each row is
// decided about once, and counted once.
func testBulkCrash(t *testing.T, b *bundle) {
	const n = 12 // two pages
	for cut := 0; ; cut++ {
		var rows []trigger.Effect
		for i := range n {
			row := effect(1000*(cut+1)+i, lane, b.real.Now().Add(-time.Second))
			row.State, row.Reason = trigger.StateFailed, trigger.ReasonExhausted
			rows = append(rows, row)
		}
		b.setCut(nil)
		b.materialize(t, rows...)
		bulk := b.bulk(t, trigger.ActionDiscard, trigger.StateFailed)
		require.Len(t, bulk.Items, n)
		seen := 0
		b.setCut(dieAt(cut, &seen))
		_, err := b.dead().BulkRun(t.Context(), tenant, bulk.ID, bulk.Digest, 0)
		b.setCut(nil)
		if seen <= cut {
			require.NoError(t, err)
			require.Greater(t, cut, 2*n, "all its writes were cut")
			return
		}
		require.ErrorIs(t, err, errCut)
		got, err := b.dead().BulkRun(t.Context(), tenant, bulk.ID, bulk.Digest, 0)
		require.NoError(t, err)
		require.True(t, got.Finished())
		require.Equal(t, n, got.Applied, "cut %d", cut)
		require.Zero(t, got.Refused, "cut %d", cut)
		for _, row := range rows {
			after := b.row(t, row.ID)
			require.Equal(t, trigger.StateDiscarded, after.State)
			require.Len(t, after.History, 1, "cut %d", cut)
		}
	}
}

func testBulkRunners(t *testing.T, b *bundle) {
	rows := b.failures(t, 60)
	bulk := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			got, err := b.dead().BulkRun(t.Context(), tenant, bulk.ID, bulk.Digest, 0)
			if err != nil || !got.Finished() {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
	got, err := b.dead().BulkGet(t.Context(), tenant, bulk.ID)
	require.NoError(t, err)
	require.Equal(t, []string{tenant + " " + lane}, b.dueLanes(t))
	require.Equal(t, 60, got.Next)
	require.Equal(t, 60, got.Applied)
	require.Zero(t, got.Refused)
	for _, row := range rows {
		require.Len(t, b.row(t, row.ID).History, 1)
	}
}

func testBulkBudget(t *testing.T, b *bundle) {
	b.failures(t, 30)
	bulk := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	dead := b.dead()
	dead.BulkRate = 20
	began := time.Now()
	got, err := dead.BulkRun(t.Context(), tenant, bulk.ID, bulk.Digest, time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, 10, got.Next, "a page, and then the budget was over")
	require.GreaterOrEqual(t, time.Since(began), 400*time.Millisecond, "20 a second at most")
	// The caller goes: what was decided is counted.
	ctx, cancel := context.WithCancel(t.Context())
	decided := 0
	b.setHook(func(op string) {
		if op == "EffectDecide" {
			if decided++; decided == 3 {
				cancel()
			}
		}
	})
	got, err = dead.BulkRun(ctx, tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, got.Next, 12)
	require.LessOrEqual(t, got.Next, 13)
	b.setHook(nil)
	kept, err := b.dead().BulkGet(t.Context(), tenant, bulk.ID)
	require.NoError(t, err)
	require.Equal(t, got, kept)
	got, err = b.dead().BulkRun(t.Context(), tenant, bulk.ID, bulk.Digest, 0)
	require.NoError(t, err)
	require.Equal(t, 30, got.Applied)
}

func testBulkTenants(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.failures(t, 2)
	bulk := b.bulk(t, trigger.ActionReplay, trigger.StateFailed)
	before := b.rows(t)
	_, err := b.dead().BulkGet(ctx, "other", bulk.ID)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.dead().BulkRun(ctx, "other", bulk.ID, bulk.Digest, 0)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.dead().BulkStop(ctx, "other", bulk.ID)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	require.Equal(t, before, b.rows(t))
	theirs, err := b.dead().BulkPrepare(ctx, trigger.BulkParams{
		TenantID: "other", Action: trigger.ActionReplay, Filter: trigger.EffectFilter{State: trigger.StateFailed}, By: "x",
	})
	require.NoError(t, err)
	require.Empty(t, theirs.Items)
	got, err := b.dead().BulkRun(ctx, "other", theirs.ID, theirs.Digest, 0)
	require.NoError(t, err)
	require.True(t, got.Finished())
}

func testBulkMore(t *testing.T, b *bundle) {
	// The list is the store's; what is counted is how much of it is taken.
	dead := b.dead()
	dead.Outbox = &many{b.faults}
	bulk, err := dead.BulkPrepare(t.Context(), trigger.BulkParams{
		TenantID: tenant, Action: trigger.ActionReplay, Filter: trigger.EffectFilter{State: trigger.StateFailed}, By: "x",
	})
	require.NoError(t, err)
	require.True(t, bulk.More)
	require.Len(t, bulk.Items, trigger.BulkMax)
	got, err := dead.BulkGet(t.Context(), tenant, bulk.ID)
	require.NoError(t, err)
	require.Equal(t, bulk.Digest, trigger.BulkDigest(got.Action, got.Items), "a whole one fits into the store")
}

// many is an outbox with more failed rows than a bulk decision takes.
type many struct{ trigger.EffectOutbox }

func (*many) EffectList(_ context.Context, p trigger.EffectListParams) (rows []trigger.Effect, err error) {
	from := 0
	if p.AfterID != "" {
		seq, _, _ := strings.Cut(strings.TrimPrefix(p.AfterID, tenant+"/"), "|")
		if from, err = strconv.Atoi(seq); err != nil {
			return nil, errors.New("no such cursor")
		}
	}
	for n := from + 1; n <= trigger.BulkMax+20 && len(rows) < p.Limit; n++ {
		row := effect(n, lane, time.UnixMilli(int64(n)))
		row.State = trigger.StateFailed
		rows = append(rows, row)
	}
	return rows, nil
}

func testFilters(t *testing.T, b *bundle) {
	at := b.real.Now().Add(-time.Hour)
	row := func(n int, state trigger.State, sub, bot string, reason trigger.Reason, updated time.Time) {
		b.in(t, n, state, func(e *trigger.Effect) {
			e.SubscriptionID, e.BotID, e.Reason, e.UpdatedAt = sub, bot, reason, updated
		})
	}
	row(1, trigger.StateFailed, "s1", "b1", trigger.ReasonExhausted, at)
	row(2, trigger.StateFailed, "s1", "b2", trigger.ReasonPermanent, at.Add(time.Minute))
	row(3, trigger.StateFailed, "s2", "b1", trigger.ReasonExhausted, at.Add(2*time.Minute))
	row(4, trigger.StateHeld, "s2", "b1", "", at.Add(3*time.Minute))
	row(5, trigger.StatePending, "s1", "b1", "", at.Add(4*time.Minute))
	for name, c := range map[string]struct {
		f    trigger.EffectFilter
		want []int64
	}{
		"none":         {trigger.EffectFilter{}, []int64{1, 2, 3, 4, 5}},
		"state":        {trigger.EffectFilter{State: trigger.StateFailed}, []int64{1, 2, 3}},
		"subscription": {trigger.EffectFilter{SubscriptionID: "s1"}, []int64{1, 2, 5}},
		"bot":          {trigger.EffectFilter{BotID: "b1"}, []int64{1, 3, 4, 5}},
		"reason":       {trigger.EffectFilter{Reason: trigger.ReasonExhausted}, []int64{1, 3}},
		"before":       {trigger.EffectFilter{UpdatedBefore: at.Add(2 * time.Minute)}, []int64{1, 2}},
		"from":         {trigger.EffectFilter{UpdatedFrom: at.Add(2 * time.Minute)}, []int64{3, 4, 5}},
		"all": {trigger.EffectFilter{
			State: trigger.StateFailed, SubscriptionID: "s2", BotID: "b1", Reason: trigger.ReasonExhausted,
			UpdatedFrom: at.Add(time.Minute), UpdatedBefore: at.Add(time.Hour),
		}, []int64{3}},
		"nothing": {trigger.EffectFilter{State: trigger.StateFailed, BotID: "b9"}, nil},
	} {
		rows, err := b.real.EffectList(t.Context(), trigger.EffectListParams{TenantID: tenant, EffectFilter: c.f, Limit: 10})
		require.NoError(t, err)
		var got []int64
		for i := range rows {
			got = append(got, rows[i].EventSeq)
			require.True(t, c.f.Accepts(&rows[i]), "%s: the one filter is the other", name)
		}
		require.Equal(t, c.want, got, name)
	}
}

// A row that stays as it is is seen once, whatever becomes of the others
// between the pages.
func testPagesStable(t *testing.T, b *bundle) {
	const n = 30
	var changing []trigger.Effect
	for i := range n {
		if row := b.in(t, i+1, trigger.StateFailed); i%3 == 0 {
			changing = append(changing, row)
		}
	}
	seen := make(map[int64]int)
	for after := ""; ; {
		rows, err := b.real.EffectList(t.Context(), trigger.EffectListParams{
			TenantID: tenant, EffectFilter: trigger.EffectFilter{State: trigger.StateFailed}, AfterID: after, Limit: 4,
		})
		require.NoError(t, err)
		if len(rows) == 0 {
			break
		}
		for i := range rows {
			seen[rows[i].EventSeq]++
		}
		after = rows[len(rows)-1].ID
		if len(changing) > 1 { // from both ends
			last := len(changing) - 1
			b.decide(t, changing[0], trigger.ActionDiscard)
			b.decide(t, changing[last], trigger.ActionReplay)
			changing = changing[1:last]
		}
	}
	for i := range n {
		if i%3 != 0 {
			require.Equal(t, 1, seen[int64(i+1)], "row %d", i+1)
		} else {
			require.LessOrEqual(t, seen[int64(i+1)], 1, "row %d", i+1)
		}
	}
	require.Less(t, len(seen), n, "some went before their page came")
}
