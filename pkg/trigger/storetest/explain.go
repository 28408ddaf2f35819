package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// explainTests hold the engine to what it tells people, one test for each
// answer, each by the way that the answer really comes about.
func explainTests() map[string]func(*testing.T, *bundle) {
	tests := map[string]func(*testing.T, *bundle){
		"TestEventListByCard":                      testEventListByCard,
		"TestEffectListBySubscription":             testEffectListBySubscription,
		"TestExplain_EveryAnswerHasATest":          testExplainAll,
		"TestExplain_RowOutlivesItsEvent":          testExplainOutlived,
		"TestExplain_SinceBeforeTheKeptEvents":     testExplainBefore,
		"TestExplain_LabelTakenByAnotherEvent":     testExplainOtherEvent,
		"TestExplain_TellsOfTheNewestEventToo":     testExplainLatest,
		"TestExplain_ChangedSubscriptionKeepsARow": testExplainEdited,
		"TestExplain_ReplayedPoison":               testExplainReplayed,
		"TestExplain_WhenThatFails":                testExplainWhenFails,
		"TestExplain_ManySubscriptions":            testExplainMany,
		"TestExplain_NoSuchSubscription":           testExplainNone,
		"TestDryRun_OverTheLog":                    testDryRunLog,
		"TestDryRun_OverACard":                     testDryRunCard,
		"TestDryRun_Refusals":                      testDryRunRefusals,
		"TestDryRun_VerdictsAreTheMatchers":        testDryRunVerdicts,
		"TestDryRun_LogWithGaps":                   testDryRunGaps,
		"TestSubscriptionLog":                      testSubscriptionLog,
	}
	for answer, test := range answerTests() {
		tests["TestExplain_"+string(answer)] = test
	}
	return tests
}

// answerTests are the tests of the single answers.
func answerTests() map[trigger.Answer]func(*testing.T, *bundle) {
	return map[trigger.Answer]func(*testing.T, *bundle){
		trigger.AnswerFired:           testExplainFired,
		trigger.AnswerPending:         testExplainPending,
		trigger.AnswerRetrying:        testExplainRetrying,
		trigger.AnswerClaimed:         testExplainClaimed,
		trigger.AnswerLaunchesPaused:  testExplainLaunchesPaused,
		trigger.AnswerHeldByPause:     testExplainHeld,
		trigger.AnswerHeldByGuard:     testExplainGuarded,
		trigger.AnswerFailed:          testExplainFailed,
		trigger.AnswerReconcile:       testExplainReconcile,
		trigger.AnswerDiscarded:       testExplainDiscarded,
		trigger.AnswerOneShotSpent:    testExplainSpent,
		trigger.AnswerLoopCut:         testExplainLoop,
		trigger.AnswerNotLaunched:     testExplainNotLaunched,
		trigger.AnswerCondition:       testExplainCondition,
		trigger.AnswerActor:           testExplainActor,
		trigger.AnswerEdgeSpent:       testExplainEdge,
		trigger.AnswerEnabledAfter:    testExplainEnabledAfter,
		trigger.AnswerDisabled:        testExplainDisabled,
		trigger.AnswerNotRead:         testExplainNotRead,
		trigger.AnswerPoison:          testExplainPoison,
		trigger.AnswerEvaluation:      testExplainEvaluation,
		trigger.AnswerChangedSince:    testExplainChangedSince,
		trigger.AnswerEventNotKept:    testExplainNotKept,
		trigger.AnswerCardUnknown:     testExplainUnknown,
		trigger.AnswerNobodyKnows:     testExplainNobodyKnows,
		trigger.AnswerUnknownFeatures: testExplainFeatures,
	}
}

// readOnly is a store that can be read, as far as explaining needs; every
// other method is missing, and a call of it fails the test.
type readOnly struct {
	trigger.Store // nil
	from          trigger.Store
}

func (r readOnly) EventList(ctx context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	return r.from.EventList(ctx, tenantID, after, upTo)
}

func (r readOnly) EventListByCard(ctx context.Context, tenantID, cardID string, before int64, limit int) ([]trigger.Event, error) {
	return r.from.EventListByCard(ctx, tenantID, cardID, before, limit)
}

