package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func reaperTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestReaper_RemovesAllOfOneTenant":   testReaper,
		"TestReaper_CrashAtEveryStep":        testReaperCrash,
		"TestReaper_TwoAtOnce":               testReaperTwo,
		"TestReaper_WhatComesBackIsRemoved":  testReaperLate,
		"TestReaper_DeletingTenantsAreApart": testReaperApart,
		"TestReaper_QuietCountsAnew":         testReaperQuiet,
	}
}

// reapStore is a store whose steps of a deletion can be watched, and fail.
type reapStore struct {
	trigger.Store
	step func(op string) error
}

func (r *reapStore) TenantSave(ctx context.Context, t *trigger.Tenant) error {
	if err := r.step("TenantSave"); err != nil {
		return err
	}
	return r.Store.TenantSave(ctx, t)
}

func (r *reapStore) PauseSet(ctx context.Context, p trigger.Pause) error {
	if err := r.step("PauseSet"); err != nil {
		return err
	}
	return r.Store.PauseSet(ctx, p)
}

func (r *reapStore) TokensRevoke(ctx context.Context, tenantID string, at time.Time) error {
	if err := r.step("TokensRevoke"); err != nil {
		return err
	}
	return r.Store.TokensRevoke(ctx, tenantID, at)
}

func (r *reapStore) SubscriptionSave(ctx context.Context, s *trigger.Subscription) error {
	if err := r.step("SubscriptionSave"); err != nil {
		return err
	}
	return r.Store.SubscriptionSave(ctx, s)
}

func (r *reapStore) TenantPurge(ctx context.Context, tenantID string, part trigger.TenantPart, limit int) (int, error) {
	if err := r.step("purge " + string(part)); err != nil {
		return 0, err
	}
	return r.Store.TenantPurge(ctx, tenantID, part, min(limit, 500))
}

func (r *reapStore) TenantRemove(ctx context.Context, tenantID string, revision int64) error {
	if err := r.step("TenantRemove"); err != nil {
		return err
	}
	return r.Store.TenantRemove(ctx, tenantID, revision)
}

func (b *bundle) reaper(step func(string) error) *trigger.Reaper {
	return &trigger.Reaper{Store: &reapStore{b.real, step}, Logger: zerolog.Nop(), After: 1, Quiet: 1}
}

func noStep(string) error { return nil }

// tenantOf makes a tenant that has something of each part.
func (b *bundle) tenantOf(t *testing.T, id string) {
	t.Helper()
	ctx, now, s := t.Context(), b.real.Now(), b.real
	require.NoError(t, s.TenantSave(ctx, &trigger.Tenant{ID: id, Name: id, Revision: 1, UpdatedAt: now}))
	require.NoError(t, s.BoardSave(ctx, &tracker.Board{TenantID: id, ID: "b1", Name: "b1", Revision: 1}))
	require.NoError(t, s.BotSave(ctx, &trigger.Bot{TenantID: id, ID: "bot1", Name: "bot1", URL: "http://bot.invalid", Replay: trigger.ReplaySafe, Secret: "s", Revision: 1}))
	require.NoError(t, s.HookSave(ctx, &trigger.Hook{TenantID: id, ID: "h1", Name: "h1", BoardID: "b1", Secret: "s", Revision: 1}))
	require.NoError(t, s.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: id, ID: "s1", Name: "s1", Revision: 1, Enabled: true, BotID: "bot1", If: trigger.Conditions{LabelsAll: []string{"x"}},
	}))
	require.NoError(t, s.ProjectionSave(ctx, &trigger.Projection{TenantID: id, ID: "p1", Name: "p1", Revision: 1}))
	require.NoError(t, s.TokenCreate(ctx, &trigger.Token{ID: "t-" + id, Hash: "h-" + id, Role: trigger.RoleEditor, TenantID: id, CreatedAt: now}))
	require.NoError(t, s.AuditBegin(ctx, auditEntry(id, now)))
	require.NoError(t, s.BulkCreate(ctx, &trigger.Bulk{TenantID: id, ID: "bulk", CreatedAt: now}))
	require.NoError(t, s.DeliveryRecord(ctx, id, "h1", "d1", now))
	_, _, err := s.CreateKeyReserve(ctx, b.createKey(id, "k", "r"))
	require.NoError(t, err)
	_, err = b.board.Change(ctx, id, "c1", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: "t"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	_, err = b.relay.Card(ctx, id, "c1")
	require.NoError(t, err)
	row := effect(1, trigger.LaneBot("bot1"), now)
	row.TenantID, row.ID = id, trigger.EffectID(trigger.EventID(id, 1), "s1")
	_, err = s.EffectMaterialize(ctx, id, []trigger.Effect{row})
	require.NoError(t, err)
	require.NoError(t, s.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: id, Lane: row.Lane, Due: now}}))
	require.NoError(t, s.PauseSet(ctx, trigger.Pause{TenantID: id, BotID: "bot1", At: now}))
}

