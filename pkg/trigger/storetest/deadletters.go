package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func runDeadLetters(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bundle){
		"TestDecide_EachActionFromEachState":            testDecideTable,
		"TestDecide_OfTwoAdminsAtOnceOneWins":           testDecideRace,
		"TestDecide_SentAgainDecidesOnce":               testDecideAgain,
		"TestDecide_RefusedAtTheDoor":                   testDecideDoor,
		"TestDecide_ARowThatWasWrittenSinceIsLeft":      testDecideSeen,
		"TestDecide_HistoryTellsWhoDidWhat":             testDecideHistory,
		"TestW12_ReplayKeepsTheKeyRerunMakesAnother":    testW12Keys,
		"TestW8_AForceNamesTheDeliveryThatWasSeen":      testW8Force,
		"TestDecide_MarksTheLane":                       testDecideLane,
		"TestDecide_CrashBetweenRowAndLane":             testDecideLaneCrash,
		"TestW7_DiscardReleasesTheConsumption":          testW7Discard,
		"TestEffectList_Filters":                        testFilters,
		"TestEffectList_PagesStayWhileRowsChange":       testPagesStable,
		"TestSubscriptionPause":                         testSubscriptionPause,
		"TestSubscriptionResume_ReleasesHeldRows":       testSubscriptionResume,
		"TestW9_PauseAndResume":                         testPauses,
		"TestW9_ResumeMarksTheLanesOfItsScope":          testResumeLanes,
		"TestBulk_PreparesAndTouchesNothing":            testBulkPrepare,
		"TestBulk_ActsOnJustThoseRows":                  testBulkJustThose,
		"TestBulk_CanBeStopped":                         testBulkStop,
		"TestBulk_GoesOnAfterACrashAnywhere":            testBulkCrash,
		"TestBulk_TwoRunnersDecideEachRowOnce":          testBulkRunners,
		"TestBulk_KeepsToItsBudgetAndItsRate":           testBulkBudget,
		"TestBulk_TenantsAreApart":                      testBulkTenants,
		"TestBulk_TakesTheFirstRowsAndSaysThereAreMore": testBulkMore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

func (f *faults) EffectDecide(ctx context.Context, d trigger.Decision) (row *trigger.Effect, err error) {
	err = f.write("EffectDecide", func() error {
		row, err = f.Store.EffectDecide(ctx, d)
		return err
	})
	if err != nil {
		return nil, err
	}
	return row, nil
}

func (f *faults) BulkAdvance(ctx context.Context, tenantID, id string, from, to, applied, refused int) (ok bool, err error) {
	err = f.write("BulkAdvance", func() error {
		ok, err = f.Store.BulkAdvance(ctx, tenantID, id, from, to, applied, refused)
		return err
	})
	return ok && err == nil, err
}

func (b *bundle) dead() *trigger.DeadLetters {
	return &trigger.DeadLetters{
		Outbox: b.faults, Lanes: b.faults, Bulks: b.faults, Pauses: b.faults, Config: b.faults, Heads: b.faults, Clock: b.faults, Logger: zerolog.Nop(),
		Release: trigger.ConsumptionRelease(b.board), BulkRate: 1_000_000,
	}
}

// in makes a row in a state, with what such a row has.
func (b *bundle) in(t *testing.T, n int, state trigger.State, with ...func(*trigger.Effect)) trigger.Effect {
	t.Helper()
	now := b.real.Now().Add(-time.Second)
	row := effect(n, lane, now)
	row.State, row.Rendered = state, `{"n":1}`
	switch state {
	case trigger.StateClaimed:
		row.Attempts, row.ClaimID, row.Worker, row.NotBefore = 1, uuid.NewString(), "w1", now.Add(time.Hour)
	case trigger.StateDone:
		row.Attempts, row.ClaimID, row.Outcome, row.RunID, row.DoneAt = 1, uuid.NewString(), trigger.OutcomeLaunched, "run-1", now
	case trigger.StateFailed:
		row.Attempts, row.ClaimID, row.Reason = 5, uuid.NewString(), trigger.ReasonExhausted
	case trigger.StateReconcile:
		row.Attempts, row.ClaimID, row.DeliveryStartedAt = 1, uuid.NewString(), now.Add(-time.Minute)
	}
	for _, f := range with {
		f(&row)
	}
	b.materialize(t, row)
	return *b.row(t, row.ID)
}

// decision is a whole one about the row.
func decision(row trigger.Effect, action trigger.Action, by string) trigger.Decision {
	d := trigger.Decision{TenantID: row.TenantID, EffectID: row.ID, Action: action, By: by}
	if action == trigger.ActionForce {
		d.StartedAt = row.DeliveryStartedAt
		if d.StartedAt.IsZero() {
			d.StartedAt = row.UpdatedAt
		}
	}
	return d
}

func (b *bundle) decide(t *testing.T, row trigger.Effect, action trigger.Action) trigger.Effect {
	t.Helper()
	got, err := b.dead().Decide(t.Context(), decision(row, action, "cli:mona"))
	require.NoError(t, err)
	require.Equal(t, got, b.row(t, row.ID), "what is returned is what is there")
	return *got
}

func testDecideTable(t *testing.T, b *bundle) {
	ctx := t.Context()
	to := make(map[trigger.Action]map[trigger.State]trigger.State)
	for _, a := range trigger.Actions() {
		to[a] = make(map[trigger.State]trigger.State)
		for _, tr := range trigger.Transitions() {
			if tr.By == string(a) {
				to[a][tr.From] = tr.To
			}
		}
		require.NotEmpty(t, to[a], a)
	}
	n := 0
	for _, state := range trigger.States() {
		for _, action := range trigger.Actions() {
			n++
			row := b.in(t, n, state)
			got, err := b.dead().Decide(ctx, decision(row, action, "cli:mona"))
			after := b.row(t, row.ID)
			want, ok := to[action][state]
			if !ok {
				require.ErrorIs(t, err, tracker.ErrConflict, "%s from %s", action, state)
				require.ErrorContains(t, err, string(state))
				require.Equal(t, &row, after, "%s from %s", action, state)
				continue
			}
			require.NoError(t, err, "%s from %s", action, state)
			require.Equal(t, got, after, "%s from %s", action, state)
			require.Equal(t, want, after.State, "%s from %s", action, state)
			require.Len(t, after.History, 1)
			require.Equal(t, want == trigger.StateDone || want == trigger.StateDiscarded, !after.DoneAt.IsZero())
			require.True(t, after.DeliveryStartedAt.IsZero() || want == trigger.StateDiscarded, "a person's word ends the doubt")
			if want == trigger.StatePending {
				require.Zero(t, after.Attempts)
				require.Empty(t, after.Reason)
				require.Empty(t, after.Outcome)
			}
			if state == trigger.StateReconcile {
				require.NotEqual(t, row.ClaimID, after.ClaimID, "a late answer to what was decided over is refused (W2)")
				require.False(t, b.settle(t, b.done(row)))
			} else {
				require.Equal(t, row.ClaimID, after.ClaimID, "a settle sent again is recognized (W2)")
			}
		}
	}
	// A kind of a newer version is left alone (R2).
	row := b.in(t, n+1, trigger.StateFailed, func(e *trigger.Effect) { e.Kind = "teleport" })
	_, err := b.dead().Decide(ctx, decision(row, trigger.ActionReplay, "cli:mona"))
	require.ErrorIs(t, err, tracker.ErrConflict)
	require.Equal(t, &row, b.row(t, row.ID))
	// Nor is a launch that was cut to end a loop run again.
	row = b.in(t, n+2, trigger.StateDone, func(e *trigger.Effect) { e.Outcome = trigger.OutcomeLoopCut })
	_, err = b.dead().Decide(ctx, decision(row, trigger.ActionRerun, "cli:mona"))
	require.ErrorIs(t, err, tracker.ErrConflict)
	require.Equal(t, &row, b.row(t, row.ID))
}

func testDecideRace(t *testing.T, b *bundle) {
	for n := range 10 {
		row := b.in(t, n+1, trigger.StateFailed)
		// Nobody writes before all have begun.
		var wg, begun sync.WaitGroup
		begun.Add(4)
		var won atomic.Int32
		for i := range 4 {
			wg.Go(func() {
				begun.Done()
				begun.Wait()
				action := trigger.ActionReplay
				if i%2 == 1 {
					action = trigger.ActionDiscard
				}
				switch _, err := b.dead().Decide(t.Context(), decision(row, action, fmt.Sprintf("cli:%d", i))); {
				case err == nil:
					won.Add(1)
				case !strings.Contains(err.Error(), tracker.ErrConflict.Error()):
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, won.Load())
		require.Len(t, b.row(t, row.ID).History, 1)
	}
}

func testDecideAgain(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := b.in(t, 1, trigger.StateFailed)
	d := decision(row, trigger.ActionReplay, "cli:mona")
	d.ID = "once"
	// The answer of the first one is lost.
	b.setCut(failOnce("EffectDecide:after"))
	_, err := b.dead().Decide(ctx, d)
	require.ErrorIs(t, err, errCut)
	first := b.row(t, row.ID)
	require.Equal(t, trigger.StatePending, first.State)
	got, err := b.dead().Decide(ctx, d)
	require.NoError(t, err)
	require.Equal(t, first, got)
	require.Equal(t, first, b.row(t, row.ID))
	// It failed again meanwhile: still the same decision.
	claimed := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	got, err = b.dead().Decide(ctx, d)
	require.NoError(t, err)
	require.Equal(t, trigger.StateFailed, got.State)
	require.Len(t, got.History, 1)
	// Another one is another.
	d.ID = ""
	got, err = b.dead().Decide(ctx, d)
	require.NoError(t, err)
	require.Equal(t, trigger.StatePending, got.State)
	require.Len(t, got.History, 2)
}

func testDecideDoor(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := b.in(t, 1, trigger.StateReconcile)
	good := decision(row, trigger.ActionConfirm, "cli:mona")
	for field, spoil := range map[string]func(*trigger.Decision){
		"by":                  func(d *trigger.Decision) { d.By = "" },
		"note":                func(d *trigger.Decision) { d.Note = strings.Repeat("n", trigger.NoteMaxBytes+1) },
		"action":              func(d *trigger.Decision) { d.Action = "bless" },
		"effect":              func(d *trigger.Decision) { d.EffectID = "" },
		"run_id":              func(d *trigger.Decision) { d.RunID = "a\x00b" },
		"delivery_started_at": func(d *trigger.Decision) { d.Action = trigger.ActionForce },
	} {
		d := good
		spoil(&d)
		_, err := b.dead().Decide(ctx, d)
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, field)
		require.Equal(t, field, fe.Field)
	}
	for _, note := range []string{"two\nlines", "\x1b[2J", "bad \xff"} {
		d := good
		d.Note = note
		_, err := b.dead().Decide(ctx, d)
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe)
		require.Equal(t, "note", fe.Field)
	}
	d := good
	d.Action, d.RunID, d.StartedAt = trigger.ActionForce, "r", row.DeliveryStartedAt
	_, err := b.dead().Decide(ctx, d)
	require.ErrorContains(t, err, "run_id")
	for name, spoil := range map[string]func(*trigger.Decision){
		"no such row":        func(d *trigger.Decision) { d.EffectID += "x" },
		"another tenant's":   func(d *trigger.Decision) { d.TenantID = "other" },
		"an event's, not it": func(d *trigger.Decision) { d.EffectID = trigger.EventID(tenant, 1) },
	} {
		d := good
		spoil(&d)
		_, err := b.dead().Decide(ctx, d)
		require.ErrorIs(t, err, tracker.ErrNotFound, name)
	}
	require.Equal(t, &row, b.row(t, row.ID))
}

func testDecideSeen(t *testing.T, b *bundle) {
	row := b.in(t, 1, trigger.StateFailed)
	seen := row.UpdatedAt
	b.decide(t, row, trigger.ActionReplay)
	claimed := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	before := b.row(t, row.ID)
	d := decision(row, trigger.ActionDiscard, "cli:mona")
	d.SeenAt = seen
	_, err := b.dead().Decide(t.Context(), d)
	require.ErrorIs(t, err, tracker.ErrConflict)
	require.Equal(t, before, b.row(t, row.ID))
	d.SeenAt = before.UpdatedAt
	_, err = b.dead().Decide(t.Context(), d)
	require.NoError(t, err)
}

func testDecideHistory(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := b.in(t, 1, trigger.StateReconcile)
	d := decision(row, trigger.ActionConfirm, "token:ops")
	d.RunID, d.Note = "run-7", "the bot's log has it"
	got, err := b.dead().Decide(ctx, d)
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeLaunched, got.Outcome)
	require.Equal(t, "run-7", got.RunID)
	got, err = b.dead().Decide(ctx, decision(row, trigger.ActionRerun, "cli:mona"))
	require.NoError(t, err)
	require.Len(t, got.History, 2)
	first, second := got.History[0], got.History[1]
	require.NotEmpty(t, first.ID)
	require.NotEqual(t, first.ID, second.ID)
	require.WithinDuration(t, b.real.Now(), first.At, time.Minute)
	first.ID, first.At, second.ID, second.At = "", time.Time{}, "", time.Time{}
	require.Equal(t, trigger.HistoryEntry{
		Action: trigger.ActionConfirm, By: "token:ops", Note: "the bot's log has it", From: trigger.StateReconcile, Attempts: 1, StartedAt: row.DeliveryStartedAt,
	}, first)
	require.Equal(t, trigger.HistoryEntry{
		Action: trigger.ActionRerun, By: "cli:mona", From: trigger.StateDone, Outcome: trigger.OutcomeLaunched, RunID: "run-7", Attempts: 1,
	}, second)
	// The latest ones are kept.
	for range trigger.HistoryKept {
		claimed := b.claimOne(t, lane, time.Minute)
		require.True(t, b.settle(t, b.done(claimed)))
		_, err = b.dead().Decide(ctx, decision(row, trigger.ActionRerun, "cli:hubot"))
		require.NoError(t, err)
	}
	after := b.row(t, row.ID)
	require.Len(t, after.History, trigger.HistoryKept)
	require.Equal(t, "cli:hubot", after.History[0].By)
	require.Equal(t, trigger.HistoryKept+1, after.Generation)
}

func testW12Keys(t *testing.T, b *bundle) {
	failed := b.in(t, 1, trigger.StateFailed)
	got := b.decide(t, failed, trigger.ActionReplay)
	require.Equal(t, failed.ID, got.IdempotencyKey())
	require.Equal(t, failed.Rendered, got.Rendered, "another attempt sends the same bytes")
	done := b.in(t, 2, trigger.StateDone)
	got = b.decide(t, done, trigger.ActionRerun)
	require.Equal(t, done.ID+"#1", got.IdempotencyKey())
	require.Empty(t, got.Rendered, "another request, rendered anew")
	// A replay of the second generation is of the second generation.
	var second trigger.Effect
	for second.ID != done.ID {
		second = b.claimOne(t, lane, time.Minute)
	}
	require.True(t, b.settle(t, trigger.Settle{Fence: second.Fence(), At: b.real.Now(), To: trigger.StateFailed, Reason: trigger.ReasonPermanent}))
	got = b.decide(t, done, trigger.ActionReplay)
	require.Equal(t, done.ID+"#1", got.IdempotencyKey())
}

func testW8Force(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := b.in(t, 1, trigger.StateReconcile)
	stale := decision(row, trigger.ActionForce, "cli:mona")
	got := b.decide(t, row, trigger.ActionForce)
	require.Equal(t, trigger.StatePending, got.State)
	require.True(t, got.DeliveryStartedAt.IsZero())
	// The second delivery ends in doubt too; the first one's force is sent again.
	claimed := b.claimOne(t, lane, time.Millisecond)
	require.NoError(t, b.real.EffectStart(ctx, claimed.Fence(), b.real.Now(), "{}"))
	require.True(t, b.settle(t, trigger.Settle{Fence: claimed.Fence(), At: b.real.Now(), To: trigger.StateReconcile}))
	before := b.row(t, row.ID)
	_, err := b.dead().Decide(ctx, stale)
	require.ErrorIs(t, err, tracker.ErrConflict)
	require.Equal(t, before, b.row(t, row.ID), "a force sent twice decides once")
	b.decide(t, *before, trigger.ActionForce)
}

func testDecideLane(t *testing.T, b *bundle) {
	for i, c := range []struct {
		state  trigger.State
		action trigger.Action
		marks  bool
	}{
		{trigger.StateFailed, trigger.ActionReplay, true},
		{trigger.StateDone, trigger.ActionRerun, true},
		{trigger.StateReconcile, trigger.ActionForce, true},
		{trigger.StateHeld, trigger.ActionRelease, true},
		{trigger.StateReconcile, trigger.ActionConfirm, false},
		{trigger.StateFailed, trigger.ActionDiscard, false},
	} {
		own := trigger.LaneBot(fmt.Sprintf("bot-%d", i))
		row := b.in(t, i+1, c.state, func(e *trigger.Effect) { e.Lane = own })
		woken := 0
		dead := b.dead()
		dead.Wake = func() { woken++ }
		_, err := dead.Decide(t.Context(), decision(row, c.action, "cli:mona"))
		require.NoError(t, err)
		if c.marks {
			require.Contains(t, b.dueLanes(t), tenant+" "+own, c.action)
			require.Equal(t, 1, woken)
		} else {
			require.NotContains(t, b.dueLanes(t), tenant+" "+own, c.action)
			require.Zero(t, woken)
		}
	}
	require.Empty(t, b.lateLanes(t))
	// A poison event waits in a lane of its own.
	row := b.in(t, 50, trigger.StateFailed, func(e *trigger.Effect) {
		e.Kind, e.Lane, e.Reason, e.ID = trigger.KindEvent, "", trigger.ReasonPoison, trigger.PoisonID(trigger.EventID(tenant, 50))
	})
	b.decide(t, row, trigger.ActionReplay)
	require.Contains(t, b.dueLanes(t), tenant+" "+trigger.LaneEvents)
}

func testDecideLaneCrash(t *testing.T, b *bundle) {
	row := b.in(t, 1, trigger.StateFailed)
	b.setCut(failOnce("LaneMarkMany:before"))
	var log bytes.Buffer
	dead := b.dead()
	dead.Logger = zerolog.New(&log)
	got, err := dead.Decide(t.Context(), decision(row, trigger.ActionReplay, "cli:mona"))
	require.NoError(t, err, "the row is replayed")
	require.Equal(t, trigger.StatePending, got.State)
	require.Contains(t, log.String(), `"level":"warn"`)
	require.Empty(t, b.dueLanes(t))
	require.Equal(t, []string{tenant + " " + lane}, b.lateLanes(t), "the sweep finds it")

	// A resume likewise.
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.Paused = true })
	b.in(t, 2, trigger.StateHeld, func(e *trigger.Effect) { e.Lane = "bot:held" })
	b.setCut(failOnce("LaneMarkMany:before"))
	_, n, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Empty(t, b.dueLanes(t))
	require.ElementsMatch(t, []string{tenant + " " + lane, tenant + " bot:held"}, b.lateLanes(t))
}

