package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// rows gives a tenant n rows, as if its log had n events.
func (b *bundle) rows(t *testing.T, tenant string, n int) (ids []string) {
	t.Helper()
	var rows []trigger.Effect
	for i := range n {
		event := trigger.Event{TenantID: tenant, Seq: int64(i + 1), Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{
			EID: tracker.NewBoardEID(), Kind: tracker.KindCreated, CardID: issueCard(),
		}}
		row := trigger.Effect{
			ID: trigger.EffectID(event.ID(), "sub-1"), TenantID: tenant, Kind: trigger.KindLaunch, Lane: trigger.LaneBot(botID), State: trigger.StatePending,
			NotBefore: b.mem.Now(), SubscriptionID: "sub-1", BotID: botID, EventSeq: event.Seq, CardID: event.CardID, Event: event,
			Plan: &trigger.LaunchPlan{BotID: botID, Body: "s3cret plan"}, Rendered: "s3cret rendering", CreatedAt: b.mem.Now(), UpdatedAt: b.mem.Now(),
		}
		if i%5 == 0 {
			row.State, row.Outcome, row.RunID = trigger.StateDone, trigger.OutcomeLaunched, "run-7"
		}
		rows, ids = append(rows, row), append(ids, row.ID)
	}
	_, err := b.mem.EffectMaterialize(t.Context(), tenant, rows)
	require.NoError(t, err)
	return ids
}

func TestTokens(t *testing.T) {
	t.Parallel()
	b := filled(t)
	viewer, admin := b.token(t, "acme"), b.token(t, "")
	revoked, text, err := TokenCreate(t.Context(), b.mem, TokenParams{Name: "revoked", Role: trigger.RoleViewer, TenantID: "acme"})
	require.NoError(t, err)
	require.NoError(t, b.mem.TokenRevoke(t.Context(), revoked.ID, b.mem.Now()))
	expired := b.token(t, "acme")
	stored, err := b.mem.TokenByHash(t.Context(), tokenHash(expired))
	require.NoError(t, err)
	stored.ID, stored.Hash, stored.ExpiresAt = "expired", tokenHash(TokenPrefix+"expired"), b.mem.Now()
	require.NoError(t, b.mem.TokenCreate(t.Context(), stored))

	for op, path := range calls() {
		for name, header := range map[string]string{
			"none": "", "no scheme": viewer, "another scheme": "Basic " + viewer, "no token": "Bearer", "an empty one": "Bearer ",
			"no prefix": "Bearer " + strings.TrimPrefix(viewer, TokenPrefix), "cut": "Bearer " + viewer[:len(viewer)-1],
			"longer": "Bearer " + viewer + "x", "very long": "Bearer " + TokenPrefix + strings.Repeat("x", 10_000),
			"unknown": "Bearer " + TokenPrefix + "s3cret-x'{$ne}", "the hash": "Bearer " + TokenPrefix + tokenHash(viewer),
			"revoked": "Bearer " + text, "expired": "Bearer " + TokenPrefix + "expired",
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, http.NoBody)
			require.NoError(t, err)
			if header != "" {
				req.Header.Set("Authorization", header)
			}
			a := b.do(t, req)
			require.Equal(t, http.StatusUnauthorized, a.status, "%s, %s", op, name)
			require.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"))
			require.Contains(t, a.problem(t).Detail, "token")
		}
		for name, token := range map[string]string{"viewer": viewer, "admin": admin} {
			a := b.get(t, token, path)
			require.Equal(t, http.StatusOK, a.status, "%s, %s: %s", op, name, a.body)
			require.Equal(t, "application/json", a.header.Get("Content-Type"))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "bearer  "+viewer+" ") // RFC 9110: the scheme ignores case
		require.Equal(t, http.StatusOK, b.do(t, req).status, op)
	}
}

func TestARevocationHoldsAtOnce(t *testing.T) {
	t.Parallel()
	b := filled(t)
	token, text, err := TokenCreate(t.Context(), b.mem, TokenParams{Name: "x", Role: trigger.RoleAdmin, TTL: time.Hour})
	require.NoError(t, err)
	b.hidden = append(b.hidden, text, token.Hash)
	for _, path := range calls() {
		require.Equal(t, http.StatusOK, b.get(t, text, path).status)
	}
	require.NoError(t, b.mem.TokenRevoke(t.Context(), token.ID, b.mem.Now()))
	for _, path := range calls() {
		require.Equal(t, http.StatusUnauthorized, b.get(t, text, path).status)
	}
}

