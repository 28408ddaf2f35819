package storetest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testE1Conditional(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open", "bug")
	read, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)

	write := func(inc string, prev int64, title string) error {
		next := read.Clone()
		next.Rev, next.Title, next.LastWrite = prev+1, title, title
		return b.real.CardWrite(ctx, tracker.CardWrite{PrevIncarnation: inc, PrevRev: prev, Next: next})
	}
	require.ErrorIs(t, write("another", read.Rev, "no"), tracker.ErrConflict)
	require.ErrorIs(t, write(read.Incarnation, read.Rev+1, "no"), tracker.ErrConflict)
	require.ErrorIs(t, write("", 0, "no"), tracker.ErrConflict, "the card exists")
	require.NoError(t, write(read.Incarnation, read.Rev, "yes"))
	require.ErrorIs(t, write(read.Incarnation, read.Rev, "no"), tracker.ErrConflict, "the rev has moved")

	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, "yes", card.Title)
	require.Equal(t, []string{"bug"}, card.Labels)
	require.Len(t, card.Pending, 1, "a write without an event leaves the pending ones alone")

	// What becomes empty is empty when read back.
	next := card.Clone()
	next.Rev, next.Labels, next.Body = card.Rev+1, nil, ""
	require.NoError(t, b.real.CardWrite(ctx, tracker.CardWrite{PrevIncarnation: card.Incarnation, PrevRev: card.Rev, Next: next}))
	card, err = b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Empty(t, card.Labels)
	require.Empty(t, card.Body)

	_, err = b.real.CardGet(ctx, tenant, "nobody")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}

func testE1Chain(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	const writers, each = 4, 5
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if _, err := b.board.Change(t.Context(), tenant, "c1", retitle(fmt.Sprintf("%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.Len(t, card.Pending, 1+writers*each)
	require.False(t, card.PendingAt.IsZero())
	for i, e := range card.Pending[1:] {
		require.Equal(t, card.Pending[i].After, e.Before, "each before is the after of the change it follows")
		require.Equal(t, e.After.Rev, e.Before.Rev+1)
	}
}

func testE1LostAnswer(t *testing.T, b *bundle) {
	for _, relayedMeanwhile := range []bool{false, true} {
		id := fmt.Sprintf("c-%v", relayedMeanwhile)
		b.create(t, id, "open")
		b.setCut(failOnce("CardWrite:after"))
		if relayedMeanwhile {
			// Between the lost answer and the read, others write the card and
			// relay its events: the log is then the only witness.
			fail := failOnce("CardWrite:after")
			b.setCut(func(point string) error {
				err := fail(point)
				if err != nil {
					card, gerr := b.real.CardGet(t.Context(), tenant, id)
					require.NoError(t, gerr)
					next := card.Clone()
					next.Rev, next.LastWrite = card.Rev+1, "other"
					require.NoError(t, b.real.CardWrite(t.Context(), tracker.CardWrite{PrevIncarnation: card.Incarnation, PrevRev: card.Rev, Next: next}))
					plain := trigger.Relay{Cards: b.real, Log: b.real, Heads: b.real, FillTimeout: time.Second}
					_, rerr := plain.Card(t.Context(), tenant, id)
					require.NoError(t, rerr)
				}
				return err
			})
		}
		changed := b.change(t, id, retitle("new"))
		b.setCut(nil)
		require.True(t, changed.Written)
		b.relayed(t, id)
		var edits []trigger.Event
		for _, e := range b.events(t) {
			if e.CardID == id && e.Kind == tracker.KindEdited {
				edits = append(edits, e)
			}
		}
		require.Len(t, edits, 1, "one change, one event")
		require.Equal(t, changed.Event.EID, edits[0].EID)
	}

	// A write that never arrived is made again, under a fresh eid.
	b.setCut(failOnce("CardWrite:before"))
	b.eids = nil
	b.change(t, "c-false", retitle("newer"))
	require.Len(t, b.eids, 2)
	require.NotEqual(t, b.eids[0], b.eids[1])
	card, err := b.real.CardGet(t.Context(), tenant, "c-false")
	require.NoError(t, err)
	require.Len(t, card.Pending, 1)
	require.Equal(t, b.eids[1], card.Pending[0].EID)
}

func testE2TwoRelays(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	// The first relay has seen one event and is held up before it inserts;
	// meanwhile the card changes and another relay relays both.
	plain := &trigger.Relay{Cards: b.real, Log: b.real, Heads: b.real, FillTimeout: time.Second}
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "EventInsertMany" {
			once.Do(func() {
				_, err := b.board.Change(ctx, tenant, "c1", retitle("second"))
				require.NoError(t, err)
				_, err = plain.Card(ctx, tenant, "c1")
				require.NoError(t, err)
			})
		}
	})
	b.relayed(t, "c1")
	b.setHook(nil)
	require.Equal(t, []string{"card.created c1", "card.edited c1"}, lines(b.events(t)), "in the card's order, each once")
	contiguous(t, b)
	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Empty(t, card.Pending)

	// Many relays of one card at once.
	b.create(t, "c2", "open")
	for i := range 9 {
		b.change(t, "c2", retitle(strconv.Itoa(i)))
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := plain.Card(ctx, tenant, "c2"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b.relayed(t, "c2")
	var revs []int64
	for _, e := range b.events(t) {
		if e.CardID == "c2" {
			revs = append(revs, e.CardRev)
		}
	}
	require.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, revs)
	contiguous(t, b)
}

// contiguous: every seq given out is in the log.
func contiguous(t *testing.T, b *bundle) {
	t.Helper()
	head, err := b.real.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	for i, e := range b.events(t) {
		require.EqualValues(t, i+1, e.Seq)
	}
	require.Len(t, b.events(t), int(head.Seq))
}

func testE2Voids(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	b.change(t, "c1", retitle("a"))
	b.change(t, "c1", retitle("b"))
	// The seq of the second event is voided before the relay inserts it.
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "EventInsertMany" {
			once.Do(func() { require.NoError(t, b.real.EventFillVoids(ctx, tenant, []int64{2})) })
		}
	})
	seqs := b.relayed(t, "c1")
	events := b.events(t)
	require.Equal(t, []string{"card.created c1", "card.edited c1", "card.edited c1"}, lines(events))
	require.Equal(t, trigger.SourceVoid, events[1].Source)
	require.Equal(t, "void:2", events[1].EID)
	require.Equal(t, trigger.SourceVoid, events[2].Source, "the rest of the allocation is given up")
	require.Len(t, seqs, 3)
	contiguous(t, b)
}

