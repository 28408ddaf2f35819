package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// OpenAPIYAML returns the OpenAPI document (3.1) of the API.
func (a *API) OpenAPIYAML() ([]byte, error) {
	doc, err := a.openapi.YAML()
	if err != nil {
		return nil, err
	}
	return append([]byte("# Written by `make docs` from the operations of pkg/server.\n"), doc...), nil
}

// describe completes the OpenAPI document from what the operations are marked
// with. It is called once, when all are registered.
func describe(api *huma.OpenAPI) {
	api.Info.Title = "triggerd"
	api.Info.Description = "Durable board triggers. docs/api.md says what all operations have in common: strictness, errors, pages, revisions, repeating a create."
	tags := make(map[string]bool)
	for path, item := range api.Paths {
		for _, op := range operationsOf(item) {
			tag := tagOf(path)
			op.Tags, tags[tag] = []string{tag}, true
			if op.Extensions == nil {
				op.Extensions = make(map[string]any)
			}
			op.Extensions["x-roles"] = rolesOf(op)
			if r := op.Responses["default"]; r != nil {
				r.Description = "A problem (RFC 9457): what is wrong, and in which field. Status codes: docs/api.md."
			}
		}
	}
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		api.Tags = append(api.Tags, &huma.Tag{Name: tag})
	}
}

// tagOf is what a path is about: the thing after the tenant, or the first.
func tagOf(path string) string {
	path = strings.TrimPrefix(path, "/v1/")
	if rest, ok := strings.CutPrefix(path, "tenants/{tenant}/"); ok {
		path = rest
	}
	tag, _, _ := strings.Cut(path, "/")
	if tag == "pause" {
		return "pauses"
	}
	return tag
}

// rolesOf lists who may call an operation.
func rolesOf(op *huma.Operation) []trigger.Role {
	out := []trigger.Role{trigger.RoleAdmin}
	if op.Metadata["admins"] == true {
		return out
	}
	out = append(out, trigger.RoleEditor)
	if mayRead(op, op.Method) {
		out = append(out, trigger.RoleViewer)
	}
	if op.Metadata["bot"] != nil {
		out = append(out, trigger.RoleBot)
	}
	return out
}

// serveDocs serves the OpenAPI document and the reference page made of it,
// without a token: they say what everybody may know. They are made when somebody
// asks for them: a command that uses the API in its own process never does.
func (a *API) serveDocs() {
	page := sync.OnceValues(func() ([]byte, string) { return referencePage(a.openapi) })
	for path, f := range map[string]struct {
		contentType string
		content     func() ([]byte, error)
	}{
		"/openapi.yaml": {"application/yaml", sync.OnceValues(a.OpenAPIYAML)},
		"/openapi.json": {"application/json", sync.OnceValues(func() ([]byte, error) { return json.Marshal(a.openapi) })},
		"/docs":         {"text/html; charset=utf-8", func() ([]byte, error) { html, _ := page(); return html, nil }},
	} {
		a.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			content, err := f.content()
			if err != nil {
				panic(err) // the operations are the program's own
			}
			_, policy := page()
			h := w.Header()
			h.Set("Content-Type", f.contentType)
			h.Set("Content-Security-Policy", policy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			_, _ = w.Write(content)
		})
	}
}
