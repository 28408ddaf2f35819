package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (f *faultStore) SubscriptionSave(ctx context.Context, s *trigger.Subscription) error {
	return f.call(ctx, "SubscriptionSave", func() error { return f.Store.SubscriptionSave(ctx, s) })
}

func (f *faultStore) SubscriptionDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return f.call(ctx, "SubscriptionDelete", func() error { return f.Store.SubscriptionDelete(ctx, tenantID, id, revision) })
}

func (f *faultStore) BotGet(ctx context.Context, tenantID, id string) (*trigger.Bot, error) {
	return ask(ctx, f, "BotGet", func() (*trigger.Bot, error) { return f.Store.BotGet(ctx, tenantID, id) })
}

func (f *faultStore) BotList(ctx context.Context, tenantID string) ([]trigger.Bot, error) {
	return ask(ctx, f, "BotList", func() ([]trigger.Bot, error) { return f.Store.BotList(ctx, tenantID) })
}

func (f *faultStore) BotSave(ctx context.Context, b *trigger.Bot) error {
	return f.call(ctx, "BotSave", func() error { return f.Store.BotSave(ctx, b) })
}

func (f *faultStore) HookSave(ctx context.Context, h *trigger.Hook) error {
	return f.call(ctx, "HookSave", func() error { return f.Store.HookSave(ctx, h) })
}

func (f *faultStore) ProjectionGet(ctx context.Context, tenantID, id string) (*trigger.Projection, error) {
	return ask(ctx, f, "ProjectionGet", func() (*trigger.Projection, error) { return f.Store.ProjectionGet(ctx, tenantID, id) })
}

func (f *faultStore) ProjectionSave(ctx context.Context, p *trigger.Projection) error {
	return f.call(ctx, "ProjectionSave", func() error { return f.Store.ProjectionSave(ctx, p) })
}

func (f *faultStore) ProjectionDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return f.call(ctx, "ProjectionDelete", func() error { return f.Store.ProjectionDelete(ctx, tenantID, id, revision) })
}

// configuredReads are good calls of the operations that read what is
// configured.
func configuredReads() map[string]string {
	return map[string]string{
		"list-subscriptions": "/v1/tenants/acme/subscriptions",
		"get-subscription":   "/v1/tenants/acme/subscriptions/sub-1",
		"list-bots":          "/v1/tenants/acme/bots",
		"get-bot":            "/v1/tenants/acme/bots/" + botID,
		"list-hooks":         "/v1/tenants/acme/hooks",
		"get-hook":           "/v1/tenants/acme/hooks/" + hookID,
		"list-projections":   "/v1/tenants/acme/projections",
		"get-projection":     "/v1/tenants/acme/projections/p-0",
	}
}

func configuredBadParameters(at, in string) (out []badParameter) {
	for _, kind := range []string{"subscription", "bot", "hook", "projection"} {
		list, get := "list-"+kind+"s", "get-"+kind
		out = append(out,
			badParameter{list, "tenant", "/v1/tenants/" + at + "/" + kind + "s", "path.tenant"},
			badParameter{list, "after", "/v1/tenants/acme/" + kind + "s?after=" + in, "query.after"},
			badParameter{list, "limit", "/v1/tenants/acme/" + kind + "s?limit=" + in, "query.limit"},
			badParameter{get, "tenant", "/v1/tenants/" + at + "/" + kind + "s/x", "path.tenant"},
			badParameter{get, kind, "/v1/tenants/acme/" + kind + "s/" + at, "path." + kind},
		)
	}
	return out
}

// Good bodies of what acme has.
const (
	goodSubscription = `{"name":"fresh","enabled":true,"bot_id":"bot-1","on":{"kinds":["card.created"],"board_id":"board-1","to":"todo"},"args":{"task":"fix\nit"}}`
	goodBot          = `{"name":"fresh","url":"http://127.0.0.1:1/run"}`
	goodHook         = `{"name":"fresh","provider":"github","board_id":"board-1","columns":{"open":"todo","closed":"done"}}`
	goodProjection   = `{"name":"fresh","enabled":true,"from_board_id":"board-1","to_board_id":"board-2","columns":{"todo":"next"}}`
)

