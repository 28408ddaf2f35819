package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// Of what is held, another replica's rows count.
func testStormHeldTurns(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	_, err := b.dead().SubscriptionPause(t.Context(), tenant, "s1", "cli:mona", "")
	require.NoError(t, err)
	tails := []*trigger.Tail{b.tail, newBundle(t, b.real).tail, newBundle(t, b.real).tail}
	for _, b.tail = range tails {
		b.tail.HeldMax = 8
		b.storm(t, 3, noon, 0)
		b.drain(t)
	}
	require.Equal(t, states{trigger.StateHeld: 8}, b.statesOf(t, "s1"), "a person's pause holds no more either")
	require.EqualValues(t, 9, b.sub(t, "s1").Guard.HeldFrom)
}

// A held row is not live: one that ranks behind it goes on, and takes the label.
func testW7Held(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "first", "ship-it", oneShot("ship-it"))
	b.subscribe(t, "second", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 5 })
	_, err := b.dead().SubscriptionPause(t.Context(), tenant, "first", "cli:mona", "")
	require.NoError(t, err)
	b.fresh(t, "c1", "ship-it")
	b.drain(t)
	held, taker := trigger.EffectID(trigger.EventID(tenant, 1), "first"), trigger.EffectID(trigger.EventID(tenant, 1), "second")
	require.Equal(t, trigger.StateHeld, b.row(t, held).State)
	require.Equal(t, trigger.OutcomeLaunched, b.runs(t, taker).Outcome)
	_, n, err := b.dead().SubscriptionResume(t.Context(), tenant, "first", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, trigger.OutcomeOneShotSpent, b.runs(t, held).Outcome)
	got := b.explained(t, "c1", "first", trigger.AnswerOneShotSpent, "second")
	require.Equal(t, taker, got.Taker.EffectID)
}

// What the range owes is what the subscription owes now.
func testStormRangeEdited(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	resumed := func() *trigger.Subscription {
		s, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
		require.NoError(t, err)
		return s
	}
	s := resumed()
	s.ActiveFromSeq, s.Revision = 20, s.Revision+1 // disabled and enabled again
	require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 13 + 13}, b.statesOf(t, "s1"))
	s = b.sub(t, "s1")
	s.Enabled, s.ActiveFromSeq, s.Guard.HeldFrom, s.Revision = false, 0, 14, s.Revision+1
	require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 26}, b.statesOf(t, "s1"), "one that is disabled owes nothing")
	require.Zero(t, b.sub(t, "s1").Guard.HeldFrom)
}

// An evaluation of the range that fails is no more silently false than another:
// what was left had matched, and made no poison row.
func testStormRangeFails(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	b.edit(t, "s1", when(`card.labels[1] == "docs"`))
	_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.laneSweep(t)
	require.Zero(t, b.sub(t, "s1").Guard.HeldFrom)
	poison := 0
	for _, row := range b.rows(t) {
		if row.Kind == trigger.KindEvent {
			poison++
			require.Equal(t, "subscription s1: when: index out of bounds: 1", row.Errors[0].Message)
		}
	}
	require.Equal(t, 33-13, poison)
	// Mended, they are matched when they are replayed.
	b.edit(t, "s1", when(`"bug" in card.labels`))
	id := trigger.EventID(tenant, 20)
	require.Equal(t, trigger.OutcomeMatched, b.runs(t, trigger.PoisonID(id)).Outcome)
	b.row(t, trigger.EffectID(id, "s1"))
}

