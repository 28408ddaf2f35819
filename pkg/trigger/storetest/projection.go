package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// runProjections runs the part of the suite about rows that do not launch:
// projections, and poison events that are replayed.
func runProjections(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, *bundle){
		"TestProjection_MirrorsCreationsAndMoves":            testProjectionMirrors,
		"TestProjection_EqualWritesNothing":                  testProjectionEqual,
		"TestProjection_UnmappedColumnsAreInert":             testProjectionUnmapped,
		"TestProjection_LaterSeqWins":                        testProjectionLater,
		"TestProjection_LaterSeqIsNotedWhereItChangesNought": testProjectionNoted,
		"TestProjection_LaterSeqIsPassedOn":                  testProjectionPassedOn,
		"TestProjection_SeqOfAMoveOnItsWayToTheLog":          testProjectionPending,
		"TestProjection_RowThatOutlivedTheLog":               testProjectionAncient,
		"TestProjection_MirrorMadeAgainStandsWhereTheCardIs": testProjectionMadeAgain,
		"TestProjection_DeletedOriginalIsNotMadeAgain":       testProjectionOriginal,
		"TestProjection_StaleWorkerChangesNothing":           testProjectionStale,
		"TestProjection_CrashAtEveryStep":                    testProjectionCrash,
		"TestProjection_OutcomesWithoutAWrite":               testProjectionOutcomes,
		"TestProjection_OnlyEventsAfterActiveFromSeq":        testProjectionActive,
		"TestProjection_LongIDsOfMirrors":                    testProjectionIDs,
		"TestProjection_Converges":                           func(t *testing.T, b *bundle) { converge(t, b, 6) },
		"TestLoops_EchoOfAProjectionIsCut":                   testProjectionLoop,
		"TestT5_ReplayedPoisonEventIsMatched":                testT5Replayed,
		"TestT5_StillPoisonFailsAgain":                       testT5StillPoison,
		"TestT5_ReplayOfAnEventThatLeftTheLog":               testT5LeftTheLog,
		"TestR4_RowsStayWhileTheirPoisonEventMayBeReplayed":  testR4Poison,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

// projected makes two boards, b1 with the columns a1 to a4 and b2 with c1 to
// c4, and a projection of the first three from one to the other.
func (b *bundle) projected(t *testing.T) *trigger.Projection {
	t.Helper()
	for id, column := range map[string]string{"b1": "a", "b2": "c"} {
		board := &tracker.Board{TenantID: tenant, ID: id, Name: id, Revision: 1}
		for i := range 4 {
			board.Columns = append(board.Columns, tracker.Column{ID: fmt.Sprint(column, i+1)})
		}
		require.NoError(t, b.real.BoardSave(t.Context(), board))
	}
	return b.project(t, "there", "b1", "b2", "a1 c1", "a2 c2", "a3 c3")
}

// inverse makes the projection back.
func (b *bundle) inverse(t *testing.T) *trigger.Projection {
	t.Helper()
	return b.project(t, "back", "b2", "b1", "c1 a1", "c2 a2", "c3 a3")
}

func (b *bundle) project(t *testing.T, id, from, to string, columns ...string) *trigger.Projection {
	t.Helper()
	p := &trigger.Projection{TenantID: tenant, ID: id, Name: id, Revision: 1, Enabled: true, FromBoardID: from, ToBoardID: to, Columns: pairs(columns...)}
	require.NoError(t, b.real.ProjectionSave(t.Context(), p))
	return p
}

func pairs(columns ...string) (out []trigger.ColumnPair) {
	for _, c := range columns {
		from, to, _ := strings.Cut(c, " ")
		out = append(out, trigger.ColumnPair{From: from, To: to})
	}
	return out
}

func (b *bundle) saveProjection(t *testing.T, p *trigger.Projection, change func()) {
	t.Helper()
	change()
	p.Revision++
	require.NoError(t, b.real.ProjectionSave(t.Context(), p))
}

// moveInto is moveTo, where there is a card.
func moveInto(column string) tracker.Changer {
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return nil, nil, nil
		}
		return moveTo(column)(card, now)
	}
}