func testW7Discard(t *testing.T, b *bundle) {
	ctx := t.Context()
	consumed := func(card string) int {
		c, err := b.real.CardGet(ctx, tenant, card)
		require.NoError(t, err)
		return len(c.Consumed)
	}
	fail := func(n int, card string, marked bool) trigger.Effect {
		row := b.in(t, n, trigger.StateFailed, func(e *trigger.Effect) {
			e.CardID, e.Consume, e.ConsumeMarked = card, []string{"bug"}, marked
			e.Plan = &trigger.LaunchPlan{BotID: "bot1", Body: "{}"}
		})
		b.create(t, card, "open")
		b.relayed(t, card)
		b.change(t, card, func(c *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			c.Consumed = append(c.Consumed, tracker.Consumption{EffectID: row.ID, Labels: []string{"bug"}, At: now}, tracker.Consumption{EffectID: "other", At: now})
			return c, nil, nil
		})
		require.Equal(t, 2, consumed(card))
		return row
	}
	replayed := fail(1, "c1", true)
	b.decide(t, replayed, trigger.ActionReplay)
	require.Equal(t, 2, consumed("c1"), "a replay must still find it")
	b.decide(t, fail(2, "c2", true), trigger.ActionDiscard)
	require.Equal(t, 1, consumed("c2"))
	// Spent, and the process died before the row knew.
	b.decide(t, fail(3, "c3", false), trigger.ActionDiscard)
	require.Equal(t, 1, consumed("c3"))
	// Trouble with the card is the janitor's.
	row := fail(4, "c4", true)
	var log bytes.Buffer
	dead := b.dead()
	dead.Logger = zerolog.New(&log)
	dead.Release = func(context.Context, *trigger.Effect) error { return errCut }
	_, err := dead.Decide(ctx, decision(row, trigger.ActionDiscard, "cli:mona"))
	require.NoError(t, err)
	require.Contains(t, log.String(), row.ID)
	require.Equal(t, 2, consumed("c4"))
	require.Equal(t, trigger.StateDiscarded, b.row(t, row.ID).State)
}