// For a viewer another tenant is what does not exist, byte for byte.
func TestAViewerSeesOneTenant(t *testing.T) {
	t.Parallel()
	b := filled(t)
	b.rows(t, "other", 1)
	viewer := b.token(t, "other")
	want := b.get(t, viewer, "/v1/tenants/other/effects/"+url.PathEscape(trigger.EffectID("other/000000000009", "sub-1")))
	require.Equal(t, http.StatusNotFound, want.status)
	want.problem(t)
	want.header.Del("Date")
	paths := map[string]string{
		"a card that is not there": "/v1/tenants/other/cards/" + issueCard(),
		"another tenant's effect":  "/v1/tenants/other/effects/" + url.PathEscape(trigger.EffectID("acme/000000000001", "sub-1")),
	}
	for op, path := range calls() {
		paths[op] = path
		paths[op+", no such tenant"] = strings.Replace(path, "/acme/", "/nobody/", 1)
		paths[op+", no tenant's name"] = strings.Replace(path, "/acme/", "/s3cret-x'%7B$ne%7D/", 1)
		sep := "?"
		if strings.Contains(path, "?") {
			sep = "&"
		}
		paths[op+", bad parameters"] = path + sep + "limit=s3cret&state=s3cret&after=s3cret"
	}
	for name, path := range paths {
		got := b.get(t, viewer, path)
		got.header.Del("Date")
		require.Equal(t, want, got, name)
	}

	t.Log("its own it sees")
	var page Page[Effect]
	a := b.get(t, viewer, "/v1/tenants/other/effects")
	require.Equal(t, http.StatusOK, a.status)
	require.NoError(t, json.Unmarshal([]byte(a.body), &page))
	require.Len(t, page.Items, 1)
	require.Equal(t, "other/000000000001|sub-1", page.Items[0].ID)

	t.Log("an admin sees all of them")
	admin := b.token(t, "")
	for _, tenant := range []string{"acme", "other"} {
		a := b.get(t, admin, "/v1/tenants/"+tenant+"/effects")
		require.Equal(t, http.StatusOK, a.status)
		require.Contains(t, a.body, tenant+"/000000000001|sub-1")
	}
}

func (b *bundle) page(t *testing.T, token, path string) (p Page[Effect]) {
	t.Helper()
	a := b.get(t, token, path)
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &p))
	return p
}

func TestPagesOfEffects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := b.rows(t, "acme", 25)
	b.rows(t, "other", 25)
	viewer := b.token(t, "acme")
	walk := func(query string) (ids []string, pages int) {
		after := ""
		for {
			p := b.page(t, viewer, "/v1/tenants/acme/effects?"+query+"&after="+url.QueryEscape(after))
			require.NotNil(t, p.Items)
			for _, e := range p.Items {
				ids = append(ids, e.ID)
			}
			pages++
			if p.Next == "" {
				return ids, pages
			}
			require.Regexp(t, `^[A-Za-z0-9_-]+$`, p.Next, "it goes into an address as it is")
			require.NotContains(t, p.Next, "acme", "it is opaque")
			after = p.Next
			require.Less(t, pages, 100)
		}
	}
	for query, pages := range map[string]int{"limit=7": 4, "limit=1": 25, "limit=5": 5, "limit=25": 1, "limit=100": 1, "": 1} {
		ids, n := walk(query)
		require.Equal(t, want, ids, query)
		require.Equal(t, pages, n, query)
	}
	done, pages := walk("state=done&limit=2")
	require.Equal(t, []string{want[0], want[5], want[10], want[15], want[20]}, done)
	require.Equal(t, 3, pages)
	none, _ := walk("state=failed")
	require.Empty(t, none)

	t.Log("rows that come in between are neither lost nor seen twice")
	p := b.page(t, viewer, "/v1/tenants/acme/effects?limit=24")
	more := b.rows(t, "acme", 30)
	p = b.page(t, viewer, "/v1/tenants/acme/effects?after="+p.Next)
	require.Len(t, p.Items, 6)
	require.Equal(t, more[24], p.Items[0].ID)
}