// person has a person move the card, and returns the row that is owed for it,
// nil if there is none.
func (b *bundle) person(t *testing.T, card, column string) *trigger.Effect {
	t.Helper()
	changed := b.change(t, card, moveTo(column))
	return b.owes(t, b.relayed(t, card)[changed.Event.EID])
}

// owes drains, and returns the row that is owed for an event.
func (b *bundle) owes(t *testing.T, seq int64) *trigger.Effect {
	t.Helper()
	b.drain(t)
	rows := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return r.EventSeq != seq })
	require.LessOrEqual(t, len(rows), 1)
	if len(rows) == 0 {
		return nil
	}
	return &rows[0]
}

// made has a person make a card in a column, and returns its row.
func (b *bundle) made(t *testing.T, card, column string) *trigger.Effect {
	t.Helper()
	b.create(t, card, column, "bug")
	b.relayed(t, card)
	b.drain(t)
	rows := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return r.CardID != card })
	require.Len(t, rows, 1)
	return &rows[0]
}

// take claims a row, and no other. A row that is done is run again.
func (b *bundle) take(t *testing.T, id string) trigger.Effect {
	t.Helper()
	ctx := t.Context()
	row := b.row(t, id)
	if action := map[trigger.State]trigger.Action{trigger.StateDone: trigger.ActionRerun, trigger.StateFailed: trigger.ActionReplay}[row.State]; action != "" {
		var err error
		row, err = b.real.EffectDecide(ctx, trigger.Decision{
			TenantID: tenant, EffectID: id, ID: uuid.NewString(), Action: action, By: "ops", At: b.Now(), ClaimID: uuid.NewString(),
		})
		require.NoError(t, err)
	}
	p := b.claimParams(row.Lane, 1000, 0)
	p.Now = b.Now()
	p.LeaseEnd = p.Now.Add(time.Hour)
	rows, err := b.real.EffectClaim(ctx, p)
	require.NoError(t, err)
	for _, other := range rows {
		if other.ID != id {
			require.True(t, b.settle(t, trigger.Settle{Fence: other.Fence(), At: p.Now, To: trigger.StatePending, NotBefore: other.CreatedAt, HandBack: true}))
		}
	}
	i := slices.IndexFunc(rows, func(r trigger.Effect) bool { return r.ID == id })
	require.GreaterOrEqual(t, i, 0, "%s is not to be claimed", id)
	return rows[i]
}

// ends settles a claimed row as a worker does.
func (b *bundle) ends(t *testing.T, row *trigger.Effect, ev trigger.Evaluation) {
	t.Helper()
	s := trigger.Settle{Fence: row.Fence(), At: b.Now(), To: trigger.StateDone, Outcome: ev.Outcome}
	var le *trigger.LaunchError
	switch {
	case errors.As(ev.Err, &le) && le.Permanent:
		s.To, s.Reason = trigger.StateFailed, trigger.ReasonPermanent
		s.Error = &trigger.AttemptError{At: s.At, Message: le.Message}
	case ev.Err != nil:
		s.To, s.NotBefore, s.HandBack = trigger.StatePending, row.CreatedAt, true
	}
	require.True(t, b.settle(t, s))
}

// runs runs a row to its end, and returns the row.
func (b *bundle) runs(t *testing.T, id string) *trigger.Effect {
	t.Helper()
	row := b.take(t, id)
	b.ends(t, &row, b.evaluator().Evaluate(t.Context(), &row))
	return b.row(t, id)
}

// rest runs to rest: events are relayed and matched, rows executed.
func (b *bundle) rest(t *testing.T) {
	t.Helper()
	for range 100 {
		pending, err := b.real.CardsPending(t.Context(), b.Now().Add(time.Hour), 1000)
		require.NoError(t, err)
		for _, p := range pending {
			b.relayed(t, p.CardID)
		}
		b.drain(t)
		rows := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return !r.State.Live() })
		if len(rows)+len(pending) == 0 {
			return
		}
		for _, r := range rows {
			require.Equal(t, trigger.StateDone, b.runs(t, r.ID).State)
		}
	}
	t.Fatal("it does not come to rest")
}

