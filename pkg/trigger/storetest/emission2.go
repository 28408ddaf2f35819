package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// crashed cuts the next relay of the card at the point, as a process that
// dies there.
func (b *bundle) crashed(t *testing.T, id, point string) {
	t.Helper()
	dead := false
	b.setCut(func(p string) error {
		dead = dead || p == point
		if dead {
			return errCut
		}
		return nil
	})
	_, err := b.relay.Card(t.Context(), tenant, id)
	require.ErrorIs(t, err, errCut)
	b.setCut(nil)
}

func (b *bundle) sweeper() *trigger.Sweeper {
	return &trigger.Sweeper{Cards: b.faults, Relay: b.relay, Clock: b.faults}
}

func testE2Patience(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	patience := func() int64 {
		head, err := b.real.HeadGet(ctx, tenant)
		require.NoError(t, err)
		return head.PatienceMS
	}
	// Each insert comes after a void took its seq, five times.
	losses := 0
	b.setHook(func(op string) {
		if op != "EventInsertMany" || losses == 5 {
			return
		}
		losses++
		head, err := b.real.HeadGet(ctx, tenant)
		require.NoError(t, err)
		require.NoError(t, b.real.EventFillVoids(ctx, tenant, []int64{head.Seq}))
	})
	seqs := b.relayed(t, "c1")
	b.setHook(nil)
	require.Len(t, seqs, 1)
	require.Equal(t, trigger.PatienceMax.Milliseconds(), patience(), "doubled, up to the operation's timeout")
	contiguous(t, b)

	// Meeting another relay of the same event is no loss.
	b.create(t, "other", "open")
	plain := trigger.Relay{Cards: b.real, Log: b.real, Heads: b.real}
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "EventInsertMany" {
			once.Do(func() {
				_, err := plain.Card(ctx, tenant, "other")
				require.NoError(t, err)
			})
		}
	})
	_, err := b.real.HeadLift(ctx, "fresh")
	require.NoError(t, err)
	b.relayed(t, "other")
	contiguous(t, b)
}

func testE3Sweeper(t *testing.T, b *bundle) {
	ctx := t.Context()
	s := b.sweeper()
	points := []string{
		"SeqAllocate:before", "SeqAllocate:after", "EventInsertMany:before", "EventInsertMany:after",
		"CardPendingRemove:before", "CardPendingRemove:after",
	}
	for _, point := range points {
		b.create(t, point, "open")
		b.crashed(t, point, point)
	}
	swept, err := s.Sweep(ctx)
	require.NoError(t, err)
	require.Zero(t, swept, "a fresh mark is somebody's work under way")
	b.pass(trigger.SweepAfterDefault + time.Second)
	swept, err = s.Sweep(ctx)
	require.NoError(t, err)
	require.Equal(t, len(points)-1, swept, "all but the one whose clean-up was applied")
	for _, point := range points {
		card, err := b.real.CardGet(ctx, tenant, point)
		require.NoError(t, err)
		require.Empty(t, card.Pending)
		require.True(t, card.PendingAt.IsZero())
	}
	got := lines(b.events(t))
	slices.Sort(got)
	want := make([]string, len(points))
	for i, p := range points {
		want[i] = "card.created " + p
	}
	slices.Sort(want)
	require.Equal(t, want, got, "each event once")
	b.pass(time.Hour)
	swept, err = s.Sweep(ctx)
	require.NoError(t, err)
	require.Zero(t, swept)
}

func testE3Touch(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	now := b.real.Now().Add(time.Minute)
	page, err := b.real.CardsPending(ctx, now, 10)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, tenant, page[0].TenantID)
	require.Equal(t, "c1", page[0].CardID)
	var won sync.Map
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			ok, err := b.real.CardPendingTouch(ctx, page[0], now.Add(time.Duration(i)*time.Second))
			if err != nil {
				t.Error(err)
			}
			if ok {
				won.Store(i, true)
			}
		})
	}
	wg.Wait()
	n := 0
	won.Range(func(any, any) bool { n++; return true })
	require.Equal(t, 1, n, "one sweeper takes the card on")
	page, err = b.real.CardsPending(ctx, now.Add(-time.Second), 10)
	require.NoError(t, err)
	require.Empty(t, page, "its mark has moved")
}

func (b *bundle) remove(t *testing.T, id string) {
	t.Helper()
	_, err := b.board.Delete(t.Context(), tenant, id, human)
	require.NoError(t, err)
}

