package server

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func (f *faultStore) AuditBegin(ctx context.Context, e trigger.AuditEntry) error {
	return f.call(ctx, "AuditBegin", func() error { return f.Store.AuditBegin(ctx, e) })
}

func (f *faultStore) AuditComplete(ctx context.Context, tenantID, id string, end trigger.AuditEnd) error {
	return f.call(ctx, "AuditComplete", func() error { return f.Store.AuditComplete(ctx, tenantID, id, end) })
}

// entries returns the audit log of a tenant, or of none, newest first, once the
// calls before are through with it: an answer comes before the last entry.
func (b *bundle) entries(t *testing.T, tenant string, n int) (out []trigger.AuditEntry) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		out, err = b.mem.AuditList(t.Context(), tenant, "", 1000)
		require.NoError(t, err)
		return len(out) == n && (n == 0 || out[0].Outcome != trigger.AuditBegun)
	}, wait, tick)
	return out
}

// scope is the tenant under which a call is entered.
func (c call) scope() string {
	if rest, ok := strings.CutPrefix(c.path, "/v1/tenants/"); ok {
		tenant, _, _ := strings.Cut(rest, "/")
		return tenant
	}
	return ""
}

// Each operation that changes something is entered, with what it changed, and
// none that does not.
func TestAuditOfEachWrite(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	_, writes := b.operations(t)
	for op, c := range b.writes(t) {
		scope := c.scope()
		if ofAdmins(op) {
			scope = "" // also of a tenant as a whole
		}
		before, err := b.mem.AuditList(t.Context(), scope, "", 1000)
		require.NoError(t, err)
		a := b.write(t, admin, c)
		require.Equal(t, c.status, a.status, "%s: %s", op, a.body)
		if mayRead(writes[op], c.method) {
			b.entries(t, scope, len(before))
			continue
		}
		e := b.entries(t, scope, len(before)+1)[0]
		require.Equal(t, op, e.Operation)
		require.Equal(t, c.method, e.Method)
		require.Equal(t, strings.Split(c.path, "?")[0], e.Path)
		require.Equal(t, trigger.AuditDone, e.Outcome)
		require.Equal(t, c.status, e.Status)
		require.Equal(t, "test", e.TokenName)
		require.NotEmpty(t, e.TokenID)
		require.Equal(t, trigger.RoleAdmin, e.Role)
		require.Equal(t, "127.0.0.1", e.Address)
		require.False(t, e.EndedAt.Before(e.At))
		if !strings.HasPrefix(op, "resume-") || op == "resume-subscription" { // nothing was paused, maybe
			require.NotEmpty(t, e.Changes, op)
			require.NotEmpty(t, e.Changes[0].ID, op)
			require.NotEmpty(t, e.Changes[0].Kind, op)
			shown := cmp.Or(e.Changes[0].After, e.Changes[0].Before) // of a deletion
			require.True(t, json.Valid([]byte(shown)), op)
		}
		whole, err := json.Marshal(e)
		require.NoError(t, err)
		b.checkHidden(t, "the audit log", string(whole))
	}
}

// What can't be entered is not done.
func TestAuditRefusesWhatItCannotEnter(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	calls := b.writes(t)
	before := b.state(t)
	b.store.fail("AuditBegin")
	for op, c := range calls {
		a := b.write(t, admin, c)
		if strings.HasPrefix(op, "dry-run-") {
			require.Equal(t, 200, a.status, op)
			continue
		}
		require.Equal(t, http.StatusServiceUnavailable, a.status, op)
		require.Equal(t, retryAfter, a.header.Get("Retry-After"))
	}
	require.Equal(t, before, b.state(t))
}

// What ends badly is entered too, and what can't be completed stays begun.
func TestAuditOutcomes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	n := 0
	one := func(status int, body string) trigger.AuditEntry {
		n++
		a := b.write(t, editor, call{method: http.MethodPut, path: "/v1/tenants/acme/pause", body: body})
		require.Equal(t, status, a.status, a.body)
		return b.entries(t, "acme", n)[0]
	}
	require.Equal(t, trigger.AuditRefused, one(422, `{"note":7}`).Outcome)
	b.store.fail("PauseSet")
	require.Equal(t, trigger.AuditFailed, one(503, `{}`).Outcome)
	b.store.heal()
	done := one(200, `{}`)
	require.Equal(t, trigger.AuditDone, done.Outcome)
	require.Equal(t, trigger.RoleEditor, done.Role)
	b.store.fail("AuditComplete")
	a := b.write(t, editor, call{method: http.MethodPut, path: "/v1/tenants/acme/pause", body: `{}`})
	require.Equal(t, 200, a.status, "it is done all the same")
	require.Eventually(t, func() bool { return strings.Contains(b.logs.String(), "how the call ended could not be entered") }, wait, tick)
	all, err := b.mem.AuditList(t.Context(), "acme", "", 10)
	require.NoError(t, err)
	require.Equal(t, trigger.AuditBegun, all[0].Outcome)
	b.store.heal()

	t.Log("a call that is not let in is no change")
	require.Equal(t, 403, b.write(t, b.token(t, "acme"), call{method: http.MethodPut, path: "/v1/tenants/acme/pause"}).status)
	all, err = b.mem.AuditList(t.Context(), "acme", "", 10)
	require.NoError(t, err)
	require.Len(t, all, n+1)
}

