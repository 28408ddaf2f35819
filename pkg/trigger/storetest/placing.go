package storetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// placingTests are about where cards stand in their columns.
func placingTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestPosition_AnyOrderCanBeMade":        testPlaces,
		"TestPosition_NewAndMovedGoToTheBottom": testPlaceDefault,
		"TestPosition_RoomIsMade":               testPlaceRoom,
		"TestPosition_CardsWithoutOne":          testPlaceOld,
		"TestPosition_CrashWhileRoomIsMade":     testPlaceCrash,
		"TestPosition_AtOnce":                   testPlaceAtOnce,
	}
}

// place puts a card of the column open at a place in it.
func (b *bundle) place(t *testing.T, id string, p trigger.Place) error {
	t.Helper()
	_, err := b.board.Change(t.Context(), tenant, id, func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		position, err := b.board.Position(t.Context(), card, "open", p, now)
		if err != nil || position == card.Position {
			return nil, nil, err
		}
		card.Position = position
		return card, &tracker.BoardEvent{Kind: tracker.KindReordered, Actor: human}, nil
	})
	return err
}

// inOrder returns the cards of the column open.
func (b *bundle) inOrder(t *testing.T) []string {
	t.Helper()
	return b.pages(t, tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "open", Limit: 100}, nil)
}

// fill makes cards, one below the other.
func (b *bundle) fill(t *testing.T, n int) (ids []string) {
	t.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprint("c", i))
		b.create(t, ids[i], "open")
		require.NoError(t, b.place(t, ids[i], trigger.Place{}))
	}
	require.Equal(t, ids, b.inOrder(t))
	return ids
}

// Any sequence of places gives what a list would.
func testPlaces(t *testing.T, b *bundle) {
	r := rand.New(rand.NewPCG(1, 2))
	want := b.fill(t, 8)
	for range 60 {
		from := r.IntN(len(want))
		id := want[from]
		want = slices.Delete(want, from, from+1)
		to := r.IntN(len(want) + 1)
		var p trigger.Place
		switch way := r.IntN(2); {
		case to == 0 && way == 0:
			p.Top = true
		case to == len(want) && way == 0:
		case to > 0 && (way == 0 || to == len(want)):
			p.After = want[to-1]
		default:
			p.Before = want[to]
		}
		want = slices.Insert(want, to, id)
		require.NoError(t, b.place(t, id, p))
		require.Equal(t, want, b.inOrder(t), "%s to %+v", id, p)
	}
	// Where a card stands already nothing is to be changed.
	for _, p := range []trigger.Place{{After: want[2]}, {Before: want[4]}} {
		position, err := b.board.Position(t.Context(), b.card(t, want[3]), "open", p, b.real.Now())
		require.NoError(t, err)
		require.Equal(t, b.card(t, want[3]).Position, position)
	}
	b.create(t, "done", "done")
	b.put(t, tracker.Card{ID: "other-board", BoardID: "b2", ColumnID: "open", Title: "t"})
	for _, id := range []string{want[3], "done", "other-board", "nobody"} {
		var field *tracker.FieldError
		require.ErrorAs(t, b.place(t, want[3], trigger.Place{After: id}), &field)
		require.Equal(t, "after", field.Field)
		require.ErrorAs(t, b.place(t, want[3], trigger.Place{Before: id}), &field)
		require.Equal(t, "before", field.Field)
	}
	require.Equal(t, want, b.inOrder(t))
}

func testPlaceDefault(t *testing.T, b *bundle) {
	for _, id := range []string{"c1", "c2", "c3"} {
		b.create(t, id, "open")
		b.pass(2 * time.Millisecond)
	}
	require.Equal(t, []string{"c1", "c2", "c3"}, b.inOrder(t))
	was := b.card(t, "c1").Position
	b.change(t, "c1", retitle("another"))
	require.Equal(t, was, b.card(t, "c1").Position, "no other change touches it")
	to := func(column string) tracker.Changer {
		return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			card.ColumnID = column
			return card, &tracker.BoardEvent{Kind: tracker.KindMoved, Actor: human}, nil
		}
	}
	b.change(t, "c1", to("done"))
	b.pass(2 * time.Millisecond)
	b.change(t, "c1", to("open"))
	require.Equal(t, []string{"c2", "c3", "c1"}, b.inOrder(t))
	chosen := func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Position = "0V"
		return to("done")(card, now)
	}
	b.change(t, "c3", chosen)
	require.Equal(t, "0V", b.card(t, "c3").Position)
}

