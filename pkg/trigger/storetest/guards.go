package storetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// runGuards runs the part of the suite that holds single guards of the engine
// in place, most of it through a worker that runs.
func runGuards(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bundle){
		"TestW7_ConsumeThatArrivesBeforeTheCloseLaunches": testW7CloseLaunches,
		"TestW7_OnlyADoneRowReleasesItsConsumption":       testW7Release,
		"TestW7_TakenByTheBetterRankedThoughLabelIsBack":  testW7TakenLabelBack,
		"TestW7_WaitingTakerKeepsItsAttempts":             testW7WaitKeepsAttempts,
		"TestW6_OutcomesOfRowsThatDoNotLaunch":            testW6Outcomes,
		"TestW6_SpentRowWhoseWorldIsGone":                 testW6Spent,
		"TestW6_FailingLookupIsNoOutcome":                 testW6Lookups,
		"TestLoops_ConsumeCarriesItsCause":                testLoopsConsume,
		"TestW2_LostFenceEndsTheAttemptWithoutASettle":    testW2FenceLost,
		"TestW2_ResentSettleAddsNothing":                  testW2Resent,
		"TestW2_AnothersSettleNeverStands":                testW2Tenant,
		"TestLanes_EarliestDueOfABatchIsMarked":           testLanesEarliest,
		"TestE2_FillOutlivesItsCaller":                    testE2FillOutlives,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

func testW7CloseLaunches(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	id := b.fired(t, "c1").ID
	// The first attempt's consume is held up on its way, and the attempt does
	// not see the card again.
	var onItsWay func() error
	b.holdCardWrite = func(apply func() error) error {
		onItsWay, b.holdCardWrite = apply, nil
		return errCut
	}
	cut := false
	b.setCut(func(point string) error {
		if point != "CardGet:before" || onItsWay == nil || cut {
			return nil
		}
		cut = true
		return errCut
	})
	// In the second, it arrives after the look at consumed[] and before the
	// row closes, since the subscription is disabled meanwhile.
	looks := 0
	b.work(t, 1, looking(func(string) error {
		if looks++; looks == 2 {
			if err := onItsWay(); err != nil {
				t.Errorf("the consume: %v", err)
			}
			if err := b.disable(sub); err != nil {
				t.Error(err)
			}
		}
		return nil
	}, nil))
	require.Equal(t, 2, looks)
	row := b.row(t, id)
	require.Equal(t, trigger.OutcomeLaunched, row.Outcome, "the label is spent, so it launches")
	require.True(t, row.ConsumeMarked)
	n, bodies := b.launchesOf(id)
	require.Equal(t, 1, n)
	require.Equal(t, []string{row.Plan.Body}, bodies)
	require.Equal(t, 1, b.spends(t, "c1"))
	require.Empty(t, b.card(t, "c1").Consumed)
}

func testW7Release(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	failed, done := b.fired(t, "c1").ID, b.fired(t, "c2").ID
	held := make(map[trigger.State]int) // consumptions on the cards after a settle to the state
	var mu sync.Mutex
	tries := make(map[string]int)
	b.work(t, 2, launching(func(r trigger.LaunchRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if tries[r.Key]++; tries[r.Key] == 1 {
			return &trigger.LaunchError{Message: "status 503"}
		}
		// The row was settled pending meanwhile. It is looked at from within
		// the next attempt: after that one has ended it may be released.
		for _, id := range []string{"c1", "c2"} {
			card, err := b.real.CardGet(context.Background(), tenant, id)
			if err != nil {
				t.Error(err)
			} else if card.ConsumedBy(r.Key) != nil {
				held[trigger.StatePending]++
			}
		}
		if r.Key == failed {
			return &trigger.LaunchError{Message: "status 410", Permanent: true}
		}
		return nil
	}), settling(func(row trigger.Effect, s trigger.Settle) {
		if s.To == trigger.StatePending {
			return
		}
		card, err := b.real.CardGet(context.Background(), tenant, row.CardID)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		held[s.To] += len(card.Consumed)
	}))
	require.Equal(t, trigger.StateFailed, b.row(t, failed).State)
	require.Equal(t, trigger.StateDone, b.row(t, done).State)
	require.Equal(t, map[trigger.State]int{trigger.StatePending: 2, trigger.StateFailed: 1, trigger.StateDone: 0}, held)
	require.NotNil(t, b.card(t, "c1").ConsumedBy(failed), "a replay of the failed row must find it")
}

// takers runs two takers of one label of one event. The better-ranked one is
// held up before it spends the label until the other one has been sent to wait
// some times; as it launches, a person puts the label on again. It returns the
// other's row.
func (b *bundle) takers(t *testing.T, waits int) *trigger.Effect {
	t.Helper()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "s-first", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 1 })
	b.subscribe(t, "s-late", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank, s.BotID = 2, "bot2" })
	event := b.fired(t, "c1").Event
	first, late := trigger.EffectID(event.ID(), "s-first"), trigger.EffectID(event.ID(), "s-late")
	waited, n := make(chan struct{}), 0
	b.work(t, 2, looking(nil, func(id string) error {
		if id == "bot1" {
			select {
			case <-waited:
			case <-time.After(20 * time.Second):
				t.Error("the other taker does not wait")
			}
		}
		return nil
	}), launching(func(r trigger.LaunchRequest) error {
		if r.Key != first {
			return nil
		}
		_, err := b.board.Change(context.Background(), tenant, "c1", addLabel("ship-it"))
		return err
	}), settling(func(row trigger.Effect, s trigger.Settle) {
		if row.ID != late || s.To != trigger.StatePending {
			return
		}
		if n++; n == waits {
			close(waited)
		} else if n < waits {
			b.pass(time.Second)
		}
	}))
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, first).Outcome)
	return b.row(t, late)
}

