package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (f *faultStore) EffectDecide(ctx context.Context, d trigger.Decision) (*trigger.Effect, error) {
	return ask(ctx, f, "EffectDecide", func() (*trigger.Effect, error) { return f.Store.EffectDecide(ctx, d) })
}

func (f *faultStore) PauseList(ctx context.Context) ([]trigger.Pause, error) {
	return ask(ctx, f, "PauseList", func() ([]trigger.Pause, error) { return f.Store.PauseList(ctx) })
}

func (f *faultStore) PauseSet(ctx context.Context, p trigger.Pause) error {
	return f.call(ctx, "PauseSet", func() error { return f.Store.PauseSet(ctx, p) })
}

func (f *faultStore) PauseClear(ctx context.Context, tenantID, bot string) (bool, error) {
	return ask(ctx, f, "PauseClear", func() (bool, error) { return f.Store.PauseClear(ctx, tenantID, bot) })
}

func (f *faultStore) BulkCreate(ctx context.Context, b *trigger.Bulk) error {
	return f.call(ctx, "BulkCreate", func() error {
		err := f.Store.BulkCreate(ctx, b)
		if err == nil {
			f.bulks.Add(1)
		}
		return err
	})
}

func (f *faultStore) BulkGet(ctx context.Context, tenantID, id string) (*trigger.Bulk, error) {
	return ask(ctx, f, "BulkGet", func() (*trigger.Bulk, error) { return f.Store.BulkGet(ctx, tenantID, id) })
}

func (f *faultStore) BulkStop(ctx context.Context, tenantID, id string) error {
	return f.call(ctx, "BulkStop", func() error { return f.Store.BulkStop(ctx, tenantID, id) })
}

func (f *faultStore) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	return ask(ctx, f, "SubscriptionGet", func() (*trigger.Subscription, error) { return f.Store.SubscriptionGet(ctx, tenantID, id) })
}

func (f *faultStore) CardList(ctx context.Context, p tracker.CardListParams) (tracker.CardPage, error) {
	return ask(ctx, f, "CardList", func() (tracker.CardPage, error) { return f.Store.CardList(ctx, p) })
}

// rowIn gives acme a row in a state.
func (b *bundle) rowIn(t *testing.T, seq int64, state trigger.State, with ...func(*trigger.Effect)) string {
	t.Helper()
	at := b.mem.Now().Add(-time.Hour)
	row := trigger.Effect{
		ID: trigger.EffectID(trigger.EventID("acme", seq), "sub-1"), TenantID: "acme", Kind: trigger.KindLaunch, Lane: trigger.LaneBot(botID), State: state,
		NotBefore: at, SubscriptionID: "sub-1", BotID: botID, EventSeq: seq, CardID: issueCard(), CreatedAt: at, UpdatedAt: at, Rendered: "s3cret",
		Event: trigger.Event{TenantID: "acme", Seq: seq, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{Kind: tracker.KindCreated, EID: fmt.Sprintf("board:%d", seq)}},
	}
	switch state {
	case trigger.StateFailed:
		row.Reason, row.Attempts, row.Errors = trigger.ReasonExhausted, 5, []trigger.AttemptError{{At: at, Attempt: 5, Message: "status 503"}}
	case trigger.StateDone:
		row.Outcome, row.RunID, row.DoneAt = trigger.OutcomeLaunched, "run-1", at
	case trigger.StateReconcile:
		row.DeliveryStartedAt, row.ClaimID, row.Replay = at, "claim-1", trigger.ReplayUnsafe
	}
	for _, f := range with {
		f(&row)
	}
	_, err := b.mem.EffectMaterialize(t.Context(), "acme", []trigger.Effect{row})
	require.NoError(t, err)
	return row.ID
}

// call is a call that writes.
type call struct {
	method, path, body string
	// status of success.
	status int
	// touches is the row that it is about, if any.
	touches string
	// store is what it asks the store for that can fail.
	store string
}

