package server

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const applyFile = `tenants:
  - id: acme
    boards:
      - name: roadmap
        columns: [{id: next}, {id: done}]
    bots:
      - name: applier
        url: http://127.0.0.1:9/launch?token=s3cret-of-the-url
        secret: {env: APPLIER_SECRET}
    hooks:
      - name: more
        provider: github
        board: roadmap
        columns: {open: next, closed: done}
        secret: {file: secrets/hook}
    subscriptions:
      - name: plan
        on: {kinds: [card.created], board: roadmap}
        bot: applier
`

// The texts of its secrets; no answer and no log line may have them.
const (
	applyBotSecret  = "s3cret-applied-to-a-bot"
	applyHookSecret = "s3cret-applied-to-a-hook"
)

func applyBody(t *testing.T, file string, dryRun bool) string {
	t.Helper()
	text, err := json.Marshal(ApplyBody{File: file, DryRun: dryRun, Secrets: []ApplySecret{
		{Env: "APPLIER_SECRET", Text: applyBotSecret}, {File: "secrets/hook", Text: applyHookSecret + "\n"},
	}})
	require.NoError(t, err)
	return string(text)
}

func applyResult(t *testing.T, a answer) (r apply.Result) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &r))
	return r
}

func TestApplyByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin, editor := b.token(t, ""), b.role(t, trigger.RoleEditor, "acme", "ops")
	for _, way := range []struct{ token, path string }{{admin, "/v1/apply"}, {editor, "/v1/tenants/acme/apply"}} {
		dry := applyResult(t, b.write(t, way.token, call{method: "POST", path: way.path, body: applyBody(t, applyFile, true)}))
		require.True(t, dry.DryRun)
		require.Len(t, dry.Changes, 5)
	}
	boards, err := b.mem.BoardList(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, boards, 1, "a dry run writes nothing")

	r := applyResult(t, b.write(t, editor, call{method: "POST", path: "/v1/tenants/acme/apply", body: applyBody(t, applyFile, false)}))
	require.Equal(t, []string{"unchanged", "created", "created", "created", "created"}, actions(r))
	for _, way := range []struct{ token, path string }{{admin, "/v1/apply"}, {editor, "/v1/tenants/acme/apply"}} {
		r = applyResult(t, b.write(t, way.token, call{method: "POST", path: way.path, body: applyBody(t, applyFile, false)}))
		require.False(t, r.Changed(), r)
	}
	hooks, err := b.mem.HookList(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, hooks, 3)

	t.Log("a secret that is left out, as other parts of a thing change")
	text := strings.Replace(strings.Replace(applyFile, "        secret: {env: APPLIER_SECRET}\n", "", 1), "9/launch", "9/run", 1)
	r = applyResult(t, b.write(t, editor, call{method: "POST", path: "/v1/tenants/acme/apply", body: applyBody(t, text, false)}))
	require.Equal(t, []string{"unchanged", "unchanged", "updated", "unchanged", "unchanged"}, actions(r))
	bots, err := b.mem.BotList(t.Context(), "acme")
	require.NoError(t, err)
	for i := range bots {
		if bots[i].Name == "applier" {
			opened, err := b.server.api.Sealer.Open(trigger.BotOwner("acme", bots[i].ID), bots[i].Secret)
			require.NoError(t, err)
			require.Equal(t, applyBotSecret, string(opened))
		}
	}

	t.Log("an admin makes tenants")
	r = applyResult(t, b.write(t, admin, call{method: "POST", path: "/v1/apply", body: applyBody(t, strings.Replace(applyFile, "id: acme", "id: fresh", 1), false)}))
	require.Len(t, r.Changes, 5)
	require.Equal(t, "created", r.Changes[0].Action)
	require.NotContains(t, b.logs.String(), "s3cret")
}

func actions(r apply.Result) (out []string) {
	for _, c := range r.Changes {
		out = append(out, c.Action)
	}
	return out
}

