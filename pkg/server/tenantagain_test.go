package server

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Somebody asks again whether the tenant is gone, by deleting it, and while that
// call is under way it goes and its id is used again: the new tenant is neither
// paused nor are its tokens revoked.
func TestDeleteOvertakenByReuse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	admin := b.role(t, trigger.RoleAdmin, "", "root")
	require.Equal(t, 202, b.do(t, b.requestAs(t, "DELETE", acme, admin, "", "")).status)
	tn, err := b.mem.TenantGet(ctx, "acme")
	require.NoError(t, err)
	tn.DeletingAt, tn.Revision = tn.DeletingAt.Add(-trigger.ReapAfterDefault), tn.Revision+1
	require.NoError(t, b.mem.TenantSave(ctx, tn))

	token := ""
	goes := func(context.Context) error {
		if token != "" {
			return nil
		}
		r := &trigger.Reaper{Store: b.mem, Logger: zerolog.Nop(), After: 1, Quiet: 1}
		require.Eventually(t, func() bool {
			require.NoError(t, r.Reap(ctx))
			_, err := b.mem.TenantGet(ctx, "acme")
			return err != nil
		}, wait, 2*time.Millisecond)
		require.NoError(t, b.mem.TenantSave(ctx, &trigger.Tenant{ID: "acme", Name: "again", Revision: 1, UpdatedAt: b.mem.Now()}))
		token = b.role(t, trigger.RoleEditor, "acme", "new")
		require.NoError(t, b.mem.HookSave(ctx, &trigger.Hook{TenantID: "acme", ID: "new", Name: "new", Revision: 1}))
		return nil
	}
	b.store.on("PauseSet", goes)
	b.do(t, b.requestAs(t, "DELETE", acme, admin, "", ""))
	require.NoError(t, goes(ctx)) // if it was not yet
	pauses, err := b.mem.PauseList(ctx)
	require.NoError(t, err)
	require.Empty(t, pauses)
	require.Equal(t, 200, b.get(t, token, acme+"/boards").status)
	_, err = b.mem.HookGet(ctx, "acme", "new")
	require.NotErrorIs(t, err, tracker.ErrNotFound)
}
