package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testProjectionOutcomes(t *testing.T, b *bundle) {
	ctx := t.Context()
	p := b.projected(t)
	row := b.made(t, "s", "a1")
	fails := func(want string) {
		t.Helper()
		got := b.runs(t, row.ID)
		require.Equal(t, trigger.StateFailed, got.State)
		require.Equal(t, trigger.ReasonPermanent, got.Reason)
		require.Contains(t, got.Errors[len(got.Errors)-1].Message, want)
	}
	// What can't be read is no outcome.
	for _, config := range []failingConfig{{Store: b.real, projection: errCut}, {Store: b.real, board: errCut}} {
		claimed := b.take(t, row.ID)
		v := b.evaluator()
		v.Config = config
		ev := v.Evaluate(ctx, &claimed)
		require.ErrorIs(t, ev.Err, errCut)
		require.True(t, ev.Uncounted)
		b.ends(t, &claimed, ev)
	}
	b.saveProjection(t, p, func() { p.Enabled = false })
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, b.runs(t, row.ID).Outcome)
	b.saveProjection(t, p, func() { p.Enabled, p.Columns = true, pairs("a2 c1") })
	require.Equal(t, trigger.OutcomeNoLongerMatches, b.runs(t, row.ID).Outcome)
	b.saveProjection(t, p, func() { p.Columns = pairs("a1 gone") })
	fails(`the projection there maps to the column "gone", which the board b2 does not have`)
	b.saveProjection(t, p, func() { p.ToBoardID = "b3" })
	fails("the board b3, which is gone")
	b.saveProjection(t, p, func() { p.ToBoardID, p.Columns = "b2", pairs("a1 c1") })
	b.change(t, mirror, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b3", ColumnID: "c1", Title: "somebody else's"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	fails("the card s@b2 is on the board b3, not on b2")
	b.remove(t, mirror)
	require.Equal(t, trigger.OutcomeProjected, b.runs(t, row.ID).Outcome)
	b.remove(t, "s")
	require.Equal(t, trigger.OutcomeCardGone, b.runs(t, row.ID).Outcome)
	require.Equal(t, "c1", b.column(t, mirror))
	gone := *row
	gone.ID, gone.ProjectionID, gone.Lane = row.ID+"x", "nobody", "projection:nobody"
	gone.State, gone.Outcome = trigger.StatePending, ""
	b.materialize(t, gone)
	require.Equal(t, trigger.OutcomeSubscriptionGone, b.runs(t, gone.ID).Outcome)
}

// failingConfig fails what it is told to.
type failingConfig struct {
	trigger.Store
	projection, board error
}

func (f failingConfig) ProjectionGet(ctx context.Context, tenantID, id string) (*trigger.Projection, error) {
	if f.projection != nil {
		return nil, f.projection
	}
	return f.Store.ProjectionGet(ctx, tenantID, id)
}

func (f failingConfig) BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error) {
	if f.board != nil {
		return nil, f.board
	}
	return f.Store.BoardGet(ctx, tenantID, id)
}

func testProjectionActive(t *testing.T, b *bundle) {
	p := b.projected(t)
	b.saveProjection(t, p, func() { p.Enabled = false })
	b.create(t, "s", "a1")
	b.relayed(t, "s")
	b.saveProjection(t, p, func() { p.Enabled, p.ActiveFromSeq = true, 1 })
	b.drain(t)
	require.Empty(t, b.rows(t), "it was in the log before")
	require.NotNil(t, b.person(t, "s", "a2"))
	b.saveProjection(t, p, func() { p.Enabled = false })
	require.Nil(t, b.person(t, "s", "a3"), "what was saved before an event is seen by its batch (T7)")
	// The tenant's head is lost: no seq is given out that the projection is
	// blind for (T4).
	b.saveProjection(t, p, func() { p.Enabled, p.ActiveFromSeq = true, 40 })
	lifted, err := b.real.HeadLift(t.Context(), tenant)
	require.NoError(t, err)
	require.EqualValues(t, 40, lifted.To)
}

func testProjectionIDs(t *testing.T, b *bundle) {
	b.projected(t)
	long := strings.Repeat("é", 130)
	for _, id := range []string{long, long + "x", "short"} {
		b.runs(t, b.made(t, id, "a1").ID)
	}
	mirrors := make(map[string]bool)
	for _, e := range b.events(t) {
		if e.BoardID == "b2" {
			mirrors[e.CardID] = true
			require.LessOrEqual(t, len(e.CardID), 255)
			require.True(t, e.CardID == "short@b2" || strings.HasPrefix(e.CardID, "éé"))
		}
	}
	require.Len(t, mirrors, 3, "each card has a mirror of its own")
}

