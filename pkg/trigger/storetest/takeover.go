package storetest

import (
	"bytes"
	"context"
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

// runTakeovers runs the part of the suite in which one worker takes over what
// another began, and in which lanes were never marked.
func runTakeovers(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bundle){
		"TestW2_StaleWorkerChangesNothing":            testW2StaleWorker,
		"TestW2_OwnNewerClaimRefusesTheOlderOne":      testW2OwnClaim,
		"TestW4_RowThatKillsItsWorkerParks":           testW4Killer,
		"TestW6_StartedDeliveryOfAClaimIsReconciled":  testW6Started,
		"TestLanes_LostMarksAreFoundFromTheRows":      testLanesLost,
		"TestLanes_HeldRowsOfAResumedSubscription":    testHeldResumed,
		"TestHeld_PausedSubscriptionHoldsWhatItOwes":  testHeld,
		"TestPromote_SameBotAndLaterEventsStay":       testPromote,
		"TestR4_JanitorReleasesWhatACrashLeft":        testR4Leftover,
		"TestW9_PausedBotTenantAndFleetAreNotClaimed": testW9Pauses,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

// testW2StaleWorker pauses a worker before each of its writes past its lease,
// lets another one take over and finish, and resumes it.
func testW2StaleWorker(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	require.NoError(t, b.real.BoardSave(t.Context(), &tracker.Board{
		TenantID: tenant, ID: "b1", Name: "b1", Revision: 1, Columns: []tracker.Column{{ID: "open"}, {ID: "doing"}},
	}))
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	b.subscribe(t, "s2", "promote-me", func(s *trigger.Subscription) { s.Mode, s.ToColumn = trigger.ModePromote, "doing" })
	for n, c := range []struct{ label, at string }{
		{"ship-it", "EffectPlan"},
		{"ship-it", "CardWrite"},
		{"ship-it", "EffectMarkConsumed"},
		{"ship-it", "EffectSettleMany"},
		{"promote-me", "EffectPlan"},
		{"promote-me", "CardWrite"},
		{"promote-me", "EffectSettleMany"},
	} {
		card := fmt.Sprint("c", n)
		b.create(t, card, "open", c.label)
		b.relayed(t, card)
		b.drain(t)
		stale := b.spawn(t, 0)
		paused, resume := make(chan struct{}), make(chan struct{})
		var once sync.Once
		stale.setHook(func(op string) {
			if op == c.at {
				once.Do(func() {
					close(paused)
					<-resume
				})
			}
		})
		require.NoError(t, stale.worker.Start(t.Context()))
		recv(t, paused)
		other := b.spawn(t, takenOver)
		other.sweep(t)
		other.run(t, 1)
		// A person goes on from there.
		b.change(t, card, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			card.BotID, card.BotArgs, card.ColumnID = "", nil, "done"
			return card, &tracker.BoardEvent{Kind: tracker.KindMoved, Actor: human, ToColumn: "done"}, nil
		})
		b.relayed(t, card)
		b.drain(t)
		i := slices.IndexFunc(b.rows(t), func(r trigger.Effect) bool { return r.CardID == card })
		row, after := b.row(t, b.rows(t)[i].ID), b.card(t, card)
		launches := len(b.launches.all())
		require.Equal(t, trigger.StateDone, row.State)
		close(resume)
		stale.worker.Stop()
		at := c.label + " paused before " + c.at
		require.Equal(t, row, b.row(t, row.ID), at)
		require.Equal(t, after, b.card(t, card), at)
		require.Len(t, b.launches.all(), launches, at)
		require.EqualValues(t, 1, stale.worker.Stats().Refused, at)
		require.Equal(t, 1, bytes.Count(stale.log.Bytes(), []byte("refused, claim no longer held")), "%s\n%s", at, stale.log)
	}
}

func recv(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("no signal")
	}
}

func testW2OwnClaim(t *testing.T, b *bundle) {
	b.materialize(t, effect(1, lane, b.real.Now()))
	old := b.claimOne(t, lane, -time.Second)
	p := b.claimParams(lane, 1, time.Minute)
	require.Equal(t, old.Worker, p.Worker)
	row, err := b.real.EffectReclaim(t.Context(), p)
	require.NoError(t, err)
	require.False(t, b.settle(t, b.done(old)), "the same worker's, under a claim that is no longer")
	require.Equal(t, trigger.StateClaimed, b.row(t, row.ID).State)
	require.True(t, b.settle(t, b.done(*row)))
}

