package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// A bot's token reads what is the bot's; all else it may not, and what is
// another bot's is not there.
func TestABotReadsItsOwn(t *testing.T) {
	t.Parallel()
	b := filled(t)
	require.NoError(t, b.mem.BotSave(t.Context(), &trigger.Bot{TenantID: "acme", ID: "bot-2", Name: "second", URL: "http://127.0.0.1:1", Replay: trigger.ReplaySafe, Secret: "x", Revision: 1}))
	mine := b.rowIn(t, 11, trigger.StateFailed)
	others := b.rowIn(t, 12, trigger.StateFailed, func(e *trigger.Effect) { e.BotID = "bot-2" })
	nobodys := b.rowIn(t, 13, trigger.StateFailed, func(e *trigger.Effect) { e.BotID = "" })
	bot := b.tokenAs(t, TokenParams{Name: "b", Role: trigger.RoleBot, TenantID: "acme", BotID: botID})
	effect := func(id string) string { return "/v1/tenants/acme/effects/" + url.PathEscape(id) }
	for path, want := range map[string]int{
		effect(mine): 200, effect(others): 404, effect(nobodys): 404, effect("acme/000000000099|sub-1"): 404,
		"/v1/tenants/acme/effects?bot=" + botID: 200, "/v1/tenants/acme/effects?bot=bot-2": 404, "/v1/tenants/acme/effects?bot=bot-9": 404,
		"/v1/tenants/acme/effects": 403, "/v1/tenants/acme/effects?bot=": 403,
		"/v1/tenants/acme/bots/" + botID: 200, "/v1/tenants/acme/bots/bot-2": 404, "/v1/tenants/acme/bots/bot-9": 404, "/v1/tenants/acme/bots": 403,
		"/v1/tenants/acme/cards?bot=" + botID: 200, "/v1/tenants/acme/cards?bot=bot-2": 404, "/v1/tenants/acme/cards": 403,
		"/v1/tenants/other/effects?bot=" + botID:               404,
		"/v1/tenants/acme/effects?bot=" + botID + "&bot=bot-2": 422,
	} {
		require.Equal(t, want, b.get(t, bot, path).status, path)
	}
	require.Equal(t, b.get(t, bot, effect("acme/000000000099|sub-1")).body, b.get(t, bot, effect(others)).body)
	p := b.page(t, bot, "/v1/tenants/acme/effects?limit=100&bot="+botID)
	require.NotEmpty(t, p.Items)
	for _, e := range p.Items {
		require.Equal(t, botID, e.BotID)
	}
	before := b.state(t)
	for op, c := range b.writes(t) {
		before = b.state(t) // the table makes rows
		a := b.write(t, bot, c)
		require.Contains(t, []int{403, 404}, a.status, op)
	}
	require.Equal(t, before, b.state(t))
	reads, _ := b.operations(t)
	for op, path := range calls() {
		if _, marked := reads[op].Metadata["bot"]; !marked {
			require.Equal(t, 403, b.get(t, bot, path).status, op)
		}
	}
}

func TestTokensByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	a := b.post(t, admin, "/v1/tokens", `{"name":"ci","role":"bot","tenant_id":"acme","bot_id":"`+botID+`","ttl":"1h"}`)
	require.Equal(t, 201, a.status, a.body)
	var made MadeToken
	require.NoError(t, json.Unmarshal([]byte(a.body), &made))
	require.Equal(t, "active", made.Status)
	require.Equal(t, "/v1/tokens/"+made.ID, a.header.Get("Location"))
	require.Equal(t, 200, b.get(t, made.Text, "/v1/tenants/acme/effects?bot="+botID).status)
	b.hidden = append(b.hidden, made.Text, tokenHash(made.Text)) // from here on it is shown nowhere
	require.Equal(t, 200, b.get(t, admin, "/v1/tokens?limit=1").status)
	require.Equal(t, 200, b.get(t, admin, "/v1/tokens/"+made.ID).status)
	b.entries(t, "", 1)
	require.NotContains(t, b.get(t, admin, "/v1/audit").body, made.Text)

	for body, field := range map[string]string{
		`{"name":"x","role":"editor"}`:                                             "body.tenant_id",
		`{"name":"x","role":"admin","tenant_id":"acme"}`:                           "body.tenant_id",
		`{"name":"x","role":"editor","tenant_id":"nobody"}`:                        "body.tenant_id",
		`{"name":"x","role":"bot","tenant_id":"acme"}`:                             "body.bot_id",
		`{"name":"x","role":"bot","tenant_id":"other","bot_id":"` + botID + `"}`:   "body.bot_id",
		`{"name":"x","role":"viewer","tenant_id":"acme","bot_id":"` + botID + `"}`: "body.bot_id",
		`{"name":"x","role":"root"}`:                                               "body.role",
		`{"name":"","role":"admin"}`:                                               "body.name",
		`{"name":"x\ny","role":"admin"}`:                                           "body.name",
		`{"name":"x","role":"admin","ttl":"-1h"}`:                                  "body.ttl",
		`{"name":"x","role":"admin","ttl":"soon"}`:                                 "body.ttl",
	} {
		a := b.post(t, admin, "/v1/tokens", body)
		require.Equal(t, 422, a.status, body)
		require.Equal(t, field, a.problem(t).Errors[0].Field, body)
	}

	t.Log("a key makes one; what it is can't be told a second time")
	first := b.keyed(t, admin, "/v1/tokens", `{"name":"k","role":"admin"}`, "key-1")
	require.Equal(t, 201, first.status)
	again := b.keyed(t, admin, "/v1/tokens", `{"name":"k","role":"admin"}`, "key-1")
	require.Equal(t, 409, again.status)
	require.NoError(t, json.Unmarshal([]byte(first.body), &made))
	require.Contains(t, again.problem(t).Detail, made.ID)
}

// A revocation by one replica holds on the others from the next call on.
func TestARevocationHoldsEverywhere(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := NewAPI(APIParams{Store: one.mem, Sealer: one.server.p.Sealer, Logger: zerolog.Nop()})
	admin, editor := one.token(t, ""), one.tokenAs(t, TokenParams{ID: "tok-9", Name: "e", Role: trigger.RoleEditor, TenantID: "acme"})
	ask := func() int {
		req := httptest.NewRequest(http.MethodGet, "/v1/tenants/acme/effects", http.NoBody)
		req.Header.Set("Authorization", "Bearer "+editor)
		w := httptest.NewRecorder()
		two.ServeHTTP(w, req)
		return w.Code
	}
	require.Equal(t, 200, ask())
	require.Equal(t, 200, one.get(t, editor, "/v1/tenants/acme/effects").status)
	require.Equal(t, 200, one.post(t, admin, "/v1/tokens/tok-9/revoke", "").status)
	require.Equal(t, 401, ask())
	require.Equal(t, 401, one.get(t, editor, "/v1/tenants/acme/effects").status)
	require.Equal(t, 200, one.post(t, admin, "/v1/tokens/tok-9/revoke", "").status, "again is no error")
	require.Equal(t, 404, one.post(t, admin, "/v1/tokens/tok-8/revoke", "").status)
}

// from asks as an address.
func from(b *bundle, remote, token string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodGet, "/v1/tenants/acme/effects", http.NoBody)
	req.RemoteAddr = remote
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	// No forwarded header has a say.
	req.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", time.Now().UnixNano()%250))
	w := httptest.NewRecorder()
	b.server.http.Handler.ServeHTTP(w, req)
	return w
}

func TestFailedAuthenticationsAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := time.Now()
	f := b.server.api.failures
	f.max, f.now = failuresMaxDefault, func() time.Time { return now }
	good, late := b.token(t, "acme"), b.token(t, "acme")
	const bad = TokenPrefix + "s3cret-guess"
	asked := 0
	b.store.on("TokenByHash", func(context.Context) error { asked++; return nil })

	require.Equal(t, 200, from(b, "192.0.2.1:1000", good).Code)
	for i := range failuresMaxDefault {
		require.Equal(t, 401, from(b, fmt.Sprintf("192.0.2.1:%d", 2000+i), bad).Code)
	}
	before := asked
	w := from(b, "192.0.2.1:3000", bad)
	require.Equal(t, 429, w.Code)
	require.Equal(t, "60", w.Header().Get("Retry-After"))
	require.Equal(t, 429, from(b, "192.0.2.1:3000", late).Code, "a good one that never came from there")
	require.Equal(t, 429, from(b, "192.0.2.1:3000", "garbage").Code)
	require.Equal(t, 429, from(b, "[::ffff:192.0.2.1]:3000", bad).Code, "the same address, written otherwise")
	require.Equal(t, before, asked, "the store is not asked")
	require.Equal(t, 401, from(b, "192.0.2.1:3000", "").Code, "no guess")
	require.Equal(t, 200, from(b, "192.0.2.1:3000", good).Code, "a neighbour is not locked out")
	require.Equal(t, 200, from(b, "192.0.2.2:3000", late).Code, "nor another address")

	t.Log("a token that was good and is revoked gets no further try")
	stored, err := b.mem.TokenByHash(t.Context(), tokenHash(good))
	require.NoError(t, err)
	require.NoError(t, b.mem.TokenRevoke(t.Context(), stored.ID, b.mem.Now()))
	require.Equal(t, 401, from(b, "192.0.2.1:3000", good).Code)
	require.Equal(t, 429, from(b, "192.0.2.1:3000", good).Code)

	now = now.Add(failuresWindow)
	require.Equal(t, 200, from(b, "192.0.2.1:3000", late).Code, "a minute later it may try again")

	t.Log("an IPv6 host has a /64 to itself")
	for i := range failuresMaxDefault {
		require.Equal(t, 401, from(b, fmt.Sprintf("[2001:db8:1:2::%x]:99", i+1), bad).Code)
	}
	require.Equal(t, 429, from(b, "[2001:db8:1:2:ffff::1]:99", bad).Code)
	require.Equal(t, 401, from(b, "[2001:db8:1:3::1]:99", bad).Code)

	logs := b.logs.String()
	require.Contains(t, logs, `"message":"a call with a bad token"`)
	require.Less(t, strings.Count(logs, "a call with a bad token"), 10, "at a bounded rate")
	require.NotContains(t, logs, "s3cret")
}

func TestFailuresAreBounded(t *testing.T) {
	t.Parallel()
	f, log := newFailures(), zerolog.Nop()
	now := time.Now()
	f.now = func() time.Time { now = now.Add(time.Microsecond); return now }
	for i := range 3 * failuresRoom {
		f.bad(&log, strconv.Itoa(i), "h", "unknown")
		f.good(strconv.Itoa(i), "h")
	}
	require.Len(t, f.tries, failuresRoom)
	require.Len(t, f.known, failuresRoom)
	require.Contains(t, f.tries, strconv.Itoa(3*failuresRoom-1), "the oldest went")
}

// HEAD asks for what GET does: whoever may read may, and nothing is entered.
func TestHeadReads(t *testing.T) {
	t.Parallel()
	b := filled(t)
	viewer := b.token(t, "acme")
	bot := b.tokenAs(t, TokenParams{Name: "b", Role: trigger.RoleBot, TenantID: "acme", BotID: botID})
	head := func(token, path string) int {
		return b.write(t, token, call{method: http.MethodHead, path: path}).status
	}
	for op, path := range calls() {
		require.Equal(t, 200, head(viewer, path), op)
	}
	require.Equal(t, 200, head(bot, "/v1/tenants/acme/effects?bot="+botID))
	require.Equal(t, 404, head(bot, "/v1/tenants/acme/effects?bot=bot-9"))
	require.Equal(t, 403, head(bot, "/v1/tenants/acme/events"))
	require.Equal(t, 401, head("", "/v1/tenants/acme/events"))
	require.Equal(t, 404, head(viewer, "/v1/tenants/other/events"))
	b.entries(t, "acme", 0)
}
