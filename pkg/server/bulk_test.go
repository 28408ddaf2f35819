package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (a answer) bulk(t *testing.T) (out Bulk) {
	t.Helper()
	require.Less(t, a.status, 300, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &out))
	return out
}

func TestBulkByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "night shift")
	var ids []string
	for i := range 12 {
		ids = append(ids, b.rowIn(t, int64(i+1), trigger.StateFailed))
	}
	const at = "/v1/tenants/acme/effects/bulk"
	before := b.state(t)
	prepared := b.post(t, editor, at, `{"action":"replay","filter":{"state":"failed","reason":"exhausted","older_than":"30m"},"note":"the bot is back"}`)
	require.Equal(t, http.StatusCreated, prepared.status)
	bulk := prepared.bulk(t)
	require.Equal(t, before, b.state(t), "nothing is touched")
	require.Equal(t, 12, bulk.Count)
	require.Equal(t, ids[:10], bulk.Sample)
	require.Len(t, bulk.Digest, 64)
	require.Equal(t, "token:night shift", bulk.By)
	require.False(t, bulk.Finished)
	require.Equal(t, bulk, b.get(t, editor, at+"/"+bulk.ID).bulk(t))

	changed := "/v1/tenants/acme/effects/" + url.PathEscape(ids[3])
	require.Equal(t, 200, b.post(t, editor, changed+"/discard", "").status)
	done := b.post(t, editor, at+"/"+bulk.ID+"/run", fmt.Sprintf(`{"digest":%q}`, bulk.Digest)).bulk(t)
	require.True(t, done.Finished)
	require.Equal(t, []int{12, 11, 1}, []int{done.Done, done.Applied, done.Refused})
	require.Equal(t, done, b.get(t, editor, at+"/"+bulk.ID).bulk(t))
	e := b.get(t, editor, "/v1/tenants/acme/effects/"+url.PathEscape(ids[0])).effect(t)
	require.Equal(t, trigger.StatePending, e.State)
	require.Equal(t, "token:night shift", e.History[0].By)
	require.Equal(t, "the bot is back", e.History[0].Note)
	require.Equal(t, trigger.StateDiscarded, b.get(t, editor, changed).effect(t).State)

	stopped := b.post(t, editor, at, `{"action":"rerun","filter":{"state":"done"}}`).bulk(t)
	require.Zero(t, stopped.Count)
	require.Equal(t, []string{}, stopped.Sample)
	stopped = b.post(t, editor, at, `{"action":"discard","filter":{"state":"failed"}}`).bulk(t)
	b.rowIn(t, 50, trigger.StateFailed)
	stopped = b.post(t, editor, at+"/"+stopped.ID+"/stop", "").bulk(t)
	require.True(t, stopped.Stopped)
	before = b.state(t)
	stopped = b.post(t, editor, at+"/"+stopped.ID+"/run", fmt.Sprintf(`{"digest":%q}`, stopped.Digest)).bulk(t)
	require.True(t, stopped.Stopped)
	require.Equal(t, before, b.state(t))

	other := b.role(t, trigger.RoleEditor, "other", "o")
	for _, c := range []call{
		{method: http.MethodGet, path: at + "/nothing"},
		{method: http.MethodPost, path: at + "/nothing/run", body: `{"digest":"x"}`},
		{method: http.MethodPost, path: at + "/nothing/stop"},
	} {
		require.Equal(t, 404, b.write(t, editor, c).status, c.path)
	}
	// A bulk decision is its tenant's.
	require.Equal(t, 404, b.get(t, other, "/v1/tenants/other/effects/bulk/"+bulk.ID).status)
	require.Equal(t, 404, b.post(t, other, "/v1/tenants/other/effects/bulk/"+bulk.ID+"/stop", "").status)
	require.Equal(t, 200, b.get(t, b.token(t, "acme"), at+"/"+bulk.ID).status, "a viewer may look")
}

func (b *bundle) pauses(t *testing.T, token, tenant string) (out PausesPage) {
	t.Helper()
	a := b.get(t, token, "/v1/tenants/"+tenant+"/pauses")
	require.Equal(t, 200, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &out))
	for i := range out.Items {
		require.False(t, out.Items[i].At.IsZero())
	}
	return out
}

func TestPausesByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor, admin := b.role(t, trigger.RoleEditor, "acme", "e"), b.role(t, trigger.RoleAdmin, "", "root")
	calls := b.writes(t)
	require.Equal(t, PausesPage{Items: []Pause{}, Subscriptions: []SubscriptionPause{}}, b.pauses(t, editor, "acme"))
	for _, op := range []string{"pause-bot", "pause-tenant", "pause-subscription"} {
		require.Equal(t, 200, b.write(t, editor, calls[op]).status)
	}
	require.Equal(t, 200, b.write(t, admin, calls["pause-fleet"]).status)
	require.Equal(t, 200, b.write(t, admin, call{method: http.MethodPut, path: "/v1/tenants/other/pause"}).status)
	got := b.pauses(t, editor, "acme")
	require.Len(t, got.Items, 3)
	for i, want := range []Pause{
		{Scope: "fleet"}, // by whom, and why, is not the tenant's affair
		{Scope: "tenant", TenantID: "acme", By: "token:e"},
		{Scope: "bot", TenantID: "acme", BotID: botID, By: "token:e"},
	} {
		want.At = got.Items[i].At
		require.Equal(t, want, got.Items[i])
	}
	require.Equal(t, []SubscriptionPause{{ID: "sub-1", Name: "greet", Paused: true, By: "token:e", Note: "n"}}, got.Subscriptions)
	got = b.pauses(t, admin, "acme")
	require.Equal(t, "token:root", got.Items[0].By)
	require.Equal(t, "n", got.Items[0].Note)

	// A second pause leaves the first one, and says whose it is.
	a := b.write(t, admin, calls["pause-bot"])
	require.Contains(t, a.body, `"token:e"`)
	require.NotContains(t, a.body, `"token:root"`)
	for range 2 { // again is no error
		for _, op := range []string{"resume-bot", "resume-tenant"} {
			require.Equal(t, 204, b.write(t, editor, calls[op]).status)
		}
	}
	b.rowIn(t, 1, trigger.StateHeld)
	a = b.write(t, editor, calls["resume-subscription"])
	var sub SubscriptionPause
	require.NoError(t, json.Unmarshal([]byte(a.body), &sub))
	require.Equal(t, SubscriptionPause{ID: "sub-1", Name: "greet", Released: 1}, sub)
	got = b.pauses(t, editor, "acme")
	require.Len(t, got.Items, 1)
	require.Empty(t, got.Subscriptions)

	for _, path := range []string{"/v1/tenants/acme/bots/nobody/pause", "/v1/tenants/nobody/pause", "/v1/tenants/nobody/bots/x/pause"} {
		for _, method := range []string{http.MethodPut, http.MethodDelete} {
			require.Equal(t, 404, b.write(t, admin, call{method: method, path: path}).status, "%s %s", method, path)
		}
	}
	for _, what := range []string{"pause", "resume"} {
		require.Equal(t, 404, b.post(t, editor, "/v1/tenants/acme/subscriptions/nobody/"+what, "").status)
	}
}

func TestPromotedCardsByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.token(t, "acme")
	for i := range 5 {
		card := &tracker.Card{
			// As the ids of mirrors are.
			TenantID: "acme", ID: fmt.Sprintf("c%d@board-1", i) + strings.Repeat("@board-1", 27) + "~0f", Rev: 1, BoardID: "board-1", ColumnID: "todo", Title: "T", Incarnation: "i", Body: "long",
			BotID: botID, BotArgs: map[string]string{"branch": "main"},
			MirrorOf: &tracker.Mirror{CardID: "c0", BoardID: "board-0"},
		}
		if i == 4 {
			card.BotID, card.BotArgs = "bot-9", nil
		}
		require.NoError(t, b.mem.CardWrite(t.Context(), tracker.CardWrite{Next: card}))
	}
	var got []ListedCard
	pages := 0
	for after := ""; ; {
		a := b.get(t, token, "/v1/tenants/acme/cards?limit=2&bot="+botID+"&after="+url.QueryEscape(after))
		require.Equal(t, 200, a.status, a.body)
		var page Page[ListedCard]
		require.NoError(t, json.Unmarshal([]byte(a.body), &page))
		got = append(got, page.Items...)
		pages++
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, 2, pages)
	require.Len(t, got, 4)
	require.Equal(t, ListedCard{
		ID: got[0].ID, Rev: 1, BoardID: "board-1", ColumnID: "todo", Title: "T", Labels: []string{}, Assignees: []string{},
		BotID: botID, BotArgs: map[string]string{"branch": "main"}, MirrorOf: &tracker.Mirror{CardID: "c0", BoardID: "board-0"},
	}, got[0])
	for _, c := range got {
		a := b.get(t, token, "/v1/tenants/acme/cards/"+url.PathEscape(c.ID))
		require.Equal(t, 200, a.status, a.body)
		var card Card
		require.NoError(t, json.Unmarshal([]byte(a.body), &card))
		require.Equal(t, c.BotID, card.BotID)
		require.Equal(t, c.BotArgs, card.BotArgs)
		require.Equal(t, &tracker.Mirror{CardID: "c0", BoardID: "board-0"}, card.MirrorOf)
	}
	require.Contains(t, b.get(t, token, "/v1/tenants/acme/cards?bot=bot-9").body, `"bot_id":"bot-9"`)
	require.JSONEq(t, `{"items":[]}`, b.get(t, token, "/v1/tenants/acme/cards?bot=nobody").body)
}