// writes are one good call of each operation that writes, by operation id; the
// fleet's with an admin's token alone.
func (b *bundle) writes(t *testing.T) map[string]call {
	t.Helper()
	if _, err := b.mem.SubscriptionGet(t.Context(), "acme", "sub-1"); err != nil {
		b.subscribe(t)
	}
	bulk := func() *trigger.Bulk {
		got, err := b.server.api.Dead.BulkPrepare(t.Context(), trigger.BulkParams{
			TenantID: "acme", Action: trigger.ActionDiscard, Filter: trigger.EffectFilter{State: trigger.StateHeld, BotID: "nobody"}, By: "test",
		})
		require.NoError(t, err)
		return got
	}
	out := map[string]call{
		"apply-fleet":          {http.MethodPost, "/v1/apply", `{"file":"tenants: [{id: applied}]"}`, 200, "", "TenantGet"},
		"apply-tenant":         {http.MethodPost, "/v1/tenants/acme/apply", `{"file":"tenants: [{id: acme, boards: [{name: applied, columns: [{id: a}]}]}]"}`, 200, "", "TenantGet"},
		"prepare-bulk":         {http.MethodPost, "/v1/tenants/acme/effects/bulk", `{"action":"replay","filter":{"state":"failed"}}`, 201, "", "BulkCreate"},
		"pause-fleet":          {http.MethodPut, "/v1/pause", `{"note":"n"}`, 200, "", "PauseSet"},
		"resume-fleet":         {http.MethodDelete, "/v1/pause", "", 204, "", "PauseClear"},
		"pause-tenant":         {http.MethodPut, "/v1/tenants/acme/pause", `{}`, 200, "", "PauseSet"},
		"resume-tenant":        {http.MethodDelete, "/v1/tenants/acme/pause", "", 204, "", "PauseClear"},
		"pause-bot":            {http.MethodPut, "/v1/tenants/acme/bots/" + botID + "/pause", "", 200, "", "PauseSet"},
		"resume-bot":           {http.MethodDelete, "/v1/tenants/acme/bots/" + botID + "/pause", "", 204, "", "PauseClear"},
		"pause-subscription":   {http.MethodPost, "/v1/tenants/acme/subscriptions/sub-1/pause", `{"note":"n"}`, 200, "", "SubscriptionGet"},
		"dry-run-draft":        {http.MethodPost, "/v1/tenants/acme/subscriptions/dry-run?last=5", goodDraft, 200, "", "HeadGet"},
		"dry-run-subscription": {http.MethodPost, "/v1/tenants/acme/subscriptions/sub-1/dry-run", "", 200, "", "SubscriptionGet"},
		"resume-subscription":  {http.MethodPost, "/v1/tenants/acme/subscriptions/sub-1/resume", "", 200, "", "SubscriptionGet"},
	}
	for i, c := range []struct {
		op, what string
		state    trigger.State
		body     string
	}{
		{"replay-effect", "replay", trigger.StateFailed, `{"note":"n"}`},
		{"rerun-effect", "rerun", trigger.StateDone, ``},
		{"discard-effect", "discard", trigger.StateFailed, `{}`},
		{"release-effect", "release", trigger.StateHeld, ``},
		{"resolve-effect", "resolve", trigger.StateReconcile, `{"as":"confirmed","run_id":"run-9"}`},
	} {
		id := b.rowIn(t, int64(101+i), c.state, func(e *trigger.Effect) { e.SubscriptionID = "sub-9" }) // no other call reaches it
		out[c.op] = call{http.MethodPost, "/v1/tenants/acme/effects/" + url.PathEscape(id) + "/" + c.what, c.body, 200, id, "EffectDecide"}
	}
	revoked := uuid.NewString()
	b.tokenAs(t, TokenParams{ID: revoked, Name: "r", Role: trigger.RoleViewer, TenantID: "acme"})
	out["create-token"] = call{http.MethodPost, "/v1/tokens", `{"name":"n","role":"viewer","tenant_id":"acme"}`, 201, "", "TokenCreate"}
	out["revoke-token"] = call{http.MethodPost, "/v1/tokens/" + revoked + "/revoke", "", 200, "", "TokenRevoke"}
	maps.Copy(out, b.boardWrites(t))
	maps.Copy(out, b.configuredWrites(t))
	unique := strings.ToLower(uuid.NewString()[24:])
	for _, id := range []string{"gone-", "named-"} {
		require.NoError(t, b.mem.TenantSave(t.Context(), &trigger.Tenant{ID: id + unique, Name: "x", Revision: 1}))
	}
	out["create-tenant"] = call{http.MethodPost, "/v1/tenants", `{"id":"made-` + unique + `","name":"n"}`, 201, "", "TenantSave"}
	out["replace-tenant"] = call{http.MethodPut, "/v1/tenants/named-" + unique, `{"name":"n"}`, 200, "", "TenantSave"}
	out["delete-tenant"] = call{http.MethodDelete, "/v1/tenants/gone-" + unique, "", 202, "", "TenantSave"}
	run, stop := bulk(), bulk()
	out["run-bulk"] = call{http.MethodPost, "/v1/tenants/acme/effects/bulk/" + run.ID + "/run", `{"digest":"` + run.Digest + `"}`, 200, "", "BulkGet"}
	out["stop-bulk"] = call{http.MethodPost, "/v1/tenants/acme/effects/bulk/" + stop.ID + "/stop", "", 200, "", "BulkStop"}
	return out
}

