package server

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// calls are one good call of each operation, for what tenant acme has after
// issues.opened and rows.
func calls() map[string]string {
	out := configuredReads()
	maps.Copy(out, map[string]string{
		"list-effects": "/v1/tenants/acme/effects",
		"get-effect":   "/v1/tenants/acme/effects/" + url.PathEscape(trigger.EffectID("acme/000000000001", "sub-1")),
		"get-card":     "/v1/tenants/acme/cards/" + issueCard(),
		"list-events":  "/v1/tenants/acme/events",
		"get-tenant":   "/v1/tenants/acme",
		"list-pauses":  "/v1/tenants/acme/pauses",

		"export-tenant": "/v1/tenants/acme/export",
		"list-cards":    "/v1/tenants/acme/cards?bot=" + botID,

		"explain-card":     "/v1/tenants/acme/cards/" + issueCard() + "/explain",
		"log-subscription": "/v1/tenants/acme/subscriptions/sub-1/log",
	})
	for op, c := range boardReads() {
		out[op] = c[0]
	}
	return out
}

// adminCalls are good calls of the operations that are for admins alone.
func adminCalls() map[string]string {
	return map[string]string{
		"list-tenants": "/v1/tenants", "list-all-pauses": "/v1/pauses", "list-fleet-audit": "/v1/audit", "list-audit": "/v1/tenants/acme/audit",
		"list-tokens": "/v1/tokens", "get-token": "/v1/tokens/tok-1",
	}
}

func filled(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	b.rows(t, "acme", 1)
	b.subscribe(t)
	b.tokenAs(t, TokenParams{ID: "tok-1", Name: "tok", Role: trigger.RoleViewer, TenantID: "acme"})
	b.project(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	return b
}

// operations returns what the API has, by operation id.
func (b *bundle) operations(t *testing.T) (reads, writes map[string]*huma.Operation) {
	t.Helper()
	api := humago.New(http.NewServeMux(), huma.DefaultConfig("", ""))
	b.server.api.register(api)
	reads, writes = make(map[string]*huma.Operation), make(map[string]*huma.Operation)
	for _, item := range api.OpenAPI().Paths {
		if item.Get != nil {
			reads[item.Get.OperationID] = item.Get
		}
		for _, op := range []*huma.Operation{item.Post, item.Put, item.Delete, item.Patch} {
			if op != nil {
				writes[op.OperationID] = op
			}
		}
		for _, op := range []*huma.Operation{item.Head, item.Options, item.Trace} {
			require.Nil(t, op, "the tables of these tests don't know the method")
		}
	}
	return reads, writes
}

func TestTheTablesKnowEveryOperation(t *testing.T) {
	t.Parallel()
	reads, writes := build(t).operations(t)
	want := calls()
	maps.Copy(want, adminCalls())
	want["get-bulk"] = "" // with the writes, which make one
	want["get-comment"] = ""
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(reads)))
	have := make(map[string]bool)
	for _, c := range badParameters() {
		have[c.op+" "+c.param] = true
	}
	params := 0
	for id, op := range reads {
		for _, p := range op.Parameters {
			params++
			require.True(t, have[id+" "+p.Name], "%s %s", id, p.Name)
			switch p.Name {
			case "effect":
				require.Equal(t, effectIDForm.String(), p.Schema.Pattern)
			case "state":
				require.Len(t, p.Schema.Enum, len(trigger.States()))
				for _, state := range trigger.States() {
					require.Contains(t, p.Schema.Enum, string(state))
				}
			}
		}
	}
	require.Len(t, have, params)
	require.ElementsMatch(t, slices.Collect(maps.Keys(setup(t).writes(t))), slices.Collect(maps.Keys(writes)))
	for id, op := range writes {
		if op.RequestBody != nil {
			most := int64(16 << 10)
			switch id {
			case "dry-run-draft", "create-subscription", "replace-subscription":
				most = draftMaxBytes
			case "apply-fleet", "apply-tenant":
				most = applyBodyMaxBytes
			}
			if own, ok := boardBodyMax()[id]; ok {
				most = own
			}
			require.Equal(t, most, op.MaxBodyBytes, id)
		}
		require.Equal(t, strings.HasPrefix(id, "dry-run-"), mayRead(op, op.Method), "%s: what a viewer may call", id)
	}
}

// badParameter is one parameter, and a call with a bad value in it.
type badParameter struct {
	op, param string
	path      string
	field     string
}

