package storetest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// lanesTests hold a store to finding work from the rows, and to what holds it
// up.
func lanesTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestLanes_LateOnesAreFoundFromTheRows": testLanesLate,
		"TestLanes_LateOfSeveralTenants":        testLanesLateTenants,
		"TestLanes_LateAmongMoreThanAThousand":  testLanesLateMany,
		"TestEffectsHeld":                       testEffectsHeld,
		"TestPauses":                            testPauseList,
	}
}

// lanesLate returns what LanesLate does, by tenant and lane.
func (b *bundle) lanesLate(t *testing.T) []trigger.LaneMark {
	t.Helper()
	marks, err := b.real.LanesLate(t.Context())
	require.NoError(t, err)
	slices.SortFunc(marks, func(a, b trigger.LaneMark) int {
		return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.Lane, b.Lane))
	})
	return marks
}

func (b *bundle) mark(t *testing.T, marks ...trigger.LaneMark) {
	t.Helper()
	require.NoError(t, b.real.LaneMarkMany(t.Context(), marks))
}

func testLanesLate(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	n := 0
	row := func(lane string, due time.Time, with ...func(*trigger.Effect)) {
		n++
		r := effect(n, lane, due)
		for _, f := range with {
			f(&r)
		}
		b.materialize(t, r)
	}
	claimed := func(r *trigger.Effect) { r.State, r.ClaimID = trigger.StateClaimed, uuid.NewString() }
	kind := func(k trigger.EffectKind) func(*trigger.Effect) { return func(r *trigger.Effect) { r.Kind = k } }
	mark := func(lane string, due time.Time) trigger.LaneMark {
		return trigger.LaneMark{TenantID: tenant, Lane: lane, Due: due}
	}
	require.Empty(t, b.lanesLate(t))

	// Lanes that are in order.
	row("in-order", at(10))
	row("in-order", at(20), claimed)
	b.mark(t, mark("in-order", at(10)))
	row("early", at(10))
	b.mark(t, mark("early", at(-10)))
	row("unknown", at(-10), kind("teleport"))
	row("unknown", at(-10), kind("teleport"), claimed)
	for _, state := range trigger.States() {
		if !state.Live() {
			row("over", at(-10), func(r *trigger.Effect) { r.State = state })
		}
	}
	b.mark(t, mark("no-rows", at(10)))
	require.Empty(t, b.lanesLate(t))

	row("a-absent", at(20))
	row("a-absent", at(5))
	row("a-absent", at(30), claimed)
	row("b-not-due", at(7), claimed)
	row("b-not-due", at(9))
	b.mark(t, mark("b-not-due", at(-100)))
	lanes, err := b.real.LanesDue(ctx, at(-50), 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1)
	ok, err := b.real.LaneReschedule(ctx, lanes[0], time.Time{})
	require.NoError(t, err)
	require.True(t, ok)
	row("c-later", at(8))
	row("c-later", at(9), claimed)
	b.mark(t, mark("c-later", at(8).Add(time.Millisecond)))
	row("d-later-claimed", at(8), claimed)
	for range 8 {
		row("d-later-claimed", at(9))
	}
	b.mark(t, mark("d-later-claimed", at(9)))
	row("e-absent-kind", at(8), kind(""))
	row("f-projection", at(8), kind(trigger.KindProjection))
	row(trigger.LaneEvents, at(8), kind(trigger.KindEvent))
	row("g-mixed", at(1), kind("teleport"))
	row("g-mixed", at(8))
	want := []trigger.LaneMark{
		mark("a-absent", at(5)), mark("b-not-due", at(7)), mark("c-later", at(8)), mark("d-later-claimed", at(8)),
		mark("e-absent-kind", at(8)), mark(trigger.LaneEvents, at(8)), mark("f-projection", at(8)), mark("g-mixed", at(8)),
	}
	require.Equal(t, want, b.lanesLate(t))
	require.Equal(t, want, b.lanesLate(t), "it marks nothing itself")
	b.mark(t, want...)
	require.Empty(t, b.lanesLate(t), "that is all they lacked")
}