// Two projections are changed so that they disagree: a card is not sent round
// for ever.
func testProjectionLoop(t *testing.T, b *bundle) {
	there := b.projected(t)
	back := b.inverse(t)
	b.made(t, "s", "a1")
	b.rest(t)
	require.Equal(t, []string{"card.created s", "card.created s@b2"}, lines(b.events(t)), "the echo changes nothing")

	move := b.person(t, "s", "a2")
	b.runs(t, move.ID)
	b.saveProjection(t, back, func() { back.Columns = pairs("c2 a3") })
	b.saveProjection(t, there, func() { there.Columns = pairs("a3 c1", "a2 c2") })
	b.rest(t)
	events := b.events(t)
	last := events[len(events)-1]
	require.Equal(t, []string{"s", "a3"}, []string{last.CardID, last.ToColumn})
	require.Equal(t, tracker.Cause{}.Then("there", "s").Then("back", mirror), last.Cause)
	row := b.owes(t, last.Seq)
	require.Equal(t, trigger.StateDone, row.State)
	require.Equal(t, trigger.OutcomeLoopCut, row.Outcome)

	// Nor does a long chain of others' go on.
	var cause tracker.Cause
	for i := range trigger.ChainDepthMax {
		cause = cause.Then(fmt.Sprint("sub", i), "s")
	}
	b.change(t, "s", func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card, event, err := moveTo("a2")(card, now)
		event.Cause = cause
		return card, event, err
	})
	b.relayed(t, "s")
	b.drain(t)
	rows := b.rows(t)
	require.Equal(t, trigger.OutcomeLoopCut, rows[len(rows)-1].Outcome)
}

// third makes a third board, onto which the second one is mirrored, and which
// mirrors it if back is set.
func (b *bundle) third(t *testing.T, back bool) {
	t.Helper()
	require.NoError(t, b.real.BoardSave(t.Context(), &tracker.Board{
		TenantID: tenant, ID: "b3", Name: "b3", Revision: 1, Columns: []tracker.Column{{ID: "d1"}, {ID: "d2"}, {ID: "d3"}},
	}))
	b.project(t, "on", "b2", "b3", "c1 d1", "c2 d2", "c3 d3")
	if back {
		b.project(t, "on-back", "b3", "b2", "d1 c1", "d2 c2", "d3 c3")
	}
}

// The last of three cards is moved to where the one in the middle stands
// already, by an older move of the first. That one hears of it all the same.
func testProjectionPassedOn(t *testing.T, b *bundle) {
	b.projected(t)
	b.inverse(t)
	b.third(t, true)
	last := mirror + "@b3"
	b.made(t, "s", "a1")
	b.rest(t)
	b.runs(t, b.person(t, "s", "a2").ID)
	older := b.person(t, "s", "a3")
	b.runs(t, b.person(t, last, "d2").ID)
	b.runs(t, older.ID)
	b.rest(t)
	require.Equal(t, []string{"a2", "c2", "d2"}, []string{b.column(t, "s"), b.column(t, mirror), b.column(t, last)})
	require.True(t, slices.ContainsFunc(b.events(t), func(e trigger.Event) bool { return e.Kind == tracker.KindProjected && e.CardID == mirror }))
}

// ConvergeProjections runs random moves by people on two or three boards that
// mirror each other, with effects executed in any order, again and again, cut
// anywhere and by stale workers; and looks, at rest, whether all boards show
// the latest of the moves. Each run gets a store of its own.
func ConvergeProjections(t *testing.T, open func(t *testing.T) trigger.Store, runs int) {
	t.Helper()
	for range runs {
		converge(t, newBundle(t, open(t)), 1)
	}
}