// testW4Killer: a request that ends the process that makes it.
func testW4Killer(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	const rows = 6
	for i := range rows {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	b.drain(t)
	killer := b.rows(t)[2].ID
	kills := 0
	for generation := range 20 {
		p := b.spawn(t, time.Duration(generation)*takenOver)
		var once sync.Once
		p.worker.Slots = 32 // so that all are claimed at once
		p.worker.Evaluator.Launcher = launchFunc{b.launches, func(r trigger.LaunchRequest) error {
			if r.Key == killer {
				once.Do(func() {
					kills++
					p.kill()
					close(p.died)
				})
			}
			return nil
		}}
		p.sweep(t)
		left := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return !r.State.Live() })
		p.run(t, len(left))
		if slices.IndexFunc(b.rows(t), func(r trigger.Effect) bool { return r.State.Live() }) < 0 {
			break
		}
	}
	require.Equal(t, trigger.AttemptsMax, kills)
	for _, row := range b.rows(t) {
		if row.ID == killer {
			require.Equal(t, trigger.StateFailed, row.State)
			require.Equal(t, trigger.ReasonLeaseExhausted, row.Reason)
			require.Equal(t, trigger.AttemptsMax, row.Attempts)
			continue
		}
		require.Equal(t, trigger.StateDone, row.State, row.ID)
		require.LessOrEqual(t, row.Attempts, 2, "%s: the neighbours of the first crash pay for that one alone", row.ID)
	}
}

// testW6Started: a row that is found claimed with its delivery started is
// never launched, whatever the store's reclaim made of it.
func testW6Started(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	row := b.claimOne(t, lane, time.Minute)
	at := b.real.Now()
	require.NoError(t, b.real.EffectStart(t.Context(), row.Fence(), at, "{}"))
	row.DeliveryStartedAt = at
	require.True(t, b.evaluator().Evaluate(t.Context(), &row).Reconcile)
	require.Empty(t, b.launches.all())
}

// testLanesLost breaks each place that marks a lane, one at a time: the
// process ends between the row and its lane.
func testLanesLost(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "bug")
	card := 0
	fire := func() string {
		card++
		id := fmt.Sprint("c", card)
		b.create(t, id, "open", "bug")
		b.relayed(t, id)
		b.drain(t)
		rows := b.rows(t)
		return rows[len(rows)-1].ID
	}
	decide := func(id string, action trigger.Action) {
		_, err := b.real.EffectDecide(ctx, trigger.Decision{
			TenantID: tenant, EffectID: id, ID: uuid.NewString(), Action: action, By: "mona", At: b.real.Now(), ClaimID: uuid.NewString(),
		})
		require.NoError(t, err)
	}
	claimed := func(id string) trigger.Effect {
		b.clearLane(t)
		row := b.claimOne(t, lane, time.Minute)
		require.Equal(t, id, row.ID)
		return row
	}
	for _, c := range []struct {
		place string
		make  func() string
	}{
		{"materialize", func() string {
			b.setCut(func(point string) error {
				if point == "LaneMarkMany:before" {
					return errCut
				}
				return nil
			})
			card++
			b.create(t, fmt.Sprint("c", card), "open", "bug")
			b.relayed(t, fmt.Sprint("c", card))
			_, err := b.tail.Drain(ctx, tenant)
			require.ErrorIs(t, err, errCut)
			b.setCut(nil)
			rows := b.rows(t)
			return rows[len(rows)-1].ID
		}},
		{"retry", func() string {
			row := claimed(fire())
			require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now()}))
			return row.ID
		}},
		{"a claim whose process died", func() string { return claimed(fire()).ID }},
		{"replay", func() string {
			row := claimed(fire())
			require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
			decide(row.ID, trigger.ActionReplay)
			return row.ID
		}},
		{"rerun", func() string {
			row := claimed(fire())
			require.True(t, b.settle(t, b.done(row)))
			decide(row.ID, trigger.ActionRerun)
			return row.ID
		}},
		{"release", func() string {
			row := claimed(fire())
			require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateHeld}))
			decide(row.ID, trigger.ActionRelease)
			return row.ID
		}},
		{"resume of a subscription", func() string {
			row := claimed(fire())
			require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateHeld}))
			require.False(t, sub.Paused)
			return row.ID
		}},
		{"resume of a bot", func() string {
			require.NoError(t, b.real.PauseSet(ctx, trigger.Pause{TenantID: tenant, BotID: "bot1", By: "mona", At: b.real.Now()}))
			id := fire()
			b.clearLane(t)
			late := b.spawn(t, 0)
			late.sweep(t)
			lanes, err := b.real.LanesDue(ctx, b.real.Now().Add(time.Hour), 10)
			require.NoError(t, err)
			require.Empty(t, lanes, "the sweep does not mark what is paused")
			was, err := b.real.PauseClear(ctx, tenant, "bot1")
			require.NoError(t, err)
			require.True(t, was)
			return id
		}},
	} {
		id := c.make()
		b.clearLane(t)
		p := b.spawn(t, takenOver)
		p.sweep(t)
		p.run(t, 1)
		require.Equal(t, trigger.StateDone, b.row(t, id).State, c.place)
		n, _ := b.launchesOf(b.row(t, id).IdempotencyKey())
		require.Equal(t, 1, n, c.place)
	}
}