// Once there is no room between two cards, those below are moved on.
func testPlaceRoom(t *testing.T, b *bundle) {
	want := b.fill(t, 4)
	first := b.card(t, "c0").Position
	require.Len(t, first, 9)
	// The others as close to it as can be, at one position: ids decide.
	tight := b.card(t, "c3").Position
	for {
		next, ok := tracker.PositionsBetween(first, tight, 1)
		if !ok {
			break
		}
		tight = next[0]
	}
	require.Len(t, tight, tracker.PositionMaxBytes)
	for _, id := range []string{"c1", "c2", "c3"} {
		b.change(t, id, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			card.Position = tight
			return card, nil, nil
		})
	}
	require.Equal(t, want, b.inOrder(t))
	events := len(b.card(t, "c2").Pending)
	for i := range 20 {
		id := fmt.Sprintf("new%02d", i)
		b.create(t, id, "open")
		require.NoError(t, b.place(t, id, trigger.Place{After: "c0"}))
		want = slices.Insert(want, 1, id)
		require.Equal(t, want, b.inOrder(t))
	}
	require.Less(t, len(b.card(t, "c3").Position), 20)
	require.Len(t, b.card(t, "c2").Pending, events, "moved on without an event")
	require.NoError(t, b.place(t, "c3", trigger.Place{Before: "c2"}))
	require.Equal(t, []string{"c1", "c3", "c2"}, b.inOrder(t)[21:])

	// More than a window that stand at one place: refused, and all stay.
	b.put(t, tracker.Card{ID: "a", BoardID: "b1", ColumnID: "open", Title: "t", Position: "1"})
	var ws []tracker.CardWrite
	for i := range 510 {
		ws = append(ws, tracker.CardWrite{Next: &tracker.Card{TenantID: tenant, ID: fmt.Sprintf("d%03d", i), Incarnation: "i", Rev: 1, LastWrite: strconv.Itoa(i), BoardID: "b1", ColumnID: "open", Title: "t", Position: "1"}})
	}
	_, err := b.real.CardWriteMany(t.Context(), tenant, ws)
	require.NoError(t, err)
	before := b.inOrder(t)
	var refused *trigger.RefusedError
	require.ErrorAs(t, b.place(t, "c0", trigger.Place{After: "a"}), &refused)
	require.Equal(t, before, b.inOrder(t))
	require.NoError(t, b.place(t, "c0", trigger.Place{Top: true}))
	require.Equal(t, "c0", b.inOrder(t)[0])
}

// Cards that an older version made stand at the top, by id, and get positions
// once something is put among them.
func testPlaceOld(t *testing.T, b *bundle) {
	for _, id := range []string{"o1", "o2", "o3"} {
		b.put(t, tracker.Card{ID: id, BoardID: "b1", ColumnID: "open", Title: "t"})
	}
	b.create(t, "c1", "open")
	b.create(t, "c2", "open")
	require.NoError(t, b.place(t, "c2", trigger.Place{}))
	require.Equal(t, []string{"o1", "o2", "o3", "c1", "c2"}, b.inOrder(t))
	require.NoError(t, b.place(t, "c2", trigger.Place{After: "o1"}))
	require.Equal(t, []string{"o1", "c2", "o2", "o3", "c1"}, b.inOrder(t))
	require.Empty(t, b.card(t, "o1").Position)
	require.NoError(t, b.place(t, "c1", trigger.Place{Top: true}))
	require.Equal(t, []string{"c1", "o1", "c2", "o2", "o3"}, b.inOrder(t))
	require.NoError(t, b.place(t, "o1", trigger.Place{}))
	require.Equal(t, []string{"c1", "c2", "o2", "o3", "o1"}, b.inOrder(t))
}

// A process that dies while it makes room leaves every other card in its order,
// whichever of its writes was the last.
func testPlaceCrash(t *testing.T, b *bundle) {
	for die := range 5 {
		ids := []string{}
		for i := range 4 {
			id := fmt.Sprintf("r%d-%d", die, i)
			ids = append(ids, id)
			b.put(t, tracker.Card{ID: id, BoardID: "b1", ColumnID: "open", Title: "t", Position: "7" + string(rune('a'+die))})
		}
		b.put(t, tracker.Card{ID: fmt.Sprintf("r%d-4", die), BoardID: "b1", ColumnID: "open", Title: "t", Position: "7" + string(rune('a'+die)) + "1"})
		id := fmt.Sprintf("x%d", die)
		b.create(t, id, "open")
		before := slices.DeleteFunc(b.inOrder(t), func(s string) bool { return s == id })
		writes := 0
		b.setCut(func(point string) error {
			if point != "CardWrite:before" {
				return nil
			}
			if writes++; writes > die {
				b.faults.dead = true
				return errCut
			}
			return nil
		})
		_ = b.place(t, id, trigger.Place{After: ids[0]})
		b.revive()
		after := slices.DeleteFunc(b.inOrder(t), func(s string) bool { return s == id })
		require.Equal(t, before, after, "died at write %d", die)
		require.NoError(t, b.place(t, id, trigger.Place{After: ids[0]}))
		column := b.inOrder(t)
		require.Equal(t, id, column[slices.Index(column, ids[0])+1])
	}
}

// revive is a process after the one that died.
func (b *bundle) revive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut, b.faults.dead = nil, false
}

// Cards that are put to one place at once all end in the column, and the order
// can be made again.
func testPlaceAtOnce(t *testing.T, b *bundle) {
	ids := b.fill(t, 6)
	errs := make(chan error, len(ids))
	for _, id := range ids[1:] {
		go func() { errs <- b.place(t, id, trigger.Place{After: ids[0]}) }()
	}
	for range ids[1:] {
		require.NoError(t, <-errs)
	}
	got := b.inOrder(t)
	require.ElementsMatch(t, ids, got)
	require.Equal(t, ids[0], got[0])
	for i := range ids[1:] {
		require.NoError(t, b.place(t, ids[i+1], trigger.Place{After: ids[i]}))
	}
	require.Equal(t, ids, b.inOrder(t))
}
