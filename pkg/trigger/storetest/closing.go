package storetest

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// closingTests are about rows that end without what they owe, and about what
// must not follow then.
func closingTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestR2_UnknownKindIsNeverDropped":             testR2Janitor,
		"TestW6_CardGoneBetweenTwoAttempts":            testW6CardGone,
		"TestW8_RowStaysUnsafeThoughItsBotBecomesSafe": testW8StaysUnsafe,
		"TestW6_RowOfAnotherTenantIsRefused":           testW6Tenant,
		"TestW6_UnknownFeatureIsLeftToOthers":          testW6Feature,
		"TestW2_StalePromotionAfterTheRowClosed":       testW2StalePromotion,
		"TestW7_TakenByABetterRankedThatIsNotMarked":   testW7Unmarked,
		"TestW7_DiscardFencesOffAConsumeOnItsWay":      testW7DiscardOnItsWay,
	}
}

// testR2Janitor: a done row of a later version's kind, long after its event.
func testR2Janitor(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "x")
	b.drain(t)
	old := b.real.Now().Add(-30 * 24 * time.Hour)
	future, known := effect(900, lane, old), effect(901, lane, old)
	future.Kind = "teleport"
	for _, row := range []*trigger.Effect{&future, &known} {
		row.State, row.Outcome, row.DoneAt = trigger.StateDone, trigger.OutcomeLaunched, old
	}
	b.materialize(t, future, known)
	settled, err := b.real.EffectsSettledBefore(ctx, tenant, b.real.Now(), "", 10)
	require.NoError(t, err)
	require.Len(t, settled, 1)
	require.Equal(t, known.ID, settled[0].ID)
	require.NoError(t, b.real.EffectExpireMany(ctx, tenant, []string{future.ID, known.ID}))
	require.Eventually(t, func() bool {
		_, err := b.real.EffectGet(ctx, tenant, known.ID)
		return err != nil
	}, 2*time.Minute, 50*time.Millisecond)
	require.Equal(t, trigger.StateDone, b.row(t, future.ID).State)
}

// testW6CardGone: the body of the first attempt is kept, and yet the card is
// looked for.
func testW6CardGone(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	id := b.fired(t, "c1").ID
	row := b.claimOne(t, lane, time.Minute)
	require.True(t, b.settle(t, trigger.Settle{
		Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now(), Rendered: `{"type":"launch"}`,
	}))
	_, err := b.board.Delete(t.Context(), tenant, "c1", human)
	require.NoError(t, err)
	p := b.spawn(t, 0)
	p.sweep(t)
	p.run(t, 1)
	require.Equal(t, trigger.OutcomeCardGone, b.row(t, id).Outcome)
	require.Empty(t, b.launches.all())
}

// testW6Tenant: a row that carries another tenant's event launches nothing.
func testW6Tenant(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.fired(t, "c1")
	row := b.claimOne(t, lane, time.Minute)
	row.Event.TenantID = "other"
	var le *trigger.LaunchError
	require.ErrorAs(t, b.evaluator().Evaluate(t.Context(), &row).Err, &le)
	require.True(t, le.Permanent)
	require.Empty(t, b.launches.all())
}

// testW6Feature: a subscription that was edited by a later version means what
// this one can't know.
func testW6Feature(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "bug")
	b.fired(t, "c1")
	sub.Requires = []string{"telepathy"}
	sub.Revision++
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	row := b.claimOne(t, lane, time.Minute)
	ev := b.evaluator().Evaluate(t.Context(), &row)
	require.ErrorContains(t, ev.Err, "telepathy")
	require.True(t, ev.Uncounted, "others know it")
	require.Empty(t, b.launches.all())

	sub.Requires = nil
	sub.Revision++
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	row.Event.Requires = []string{"telepathy"}
	require.True(t, b.evaluator().Evaluate(t.Context(), &row).Uncounted)
	require.Empty(t, b.launches.all())
	row.Kind, row.ProjectionID = trigger.KindProjection, "p1"
	require.True(t, b.evaluator().Evaluate(t.Context(), &row).Uncounted)
}