func testW7TakenLabelBack(t *testing.T, b *bundle) {
	row := b.takers(t, 1)
	require.Equal(t, trigger.OutcomeOneShotSpent, row.Outcome, "this event's label is spent")
	require.True(t, b.card(t, "c1").HasLabel("ship-it"), "the label that is back is another event's")
	require.Len(t, b.launches.all(), 1)
}

func testW7WaitKeepsAttempts(t *testing.T, b *bundle) {
	row := b.takers(t, trigger.AttemptsMax+1)
	require.Equal(t, trigger.StateDone, row.State)
	require.Equal(t, 1, row.Attempts, "waiting costs none")
	require.Empty(t, row.Errors)
}

// owed makes a subscription with a bot of its own, and a card that fires it.
func (b *bundle) owed(t *testing.T, name string, with ...func(*trigger.Subscription)) (row trigger.Effect, sub *trigger.Subscription) {
	t.Helper()
	b.bot(t, "bot-"+name)
	sub = b.subscribe(t, "s-"+name, "l-"+name, append(with, func(s *trigger.Subscription) { s.BotID = "bot-" + name })...)
	b.create(t, "c-"+name, "open", "l-"+name)
	b.relayed(t, "c-"+name)
	b.drain(t)
	for _, row := range b.rows(t) {
		if row.SubscriptionID == sub.ID {
			return row, sub
		}
	}
	t.Fatal("no row")
	return row, sub
}

func testW6Outcomes(t *testing.T, b *bundle) {
	gone := make(map[string]bool)
	missing := func(id string) error {
		if gone[id] {
			return tracker.ErrNotFound
		}
		return nil
	}
	cases := map[trigger.Outcome]func(row trigger.Effect, sub *trigger.Subscription){
		trigger.OutcomeSubscriptionGone: func(_ trigger.Effect, sub *trigger.Subscription) { gone[sub.ID] = true },
		trigger.OutcomeSubscriptionDisabled: func(_ trigger.Effect, sub *trigger.Subscription) {
			require.NoError(t, b.disable(sub))
		},
		trigger.OutcomeNoLongerMatches: func(_ trigger.Effect, sub *trigger.Subscription) {
			sub.If.LabelsAll = append(sub.If.LabelsAll, "and-another")
			sub.Revision++
			require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
		},
		trigger.OutcomeBotGone: func(row trigger.Effect, _ *trigger.Subscription) { gone[row.BotID] = true },
		trigger.OutcomeCardGone: func(row trigger.Effect, _ *trigger.Subscription) {
			_, err := b.board.Delete(t.Context(), tenant, row.CardID, human)
			require.NoError(t, err)
			b.relayed(t, row.CardID)
		},
		trigger.OutcomeLaunched: func(trigger.Effect, *trigger.Subscription) {},
	}
	want := make(map[string]trigger.Outcome)
	for outcome, meanwhile := range cases {
		for _, once := range []bool{false, true} {
			name := strings.ReplaceAll(fmt.Sprint(outcome, "-", once), "_", "-")
			var with []func(*trigger.Subscription)
			if once {
				with = append(with, oneShot("l-"+name))
			}
			row, sub := b.owed(t, name, with...)
			meanwhile(row, sub)
			want[row.ID] = outcome
		}
	}
	b.work(t, len(want), looking(missing, missing))
	for id, outcome := range want {
		row := b.row(t, id)
		require.Equal(t, trigger.StateDone, row.State, id)
		require.Equal(t, outcome, row.Outcome, id)
		require.Equal(t, 1, row.Attempts, id)
		n, _ := b.launchesOf(id)
		if outcome == trigger.OutcomeLaunched {
			require.Equal(t, 1, n)
			continue
		}
		require.Zero(t, n, id)
		require.False(t, row.ConsumeMarked, id)
		if outcome != trigger.OutcomeCardGone {
			require.Len(t, b.card(t, row.CardID).Labels, 1, "%s: not spent", id)
		}
	}
}

