package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// raw makes a call whose answer may have a secret, which no later one may.
func (b *bundle) raw(t *testing.T, token, method, path, text string) (status int, secret string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+"/v1/tenants/"+path, strings.NewReader(text))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if text != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := b.client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	b.checkHidden(t, "an answer", string(answer))
	var v struct {
		Secret string `json:"secret"`
	}
	require.NoError(t, json.Unmarshal(answer, &v))
	if v.Secret != "" {
		b.hidden = append(b.hidden, v.Secret, strings.TrimPrefix(v.Secret, "whsec_"))
	}
	return resp.StatusCode, v.Secret
}

// A bot verifies every launch with the one secret that it has, while that is
// rotated: through the API, the tail, the worker and the launcher.
func TestABotsSecretIsRotated(t *testing.T) {
	t.Parallel()
	launcher := launch.NewHTTP(launch.HTTPParams{})
	t.Cleanup(launcher.Close)
	b := start(t, withLaunch(launcher.Launch))
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	type got struct {
		header http.Header
		body   []byte
	}
	launches := make(chan got, 10)
	bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		launches <- got{r.Header, text}
	}))
	t.Cleanup(bot.Close)

	status, old := b.raw(t, editor, "POST", "acme/bots", `{"name":"fixer","url":"`+bot.URL+`/run?token=s3cret"}`)
	require.Equal(t, 201, status)
	require.True(t, strings.HasPrefix(old, "whsec_"))
	all := body[Page[Bot]](t, b.ask(t, editor, "GET", "acme/bots", "", ""), 200)
	fixer := all.Items[0]
	if fixer.Name != "fixer" {
		fixer = all.Items[1]
	}
	require.Equal(t, bot.URL+"/run?***", fixer.URL)
	at := "acme/bots/" + fixer.ID
	require.Equal(t, 201, b.ask(t, editor, "POST", "acme/subscriptions", `{"name":"fix","enabled":true,"bot_id":"`+fixer.ID+`","on":{"kinds":["card.created"]}}`, "").status)

	n := 0
	verified := func(secret string) bool {
		n++
		a := b.deliver(t, delivery{body: changed(t, "issues.opened", map[string]any{"issue.number": n})})
		require.Equal(t, "card.created", a.hook(t).Event, a.body)
		l := recv(t, launches)
		key, err := launch.ParseSecret(secret)
		require.NoError(t, err)
		return launch.Verify(key, l.header, l.body, time.Now(), launch.VerifyToleranceDefault) == nil
	}
	require.True(t, verified(old))
	require.False(t, verified("another secret of the bot"))

	status, next := b.raw(t, editor, "POST", at+"/secret", "")
	require.Equal(t, 200, status)
	require.NotEqual(t, old, next)
	require.True(t, verified(old), "it has not switched yet")
	require.True(t, verified(next), "it has")
	require.NotZero(t, body[Bot](t, b.ask(t, editor, "GET", at, "", ""), 200).RotatingSince)
	requireRefused(t, b.ask(t, editor, "POST", at+"/secret", "", ""), 409)
	require.Equal(t, 204, b.ask(t, editor, "DELETE", at+"/secret/previous", "", "").status)
	requireRefused(t, b.ask(t, editor, "DELETE", at+"/secret/previous", "", ""), 409)
	requireRefused(t, b.ask(t, editor, "DELETE", at+"/secret/next", "", ""), 409)
	require.True(t, verified(next))
	require.False(t, verified(old), "its time is over")
	require.Zero(t, body[Bot](t, b.ask(t, editor, "GET", at, "", ""), 200).RotatingSince)

	// Given up, with one that the caller gave.
	given := "given-of-the-caller-77"
	b.hidden = append(b.hidden, given)
	for range 2 { // again is the same
		status, made := b.raw(t, editor, "POST", at+"/secret", `{"secret":"`+given+`"}`)
		require.Equal(t, 200, status)
		require.Empty(t, made, "what was given is not repeated")
	}
	require.True(t, verified(given))
	require.Equal(t, 204, b.ask(t, editor, "DELETE", at+"/secret/next", "", "").status)
	require.False(t, verified(given))
	require.True(t, verified(next))
}