func converge(t *testing.T, b *bundle, runs int) {
	t.Helper()
	b.projected(t)
	b.inverse(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for run := range runs {
		m := &moves{bundle: b, rng: rand.New(rand.NewPCG(seed, uint64(run))), columns: 4}
		m.ids = []string{fmt.Sprint("s", run), fmt.Sprintf("s%d@b2", run)}
		if run == runs-1 && m.rng.IntN(2) == 0 {
			// Here all columns are mapped: a card on the second board that a
			// person moved out of the way would come between the other two.
			m.oneWay = m.rng.IntN(3) == 0
			b.third(t, !m.oneWay)
			m.ids, m.columns = append(m.ids, m.ids[1]+"@b3"), 3
		}
		m.run(t)
	}
}

// moves is one run: a card and its mirrors.
type moves struct {
	*bundle
	rng     *rand.Rand
	ids     []string // of the card on each board
	columns int      // of each board: a1, a2 …; c1, c2 …
	oneWay  bool     // the third board is mirrored by none
	stale   []trigger.Effect
	trace   []string
}

const boardLetters = "acd"

func (m *moves) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *moves) run(t *testing.T) {
	t.Helper()
	defer func() {
		if !t.Failed() {
			return
		}
		for _, e := range m.events(t) {
			m.note("%d %s %s %s → %s, of %d, chain %v", e.Seq, e.Kind, e.CardID, e.FromColumn, e.ToColumn, e.ProjectedSeq, e.Cause.Chain)
		}
		for _, r := range m.rows(t) {
			m.note("%s %s %s", r.ID, r.State, r.Outcome)
		}
		t.Log(strings.Join(m.trace, "\n"))
	}()
	m.create(t, m.ids[0], fmt.Sprint("a", 1+m.rng.IntN(m.columns)))
	for range 25 {
		switch m.rng.IntN(10) {
		case 0, 1, 2:
			m.personMoves(t)
		case 3, 4:
			for _, id := range m.ids {
				m.relayed(t, id)
			}
			m.drain(t)
		case 5, 6, 7:
			m.executeOne(t, func(r *trigger.Effect) bool { return r.State == trigger.StatePending })
		case 8:
			m.executeOne(t, func(r *trigger.Effect) bool { return r.Outcome == trigger.OutcomeProjected })
		default:
			m.resumeStale(t)
		}
	}
	m.rest(t)
	m.resumeStale(t)

	// Of the people's moves, in the order of the log, the last one that
	// concerns a card says where it stands.
	want := make(map[string]string)
	people, projected := 0, 0
	for _, e := range m.events(t) {
		board := slices.Index(m.ids, e.CardID)
		switch {
		case board < 0:
			continue
		case e.ProjectedSeq != 0:
			projected++
			continue
		}
		people++
		want[e.CardID] = e.After.ColumnID
		if number := e.After.ColumnID[1:]; number != "4" && (!m.oneWay || board != 2) {
			for i, id := range m.ids {
				want[id] = boardLetters[i:i+1] + number
			}
		}
	}
	for card, column := range want {
		require.Equal(t, column, m.column(t, card), card)
	}
	require.LessOrEqual(t, projected, people*(len(m.ids)-1), "each move is mirrored once at the most, and its echo not at all")
}

func (m *moves) personMoves(t *testing.T) {
	t.Helper()
	board := m.rng.IntN(len(m.ids))
	column := fmt.Sprint(boardLetters[board:board+1], 1+m.rng.IntN(m.columns))
	changed, err := m.board.Change(t.Context(), tenant, m.ids[board], moveInto(column))
	m.note("a person moves %s to %s: %t %v", m.ids[board], column, changed.Written, err)
}

// executeOne executes one of this run's rows that are like that, cut short or
// not, and not always settled.
func (m *moves) executeOne(t *testing.T, like func(*trigger.Effect) bool) {
	t.Helper()
	rows := slices.DeleteFunc(m.rows(t), func(r trigger.Effect) bool {
		return !slices.Contains(m.ids, r.CardID) || !like(&r)
	})
	if len(rows) == 0 {
		return
	}
	row := m.take(t, rows[m.rng.IntN(len(rows))].ID)
	if m.rng.IntN(4) == 0 {
		seen := 0
		m.setCut(dieAt(m.rng.IntN(12), &seen))
	}
	if at := m.rng.IntN(4); at < 2 {
		m.setHook(func(op string) {
			if op == []string{"EffectTouch", "CardWrite"}[at] {
				m.setHook(nil)
				m.personMoves(t)
			}
		})
	}
	ev := m.evaluator().Evaluate(t.Context(), &row)
	m.setHook(nil)
	m.setCut(nil)
	m.closeHoles(t)
	m.note("%s: %s %v", row.ID, ev.Outcome, ev.Err)
	if m.rng.IntN(4) == 0 {
		ev.Err = errCut // its end is not known
	}
	m.ends(t, &row, ev)
	m.stale = append(m.stale, row)
}

// resumeStale goes on with a claim that is over: it writes nothing.
func (m *moves) resumeStale(t *testing.T) {
	t.Helper()
	if len(m.stale) == 0 {
		return
	}
	row := m.stale[m.rng.IntN(len(m.stale))]
	before := m.cards(t)
	ev := m.evaluator().Evaluate(t.Context(), &row)
	m.note("stale %s: %s %v", row.ID, ev.Outcome, ev.Err)
	require.Equal(t, before, m.cards(t), "a claim that is over writes nothing")
}

func (m *moves) cards(t *testing.T) []string {
	t.Helper()
	cards, err := m.real.CardsGet(t.Context(), tenant, m.ids)
	require.NoError(t, err)
	var out []string
	for _, c := range cards {
		out = append(out, fmt.Sprintf("%s %d %s", c.ID, c.Rev, c.ColumnID))
	}
	slices.Sort(out)
	return out
}