func (b *bundle) write(t *testing.T, token string, c call) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), c.method, b.url+c.path, strings.NewReader(c.body))
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if c.method == http.MethodPut {
		req.Header.Set("If-Match", "*")
	}
	if c.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.method == http.MethodPut {
		req.Header.Set("If-Match", "*")
	}
	return b.do(t, req)
}

func (b *bundle) post(t *testing.T, token, path, body string) answer {
	t.Helper()
	return b.write(t, token, call{method: http.MethodPost, path: path, body: body})
}

// role makes a token of a role.
func (b *bundle) role(t *testing.T, role trigger.Role, tenant, name string) string {
	t.Helper()
	return b.tokenAs(t, TokenParams{Name: name, Role: role, TenantID: tenant})
}

func (b *bundle) tokenAs(t *testing.T, p TokenParams) string {
	t.Helper()
	token, text, err := TokenCreate(t.Context(), b.mem, p)
	require.NoError(t, err)
	b.hidden = append(b.hidden, token.Hash, text)
	return text
}

func (f *faultStore) TokenCreate(ctx context.Context, token *trigger.Token) error {
	return f.call(ctx, "TokenCreate", func() error { return f.Store.TokenCreate(ctx, token) })
}

func (f *faultStore) TokenRevoke(ctx context.Context, id string, at time.Time) error {
	return f.call(ctx, "TokenRevoke", func() error { return f.Store.TokenRevoke(ctx, id, at) })
}

// ofAdmins reports whether an operation that writes is for admins alone.
func ofAdmins(op string) bool {
	return strings.HasSuffix(op, "-fleet") || strings.HasSuffix(op, "-token") || slices.Contains([]string{"create-tenant", "replace-tenant", "delete-tenant"}, op)
}

func (f *faultStore) TenantSave(ctx context.Context, tenant *trigger.Tenant) error {
	return f.call(ctx, "TenantSave", func() error { return f.Store.TenantSave(ctx, tenant) })
}

// state is all that writes could change.
func (b *bundle) state(t *testing.T) (s struct {
	Rows   []trigger.Effect
	Subs   []trigger.Subscription
	Pauses []trigger.Pause
	Lanes  []trigger.Lane
},
) {
	t.Helper()
	ctx := t.Context()
	var err error
	s.Rows, err = b.mem.EffectList(ctx, trigger.EffectListParams{TenantID: "acme", Limit: 1000})
	require.NoError(t, err)
	s.Subs, err = b.mem.SubscriptionList(ctx, "acme")
	require.NoError(t, err)
	s.Pauses, err = b.mem.PauseList(ctx)
	require.NoError(t, err)
	s.Lanes, err = b.mem.LanesDue(ctx, b.mem.Now().Add(time.Hour), 100)
	require.NoError(t, err)
	return s
}