// Deliveries are taken with either secret until the rotation ends.
func TestAHooksSecretIsRotated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	ping := func(hook, secret string) int {
		return b.deliver(t, delivery{hook: hook, event: "ping", body: payload(t, "ping"), secret: secret}).status
	}
	status, old := b.raw(t, editor, "POST", "acme/hooks", goodHook)
	require.Equal(t, 201, status)
	var hook Hook
	for _, h := range body[Page[Hook]](t, b.ask(t, editor, "GET", "acme/hooks", "", ""), 200).Items {
		if h.Name == "fresh" {
			hook = h
		}
	}
	require.Equal(t, "/v1/tenants/acme/hooks/"+hook.ID, hook.Path)
	at := "acme/hooks/" + hook.ID
	require.Equal(t, 200, ping(hook.ID, old))
	status, next := b.raw(t, editor, "POST", at+"/secret", "{}")
	require.Equal(t, 200, status)
	require.Equal(t, 200, ping(hook.ID, old))
	require.Equal(t, 200, ping(hook.ID, next))
	require.Equal(t, 401, ping(hook.ID, hookSecret))
	require.Equal(t, 204, b.ask(t, editor, "DELETE", at+"/secret/previous", "", "").status)
	require.Equal(t, 401, ping(hook.ID, old))
	require.Equal(t, 200, ping(hook.ID, next))
	status, third := b.raw(t, editor, "POST", at+"/secret", "")
	require.Equal(t, 200, status)
	require.Equal(t, 204, b.ask(t, editor, "DELETE", at+"/secret/next", "", "").status)
	require.Equal(t, 401, ping(hook.ID, third))
	require.Equal(t, 200, ping(hook.ID, next))

	require.Equal(t, 204, b.ask(t, editor, "DELETE", at, "", "").status)
	require.Equal(t, 404, ping(hook.ID, next))
}

// A next secret that can't be opened is the operator's affair: what is signed
// with the other one is taken, and nothing unverified.
func TestANextSecretThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hook, err := b.mem.HookGet(t.Context(), "acme", hookID)
	require.NoError(t, err)
	hook.NextSecret, hook.Revision = "v1:00000000:AAAA", 2
	require.NoError(t, b.mem.HookSave(t.Context(), hook))
	require.Equal(t, 200, b.deliver(t, delivery{event: "ping", body: payload(t, "ping")}).status)
	requireUnavailable(t, b.deliver(t, delivery{event: "ping", body: payload(t, "ping"), secret: otherSecret}))
}