// board gives acme another board.
func (b *bundle) board(t *testing.T, id string, columns ...string) {
	t.Helper()
	board := &tracker.Board{TenantID: "acme", ID: id, Name: id, Revision: 1}
	for _, c := range columns {
		board.Columns = append(board.Columns, tracker.Column{ID: c, Name: c})
	}
	require.NoError(t, b.mem.BoardSave(t.Context(), board))
}

// project gives acme a projection that is disabled.
func (b *bundle) project(t *testing.T) {
	t.Helper()
	b.board(t, "p-0-a", "todo")
	b.board(t, "p-0-b", "next")
	require.NoError(t, b.mem.ProjectionSave(t.Context(), &trigger.Projection{
		TenantID: "acme", ID: "p-0", Name: "p-0", Revision: 1, FromBoardID: "p-0-a", ToBoardID: "p-0-b", Columns: []trigger.ColumnPair{{From: "todo", To: "next"}},
	}))
}

// configuredWrites are good calls of the operations that write what is
// configured, each of a thing of its own.
func (b *bundle) configuredWrites(t *testing.T) map[string]call {
	t.Helper()
	ctx := t.Context()
	sealed := func(owner, secret string) trigger.Sealed {
		out, err := b.server.p.Sealer.Seal(owner, []byte(secret))
		require.NoError(t, err)
		return out
	}
	sub := func(id string, enabled bool) string {
		require.NoError(t, b.mem.SubscriptionSave(ctx, &trigger.Subscription{
			TenantID: "acme", ID: id, Name: id, Revision: 1, Enabled: enabled, BotID: botID, On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}},
		}))
		return "/v1/tenants/acme/subscriptions/" + id
	}
	bot := func(id string, next trigger.Sealed) string {
		require.NoError(t, b.mem.BotSave(ctx, &trigger.Bot{
			TenantID: "acme", ID: id, Name: id, Revision: 1, URL: "http://127.0.0.1:1/", Replay: trigger.ReplaySafe,
			Secret: sealed(trigger.BotOwner("acme", id), botSecret), NextSecret: next,
		}))
		return "/v1/tenants/acme/bots/" + id
	}
	hook := func(id string, next trigger.Sealed) string {
		require.NoError(t, b.mem.HookSave(ctx, &trigger.Hook{
			TenantID: "acme", ID: id, Name: id, Revision: 1, Provider: github.Provider, BoardID: "board-1", OpenColumn: "todo", ClosedColumn: "done",
			Secret: sealed(trigger.HookOwner("acme", id), hookSecret), NextSecret: next,
		}))
		return "/v1/tenants/acme/hooks/" + id
	}
	projection := func(id string, enabled bool) string {
		b.board(t, id+"-a", "todo")
		b.board(t, id+"-b", "next")
		require.NoError(t, b.mem.ProjectionSave(ctx, &trigger.Projection{
			TenantID: "acme", ID: id, Name: id, Revision: 1, Enabled: enabled, FromBoardID: id + "-a", ToBoardID: id + "-b", Columns: []trigger.ColumnPair{{From: "todo", To: "next"}},
		}))
		return "/v1/tenants/acme/projections/" + id
	}
	b.board(t, "board-2", "next")
	edited := strings.NewReplacer(`"fresh"`, `"edited"`)
	next := trigger.Sealed("next")
	const post, put, del = http.MethodPost, http.MethodPut, http.MethodDelete
	return map[string]call{
		"create-subscription":  {post, "/v1/tenants/acme/subscriptions", goodSubscription, 201, "", "BotGet"},
		"replace-subscription": {put, sub("s-put", false), edited.Replace(goodSubscription), 200, "", "SubscriptionSave"},
		"enable-subscription":  {post, sub("s-on", false) + "/enable", "", 200, "", "HeadGet"},
		"disable-subscription": {post, sub("s-off", true) + "/disable", "", 200, "", "SubscriptionSave"},
		"delete-subscription":  {del, sub("s-del", true), "", 204, "", "SubscriptionDelete"},
		"create-bot":           {post, "/v1/tenants/acme/bots", goodBot, 201, "", "BotSave"},
		"replace-bot":          {put, bot("b-put", ""), edited.Replace(goodBot), 200, "", "BotSave"},
		"delete-bot":           {del, bot("b-del", ""), "", 200, "", "BotList"},
		"rotate-bot-secret":    {post, bot("b-rot", "") + "/secret", "", 200, "", "BotSave"},
		"finish-bot-rotation":  {del, bot("b-end", next) + "/secret/previous", "", 204, "", "BotGet"},
		"cancel-bot-rotation":  {del, bot("b-no", next) + "/secret/next", "", 204, "", "BotGet"},
		"create-hook":          {post, "/v1/tenants/acme/hooks", strings.NewReplacer("board-1", "board-2", "todo", "next", "done", "next").Replace(goodHook), 201, "", "HookSave"},
		"replace-hook":         {put, hook("h-put", ""), edited.Replace(goodHook), 200, "", "HookSave"},
		"delete-hook":          {del, hook("h-del", ""), "", 204, "", "HookGet"},
		"rotate-hook-secret":   {post, hook("h-rot", "") + "/secret", "{}", 200, "", "HookSave"},
		"finish-hook-rotation": {del, hook("h-end", next) + "/secret/previous", "", 204, "", "HookGet"},
		"cancel-hook-rotation": {del, hook("h-no", next) + "/secret/next", "", 204, "", "HookGet"},
		"create-projection":    {post, "/v1/tenants/acme/projections", goodProjection, 201, "", "ProjectionSave"},
		"replace-projection":   {put, projection("p-put", false), `{"name":"edited","enabled":true,"from_board_id":"p-put-a","to_board_id":"p-put-b","columns":{"todo":"next"}}`, 200, "", "ProjectionGet"},
		"enable-projection":    {post, projection("p-on", false) + "/enable", "{}", 200, "", "HeadGet"},
		"disable-projection":   {post, projection("p-off", true) + "/disable", "", 200, "", "ProjectionSave"},
		"delete-projection":    {del, projection("p-del", true), "", 204, "", "ProjectionDelete"},
	}
}

