package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// configuredTests are about what people configure, by the API.
func configuredTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestConfig_PagesOfSubscriptions": testSubscriptionPages,
		"TestConfig_ARotationIsKept":      testRotationKept,
	}
}

// testSubscriptionPages: by id, not by name; of one tenant, whose neighbours'
// keys begin alike; each that stays once, also while others come and go.
func testSubscriptionPages(t *testing.T, b *bundle) {
	ctx := t.Context()
	save := func(tenantID, id, name string) {
		require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{TenantID: tenantID, ID: id, Name: name, Revision: 1}))
	}
	for i := range 7 {
		save(tenant, fmt.Sprintf("s%d", i), fmt.Sprintf("name-%d", 9-i))
	}
	for _, other := range []string{tenant + "-2", tenant + "0", "a"} {
		save(other, "s3", "x")
	}
	var ids []string
	for after := ""; ; {
		page, err := b.real.SubscriptionPage(ctx, tenant, after, 3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), 3)
		for i := range page {
			require.Equal(t, tenant, page[i].TenantID)
			ids = append(ids, page[i].ID)
		}
		if len(page) < 3 {
			break
		}
		after = page[2].ID
		switch after {
		case "s2":
			require.NoError(t, b.real.SubscriptionDelete(ctx, tenant, "s2", 1)) // where the next page begins
			save(tenant, "s1x", "before")
			save(tenant, "s4x", "later")
		case "s4x":
			require.NoError(t, b.real.SubscriptionDelete(ctx, tenant, "s0", 1))
		}
	}
	require.Equal(t, []string{"s0", "s1", "s2", "s3", "s4", "s4x", "s5", "s6"}, ids)
	page, err := b.real.SubscriptionPage(ctx, tenant, "s6", 3)
	require.NoError(t, err)
	require.Empty(t, page)
}

// testRotationKept: both secrets and the time survive, and go.
func testRotationKept(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	bot := &trigger.Bot{TenantID: tenant, ID: "x", Name: "x", URL: "http://h", Replay: trigger.ReplaySafe, Secret: "old", NextSecret: "new", RotatingSince: now, Revision: 1, UpdatedAt: now}
	require.NoError(t, b.real.BotSave(ctx, bot))
	hook := &trigger.Hook{TenantID: tenant, ID: "h", Name: "h", Provider: "github", BoardID: "b1", Secret: "old", NextSecret: "new", RotatingSince: now, Revision: 1, UpdatedAt: now}
	require.NoError(t, b.real.HookSave(ctx, hook))
	check := func() {
		gotBot, err := b.real.BotGet(ctx, tenant, "x")
		require.NoError(t, err)
		require.Equal(t, bot, gotBot)
		gotHook, err := b.real.HookGet(ctx, tenant, "h")
		require.NoError(t, err)
		require.Equal(t, hook, gotHook)
	}
	check()
	bot.Secret, bot.NextSecret, bot.RotatingSince, bot.Revision = "new", "", time.Time{}, 2
	require.NoError(t, b.real.BotSave(ctx, bot))
	hook.Secret, hook.NextSecret, hook.RotatingSince, hook.Revision = "new", "", time.Time{}, 2
	require.NoError(t, b.real.HookSave(ctx, hook))
	check()
}
