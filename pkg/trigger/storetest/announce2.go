package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testAnnounceTwo(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug")
	const n = 30
	for i := range n {
		row := b.claimedOf(t, fmt.Sprint("c", i))
		require.True(t, b.settle(t, b.settleTo(row, trigger.StateFailed)))
	}
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i := range errs {
		wg.Go(func() { errs[i] = b.announcer().Announce(t.Context(), b.Now()) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	cards := make(map[string]bool)
	for _, e := range b.told(t) {
		require.False(t, cards[e.CardID], "%s was told of twice", e.CardID)
		cards[e.CardID] = true
	}
	require.Len(t, cards, n)
	contiguous(t, b)
}

// Rows that were parked before this version are not told of, all at once.
func testAnnounceOld(t *testing.T, b *bundle) {
	b.in(t, 1, trigger.StateFailed, func(r *trigger.Effect) { r.CardID = "c1" })
	b.in(t, 2, trigger.StateReconcile, func(r *trigger.Effect) { r.CardID = "c1" })
	b.announce(t)
	require.Empty(t, b.told(t))
}

func testAnnounceDecided(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug")
	row := b.claimedOf(t, "c1")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateFailed)))
	require.NotZero(t, b.row(t, row.ID).AnnounceAt)
	got := b.decide(t, *b.row(t, row.ID), trigger.ActionDiscard)
	require.Zero(t, got.AnnounceAt, "somebody knows of it")
	// An older replica decides and leaves the mark.
	b.materialize(t, func() trigger.Effect {
		r := effect(9, lane, b.Now())
		r.CardID, r.AnnounceAt = "c1", b.Now()
		return r
	}())
	b.announce(t)
	require.Empty(t, b.told(t))
	open, err := b.real.EffectsUnannounced(ctx, b.Now().Add(time.Hour), 10)
	require.NoError(t, err)
	require.Empty(t, open)
}

// A mark is taken off by whoever told of that parking alone.
func testAnnounceMark(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug")
	row := b.claimedOf(t, "c1")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateFailed)))
	open := func() []trigger.Effect {
		t.Helper()
		rows, err := b.real.EffectsUnannounced(ctx, b.Now(), 10)
		require.NoError(t, err)
		return rows
	}
	first := open()
	require.Len(t, first, 1)
	for name, spoil := range map[string]func(*trigger.Effect){
		"another parking": func(r *trigger.Effect) { r.ClaimID = "another" },
		"another state":   func(r *trigger.Effect) { r.State = trigger.StateReconcile },
		"put off since":   func(r *trigger.Effect) { r.AnnounceAt = r.AnnounceAt.Add(-time.Millisecond) },
		"another tenant":  func(r *trigger.Effect) { r.TenantID = "other" },
	} {
		stale := first[0]
		spoil(&stale)
		require.NoError(t, b.real.EffectsAnnounced(ctx, []trigger.Effect{stale}, time.Time{}))
		require.Equal(t, first, open(), name)
	}
	later := b.Now().Add(time.Minute)
	require.NoError(t, b.real.EffectsAnnounced(ctx, first, later))
	require.Empty(t, open())
	b.pass(2 * time.Minute)
	second := open()
	require.Len(t, second, 1)
	require.NoError(t, b.real.EffectsAnnounced(ctx, first, time.Time{}), "it was put off since")
	require.Equal(t, second, open())
	require.NoError(t, b.real.EffectsAnnounced(ctx, second, time.Time{}))
	require.Empty(t, open())
	require.Equal(t, second[0].UpdatedAt, b.row(t, row.ID).UpdatedAt, "a decision about it as it was seen holds")
}

// deaf is a log that takes nothing of a tenant.
type deaf struct {
	trigger.EventLog
	tenant string
}

func (d deaf) SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (int64, error) {
	if tenantID == d.tenant {
		return 0, errCut
	}
	return d.EventLog.SeqAllocate(ctx, tenantID, n, lost)
}

