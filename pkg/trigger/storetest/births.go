package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// birthTests are of rows that are inserted as claimed.
func birthTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestW1_RowsAreBornAsTheirClaimSays":           testBorn,
		"TestW4_BornRowsAreReclaimedOneAtATime":        testBornReclaimed,
		"TestW10_BornRowsAreHandedBackWithNoAttempt":   testBornHandedBack,
		"TestR3_BirthChangesNoRowThatIsThere":          testBornLater,
		"TestW2_LateAndDoubleSettlesTogether":          testW2Together,
		"TestLanes_OfBornRowsAreDueWhenTheirLeaseEnds": testBornLanes,
	}
}

// born makes a row as a tail inserts it for the worker beside it.
func (b *bundle) born(n int, claimID string, lease time.Duration) trigger.Effect {
	row := effect(n, lane, b.real.Now())
	row.State, row.ClaimID, row.Worker, row.ClaimedAt, row.Attempts = trigger.StateClaimed, claimID, "w1", row.CreatedAt, 1
	row.NotBefore = row.CreatedAt.Add(lease)
	return row
}

func testBorn(t *testing.T, b *bundle) {
	row := b.born(1, "birth", time.Minute)
	refs, err := b.real.EffectMaterialize(t.Context(), tenant, []trigger.Effect{row})
	require.NoError(t, err)
	require.Len(t, refs, 1)
	require.Equal(t, []any{row.ID, lane, trigger.StateClaimed, "birth"}, []any{refs[0].ID, refs[0].Lane, refs[0].State, refs[0].ClaimID})
	// Nobody else gets it while its lease runs.
	rows, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 10, time.Minute))
	require.NoError(t, err)
	require.Empty(t, rows)
	got, err := b.real.EffectReclaim(t.Context(), b.claimParams(lane, 1, time.Minute))
	require.NoError(t, err)
	require.Nil(t, got)
	// Its claim is one like any other.
	require.NoError(t, b.real.EffectTouch(t.Context(), row.Fence(), b.real.Now()))
	require.True(t, b.settle(t, b.done(row)))
	require.True(t, b.settle(t, b.done(row)), "the same again")
}

func testBornReclaimed(t *testing.T, b *bundle) {
	rows := []trigger.Effect{b.born(1, "birth", -time.Second), b.born(2, "birth", -time.Second), b.born(3, "birth", -time.Second)}
	b.materialize(t, rows...)
	taken, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 10, time.Minute))
	require.NoError(t, err)
	require.Empty(t, taken, "not as a batch")
	p := b.claimParams(lane, 10, time.Minute)
	p.Worker = "w2"
	got, err := b.real.EffectReclaim(t.Context(), p)
	require.NoError(t, err)
	require.NotNil(t, got)
	require.Equal(t, []any{2, "w2", p.ClaimID}, []any{got.Attempts, got.Worker, got.ClaimID})
	for _, row := range rows {
		now := b.row(t, row.ID)
		if row.ID == got.ID {
			require.False(t, b.settle(t, b.done(row)), "the claim that it was born with is no longer")
			require.ErrorIs(t, b.real.EffectTouch(t.Context(), row.Fence(), b.real.Now()), trigger.ErrFenceLost)
			continue
		}
		require.Equal(t, []any{1, "birth"}, []any{now.Attempts, now.ClaimID}, "the others wait, and lose no attempt")
		require.True(t, b.settle(t, b.done(row)), "late, and still its claim's")
	}
	require.True(t, b.settle(t, b.done(*got)))
}

func testBornHandedBack(t *testing.T, b *bundle) {
	there, never := b.born(1, "birth", time.Minute), b.born(2, "birth", time.Minute)
	b.materialize(t, there)
	back := func(row trigger.Effect) trigger.Settle {
		now := b.real.Now()
		return trigger.Settle{Fence: row.Fence(), At: now, To: trigger.StatePending, NotBefore: now, HandBack: true}
	}
	// As after an insert that failed: of some rows nobody knows whether they
	// are there.
	stands, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{back(never), back(there)})
	require.NoError(t, err)
	require.Equal(t, []bool{false, true}, stands)
	require.Zero(t, b.row(t, there.ID).Attempts)
	require.Len(t, b.rows(t), 1)
	row := b.claimOne(t, lane, time.Minute)
	require.Equal(t, 1, row.Attempts)
	require.False(t, b.settle(t, b.done(there)))
	require.True(t, b.settle(t, b.done(row)))
}