// What is wrong with a file is said with lines, and without values; the call
// that may only read, or only another tenant, changes nothing.
func TestApplyByAPIRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin, editor := b.token(t, ""), b.role(t, trigger.RoleEditor, "acme", "ops")
	of := func(from, to string) string {
		require.Contains(t, applyFile, from)
		return applyBody(t, strings.Replace(applyFile, from, to, 1), false)
	}
	for name, c := range map[string]struct {
		token, path, body string
		status            int
		field, says       string
		line              int
	}{
		"a typo":                 {editor, "/v1/tenants/acme/apply", of("provider: github", "provder: github"), 422, "tenants[0].hooks[0].provder", "unknown field", 12},
		"a reference":            {admin, "/v1/apply", of("board: roadmap\n        columns", "board: rodmap\n        columns"), 422, "tenants[0].hooks[0].board", "no board of this name", 13},
		"a secret not sent":      {editor, "/v1/tenants/acme/apply", of("APPLIER_SECRET", "s3cret"), 422, "tenants[0].bots[0].secret.env", "not among the secrets of the call", 9},
		"the server's variable":  {admin, "/v1/apply", of("APPLIER_SECRET", "PATH"), 422, "tenants[0].bots[0].secret.env", "not among the secrets of the call", 9},
		"the server's file":      {admin, "/v1/apply", of("secrets/hook", "/etc/passwd"), 422, "tenants[0].hooks[0].secret.file", "not among the secrets of the call", 15},
		"another tenant":         {editor, "/v1/tenants/acme/apply", of("id: acme", "id: other"), 422, "tenants[0].id", "another one", 2},
		"two tenants":            {editor, "/v1/tenants/acme/apply", applyBody(t, applyFile+"  - id: other\n", false), 422, "tenants[1].id", "another one", 20},
		"a rename by an editor":  {editor, "/v1/tenants/acme/apply", of("id: acme", "id: acme\n    name: Acme"), 422, "tenants[0].name", "an admin", 3},
		"another tenant's path":  {editor, "/v1/tenants/other/apply", applyBody(t, applyFile, false), 404, "", "", 0},
		"all, by an editor":      {editor, "/v1/apply", applyBody(t, applyFile, false), 404, "", "", 0},
		"by a viewer":            {b.token(t, "acme"), "/v1/tenants/acme/apply", applyBody(t, applyFile, false), 403, "", "", 0},
		"a dry run by a viewer":  {b.token(t, "acme"), "/v1/tenants/acme/apply", applyBody(t, applyFile, true), 403, "", "", 0},
		"a tenant that is not":   {admin, "/v1/tenants/nobody/apply", applyBody(t, applyFile, false), 404, "", "", 0},
		"a secret in the file":   {editor, "/v1/tenants/acme/apply", of("{env: APPLIER_SECRET}", "s3cret"), 422, "tenants[0].bots[0].secret", "does not belong", 9},
		"no text":                {editor, "/v1/tenants/acme/apply", `{"file":{"$ne":""}}`, 422, "body.file", "", 0},
		"an unknown field of it": {editor, "/v1/tenants/acme/apply", `{"file":"tenants: []","force":true}`, 422, "body.force", "", 0},
	} {
		a := b.write(t, c.token, call{method: "POST", path: c.path, body: c.body})
		require.Equal(t, c.status, a.status, "%s: %s", name, a.body)
		require.NotContains(t, a.body, "s3cret", name)
		p := a.problem(t)
		if c.field == "" {
			continue
		}
		found := slices.IndexFunc(p.Errors, func(f ProblemField) bool { return f.Field == c.field })
		require.GreaterOrEqual(t, found, 0, "%s: %v", name, p.Errors)
		require.Contains(t, p.Errors[found].Message, c.says, name)
		require.Equal(t, c.line, p.Errors[found].Line, name)
	}
	bots, err := b.mem.BotList(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, bots, 1)
	require.NotContains(t, b.logs.String(), "s3cret")
}

// What was changed is noted, without secrets, also what was before an error.
func TestApplyIsNoted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var trail []change
	ctx := context.WithValue(t.Context(), trailKey{}, &trail)
	in := func(text string, dryRun bool) *ApplyBody {
		var body ApplyBody
		require.NoError(t, json.Unmarshal([]byte(applyBody(t, text, dryRun)), &body))
		return &body
	}
	_, err := b.server.api.apply(ctx, "", in(applyFile, true))
	require.NoError(t, err)
	require.Empty(t, trail, "a dry run changes nothing")
	_, err = b.server.api.apply(ctx, "", in(applyFile, false))
	require.NoError(t, err)
	_, err = b.server.api.apply(ctx, "", in(strings.Replace(applyFile, "9/launch", "9/run", 1), false))
	require.NoError(t, err)
	var kinds []string
	for _, c := range trail {
		kinds = append(kinds, c.Kind)
		require.NotEmpty(t, c.ID)
		require.Equal(t, c.Kind == "bot" && len(kinds) == 5, c.Before != nil)
		require.NotNil(t, c.After)
	}
	require.Equal(t, []string{"board", "bot", "hook", "subscription", "bot"}, kinds)
	text, err := json.Marshal(trail)
	require.NoError(t, err)
	b.checkHidden(t, "the audit log", string(text))
	require.NotContains(t, string(text), "s3cret")
	bots, err := b.mem.BotList(t.Context(), "acme")
	require.NoError(t, err)
	for _, bot := range bots {
		require.NotContains(t, string(text), string(bot.Secret))
	}
}

func TestExportByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "ops")
	applyResult(t, b.write(t, editor, call{method: "POST", path: "/v1/tenants/acme/apply", body: applyBody(t, applyFile, false)}))
	a := b.get(t, b.token(t, "acme"), "/v1/tenants/acme/export")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NotContains(t, a.body, "s3cret")
	var x apply.Exported
	require.NoError(t, json.Unmarshal([]byte(a.body), &x))
	require.Empty(t, x.LeftOut)
	body, err := json.Marshal(ApplyBody{File: x.File})
	require.NoError(t, err)
	require.False(t, applyResult(t, b.write(t, editor, call{method: "POST", path: "/v1/tenants/acme/apply", body: string(body)})).Changed())
	require.Equal(t, 404, b.get(t, b.token(t, "acme"), "/v1/tenants/other/export").status)
}

// A tenant's file that describes another tenant is refused by its id alone: what
// that tenant has makes no difference, and neither whether it is there.
func TestApplyTellsNothingOfAnotherTenant(t *testing.T) {
	t.Parallel()
	b := filled(t)
	editor := b.role(t, trigger.RoleEditor, "other", "e")
	for _, rest := range []string{
		"",
		"bots: [{name: implementer, url: 'http://h/'}]",
		"bots: [{name: implementer, url: 'http://127.0.0.1:1/launch?***'}]",
		"boards: [{name: issues, columns: [{id: a}]}]",
		"subscriptions: [{name: a, bot: implementer, on: {kinds: [card.created], board: issues, to: todo}}]",
	} {
		for _, before := range []string{"", "{id: other, name: other}, "} {
			apply := func(tenant string) answer {
				file := "tenants: [" + before + "{id: " + tenant + ", name: x, " + rest + "}]"
				body, err := json.Marshal(ApplyBody{File: file, DryRun: true})
				require.NoError(t, err)
				return b.post(t, editor, "/v1/tenants/other/apply", string(body))
			}
			got := apply("acme")
			require.Equal(t, 422, got.status)
			require.Len(t, got.problem(t).Errors, 1, got.body)
			require.Equal(t, apply("nobody").body, got.body)
		}
	}
}