func badParameters() []badParameter {
	const bad = "s3cret-x'{$ne}"
	at, in := url.PathEscape(bad), url.QueryEscape(bad)
	return append(append(configuredBadParameters(at, in), boardBadParameters()...), []badParameter{
		{"list-tenants", "after", "/v1/tenants?after=" + in, "query.after"},
		{"list-tenants", "limit", "/v1/tenants?limit=" + in, "query.limit"},
		{"list-fleet-audit", "after", "/v1/audit?after=" + in, "query.after"},
		{"list-fleet-audit", "limit", "/v1/audit?limit=" + in, "query.limit"},
		{"list-tokens", "after", "/v1/tokens?after=" + in, "query.after"},
		{"list-tokens", "limit", "/v1/tokens?limit=" + in, "query.limit"},
		{"get-token", "token", "/v1/tokens/" + at, "path.token"},
		{"list-audit", "tenant", "/v1/tenants/" + at + "/audit", "path.tenant"},
		{"list-audit", "after", "/v1/tenants/acme/audit?after=" + in, "query.after"},
		{"list-audit", "limit", "/v1/tenants/acme/audit?limit=" + in, "query.limit"},
		{"get-tenant", "tenant", "/v1/tenants/" + at, "path.tenant"},
		{"list-effects", "tenant", "/v1/tenants/" + at + "/effects", "path.tenant"},
		{"list-effects", "state", "/v1/tenants/acme/effects?state=" + in, "query.state"},
		{"list-effects", "after", "/v1/tenants/acme/effects?after=" + in, "query.after"},
		{"list-effects", "limit", "/v1/tenants/acme/effects?limit=" + in, "query.limit"},
		{"list-effects", "subscription", "/v1/tenants/acme/effects?subscription=" + in, "query.subscription"},
		{"list-effects", "bot", "/v1/tenants/acme/effects?bot=" + in, "query.bot"},
		{"list-effects", "reason", "/v1/tenants/acme/effects?reason=" + in, "query.reason"},
		{"list-effects", "older_than", "/v1/tenants/acme/effects?older_than=" + in, "query.older_than"},
		{"list-effects", "newer_than", "/v1/tenants/acme/effects?newer_than=" + in, "query.newer_than"},
		{"list-all-pauses", "after", "/v1/pauses?after=" + in, "query.after"},
		{"list-all-pauses", "limit", "/v1/pauses?limit=" + in, "query.limit"},
		{"export-tenant", "tenant", "/v1/tenants/" + at + "/export", "path.tenant"},
		{"list-pauses", "tenant", "/v1/tenants/" + at + "/pauses", "path.tenant"},
		{"list-cards", "tenant", "/v1/tenants/" + at + "/cards?bot=x", "path.tenant"},
		{"list-cards", "bot", "/v1/tenants/acme/cards?bot=" + in, "query.bot"},
		{"list-cards", "after", "/v1/tenants/acme/cards?bot=x&after=" + in, "query.after"},
		{"list-cards", "limit", "/v1/tenants/acme/cards?bot=x&limit=" + in, "query.limit"},
		{"get-bulk", "tenant", "/v1/tenants/" + at + "/effects/bulk/x", "path.tenant"},
		{"get-bulk", "bulk", "/v1/tenants/acme/effects/bulk/" + at, "path.bulk"},
		{"get-effect", "tenant", "/v1/tenants/" + at + "/effects/x", "path.tenant"},
		{"get-effect", "effect", "/v1/tenants/acme/effects/" + at, "path.effect"},
		{"explain-card", "tenant", "/v1/tenants/" + at + "/cards/x/explain", "path.tenant"},
		{"explain-card", "card", "/v1/tenants/acme/cards/" + at + "/explain", "path.card"},
		{"explain-card", "subscription", "/v1/tenants/acme/cards/x/explain?subscription=" + in, "query.subscription"},
		{"explain-card", "after", "/v1/tenants/acme/cards/x/explain?after=" + in, "query.after"},
		{"log-subscription", "tenant", "/v1/tenants/" + at + "/subscriptions/x/log", "path.tenant"},
		{"log-subscription", "subscription", "/v1/tenants/acme/subscriptions/" + at + "/log", "path.subscription"},
		{"log-subscription", "after", "/v1/tenants/acme/subscriptions/x/log?after=" + in, "query.after"},
		{"log-subscription", "limit", "/v1/tenants/acme/subscriptions/x/log?limit=" + in, "query.limit"},
		{"get-card", "tenant", "/v1/tenants/" + at + "/cards/x", "path.tenant"},
		{"get-card", "card", "/v1/tenants/acme/cards/" + at, "path.card"},
		{"list-events", "tenant", "/v1/tenants/" + at + "/events", "path.tenant"},
		{"list-events", "after", "/v1/tenants/acme/events?after=" + in, "query.after"},
		{"list-events", "limit", "/v1/tenants/acme/events?limit=" + in, "query.limit"},
	}...)
}

// No error repeats what was sent: it may be a secret. (do looks for it.)
func TestBadParametersAreNotRepeated(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin := b.token(t, "")
	for _, c := range badParameters() {
		a := b.get(t, admin, c.path)
		require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s %s: %s", c.op, c.param, a.body)
		p := a.problem(t)
		fields := make([]string, 0, len(p.Errors))
		for _, e := range p.Errors {
			fields = append(fields, e.Field)
			require.NotEmpty(t, e.Message)
		}
		require.Contains(t, fields, c.field, "%s %s", c.op, c.param)
	}
	for _, query := range []string{
		"limit=0", "limit=101", "limit=-1", "limit=1e3", "limit=s3cret", "state=parked", "state=PENDING", "reason=bored",
		"older_than=1", "older_than=-1h", "older_than=0s", "newer_than=7d", "bot=a/b",
	} {
		a := b.get(t, admin, "/v1/tenants/acme/effects?"+query)
		require.Equal(t, http.StatusUnprocessableEntity, a.status, query)
		name, _, _ := strings.Cut(query, "=")
		require.Equal(t, "query."+name, a.problem(t).Errors[0].Field)
	}
	// What the API does not know is refused, not passed over.
	require.Equal(t, http.StatusUnprocessableEntity, b.get(t, admin, "/v1/tenants/acme/effects?s3cret=s3cret").status)
}