func testAnnounceAlone(t *testing.T, b *bundle) {
	ctx := t.Context()
	parked := func(tenantID string, n int) trigger.Effect {
		e := trigger.Event{TenantID: tenantID, Seq: int64(n), Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{CardID: "c1", After: &tracker.Snapshot{}}}
		return trigger.Effect{
			ID: trigger.EffectID(e.ID(), "s1"), TenantID: tenantID, Kind: trigger.KindLaunch, Lane: lane, State: trigger.StateFailed,
			SubscriptionID: "s1", EventSeq: e.Seq, CardID: "c1", Event: e, UpdatedAt: b.Now(), AnnounceAt: b.Now(),
		}
	}
	const n = 120 // more than a page, of a tenant that sorts first
	for i := range n {
		b.materialize(t, parked(tenant, i+1))
	}
	_, err := b.real.EffectMaterialize(ctx, "zeta", []trigger.Effect{parked("zeta", 1)})
	require.NoError(t, err)
	a, relay := b.announcer(), *b.relay
	relay.Log = deaf{b.faults, tenant}
	a.Relay = &relay
	require.ErrorIs(t, a.Announce(ctx, b.Now()), errCut)
	require.EqualValues(t, 1, a.Announced(), "the other tenant's")
	open, err := b.real.EffectsUnannounced(ctx, b.Now(), 1000)
	require.NoError(t, err)
	require.Empty(t, open, "put off")
	b.pass(time.Minute)
	b.announce(t)
	require.Len(t, b.told(t), n)
}

// What another version told of in other words is not told of again, and does
// not stay to be told of.
func testAnnounceWords(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug")
	row := b.claimedOf(t, "c1")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateFailed)))
	_, err := b.relay.Append(t.Context(), tenant, []trigger.Event{{
		TenantID: tenant, Source: trigger.SourceCustom, Payload: `{"words":"other"}`,
		BoardEvent: tracker.BoardEvent{EID: "custom:effect.failed:" + row.ID + ":" + row.ClaimID, Kind: trigger.KindEffectFailed, CardID: "c1", BoardID: "b1"},
	}})
	require.NoError(t, err)
	b.announce(t)
	require.Len(t, b.told(t), 1)
	require.Zero(t, b.row(t, row.ID).AnnounceAt)
}

func testR4Told(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "a", "bug")
	row := b.claimedOf(t, "c1")
	require.True(t, b.settle(t, b.settleTo(row, trigger.StateFailed)))
	b.setCut(failOnce("EffectsAnnounced:before"))
	require.ErrorIs(t, b.announcer().Announce(t.Context(), b.Now()), errCut)
	b.drain(t)
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	require.Len(t, b.told(t), 1, "an announcer that goes on would tell of it a second time")
	b.announce(t)
	require.Len(t, b.told(t), 1)
	b.clean(t)
	require.Empty(t, b.events(t))
}

// dueTold tells when rows were asked for since when.
type dueTold struct {
	*faults
	due chan time.Duration
}

func (a dueTold) EffectsUnannounced(ctx context.Context, due time.Time, limit int) ([]trigger.Effect, error) {
	a.due <- a.Now().Sub(due)
	return a.faults.EffectsUnannounced(ctx, due, limit)
}

// The preferred replica tells of what is there; the others of what has waited.
func testAnnounceStepIn(t *testing.T, b *bundle) {
	for _, preferred := range []bool{true, false} {
		out := dueTold{b.faults, make(chan time.Duration, 100)}
		a := b.announcer()
		a.Outbox, a.Every, a.Prefers = out, time.Hour, func(string) bool { return preferred }
		require.NoError(t, a.Start(t.Context()))
		for range 2 { // at once, and when it is woken
			select {
			case ago := <-out.due:
				require.Equal(t, preferred, ago < 10*time.Second, ago)
			case <-time.After(30 * time.Second):
				t.Fatal("it did not look")
			}
			a.Wake()
		}
		a.Stop()
	}
}
