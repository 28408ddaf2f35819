package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func announceTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestAnnounce_CrashAtEveryStep":                  testAnnounceCrash,
		"TestAnnounce_EveryWayToPark":                    testAnnounceWays,
		"TestAnnounce_ReplayedAndFailedAgain":            testAnnounceAgain,
		"TestAnnounce_NeverALoop":                        testAnnounceLoop,
		"TestAnnounce_PoisonOfWhatTellsOfRows":           testAnnouncePoison,
		"TestAnnounce_TwoReplicasAtOnce":                 testAnnounceTwo,
		"TestAnnounce_OnlyWhatThisVersionParked":         testAnnounceOld,
		"TestAnnounce_DecidedBeforeItWasTold":            testAnnounceDecided,
		"TestAnnounce_TheMarkOfAnotherParkingStays":      testAnnounceMark,
		"TestAnnounce_ATenantThatFailsDoesNotHoldUp":     testAnnounceAlone,
		"TestAnnounce_OthersStepInLater":                 testAnnounceStepIn,
		"TestAnnounce_AnOlderAnnouncementInOtherWords":   testAnnounceWords,
		"TestR4_WhatTellsOfARowStaysUntilTheRowIsMarked": testR4Told,
	}
}

func (f *faults) EffectsUnannounced(ctx context.Context, due time.Time, limit int) ([]trigger.Effect, error) {
	return read(f, func() ([]trigger.Effect, error) { return f.Store.EffectsUnannounced(ctx, due, limit) })
}

func (f *faults) EffectsAnnounced(ctx context.Context, rows []trigger.Effect, until time.Time) error {
	return f.write("EffectsAnnounced", func() error { return f.Store.EffectsAnnounced(ctx, rows, until) })
}

func (b *bundle) announcer() *trigger.Announcer {
	return &trigger.Announcer{Outbox: b.faults, Relay: b.relay, Clock: b.faults, Logger: zerolog.Nop()}
}

// announce tells of all parked rows, and matches what is told.
func (b *bundle) announce(t *testing.T) {
	t.Helper()
	require.NoError(t, b.announcer().Announce(t.Context(), b.Now()))
	b.drain(t)
}

// told are the events of the log that tell of rows.
func (b *bundle) told(t *testing.T) (out []trigger.Event) {
	t.Helper()
	for _, e := range b.events(t) {
		if e.Source == trigger.SourceCustom {
			out = append(out, e)
		}
	}
	return out
}

func says(t *testing.T, e trigger.Event) (out trigger.Told) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(e.Payload), &out))
	return out
}

// onTold has a subscription fire on events that tell of rows, whatever the card.
func onTold(bot string, kinds ...tracker.Kind) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) {
		s.BotID, s.If, s.On = bot, trigger.Conditions{}, trigger.EventFilter{Kinds: kinds}
	}
}

// refusing has a bot of a name refuse each launch for good, with an error that
// names it; others are launched.
func refusing(bots ...string) func(*bundle, *trigger.EffectWorker) {
	return launching(func(r trigger.LaunchRequest) error {
		for _, bot := range bots {
			if r.URL == "http://bot.invalid/"+bot {
				return &trigger.LaunchError{Permanent: true, Definite: true, Status: 400, Message: bot + " answered 400"}
			}
		}
		return nil
	})
}

// claimedOf has a card made that fires a's bot1, and its row claimed.
func (b *bundle) claimedOf(t *testing.T, card string) trigger.Effect {
	t.Helper()
	b.create(t, card, "open", "bug")
	b.relayed(t, card)
	b.drain(t)
	return b.claimNow(t)
}

// claimNow claims bot1's due row, at the engine's time.
func (b *bundle) claimNow(t *testing.T) trigger.Effect {
	t.Helper()
	p := b.claimParams(trigger.LaneBot("bot1"), 1, time.Hour)
	p.Now, p.LeaseEnd = b.Now(), b.Now().Add(time.Hour)
	rows, err := b.real.EffectClaim(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return rows[0]
}

// dying is a store of a process that, once it died, fills no voids either.
type dying struct{ *faults }

func (d dying) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	return d.write("EventFillVoids", func() error { return d.Store.EventFillVoids(ctx, tenantID, seqs) })
}