// clearLane makes the lane not due, whatever its rows are.
func (b *bundle) clearLane(t *testing.T) {
	t.Helper()
	lanes, err := b.real.LanesDue(t.Context(), b.real.Now().Add(24*time.Hour), 100)
	require.NoError(t, err)
	for _, l := range lanes {
		ok, err := b.real.LaneReschedule(t.Context(), l, time.Time{})
		require.NoError(t, err)
		require.True(t, ok)
	}
}

func testHeldResumed(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "bug")
	b.pause(t, sub, true)
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t) // which read that it is paused, just before the resume
	row := b.rows(t)[0]
	require.Equal(t, trigger.StateHeld, row.State)
	p := b.spawn(t, 0)
	p.sweep(t)
	require.Equal(t, trigger.StateHeld, b.row(t, row.ID).State, "paused still")
	b.pause(t, sub, false)
	p.sweep(t)
	p.run(t, 1)
	got := b.row(t, row.ID)
	require.Equal(t, trigger.OutcomeLaunched, got.Outcome)
	require.Len(t, got.History, 1)
}

func (b *bundle) pause(t *testing.T, sub *trigger.Subscription, paused bool) {
	t.Helper()
	sub.Paused = paused
	sub.Revision++
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
}

func testHeld(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	id := b.fired(t, "c1").ID // pending at the pause
	b.pause(t, sub, true)
	p := b.spawn(t, 0)
	p.run(t, 1)
	require.Equal(t, trigger.StateHeld, b.row(t, id).State, "held, not dropped")
	require.True(t, b.card(t, "c1").HasLabel("ship-it"))
	require.Empty(t, b.launches.all())
	// Disabled meanwhile: it ends so once it is looked at.
	b.pause(t, sub, false)
	b.spawn(t, 0).sweep(t)
	require.NoError(t, b.disable(sub))
	b.spawn(t, 0).run(t, 1)
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, b.row(t, id).Outcome)
}

