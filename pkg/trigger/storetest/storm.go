package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func stormTests() map[string]func(*testing.T, *bundle) {
	tests := map[string]func(*testing.T, *bundle){
		"TestStorm_CountsInEventTime":            testStormEventTime,
		"TestStorm_ABulkCountsOnce":              testStormBulk,
		"TestStorm_ZeroTurnsItOff":               testStormOff,
		"TestStorm_CutRowsDoNotCount":            testStormCut,
		"TestStorm_OthersAreLeftAlone":           testStormOthers,
		"TestStorm_ReplicasTakeTurns":            testStormTurns,
		"TestStorm_CostsNothingFarFromTheLimit":  testStormCost,
		"TestStorm_HeldRowsOfOtherReplicas":      testStormHeldTurns,
		"TestStorm_RangeOfAnEditedSubscription":  testStormRangeEdited,
		"TestStorm_RangeThatCannotBeEvaluated":   testStormRangeFails,
		"TestW7_HeldRowHoldsUpNobody":            testW7Held,
		"TestStorm_TwoReplicasAtOnce":            testStormAtOnce,
		"TestStorm_EditedMeanwhile":              testStormEdited,
		"TestStorm_ResumeCountsAnew":             testStormResume,
		"TestStorm_HeldRowsAreBounded":           testStormHeld,
		"TestStorm_RangeIsMatchedOnce":           testStormRangeOnce,
		"TestStorm_DiscardGivesUpWhatIsHeld":     testStormDiscard,
		"TestStorm_DiscardGoesOnAfterACrash":     testStormDiscardCrash,
		"TestStorm_RangeOlderThanTheLogIsTold":   testStormGone,
		"TestStorm_PausedAgainWhileItIsReleased": testStormPausedAgain,
		"TestStorm_MatchesAndHeldRowsOfAStore":   testStormStore,
	}
	for _, batch := range []int{1, 7, 500} {
		tests[fmt.Sprint("TestStorm_OneTooManyPauses/batch ", batch)] = func(t *testing.T, b *bundle) { testStormPauses(t, b, batch) }
		tests[fmt.Sprint("TestStorm_CrashAtEveryWrite/batch ", batch)] = func(t *testing.T, b *bundle) { testStormCrash(t, b, batch) }
	}
	return tests
}

func perMinute(n int) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) { s.MaxPerMinute = &n }
}

// noon is the event time that storms begin at: the beginning of a minute.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// storm logs the events of cards that come to carry the label, one after every
// step from a time on, and returns their seqs.
func (b *bundle) storm(t *testing.T, n int, from time.Time, step time.Duration, with ...func(i int, e *trigger.Event)) []int64 {
	t.Helper()
	first, err := b.allocate(t.Context(), tenant, n)
	require.NoError(t, err)
	var events []trigger.Event
	var seqs []int64
	for i := range n {
		seq := first + int64(i)
		e := trigger.Event{TenantID: tenant, Seq: seq, Source: trigger.SourceBoard}
		e.BoardEvent = tracker.BoardEvent{
			EID: fmt.Sprint("board:storm-", seq), Kind: tracker.KindCreated, BoardID: "b1", CardID: fmt.Sprint("c", seq), CardRev: 1,
			At: from.Add(time.Duration(i) * step), Actor: human, ToColumn: "open",
			After: &tracker.Snapshot{Incarnation: "i", Rev: 1, BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}},
		}
		for _, f := range with {
			f(i, &e)
		}
		events, seqs = append(events, e), append(seqs, seq)
	}
	require.NoError(t, b.real.EventInsertMany(t.Context(), tenant, events))
	return seqs
}

// statesOf counts a subscription's rows by their states.
func (b *bundle) statesOf(t *testing.T, id string) map[trigger.State]int {
	t.Helper()
	out := make(map[trigger.State]int)
	for after := ""; ; {
		rows, err := b.real.EffectList(t.Context(), trigger.EffectListParams{TenantID: tenant, EffectFilter: trigger.EffectFilter{SubscriptionID: id}, AfterID: after, Limit: 500})
		require.NoError(t, err)
		for _, r := range rows {
			out[r.State]++
			after = r.ID
		}
		if len(rows) < 500 {
			return out
		}
	}
}

type states = map[trigger.State]int