func TestCursors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.rows(t, "acme", 3)
	b.rows(t, "other", 3)
	admin := b.token(t, "")
	others := b.page(t, admin, "/v1/tenants/other/effects?limit=1").Next
	mine := b.page(t, admin, "/v1/tenants/acme/effects?limit=1").Next
	require.Len(t, b.page(t, admin, "/v1/tenants/acme/effects?after="+mine).Items, 2)
	for name, after := range map[string]string{
		"another tenant's": others, "cut": mine[:12], "longer": mine + "A", "padded": mine + "=",
		"an id": "acme/000000000001|sub-1", "garbage": "s3cret-x'{$ne}", "too long": strings.Repeat("A", 201),
		"not text":      encodeCursor("acme/\xff\xfe"),
		"no id":         encodeCursor("acme/"),
		"a regexp":      encodeCursor("acme/.*"),
		"a NUL in it":   encodeCursor("acme/000000000001|\x00"),
		"line break":    mine[:4] + "\n" + mine[4:],
		"tenant's name": encodeCursor("acme"),
	} {
		a := b.get(t, admin, "/v1/tenants/acme/effects?after="+url.QueryEscape(after))
		require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s: %s", name, a.body)
		p := a.problem(t)
		require.Len(t, p.Errors, 1)
		require.Contains(t, p.Errors[0].Field, "after")
	}
}

func TestGetEffect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.rows(t, "acme", 2)
	token := b.token(t, "acme")
	for _, id := range ids {
		for _, escaped := range []string{url.PathEscape(id), strings.NewReplacer("/", "%2f", "|", "%7c").Replace(id)} {
			a := b.get(t, token, "/v1/tenants/acme/effects/"+escaped)
			require.Equal(t, http.StatusOK, a.status)
			var e Effect
			require.NoError(t, json.Unmarshal([]byte(a.body), &e))
			require.Equal(t, id, e.ID)
			require.Equal(t, tracker.KindCreated, e.EventKind)
			require.Equal(t, issueCard(), e.CardID)
			require.Equal(t, e.State.Live(), e.NotBefore != nil)
		}
	}
	for _, id := range []string{"acme/000000000003|sub-1", "acme/000000000001|sub-2", "other/000000000001|sub-1", "acme/000000000001!"} {
		a := b.get(t, token, "/v1/tenants/acme/effects/"+url.PathEscape(id))
		require.Equal(t, http.StatusNotFound, a.status, id)
		require.Equal(t, notFound, a.problem(t).Detail)
	}
}

func TestGetCardAndEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"issues.opened", "issues.labeled", "issues.unlabeled"} {
		require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, name)}).hook(t).Status)
	}
	token := b.token(t, "acme")
	a := b.get(t, token, "/v1/tenants/acme/cards/"+issueCard())
	require.Equal(t, http.StatusOK, a.status)
	var card map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &card))
	require.Equal(t, "Spelling error in the README file", card["title"])
	require.Equal(t, "todo", card["column_id"])
	require.Equal(t, []any{}, card["labels"], "an empty list, not null")
	require.Equal(t, []any{"Codertocat"}, card["assignees"])
	for _, internal := range []string{"stamps", "pending", "deliveries", "consumed", "last_write", "incarnation"} {
		require.NotContains(t, card, internal)
	}

	read := func(query string) (p EventPage) {
		a := b.get(t, token, "/v1/tenants/acme/events"+query)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.NoError(t, json.Unmarshal([]byte(a.body), &p))
		return p
	}
	p := read("")
	require.Len(t, p.Items, 2)
	require.Equal(t, tracker.KindCreated, p.Items[0].Kind)
	require.Equal(t, []string{"bug"}, p.Items[0].After.Labels)
	require.Equal(t, tracker.KindUnlabeled, p.Items[1].Kind)
	require.Equal(t, []string{"bug"}, p.Items[1].Removed)
	require.Equal(t, []string{"bug"}, p.Items[1].Before.Labels)
	require.Empty(t, p.Items[1].After.Labels)

	var kinds []tracker.Kind
	for after := int64(0); ; after = p.Next {
		p = read(fmt.Sprintf("?limit=1&after=%d", after))
		for _, e := range p.Items {
			kinds = append(kinds, e.Kind)
		}
		if p.Next == 0 {
			break
		}
	}
	require.Equal(t, b.kinds(t), kinds)
	require.Empty(t, read("?after=999999999999").Items)
	require.Equal(t, http.StatusUnprocessableEntity, b.get(t, token, "/v1/tenants/acme/events?after=9223372036854775757").status)

	// Seqs without an event make a page short, not the last one.
	ctx := t.Context()
	_, err := b.mem.SeqAllocate(ctx, "acme", 3, false)
	require.NoError(t, err)
	require.NoError(t, b.mem.EventFillVoids(ctx, "acme", []int64{5}))
	p = read("?limit=2&after=2")
	require.Empty(t, p.Items)
	require.EqualValues(t, 4, p.Next)
	require.Len(t, read("?limit=2&after=4").Items, 1)
}