// Who may do what: a viewer reads, an editor acts within the tenant, an admin
// everywhere; another tenant is what does not exist.
func TestRolesOfWrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	calls := b.writes(t)
	viewer, editor := b.role(t, trigger.RoleViewer, "acme", "v"), b.role(t, trigger.RoleEditor, "acme", "e")
	other, odd := b.role(t, trigger.RoleEditor, "other", "o"), b.role(t, trigger.RoleViewer, "acme", "odd")
	stored, err := b.mem.TokenByHash(t.Context(), tokenHash(odd))
	require.NoError(t, err)
	stored.ID, stored.Hash, stored.Role = "odd", tokenHash(TokenPrefix+"odd"), "bystander"
	require.NoError(t, b.mem.TokenCreate(t.Context(), stored))
	admin := b.token(t, "")
	before := b.state(t)
	for op, c := range calls {
		fleet := ofAdmins(op)
		for name, token := range map[string]string{"viewer": viewer, "a role of a newer version": TokenPrefix + "odd"} {
			a := b.write(t, token, c)
			switch {
			case strings.HasPrefix(op, "dry-run-"):
				require.Equal(t, 200, a.status, "%s, %s: it writes nothing", op, name)
			case fleet:
				require.Equal(t, 404, a.status, "%s, %s", op, name)
			default:
				require.Equal(t, 403, a.status, "%s, %s: %s", op, name, a.body)
				require.Contains(t, a.problem(t).Detail, "editor")
			}
		}
		a := b.write(t, other, c)
		require.Equal(t, 404, a.status, "%s: another tenant's editor", op)
		require.Equal(t, notFound, a.problem(t).Detail)
		a = b.write(t, "", c)
		require.Equal(t, 401, a.status, op)
		if fleet {
			require.Equal(t, 404, b.write(t, editor, c).status, op)
		}
	}
	require.Equal(t, before, b.state(t), "nothing was changed")
	for op, c := range calls {
		token := editor
		if ofAdmins(op) {
			token = admin
		}
		a := b.write(t, token, c)
		require.Equal(t, c.status, a.status, "%s: %s", op, a.body)
	}
	// An admin acts in every tenant.
	b = setup(t)
	admin = b.token(t, "")
	for op, c := range b.writes(t) {
		a := b.write(t, admin, c)
		require.Equal(t, c.status, a.status, "%s: %s", op, a.body)
	}
	// An editor's own tenant's path does not reach another tenant's row.
	id := b.rowIn(t, 200, trigger.StateFailed)
	other = b.role(t, trigger.RoleEditor, "other", "o")
	a := b.post(t, other, "/v1/tenants/other/effects/"+url.PathEscape(id)+"/replay", "")
	require.Equal(t, 404, a.status)
}

func TestWritesWhenTheStoreFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.token(t, "")
	for op, c := range b.writes(t) {
		for _, failing := range []string{c.store, "TokenByHash"} {
			b.store.fail(failing)
			a := b.write(t, admin, c)
			require.Equal(t, 503, a.status, "%s, %s: %s", op, failing, a.body)
			require.Equal(t, retryAfter, a.header.Get("Retry-After"), op)
			a.problem(t)
			b.store.heal()
		}
		require.Equal(t, c.status, b.write(t, admin, c).status, op)
	}
}

