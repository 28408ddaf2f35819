package storetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testT1Crash(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "bug")
	for i := range 3 {
		b.create(t, fmt.Sprint("c", i), "open", "bug")
		b.relayed(t, fmt.Sprint("c", i))
	}
	// The batch is cut at each of its durable writes in turn: whatever was
	// written, the cursor has not passed an event whose rows are not there.
	for _, point := range []string{
		"EffectMaterialize:before", "EffectMaterialize:after", "LaneMarkMany:before", "LaneMarkMany:after", "HeadAdvance:before",
	} {
		b.setCut(failOnce(point))
		d, err := b.tail.Drain(ctx, tenant)
		require.ErrorIs(t, err, errCut, point)
		require.False(t, d.Moved)
		head, err := b.real.HeadGet(ctx, tenant)
		require.NoError(t, err)
		require.Zero(t, head.Cursor, point)
		require.True(t, head.Dirty)
	}
	b.setCut(nil)
	b.drain(t)
	require.Len(t, b.rows(t), 6)
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.EqualValues(t, 3, head.Cursor)
	require.False(t, head.Dirty)
	lanes, err := b.real.LanesDue(ctx, b.real.Now(), 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1)
}

func testT1LanesAgain(t *testing.T, b *bundle) {
	ctx := t.Context()
	sub := b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.setCut(failOnce("LaneMarkMany:before"))
	_, err := b.tail.Drain(ctx, tenant)
	require.ErrorIs(t, err, errCut)
	// Meanwhile the subscription moves to another bot: the row that is there
	// keeps its lane, and that lane is the one to be marked.
	sub.BotID, sub.Revision = "bot2", 2
	require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	b.drain(t)
	lanes, err := b.real.LanesDue(ctx, b.real.Now(), 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1)
	require.Equal(t, trigger.LaneBot("bot1"), lanes[0].Lane)
}

func testT2Transient(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.setCut(failOnce("EffectMaterialize:before"))
	b.tail.Serve(ctx, tenant)
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.Zero(t, head.Cursor)
	// The tenant backs off, and comes back.
	dirty, err := b.real.HeadsDirty(ctx, b.real.Now(), 10)
	require.NoError(t, err)
	require.Empty(t, dirty)
	dirty, err = b.real.HeadsDirty(ctx, b.real.Now().Add(time.Minute), 10)
	require.NoError(t, err)
	require.Len(t, dirty, 1)
	require.Equal(t, tenant, dirty[0].TenantID)
}

func testT2NoSnapshot(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindEdited} })
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	insert := func(seq int64, card string) {
		_, err := b.allocate(ctx, tenant, 1)
		require.NoError(t, err)
		require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{{
			TenantID: tenant, Seq: seq, Source: trigger.SourceBoard,
			BoardEvent: tracker.BoardEvent{EID: fmt.Sprint("board:", seq), Kind: tracker.KindEdited, CardID: card, Actor: human},
		}}))
	}
	insert(2, "gone")
	insert(3, "c1")
	// Any error but "not found" is transient: the batch waits.
	b.setCut(func(point string) error {
		if point == "CardsGet:before" || point == "CardGet:before" {
			return errCut
		}
		return nil
	})
	d, err := b.tail.Drain(ctx, tenant)
	require.NoError(t, err, "what comes before it goes on")
	require.True(t, d.Moved)
	_, err = b.tail.Drain(ctx, tenant)
	require.ErrorIs(t, err, errCut)
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Cursor)
	require.Empty(t, b.rows(t))
	// When only the query of all cards fails, they are read singly.
	b.setCut(failOnce("CardsGet:before"))
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 1, "the event of a card that is gone is skipped, the other fires")
	require.EqualValues(t, 3, rows[0].EventSeq)
	require.Equal(t, []string{"bug"}, rows[0].Event.After.Labels)
}

func testT3Hole(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	hole, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	b.create(t, "c2", "open", "bug")
	b.relayed(t, "c2")
	b.drain(t)
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, hole-1, head.Cursor, "the cursor waits before the hole")
	require.Len(t, b.rows(t), 1)
	// The late insert is not passed over.
	late := b.events(t)[0]
	late.Seq, late.EID, late.CardID = hole, "board:late", "c3"
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{late}))
	b.drain(t)
	require.Len(t, b.rows(t), 3)
	head, err = b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.EqualValues(t, 3, head.Cursor)
}