// markDeleted marks it as the API does.
func (b *bundle) markDeleted(t *testing.T, id string) {
	t.Helper()
	tn, err := b.real.TenantGet(t.Context(), id)
	require.NoError(t, err)
	tn.DeletingAt, tn.Revision = b.real.Now().Add(-time.Millisecond), tn.Revision+1
	require.NoError(t, b.real.TenantSave(t.Context(), tn))
}

// lapse ends the lease of a reaper that died.
func (b *bundle) lapse(t *testing.T, id string) {
	t.Helper()
	tn, err := b.real.TenantGet(t.Context(), id)
	if errors.Is(err, tracker.ErrNotFound) {
		return
	}
	require.NoError(t, err)
	tn.ReapUntil, tn.Revision = time.Time{}, tn.Revision+1
	require.NoError(t, b.real.TenantSave(t.Context(), tn))
}

// left removes what a tenant has of each part, and returns how much that was.
func (b *bundle) left(t *testing.T, id string) map[trigger.TenantPart]int {
	t.Helper()
	out := make(map[trigger.TenantPart]int)
	for _, part := range trigger.TenantParts() {
		n, err := b.real.TenantPurge(t.Context(), id, part, 1000)
		require.NoError(t, err)
		if n > 0 {
			out[part] = n
		}
	}
	return out
}

// reap reaps until the tenant is gone.
func (b *bundle) reap(t *testing.T, r *trigger.Reaper, id string) {
	t.Helper()
	for range 50 {
		require.NoError(t, r.Reap(t.Context()))
		if _, err := b.real.TenantGet(t.Context(), id); errors.Is(err, tracker.ErrNotFound) {
			return
		}
		time.Sleep(2 * time.Millisecond) // the store's clock is of milliseconds
	}
	require.Fail(t, "the tenant does not go")
}

// testReaper: all of the tenant goes and nothing of another, not too early; its
// id may be used again, and starts clean.
func testReaper(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.tenantOf(t, tenant)
	b.tenantOf(t, "acme-2") // begins with the same letters
	b.markDeleted(t, tenant)
	early := b.reaper(noStep)
	early.After = time.Hour
	require.NoError(t, early.Reap(ctx))
	token, err := b.real.TokenGet(ctx, "t-"+tenant)
	require.NoError(t, err)
	require.False(t, token.RevokedAt.IsZero(), "it stops at once")
	sub, err := b.real.SubscriptionGet(ctx, tenant, "s1")
	require.NoError(t, err)
	require.False(t, sub.Enabled)
	hooks, err := b.real.HookList(ctx, tenant)
	require.NoError(t, err)
	require.Empty(t, hooks)
	_, err = b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err, "what is under way may still end")
	n, err := b.real.EffectCount(ctx, tenant, trigger.StatePending, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	b.lapse(t, tenant)
	b.reap(t, b.reaper(noStep), tenant)
	require.Empty(t, b.left(t, tenant))
	b.tenantOf(t, tenant)
	_, err = b.real.HeadGet(ctx, tenant)
	require.NoError(t, err)
	pauses, err := b.real.PauseList(ctx)
	require.NoError(t, err)
	for _, p := range pauses {
		require.NotEmpty(t, p.BotID, "the deletion's pause went too")
	}
}