// heldBeyond brings s1 to hold 8 rows, and to have left more.
func (b *bundle) heldBeyond(t *testing.T) {
	t.Helper()
	b.tail.HeldMax = 8
	b.tail.Batch = 10
	b.subscribe(t, "s1", "bug", perMinute(5))
	b.storm(t, 30, noon, time.Second)
	b.drain(t)
	require.Equal(t, states{trigger.StatePending: 5, trigger.StateHeld: 8}, b.statesOf(t, "s1"))
	s := b.sub(t, "s1")
	require.EqualValues(t, 14, s.Guard.HeldFrom)
	require.Equal(t, []string{"held"}, s.Requires, "a version that does not know of it would lose it")
	b.tail = newBundle(t, b.real).tail
	b.storm(t, 3, noon.Add(time.Hour), time.Second)
	b.drain(t)
	require.Equal(t, states{trigger.StatePending: 5, trigger.StateHeld: 8}, b.statesOf(t, "s1"))
	require.Equal(t, s.Revision, b.sub(t, "s1").Revision, "the range needs no write for each batch")
}

func testStormHeld(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	behind, err := b.real.SubscriptionsBehind(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, behind, "it is paused")
	_, err = b.tail.MatchHeld(t.Context(), trigger.SubscriptionKey{TenantID: tenant, SubscriptionID: "s1"})
	require.NoError(t, err)
	require.Equal(t, states{trigger.StatePending: 5, trigger.StateHeld: 8}, b.statesOf(t, "s1"), "it is paused")
	_, n, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 8, n)
	b.tail.Batch = 4 // several pages
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 33}, b.statesOf(t, "s1"), "each once")
	require.Empty(t, b.lateLanes(t))
	s := b.sub(t, "s1")
	require.False(t, s.Paused)
	require.Zero(t, s.Guard.HeldFrom)
	require.Empty(t, s.Requires)
	left, err := b.real.SubscriptionsBehind(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, left)
	// And on it goes.
	b.storm(t, 2, noon, 0)
	b.drain(t)
	require.Equal(t, states{trigger.StatePending: 35}, b.statesOf(t, "s1"))
}

// Rows that are there already, in whatever state, stay as they are; a crash at
// any write, and another replica that does the same, make none twice.
func testStormRangeOnce(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	key := trigger.SubscriptionKey{TenantID: tenant, SubscriptionID: "s1"}
	for _, point := range []string{
		"EventList:before", "EffectMaterialize:before", "EffectMaterialize:after", "LaneMarkMany:before", "SubscriptionSave:before",
	} {
		b.tail = b.newTail(&bytes.Buffer{})
		b.setCut(failOnce(point))
		_, err := b.tail.MatchHeld(t.Context(), key)
		require.ErrorIs(t, err, errCut, point)
		require.EqualValues(t, 14, b.sub(t, "s1").Guard.HeldFrom, point)
	}
	b.setCut(nil)
	require.Equal(t, states{trigger.StatePending: 33}, b.statesOf(t, "s1"))
	done := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, b.done(done)))
	ran := false
	b.setHook(func(op string) {
		if op == "SubscriptionSave" && !ran {
			ran = true
			_, err := newBundle(t, b.real).tail.MatchHeld(t.Context(), key)
			require.NoError(t, err)
		}
	})
	b.laneSweep(t)
	require.True(t, ran)
	require.Equal(t, states{trigger.StatePending: 32, trigger.StateDone: 1}, b.statesOf(t, "s1"))
	require.Zero(t, b.sub(t, "s1").Guard.HeldFrom)
}

func testStormDiscard(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	late := b.in(t, 4000, trigger.StateHeld) // matched while it is discarded
	s, n, err := b.dead().SubscriptionDiscard(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.False(t, s.Paused)
	require.Equal(t, trigger.StatePending, b.row(t, late.ID).State)
	b.storm(t, 2, noon, 0)
	b.drain(t)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 8, trigger.StateDiscarded: 8}, b.statesOf(t, "s1"), "what comes after counts")
	require.Zero(t, b.sub(t, "s1").Guard.HeldFrom)
	// A later pause holds and releases as ever.
	_, err = b.dead().SubscriptionPause(t.Context(), tenant, "s1", "cli:mona", "")
	require.NoError(t, err)
	b.storm(t, 2, noon, 0)
	b.drain(t)
	_, n, err = b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, states{trigger.StatePending: 10, trigger.StateDiscarded: 8}, b.statesOf(t, "s1"))
}