func testW6Spent(t *testing.T, b *bundle) {
	ctx := context.WithoutCancel(t.Context())
	var mu sync.Mutex
	gone := make(map[string]bool)
	missing := func(id string) error {
		mu.Lock()
		defer mu.Unlock()
		if gone[id] {
			return tracker.ErrNotFound
		}
		return nil
	}
	rows := make(map[string]trigger.Effect)
	byID := make(map[string]string)
	for _, what := range []string{"sub", "bot", "card"} {
		row, _ := b.owed(t, what, oneShot("l-"+what))
		rows[what], byID[row.ID] = row, what
	}
	// The first request of each meets a bot that is down, and what it takes
	// for granted goes meanwhile.
	tries := make(map[string]int)
	b.work(t, 3, looking(missing, missing), launching(func(r trigger.LaunchRequest) error {
		mu.Lock()
		defer mu.Unlock()
		if tries[r.Key]++; tries[r.Key] > 1 {
			return nil
		}
		row := rows[byID[r.Key]]
		switch byID[r.Key] {
		case "sub":
			gone[row.SubscriptionID] = true
		case "bot":
			gone[row.BotID] = true
		case "card":
			if _, err := b.board.Delete(ctx, tenant, row.CardID, human); err != nil {
				t.Error(err)
			}
			if _, err := b.relay.Card(ctx, tenant, row.CardID); err != nil {
				t.Error(err)
			}
		}
		return &trigger.LaunchError{Message: "status 503"}
	}))
	_, err := b.real.CardGet(ctx, tenant, "c-card")
	require.ErrorIs(t, err, tracker.ErrNotFound, "the tombstone is buried with its last consumption")
	for what, outcome := range map[string]trigger.Outcome{
		"sub": trigger.OutcomeLaunched, "bot": trigger.OutcomeBotGone, "card": trigger.OutcomeLaunched,
	} {
		row := b.row(t, rows[what].ID)
		require.Equal(t, trigger.StateDone, row.State, what)
		require.Equal(t, outcome, row.Outcome, what)
		require.True(t, row.ConsumeMarked, what)
		require.Equal(t, 1, b.spends(t, row.CardID), what)
		n, bodies := b.launchesOf(row.ID)
		require.Equal(t, map[bool]int{true: 2, false: 1}[outcome == trigger.OutcomeLaunched], n, what)
		require.Equal(t, []string{row.Plan.Body}, bodies, what)
	}
	require.Empty(t, b.card(t, "c-bot").Consumed, "released though it was not launched")
}

func testW6Lookups(t *testing.T, b *bundle) {
	row, _ := b.owed(t, "x")
	// A look-up fails until the row has come to it, however often it is tried.
	until := func(n int) error {
		now, err := b.real.EffectGet(context.WithoutCancel(t.Context()), tenant, row.ID)
		if err == nil && len(now.Errors) >= n {
			return nil
		}
		return errCut
	}
	b.setCut(func(point string) error {
		if point != "CardsGet:before" { // the cards of a claim are read at once
			return nil
		}
		return until(3)
	})
	b.work(t, 1, looking(func(string) error { return until(1) }, func(string) error { return until(2) }))
	got := b.row(t, row.ID)
	require.Equal(t, trigger.OutcomeLaunched, got.Outcome)
	require.Len(t, got.Errors, 3, "the subscription, the bot and the card could not be read once each")
	require.Equal(t, 1, got.Attempts, "they use up no attempt")
}

