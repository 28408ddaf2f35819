package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// unread makes the event of a card poison because the card can't be read: the
// event came without a snapshot. It returns the poison row.
func (b *bundle) unread(t *testing.T, card string) *trigger.Effect {
	t.Helper()
	ctx := t.Context()
	seq, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	bare := b.late(seq)
	bare.After, bare.CardID = nil, card
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{bare}))
	b.setCut(func(point string) error {
		if strings.HasPrefix(point, "Card") {
			return errCut
		}
		return nil
	})
	for range trigger.PoisonTries {
		_, err := b.tail.Drain(ctx, tenant)
		require.ErrorIs(t, err, errCut)
	}
	b.pass(trigger.PoisonAfter)
	b.drain(t)
	b.setCut(nil)
	row := b.row(t, trigger.PoisonID(trigger.EventID(tenant, seq)))
	require.Equal(t, trigger.StateFailed, row.State)
	require.Equal(t, trigger.LaneEvents, row.Lane)
	return row
}

func testT5Replayed(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.projected(t)
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.On.Kinds = tracker.Kinds() })
	b.create(t, "s", "a1", "bug")
	b.relayed(t, "s")
	b.drain(t)
	poison := b.unread(t, "s")

	// The card still can't be read: that is not the row's fault.
	claimed := b.take(t, poison.ID)
	b.setCut(func(point string) error {
		if strings.HasPrefix(point, "Card") {
			return errCut
		}
		return nil
	})
	ev := b.evaluator().Evaluate(ctx, &claimed)
	b.setCut(nil)
	require.ErrorIs(t, ev.Err, errCut)
	require.True(t, ev.Uncounted)
	b.ends(t, &claimed, ev)

	// Nor are rows that can't be written, or lanes that can't be marked.
	before := len(b.rows(t))
	for _, point := range []string{"EffectMaterialize:before", "LaneMarkMany:before"} {
		claimed = b.take(t, poison.ID)
		b.setCut(failOnce(point))
		ev = b.evaluator().Evaluate(ctx, &claimed)
		b.setCut(nil)
		require.ErrorIs(t, ev.Err, errCut)
		require.True(t, ev.Uncounted)
		b.ends(t, &claimed, ev)
	}
	lanes, err := b.real.LanesDue(ctx, b.Now(), 10)
	require.NoError(t, err)
	var versions []int64
	for _, l := range lanes {
		versions = append(versions, l.Version)
	}
	got := b.runs(t, poison.ID)
	require.Equal(t, trigger.OutcomeMatched, got.Outcome)
	require.Len(t, b.rows(t), before+2, "the subscription's and the projection's")
	for _, id := range []string{trigger.EffectID(poison.Event.ID(), "s1"), trigger.ProjectionEffectID(poison.Event.ID(), "there")} {
		row := b.row(t, id)
		require.Equal(t, trigger.StatePending, row.State)
		require.NotNil(t, row.Event.After)
	}
	lanes, err = b.real.LanesDue(ctx, b.Now(), 10)
	require.NoError(t, err)
	require.Len(t, lanes, len(versions))
	for i, l := range lanes {
		require.Greater(t, l.Version, versions[i], "the lanes of rows that were there are marked too")
	}
	// Once more changes nothing.
	require.Equal(t, trigger.OutcomeMatched, b.runs(t, poison.ID).Outcome)
	require.Len(t, b.rows(t), before+2)

	// The card is gone meanwhile.
	poison = b.unread(t, "s")
	b.remove(t, "s")
	require.Equal(t, trigger.OutcomeCardGone, b.runs(t, poison.ID).Outcome)
}

