package storetest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func runAll(t *testing.T, open func(t *testing.T) trigger.Store, tests map[string]func(*testing.T, *bundle)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

// unsafeTests hold a store to what W8 asks of rows whose delivery was started.
func unsafeTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestW8_StartIsFenced":                          testW8Start,
		"TestW8_OnlyADefiniteSettleClearsTheMark":       testW8Mark,
		"TestW8_StartedRowIsReclaimedToReconcile":       testW8Reclaim,
		"TestW8_MarkIsLookedAtBeforeTheAttemptsCap":     testW8Cap,
		"TestW8_LateAnswerOfItsClaimSettlesReconcile":   testW8Late,
		"TestW8_LateAnswerAfterADecisionIsRefused":      testW8Decided,
		"TestW8_ForceNamesTheDeliveryThatWasSeen":       testW8StaleForce,
		"TestW10_StartedRowIsNotHandedBack":             testW10Started,
		"TestW2_TouchIsFenced":                          testW2Touch,
		"TestW2_SettleToHeld":                           testW2Held,
		"TestW2_SettlesThatNoStoreCarriesOut":           testW2Check,
		"TestW2_SettleThatNeverTookEffectIsNotAccepted": testW2Never,
	}
}

// startedAt is when the deliveries of these tests start: no other time of a
// row.
var startedAt = time.Date(2026, 3, 1, 12, 0, 0, 42e6, time.UTC)

// unsafeRow claims a row of a bot that can't be sent the same twice.
func (b *bundle) unsafeRow(t *testing.T, n int, lease time.Duration) trigger.Effect {
	t.Helper()
	row := effect(n, lane, b.real.Now())
	row.Replay = trigger.ReplayUnsafe
	b.materialize(t, row)
	claimed := b.claimOne(t, lane, lease)
	require.Equal(t, row.ID, claimed.ID)
	return claimed
}

// started does so, and starts its delivery.
func (b *bundle) started(t *testing.T, n int, lease time.Duration) trigger.Effect {
	t.Helper()
	row := b.unsafeRow(t, n, lease)
	require.NoError(t, b.real.EffectStart(t.Context(), row.Fence(), startedAt, "sent"))
	return row
}

func (b *bundle) reclaim(t *testing.T, lease time.Duration) *trigger.Effect {
	t.Helper()
	row, err := b.real.EffectReclaim(t.Context(), b.claimParams(lane, 1, lease))
	require.NoError(t, err)
	return row
}

// reconcile starts a delivery whose claim then runs out.
func (b *bundle) reconcile(t *testing.T, n int) trigger.Effect {
	t.Helper()
	row := b.started(t, n, -time.Second)
	got := b.reclaim(t, time.Hour)
	require.NotNil(t, got)
	require.Equal(t, trigger.StateReconcile, got.State)
	return row
}

// settleTo settles the claim that the row was read under.
func (b *bundle) settleTo(row trigger.Effect, to trigger.State) trigger.Settle {
	s := trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: to}
	switch to {
	case trigger.StateDone:
		s.Outcome, s.RunID = trigger.OutcomeLaunched, "late"
	case trigger.StateFailed:
		s.Reason = trigger.ReasonPermanent
	case trigger.StatePending:
		s.NotBefore = b.real.Now().Add(time.Hour)
	}
	return s
}

var definite = []trigger.State{trigger.StateDone, trigger.StateFailed, trigger.StatePending}

func testW8Start(t *testing.T, b *bundle) {
	ctx := t.Context()
	stale := b.unsafeRow(t, 1, -time.Second)
	fresh := b.reclaim(t, time.Hour)
	require.NotNil(t, fresh)
	before := b.row(t, stale.ID)
	foreign, nobody := fresh.Fence(), fresh.Fence()
	foreign.TenantID, nobody.ClaimID = "other", ""
	for _, f := range []trigger.Fence{stale.Fence(), foreign, nobody} {
		require.ErrorIs(t, b.real.EffectStart(ctx, f, startedAt, "stale"), trigger.ErrFenceLost)
	}
	require.Equal(t, before, b.row(t, stale.ID), "nothing is written")

	require.NoError(t, b.real.EffectStart(ctx, fresh.Fence(), startedAt, "sent"))
	want := *before
	want.DeliveryStartedAt, want.Rendered = startedAt, "sent"
	require.Equal(t, &want, b.row(t, stale.ID), "the mark and what is sent, and nothing else")

	// Settled, or reclaimed to reconcile, the claim starts no more.
	require.True(t, b.settle(t, b.settleTo(*fresh, trigger.StateFailed)))
	second := b.reconcile(t, 2)
	for _, row := range []trigger.Effect{*fresh, second} {
		before := b.row(t, row.ID)
		require.ErrorIs(t, b.real.EffectStart(ctx, row.Fence(), b.real.Now(), "again"), trigger.ErrFenceLost)
		require.Equal(t, before, b.row(t, row.ID))
	}
}