func TestRefusedSecrets(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	for _, kind := range []string{"bots/" + botID, "hooks/" + hookID} {
		at := "acme/" + kind + "/secret"
		requireRefused(t, b.ask(t, editor, "POST", at, `{"secret":"s3cret"}`, ""), 422, "body.secret")
		requireRefused(t, b.ask(t, editor, "POST", at, `{"secret":{"$ne":""}}`, ""), 422, "body.secret")
		requireRefused(t, b.ask(t, editor, "POST", at, `{"secret":"`+strings.Repeat("s3cret", 700)+`"}`, ""), 422, "body.secret")
		requireRefused(t, b.ask(t, editor, "POST", at, `{"secret":"`+map[string]string{"bots/" + botID: botSecret, "hooks/" + hookID: hookSecret}[kind]+`"}`, ""), 422, "body.secret")
		requireRefused(t, b.ask(t, editor, "POST", at, "", `"7"`), 412)
		requireRefused(t, b.ask(t, editor, "DELETE", at+"/previous", "", `"7"`), 412)
		requireRefused(t, b.ask(t, editor, "DELETE", at+"/next", "", ""), 409)
	}
	requireRefused(t, b.ask(t, editor, "POST", "acme/bots", `{"name":"x","url":"http://h/","secret":"whsec_s3cret"}`, ""), 422, "body.secret")
	requireRefused(t, b.ask(t, editor, "PUT", "acme/bots/"+botID, `{"name":"x","url":"http://h/","secret":"0123456789abcdefs3cret"}`, "*"), 422, "body.secret")

	// Another key than the replicas', and none.
	key, err := seal.ParseKey(seal.NewKey())
	require.NoError(t, err)
	another, err := seal.New(key)
	require.NoError(t, err)
	bots, err := b.mem.BotList(ctx, "acme")
	require.NoError(t, err)
	hooks, err := b.mem.HookList(ctx, "acme")
	require.NoError(t, err)
	for _, sealer := range []trigger.Sealer{another, seal.Missing{}} {
		b.server.api.Sealer = sealer
		for _, text := range []string{"", `{"secret":"0123456789abcdefs3cret"}`} {
			for _, kind := range []string{"bots/" + botID, "hooks/" + hookID} {
				a := b.ask(t, editor, "POST", "acme/"+kind+"/secret", text, "")
				requireRefused(t, a, 409)
				require.Contains(t, a.problem(t).Detail, "seal key")
			}
		}
	}
	for kind, good := range map[string]string{"bots": goodBot, "hooks": goodHook} {
		a := b.ask(t, editor, "POST", "acme/"+kind, good, "")
		requireRefused(t, a, 409)
		require.Contains(t, a.problem(t).Detail, "TRIGGERD_SEAL_KEY")
	}
	// What needs no key goes on without one.
	require.Equal(t, 200, b.ask(t, editor, "GET", "acme/bots/"+botID, "", "").status)
	after, err := b.mem.BotList(ctx, "acme")
	require.NoError(t, err)
	require.Equal(t, bots, after)
	hooksAfter, err := b.mem.HookList(ctx, "acme")
	require.NoError(t, err)
	require.Equal(t, hooks, hooksAfter)
	require.Equal(t, 200, b.ask(t, editor, "PUT", "acme/bots/"+botID, goodBot, `"1"`).status)
	bot, err := b.mem.BotGet(ctx, "acme", botID)
	require.NoError(t, err)
	require.Equal(t, bots[0].Secret, bot.Secret, "an edit leaves the secret")
}

func TestRefusedBotsAndHooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	bot, hook := "acme/bots/"+botID, "acme/hooks/"+hookID
	for _, c := range []struct{ path, from, to, field string }{
		{bot, "http://127.0.0.1:1/run", "ftp://h/s3cret", "body.url"},
		{bot, "http://127.0.0.1:1/run", "http://u:s3cret@h/", "body.url"},
		{bot, "http://127.0.0.1:1/run", "http://h/#s3cret", "body.url"},
		{bot, "http://127.0.0.1:1/run", "", "body.url"},
		{bot, "http://127.0.0.1:1/run", "http://h/" + strings.Repeat("s3cret", 400), "body.url"},
		{bot, "http://127.0.0.1:1/run", "http://another/?***", "body.url"},
		{bot, `"url"`, `"replay":"s3cret","url"`, "body.replay"},
		{hook, "github", "s3cret", "body.provider"},
		{hook, "board-1", "s3cret", "body.board_id"},
		{hook, `"todo"`, `"s3cret"`, "body.columns.open"},
		{hook, `"done"`, `"s3cret"`, "body.columns.closed"},
		{hook, `"done"`, `null`, "body.columns.closed"},
	} {
		good := goodBot
		if c.path == hook {
			good = goodHook
		}
		bad := strings.Replace(good, c.from, c.to, 1)
		require.NotEqual(t, good, bad)
		requireRefused(t, b.ask(t, editor, "PUT", c.path, bad, "*"), 422, c.field)
		list, _, _ := strings.Cut(c.path, "-1")
		requireRefused(t, b.ask(t, editor, "POST", list[:strings.LastIndex(list, "/")], bad, ""), 422, c.field)
	}
	// The query of a URL is never shown, and stays if it is sent as it is shown.
	for _, url := range []string{"http://h/run?token=s3cret", "http://h/run?***"} {
		got := body[Bot](t, b.ask(t, editor, "PUT", bot, strings.Replace(goodBot, "http://127.0.0.1:1/run", url, 1), "*"), 200)
		require.Equal(t, "http://h/run?***", got.URL)
		stored, err := b.mem.BotGet(context.WithoutCancel(t.Context()), "acme", botID)
		require.NoError(t, err)
		require.Equal(t, "http://h/run?token=s3cret", stored.URL)
	}
}
