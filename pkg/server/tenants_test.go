package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestTenants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	made := b.keyed(t, admin, "/v1/tenants", `{"id":"new","name":"New"}`, "key-1")
	require.Equal(t, 201, made.status, made.body)
	require.Equal(t, `"1"`, made.header.Get("ETag"))
	require.Equal(t, made.body, b.keyed(t, admin, "/v1/tenants", `{"id":"new","name":"New"}`, "key-1").body)
	require.Equal(t, 409, b.keyed(t, admin, "/v1/tenants", `{"id":"new","name":"New"}`, "key-2").status)
	require.Equal(t, 409, b.post(t, admin, "/v1/tenants", `{"id":"acme","name":"New"}`).status)

	put := func(match, body string) answer {
		return b.do(t, b.requestAs(t, http.MethodPut, "/v1/tenants/new", admin, body, match))
	}
	require.Equal(t, 428, put("", `{"name":"Newer"}`).status)
	require.Equal(t, 412, put(`"7"`, `{"name":"Newer"}`).status)
	a := put(b.get(t, admin, "/v1/tenants/new").header.Get("ETag"), `{"name":"Newer"}`)
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `"Newer"`)
	require.Equal(t, `"2"`, a.header.Get("ETag"))
}

// All tenants are listed, those without a log too, each once over the pages, and
// those that are being deleted as such.
func TestTenantsAreListedWithoutALog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	for _, id := range []string{"a-new", "b-gone", "zz-new"} {
		require.Equal(t, 201, b.post(t, admin, "/v1/tenants", `{"id":"`+id+`","name":"x"}`).status)
	}
	for _, id := range []string{"a-head-alone", "acme"} {
		_, err := b.mem.HeadLift(t.Context(), id)
		require.NoError(t, err)
	}
	require.Equal(t, 202, b.do(t, b.requestAs(t, http.MethodDelete, "/v1/tenants/b-gone", admin, "", "")).status)
	for _, limit := range []string{"1", "2", "3", "100"} {
		got := map[string]string{}
		for after := ""; ; {
			var page Page[trigger.TenantStatus]
			a := b.get(t, admin, "/v1/tenants?limit="+limit+"&after="+after)
			require.NoError(t, json.Unmarshal([]byte(a.body), &page), a.body)
			for _, s := range page.Items {
				require.NotContains(t, got, s.TenantID)
				got[s.TenantID] = s.Status
			}
			if after = page.Next; after == "" {
				break
			}
		}
		for id, is := range map[string]string{"a-new": "active", "b-gone": "deleting", "zz-new": "active", "acme": "active", "a-head-alone": ""} {
			require.Contains(t, got, id, limit)
			require.Equal(t, is, got[id], id)
		}
	}
}

// Deleting a tenant with rows that somebody may want has to be said; from then
// on it answers nothing else, and when it is gone its id is free.
// An event that is not matched yet owes effects, too.
func TestDeleteTenantWithAnUnmatchedEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	b.subscribe(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	remove := func(query string) answer {
		return b.do(t, b.requestAs(t, http.MethodDelete, "/v1/tenants/acme"+query, admin, "", ""))
	}
	a := remove("")
	require.Equal(t, 409, a.status)
	require.Contains(t, a.problem(t).Detail, "1 events that are not matched yet")
	require.Equal(t, 202, remove("?discard=true").status)
}

func TestDeleteTenant(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin, editor := b.token(t, ""), b.role(t, trigger.RoleEditor, "acme", "e")
	b.subscribe(t)
	b.rowIn(t, 1, trigger.StateFailed)
	b.rowIn(t, 2, trigger.StateHeld)
	b.rowIn(t, 3, trigger.StateDone)
	remove := func(query, match string) answer {
		return b.do(t, b.requestAs(t, http.MethodDelete, "/v1/tenants/acme"+query, admin, "", match))
	}
	a := remove("", "")
	require.Equal(t, 409, a.status)
	require.Contains(t, a.problem(t).Detail, "1 held, 1 failed")
	require.Equal(t, 412, remove("?discard=true", `"9"`).status)
	require.Equal(t, 200, b.get(t, editor, "/v1/tenants/acme/effects").status, "nothing has happened")

	a = remove("?discard=true", `"1"`)
	require.Equal(t, 202, a.status, a.body)
	require.Equal(t, 202, remove("", "").status, "again is no error")
	require.Contains(t, b.get(t, admin, "/v1/tenants/acme").body, `"status":"deleting"`)
	require.Equal(t, 409, b.get(t, admin, "/v1/tenants/acme/effects").status)
	require.Equal(t, 422, b.post(t, admin, "/v1/tokens", `{"name":"x","role":"viewer","tenant_id":"acme"}`).status)
	require.Equal(t, 409, b.post(t, admin, "/v1/tenants", `{"id":"acme","name":"again"}`).status)
	require.Equal(t, 401, b.get(t, editor, "/v1/tenants/acme/effects").status, "its tokens are revoked")
	require.Equal(t, 404, b.deliver(t, delivery{body: payload(t, "issues.opened")}).status, "its hooks are gone")

	reaper := &trigger.Reaper{Store: b.mem, Logger: zerolog.Nop(), After: 1, Quiet: 1}
	require.Eventually(t, func() bool {
		require.NoError(t, reaper.Reap(t.Context()))
		_, err := b.mem.TenantGet(t.Context(), "acme")
		return errors.Is(err, tracker.ErrNotFound)
	}, wait, 2*time.Millisecond)
	require.Equal(t, 404, b.get(t, admin, "/v1/tenants/acme").status)
	require.Equal(t, 201, b.post(t, admin, "/v1/tenants", `{"id":"acme","name":"again"}`).status)
	a = b.get(t, admin, "/v1/tenants/acme/effects")
	require.JSONEq(t, `{"items":[]}`, a.body)

	t.Log("who deleted it is still told")
	var page Page[AuditEntry]
	require.NoError(t, json.Unmarshal([]byte(b.get(t, admin, "/v1/audit").body), &page))
	found := 0
	for _, e := range page.Items {
		if e.Operation == "delete-tenant" && e.Path == "/v1/tenants/acme" && e.Outcome == trigger.AuditDone {
			found++
		}
	}
	require.Equal(t, 2, found)
}

// requestAs is a call with a condition.
func (b *bundle) requestAs(t *testing.T, method, path, token, body, match string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if match != "" {
		req.Header.Set("If-Match", match)
	}
	return req
}