func testW8Mark(t *testing.T, b *bundle) {
	for i, to := range append(definite, trigger.StateReconcile) {
		row := b.started(t, i+1, time.Hour)
		require.True(t, b.settle(t, b.settleTo(row, to)))
		got := b.row(t, row.ID)
		require.Equal(t, to, got.State)
		require.Equal(t, "sent", got.Rendered, "every attempt sends the same bytes")
		require.Equal(t, row.ClaimID, got.ClaimID)
		if to == trigger.StateReconcile {
			require.Equal(t, startedAt, got.DeliveryStartedAt)
		} else {
			require.Zero(t, got.DeliveryStartedAt, to)
		}
	}
}

func testW8Reclaim(t *testing.T, b *bundle) {
	row := b.started(t, 1, -time.Second)
	before := b.row(t, row.ID)
	p := b.claimParams(lane, 1, time.Hour)
	got, err := b.real.EffectReclaim(t.Context(), p)
	require.NoError(t, err)
	want := *before
	want.State, want.UpdatedAt, want.AnnounceAt = trigger.StateReconcile, p.Now, p.Now
	want.Errors = []trigger.AttemptError{trigger.LeaseLost(1, p.Now)} // so that who looks at it sees why
	require.Equal(t, &want, b.row(t, row.ID), "under the claim id that it has, with no attempt added")
	require.Equal(t, trigger.StateReconcile, got.State)
	require.Equal(t, row.ID, got.ID)

	require.Nil(t, b.reclaim(t, time.Hour), "it is nobody's to claim")
	rows, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 10, time.Hour))
	require.NoError(t, err)
	require.Empty(t, rows)
	_, live, err := b.real.EffectNextDue(t.Context(), tenant, lane)
	require.NoError(t, err)
	require.False(t, live)
}

func testW8Cap(t *testing.T, b *bundle) {
	for i, started := range []bool{true, false} {
		row := effect(i+1, lane, b.real.Now())
		row.Replay, row.Attempts = trigger.ReplayUnsafe, trigger.AttemptsMax-1
		b.materialize(t, row)
		claimed := b.claimOne(t, lane, -time.Second)
		require.Equal(t, trigger.AttemptsMax, claimed.Attempts)
		want, reason := trigger.StateFailed, trigger.ReasonLeaseExhausted
		if started {
			require.NoError(t, b.real.EffectStart(t.Context(), claimed.Fence(), startedAt, "sent"))
			want, reason = trigger.StateReconcile, ""
		}
		got := b.reclaim(t, time.Hour)
		require.NotNil(t, got)
		require.Equal(t, want, got.State)
		kept := b.row(t, row.ID)
		require.Equal(t, want, kept.State)
		require.Equal(t, reason, kept.Reason)
		require.Equal(t, trigger.AttemptsMax, kept.Attempts)
		require.Equal(t, started, kept.ClaimID == claimed.ClaimID, "parking takes a fresh id, reconcile keeps its own")
	}
}

func testW8Late(t *testing.T, b *bundle) {
	for i, to := range definite {
		row := b.reconcile(t, i+1)
		before := b.row(t, row.ID)
		// What tells nothing changes nothing.
		again := b.settleTo(row, trigger.StateReconcile)
		again.Error = &trigger.AttemptError{At: b.real.Now(), Attempt: 1, Message: "no answer"}
		require.True(t, b.settle(t, again), "the state is what it says")
		// Neither does another claim's, or another tenant's.
		another, foreign := b.settleTo(row, to), b.settleTo(row, to)
		another.ClaimID, foreign.TenantID = uuid.NewString(), "other"
		require.False(t, b.settle(t, another))
		require.False(t, b.settle(t, foreign))
		require.Equal(t, before, b.row(t, row.ID))

		s := b.settleTo(row, to)
		require.True(t, b.settle(t, s))
		got := b.row(t, row.ID)
		require.Equal(t, to, got.State)
		require.Equal(t, s.Outcome, got.Outcome)
		require.Equal(t, s.Reason, got.Reason)
		require.Equal(t, s.RunID, got.RunID)
		require.Zero(t, got.DeliveryStartedAt)
		require.Equal(t, row.ClaimID, got.ClaimID)
		require.True(t, b.settle(t, s), "sent again it is recognized")
		require.Equal(t, got, b.row(t, row.ID))
		if to == trigger.StatePending {
			require.Equal(t, s.NotBefore, got.NotBefore)
		}
	}
}