func TestWhereATenantsLogStands(t *testing.T) {
	t.Parallel()
	b := filled(t)
	viewer, admin := b.token(t, "acme"), b.token(t, "")
	for op, path := range adminCalls() {
		want := http.StatusNotFound
		if strings.HasPrefix(path, "/v1/tenants/acme") {
			want = http.StatusForbidden
		}
		require.Equal(t, want, b.get(t, viewer, path).status, op)
		require.Equal(t, http.StatusOK, b.get(t, admin, path).status, op)
	}
	// One event is matched; then a hole, and an event behind it.
	ctx := t.Context()
	_, err := b.mem.HeadAdvance(ctx, "acme", 1, 2)
	require.NoError(t, err)
	_, err = b.mem.SeqAllocate(ctx, "acme", 2, false)
	require.NoError(t, err)
	require.NoError(t, b.mem.EventInsertMany(ctx, "acme", []trigger.Event{{
		TenantID: "acme", Seq: 4, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{EID: "board:x", Kind: tracker.KindEdited},
	}}))
	_, err = b.mem.HeadWatchPoison(ctx, "acme", 3, b.mem.Now())
	require.NoError(t, err)
	var status trigger.TenantStatus
	a := b.get(t, viewer, "/v1/tenants/acme")
	require.NoError(t, json.Unmarshal([]byte(a.body), &status), a.body)
	require.EqualValues(t, 4, status.Seq)
	require.EqualValues(t, 2, status.LagEvents)
	require.Equal(t, 1, status.OpenHoles)
	require.NotNil(t, status.Poison)
	require.GreaterOrEqual(t, status.LagSeconds, 0.0)
	var page Page[trigger.TenantStatus]
	a = b.get(t, admin, "/v1/tenants?limit=1")
	require.NoError(t, json.Unmarshal([]byte(a.body), &page), a.body)
	require.Len(t, page.Items, 1)
	require.Equal(t, "acme", page.Next)
	a = b.get(t, admin, "/v1/tenants?after=acme")
	page = Page[trigger.TenantStatus]{}
	require.NoError(t, json.Unmarshal([]byte(a.body), &page), a.body)
	require.Len(t, page.Items, 1, "it has no log")
	require.Equal(t, trigger.TenantStatus{TenantID: "other", Status: "active"}, page.Items[0])
	require.Empty(t, page.Next)
}

func TestUnknownRoutes(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin := b.token(t, "")
	for _, path := range []string{
		"/", "/v1", "/v1/tenants/", "/v1/tenants/acme/hook", "/v1/tenants/acme/s3cret", "/v2/tenants/acme/effects",
		"/v1/tenants/acme/effects/acme/000000000001%7Csub-1", // not percent-encoded
		"/docs/", "/openapi", "/openapi-3.0.json", "/schemas", "/schemas/Effect.json", "/debug/pprof/",
	} {
		for _, token := range []string{"", admin} {
			a := b.get(t, token, path)
			require.Equal(t, http.StatusNotFound, a.status, path)
			require.NotEmpty(t, a.problem(t).Detail, path)
		}
	}
	for _, path := range []string{"/v1/tenants/acme/effects", "/v1/pause"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, b.url+path, http.NoBody)
		require.NoError(t, err)
		a := b.do(t, req)
		require.Equal(t, http.StatusMethodNotAllowed, a.status, path)
		require.NotEmpty(t, a.header.Get("Allow"))
		a.problem(t)
	}
}

// No answer has a sealed secret, a token's hash or what a launch sends. (do
// looks for all of them, in each test.)
func TestAnswersHoldNoSecrets(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin := b.token(t, "")
	for op, path := range calls() {
		a := b.get(t, admin, path)
		require.Equal(t, http.StatusOK, a.status)
		for _, h := range b.hidden {
			assert.NotContains(t, a.body, h, op)
		}
		assert.NotContains(t, a.body, "v1:", op)
	}
	require.GreaterOrEqual(t, len(b.hidden), 8, "two texts of each of four secrets")
}

