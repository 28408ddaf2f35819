package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// edits returns the eids of the card's edits that are in the log.
func (b *bundle) edits(t *testing.T, id string) (eids []string) {
	t.Helper()
	for _, e := range b.events(t) {
		if e.CardID == id && e.Kind == tracker.KindEdited {
			eids = append(eids, e.EID)
		}
	}
	return eids
}

// A write whose answer was lost lands when the card has been read and found
// without it: the next attempt meets it as a conflict, and is not made on top.
func testE1LateWrite(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	var late func() error
	b.holdCardWrite = func(apply func() error) error {
		if late == nil {
			late = apply
			return errCut
		}
		require.NoError(t, late())
		b.holdCardWrite = nil
		return apply()
	}
	b.eids = nil
	changed := b.change(t, "c1", retitle("new"))
	require.True(t, changed.Written)
	require.Len(t, b.eids, 2)
	require.Equal(t, b.eids[0], changed.Event.EID, "the late one stands")
	b.relayed(t, "c1")
	require.Equal(t, []string{changed.Event.EID}, b.edits(t, "c1"), "one change, one event")
}

// A deletion whose answer was lost is relayed and buried by others before its
// caller looks: the log is the only witness.
func testE1Buried(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	plain := &trigger.Relay{Cards: b.real, Log: b.real, Heads: b.real}
	fail := failOnce("CardWrite:after")
	b.setCut(func(point string) error {
		err := fail(point)
		if err != nil {
			_, rerr := plain.Card(t.Context(), tenant, "c1")
			require.NoError(t, rerr)
			_, gerr := b.real.CardGet(t.Context(), tenant, "c1")
			require.ErrorIs(t, gerr, tracker.ErrNotFound)
		}
		return err
	})
	changed, err := b.board.Delete(t.Context(), tenant, "c1", human)
	require.NoError(t, err, "it was deleted by this very call")
	require.True(t, changed.Written)
	require.Equal(t, []string{"card.created c1", "card.deleted c1"}, lines(b.events(t)))
}

// writtenOver is a store in which others write each card of a bulk write
// before it is read back which writes stand.
type writtenOver struct {
	*faults
	over func(id string)
}

func (w writtenOver) CardWriteMany(ctx context.Context, tenantID string, ws []tracker.CardWrite) ([]bool, error) {
	if _, err := w.faults.CardWriteMany(ctx, tenantID, ws); err != nil {
		return nil, err
	}
	for i := range ws {
		w.over(ws[i].Next.ID)
	}
	return make([]bool, len(ws)), nil
}

func testE1BulkWrittenOver(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	b.create(t, "c2", "open")
	plain := &trigger.Relay{Cards: b.real, Log: b.real, Heads: b.real}
	other := &trigger.Board{Cards: b.real, Log: b.real, Clock: b.real, Relay: plain}
	b.board.Cards = writtenOver{b.faults, func(id string) {
		_, err := other.Change(ctx, tenant, id, addLabel("other"))
		require.NoError(t, err)
		if id == "c2" {
			_, err = plain.Card(ctx, tenant, id)
			require.NoError(t, err)
		}
	}}
	out, err := b.board.ChangeMany(ctx, tenant, []string{"c1", "c2"}, retitle("new"))
	require.NoError(t, err)
	for _, c := range out {
		require.NoError(t, c.Err)
		require.Equal(t, []string{c.Event.EID}, b.edits(t, c.CardID), "one change, one event")
	}
}

// A card is made over a tombstone, by a write that makes no event: the mark of
// the tombstone goes, or sweepers would come back to the card for ever.
func testE3MarkOfATombstone(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	b.relayed(t, "c1")
	_, err := b.board.Delete(ctx, tenant, "c1", human)
	require.NoError(t, err)
	b.crashed(t, "c1", "CardPendingRemove:after")
	b.change(t, "c1", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: "again"}, nil, nil
	})
	b.pass(trigger.SweepAfterDefault + time.Second)
	swept, err := b.sweeper().Sweep(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, swept)
	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, "again", card.Title)
	require.True(t, card.PendingAt.IsZero())
}

// A watch's write is slow: seqs that are given out meanwhile are not among
// those that its patience has counted for.
func testT3SlowWatch(t *testing.T, b *bundle) {
	b.holed(t, "x.")
	_, err := b.tail.Drain(t.Context(), tenant)
	require.NoError(t, err)
	b.setHook(func(op string) {
		if op == "HeadWatchHole" {
			b.pass(trigger.HoleWaitDefault)
			_, err := b.allocate(t.Context(), tenant, 1)
			require.NoError(t, err)
		}
	})
	b.drain(t)
	b.setHook(nil)
	require.EqualValues(t, 2, b.head(t).HoleUpTo)
	b.drain(t)
	require.EqualValues(t, 2, b.head(t).Cursor, "the hole at 3 is young")
	b.pass(trigger.HoleWaitDefault)
	b.drain(t)
	require.EqualValues(t, 3, b.head(t).Cursor)
}