// What is sent is refused at the door, by field.
func TestBodiesOfWrites(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	calls := b.writes(t)
	before := b.state(t)
	started := before.Rows[4].DeliveryStartedAt.Format(time.RFC3339Nano)
	for _, c := range []struct {
		op, body string
		status   int
		field    string
	}{
		{"replay-effect", `{"note":"two\nlines"}`, 422, "body.note"},
		{"replay-effect", `{"note":"` + strings.Repeat("n", 1001) + `"}`, 422, "body.note"},
		{"replay-effect", `{"note":"n","force":true}`, 422, "body"},
		{"replay-effect", `{"note":7}`, 422, "body.note"},
		{"replay-effect", `[]`, 422, "body"},
		{"replay-effect", `{"note":"s3cret`, 400, "body"},
		{"replay-effect", `{"note":"` + strings.Repeat("n", 17<<10) + `"}`, 413, ""},
		{"discard-effect", `{"note":"\u0000"}`, 422, "body.note"},
		{"release-effect", `{"note":"\u001b[2J"}`, 422, "body.note"},
		{"rerun-effect", `{"run_id":"x"}`, 422, "body"},
		{"resolve-effect", ``, 400, ""},
		{"resolve-effect", `{}`, 422, "body"},
		{"resolve-effect", `{"as":"forced"}`, 422, "body.as"},
		{"resolve-effect", `{"as":"confirmed","confirm":true}`, 422, "body.confirm"},
		{"resolve-effect", `{"as":"confirmed","delivery_started_at":"` + started + `"}`, 422, "body.delivery_started_at"},
		{"resolve-effect", `{"as":"confirmed","run_id":"a\u0007"}`, 422, "body.run_id"},
		{"resolve-effect", `{"as":"send_again","delivery_started_at":"` + started + `"}`, 422, "body.confirm"},
		{"resolve-effect", `{"as":"send_again","delivery_started_at":"` + started + `","confirm":false}`, 422, "body.confirm"},
		{"resolve-effect", `{"as":"send_again","confirm":true}`, 422, "body.delivery_started_at"},
		{"resolve-effect", `{"as":"send_again","confirm":true,"delivery_started_at":"noon"}`, 422, "body.delivery_started_at"},
		{"resolve-effect", `{"as":"send_again","confirm":true,"delivery_started_at":"` + started + `","run_id":"r"}`, 422, "body.run_id"},
		{"prepare-bulk", ``, 400, ""},
		{"prepare-bulk", `{"action":"replay"}`, 422, "body"},
		{"prepare-bulk", `{"action":"confirm","filter":{"state":"reconcile"}}`, 422, "body.action"},
		{"prepare-bulk", `{"action":"replay","filter":{}}`, 422, "body.filter"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"pending"}}`, 422, "body.filter.state"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"done"}}`, 422, "body.filter.state"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed","older_than":"soon"}}`, 422, "body.filter.older_than"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed","newer_than":"-1h"}}`, 422, "body.filter.newer_than"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed","bot":"a b"}}`, 422, "body.filter.bot"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed","reason":"bored"}}`, 422, "body.filter.reason"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed","tenant":"other"}}`, 422, "body.filter"},
		{"prepare-bulk", `{"action":"replay","filter":{"state":"failed"},"note":"\t"}`, 422, "body.note"},
		{"dry-run-draft", ``, 400, ""},
		{"dry-run-draft", `"s3cret`, 400, "body"},
		{"dry-run-draft", `"s3cret"`, 422, "body.subscription"},
		{"dry-run-draft", `{}`, 422, "body.name"},
		{"dry-run-draft", `{"name":"x","bot_id":"b"}`, 422, "body.on, if"},
		{"dry-run-draft", `{"name":7}`, 422, "body.name"},
		{"dry-run-draft", `{"name":"x","on":{"kinds":"s3cret"}}`, 422, "body.on.kinds"},
		{"dry-run-draft", `{"name":"x","bot_id":"b","on":{"kinds":["s3cret"]}}`, 422, "body.on.kinds[0]"},
		{"dry-run-draft", `{"name":"x","whenever":"s3cret"}`, 422, "body.whenever"},
		{"dry-run-draft", `{"s3cret'":1}`, 422, "body.subscription"},
		{"dry-run-draft", `{"tenant_id":"other","name":"x","bot_id":"b","if":{"labels_all":["x"]}}`, 422, "body.tenant_id"},
		{"dry-run-draft", `{"requires":["s3cret"],"name":"x","bot_id":"b","if":{"labels_all":["x"]}}`, 422, "body.requires"},
		{"dry-run-draft", `{"name":"` + strings.Repeat("n", draftMaxBytes) + `"}`, 413, ""},
		{"run-bulk", `{}`, 422, "body"},
		{"run-bulk", `{"digest":"` + strings.Repeat("0", 65) + `"}`, 422, "body.digest"},
		{"run-bulk", `{"digest":"` + strings.Repeat("0", 64) + `"}`, 409, ""},
		{"pause-tenant", `{"note":"\r"}`, 422, "body.note"},
		{"pause-bot", `{"until":"noon"}`, 422, "body"},
		{"pause-subscription", `{"note":"\u009b"}`, 422, "body.note"},
	} {
		w := calls[c.op]
		w.body = c.body
		a := b.write(t, editor, w)
		require.Equal(t, c.status, a.status, "%s %.80s: %s", c.op, c.body, a.body)
		p := a.problem(t)
		if c.field == "" {
			require.NotEmpty(t, p.Detail)
			continue
		}
		require.NotEmpty(t, p.Errors, "%s %.80s: %s", c.op, c.body, a.body)
		require.True(t, strings.HasPrefix(p.Errors[0].Field, c.field), "%s %.80s: %s", c.op, c.body, a.body)
	}
	require.Equal(t, before, b.state(t))
}