func (b *bundle) column(t *testing.T, card string) string {
	t.Helper()
	return b.card(t, card).ColumnID
}

const mirror = "s@b2"

func testProjectionMirrors(t *testing.T, b *bundle) {
	b.projected(t)
	row := b.made(t, "s", "a1")
	require.Equal(t, "acme/000000000001>there", row.ID)
	require.Equal(t, trigger.KindProjection, row.Kind)
	require.Equal(t, "projection:there", row.Lane)
	require.Equal(t, []string{"there", "", ""}, []string{row.ProjectionID, row.SubscriptionID, row.BotID})
	b.change(t, "s", retitle("later"))
	b.work(t, 1)
	require.Equal(t, trigger.OutcomeProjected, b.row(t, row.ID).Outcome)
	got := b.card(t, mirror)
	require.Equal(t, []string{"b2", "c1", "Card s"}, []string{got.BoardID, got.ColumnID, got.Title}, "the title as of the event")
	require.Empty(t, got.Labels)
	require.Equal(t, &tracker.Mirror{BoardID: "b1", CardID: "s"}, got.MirrorOf)

	move := b.person(t, "s", "a2")
	b.runs(t, move.ID)
	b.relayed(t, mirror)
	require.Equal(t, "c2", b.column(t, mirror))
	events := slices.DeleteFunc(b.events(t), func(e trigger.Event) bool { return e.CardID != mirror })
	require.Equal(t, []string{"card.created s@b2", "card.moved s@b2"}, lines(events))
	e := events[1]
	require.Equal(t, []string{"c1", "c2"}, []string{e.FromColumn, e.ToColumn})
	require.Equal(t, tracker.Actor{Kind: tracker.ActorSystem, ID: "projection:there", Name: "there"}, e.Actor)
	require.Equal(t, tracker.Cause{}.Then("there", "s"), e.Cause)
	require.Equal(t, move.EventSeq, e.ProjectedSeq)
}

func testProjectionEqual(t *testing.T, b *bundle) {
	b.projected(t)
	b.inverse(t)
	created := b.made(t, "s", "a1")
	b.rest(t)
	move := b.person(t, "s", "a2")
	b.rest(t)
	before, original, events := b.card(t, mirror), b.card(t, "s"), len(b.events(t))
	for _, row := range b.rows(t) { // the echoes too
		require.Equal(t, trigger.OutcomeProjected, b.runs(t, row.ID).Outcome)
	}
	b.rest(t)
	require.Equal(t, before, b.card(t, mirror))
	require.Equal(t, original, b.card(t, "s"), "its rev too")
	require.Len(t, b.events(t), events)
	require.Equal(t, []string{"card.created s", "card.created s@b2", "card.moved s", "card.moved s@b2"}, lines(b.events(t)))
	require.NotEqual(t, created.ID, move.ID)
}

func testProjectionUnmapped(t *testing.T, b *bundle) {
	b.projected(t)
	b.create(t, "other", "a4")
	b.relayed(t, "other")
	b.drain(t)
	require.Empty(t, b.rows(t))
	b.runs(t, b.made(t, "s", "a1").ID)
	require.Nil(t, b.person(t, "s", "a4"))
	require.Equal(t, "c1", b.column(t, mirror))
	require.NotNil(t, b.person(t, "s", "a2"))
	b.change(t, "s", retitle("an edit moves nothing"))
	b.rest(t)
	require.Equal(t, "c2", b.column(t, mirror))
	rows := len(b.rows(t))
	b.remove(t, "s")
	b.drain(t)
	require.Len(t, b.rows(t), rows, "a deletion is not mirrored")
	require.Equal(t, "c2", b.column(t, mirror))
}