func TestAuditIsBounded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", auditMaxBytes/2)
	end := auditEnd(200, []change{{"card", "c1", big, nil}, {"card", "c2", big, big}, {"card", "c3", nil, "small"}})
	require.True(t, end.Truncated)
	require.Len(t, end.Changes, 3)
	require.NotEmpty(t, end.Changes[0].Before)
	require.Empty(t, end.Changes[1].Before+end.Changes[1].After)
	require.JSONEq(t, `"small"`, end.Changes[2].After)
	many := auditEnd(200, make([]change, auditMaxChanges+1))
	require.True(t, many.Truncated)
	require.Len(t, many.Changes, auditMaxChanges)
	require.False(t, auditEnd(200, make([]change, auditMaxChanges)).Truncated)
}

// Admins read it, a page at a time; nobody else does.
func TestAuditPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin, editor := b.token(t, ""), b.role(t, trigger.RoleEditor, "acme", "e")
	for range 5 {
		require.Equal(t, 200, b.write(t, editor, call{method: http.MethodPut, path: "/v1/tenants/acme/pause", body: `{"note":"n"}`}).status)
		require.Equal(t, 200, b.write(t, admin, call{method: http.MethodPut, path: "/v1/pause"}).status)
	}
	b.entries(t, "acme", 5)
	b.entries(t, "", 5)
	for _, path := range []string{"/v1/tenants/acme/audit", "/v1/audit"} {
		var seen []AuditEntry
		for after := ""; ; {
			a := b.get(t, admin, path+"?limit=2&after="+after)
			require.Equal(t, 200, a.status, a.body)
			var page Page[AuditEntry]
			require.NoError(t, json.Unmarshal([]byte(a.body), &page))
			seen = append(seen, page.Items...)
			if after = page.Next; after == "" {
				break
			}
		}
		require.Len(t, seen, 5)
		for i := range seen[1:] {
			require.False(t, seen[i].At.Before(seen[i+1].At), "newest first")
		}
		require.Equal(t, trigger.AuditDone, seen[0].Outcome)
		require.Contains(t, string(seen[0].Changes[0].After), `"scope"`)
	}
	require.Equal(t, 403, b.get(t, editor, "/v1/tenants/acme/audit").status)
	require.Equal(t, 404, b.get(t, editor, "/v1/audit").status)
	require.Equal(t, 404, b.get(t, editor, "/v1/tenants/other/audit").status)
	mine := newCursor("audit/acme", "x")
	require.Equal(t, 422, b.get(t, admin, "/v1/tenants/other/audit?after="+mine).status, "another list's cursor")
	require.Contains(t, b.get(t, admin, "/v1/tenants/other/audit").body, `"items":[]`)
}

// A command that works on the database says who it is, too.
func TestAuditOfACommand(t *testing.T) {
	t.Parallel()
	b := build(t)
	api := NewAPI(APIParams{Store: b.store, Sealer: b.server.p.Sealer, As: &trigger.Token{Name: "cli", Role: trigger.RoleAdmin}})
	w := httptest.NewRecorder()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "/v1/tenants/acme/pause", http.NoBody)
	require.NoError(t, err)
	api.ServeHTTP(w, req)
	require.Equal(t, 200, w.Code, w.Body)
	e := b.entries(t, "acme", 1)[0]
	require.Equal(t, "cli", e.TokenName)
	require.Empty(t, e.TokenID)
	require.Equal(t, "pause-tenant", e.Operation)
}

// What a refused call names is entered, but no more of it than any good path
// has: an entry is bounded.
func TestAuditOfALongPath(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	long := "/v1/tenants/acme/cards/" + strings.Repeat("x", 20_000)
	require.Equal(t, 422, b.write(t, editor, call{method: http.MethodDelete, path: long}).status)
	e := b.entries(t, "acme", 1)[0]
	require.Equal(t, trigger.AuditRefused, e.Outcome)
	require.Len(t, e.Path, auditMaxPath)
	require.True(t, e.Truncated)
	require.True(t, strings.HasPrefix(long, e.Path))
}