func testE4Tombstone(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open", "bug")
	b.remove(t, "c1")
	_, err := b.board.CardGet(ctx, tenant, "c1")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.board.Delete(ctx, tenant, "c1", human)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.True(t, card.Deleted)
	require.Len(t, card.Pending, 2)
	gone, err := b.real.CardBury(ctx, tenant, "c1", card.Incarnation)
	require.NoError(t, err)
	require.False(t, gone, "its events are not in the log yet")

	b.relayed(t, "c1")
	require.Equal(t, []string{"card.created c1", "card.deleted c1"}, lines(b.events(t)))
	require.Equal(t, []string{"bug"}, b.events(t)[1].After.Labels)
	_, err = b.real.CardGet(ctx, tenant, "c1")
	require.ErrorIs(t, err, tracker.ErrNotFound, "buried by the relay")
}

func testE4Crash(t *testing.T, b *bundle) {
	ctx := t.Context()
	s := b.sweeper()
	for n := 0; ; n++ {
		id := fmt.Sprint("c", n)
		b.create(t, id, "open")
		b.relayed(t, id)
		seen := 0
		b.setCut(dieAt(n, &seen))
		_, err := b.board.Delete(ctx, tenant, id, human)
		if err == nil {
			_, err = b.relay.Card(ctx, tenant, id)
		}
		b.setCut(nil)
		if err != nil {
			require.ErrorIs(t, err, errCut)
		}
		b.closeHoles(t)
		b.pass(time.Minute)
		_, err = s.Sweep(ctx)
		require.NoError(t, err)
		kinds := lines(slices.DeleteFunc(b.events(t), func(e trigger.Event) bool { return e.CardID != id }))
		card, err := b.real.CardGet(ctx, tenant, id)
		if err == nil {
			require.False(t, card.Deleted, "cut %d: a tombstone does not stay", n)
			require.Equal(t, []string{"card.created " + id}, kinds)
		} else {
			require.ErrorIs(t, err, tracker.ErrNotFound)
			require.Equal(t, []string{"card.created " + id, "card.deleted " + id}, kinds, "cut %d", n)
		}
		if seen <= n {
			require.Greater(t, n, 6)
			return
		}
	}
}

func testE4Again(t *testing.T, b *bundle) {
	ctx := t.Context()
	first := b.create(t, "c1", "open", "bug").Card
	b.remove(t, "c1")
	// Made again before the tombstone is buried: its events go on in order.
	second := b.create(t, "c1", "open").Card
	require.NotEqual(t, first.Incarnation, second.Incarnation)
	require.EqualValues(t, 1, second.Rev)
	stale := first.Clone()
	stale.Rev, stale.Title = 2, "stale"
	err := b.real.CardWrite(ctx, tracker.CardWrite{PrevIncarnation: first.Incarnation, PrevRev: 1, Next: stale})
	require.ErrorIs(t, err, tracker.ErrConflict, "a write meant for the first card")
	b.relayed(t, "c1")
	events := b.events(t)
	require.Equal(t, []string{"card.created c1", "card.deleted c1", "card.created c1"}, lines(events))
	require.Nil(t, events[2].Before)
	gone, err := b.real.CardBury(ctx, tenant, "c1", first.Incarnation)
	require.NoError(t, err)
	require.True(t, gone, "the first one is gone")
	card, err := b.board.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, second.Incarnation, card.Incarnation)

	// A spent one-shot keeps the tombstone, and is launched (W7).
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.ActiveFromSeq = 3 })
	id := b.fired(t, "c2").ID
	seen := 0
	b.setCut(func(p string) error {
		if p == "EffectMarkConsumed:before" {
			seen = 1
		}
		if seen > 0 {
			return errCut
		}
		return nil
	})
	_, err = b.attempt(t, id)
	require.ErrorIs(t, err, errCut)
	b.setCut(nil)
	b.remove(t, "c2")
	b.relayed(t, "c2")
	card, err = b.real.CardGet(ctx, tenant, "c2")
	require.NoError(t, err)
	require.True(t, card.Deleted)
	require.NotNil(t, card.ConsumedBy(id), "the tombstone tells that the label is spent")
	_, err = b.attempt(t, id)
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, id).Outcome, "a spent row launches although its card is gone")
}

func moveTo(column string) tracker.Changer {
	return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return nil, nil, tracker.ErrNotFound
		}
		if card.ColumnID == column {
			return nil, nil, nil
		}
		from := card.ColumnID
		card.ColumnID = column
		return card, &tracker.BoardEvent{Kind: tracker.KindMoved, Actor: human, FromColumn: from, ToColumn: column}, nil
	}
}