// testReaperApart: a tenant that is being deleted is not among those whose
// heads are lifted, and the others are not among those being deleted.
func testReaperApart(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.tenantOf(t, tenant)
	b.tenantOf(t, "acme-2")
	b.markDeleted(t, tenant)
	ids, err := b.real.TenantIDs(ctx, "", 10)
	require.NoError(t, err)
	require.Equal(t, []string{"acme-2"}, ids)
	page, err := b.real.TenantsDeleting(ctx, "", 10)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.Equal(t, tenant, page[0].ID)
	require.ErrorIs(t, b.real.TenantRemove(ctx, tenant, 1), tracker.ErrConflict)
	require.ErrorIs(t, b.real.TenantRemove(ctx, "nobody", 1), tracker.ErrNotFound)

	b.reap(t, b.reaper(noStep), tenant)
	left := b.left(t, "acme-2")
	require.Len(t, left, len(trigger.TenantParts()), "nothing of the other one went: %v", left)
}

// testReaperCrash: whichever step a reaper dies before, another one finishes.
func testReaperCrash(t *testing.T, b *bundle) {
	died := errors.New("died")
	for n := range 500 {
		b.tenantOf(t, tenant)
		b.markDeleted(t, tenant)
		steps := 0
		dying := b.reaper(func(string) error {
			if steps++; steps > n {
				return died
			}
			return nil
		})
		var err error
		for range 5 { // passes until it dies, or is through
			if err = dying.Reap(t.Context()); err != nil {
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
		b.lapse(t, tenant)
		if err == nil {
			require.Greater(t, n, 2*len(trigger.TenantParts()), "it died before each step of two passes")
			require.Empty(t, b.left(t, tenant))
			return
		}
		b.reap(t, b.reaper(noStep), tenant)
		require.Empty(t, b.left(t, tenant), "after a crash before step %d", n)
	}
}

// testReaperTwo: while one reaper works another does nothing, so that none is
// still removing once the id is used again.
func testReaperTwo(t *testing.T, b *bundle) {
	b.tenantOf(t, tenant)
	b.markDeleted(t, tenant)
	second := 0
	other := b.reaper(func(op string) error {
		if op != "TenantSave" {
			second++
		}
		return nil
	})
	first := b.reaper(func(op string) error {
		if op == "purge events" || op == "TenantRemove" {
			require.NoError(t, other.Reap(t.Context()))
		}
		return nil
	})
	b.reap(t, first, tenant)
	require.Zero(t, second, "the second one did nothing")
	b.tenantOf(t, tenant)
	require.NoError(t, other.Reap(t.Context()))
	require.Len(t, b.left(t, tenant), len(trigger.TenantParts()), "what is new stays")
}

// testReaperLate: what a stale writer puts back is found, and removed.
func testReaperLate(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.tenantOf(t, tenant)
	b.markDeleted(t, tenant)
	late := 0
	r := b.reaper(func(op string) error {
		if op != "purge head" || late == 3 {
			return nil
		}
		late++
		// A row and a lane's mark after theirs were removed, in several passes.
		row := effect(late, trigger.LaneBot("bot1"), b.real.Now())
		_, err := b.real.EffectMaterialize(ctx, tenant, []trigger.Effect{row})
		require.NoError(t, err)
		require.NoError(t, b.real.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: row.Lane, Due: b.real.Now()}}))
		return nil
	})
	b.reap(t, r, tenant)
	require.Equal(t, 3, late)
	require.Empty(t, b.left(t, tenant))
}

// testReaperQuiet: what one reaper saw before another one took over, whose pass
// may have found something, does not count.
func testReaperQuiet(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.tenantOf(t, tenant)
	b.markDeleted(t, tenant)
	first, second := b.reaper(noStep), b.reaper(noStep)
	first.Quiet = 50 * time.Millisecond
	time.Sleep(2 * time.Millisecond)
	require.NoError(t, first.Reap(ctx)) // finds all
	require.NoError(t, first.Reap(ctx)) // finds nothing: quiet from now on
	time.Sleep(first.Quiet + 5*time.Millisecond)

	row := effect(1, trigger.LaneBot("bot1"), b.real.Now())
	_, err := b.real.EffectMaterialize(ctx, tenant, []trigger.Effect{row})
	require.NoError(t, err)
	b.lapse(t, tenant)
	require.NoError(t, second.Reap(ctx)) // finds the row
	b.lapse(t, tenant)
	require.NoError(t, first.Reap(ctx))
	_, err = b.real.TenantGet(ctx, tenant)
	require.NoError(t, err, "something came back just now")
}