// Whoever discards dies on the way: the sweep goes on discarding.
func testStormDiscardCrash(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	decided := 0
	b.setCut(func(point string) error {
		if point == "EffectDecide:before" {
			if decided++; decided > 3 {
				return errCut
			}
		}
		return nil
	})
	_, n, err := b.dead().SubscriptionDiscard(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 3, n)
	b.setCut(nil)
	// One that is held by an event after it is released all the same.
	after := b.storm(t, 1, noon, 0, func(_ int, e *trigger.Event) { e.After.Labels = nil })[0]
	b.in(t, int(after), trigger.StateHeld)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 6, trigger.StateDiscarded: 8}, b.statesOf(t, "s1"))
	// A release that is asked for later has the last word.
	b.in(t, 3000, trigger.StateHeld, func(e *trigger.Effect) { e.EventSeq = 2 })
	_, n, err = b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func testStormGone(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.NoError(t, b.real.EventRemoveMany(t.Context(), tenant, []int64{14, 15, 16}))
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 30}, b.statesOf(t, "s1"))
	require.Contains(t, log.String(), "no longer kept")
	require.Contains(t, log.String(), `"gone":3`)
	b.laneSweep(t)
	require.Equal(t, 1, strings.Count(log.String(), "no longer kept"))
}

func testStormPausedAgain(t *testing.T, b *bundle) {
	b.heldBeyond(t)
	_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.tail.Batch = 4
	key := trigger.SubscriptionKey{TenantID: tenant, SubscriptionID: "s1"}
	more, err := b.tail.MatchHeld(t.Context(), key)
	require.NoError(t, err)
	require.True(t, more)
	_, err = b.dead().SubscriptionPause(t.Context(), tenant, "s1", "cli:mona", "")
	require.NoError(t, err)
	b.storm(t, 5, noon, 0)
	b.drain(t)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 17}, b.statesOf(t, "s1"), "the range is open again")
	_, _, err = b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: 38}, b.statesOf(t, "s1"))
}

func testStormStore(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := func(n int, with func(*trigger.Effect)) {
		e := effect(n, lane, b.real.Now())
		e.Event.At, e.Event.EID = noon.Add(time.Duration(n)*time.Second), fmt.Sprint("board:", n)
		with(&e)
		b.materialize(t, e)
	}
	for n := 1; n <= 6; n++ {
		row(n, func(e *trigger.Effect) {
			if n == 4 {
				e.Event.Bulk = "call"
			}
			if n == 5 {
				e.State, e.Outcome = trigger.StateDone, trigger.OutcomeLoopCut
			}
		})
	}
	row(7, func(e *trigger.Effect) { e.ID, e.SubscriptionID = e.ID+"2", "s2" })
	got, err := b.real.EffectMatches(ctx, trigger.MatchesParams{
		TenantID: tenant, SubscriptionID: "s1", Since: noon.Add(2 * time.Second), AfterSeq: 2, UpToSeq: 5,
	})
	require.NoError(t, err)
	slices.SortFunc(got, func(a, b trigger.Match) int { return int(a.Seq - b.Seq) })
	for i := range got {
		got[i].At = got[i].At.UTC()
	}
	require.Equal(t, []trigger.Match{
		{Seq: 3, At: noon.Add(3 * time.Second), Unit: "board:3"}, {Seq: 4, At: noon.Add(4 * time.Second), Unit: "call"},
	}, got)
	got, err = b.real.EffectMatches(ctx, trigger.MatchesParams{TenantID: "other", SubscriptionID: "s1", UpToSeq: 9})
	require.NoError(t, err)
	require.Empty(t, got)
	for n := 11; n <= 13; n++ {
		row(n, func(e *trigger.Effect) { e.State = trigger.StateHeld })
	}
	n, err := b.real.EffectHeldCount(ctx, tenant, "s1", 12)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}