// decide makes a decision with an id of its own about a row as it is.
func (b *bundle) decision(row *trigger.Effect, action trigger.Action) trigger.Decision {
	return trigger.Decision{
		TenantID: tenant, EffectID: row.ID, ID: uuid.NewString(), Action: action, By: "mona", Note: "looked",
		At: b.real.Now(), StartedAt: row.DeliveryStartedAt, ClaimID: uuid.NewString(),
	}
}

func testW8Decided(t *testing.T, b *bundle) {
	ctx := t.Context()
	for i, action := range []trigger.Action{trigger.ActionForce, trigger.ActionConfirm, trigger.ActionDiscard} {
		row := b.reconcile(t, i+1)
		d := b.decision(b.row(t, row.ID), action)
		_, err := b.real.EffectDecide(ctx, d)
		require.NoError(t, err)
		decided := b.row(t, row.ID)
		require.NotEqual(t, trigger.StateReconcile, decided.State)
		require.Equal(t, d.ClaimID, decided.ClaimID)
		late := func() {
			t.Helper()
			before := b.row(t, row.ID)
			for _, to := range append(definite, trigger.StateReconcile) {
				s := b.settleTo(row, to)
				require.False(t, b.settle(t, s), "%s, then %s", action, to)
				require.False(t, b.settle(t, s), "nor when it is sent again")
			}
			require.Equal(t, before, b.row(t, row.ID))
		}
		late()
		if action != trigger.ActionForce {
			continue
		}
		// Nor does it once the row that was forced is under way, or done.
		forced := b.claimOne(t, lane, time.Hour)
		require.Equal(t, row.ID, forced.ID)
		require.NoError(t, b.real.EffectStart(ctx, forced.Fence(), b.real.Now(), "sent"))
		late()
		require.True(t, b.settle(t, b.done(forced)))
		late()
	}
}

func testW8StaleForce(t *testing.T, b *bundle) {
	ctx := t.Context()
	row := b.reconcile(t, 1)
	seen := b.row(t, row.ID)
	wrong := b.decision(seen, trigger.ActionForce)
	for _, at := range []time.Time{{}, startedAt.Add(time.Millisecond), startedAt.Add(-time.Millisecond)} {
		wrong.StartedAt = at
		_, err := b.real.EffectDecide(ctx, wrong)
		requireConflict(t, err)
	}
	require.Equal(t, seen, b.row(t, row.ID))

	first, second := b.decision(seen, trigger.ActionForce), b.decision(seen, trigger.ActionForce)
	got, err := b.real.EffectDecide(ctx, first)
	require.NoError(t, err)
	require.Equal(t, trigger.StatePending, got.State)
	require.Zero(t, got.DeliveryStartedAt)
	require.Zero(t, got.Attempts)
	require.Equal(t, "sent", got.Rendered)
	require.Equal(t, got, b.row(t, row.ID))
	_, err = b.real.EffectDecide(ctx, second)
	requireConflict(t, err)

	// It is sent, and in doubt, once more: what was decided about the first
	// delivery decides nothing about this one.
	again := b.claimOne(t, lane, -time.Second)
	require.NoError(t, b.real.EffectStart(ctx, again.Fence(), startedAt.Add(time.Minute), "sent"))
	require.Equal(t, trigger.StateReconcile, b.reclaim(t, time.Hour).State)
	before := b.row(t, row.ID)
	_, err = b.real.EffectDecide(ctx, second)
	requireConflict(t, err)
	got, err = b.real.EffectDecide(ctx, first)
	require.NoError(t, err, "the decision that was applied is recognized")
	require.Equal(t, before, got)
	require.Equal(t, before, b.row(t, row.ID))
}