func testPromote(t *testing.T, b *bundle) {
	ctx := t.Context()
	require.NoError(t, b.real.BoardSave(ctx, &tracker.Board{TenantID: tenant, ID: "b1", Name: "b1", Revision: 1, Columns: []tracker.Column{{ID: "open"}, {ID: "doing"}}}))
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	args := map[string]string{"depth": "2"}
	promotes := func(bot, to string) func(*trigger.Subscription) {
		return func(s *trigger.Subscription) {
			s.Mode, s.BotID, s.ToColumn, s.Args = trigger.ModePromote, bot, to, args
		}
	}
	b.subscribe(t, "s1", "one", promotes("bot1", "doing"))
	b.subscribe(t, "s2", "two", promotes("bot2", ""))
	b.subscribe(t, "s3", "again", promotes("bot1", "doing"))
	b.subscribe(t, "s4", "nowhere", promotes("bot1", "gone"))
	label := func(l string) string {
		b.change(t, "c1", addLabel(l))
		b.relayed(t, "c1")
		b.drain(t)
		rows := b.rows(t)
		return rows[len(rows)-1].ID
	}
	b.create(t, "c1", "open")
	first := label("one")
	b.spawn(t, 0).run(t, 1)
	require.Equal(t, trigger.OutcomePromoted, b.row(t, first).Outcome)
	card := b.card(t, "c1")
	require.Equal(t, []any{"bot1", args, "doing"}, []any{card.BotID, card.BotArgs, card.ColumnID})
	b.relayed(t, "c1")
	events := b.events(t)
	e := events[len(events)-1]
	require.Equal(t, tracker.KindMoved, e.Kind, "one write, one event")
	require.Equal(t, []string{"open", "doing"}, []string{e.FromColumn, e.ToColumn})
	require.True(t, e.Cause.Has("s1", "c1"))

	label("again") // the card carries the bot: nothing is written
	rev := b.card(t, "c1").Rev
	b.spawn(t, 0).run(t, 1)
	require.Equal(t, rev, b.card(t, "c1").Rev)

	second := label("two")
	b.spawn(t, 0).run(t, 1)
	require.Equal(t, "bot2", b.card(t, "c1").BotID)
	byBot, err := b.real.CardList(ctx, tracker.CardListParams{TenantID: tenant, BotID: "bot2", Limit: 10})
	require.NoError(t, err)
	require.Len(t, byBot.Cards, 1)
	// The first row once more: a later event's promotion stays.
	stale := *b.row(t, first)
	rev = b.card(t, "c1").Rev
	require.Equal(t, trigger.OutcomePromoted, b.evaluator().Evaluate(ctx, &stale).Outcome)
	require.Equal(t, rev, b.card(t, "c1").Rev)
	require.Equal(t, "bot2", b.card(t, "c1").BotID)
	// Unless a person asks for it.
	_, err = b.real.EffectDecide(ctx, trigger.Decision{TenantID: tenant, EffectID: first, ID: "d", Action: trigger.ActionRerun, By: "mona", At: b.real.Now()})
	require.NoError(t, err)
	p := b.spawn(t, 0)
	p.sweep(t)
	p.run(t, 1)
	require.Equal(t, "bot1", b.card(t, "c1").BotID)
	require.NotEqual(t, first, second)

	b.change(t, "c1", func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.BotID = ""
		return card, nil, nil
	})
	lost := label("nowhere")
	b.spawn(t, 0).run(t, 1)
	require.Equal(t, trigger.ReasonPermanent, b.row(t, lost).Reason)
	require.Contains(t, b.row(t, lost).Errors[0].Message, "no column gone")
}

// testR4Leftover: a process that ended right after its row was done has left
// the consumption on the card; the janitor takes it off before the row goes.
func testR4Leftover(t *testing.T, b *bundle) {
	ctx := context.Background()
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	id := b.fired(t, "c1").ID
	p := b.spawn(t, 0)
	p.setHook(func(op string) {
		if op == "EffectSettleMany" {
			p.setCut(func(point string) error {
				if point == "CardGet:before" {
					return errCut
				}
				return nil
			})
		}
	})
	p.run(t, 1)
	require.Equal(t, trigger.StateDone, b.row(t, id).State)
	require.NotNil(t, b.card(t, "c1").ConsumedBy(id))
	b.relayed(t, "c1")
	b.drain(t)
	j := b.janitor()
	j.Events, j.Rows = time.Nanosecond, time.Nanosecond
	b.pass(time.Second)
	require.NoError(t, j.Clean(ctx))
	require.Nil(t, b.card(t, "c1").ConsumedBy(id))
}

func testW9Pauses(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "docs", func(s *trigger.Subscription) { s.BotID = "bot2" })
	for n, p := range []trigger.Pause{
		{TenantID: tenant, BotID: "bot1"},
		{TenantID: tenant},
		{},
	} {
		p.By, p.At = "mona", b.real.Now()
		require.NoError(t, b.real.PauseSet(ctx, p))
		b.create(t, fmt.Sprint("p", n), "open", "bug")
		b.create(t, fmt.Sprint("f", n), "open", "docs")
		b.relayed(t, fmt.Sprint("p", n))
		b.relayed(t, fmt.Sprint("f", n))
		b.drain(t)
		w := b.spawn(t, 0)
		free := 1
		if p.BotID == "" {
			free = 0
		}
		looked := make(chan struct{}, 100)
		w.setHook(func(op string) {
			if op == "LaneReschedule" {
				looked <- struct{}{}
			}
		})
		require.NoError(t, w.worker.Start(ctx))
		for range free {
			<-w.ended
		}
		recv(t, looked) // a paused lane is put off
		w.worker.Stop()
		paused := 0
		for _, row := range b.rows(t) {
			if row.State == trigger.StatePending {
				paused++
				require.Zero(t, row.Attempts)
			}
		}
		require.Equal(t, 2-free, paused)
		was, err := b.real.PauseClear(ctx, p.TenantID, p.BotID)
		require.NoError(t, err)
		require.True(t, was)
		next := b.spawn(t, 0)
		next.sweep(t)
		next.run(t, 2-free)
	}
}