func testE2FailedInsert(t *testing.T, b *bundle) {
	for _, point := range []string{"EventInsertMany:before", "EventInsertMany:after"} {
		id := strings.ReplaceAll(point, ":", "-")
		b.create(t, id, "open")
		b.setCut(failOnce(point))
		_, err := b.relay.Card(t.Context(), tenant, id)
		require.ErrorIs(t, err, errCut)
		contiguous(t, b)
		b.relayed(t, id)
		contiguous(t, b)
	}
	require.Len(t, lines(b.events(t)), 2, "each event once")
}

func testE3Remove(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	b.change(t, "c1", retitle("a"))
	b.change(t, "c1", retitle("b"))
	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	p := card.Pending

	require.NoError(t, b.real.CardPendingRemove(ctx, tenant, map[string][]string{"c1": {p[1].EID, "board:unknown"}}))
	card, err = b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, []tracker.BoardEvent{p[0], p[2]}, card.Pending)
	require.False(t, card.PendingAt.IsZero(), "the mark stays while an event is left")

	require.NoError(t, b.real.CardPendingRemove(ctx, tenant, map[string][]string{"c1": {p[0].EID, p[2].EID}}))
	card, err = b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Empty(t, card.Pending)
	require.True(t, card.PendingAt.IsZero())
	require.NoError(t, b.real.CardPendingRemove(ctx, tenant, map[string][]string{"nobody": {"x"}}))

	// A change between a relay's read and its clean-up stays pending.
	b.change(t, "c1", retitle("c"))
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "CardPendingRemove" {
			once.Do(func() { b.change(t, "c1", retitle("d")) })
		}
	})
	b.relayed(t, "c1")
	card, err = b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Len(t, card.Pending, 1)
	require.False(t, card.PendingAt.IsZero())
	require.Equal(t, "d", card.Pending[0].After.Title)
}