func testBornLater(t *testing.T, b *bundle) {
	pending, theirs := effect(1, lane, b.real.Now()), b.born(2, "theirs", time.Minute)
	b.materialize(t, pending, theirs)
	was := b.rows(t)
	refs, err := b.real.EffectMaterialize(t.Context(), tenant,
		[]trigger.Effect{b.born(1, "ours", time.Hour), b.born(2, "ours", time.Hour), b.born(3, "ours", time.Hour)})
	require.NoError(t, err)
	claims := map[string]string{}
	for _, ref := range refs {
		claims[ref.ID] = ref.ClaimID
	}
	third := b.born(3, "", 0).ID
	require.Equal(t, map[string]string{pending.ID: "", theirs.ID: "theirs", third: "ours"}, claims)
	require.Equal(t, was, b.rows(t)[:2])
	require.Equal(t, "ours", b.row(t, third).ClaimID)
}

func testBornLanes(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	p := b.spawn(t, 0)
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	// The process dies with its insert: the row is claimed, and its lane not
	// marked yet.
	p.bear(t, "", func() {
		p.setCut(func(point string) error {
			if point == "LaneMarkMany:before" || point == "Launch:before" || point == "EffectSettleMany:before" {
				select {
				case <-p.died:
				default:
					close(p.died)
				}
				return errCut
			}
			return nil
		})
	})
	row := b.rows(t)[0]
	require.Equal(t, trigger.StateClaimed, row.State)
	// Another replica does the batch again, and marks the lane: for the end of
	// the lease, no earlier and no later.
	b.drain(t)
	lanes, err := b.real.LanesDue(t.Context(), row.NotBefore.Add(-time.Second), 10)
	require.NoError(t, err)
	require.Empty(t, lanes)
	lanes, err = b.real.LanesDue(t.Context(), row.NotBefore, 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1)
	second := b.spawn(t, takenOver)
	second.run(t, 1)
	got := b.row(t, row.ID)
	require.Equal(t, []any{trigger.OutcomeLaunched, 2}, []any{got.Outcome, got.Attempts})
}

// testW2Together: among settles of one claim that end alike some may be late, of
// rows that went to reconcile meanwhile, and some may come twice: the first one
// counts, and leaves nothing of the doubt.
func testW2Together(t *testing.T, b *bundle) {
	ctx := t.Context()
	for i := range 4 {
		b.materialize(t, effect(i+1, lane, b.real.Now()))
	}
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 3, time.Minute))
	require.NoError(t, err)
	require.Len(t, rows, 3)
	other := b.claimOne(t, lane, time.Minute)
	require.NoError(t, b.real.EffectTouch(ctx, rows[0].Fence(), b.real.Now()))
	doubt := b.done(rows[0])
	doubt.To, doubt.Outcome, doubt.RunID = trigger.StateReconcile, "", ""
	require.True(t, b.settle(t, doubt))
	var settles []trigger.Settle
	for run, row := range []trigger.Effect{rows[0], rows[1], rows[1], rows[2], other} {
		s := b.done(row)
		s.RunID = string(rune('a' + run))
		settles = append(settles, s)
	}
	wrong := b.done(other) // a row by another one's claim
	wrong.ClaimID = rows[0].ClaimID
	settles = append(settles[:4:4], wrong, settles[4])
	stands, err := b.real.EffectSettleMany(ctx, settles)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, true, true, false, true}, stands)
	for id, run := range map[string]string{rows[0].ID: "a", rows[1].ID: "b", rows[2].ID: "d", other.ID: "e"} {
		row := b.row(t, id)
		require.Equal(t, []any{trigger.StateDone, trigger.OutcomeLaunched, run}, []any{row.State, row.Outcome, row.RunID})
		require.Zero(t, row.AnnounceAt)
		require.Zero(t, row.DeliveryStartedAt)
	}
}