// testW8StaysUnsafe: the class is the row's once a delivery was started.
func testW8StaysUnsafe(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	id := b.fired(t, "c1").ID
	row := b.claimOne(t, lane, time.Minute)
	require.NoError(t, b.real.EffectStart(ctx, row.Fence(), b.real.Now(), "{}"))
	require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now()}))
	row = b.claimOne(t, lane, time.Minute)
	require.True(t, row.DeliveryStartedAt.IsZero(), "a definite answer cleared it")
	require.Equal(t, trigger.OutcomeLaunched, b.evaluator().Evaluate(ctx, &row).Outcome)
	require.False(t, b.row(t, id).DeliveryStartedAt.IsZero(), "said before the request was sent")
}

// pausedAt starts a process that stops before a write, and returns once it
// stands there.
func (b *bundle) pausedAt(t *testing.T, at string) (stale *process, resume func()) {
	t.Helper()
	stale = b.spawn(t, 0)
	stale.sweep(t)
	paused, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	stale.setHook(func(op string) {
		if op == at {
			once.Do(func() {
				close(paused)
				<-goOn
			})
		}
	})
	require.NoError(t, stale.worker.Start(t.Context()))
	recv(t, paused)
	return stale, func() {
		close(goOn)
		stale.worker.Stop()
	}
}

// testW2StalePromotion: a worker that saw its claim held is paused before the
// card's write; the one that takes over finds the subscription disabled.
func testW2StalePromotion(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.Mode = trigger.ModePromote })
	id := b.fired(t, "c1").ID
	_, resume := b.pausedAt(t, "CardWrite")
	require.NoError(t, b.disable(sub))
	p := b.spawn(t, takenOver)
	p.sweep(t)
	p.run(t, 1)
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, b.row(t, id).Outcome)
	resume()
	require.Empty(t, b.card(t, "c1").BotID, "a stale worker changes nothing")
}

// testW7Unmarked: the better-ranked row spent the label, but each of its
// attempts ended before the row said so; it is parked. Somebody added the label
// again meanwhile.
func testW7Unmarked(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 1 })
	b.subscribe(t, "s2", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 2 })
	first := b.fired(t, "c1").ID
	second := trigger.EffectID(trigger.EffectEventID(first), "s2")
	stale, resume := b.pausedAt(t, "EffectMarkConsumed")
	stale.kill()
	resume()
	require.NotNil(t, b.card(t, "c1").ConsumedBy(first))
	b.change(t, "c1", addLabel("ship-it"))
	for {
		p := b.claimParams(lane, 1, -time.Second)
		p.Now = p.Now.Add(takenOver)
		row, err := b.real.EffectReclaim(ctx, p)
		require.NoError(t, err)
		if b.row(t, first).State == trigger.StateFailed {
			break
		}
		require.NotNil(t, row)
		if row.ID == second { // which waits
			require.True(t, b.settle(t, trigger.Settle{
				Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now(), HandBack: true,
			}))
		}
	}
	p := b.spawn(t, takenOver)
	p.sweep(t)
	p.run(t, 1)
	require.Equal(t, trigger.OutcomeOneShotSpent, b.row(t, second).Outcome)
	require.True(t, b.card(t, "c1").HasLabel("ship-it"), "which is another event's to spend")
}

// testW7DiscardOnItsWay: a worker is paused before it takes the label off; its
// row is parked and given up.
func testW7DiscardOnItsWay(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	id := b.fired(t, "c1").ID
	_, resume := b.pausedAt(t, "CardWrite")
	for b.row(t, id).State != trigger.StateFailed {
		p := b.claimParams(lane, 1, -time.Second)
		p.Now = p.Now.Add(takenOver)
		_, err := b.real.EffectReclaim(ctx, p)
		require.NoError(t, err)
	}
	dl := trigger.NewDeadLetters(b.real, b.board, b.relay.Logger)
	row, err := dl.Decide(ctx, trigger.Decision{TenantID: tenant, EffectID: id, ID: uuid.NewString(), Action: trigger.ActionDiscard, By: "mona"})
	require.NoError(t, err)
	require.Equal(t, trigger.StateDiscarded, row.State)
	resume()
	card := b.card(t, "c1")
	require.True(t, card.HasLabel("ship-it"), "not spent for an effect that was given up")
	require.Nil(t, card.ConsumedBy(id))
}