func testProjectionLater(t *testing.T, b *bundle) {
	b.projected(t)
	first := b.made(t, "s", "a1")
	second := b.person(t, "s", "a2")
	third := b.person(t, "s", "a3")
	for _, row := range []*trigger.Effect{third, second, first, third} {
		require.Equal(t, trigger.OutcomeProjected, b.runs(t, row.ID).Outcome)
		require.Equal(t, "c3", b.column(t, mirror))
	}
	require.EqualValues(t, 1, b.card(t, mirror).Rev, "written once")
	// A person's move of the mirror counts as well.
	fourth := b.person(t, "s", "a1")
	b.person(t, mirror, "c4")
	b.runs(t, fourth.ID)
	require.Equal(t, "c4", b.column(t, mirror))
	b.runs(t, b.person(t, "s", "a2").ID)
	require.Equal(t, "c2", b.column(t, mirror))
}

// The card went there and back. The effect of the way back finds the mirror
// where it should be; the other one comes later, and is the older.
func testProjectionNoted(t *testing.T, b *bundle) {
	b.projected(t)
	b.inverse(t)
	b.runs(t, b.made(t, "s", "a1").ID)
	there, back := b.person(t, "s", "a2"), b.person(t, "s", "a1")
	b.runs(t, back.ID)
	b.runs(t, there.ID)
	b.relayed(t, mirror)
	require.Equal(t, "c1", b.column(t, mirror))
	require.Equal(t, []string{"card.created s", "card.created s@b2", "card.moved s", "card.moved s"}, lines(b.events(t)))
	rev := b.card(t, mirror).Rev
	b.runs(t, back.ID)
	require.Equal(t, rev, b.card(t, mirror).Rev)
}

func testProjectionPending(t *testing.T, b *bundle) {
	b.projected(t)
	b.runs(t, b.made(t, "s", "a1").ID)
	// A move that is not in the log yet gets a later seq than what is.
	row := b.person(t, "s", "a2")
	b.change(t, mirror, moveTo("c4"))
	b.runs(t, row.ID)
	require.Equal(t, "c4", b.column(t, mirror))
	// One that is in the log, and only not yet taken off the card, is not.
	b.crashed(t, mirror, "CardPendingRemove:before")
	require.NotEmpty(t, b.card(t, mirror).Pending)
	b.runs(t, b.person(t, "s", "a3").ID)
	require.Equal(t, "c3", b.column(t, mirror))
}

func testProjectionAncient(t *testing.T, b *bundle) {
	b.projected(t)
	for i, c := range []struct{ first, then, want string }{{"s", mirror, "c4"}, {mirror, "s", "c2"}} {
		if i == 0 {
			b.runs(t, b.made(t, "s", "a1").ID)
		} else {
			b.runs(t, b.person(t, "s", "a1").ID)
		}
		var row *trigger.Effect
		for _, card := range []string{c.first, c.then} {
			b.pass(time.Second)
			if card == "s" {
				row = b.person(t, "s", "a2")
			} else {
				b.person(t, mirror, "c4")
			}
		}
		// Both are gone from the log when the row is executed at last.
		b.pass(trigger.EventRetentionDefault + time.Hour)
		b.clean(t)
		require.Empty(t, b.events(t))
		b.runs(t, row.ID)
		require.Equal(t, c.want, b.column(t, mirror), "the later one wins")
	}
}

func testProjectionMadeAgain(t *testing.T, b *bundle) {
	b.projected(t)
	created := b.made(t, "s", "a1")
	b.runs(t, created.ID)
	b.runs(t, b.person(t, "s", "a2").ID)
	b.remove(t, mirror)
	b.runs(t, created.ID)
	require.Equal(t, "c2", b.column(t, mirror))
	require.EqualValues(t, 1, b.card(t, mirror).Rev)
	// Where the card stands counts for nothing if that is not mapped.
	b.person(t, "s", "a4")
	b.remove(t, mirror)
	b.runs(t, created.ID)
	require.Equal(t, "c1", b.column(t, mirror))
}