// byGuard holds a subscription to have been paused by the guard.
func (b *bundle) byGuard(t *testing.T, id string, limit int, minute string) {
	t.Helper()
	s := b.sub(t, id)
	require.True(t, s.Paused)
	require.Equal(t, trigger.StormGuard, s.PausedBy)
	require.Equal(t, fmt.Sprintf("%d matches in the minute %s, max_per_minute is %d", limit+1, minute, limit), s.PausedWhy)
}

// laneSweep is what a replica does every 5 s.
func (b *bundle) laneSweep(t *testing.T) {
	t.Helper()
	s := &trigger.LaneSweeper{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Config: b.faults, Clock: b.faults, Logger: zerolog.Nop(), Matcher: b.tail,
	}
	require.NoError(t, s.Sweep(t.Context()))
}

func testStormPauses(t *testing.T, b *bundle, batch int) {
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.tail.Batch = batch
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "docs")
	b.storm(t, 100, noon, 100*time.Millisecond)
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused, "100 are not too many")
	b.storm(t, 1, noon.Add(59*time.Second), 0)
	b.drain(t)
	b.byGuard(t, "s1", 100, "2026-11-30T12:00Z")
	require.False(t, b.sub(t, "s2").Paused)
	require.Equal(t, states{trigger.StatePending: 100, trigger.StateHeld: 1}, b.statesOf(t, "s1"))
	b.storm(t, 20, noon.Add(time.Hour), time.Second)
	b.drain(t)
	require.Equal(t, states{trigger.StatePending: 100, trigger.StateHeld: 21}, b.statesOf(t, "s1"), "what matches meanwhile is held")
	require.Equal(t, 1, strings.Count(log.String(), "storm guard: subscription paused"))
	require.Contains(t, log.String(), `"level":"warn"`)
	require.EqualValues(t, 1, b.tail.Storms())

	// The same in one go.
	b.subscribe(t, "s3", "bug", func(s *trigger.Subscription) { s.ActiveFromSeq = 121 })
	b.storm(t, 120, noon.Add(2*time.Hour), 100*time.Millisecond)
	b.drain(t)
	b.byGuard(t, "s3", 100, "2026-11-30T14:00Z")
	require.Equal(t, states{trigger.StatePending: 100, trigger.StateHeld: 20}, b.statesOf(t, "s3"))
}

// The process dies at each write of a batch in turn, and another one goes on:
// it pauses for the same reason, and every match has its row.
func testStormCrash(t *testing.T, b *bundle, batch int) {
	const limit, n = 10, 15
	for cuts := 0; ; cuts++ {
		id := fmt.Sprint("s", cuts)
		head, err := b.real.HeadGet(t.Context(), tenant)
		if err == nil {
			b.subscribe(t, id, "bug", perMinute(limit), func(s *trigger.Subscription) { s.ActiveFromSeq = head.Seq })
		} else {
			b.subscribe(t, id, "bug", perMinute(limit))
		}
		minute := noon.Add(time.Duration(cuts) * time.Minute)
		b.storm(t, n, minute, time.Second)
		first := newBundle(t, b.real)
		first.tail.Batch = batch
		seen := 0
		first.setCut(dieAt(cuts, &seen))
		for {
			d, err := first.tail.Drain(t.Context(), tenant)
			if err != nil || !d.Moved && !d.More {
				break
			}
		}
		second := newBundle(t, b.real)
		second.tail.Batch = batch
		second.drain(t)
		b.byGuard(t, id, limit, minute.Format("2006-01-02T15:04Z"))
		got := b.statesOf(t, id)
		require.Equal(t, n, got[trigger.StatePending]+got[trigger.StateHeld], "cut %d: %v", cuts, got)
		require.LessOrEqual(t, got[trigger.StatePending], limit)
		require.GreaterOrEqual(t, got[trigger.StateHeld], n-limit)
		// What the others of before hold does not matter here.
		s := b.sub(t, id)
		s.Enabled, s.Revision = false, s.Revision+1
		require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
		if seen <= cuts {
			require.Greater(t, cuts, 5)
			return
		}
	}
}