// ask makes a call with a condition, if there is one.
func (b *bundle) ask(t *testing.T, token, method, path, body, ifMatch string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+"/v1/tenants/"+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if ifMatch != "" {
		req.Header.Set("If-Match", ifMatch)
	}
	return b.do(t, req)
}

func body[T any](t *testing.T, a answer, status int) (v T) {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	return v
}

// requireRefused checks an answer's status and, if it names some, its fields.
func requireRefused(t *testing.T, a answer, status int, fields ...string) {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	p := a.problem(t)
	require.NotEmpty(t, p.Detail)
	if len(fields) > 0 {
		var have []string
		for _, e := range p.Errors {
			have = append(have, e.Field)
		}
		require.Equal(t, fields, have, a.body)
	}
}

// What all kinds have in common: made once, read, listed in pages, edited only
// by who saw what is there, deleted, and another tenant's nowhere to be found.
func TestConfiguredThings(t *testing.T) {
	t.Parallel()
	for kind, good := range map[string]string{"subscriptions": goodSubscription, "bots": goodBot, "hooks": goodHook, "projections": goodProjection} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.board(t, "board-2", "next")
			editor, other := b.role(t, trigger.RoleEditor, "acme", "e"), b.role(t, trigger.RoleEditor, "other", "o")
			list := "acme/" + kind
			type thing struct {
				ID       string `json:"id"`
				Name     string `json:"name"`
				Revision int64  `json:"revision"`
			}
			before := body[Page[thing]](t, b.ask(t, editor, "GET", list, "", ""), 200)
			a := b.ask(t, editor, "POST", list, good, "")
			made := body[thing](t, a, 201)
			require.Equal(t, "fresh", made.Name)
			require.EqualValues(t, 1, made.Revision)
			require.Equal(t, `"1"`, a.header.Get("ETag"))
			require.Equal(t, "/v1/tenants/"+list+"/"+made.ID, a.header.Get("Location"))
			at := list + "/" + made.ID
			a = b.ask(t, editor, "GET", at, "", "")
			require.Equal(t, made, body[thing](t, a, 200))
			require.Equal(t, `"1"`, a.header.Get("ETag"))
			if kind != "projections" { // whose boards are taken too
				requireRefused(t, b.ask(t, editor, "POST", list, good, ""), 409)
			}
			require.Len(t, body[Page[thing]](t, b.ask(t, editor, "GET", list, "", ""), 200).Items, len(before.Items)+1)

			edited := strings.Replace(good, "fresh", "edited", 1)
			requireRefused(t, b.ask(t, editor, "PUT", at, edited, ""), 428)
			requireRefused(t, b.ask(t, editor, "PUT", at, edited, `"7"`), 412)
			a = b.ask(t, editor, "PUT", at, edited, `"1"`)
			require.Equal(t, thing{made.ID, "edited", 2}, body[thing](t, a, 200))
			require.Equal(t, `"2"`, a.header.Get("ETag"))
			requireRefused(t, b.ask(t, editor, "PUT", at, edited, `"1"`), 412)
			require.EqualValues(t, 3, body[thing](t, b.ask(t, editor, "PUT", at, edited, "*"), 200).Revision)
			requireRefused(t, b.ask(t, editor, "PUT", at, `{"name":"edited"}`, "*"), 422)
			requireRefused(t, b.ask(t, editor, "PUT", at, strings.Replace(edited, "{", `{"colour":1,`, 1), "*"), 422, "body.colour")
			requireRefused(t, b.ask(t, editor, "PUT", at, strings.Replace(edited, `"edited"`, `{"$ne":""}`, 1), "*"), 422, "body.name")
			requireRefused(t, b.ask(t, editor, "PUT", at, strings.Replace(edited, "edited", "s3cret Name", 1), "*"), 422, "body.name")
			requireRefused(t, b.ask(t, editor, "PUT", at, strings.Replace(edited, "edited", strings.Repeat("n", 64), 1), "*"), 422, "body.name")

			// The name of another.
			second := good
			if kind == "projections" {
				second = strings.NewReplacer("board-1", "board-2", "board-2", "board-1", "todo", "next", "next", "todo").Replace(good)
			}
			a = b.ask(t, editor, "POST", list, second, "")
			require.Equal(t, 201, a.status, a.body)
			requireRefused(t, b.ask(t, editor, "PUT", at, good, `"3"`), 409)

			// Another tenant's.
			for _, c := range [][2]string{{"GET", ""}, {"PUT", edited}, {"DELETE", ""}} {
				mine := b.ask(t, other, c[0], "other/"+kind+"/"+made.ID, c[1], "*")
				require.Equal(t, 404, mine.status, mine.body)
				nobodys := b.ask(t, other, c[0], "other/"+kind+"/nobody", c[1], "*")
				require.Equal(t, nobodys.body, mine.body)
				require.Equal(t, 404, b.ask(t, other, c[0], at, c[1], "*").status)
			}
			require.Equal(t, 404, b.ask(t, other, "POST", list, good, "").status)
			require.NotContains(t, b.ask(t, other, "GET", "other/"+kind, "", "").body, made.ID)

			requireRefused(t, b.ask(t, editor, "DELETE", at, "", `"2"`), 412)
			require.Less(t, b.ask(t, editor, "DELETE", at, "", `"3"`).status, 300)
			for _, c := range [][2]string{{"GET", ""}, {"PUT", edited}, {"DELETE", ""}} {
				requireRefused(t, b.ask(t, editor, c[0], at, c[1], "*"), 404)
			}
			require.Equal(t, 201, b.ask(t, editor, "POST", list, strings.Replace(good, "fresh", "edited", 1), "").status)
		})
	}
}