func testLoopsConsume(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	// s1 is fired by its own consume again: it names its bot. s2 names none.
	b.subscribe(t, "s1", "keep", oneShot("ship-it"), func(s *trigger.Subscription) {
		s.If.LabelsAny = []string{"ship-it", "keep"}
		s.On = trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated, tracker.KindUnlabeled}, Actors: []string{human.ID, "bot1"}}
	})
	b.subscribe(t, "s2", "keep", func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindUnlabeled} })
	before := tracker.Cause{}.Then("s0", "c0")
	b.change(t, "c1", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: "t", Labels: []string{"Ship-It", "keep"}},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human, Cause: before}, nil
	})
	b.relayed(t, "c1")
	b.drain(t)
	b.work(t, 1)
	b.relayed(t, "c1")
	b.drain(t)
	events := b.events(t)
	require.Equal(t, []string{"card.created c1", "card.unlabeled c1"}, lines(events))
	e := events[len(events)-1]
	require.Equal(t, tracker.Actor{Kind: tracker.ActorBot, ID: "bot1", Name: "bot1"}, e.Actor)
	require.Equal(t, []string{"Ship-It"}, e.Removed)
	require.Equal(t, before.Then("s1", "c1"), e.Cause)
	var got []string
	for _, row := range b.rows(t) {
		got = append(got, row.SubscriptionID+" "+string(row.Outcome))
	}
	require.Equal(t, []string{"s1 launched", "s1 loop_cut"}, got)
}

func testW2FenceLost(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	for n, at := range []string{"EffectPlan", "EffectMarkConsumed"} {
		id := b.fired(t, fmt.Sprint("c", n)).ID
		// The worker is paused past its lease, and the row taken over.
		lost := make(chan struct{})
		settles := 0
		b.setHook(func(op string) {
			switch op {
			case "EffectSettleMany":
				settles++
			case at:
				p := b.claimParams(lane, 1, 2*time.Hour)
				p.Now, p.ClaimID = p.Now.Add(time.Hour), "other"
				if got, err := b.real.EffectReclaim(context.Background(), p); err != nil || got == nil {
					t.Error("not taken over", err)
				}
				close(lost)
			}
		})
		var log bytes.Buffer
		w := b.worker(func(_ *bundle, w *trigger.EffectWorker) { w.Logger = zerolog.New(zerolog.SyncWriter(&log)) })
		require.NoError(t, w.Start(t.Context()))
		select {
		case <-lost:
		case <-time.After(30 * time.Second):
			t.Error("no attempt")
		}
		w.Stop()
		b.setHook(nil)
		require.Zero(t, settles, at)
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("effect write refused, claim no longer held")), at)
		row := b.row(t, id)
		require.Equal(t, trigger.StateClaimed, row.State)
		require.Equal(t, "other", row.ClaimID)
		require.Empty(t, row.Errors)
		require.Empty(t, b.launches.all(), "it does not launch either")
	}
}

func testW2Resent(t *testing.T, b *bundle) {
	now := b.real.Now()
	failed := &trigger.AttemptError{At: now, Attempt: 1, Message: "status 503"}
	for n, s := range []trigger.Settle{
		{To: trigger.StatePending, NotBefore: now.Add(time.Hour), Error: failed},
		{To: trigger.StateFailed, Reason: trigger.ReasonExhausted, Error: failed},
		{To: trigger.StatePending, NotBefore: now.Add(time.Hour), HandBack: true},
	} {
		b.materialize(t, effect(n+1, lane, now))
		row := b.claimOne(t, lane, time.Minute)
		s.Fence, s.At = row.Fence(), now
		require.True(t, b.settle(t, s))
		after := b.row(t, row.ID)
		require.True(t, b.settle(t, s), "the answer was lost")
		require.Equal(t, after, b.row(t, row.ID), "and nothing is added")
		if s.HandBack {
			require.Zero(t, after.Attempts)
		} else {
			require.Len(t, after.Errors, 1)
		}
	}
}

func testW2Tenant(t *testing.T, b *bundle) {
	b.materialize(t, effect(1, lane, b.real.Now()))
	row := b.claimOne(t, lane, time.Minute)
	foreign := b.done(row)
	foreign.TenantID = "other"
	require.False(t, b.settle(t, foreign))
	require.Equal(t, trigger.StateClaimed, b.row(t, row.ID).State)
	require.True(t, b.settle(t, b.done(row)))
	require.False(t, b.settle(t, foreign), "nor once the row is settled under this claim id")
}

func testLanesEarliest(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	for i := range 3 {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	// The rows are there and their lane was never marked; two of them are to
	// be tried again later.
	b.setCut(failOnce("LaneMarkMany:before"))
	_, err := b.tail.Drain(ctx, tenant)
	require.ErrorIs(t, err, errCut)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 3, time.Minute))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	now := b.real.Now()
	for i, row := range rows {
		later := []time.Duration{time.Hour, 0, 2 * time.Hour}[i]
		require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: now, To: trigger.StatePending, NotBefore: now.Add(later)}))
	}
	b.tail = b.newTail(io.Discard) // another replica, which takes the batch as one
	b.drain(t)
	lanes, err := b.real.LanesDue(ctx, now, 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1, "due with its earliest row")
	require.Equal(t, now, lanes[0].DueAt)
}