func testW10Started(t *testing.T, b *bundle) {
	back := func(row trigger.Effect) trigger.Settle {
		s := b.settleTo(row, trigger.StatePending)
		s.HandBack = true
		return s
	}
	started, idle := b.started(t, 1, time.Hour), b.unsafeRow(t, 2, time.Hour)
	before := b.row(t, started.ID)
	stands, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{back(started), back(idle)})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, stands)
	require.Equal(t, before, b.row(t, started.ID), "a request may be on its way")
	got := b.row(t, idle.ID)
	require.Equal(t, trigger.StatePending, got.State)
	require.Zero(t, got.Attempts, "no attempt added")

	// Where it is known that nothing was sent, the mark and the attempt go.
	uncounted := b.settleTo(started, trigger.StatePending)
	uncounted.Uncount = true
	require.True(t, b.settle(t, uncounted))
	got = b.row(t, started.ID)
	require.Equal(t, trigger.StatePending, got.State)
	require.Zero(t, got.Attempts)
	require.Zero(t, got.DeliveryStartedAt)

	row := b.reconcile(t, 3)
	before = b.row(t, row.ID)
	require.False(t, b.settle(t, back(row)))
	require.Equal(t, before, b.row(t, row.ID))
}

func testW2Touch(t *testing.T, b *bundle) {
	ctx := t.Context()
	stale := b.unsafeRow(t, 1, -time.Second)
	fresh := b.reclaim(t, time.Hour)
	require.NotNil(t, fresh)
	before := b.row(t, stale.ID)
	at := b.real.Now().Add(time.Minute)
	foreign := fresh.Fence()
	foreign.TenantID = "other"
	for _, f := range []trigger.Fence{stale.Fence(), foreign, {TenantID: tenant, EffectID: stale.ID}} {
		require.ErrorIs(t, b.real.EffectTouch(ctx, f, at), trigger.ErrFenceLost)
	}
	require.Equal(t, before, b.row(t, stale.ID))
	require.NoError(t, b.real.EffectTouch(ctx, fresh.Fence(), at))
	want := *before
	want.UpdatedAt = at
	require.Equal(t, &want, b.row(t, stale.ID))
	require.True(t, b.settle(t, b.done(*fresh)))
	require.ErrorIs(t, b.real.EffectTouch(ctx, fresh.Fence(), at), trigger.ErrFenceLost, "settled")
}

func testW2Held(t *testing.T, b *bundle) {
	row := b.unsafeRow(t, 1, time.Hour)
	before := b.row(t, row.ID)
	s := b.settleTo(row, trigger.StateHeld)
	require.True(t, b.settle(t, s))
	want := *before
	want.State, want.UpdatedAt = trigger.StateHeld, s.At
	require.Equal(t, &want, b.row(t, row.ID))
	require.True(t, b.settle(t, s), "sent again it is recognized")
	require.Equal(t, &want, b.row(t, row.ID))
	_, live, err := b.real.EffectNextDue(t.Context(), tenant, lane)
	require.NoError(t, err)
	require.False(t, live, "nobody claims it until it is released")

	stale := b.unsafeRow(t, 2, -time.Second)
	require.NotNil(t, b.reclaim(t, time.Hour))
	require.False(t, b.settle(t, b.settleTo(stale, trigger.StateHeld)))
	require.Equal(t, trigger.StateClaimed, b.row(t, stale.ID).State)
}

func testW2Check(t *testing.T, b *bundle) {
	row := b.started(t, 1, time.Hour)
	other := b.unsafeRow(t, 2, time.Hour)
	before := b.row(t, row.ID)
	refused := func(bad trigger.Settle) {
		t.Helper()
		_, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{b.done(other), bad})
		require.Error(t, err)
		require.Equal(t, trigger.StateClaimed, b.row(t, other.ID).State, "before anything is written")
		require.Equal(t, before, b.row(t, row.ID))
	}
	for _, to := range []trigger.State{trigger.StateHeld, trigger.StateReconcile} {
		for _, f := range []trigger.Fence{
			{TenantID: tenant, EffectID: row.ID}, {TenantID: tenant, ClaimID: row.ClaimID}, {EffectID: row.ID, ClaimID: row.ClaimID},
		} {
			bad := b.settleTo(row, to)
			bad.Fence = f
			refused(bad)
		}
	}
	for _, to := range []trigger.State{"", trigger.StateClaimed, trigger.StateDiscarded, "unheard-of"} {
		refused(b.settleTo(row, to))
	}
}

// A claim ends in one state. One that went to reconcile under its id has no
// settle to another state behind it.
func testW2Never(t *testing.T, b *bundle) {
	row := b.reconcile(t, 1)
	before := b.row(t, row.ID)
	require.False(t, b.settle(t, b.settleTo(row, trigger.StateHeld)))
	require.Equal(t, before, b.row(t, row.ID))
}