func testT4CAS(t *testing.T, b *bundle) {
	ctx := t.Context()
	_, err := b.real.HeadGet(ctx, tenant)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	first, err := b.allocate(ctx, tenant, 5)
	require.NoError(t, err)
	require.EqualValues(t, 1, first)
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	head.DrainAfter = time.Time{}
	require.Equal(t, trigger.Head{TenantID: tenant, Seq: 5, Dirty: true}, *head)

	advance := func(from, to int64) bool {
		ok, err := b.real.HeadAdvance(ctx, tenant, from, to)
		require.NoError(t, err)
		return ok
	}
	require.False(t, advance(0, 6), "beyond what was given out")
	require.True(t, advance(0, 3))
	require.False(t, advance(0, 4), "another replica advanced it")
	require.False(t, advance(3, 2), "never back")
	require.True(t, advance(3, 5))
	head, err = b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.EqualValues(t, 5, head.Cursor)
}

func testT4Lifted(t *testing.T, b *bundle) {
	ctx := t.Context()
	// A log, rows and a subscription without a head, as after a restore.
	for seq := int64(7); seq <= 9; seq++ {
		require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{{
			TenantID: tenant, Seq: seq, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{EID: fmt.Sprint("board:", seq)},
		}}))
	}
	b.materialize(t, effect(12, "l", b.real.Now()))
	first, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.EqualValues(t, 13, first, "no seq that a row has seen is given out again")
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.EqualValues(t, 6, head.Cursor, "below the oldest event kept")

	require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "other", ID: "s", Name: "s", Revision: 1, ActiveFromSeq: 40}))
	first, err = b.allocate(ctx, "other", 1)
	require.NoError(t, err)
	require.EqualValues(t, 41, first, "a subscription is not blind to new events")
}

func testT6Dirty(t *testing.T, b *bundle) {
	ctx := t.Context()
	dirty := func() []string {
		out, err := b.real.HeadsDirty(ctx, b.real.Now(), 10)
		require.NoError(t, err)
		var ids []string
		for _, d := range out {
			ids = append(ids, d.TenantID)
		}
		return ids
	}
	require.Empty(t, dirty())
	for _, tn := range []string{"t1", "t2"} {
		_, err := b.allocate(ctx, tn, 2)
		require.NoError(t, err)
	}
	require.ElementsMatch(t, []string{"t1", "t2"}, dirty())
	require.NoError(t, b.real.HeadDefer(ctx, "t1", b.real.Now().Add(time.Hour)))
	require.Equal(t, []string{"t2"}, dirty())
	_, err := b.real.HeadAdvance(ctx, "t2", 0, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"t2"}, dirty(), "still ahead of its cursor")
	_, err = b.real.HeadAdvance(ctx, "t2", 1, 2)
	require.NoError(t, err)
	require.Empty(t, dirty())
	_, err = b.allocate(ctx, "t2", 1)
	require.NoError(t, err)
	require.Equal(t, []string{"t2"}, dirty())
}

func testT7Active(t *testing.T, b *bundle) {
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.ActiveFromSeq = 1 })
	b.create(t, "c2", "open", "bug")
	b.relayed(t, "c2")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 1)
	require.EqualValues(t, 2, rows[0].EventSeq)
}

func testT7Revision(t *testing.T, b *bundle) {
	ctx := t.Context()
	sub := b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	require.Len(t, b.rows(t), 1)
	sub.Revision, sub.If.LabelsAll = 2, []string{"docs"}
	require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	b.create(t, "c2", "open", "bug")
	b.create(t, "c3", "open", "docs")
	b.relayed(t, "c2")
	b.relayed(t, "c3")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 2, "the edited subscription decides")
	require.Equal(t, "c3", rows[1].CardID)
	require.EqualValues(t, 2, rows[1].SubscriptionRevision)
	sub.Revision, sub.Enabled = 3, false
	require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	b.create(t, "c4", "open", "docs")
	b.relayed(t, "c4")
	b.drain(t)
	require.Len(t, b.rows(t), 2)
}

func testUnknownFeature(t *testing.T, b *bundle) {
	ctx := t.Context()
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	future := b.subscribe(t, "s2", "bug", func(s *trigger.Subscription) { s.Requires = []string{"telepathy"} })
	for range 3 {
		b.tail.Serve(ctx, tenant)
	}
	dirty, err := b.real.HeadsDirty(ctx, b.real.Now(), 10)
	require.NoError(t, err)
	require.Len(t, dirty, 1, "others are not kept away")
	head, err := b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	require.Zero(t, head.Cursor, "the tenant is left to others")
	require.Empty(t, b.rows(t))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("telepathy")), "one Warn")
	future.Revision, future.Requires = 2, nil
	require.NoError(t, b.real.SubscriptionSave(ctx, future))
	b.drain(t)
	require.Len(t, b.rows(t), 2)
}