func testBulk(t *testing.T, b *bundle) {
	ctx := t.Context()
	var ids []string
	for i := range 60 {
		ids = append(ids, fmt.Sprintf("c%02d", i))
	}
	made, err := b.board.ChangeMany(ctx, tenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	for _, c := range made {
		require.NoError(t, c.Err)
		require.True(t, c.Written)
	}
	moved, err := b.board.ChangeMany(ctx, tenant, append([]string{"nobody"}, ids...), moveTo("done"))
	require.NoError(t, err)
	require.ErrorIs(t, moved[0].Err, tracker.ErrNotFound)
	events := b.events(t)
	require.Len(t, events, 120)
	for i, e := range events[60:] {
		require.Equal(t, ids[i], e.CardID, "in the order of the cards")
		require.Equal(t, tracker.KindMoved, e.Kind)
		require.Equal(t, "open", e.Before.ColumnID)
		require.Equal(t, moved[i+1].Event.EID, e.EID)
	}
	contiguous(t, b)
	again, err := b.board.ChangeMany(ctx, tenant, ids, moveTo("done"))
	require.NoError(t, err)
	for _, c := range again {
		require.False(t, c.Written)
	}
	_, err = b.board.ChangeMany(ctx, tenant, []string{"c01", "c01"}, moveTo("open"))
	require.Error(t, err)
	_, err = b.board.ChangeMany(ctx, tenant, make([]string, trigger.ChangeManyMax+1), moveTo("open"))
	require.Error(t, err)
}

func testBulkFaults(t *testing.T, b *bundle) {
	ctx := t.Context()
	ids := []string{"a", "b", "c"}
	for _, id := range ids {
		b.create(t, id, "open")
	}
	for n, point := range []string{"CardWriteMany:before", "CardWriteMany:after"} {
		to := fmt.Sprint("col", n)
		b.setCut(failOnce(point))
		out, err := b.board.ChangeMany(ctx, tenant, ids, moveTo(to))
		b.setCut(nil)
		require.NoError(t, err)
		for _, c := range out {
			require.NoError(t, c.Err, point)
		}
		moves := 0
		for _, e := range b.events(t) {
			if e.ToColumn == to {
				moves++
			}
		}
		require.Equal(t, 3, moves, "%s: each card moved once", point)
	}
	// Others change one of the cards in between: it is read again.
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "CardWriteMany" {
			once.Do(func() {
				plain := &trigger.Board{Cards: b.real, Log: b.real, Clock: b.real, Relay: b.relay}
				_, err := plain.Change(context.WithoutCancel(ctx), tenant, "b", retitle("meanwhile"))
				require.NoError(t, err)
			})
		}
	})
	out, err := b.board.ChangeMany(ctx, tenant, ids, moveTo("last"))
	b.setHook(nil)
	require.NoError(t, err)
	require.NoError(t, out[1].Err)
	card, err := b.real.CardGet(ctx, tenant, "b")
	require.NoError(t, err)
	require.Equal(t, "meanwhile", card.Title)
	require.Equal(t, "last", card.ColumnID)
	contiguous(t, b)
}

// A move and a label at the same time: whichever comes second sees the first
// one's change before it, so that "labelled and in Ready" comes true once.
func testE1Both(t *testing.T, b *bundle) {
	const rounds = 200
	b.subscribe(t, "s1", "ship-it", func(s *trigger.Subscription) { s.If.Columns = []string{"ready"} })
	var ids []string
	for i := range rounds {
		ids = append(ids, fmt.Sprintf("c%03d", i))
	}
	_, err := b.board.ChangeMany(t.Context(), tenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	for _, id := range ids {
		var both sync.WaitGroup
		for _, f := range []tracker.Changer{moveTo("ready"), addLabel("ship-it")} {
			both.Go(func() {
				if _, err := b.board.Change(t.Context(), tenant, id, f); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	for chunk := range slices.Chunk(ids, 100) {
		_, err := b.relay.CardMany(t.Context(), tenant, chunk)
		require.NoError(t, err)
	}
	b.drain(t)
	fired := map[string]int{}
	for _, row := range b.rows(t) {
		fired[row.CardID]++
	}
	for _, id := range ids {
		require.Equal(t, 1, fired[id], id)
	}
}

func testE3Between(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "CardPendingRemove" {
			once.Do(func() { b.change(t, "c1", retitle("meanwhile")) })
		}
	})
	b.relayed(t, "c1")
	b.setHook(nil)
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.Len(t, card.Pending, 1, "what came in between stays pending")
	require.False(t, card.PendingAt.IsZero(), "and marked")
	b.relayed(t, "c1")
	require.Equal(t, []string{"card.created c1", "card.edited c1"}, lines(b.events(t)))
}