// A process dies at every step from the settle to the mark; another one finds
// what it left.
func testAnnounceCrash(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug")
	b.subscribe(t, "watch", "bug", onTold("bot2", trigger.KindEffectFailed))
	b.tail.HoleWait = time.Millisecond
	var steps int
	for n := 0; ; n++ {
		card := fmt.Sprint("c", n)
		row := b.claimedOf(t, card)
		s := b.settleTo(row, trigger.StateFailed)
		seen := 0
		b.setCut(dieAt(n, &seen))
		_, err := b.EffectSettleMany(ctx, []trigger.Settle{s})
		if err == nil {
			relay := *b.relay
			relay.Log = dying{b.faults}
			a := b.announcer()
			a.Relay = &relay
			err = a.Announce(ctx, b.Now())
		}
		b.setCut(nil)
		require.Equal(t, seen <= n, err == nil)
		// The other process: the settle is sent again by whoever holds it.
		require.True(t, b.settle(t, s))
		b.pass(time.Minute) // a failing append puts its tenant off
		require.NoError(t, b.announcer().Announce(ctx, b.Now()))
		require.Eventually(t, func() bool {
			_, err := b.tail.Drain(ctx, tenant)
			require.NoError(t, err)
			head := b.head(t)
			return head.Cursor == head.Seq
		}, time.Minute, time.Millisecond)
		require.NoError(t, b.announcer().Announce(ctx, b.Now()))
		open, err := b.real.EffectsUnannounced(ctx, b.Now().Add(time.Hour), 10)
		require.NoError(t, err)
		require.Empty(t, open)
		told := b.told(t)
		require.Len(t, told, n+1, "once, cut at step %d", n)
		require.Equal(t, card, told[n].CardID)
		require.Len(t, b.rows(t), 2*(n+1), "and fired once")
		if seen <= n {
			steps = seen
			break
		}
	}
	require.GreaterOrEqual(t, steps, 8, "settle, allocate, insert and mark, each before and after")
}

func testAnnounceWays(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug")
	b.subscribe(t, "watch", "bug", onTold("bot2", trigger.KindEffectFailed, trigger.KindEffectReconcile))
	b.subscribe(t, "edge", "bug", func(s *trigger.Subscription) { s.BotID = "bot3" })
	next := func(kind tracker.Kind, row *trigger.Effect) trigger.Event {
		t.Helper()
		b.announce(t)
		told := b.told(t)
		require.NotEmpty(t, told)
		e := told[len(told)-1]
		require.Equal(t, kind, e.Kind)
		require.Equal(t, fmt.Sprintf("custom:%s:%s:%s", kind, row.ID, row.ClaimID), e.EID)
		require.Equal(t, row.CardID, e.CardID)
		require.Equal(t, "b1", e.BoardID)
		require.Equal(t, row.Event.After, e.After)
		require.Equal(t, e.After, e.Before, "nothing changed")
		require.Equal(t, chain("a", row.CardID), e.Cause)
		require.True(t, row.UpdatedAt.Equal(e.At))
		require.Equal(t, trigger.StatePending, b.row(t, trigger.EffectID(e.ID(), "watch")).State)
		require.Zero(t, b.row(t, row.ID).AnnounceAt)
		return e
	}
	count := func(n int) {
		t.Helper()
		b.announce(t)
		require.Len(t, b.told(t), n)
	}

	// A definite refusal.
	row := b.claimedOf(t, "c1")
	s := b.settleTo(row, trigger.StateFailed)
	s.Error = &trigger.AttemptError{At: s.At, Attempt: 1, Message: "status 400"}
	require.True(t, b.settle(t, s))
	e := next(trigger.KindEffectFailed, b.row(t, row.ID))
	require.Equal(t, trigger.Told{
		Effect: row.ID, Kind: trigger.KindLaunch, State: trigger.StateFailed, Reason: trigger.ReasonPermanent,
		Subscription: "a", Bot: "bot1", EventSeq: row.EventSeq, Attempts: 1, Error: "status 400",
	}, says(t, e))
	count(1)
	require.True(t, b.settle(t, s), "the settle again")
	count(1)

	// One without a definite answer, whose bot answers late.
	row = b.claimedOf(t, "c2")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateReconcile)))
	e = next(trigger.KindEffectReconcile, b.row(t, row.ID))
	require.Equal(t, trigger.StateReconcile, says(t, e).State)
	s = b.settleTo(row, trigger.StateFailed)
	require.True(t, b.settle(t, s))
	next(trigger.KindEffectFailed, b.row(t, row.ID))
	count(3)

	// One that was answered late before it was told of.
	row = b.claimedOf(t, "c3")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateReconcile)))
	require.True(t, b.settle(t, b.done(row)))
	require.Zero(t, b.row(t, row.ID).AnnounceAt)
	count(3)

	// A lease that ran out: started, and out of attempts.
	row = b.claimedOf(t, "c4")
	require.NoError(t, b.real.EffectStart(ctx, row.Fence(), b.Now(), "sent"))
	reclaim := func() *trigger.Effect {
		b.pass(2 * time.Hour)
		p := b.claimParams(trigger.LaneBot("bot1"), 1, time.Hour)
		p.Now = b.Now()
		got, err := b.real.EffectReclaim(ctx, p)
		require.NoError(t, err)
		return got
	}
	require.Equal(t, trigger.StateReconcile, reclaim().State)
	next(trigger.KindEffectReconcile, b.row(t, row.ID))
	row = b.claimedOf(t, "c5")
	for row.Attempts < trigger.AttemptsMax {
		retry := b.settleTo(row, trigger.StatePending)
		retry.NotBefore = retry.At
		require.True(t, b.settle(t, retry))
		row = b.claimNow(t)
	}
	require.Equal(t, trigger.StateFailed, reclaim().State)
	e = next(trigger.KindEffectFailed, b.row(t, row.ID))
	require.Equal(t, trigger.ReasonLeaseExhausted, says(t, e).Reason)

	// What is not parked is not told of, nor did an edge see any of it.
	row = b.claimedOf(t, "c6")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateHeld)))
	count(5)
	for _, row := range b.rows(t) {
		require.False(t, row.SubscriptionID == "edge" && row.Event.Source == trigger.SourceCustom)
	}
}