func testLanesLateTenants(t *testing.T, b *bundle) {
	now := b.real.Now()
	var want []trigger.LaneMark
	for i, tn := range []string{"acme", "acme-two", "zeta"} {
		for j, ln := range []string{"bot:a", "bot:b"} {
			row := effect(j+1, ln, now.Add(time.Duration(i)*time.Second))
			row.TenantID, row.ID = tn, fmt.Sprintf("%s/%012d|s1", tn, j+1)
			_, err := b.real.EffectMaterialize(t.Context(), tn, []trigger.Effect{row})
			require.NoError(t, err)
			m := trigger.LaneMark{TenantID: tn, Lane: ln, Due: row.NotBefore}
			if tn == "acme-two" && ln == "bot:a" {
				b.mark(t, m) // the others' lanes of this name are not it
			} else {
				want = append(want, m)
			}
		}
	}
	require.Equal(t, want, b.lanesLate(t))
}

func testLanesLateMany(t *testing.T, b *bundle) {
	now := b.real.Now()
	const lanes = 2050 // of which a store may look up a thousand at a time
	rows, marks := make([]trigger.Effect, lanes), make([]trigger.LaneMark, 0, lanes)
	var want []trigger.LaneMark
	for i := range rows {
		rows[i] = effect(i+1, fmt.Sprintf("bot:%04d", i), now)
		m := trigger.LaneMark{TenantID: tenant, Lane: rows[i].Lane, Due: now}
		if i%683 == 500 {
			want = append(want, m)
		} else {
			marks = append(marks, m)
		}
	}
	b.materialize(t, rows...)
	b.mark(t, marks...)
	require.Len(t, want, 3)
	require.Equal(t, want, b.lanesLate(t))
}

func testEffectsHeld(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	for i, state := range trigger.States() {
		row := inState(i+1, state, now)
		row.SubscriptionID = "s-" + string(state)
		b.materialize(t, row)
	}
	held := func(n int, sub string) {
		for _, tn := range []string{tenant, "other"} {
			row := inState(n, trigger.StateHeld, now)
			row.TenantID, row.SubscriptionID, row.ID = tn, sub, fmt.Sprintf("%s/%012d|%s", tn, n, sub)
			_, err := b.real.EffectMaterialize(ctx, tn, []trigger.Effect{row})
			require.NoError(t, err)
		}
	}
	held(20, "s1")
	held(21, "s1")
	held(22, "s2")
	all := []trigger.SubscriptionKey{
		{TenantID: tenant, SubscriptionID: "s-held"},
		{TenantID: tenant, SubscriptionID: "s1"},
		{TenantID: tenant, SubscriptionID: "s2"},
		{TenantID: "other", SubscriptionID: "s1"},
		{TenantID: "other", SubscriptionID: "s2"},
	}
	found, err := b.real.EffectsHeld(ctx, trigger.SubscriptionKey{}, 100)
	require.NoError(t, err)
	require.Equal(t, all, found)
	var paged []trigger.SubscriptionKey
	for after := (trigger.SubscriptionKey{}); ; {
		page, err := b.real.EffectsHeld(ctx, after, 2)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 2)
		paged, after = append(paged, page...), page[len(page)-1]
	}
	require.Equal(t, all, paged)
}

func testPauseList(t *testing.T, b *bundle) {
	ctx := t.Context()
	list := func() []trigger.Pause {
		t.Helper()
		found, err := b.real.PauseList(ctx)
		require.NoError(t, err)
		return found
	}
	require.Empty(t, list())
	at := b.real.Now()
	fleet, whole, bot, twin := trigger.Pause{By: "mona", At: at}, trigger.Pause{TenantID: tenant, By: "mona", Note: "why", At: at},
		trigger.Pause{TenantID: tenant, BotID: "bot1", By: "mona", At: at}, trigger.Pause{TenantID: "acme-two", BotID: "bot1", By: "mona", At: at}
	for _, p := range []trigger.Pause{twin, bot, whole, fleet} {
		require.NoError(t, b.real.PauseSet(ctx, p))
		p.By, p.Note, p.At = "hubot", "later", at.Add(time.Minute)
		require.NoError(t, b.real.PauseSet(ctx, p), "set twice it keeps the first")
	}
	require.Equal(t, []trigger.Pause{fleet, whole, bot, twin}, list())

	resume := func(tenantID, botID string) bool {
		t.Helper()
		was, err := b.real.PauseClear(ctx, tenantID, botID)
		require.NoError(t, err)
		return was
	}
	require.False(t, resume(tenant, "bot2"))
	require.False(t, resume("other", ""))
	require.True(t, resume(tenant, ""))
	require.False(t, resume(tenant, ""))
	require.Equal(t, []trigger.Pause{fleet, bot, twin}, list(), "the bot's own pause is another")
	require.True(t, resume("", ""))
	require.True(t, resume(tenant, "bot1"))
	require.Equal(t, []trigger.Pause{twin}, list())
	whole.By = "hubot"
	require.NoError(t, b.real.PauseSet(ctx, whole), "cleared it can be set again")
	require.Equal(t, []trigger.Pause{whole, twin}, list())
}

