package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// The walks go over the OpenAPI document and call each operation that they
// find. The good calls come from the tables: calls and adminCalls for reads,
// writes for the others. A new operation without an entry fails.

// missing are ids that nothing has, by the parameter that takes them; of the
// form that the parameter asks for.
var missing = map[string]string{
	"effect":       "acme/000000000998|nobody",
	"card":         "nobody",
	"bot":          "nobody",
	"subscription": "nobody",
	"bulk":         "nobody",
	"board":        "nobody",
	"hook":         "nobody",
	"projection":   "nobody",
	"seq":          "998",
	"comment":      "nobody",
	"token":        "nobody",
}

// goodCalls returns a good call of each operation, for tenant acme.
func (b *bundle) goodCalls(t *testing.T) map[string]call {
	t.Helper()
	out := b.writes(t)
	reads := calls()
	maps.Copy(reads, adminCalls())
	for op, path := range reads {
		out[op] = call{method: http.MethodGet, path: path, status: http.StatusOK}
	}
	// What is read of what a write made.
	out["get-bulk"] = call{method: http.MethodGet, path: strings.TrimSuffix(out["stop-bulk"].path, "/stop"), status: http.StatusOK}
	b.newCard(t, "get-comment")
	_, err := b.server.board.Comment(t.Context(), "acme", "get-comment", tracker.Comment{ID: "comment-1", Body: "text"},
		func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			if card.CommentCount > 0 {
				return nil, nil, nil
			}
			return card, &tracker.BoardEvent{Kind: tracker.KindCommented}, nil
		})
	require.NoError(t, err)
	out["get-comment"] = call{method: http.MethodGet, path: "/v1/tenants/acme/cards/get-comment/comments/comment-1", status: http.StatusOK}
	return out
}

type walked struct {
	op *huma.Operation
	call
}

// walk returns each operation of the document with a good call.
func (b *bundle) walk(t *testing.T) map[string]walked {
	t.Helper()
	good := b.goodCalls(t)
	out := make(map[string]walked)
	for path, item := range b.server.api.openapi.Paths {
		for _, op := range operationsOf(item) {
			c, ok := good[op.OperationID]
			require.True(t, ok, "no good call of %s in the tables of the tests", op.OperationID)
			require.Equal(t, op.Method, c.method, op.OperationID)
			require.NotNil(t, fill(path, c.path), "%s: %s", op.OperationID, c.path)
			out[op.OperationID] = walked{op, c}
		}
	}
	require.Greater(t, len(out), 30)
	return out
}

// fill returns the path parameters of a path, as they stand in it.
func fill(template, path string) map[string]string {
	path, _, _ = strings.Cut(path, "?")
	names, values := strings.Split(template, "/"), strings.Split(path, "/")
	if len(names) != len(values) {
		return nil
	}
	out := make(map[string]string)
	for i, name := range names {
		if p, ok := strings.CutPrefix(name, "{"); ok {
			out[strings.TrimSuffix(p, "}")] = values[i]
		} else if name != values[i] {
			return nil
		}
	}
	return out
}

// with returns the call with one parameter's value replaced.
func (w walked) with(p *huma.Param, value string) call {
	c := w.call
	path, query, _ := strings.Cut(c.path, "?")
	switch p.In {
	case "path":
		names, parts := strings.Split(w.op.Path, "/"), strings.Split(path, "/")
		for i, name := range names {
			if name == "{"+p.Name+"}" {
				parts[i] = url.PathEscape(value)
			}
		}
		path = strings.Join(parts, "/")
	case "query":
		values, _ := url.ParseQuery(query)
		values.Set(p.Name, value)
		query = values.Encode()
	}
	c.path = path
	if query != "" {
		c.path += "?" + query
	}
	return c
}

// withMissing replaces all ids of things by ones that nothing has.
func (w walked) withMissing(t *testing.T) call {
	t.Helper()
	_, query, _ := strings.Cut(w.path, "?")
	given, _ := url.ParseQuery(query)
	for _, p := range w.op.Parameters {
		if p.Name == "tenant" || (p.In == "query" && !given.Has(p.Name)) || p.In == "header" {
			continue
		}
		id, ok := missing[p.Name]
		if !ok && p.In == "path" {
			require.Fail(t, "no id that is missing", "%s %s", w.op.OperationID, p.Name)
		}
		if ok {
			w.call = w.with(p, id)
		}
	}
	for _, id := range []string{botID, hookID, secondID, "sub-1", "board-1", issueCard()} { // those that a body may refer to
		w.body = strings.ReplaceAll(w.body, `"`+id+`"`, `"nobody"`)
	}
	return w.call
}