func (r readOnly) EffectGet(ctx context.Context, tenantID, id string) (*trigger.Effect, error) {
	return r.from.EffectGet(ctx, tenantID, id)
}

func (r readOnly) EffectListByEvent(ctx context.Context, tenantID, id string) ([]trigger.Effect, error) {
	return r.from.EffectListByEvent(ctx, tenantID, id)
}

func (r readOnly) EffectListBySubscription(ctx context.Context, tenantID, id string, before int64, limit int) ([]trigger.Effect, error) {
	return r.from.EffectListBySubscription(ctx, tenantID, id, before, limit)
}

func (r readOnly) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	return r.from.SubscriptionGet(ctx, tenantID, id)
}

func (r readOnly) SubscriptionList(ctx context.Context, tenantID string) ([]trigger.Subscription, error) {
	return r.from.SubscriptionList(ctx, tenantID)
}

func (r readOnly) CardGet(ctx context.Context, tenantID, id string) (*tracker.Card, error) {
	return r.from.CardGet(ctx, tenantID, id)
}

func (r readOnly) CardsGet(ctx context.Context, tenantID string, ids []string) ([]*tracker.Card, error) {
	return r.from.CardsGet(ctx, tenantID, ids)
}

func (r readOnly) HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error) {
	return r.from.HeadGet(ctx, tenantID)
}

func (r readOnly) PauseList(ctx context.Context) ([]trigger.Pause, error) {
	return r.from.PauseList(ctx)
}

func (b *bundle) explainer() *trigger.Explainer {
	return trigger.NewExplainer(readOnly{from: b.real})
}

// explained explains a card for a subscription, and checks the answer and what
// its sentence says.
func (b *bundle) explained(t *testing.T, card, sub string, want trigger.Answer, says ...string) *trigger.Explanation {
	t.Helper()
	got, err := b.explainer().Explain(t.Context(), tenant, card, sub)
	require.NoError(t, err)
	require.Equal(t, want, got.Answer, got.Sentence)
	for _, s := range says {
		require.Contains(t, got.Sentence, s)
	}
	require.True(t, strings.HasSuffix(got.Sentence, "."), "a sentence: %s", got.Sentence)
	require.NotContains(t, got.Sentence, "..")
	require.Equal(t, card, got.CardID)
	require.Equal(t, sub, got.SubscriptionID)
	if got.Row != nil {
		// The subscription's log says the same of the row.
		page, err := b.explainer().SubscriptionLog(t.Context(), tenant, sub, 0, trigger.LogMax)
		require.NoError(t, err)
		i := slices.IndexFunc(page.Entries, func(e trigger.LogEntry) bool { return e.ID == got.Row.ID })
		if !strings.HasSuffix(got.Row.ID, "!") { // the event's, not the subscription's
			require.GreaterOrEqual(t, i, 0)
			require.Equal(t, want, page.Entries[i].Answer)
			require.Equal(t, *got.Row, page.Entries[i])
		}
	}
	return got
}

func testExplainAll(t *testing.T, _ *bundle) {
	require.ElementsMatch(t, trigger.Answers(), slices.Collect(maps.Keys(answerTests())))
}

// owes makes a bot, a subscription "s1" to a label, and a card "c1" that comes
// to carry it; its event is read by the tail.
func (b *bundle) owing(t *testing.T, with ...func(*trigger.Subscription)) *trigger.Subscription {
	t.Helper()
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "bug", with...)
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	return sub
}