func testT5StillPoison(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "x")
	huge := b.late(2)
	huge.Source, huge.Payload = trigger.SourceCustom, `"`+strings.Repeat("x", trigger.EventMaxBytes)+`"`
	foreign := b.late(3)
	foreign.Requires = []string{"teleport"}
	_, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{huge}))
	b.drain(t)
	id := trigger.PoisonID(huge.ID())
	for range 2 {
		row := b.runs(t, id)
		require.Equal(t, trigger.StateFailed, row.State)
		require.Equal(t, trigger.ReasonPermanent, row.Reason)
		require.Contains(t, row.Errors[len(row.Errors)-1].Message, "larger than")
	}
	require.Len(t, b.rows(t), 2)

	// A feature that this version does not know is never poison.
	_, err = b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{foreign}))
	poison := b.poisonRow(foreign)
	b.materialize(t, poison)
	claimed := b.take(t, poison.ID)
	ev := b.evaluator().Evaluate(ctx, &claimed)
	var unknown *trigger.UnknownFeatureError
	require.ErrorAs(t, ev.Err, &unknown)
	require.True(t, ev.Uncounted)
	// Without a tail the row waits for another replica.
	v := b.evaluator()
	v.Matcher = nil
	require.True(t, v.Evaluate(ctx, &claimed).Uncounted)
}

// poisonRow is the row that an event leaves whose matching panicked.
func (b *bundle) poisonRow(e trigger.Event) trigger.Effect {
	now := b.Now()
	return trigger.Effect{
		ID: trigger.PoisonID(e.ID()), TenantID: tenant, Kind: trigger.KindEvent, Lane: trigger.LaneEvents,
		State: trigger.StateFailed, Reason: trigger.ReasonPoison, EventSeq: e.Seq, CardID: e.CardID, Event: e,
		Errors: []trigger.AttemptError{{At: now, Message: "panic"}}, CreatedAt: now, UpdatedAt: now,
	}
}

func testT5LeftTheLog(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "xx")
	b.drain(t)
	require.Equal(t, []int64{1, 2}, b.firedSeqs(t))
	events := b.events(t)
	bare := events[1]
	bare.After, bare.Before = nil, nil
	b.materialize(t, b.poisonRow(events[0]), b.poisonRow(bare))
	b.subscribe(t, "s9", "bug")
	require.NoError(t, b.real.EventRemoveMany(ctx, tenant, []int64{1, 2}))

	require.Equal(t, trigger.OutcomeMatched, b.runs(t, trigger.PoisonID(events[0].ID())).Outcome, "the row has what it needs")
	b.row(t, trigger.EffectID(events[0].ID(), "s9"))
	row := b.runs(t, trigger.PoisonID(bare.ID()))
	require.Equal(t, trigger.StateFailed, row.State)
	require.Contains(t, row.Errors[len(row.Errors)-1].Message, "no longer in the log, and the row has no snapshot")

	// The rows of one that was matched may be gone with their event: matched
	// once more it would launch a second time.
	row = b.runs(t, trigger.PoisonID(events[0].ID()))
	require.Equal(t, trigger.StateFailed, row.State)
	require.Contains(t, row.Errors[len(row.Errors)-1].Message, "was matched before")
}

func testR4Poison(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.holed(t, "xx")
	b.drain(t)
	events := b.events(t)
	poison := b.poisonRow(events[0])
	b.materialize(t, poison)
	rows, err := b.real.EffectClaim(ctx, b.claimParams(lane, 2, time.Hour))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	for _, row := range rows {
		require.True(t, b.settle(t, b.done(row)))
	}
	// Those that were told to go are listed no more.
	kept := func() (ids []string) {
		rows, err := b.real.EffectsSettledBefore(ctx, tenant, b.Now().Add(time.Hour), "", 10)
		require.NoError(t, err)
		for _, row := range rows {
			ids = append(ids, row.ID)
		}
		return ids
	}
	b.pass(trigger.RowRetentionDefault + time.Hour)
	b.clean(t)
	require.Empty(t, b.events(t))
	// One event may be matched again: what it launched is remembered.
	require.Equal(t, []string{rows[0].ID}, kept())
	require.Equal(t, trigger.OutcomeMatched, b.runs(t, poison.ID).Outcome)
	require.Equal(t, trigger.StateDone, b.row(t, rows[0].ID).State, "not launched again")
	b.pass(trigger.RowRetentionDefault + time.Hour)
	b.clean(t)
	require.Empty(t, kept(), "then all of it goes")
}