func testAnnounceAgain(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug")
	b.subscribe(t, "watch", "bug", onTold("bot2", trigger.KindEffectFailed))
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.work(t, 1, refusing("bot1"))
	b.announce(t)
	b.work(t, 1, refusing("bot1"))
	require.Equal(t, []string{"a c1 ", "watch c1 launched"}, b.outcomes(t))
	b.decide(t, b.rows(t)[0], trigger.ActionReplay)
	b.work(t, 1, refusing("bot1"))
	b.announce(t)
	b.announce(t)
	b.work(t, 1, refusing("bot1"))
	require.Equal(t, []string{"a c1 ", "watch c1 launched", "watch c1 launched"}, b.outcomes(t))
	told := b.told(t)
	require.Len(t, told, 2)
	require.NotEqual(t, told[0].EID, told[1].EID)
	require.Equal(t, told[0].Cause, told[1].Cause)
	require.Equal(t, "bot1 answered 400", says(t, told[1]).Error)
}

// A's launches fail, B is told of it and fails itself; A asks for it too.
func testAnnounceLoop(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "a", "bug", onTold("bot1", tracker.KindCreated, trigger.KindEffectFailed))
	b.subscribe(t, "b", "bug", onTold("bot2", trigger.KindEffectFailed))
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	for range 10 {
		b.drain(t)
		live := 0
		for _, row := range b.rows(t) {
			if row.State.Live() {
				live++
			}
		}
		if live > 0 {
			b.work(t, live, refusing("bot1", "bot2"))
		}
		b.announce(t)
	}
	var got []string
	for _, row := range b.rows(t) {
		got = append(got, fmt.Sprintf("%d %s %s%s", row.EventSeq, row.SubscriptionID, row.Reason, row.Outcome))
	}
	require.Equal(t, []string{"1 a permanent", "2 a loop_cut", "2 b permanent", "3 a loop_cut", "3 b loop_cut"}, got)
	require.Len(t, b.told(t), 2)
	require.Equal(t, chain("a", "c1", "b", "c1"), b.told(t)[1].Cause)
	b.explained(t, "c1", "b", trigger.AnswerLoopCut, "effect.failed by effects")
	// Who asks for changes of the card alone is not told of these.
	b.subscribe(t, "other", "wip", func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindCreated} })
	got2, err := b.explainer().Explain(t.Context(), tenant, "c1", "other")
	require.NoError(t, err)
	require.EqualValues(t, 1, got2.Event.Seq)
	require.Nil(t, got2.Latest)
}

// A subscription whose evaluation of such an event fails leaves a poison row,
// which is not told of: that could go on for ever. One of a change is.
func testAnnouncePoison(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "broken", "bug", onTold("bot1", trigger.KindEffectFailed), func(s *trigger.Subscription) { s.When = "1 / (size(card.labels) - 1) > 0" })
	b.subscribe(t, "mend", "bug", onTold("bot1", tracker.KindCreated), func(s *trigger.Subscription) { s.When = "1 / (size(card.labels) - 1) > 0" })
	b.subscribe(t, "watch", "bug", onTold("bot1", trigger.KindEffectFailed), func(s *trigger.Subscription) { s.When = `event.effect.reason == "poison"` })
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	for range 5 {
		b.announce(t)
	}
	told := b.told(t)
	require.Len(t, told, 1)
	require.Equal(t, trigger.KindEvent, says(t, told[0]).Kind)
	require.Contains(t, says(t, told[0]).Error, "subscription mend: when: ")
	require.Equal(t, []string{trigger.PoisonID("acme/000000000001"), trigger.PoisonID("acme/000000000002"), "acme/000000000002|watch"}, idsOf(b.rows(t)))
	open, err := b.real.EffectsUnannounced(t.Context(), b.Now().Add(time.Hour), 10)
	require.NoError(t, err)
	require.Empty(t, open, "nobody looks at it again")
	// Replayed in vain, it is told of again.
	b.decide(t, *b.row(t, trigger.PoisonID("acme/000000000001")), trigger.ActionReplay)
	b.work(t, 2)
	b.announce(t)
	require.Len(t, b.told(t), 2)
}

func idsOf(rows []trigger.Effect) (ids []string) {
	for i := range rows {
		ids = append(ids, rows[i].ID)
	}
	return ids
}
