package e2e_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/apiclient"
	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/testdb"
)

// TestTheStoryByAGeneratedClient: a board user's and an ops person's whole way,
// by a client made from the committed OpenAPI document: board, card,
// subscription, dry run, a launch that fails for good, the dead letter, its
// replay.
func TestTheStoryByAGeneratedClient(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var well atomic.Bool
	bot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"run_id":"run-7"}`))
	}))
	defer bot.Close()
	store := testdb.Store(t)
	flags := []string{"--mongo-uri", testdb.URI(t), "--database", store.Database().Name()}
	env := []string{"TRIGGERD_SEAL_KEY=" + seal.NewKey()}
	token, errOut, code := triggerd(t, env, append([]string{"tokens", "create", "ops", "--role", "admin"}, flags...)...)
	require.Zero(t, code, errOut)
	r := serve(t, env, "one", flags...)
	c, err := apiclient.NewClientWithResponses("http://"+r.addr, apiclient.WithRequestEditorFn(func(_ context.Context, q *http.Request) error {
		q.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
		return nil
	}))
	require.NoError(t, err)
	const tenant = "acme"

	made, err := c.CreateTenantWithResponse(ctx, nil, apiclient.NewTenantBody{Id: tenant, Name: "Acme"})
	require.NoError(t, err)
	require.NotNil(t, made.JSON201, "%s", made.Body)
	done := true
	board, err := c.CreateBoardWithResponse(ctx, tenant, nil, apiclient.BoardBody{
		Name: "delivery", Columns: []apiclient.Column{{Id: "todo", Name: "To do"}, {Id: "ready", Name: "Ready"}, {Id: "done", Name: "Done", Terminal: &done}},
	})
	require.NoError(t, err)
	require.NotNil(t, board.JSON201, "%s", board.Body)
	implementer, err := c.CreateBotWithResponse(ctx, tenant, nil, apiclient.NewBot{Name: "implementer", Url: bot.URL})
	require.NoError(t, err)
	require.NotNil(t, implementer.JSON201, "%s", implementer.Body)
	key := "the-card"
	newCard := apiclient.CardBody{BoardId: board.JSON201.Id, ColumnId: "todo", Title: "Rotate the keys"}
	card, err := c.CreateCardWithResponse(ctx, tenant, &apiclient.CreateCardParams{IdempotencyKey: &key}, newCard)
	require.NoError(t, err)
	require.NotNil(t, card.JSON201, "%s", card.Body)
	again, err := c.CreateCardWithResponse(ctx, tenant, &apiclient.CreateCardParams{IdempotencyKey: &key}, newCard)
	require.NoError(t, err)
	require.Equal(t, card.JSON201.Id, again.JSON201.Id, "one key, one card")
	sub, err := c.CreateSubscriptionWithResponse(ctx, tenant, nil, apiclient.SubscriptionSpec{
		Name: "ship", BotId: implementer.JSON201.Id,
		On: &apiclient.OnSpec{BoardId: &board.JSON201.Id},
		If: &apiclient.IfSpec{Columns: &[]string{"ready"}, LabelsAll: &[]string{"ship-it"}}, Consume: &[]string{"ship-it"},
	})
	require.NoError(t, err)
	require.NotNil(t, sub.JSON201, "%s", sub.Body)

	// What it would have made of what happened, before it is enabled.
	move := func(column string) {
		t.Helper()
		moved, err := c.MoveCardWithResponse(ctx, tenant, card.JSON201.Id, nil, apiclient.MoveBody{ColumnId: column})
		require.NoError(t, err)
		require.NotNil(t, moved.JSON200, "%s", moved.Body)
	}
	labeled, err := c.LabelCardWithResponse(ctx, tenant, card.JSON201.Id, nil, apiclient.NamesBody{Add: &[]string{"ship-it"}})
	require.NoError(t, err)
	require.NotNil(t, labeled.JSON200, "%s", labeled.Body)
	move("ready")
	dry, err := c.DryRunSubscriptionWithResponse(ctx, tenant, sub.JSON201.Id, nil, apiclient.NoBody{})
	require.NoError(t, err)
	require.NotNil(t, dry.JSON200, "%s", dry.Body)
	require.EqualValues(t, 1, dry.JSON200.Fired)
	move("todo")
	enabled, err := c.EnableSubscriptionWithResponse(ctx, tenant, sub.JSON201.Id, nil, apiclient.NoBody{})
	require.NoError(t, err)
	require.NotNil(t, enabled.JSON200, "%s", enabled.Body)
	move("ready")

	// The bot refuses: a dead letter, in the log, on the card, and to be replayed.
	effects := func() []apiclient.CardEffect {
		t.Helper()
		seen, err := c.GetCardWithResponse(ctx, tenant, card.JSON201.Id)
		require.NoError(t, err)
		require.NotNil(t, seen.JSON200, "%s", seen.Body)
		return seen.JSON200.Effects
	}
	eventually(t, "a dead letter", func() bool { e := effects(); return len(e) == 1 && e[0].State == "failed" })
	log, err := c.LogSubscriptionWithResponse(ctx, tenant, sub.JSON201.Id, nil)
	require.NoError(t, err)
	require.NotNil(t, log.JSON200, "%s", log.Body)
	require.Len(t, log.JSON200.Items, 1)
	failed := apiclient.ListEffectsParamsState("failed")
	dead, err := c.ListEffectsWithResponse(ctx, tenant, &apiclient.ListEffectsParams{State: &failed})
	require.NoError(t, err)
	require.NotNil(t, dead.JSON200, "%s", dead.Body)
	require.Len(t, dead.JSON200.Items, 1)
	row := dead.JSON200.Items[0]
	require.Equal(t, "permanent", *row.Reason)
	well.Store(true)
	replayed, err := c.ReplayEffectWithResponse(ctx, tenant, row.Id, apiclient.NoteBody{})
	require.NoError(t, err)
	require.NotNil(t, replayed.JSON200, "%s", replayed.Body)
	eventually(t, "the launch", func() bool { e := effects(); return len(e) == 1 && e[0].State == "done" })
	detail, err := c.GetEffectWithResponse(ctx, tenant, row.Id)
	require.NoError(t, err)
	require.Equal(t, "run-7", *detail.JSON200.RunId)
	require.Len(t, detail.JSON200.History, 1)
	require.Equal(t, "token:ops", detail.JSON200.History[0].By)
	seen, err := c.GetCardWithResponse(ctx, tenant, card.JSON201.Id)
	require.NoError(t, err)
	require.Empty(t, seen.JSON200.Labels, "the label is spent, once")

	// What is not there is said as a problem.
	none, err := c.GetCardWithResponse(ctx, tenant, "nobody")
	require.NoError(t, err)
	require.EqualValues(t, http.StatusNotFound, none.ApplicationproblemJSONDefault.Status)
}