// Pages by id, over what comes and goes between them: each that stays is seen
// just once.
func TestPagesOfConfiguredThings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	viewer := b.token(t, "acme")
	save := func(i int) {
		id := fmt.Sprintf("s-%03d", i)
		require.NoError(t, b.mem.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "acme", ID: id, Name: fmt.Sprintf("n-%03d", 500-i), Revision: 1, BotID: botID}))
		if i < 90 {
			require.NoError(t, b.mem.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: id, Name: fmt.Sprintf("n-%03d", 500-i), Revision: 1, URL: "http://h/"}))
		}
	}
	for i := range 120 {
		save(i)
	}
	seen := make(map[string]int)
	for kind, want := range map[string]int{"subscriptions": 120, "bots": 91} {
		clear(seen)
		n, query := 0, "?limit=25"
		for query != "" {
			page := body[Page[struct {
				ID string `json:"id"`
			}]](t, b.ask(t, viewer, "GET", "acme/"+kind+query, "", ""), 200)
			require.LessOrEqual(t, len(page.Items), 25)
			for _, item := range page.Items {
				seen[item.ID]++
				n++
			}
			query = ""
			if page.Next != "" {
				query = "?limit=25&after=" + page.Next
			}
		}
		require.Equal(t, want, n, kind)
		require.Len(t, seen, want, kind)
	}
	for _, cursor := range []string{newCursor("bots", "s-001"), "AAAA", "s3cret"} {
		requireRefused(t, b.ask(t, viewer, "GET", "acme/subscriptions?after="+cursor, "", ""), 422, "query.after")
	}
}