func TestTheStoreFailsUnderTheAPI(t *testing.T) {
	t.Parallel()
	b := filled(t)
	token := b.token(t, "acme")
	asks := map[string]string{
		"list-effects": "EffectList", "get-effect": "EffectGet", "get-card": "CardGet", "list-events": "EventList",
		"get-tenant": "TenantGet", "list-pauses": "PauseList", "list-cards": "CardList",
		"explain-card": "CardGet", "log-subscription": "SubscriptionGet",
	}
	for op, c := range boardReads() {
		asks[op] = c[1]
	}
	for op, call := range asks {
		for _, failing := range []string{call, "TokenByHash"} {
			b.store.fail(failing)
			a := b.get(t, token, calls()[op])
			require.Equal(t, http.StatusServiceUnavailable, a.status, "%s, %s", op, failing)
			require.Equal(t, retryAfter, a.header.Get("Retry-After"), "%s, %s", op, failing)
			a.problem(t)
			b.store.heal()
		}
		require.Equal(t, http.StatusOK, b.get(t, token, calls()[op]).status)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	b := build(t)
	ask := func(path string) answer {
		w := httptest.NewRecorder()
		b.server.http.Handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		b.checkHidden(t, "an answer", w.Body.String())
		return answer{w.Code, w.Header(), w.Body.String()}
	}
	check := func(ready int, when string) {
		t.Helper()
		require.Equal(t, http.StatusOK, ask("/healthz").status, when)
		a := ask("/readyz")
		require.Equal(t, ready, a.status, when)
		if ready != http.StatusOK {
			require.NotEmpty(t, a.problem(t).Detail)
		}
	}
	check(503, "before Start")
	require.NoError(t, b.server.Start(t.Context()))
	defer b.server.Stop()
	check(200, "after Start")
	b.url = "http://" + b.server.Addr()
	require.JSONEq(t, `{"status":"ready"}`, b.get(t, "", "/readyz").body)
	require.JSONEq(t, `{"status":"ok"}`, b.get(t, "", "/healthz").body)
	b.store.fail("Ping")
	check(503, "the store does not answer")
	b.store.heal()
	check(200, "the store answers again")
	b.server.Stop()
	check(503, "after Stop")
}

func TestTokenCreate(t *testing.T) {
	t.Parallel()
	b := build(t)
	for name, c := range map[string]struct {
		p     TokenParams
		field string // "" for not found
	}{
		"no name":           {TokenParams{Role: trigger.RoleAdmin}, "name"},
		"a long name":       {TokenParams{Name: strings.Repeat("n", 101), Role: trigger.RoleAdmin}, "name"},
		"no role":           {TokenParams{Name: "x"}, "role"},
		"another role":      {TokenParams{Name: "x", Role: "root"}, "role"},
		"an admin's tenant": {TokenParams{Name: "x", Role: trigger.RoleAdmin, TenantID: "acme"}, "tenant"},
		"a viewer of all":   {TokenParams{Name: "x", Role: trigger.RoleViewer}, "tenant"},
		"an editor of all":  {TokenParams{Name: "x", Role: trigger.RoleEditor}, "tenant"},
		"a name of lines":   {TokenParams{Name: "x\ny", Role: trigger.RoleAdmin}, "name"},
		"a past end":        {TokenParams{Name: "x", Role: trigger.RoleAdmin, TTL: -1}, "ttl"},
		"no such tenant":    {TokenParams{Name: "x", Role: trigger.RoleViewer, TenantID: "nobody"}, ""},
	} {
		_, text, err := TokenCreate(t.Context(), b.mem, c.p)
		require.Error(t, err, name)
		require.Empty(t, text, name)
		if c.field == "" {
			require.ErrorIs(t, err, tracker.ErrNotFound, name)
			continue
		}
		var field *tracker.FieldError
		require.ErrorAs(t, err, &field, name)
		require.Equal(t, c.field, field.Field, name)
	}
	tokens, err := b.mem.TokenList(t.Context(), "", 100)
	require.NoError(t, err)
	require.Empty(t, tokens)

	token, text, err := TokenCreate(t.Context(), b.mem, TokenParams{Name: "x", Role: trigger.RoleViewer, TenantID: "acme", TTL: time.Hour})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, TokenPrefix))
	require.GreaterOrEqual(t, len(text), len(TokenPrefix)+43, "256 random bits")
	require.Equal(t, time.Hour, token.ExpiresAt.Sub(token.CreatedAt))
	stored, err := b.mem.TokenByHash(context.WithoutCancel(t.Context()), tokenHash(text))
	require.NoError(t, err)
	require.Equal(t, token, stored)
	require.NotContains(t, fmt.Sprintf("%+v", stored), text)
	_, again, err := TokenCreate(t.Context(), b.mem, TokenParams{Name: "x", Role: trigger.RoleViewer, TenantID: "acme"})
	require.NoError(t, err)
	require.NotEqual(t, text, again)
}
