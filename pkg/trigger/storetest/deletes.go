package storetest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func deleteTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){"TestConfig_DeletesAreConditionalOnTheRevision": testDeletes}
}

// testDeletes: a thing goes only at the revision that was seen, of its own
// tenant, and its name is free again.
func testDeletes(t *testing.T, b *bundle) {
	ctx := t.Context()
	s := b.real
	for kind, c := range map[string]struct {
		save   func(tenantID, id string, revision int64) error
		remove func(ctx context.Context, tenantID, id string, revision int64) error
		get    func(ctx context.Context, tenantID, id string) error
	}{
		"board": {
			func(tenantID, id string, rev int64) error {
				return s.BoardSave(ctx, &tracker.Board{TenantID: tenantID, ID: id, Name: "n", Revision: rev})
			}, s.BoardDelete, func(ctx context.Context, tenantID, id string) error {
				_, err := s.BoardGet(ctx, tenantID, id)
				return err
			},
		},
		"bot": {
			func(tenantID, id string, rev int64) error {
				return s.BotSave(ctx, &trigger.Bot{TenantID: tenantID, ID: id, Name: "n", Revision: rev})
			}, s.BotDelete, func(ctx context.Context, tenantID, id string) error {
				_, err := s.BotGet(ctx, tenantID, id)
				return err
			},
		},
		"hook": {
			func(tenantID, id string, rev int64) error {
				return s.HookSave(ctx, &trigger.Hook{TenantID: tenantID, ID: id, Name: "n", Revision: rev})
			}, s.HookDelete, func(ctx context.Context, tenantID, id string) error {
				_, err := s.HookGet(ctx, tenantID, id)
				return err
			},
		},
		"subscription": {
			func(tenantID, id string, rev int64) error {
				return s.SubscriptionSave(ctx, &trigger.Subscription{TenantID: tenantID, ID: id, Name: "n", Revision: rev})
			}, s.SubscriptionDelete, func(ctx context.Context, tenantID, id string) error {
				_, err := s.SubscriptionGet(ctx, tenantID, id)
				return err
			},
		},
		"projection": {
			func(tenantID, id string, rev int64) error {
				return s.ProjectionSave(ctx, &trigger.Projection{TenantID: tenantID, ID: id, Name: "n", Revision: rev})
			}, s.ProjectionDelete, func(ctx context.Context, tenantID, id string) error {
				_, err := s.ProjectionGet(ctx, tenantID, id)
				return err
			},
		},
	} {
		require.NoError(t, c.save(tenant, "one", 1), kind)
		require.NoError(t, c.save("other", "one", 1), kind)
		require.NoError(t, c.save(tenant, "one", 2), kind)
		require.ErrorIs(t, c.remove(ctx, tenant, "one", 1), tracker.ErrConflict, kind)
		require.NoError(t, c.get(ctx, tenant, "one"), kind)
		require.NoError(t, c.remove(ctx, tenant, "one", 2), kind)
		require.ErrorIs(t, c.get(ctx, tenant, "one"), tracker.ErrNotFound, kind)
		require.ErrorIs(t, c.remove(ctx, tenant, "one", 2), tracker.ErrNotFound, kind)
		require.NoError(t, c.get(ctx, "other", "one"), "another tenant's stays: %s", kind)
		require.NoError(t, c.save(tenant, "two", 1), "the name is free again: %s", kind)
	}
}