// A call that is made again with the same key gets what it made, and makes no
// second one.
func TestCreatesAreMadeOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.board(t, "board-2", "next")
	a := b.server.api
	ctx := t.Context()
	k := a.bots()
	build := func(id string) (*trigger.Bot, error) {
		bot := &trigger.Bot{TenantID: "acme", ID: id}
		err := (&BotSpec{Name: "fresh", URL: "http://h/"}).set(bot)
		k.stamp(bot, b.mem.Now())
		return bot, err
	}
	first, mine, err := k.createAs(ctx, "acme", "the-one", false, build)
	require.NoError(t, err)
	require.True(t, mine)
	// The same, also when the first one is not known to have been there.
	for _, again := range []bool{true, false} {
		second, mine, err := k.createAs(ctx, "acme", "the-one", again, build)
		require.NoError(t, err)
		require.False(t, mine, "its secret is not shown again")
		require.Equal(t, first, second)
	}
	_, _, err = k.createAs(ctx, "acme", "another", true, build)
	require.ErrorContains(t, err, "of this name")
}

// What a call changed is noted for the audit log, before and after, without
// secrets.
func TestChangesAreNoted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.server.api
	trail := []change{}
	ctx := context.WithValue(t.Context(), trailKey{}, &trail)
	k := a.bots()
	_, _, err := k.create(ctx, "acme", func(id string) (*trigger.Bot, error) {
		bot := &trigger.Bot{TenantID: "acme", ID: id, Name: "fresh", URL: "http://h/?token=s3cret"}
		var err error
		bot.Secret, _, err = k.secrets.seal("acme", id, botSecret)
		k.stamp(bot, b.mem.Now())
		return bot, err
	})
	require.NoError(t, err)
	id := trail[0].ID
	_, made, err := k.rotate(ctx, "acme", id, &MatchInput{}, nil)
	require.NoError(t, err)
	b.hidden = append(b.hidden, made)
	_, err = k.endRotation(ctx, "acme", id, &MatchInput{}, true)
	require.NoError(t, err)
	require.NoError(t, k.drop(ctx, "acme", id, &MatchInput{}))
	require.Len(t, trail, 4)
	for i, c := range trail {
		require.Equal(t, "bot", c.Kind)
		require.Equal(t, id, c.ID)
		require.Equal(t, i == 0, c.Before == nil)
		require.Equal(t, i == 3, c.After == nil)
	}
	text, err := json.Marshal(trail)
	require.NoError(t, err)
	b.checkHidden(t, "the trail", string(text))
	require.Zero(t, trail[1].Before.(Bot).RotatingSince)
	require.NotZero(t, trail[1].After.(Bot).RotatingSince)
	require.Zero(t, trail[2].After.(Bot).RotatingSince)
}