func testE3Full(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	for i := range tracker.PendingMax - 1 {
		b.change(t, "c1", retitle(strconv.Itoa(i)))
	}
	b.setCut(func(point string) error {
		if point == "SeqAllocate:before" {
			return errCut
		}
		return nil
	})
	_, err := b.board.Change(t.Context(), tenant, "c1", retitle("one too many"))
	require.ErrorIs(t, err, tracker.ErrPendingFull)
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.Len(t, card.Pending, tracker.PendingMax)
	require.NotEqual(t, "one too many", card.Title)

	b.setCut(nil)
	b.change(t, "c1", retitle("fits after a relay"))
}

func testE5Unique(t *testing.T, b *bundle) {
	ctx := t.Context()
	first, err := b.allocate(ctx, tenant, 3)
	require.NoError(t, err)
	require.EqualValues(t, 1, first)
	event := func(seq int64, eid string) trigger.Event {
		return trigger.Event{TenantID: tenant, Seq: seq, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{EID: eid, Kind: tracker.KindEdited}}
	}
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{event(1, "board:a")}))
	require.ErrorIs(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{event(1, "board:b")}), trigger.ErrEventExists)
	require.ErrorIs(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{event(2, "board:a")}), trigger.ErrEventExists)
	// An ordered insert stops at the first that is there.
	require.ErrorIs(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{event(2, "board:c"), event(1, "board:d"), event(3, "board:e")}), trigger.ErrEventExists)
	require.NoError(t, b.real.EventFillVoids(ctx, tenant, []int64{1, 2, 3}))
	events := b.events(t)
	require.Len(t, events, 3)
	require.Equal(t, "void:3", events[2].EID)
	seqs, err := b.real.EventSeqsByEID(ctx, tenant, []string{"board:a", "board:e", "void:3"})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"board:a": 1, "void:3": 3}, seqs)
	require.Equal(t, "acme/000000000003", events[2].ID())
	// The same ids in another tenant are others.
	require.NoError(t, b.real.EventInsertMany(ctx, "other", []trigger.Event{func() trigger.Event {
		e := event(1, "board:a")
		e.TenantID = "other"
		return e
	}()}))
}

func testE6Payload(t *testing.T, b *bundle) {
	ctx := t.Context()
	raw := `{"a.b":1,"$c":9007199254740993,"":{"n":1.0}, "s":"é"}`
	e := trigger.Event{TenantID: tenant, Seq: 1, Source: trigger.SourceCustom, BoardEvent: tracker.BoardEvent{EID: "custom:1"}, Payload: raw}
	_, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{e}))
	require.Equal(t, raw, b.events(t)[0].Payload)

	_, err = b.board.Change(ctx, tenant, "big", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", Body: strings.Repeat("x", tracker.BodyMaxBytes+1)}, nil, nil
	})
	var fe *tracker.FieldError
	require.ErrorAs(t, err, &fe)
	require.Equal(t, "body", fe.Field)
	_, err = b.real.CardGet(ctx, tenant, "big")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}

// strictLog refuses to fill for a caller that has left, as a database does.
type strictLog struct{ trigger.EventLog }

func (l strictLog) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.EventLog.EventFillVoids(ctx, tenantID, seqs)
}

func testE2FillOutlives(t *testing.T, b *bundle) {
	b.relay.Log = strictLog{b.faults}
	b.create(t, "c1", "open")
	b.change(t, "c1", retitle("new"))
	ctx, cancel := context.WithCancel(t.Context())
	b.setHook(func(op string) {
		if op == "EventInsertMany" {
			cancel()
		}
	})
	b.setCut(failOnce("EventInsertMany:before"))
	_, err := b.relay.Card(ctx, tenant, "c1")
	require.ErrorIs(t, err, errCut)
	b.setHook(nil)
	head, err := b.real.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	require.EqualValues(t, 2, head.Seq)
	seqs, err := b.real.EventSeqs(t.Context(), tenant, 0, head.Seq)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 2}, seqs, "no hole is left to hold up the tenant")
}