func testExplainFired(t *testing.T, b *bundle) {
	b.owing(t)
	b.work(t, 1)
	got := b.explained(t, "c1", "s1", trigger.AnswerFired, "Event 1 (card.created by mona) fired it", "run run-acme/000000000001|s1")
	require.EqualValues(t, 1, got.Event.Seq)
	require.True(t, got.Verdict.Fires)
	require.Nil(t, got.Failed)
	require.Nil(t, got.Latest)
	require.Equal(t, "s1", got.SubscriptionName)
	require.Equal(t, trigger.OutcomeLaunched, got.Row.Outcome)

	// A person ran it again.
	b.decide(t, *b.row(t, got.Row.ID), trigger.ActionRerun)
	b.work(t, 1)
	got = b.explained(t, "c1", "s1", trigger.AnswerFired)
	require.Equal(t, trigger.ActionRerun, got.Row.Decided.Action)
	require.Equal(t, "cli:mona", got.Row.Decided.By)

	b.subscribe(t, "s2", "docs", func(s *trigger.Subscription) { s.Mode = trigger.ModePromote })
	b.create(t, "c2", "open", "docs")
	b.relayed(t, "c2")
	b.drain(t)
	b.work(t, 1)
	b.explained(t, "c2", "s2", trigger.AnswerFired, "carries the bot")
}

func testExplainPending(t *testing.T, b *bundle) {
	b.owing(t)
	got := b.explained(t, "c1", "s1", trigger.AnswerPending, "waits for a worker")
	require.Nil(t, got.Taker)
}

func testExplainRetrying(t *testing.T, b *bundle) {
	b.owing(t)
	tried := make(chan struct{}, 1)
	w := b.worker(settling(func(_ trigger.Effect, s trigger.Settle) {
		if s.To == trigger.StatePending {
			tried <- struct{}{}
		}
	}), launching(func(trigger.LaunchRequest) error { return &trigger.LaunchError{Message: "status 503"} }))
	w.RetryBase, w.RetryCap = time.Hour, 2*time.Hour
	require.NoError(t, w.Start(t.Context()))
	defer w.Stop()
	select {
	case <-tried:
	case <-time.After(30 * time.Second):
		t.Fatal("no attempt")
	}
	got := b.explained(t, "c1", "s1", trigger.AnswerRetrying, "attempt 1 failed", "status 503", "due on 20")
	require.Contains(t, got.Row.LastError, "status 503")
}

func testExplainClaimed(t *testing.T, b *bundle) {
	b.owing(t)
	b.claimOne(t, lane, time.Minute)
	b.explained(t, "c1", "s1", trigger.AnswerClaimed, "w1 is at it, attempt 1")
}

func testExplainLaunchesPaused(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.owing(t)
	require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: tenant, Revision: 1}))
	for _, c := range []struct {
		pause trigger.Pause
		says  string
	}{
		{trigger.Pause{TenantID: tenant, BotID: "bot1", By: "ops", Note: "it burns"}, "ops paused the bot's launches: it burns"},
		{trigger.Pause{TenantID: tenant, By: "ops"}, "ops paused the tenant's launches"},
		{trigger.Pause{By: "root", Note: "secret"}, "all launches are paused"},
	} {
		_, err := b.dead().Pause(ctx, c.pause)
		require.NoError(t, err)
		got := b.explained(t, "c1", "s1", trigger.AnswerLaunchesPaused, c.says)
		require.NotContains(t, got.Sentence, "root", "who paused the fleet is not the tenant's affair")
		_, err = b.dead().Resume(ctx, c.pause.TenantID, c.pause.BotID)
		require.NoError(t, err)
		b.explained(t, "c1", "s1", trigger.AnswerPending)
	}
}

func testExplainHeld(t *testing.T, b *bundle) {
	sub := b.owing(t)
	_, err := b.dead().SubscriptionPause(t.Context(), tenant, "s1", "cli:mona", "it floods")
	require.NoError(t, err)
	got := b.explained(t, "c1", "s1", trigger.AnswerPending)
	require.Contains(t, got.Notes[0], "paused, by cli:mona")
	b.work(t, 1)
	b.explained(t, "c1", "s1", trigger.AnswerHeldByPause, "cli:mona paused the subscription: it floods", "resumes it")
	// Resumed, and not released yet.
	sub.Revision = 2
	b.pause(t, sub, false)
	b.explained(t, "c1", "s1", trigger.AnswerHeldByPause, "no longer paused")
}