func testProjectionOriginal(t *testing.T, b *bundle) {
	b.projected(t)
	b.inverse(t)
	b.made(t, "s", "a1")
	b.rest(t)
	b.remove(t, "s")
	row := b.person(t, mirror, "c2")
	require.Equal(t, "back", row.ProjectionID)
	require.Equal(t, trigger.OutcomeCardGone, b.runs(t, row.ID).Outcome)
	_, err := b.board.CardGet(t.Context(), tenant, "s")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.board.CardGet(t.Context(), tenant, mirror+"@b1")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	b.remove(t, mirror)
	require.Equal(t, trigger.OutcomeCardGone, b.runs(t, row.ID).Outcome, "the source is gone")
}

// A worker is paused, its row taken over and executed; then it goes on.
func testProjectionStale(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.projected(t)
	paused := func(row *trigger.Effect, at string, meanwhile func()) error {
		stale := b.take(t, row.ID)
		once := true
		b.setHook(func(op string) {
			if once && op == at {
				once = false
				b.setHook(nil)
				p := b.claimParams(stale.Lane, 1, time.Hour)
				p.Now = stale.NotBefore
				fresh, err := b.real.EffectReclaim(ctx, p)
				require.NoError(t, err)
				require.NotNil(t, fresh)
				b.ends(t, fresh, b.evaluator().Evaluate(ctx, fresh))
				meanwhile()
			}
		})
		ev := b.evaluator().Evaluate(ctx, &stale)
		require.False(t, once, "it came to "+at)
		stands, err := b.real.EffectSettleMany(ctx, []trigger.Settle{b.done(stale)})
		require.NoError(t, err)
		require.False(t, stands[0])
		return ev.Err
	}
	// Before its claim was looked at: that says so.
	err := paused(b.made(t, "s", "a1"), "EffectTouch", func() { b.remove(t, mirror) })
	require.ErrorIs(t, err, trigger.ErrFenceLost)
	_, err = b.board.CardGet(ctx, tenant, mirror)
	require.ErrorIs(t, err, tracker.ErrNotFound, "what a person deleted since is not made again")

	// After that: its write names a rev that is no more.
	b.runs(t, b.person(t, "s", "a2").ID)
	var rev int64
	require.NoError(t, paused(b.person(t, "s", "a3"), "CardWrite", func() {
		b.runs(t, b.person(t, "s", "a1").ID)
		rev = b.card(t, mirror).Rev
	}))
	require.Equal(t, "c1", b.column(t, mirror))
	require.Equal(t, rev, b.card(t, mirror).Rev)
}

func testProjectionCrash(t *testing.T, b *bundle) {
	b.projected(t)
	for n := 0; ; n++ {
		require.Less(t, n, 50)
		card := fmt.Sprint("s", n)
		row := b.made(t, card, "a1")
		seen, total := 0, 0
		for _, to := range []string{"", "a2"} {
			if to != "" {
				row = b.person(t, card, to)
			}
			claimed := b.take(t, row.ID)
			b.setCut(dieAt(n, &seen))
			ev := b.evaluator().Evaluate(t.Context(), &claimed)
			b.setCut(nil)
			total, seen = total+seen, 0
			if ev.Err != nil {
				require.ErrorIs(t, ev.Err, errCut)
				require.True(t, ev.Uncounted)
			}
			b.ends(t, &claimed, trigger.Evaluation{Err: errCut}) // nobody knows what became of it
			b.closeHoles(t)
			b.rest(t)
		}
		require.Equal(t, "c2", b.column(t, card+"@b2"), "cut %d", n)
		var got []string
		for _, line := range lines(b.events(t)) {
			if strings.HasSuffix(line, " "+card+"@b2") {
				got = append(got, line)
			}
		}
		require.Equal(t, []string{"card.created " + card + "@b2", "card.moved " + card + "@b2"}, got, "cut %d: each once", n)
		if total <= n {
			require.Greater(t, n, 10, "there is something to cut")
			return
		}
	}
}