// A caller who forgets the type of the body, as curl's -d does, is told which.
func TestTypeOfABody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	for _, contentType := range []string{"application/x-www-form-urlencoded", "text/plain", "s3cret"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, b.url+"/v1/tenants/acme/pause", strings.NewReader(`{}`))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+editor)
		req.Header.Set("Content-Type", contentType)
		a := b.do(t, req)
		require.Equal(t, http.StatusUnsupportedMediaType, a.status, a.body)
		require.Contains(t, a.problem(t).Detail, "application/json")
		require.NotContains(t, a.body, contentType)
	}
}

// An admin who misspells a tenant does not learn that nothing failed there.
func TestATenantThatIsNot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.role(t, trigger.RoleAdmin, "", "a")
	for _, path := range []string{"", "/effects", "/effects?state=failed", "/events", "/pauses"} {
		require.Equal(t, http.StatusNotFound, b.get(t, admin, "/v1/tenants/nobody"+path).status, path)
		require.Equal(t, http.StatusOK, b.get(t, admin, "/v1/tenants/acme"+path).status, path)
	}
	body := `{"action":"replay","filter":{"state":"failed"}}`
	require.Equal(t, http.StatusNotFound, b.post(t, admin, "/v1/tenants/nobody/effects/bulk", body).status)
	require.Equal(t, http.StatusCreated, b.post(t, admin, "/v1/tenants/acme/effects/bulk", body).status)
}

func (a answer) effect(t *testing.T) (e EffectDetail) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &e))
	return e
}

func TestDecisionsByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "night shift")
	calls := b.writes(t)
	for op, want := range map[string]struct {
		state  trigger.State
		action trigger.Action
	}{
		"replay-effect": {trigger.StatePending, trigger.ActionReplay}, "rerun-effect": {trigger.StatePending, trigger.ActionRerun},
		"discard-effect": {trigger.StateDiscarded, trigger.ActionDiscard}, "release-effect": {trigger.StatePending, trigger.ActionRelease},
		"resolve-effect": {trigger.StateDone, trigger.ActionConfirm},
	} {
		e := b.write(t, editor, calls[op]).effect(t)
		require.Equal(t, calls[op].touches, e.ID)
		require.Equal(t, want.state, e.State, op)
		require.Len(t, e.History, 1)
		require.Equal(t, want.action, e.History[0].Action)
		require.Equal(t, "token:night shift", e.History[0].By, op)
		row, err := b.mem.EffectGet(t.Context(), "acme", e.ID)
		require.NoError(t, err)
		require.Equal(t, want.state, row.State, op)
		// Again, and it is no longer in that state.
		a := b.write(t, editor, calls[op])
		require.Equal(t, http.StatusConflict, a.status, op)
		require.Contains(t, a.problem(t).Detail, "the row is "+string(want.state), op)
		// Nor is there such a row, or another one by the id's looks.
		for _, id := range []string{"acme/000000000999|sub-1", "acme/000000000101>sub-1", "acme/000000000101!"} {
			gone := calls[op]
			gone.path = strings.Replace(gone.path, url.PathEscape(calls[op].touches), url.PathEscape(id), 1)
			require.Equal(t, 404, b.write(t, editor, gone).status, "%s %s", op, id)
		}
		gone := calls[op]
		gone.path = strings.Replace(gone.path, url.PathEscape(calls[op].touches), "s3cret%7B", 1)
		a = b.write(t, editor, gone)
		require.Equal(t, 422, a.status, op)
		require.Equal(t, "path.effect", a.problem(t).Errors[0].Field)
	}
	require.Equal(t, "run-9", b.get(t, editor, "/v1/tenants/acme/effects/"+url.PathEscape(calls["resolve-effect"].touches)).effect(t).RunID)
	// All kinds of ids are reached, percent-encoded.
	for i, id := range []string{trigger.PoisonID("acme/000000000301"), trigger.ProjectionEffectID("acme/000000000302", "p-1")} {
		row := trigger.Effect{ID: id, TenantID: "acme", State: trigger.StateFailed, Kind: trigger.KindEvent, Lane: "x", EventSeq: int64(301 + i), UpdatedAt: b.mem.Now()}
		_, err := b.mem.EffectMaterialize(t.Context(), "acme", []trigger.Effect{row})
		require.NoError(t, err)
		require.Equal(t, trigger.StatePending, b.post(t, editor, "/v1/tenants/acme/effects/"+url.PathEscape(id)+"/replay", "").effect(t).State)
	}
	// A claimed row can't be replayed.
	id := b.rowIn(t, 400, trigger.StateClaimed)
	a := b.post(t, editor, "/v1/tenants/acme/effects/"+url.PathEscape(id)+"/replay", "{}")
	require.Equal(t, http.StatusConflict, a.status)
	require.Equal(t, "the row is claimed, it must be failed", a.problem(t).Detail)
}

func TestSendingAgainIsSaidTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	path := "/v1/tenants/acme/effects/" + url.PathEscape(b.rowIn(t, 1, trigger.StateReconcile))
	shown := b.get(t, editor, path).effect(t)
	require.NotNil(t, shown.StartedAt)
	body := func(at time.Time) string {
		text, err := json.Marshal(map[string]any{"as": "send_again", "delivery_started_at": at, "confirm": true, "note": "asked the bot's people"})
		require.NoError(t, err)
		return string(text)
	}
	a := b.post(t, editor, path+"/resolve", body(shown.StartedAt.Add(-time.Second)))
	require.Equal(t, http.StatusConflict, a.status, "an older delivery")
	require.Contains(t, a.problem(t).Detail, "not the latest")
	e := b.post(t, editor, path+"/resolve", body(*shown.StartedAt)).effect(t)
	require.Equal(t, trigger.StatePending, e.State)
	require.Nil(t, e.StartedAt)
	require.Equal(t, "asked the bot's people", e.History[0].Note)
	require.Equal(t, http.StatusConflict, b.post(t, editor, path+"/resolve", body(*shown.StartedAt)).status, "once")
}

func TestFiltersByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.token(t, "acme")
	for i, s := range trigger.States() {
		b.rowIn(t, int64(i+1), s)
	}
	for query, n := range map[string]int{
		"": 7, "state=held": 1, "state=reconcile": 1, "state=discarded": 1, "subscription=sub-1": 7, "subscription=sub-2": 0,
		"bot=" + botID: 7, "bot=x": 0, "reason=exhausted": 1, "reason=poison": 0, "older_than=30m": 7, "older_than=2h": 0,
		"newer_than=30m": 0, "newer_than=2h": 7, "state=failed&reason=exhausted&bot=" + botID + "&older_than=30m&newer_than=90m": 1,
	} {
		require.Len(t, b.page(t, token, "/v1/tenants/acme/effects?"+query).Items, n, query)
	}
	e := b.get(t, token, "/v1/tenants/acme/effects/"+url.PathEscape("acme/000000000004|sub-1")).effect(t)
	require.Equal(t, trigger.ReasonExhausted, e.Reason)
	require.Equal(t, "status 503", e.Errors[0].Message)
	require.EqualValues(t, 4, e.Event.Seq)
	require.NotNil(t, e.History)
}