func testExplainGuarded(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) {
		s.Paused, s.PausedBy, s.PausedWhy = true, "system:storm-guard", "120 in a minute"
	})
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.explained(t, "c1", "s1", trigger.AnswerHeldByGuard, "storm guard", "120 in a minute", "release or discard")

	// Beyond what is held as rows: the log has passed the event.
	b.create(t, "c2", "open", "bug")
	b.relayed(t, "c2")
	moved, err := b.real.HeadAdvance(ctx, tenant, 1, 2)
	require.NoError(t, err)
	require.True(t, moved)
	b.explained(t, "c2", "s1", trigger.AnswerNobodyKnows)
	b.create(t, "c3", "open", "bug") // not in the log: nobody can keep its seq
	sub := b.sub(t, "s1")
	guard := func(change func(*trigger.Subscription)) {
		change(sub)
		sub.Revision++
		require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	}
	guard(func(s *trigger.Subscription) { s.Guard.HeldFrom = 2 })
	b.explained(t, "c2", "s1", trigger.AnswerHeldByGuard, "looks at this event again")
	b.explained(t, "c3", "s1", trigger.AnswerNotRead)
	guard(func(s *trigger.Subscription) { s.PausedBy = "cli:mona" })
	b.explained(t, "c2", "s1", trigger.AnswerHeldByPause, "cli:mona", "looks at this event again")
	guard(func(s *trigger.Subscription) { s.Paused, s.PausedBy = false, "" })
	b.explained(t, "c2", "s1", trigger.AnswerNotRead, "being looked at again")
	// What was left because too much was held, and only that, was discarded
	// without a row.
	_, _, err = b.dead().SubscriptionDiscard(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.explained(t, "c2", "s1", trigger.AnswerDiscarded, "what was held was discarded")
	sub = b.sub(t, "s1")
	guard(func(s *trigger.Subscription) { s.Paused = true })
	_, _, err = b.dead().SubscriptionDiscard(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.explained(t, "c2", "s1", trigger.AnswerDiscarded)
}

func testExplainFailed(t *testing.T, b *bundle) {
	b.owing(t)
	b.work(t, 1, launching(func(trigger.LaunchRequest) error {
		return &trigger.LaunchError{Message: "status 400", Permanent: true}
	}))
	got := b.explained(t, "c1", "s1", trigger.AnswerFailed, "after 1 attempt (permanent)", "status 400", "replay")
	require.Equal(t, trigger.ReasonPermanent, got.Row.Reason)
}

func testExplainReconcile(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	require.NoError(t, b.real.BotSave(t.Context(), &trigger.Bot{
		TenantID: tenant, ID: "bot1", Name: "bot1", URL: "http://bot.invalid", Replay: trigger.ReplayUnsafe, Secret: "s", Revision: 1,
	}))
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.work(t, 1, launching(func(trigger.LaunchRequest) error { return errors.New("connection reset") }))
	got := b.explained(t, "c1", "s1", trigger.AnswerReconcile, "a person has to say")
	b.decide(t, *b.row(t, got.Row.ID), trigger.ActionConfirm)
	b.explained(t, "c1", "s1", trigger.AnswerFired, "as cli:mona confirmed")
}

func testExplainDiscarded(t *testing.T, b *bundle) {
	testExplainFailed(t, b)
	row := b.row(t, trigger.EffectID(trigger.EventID(tenant, 1), "s1"))
	d := decision(*row, trigger.ActionDiscard, "cli:mona")
	d.Note = "not worth it"
	_, err := b.dead().Decide(t.Context(), d)
	require.NoError(t, err)
	got := b.explained(t, "c1", "s1", trigger.AnswerDiscarded, "cli:mona gave it up on 20", "not worth it")
	require.Equal(t, trigger.ActionDiscard, got.Row.Decided.Action)
}

func testExplainSpent(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s-a-late", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 2 })
	b.subscribe(t, "s-first", "Ship-It", oneShot("Ship-It"), func(s *trigger.Subscription) { s.Rank = 1 })
	event := b.fired(t, "c1").Event
	first := trigger.EffectID(event.ID(), "s-first")
	// Before: the other one comes first, and nobody before that.
	got := b.explained(t, "c1", "s-a-late", trigger.AnswerPending, `s-first comes first for the label "ship-it"`)
	require.Equal(t, &trigger.Taker{EffectID: first, SubscriptionID: "s-first", SubscriptionName: "s-first", Label: "ship-it"}, got.Taker)
	require.Nil(t, b.explained(t, "c1", "s-first", trigger.AnswerPending).Taker)
	b.work(t, 2)
	b.relayed(t, "c1")
	b.drain(t)
	got = b.explained(t, "c1", "s-a-late", trigger.AnswerOneShotSpent, `the label "ship-it" went to the subscription s-first`, first)
	require.Equal(t, &trigger.Taker{EffectID: first, SubscriptionID: "s-first", SubscriptionName: "s-first", Label: "ship-it"}, got.Taker)
	require.Equal(t, event.Seq, got.Event.Seq, "taking the label off is no edge")
	b.explained(t, "c1", "s-first", trigger.AnswerFired)
	// The rows of the event tell, whatever has become of the card.
	b.stamped(t, "c1", "ship-it", "")
	require.Equal(t, first, b.explained(t, "c1", "s-a-late", trigger.AnswerOneShotSpent).Taker.EffectID)
}

// stamped says on the card who spent the label.
func (b *bundle) stamped(t *testing.T, card, label, by string) {
	t.Helper()
	b.change(t, card, func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Stamps.SetLabel(tracker.LabelStamp{Label: label, Stamp: tracker.Stamp{At: now}, SpentBy: by})
		return card, nil, nil
	})
}