func testStormEventTime(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(10))
	// Ten at the end of a minute and ten at the beginning of the next.
	b.storm(t, 20, noon.Add(50*time.Second), time.Second)
	// A day's worth, slowly, all in the log at once.
	b.storm(t, 300, noon.Add(time.Hour), 6*time.Second)
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused)
	// One that was on its way for an hour belongs to the minute that it is of.
	b.storm(t, 1, noon.Add(30*time.Minute), 0)
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused)
	b.storm(t, 1, noon.Add(5*time.Second), 0)
	b.drain(t)
	b.byGuard(t, "s1", 10, "2026-11-30T12:00Z")
}

func testStormBulk(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(2))
	bulk := func(name string) func(int, *trigger.Event) {
		return func(_ int, e *trigger.Event) { e.Bulk = name }
	}
	b.storm(t, 500, noon, 0, bulk("one"))
	b.drain(t)
	b.storm(t, 20, noon, time.Second, bulk("two"))
	b.tail = newBundle(t, b.real).tail // it has to ask the store
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused)
	b.storm(t, 1, noon, 0)
	b.drain(t)
	b.byGuard(t, "s1", 2, "2026-11-30T12:00Z")

	// A call of the board is one, and only the one.
	ids := []string{"x1", "x2", "x3"}
	changed, err := b.board.ChangeMany(t.Context(), tenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: "t"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	again, err := b.board.ChangeMany(t.Context(), tenant, ids, retitle("u"))
	require.NoError(t, err)
	require.NotEmpty(t, changed[0].Event.Bulk)
	require.Equal(t, changed[0].Event.Bulk, changed[2].Event.Bulk)
	require.NotEqual(t, changed[0].Event.Bulk, again[0].Event.Bulk)
	require.Empty(t, b.change(t, "x1", retitle("v")).Event.Bulk)
	events := b.events(t)
	require.Equal(t, again[2].Event.Bulk, events[len(events)-1].Bulk, "it is kept in the log")
}

func testStormOff(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(0))
	b.storm(t, 300, noon, 0)
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused)
	require.Equal(t, states{trigger.StatePending: 300}, b.statesOf(t, "s1"))
}

func testStormCut(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(5))
	b.storm(t, 20, noon, time.Second, func(i int, e *trigger.Event) {
		if i >= 5 {
			e.Cause = chain("s1", e.CardID)
		}
	})
	b.drain(t)
	b.tail = newBundle(t, b.real).tail
	b.storm(t, 1, noon, time.Second, func(_ int, e *trigger.Event) { e.Cause = chain("s1", e.CardID) })
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused, "what was cut launches nothing")
	b.storm(t, 1, noon, 0)
	b.drain(t)
	b.byGuard(t, "s1", 5, "2026-11-30T12:00Z")
}

func testStormOthers(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(5))
	b.subscribe(t, "s2", "bug", perMinute(50))
	b.storm(t, 20, noon, time.Second)
	b.drain(t)
	b.byGuard(t, "s1", 5, "2026-11-30T12:00Z")
	require.False(t, b.sub(t, "s2").Paused)
	require.Equal(t, states{trigger.StatePending: 5, trigger.StateHeld: 15}, b.statesOf(t, "s1"))
	require.Equal(t, states{trigger.StatePending: 20}, b.statesOf(t, "s2"))
}

// Two replicas drain in turns: neither sees all matches itself.
func testStormTurns(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(10))
	tails := []*trigger.Tail{b.tail, newBundle(t, b.real).tail, nil}
	for i := range 11 {
		require.False(t, b.sub(t, "s1").Paused, "after %d", i)
		b.storm(t, 1, noon, 0)
		tails[2] = newBundle(t, b.real).tail // one that has just started
		b.tail = tails[i%3]
		b.drain(t)
	}
	b.byGuard(t, "s1", 10, "2026-11-30T12:00Z")
	require.Equal(t, states{trigger.StatePending: 10, trigger.StateHeld: 1}, b.statesOf(t, "s1"))
}