// A token of another tenant gets 404 or 403 on acme's things and learns
// nothing: the answer is the one for a tenant, and for things, that are not
// there.
func TestWalkCrossTenant(t *testing.T) {
	t.Parallel()
	b := filled(t)
	require.NoError(t, b.mem.BotSave(t.Context(), &trigger.Bot{TenantID: "other", ID: "bot-o", Name: "o", URL: "http://127.0.0.1:1", Replay: trigger.ReplaySafe, Secret: "x", Revision: 1}))
	tokens := map[string]string{
		"viewer": b.role(t, trigger.RoleViewer, "other", "v"), "editor": b.role(t, trigger.RoleEditor, "other", "e"),
		"bot": b.tokenAs(t, TokenParams{Name: "b", Role: trigger.RoleBot, TenantID: "other", BotID: "bot-o"}),
	}
	for id, w := range b.walk(t) {
		before := b.state(t)
		for role, token := range tokens {
			got := b.write(t, token, w.call)
			require.Contains(t, []int{http.StatusNotFound, http.StatusForbidden}, got.status, "%s, %s: %s", id, role, got.body)
			if !strings.Contains(w.op.Path, "{tenant}") {
				continue
			}
			nowhere := w
			nowhere.path = strings.Replace(w.path, "/v1/tenants/acme", "/v1/tenants/nobody", 1)
			want := b.write(t, token, nowhere.withMissing(t))
			require.Equal(t, want.status, got.status, "%s, %s", id, role)
			require.Equal(t, want.body, got.body, "%s, %s", id, role)

			// Its own tenant's path does not reach acme's things.
			own := w
			own.path = strings.Replace(w.path, "/v1/tenants/acme", "/v1/tenants/other", 1)
			without := own.withMissing(t)
			if without.path == own.path && without.body == own.body {
				continue // it names nothing of acme's
			}
			got, want = b.write(t, token, own.call), b.write(t, token, without)
			require.Equal(t, want.status, got.status, "%s, %s, under its own path: %s\n%s", id, role, got.body, want.body)
			if got.status >= 300 {
				require.Equal(t, want.body, got.body, "%s, %s, under its own path", id, role)
			}
		}
		after := b.state(t)
		require.Equal(t, before.Rows, after.Rows, id)
		require.Equal(t, before.Subs, after.Subs, id)
		require.Equal(t, before.Lanes, after.Lanes, id)
		require.ElementsMatch(t, ofTenant(before.Pauses, "acme"), ofTenant(after.Pauses, "acme"), id)
	}
}

func ofTenant(all []trigger.Pause, tenant string) []trigger.Pause {
	return slices.DeleteFunc(slices.Clone(all), func(p trigger.Pause) bool { return p.TenantID != tenant })
}

// names reports whether a refusal names the field.
func (a answer) names(t *testing.T, field string) bool {
	t.Helper()
	return slices.ContainsFunc(a.problem(t).Errors, func(e ProblemField) bool { return e.Field == field })
}

// Each parameter that is text refuses what is too long, control characters,
// and to be asked about with operators.
func TestWalkParameters(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin := b.token(t, "")
	for id, w := range b.walk(t) {
		for _, p := range w.op.Parameters {
			if p.Schema.Type != huma.TypeString {
				continue
			}
			field := p.In + "." + p.Name
			if len(p.Schema.Enum) == 0 {
				require.NotNil(t, p.Schema.MaxLength, "%s %s", id, field)
			}
			if p.In == "header" {
				req, err := http.NewRequestWithContext(t.Context(), w.method, b.url+w.path, strings.NewReader(w.body))
				require.NoError(t, err)
				req.Header.Set("Authorization", "Bearer "+admin)
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set(p.Name, strings.Repeat("x", *p.Schema.MaxLength+1))
				a := b.do(t, req)
				require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s %s", id, field)
				require.True(t, a.names(t, field), "%s %s: %s", id, field, a.body)
				continue
			}
			long := 1000
			if p.Schema.MaxLength != nil {
				long = *p.Schema.MaxLength + 1
			}
			for what, value := range map[string]string{"too long": strings.Repeat("x", long), "a control character": "x\x01", "an escape": "\x1b[2J", "no text": "x\xff"} {
				a := b.write(t, admin, w.with(p, value))
				require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s %s, %s: %s", id, field, what, a.body)
				require.True(t, a.names(t, field), "%s %s, %s: %s", id, field, what, a.body)
			}
			if p.In == "query" {
				a := b.write(t, admin, w.with(&huma.Param{Name: p.Name + "[$ne]", In: "query"}, ""))
				require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s %s", id, field)
			}
		}
	}
}