func testLanes(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	mark := func(lane string, at time.Time) {
		require.NoError(t, b.real.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: lane, Due: at}}))
	}
	due := func() (out []string) {
		lanes, err := b.real.LanesDue(ctx, now, 10)
		require.NoError(t, err)
		for _, l := range lanes {
			out = append(out, l.Lane)
		}
		return out
	}
	require.NoError(t, b.real.LaneMarkMany(ctx, nil))
	mark("a", now.Add(-time.Second))
	mark("b", now.Add(-time.Minute))
	mark("c", now.Add(time.Minute))
	require.Equal(t, []string{"b", "a"}, due(), "longest due first")
	lanes, err := b.real.LanesDue(ctx, now, 1)
	require.NoError(t, err)
	require.Len(t, lanes, 1)

	mark("c", now)
	require.Equal(t, []string{"b", "a", "c"}, due(), "a mark brings forward")
	mark("c", now.Add(time.Hour))
	require.Len(t, due(), 3, "and never back")

	lanes, err = b.real.LanesDue(ctx, now, 10)
	require.NoError(t, err)
	mark("a", now)
	ok, err := b.real.LaneReschedule(ctx, lanes[1], time.Time{})
	require.NoError(t, err)
	require.False(t, ok, "a mark since the lane was read wins")
	ok, err = b.real.LaneReschedule(ctx, lanes[0], now.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = b.real.LaneReschedule(ctx, lanes[2], time.Time{})
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []string{"a"}, due())
	mark("c", now)
	require.Len(t, due(), 2, "a cleared lane can be marked again")

	// Many upserts of new lanes at once.
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for i := range 5 {
				if err := b.real.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: fmt.Sprint("new", i), Due: now}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	lanes, err = b.real.LanesDue(ctx, now, 100)
	require.NoError(t, err)
	n := 0
	for _, l := range lanes {
		if strings.HasPrefix(l.Lane, "new") {
			n++
			require.EqualValues(t, 6, l.Version, l.Lane)
		}
	}
	require.Equal(t, 5, n)
}

func testW9Fair(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "docs", func(s *trigger.Subscription) { s.BotID = "bot2" })
	for i := range 30 {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	b.create(t, "other", "open", "docs")
	b.relayed(t, "other")
	b.drain(t)
	// One slot that becomes free again and again: it is shared.
	settled := make(chan string, 100)
	worker := &trigger.EffectWorker{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.real, Name: "w", Slots: 1, Poll: 5 * time.Millisecond,
		Settled: func(row trigger.Effect, _ trigger.Settle) { settled <- row.BotID },
	}
	require.NoError(t, worker.Start(ctx))
	defer worker.Stop()
	for n := 1; ; n++ {
		if <-settled == "bot2" {
			require.Less(t, n, 10, "not behind the other lane's backlog")
			return
		}
	}
}

// stopsWithin stops the worker while a claim is under way.
type stopsWithin struct {
	*faults
	claimed chan struct{}
	goOn    chan struct{}
}

func (s stopsWithin) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	rows, err := s.faults.EffectClaim(ctx, p)
	if len(rows) > 0 {
		close(s.claimed)
		<-s.goOn
		if ctx.Err() != nil {
			return nil, ctx.Err() // a store whose read-back was cut
		}
	}
	return rows, err
}

func testW10Claim(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	for i := range 3 {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	b.drain(t)
	outbox := stopsWithin{b.faults, make(chan struct{}), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	worker := &trigger.EffectWorker{Outbox: outbox, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.real, Name: "w"}
	require.NoError(t, worker.Start(ctx))
	<-outbox.claimed
	cancel()
	close(outbox.goOn)
	worker.Stop()
	for _, row := range b.rows(t) {
		require.Equal(t, trigger.StatePending, row.State, "handed back")
		require.Zero(t, row.Attempts, "no attempt added")
	}
	require.Empty(t, b.launches.all())
}
