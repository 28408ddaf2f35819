package server

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// What was owed when a subscription, a bot or a projection was deleted ends
// so, by the worker and the sweep: pending and held rows by themselves, a failed
// one when it is replayed (W6).
func TestW6_DeletionsEndWhatWasOwed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	b.subscribe(t)
	b.project(t)
	calls := b.configuredWrites(t)
	of := func(sub, bot string) func(*trigger.Effect) {
		return func(e *trigger.Effect) {
			e.ID, e.SubscriptionID, e.BotID, e.Lane = trigger.EffectID(e.Event.ID(), sub), sub, bot, trigger.LaneBot(bot)
			e.Event.After = (&tracker.Card{TenantID: "acme", ID: e.CardID, BoardID: "board-1", ColumnID: "todo", Title: "t"}).Snapshot()
		}
	}
	want := map[string]trigger.Outcome{
		b.rowIn(t, 11, trigger.StatePending, of("s-del", botID)):   trigger.OutcomeSubscriptionGone,
		b.rowIn(t, 12, trigger.StateHeld, of("s-del", botID)):      trigger.OutcomeSubscriptionGone,
		b.rowIn(t, 14, trigger.StatePending, of("sub-1", "b-del")): trigger.OutcomeBotGone,
		b.rowIn(t, 15, trigger.StatePending, func(e *trigger.Effect) {
			e.ID, e.Kind = trigger.ProjectionEffectID(e.Event.ID(), "p-del"), trigger.KindProjection
			e.SubscriptionID, e.BotID, e.ProjectionID, e.Lane = "", "", "p-del", trigger.LaneProjection("p-del")
		}): trigger.OutcomeSubscriptionGone,
	}
	failed := b.rowIn(t, 13, trigger.StateFailed, of("s-del", botID))
	require.NoError(t, b.mem.PauseSet(ctx, trigger.Pause{TenantID: "acme", BotID: "b-del", By: "test", At: b.mem.Now()}))
	sub := b.subscription(t, "sub-1")
	sub.BotID, sub.Revision = "b-del", 2
	require.NoError(t, b.mem.SubscriptionSave(ctx, sub))

	for _, op := range []string{"delete-subscription", "delete-projection"} {
		require.Equal(t, 204, b.write(t, editor, calls[op]).status, op)
	}
	deleted := body[Deleted](t, b.write(t, editor, calls["delete-bot"]), 200)
	require.Equal(t, []Dangling{{"subscription", "sub-1", "greet", "bot_id"}}, deleted.Dangling, "it stays, and says so")
	require.Equal(t, []string{"bot_id"}, body[Subscription](t, b.ask(t, editor, "GET", "acme/subscriptions/sub-1", "", ""), 200).Dangling)
	require.Equal(t, 200, b.post(t, editor, "/v1/tenants/acme/effects/"+url.PathEscape(failed)+"/replay", "").status)
	want[failed] = trigger.OutcomeSubscriptionGone

	require.NoError(t, b.server.Start(ctx))
	t.Cleanup(b.server.Stop)
	require.Eventually(t, func() bool {
		for id, outcome := range want {
			row, err := b.mem.EffectGet(ctx, "acme", id)
			require.NoError(t, err)
			if row.State != trigger.StateDone || row.Outcome != outcome {
				return false
			}
		}
		return true
	}, wait, 20*time.Millisecond)
	require.Empty(t, b.launched)
}