// rawBodies are operations that take JSON as a whole, without a schema.
var rawBodies = []string{"dry-run-draft"}

// leaf is a field of a body that is text.
type leaf struct {
	path   []string // "[0]" is the first of a list
	schema *huma.Schema
}

func leaves(r huma.Registry, s *huma.Schema, path []string) (out []leaf) {
	s = resolve(r, s)
	if s == nil || len(path) > 8 {
		return nil
	}
	at := func(name string) []string { return append(slices.Clone(path), name) }
	switch s.Type {
	case huma.TypeString:
		out = append(out, leaf{path, s})
	case huma.TypeArray:
		out = leaves(r, s.Items, at("[0]"))
	case huma.TypeObject:
		for name, p := range s.Properties {
			out = append(out, leaves(r, p, at(name))...)
		}
		if rest, ok := s.AdditionalProperties.(*huma.Schema); ok {
			out = append(out, leaves(r, rest, at("k"))...)
		}
	}
	return out
}

// put returns v with the value at the path.
func put(v any, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	if path[0] == "[0]" {
		list, _ := v.([]any)
		if len(list) == 0 {
			list = []any{nil}
		}
		list[0] = put(list[0], path[1:], value)
		return list
	}
	m, _ := v.(map[string]any)
	if m == nil {
		m = make(map[string]any)
	}
	m[path[0]] = put(m[path[0]], path[1:], value)
	return m
}

func (l leaf) field() string {
	return strings.ReplaceAll("body."+strings.Join(l.path, "."), ".[0]", "[0]")
}

// Each field of a body that is text, however deep, refuses an object, what is
// too long, and control characters; by name.
func TestWalkBodies(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin := b.token(t, "")
	fields := 0
	for id, w := range b.walk(t) {
		if w.op.RequestBody == nil {
			continue
		}
		require.Positive(t, w.op.MaxBodyBytes, id)
		for _, media := range w.op.RequestBody.Content {
			found := leaves(b.server.api.openapi.Components.Schemas, media.Schema, nil)
			if slices.Contains(rawBodies, id) {
				require.Empty(t, found, "%s takes JSON as a whole", id)
			}
			for _, l := range found {
				fields++
				require.True(t, l.schema.MaxLength != nil || len(l.schema.Enum) > 0, "%s %s", id, l.field())
				long := int(w.op.MaxBodyBytes)
				if l.schema.MaxLength != nil {
					long = *l.schema.MaxLength + 1
				}
				for what, value := range map[string]any{
					"an object": map[string]any{"$ne": ""}, "a list": []any{""}, "too long": strings.Repeat("x", long),
					"NUL": "x\x00", "an escape": "\x1b[2J", "C1": "x\u0085",
				} {
					var body any
					if w.body != "" {
						require.NoError(t, json.Unmarshal([]byte(w.body), &body), id)
					}
					sent, err := json.Marshal(put(body, l.path, value))
					require.NoError(t, err)
					c := w.call
					c.body = string(sent)
					a := b.write(t, admin, c)
					if a.status == http.StatusRequestEntityTooLarge && what == "too long" {
						continue
					}
					require.Equal(t, http.StatusUnprocessableEntity, a.status, "%s %s, %s: %s", id, l.field(), what, a.body)
					require.True(t, a.names(t, l.field()), "%s %s, %s: %s", id, l.field(), what, a.body)
				}
			}
		}
	}
	require.Greater(t, fields, 10)
}

// boundByNature are lists without a limit, and why they are short.
var boundByNature = map[string]string{"list-pauses": "at most one per bot and subscription of a tenant"}

// Each list has a bound.
func TestWalkLists(t *testing.T) {
	t.Parallel()
	b := filled(t)
	for id, w := range b.walk(t) {
		if !strings.HasPrefix(id, "list-") && !strings.HasPrefix(id, "search-") || boundByNature[id] != "" {
			continue
		}
		i := slices.IndexFunc(w.op.Parameters, func(p *huma.Param) bool { return p.Name == "limit" })
		require.GreaterOrEqual(t, i, 0, id)
		require.NotNil(t, w.op.Parameters[i].Schema.Maximum, id)
		require.LessOrEqual(t, *w.op.Parameters[i].Schema.Maximum, float64(PageMax), id)
		require.NotNil(t, w.op.Parameters[i].Schema.Default, id)
	}
}