func testExplainOtherEvent(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	b.subscribe(t, "s2", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindEdited} })
	b.create(t, "c1", "open", "ship-it")
	b.change(t, "c1", retitle("Other"))
	b.relayed(t, "c1")
	b.drain(t)
	s1, s2 := trigger.EffectID(trigger.EventID(tenant, 1), "s1"), trigger.EffectID(trigger.EventID(tenant, 2), "s2")
	for _, id := range []string{s1, s2} {
		_, err := b.attempt(t, id)
		require.NoError(t, err)
	}
	got := b.explained(t, "c1", "s2", trigger.AnswerOneShotSpent, "went to the subscription s1", s1)
	require.Equal(t, s1, got.Taker.EffectID)
	// By what the card's consumptions say, and by its stamps alone.
	b.stamped(t, "c1", "ship-it", "")
	require.Equal(t, s1, b.explained(t, "c1", "s2", trigger.AnswerOneShotSpent).Taker.EffectID)
	b.stamped(t, "c1", "ship-it", s1)
	require.NoError(t, b.evaluator().Release(t.Context(), tenant, "c1", s1))
	require.Empty(t, b.card(t, "c1").Consumed)
	require.Equal(t, s1, b.explained(t, "c1", "s2", trigger.AnswerOneShotSpent).Taker.EffectID)
}

func testExplainLoop(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	long := tracker.Cause{}
	for range trigger.ChainDepthMax {
		long = long.Then("s0", "c0")
	}
	for card, c := range map[string]struct {
		cause tracker.Cause
		says  string
	}{"c1": {tracker.Cause{}.Then("s1", "c1"), "goes back to this very subscription"}, "c2": {long, "8 effects led to"}} {
		b.change(t, card, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: card, Labels: []string{"bug"}},
				&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human, Cause: c.cause}, nil
		})
		b.relayed(t, card)
		b.drain(t)
		b.explained(t, card, "s1", trigger.AnswerLoopCut, "cut to end a loop", c.says)
	}
	dry, err := b.explainer().DryRun(t.Context(), tenant, b.sub(t, "s1"), trigger.DryRunParams{})
	require.NoError(t, err)
	require.Equal(t, 2, dry.Fired)
	require.True(t, dry.Verdicts[0].LoopCut)
	require.True(t, dry.Verdicts[1].LoopCut)
}

func (b *bundle) sub(t *testing.T, id string) *trigger.Subscription {
	t.Helper()
	s, err := b.real.SubscriptionGet(t.Context(), tenant, id)
	require.NoError(t, err)
	return s
}

func testExplainNotLaunched(t *testing.T, b *bundle) {
	sub := b.owing(t)
	require.NoError(t, b.disable(sub))
	b.work(t, 1)
	got := b.explained(t, "c1", "s1", trigger.AnswerNotLaunched, "when its turn came the subscription was disabled")
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, got.Row.Outcome)
}