// Another replica drains the same batch, between this one's matching and its
// pause.
func testStormAtOnce(t *testing.T, b *bundle) {
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	other := newBundle(t, b.real)
	other.tail = other.newTail(&log)
	b.subscribe(t, "s1", "bug", perMinute(10))
	b.storm(t, 15, noon, 0)
	ran := false
	b.setHook(func(op string) {
		if op == "SubscriptionSave" && !ran {
			ran = true
			other.drain(t)
		}
	})
	b.drain(t)
	require.True(t, ran)
	b.byGuard(t, "s1", 10, "2026-11-30T12:00Z")
	require.EqualValues(t, 2, b.sub(t, "s1").Revision, "paused once")
	require.Equal(t, 1, strings.Count(log.String(), "subscription paused"))
	require.EqualValues(t, 1, b.tail.Storms()+other.tail.Storms())
	require.Equal(t, states{trigger.StatePending: 10, trigger.StateHeld: 5}, b.statesOf(t, "s1"))

	// A resume in between stands: what the slow one saw is not counted again.
	b.setHook(nil)
	resumed := false
	slow := newBundle(t, b.real)
	slow.setHook(func(op string) {
		if op == "EffectMaterialize" && !resumed {
			resumed = true
			other.drain(t)
			_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
			require.NoError(t, err)
		}
	})
	b.storm(t, 15, noon, 0)
	slow.drain(t)
	require.True(t, resumed)
	require.False(t, b.sub(t, "s1").Paused)
}

func testStormEdited(t *testing.T, b *bundle) {
	sub := b.subscribe(t, "s1", "bug", perMinute(10))
	b.storm(t, 15, noon, 0)
	edited := false
	b.setHook(func(op string) {
		if op == "SubscriptionSave" && !edited {
			edited = true
			more := 20
			sub.MaxPerMinute, sub.Revision = &more, sub.Revision+1
			require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
		}
	})
	b.drain(t)
	require.True(t, edited)
	got := b.sub(t, "s1")
	require.False(t, got.Paused, "the edit decides")
	require.Equal(t, 20, *got.MaxPerMinute)
	require.Equal(t, states{trigger.StatePending: 15}, b.statesOf(t, "s1"))
}

func testStormResume(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(10))
	b.storm(t, 30, noon, 0)
	b.drain(t)
	b.byGuard(t, "s1", 10, "2026-11-30T12:00Z")
	b.storm(t, 30, noon, 0) // not drained yet
	_, n, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 20, n)
	require.Equal(t, states{trigger.StatePending: 30}, b.statesOf(t, "s1"))
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused, "neither what was released nor what was there counts")
	require.Equal(t, states{trigger.StatePending: 60}, b.statesOf(t, "s1"))
	b.storm(t, 20, noon, 0, unlabeled)
	b.drain(t)
	b.tail = newBundle(t, b.real).tail // it has to ask the store
	b.storm(t, 10, noon, 0)
	b.drain(t)
	require.False(t, b.sub(t, "s1").Paused)
	b.storm(t, 1, noon, 0)
	b.drain(t)
	b.byGuard(t, "s1", 10, "2026-11-30T12:00Z")

	// After a person's pause too, where the tail remembers.
	b.subscribe(t, "s2", "bug", perMinute(10), func(s *trigger.Subscription) { s.ActiveFromSeq = b.events(t)[len(b.events(t))-1].Seq })
	b.storm(t, 10, noon, 0)
	b.drain(t)
	_, err = b.dead().SubscriptionPause(t.Context(), tenant, "s2", "cli:mona", "")
	require.NoError(t, err)
	_, _, err = b.dead().SubscriptionResume(t.Context(), tenant, "s2", "cli:mona")
	require.NoError(t, err)
	b.storm(t, 10, noon, 0)
	b.drain(t)
	require.False(t, b.sub(t, "s2").Paused)
}

func unlabeled(_ int, e *trigger.Event) { e.After.Labels = nil }

// asking counts what the guard asks the store.
type asking struct {
	trigger.EffectOutbox
	n int
}

func (a *asking) EffectMatches(ctx context.Context, p trigger.MatchesParams) ([]trigger.Match, error) {
	a.n++
	return a.EffectOutbox.EffectMatches(ctx, p)
}

// A tail that drains a tenant by itself asks the store once for each
// subscription, and one that is far from its limit never.
func testStormCost(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", perMinute(10))
	b.subscribe(t, "s2", "bug")
	b.storm(t, 50, noon, 0, unlabeled)
	b.drain(t)
	outbox := &asking{EffectOutbox: b.faults}
	b.tail = newBundle(t, b.real).tail
	b.tail.Outbox = outbox
	for i := range 20 {
		b.storm(t, 2, noon.Add(time.Duration(i)*20*time.Second), 0)
		b.drain(t)
	}
	require.Equal(t, 1, outbox.n)
	require.False(t, b.sub(t, "s1").Paused)
}
