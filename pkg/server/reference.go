package server

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

var (
	//go:embed reference.html
	referenceHTML string
	//go:embed reference.css
	referenceCSS string
)

// refTag, refOperation and refField are what the reference page shows.
type (
	refTag struct {
		Name       string
		Operations []refOperation
	}
	refOperation struct {
		ID, Method, Path, Summary string
		Roles                     string
		Params, Body              []refField
		Answers                   []refAnswer
	}
	refField struct {
		Name, Where, Type, Says string
		Required                bool
	}
	refAnswer struct {
		Status, Says string
		Headers      []string
		Body         []refField
	}
)

// referencePage renders the document, and returns with it the policy under
// which the page is shown: it loads nothing, and runs nothing.
func referencePage(api *huma.OpenAPI) (page []byte, policy string) {
	style := sha256.Sum256([]byte(referenceCSS))
	policy = "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(style[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	r := referencer{api.Components.Schemas}
	byTag := make(map[string][]refOperation)
	for path, item := range api.Paths {
		for _, op := range operationsOf(item) {
			byTag[op.Tags[0]] = append(byTag[op.Tags[0]], r.operation(path, op))
		}
	}
	var tags []refTag
	for _, name := range slices.Sorted(maps.Keys(byTag)) {
		ops := byTag[name]
		slices.SortFunc(ops, func(a, b refOperation) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method))
		})
		tags = append(tags, refTag{name, ops})
	}
	var out bytes.Buffer
	err := template.Must(template.New("reference").Parse(referenceHTML)).Execute(&out, map[string]any{
		"Title": api.Info.Title, "Says": api.Info.Description, "Style": template.CSS(referenceCSS), "Tags": tags, //nolint:gosec // our own file
	})
	if err != nil {
		panic(err) // the template and the document are the program's own
	}
	return out.Bytes(), policy
}

type referencer struct{ schemas huma.Registry }

func (r referencer) operation(path string, op *huma.Operation) refOperation {
	out := refOperation{
		ID: op.OperationID, Method: op.Method, Path: path, Summary: op.Summary, Roles: strings.Trim(fmt.Sprint(rolesOf(op)), "[]"),
	}
	for _, p := range op.Parameters {
		says := cmp.Or(p.Description, p.Schema.Description)
		out.Params = append(out.Params, refField{Name: p.Name, Where: p.In, Type: r.typeOf(p.Schema), Says: says, Required: p.Required})
	}
	if op.RequestBody != nil {
		for _, media := range op.RequestBody.Content {
			out.Body = r.fields("", media.Schema, nil)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		answer := op.Responses[status]
		a := refAnswer{Status: status, Says: answer.Description, Headers: slices.Sorted(maps.Keys(answer.Headers))}
		for _, media := range answer.Content {
			if status != "default" {
				a.Body = r.fields("", media.Schema, nil)
			}
		}
		out.Answers = append(out.Answers, a)
	}
	return out
}

// fields lists the fields of a schema, those within others by their path.
func (r referencer) fields(prefix string, s *huma.Schema, within []*huma.Schema) (out []refField) {
	s = resolve(r.schemas, s)
	if s == nil || slices.Contains(within, s) || len(within) > 5 {
		return nil
	}
	within = append(within[:len(within):len(within)], s)
	if s.Type == huma.TypeArray {
		return r.fields(prefix+"[]", s.Items, within)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		path := strings.TrimPrefix(prefix+"."+name, ".")
		out = append(out, refField{Name: path, Type: r.typeOf(p), Says: p.Description, Required: slices.Contains(s.Required, name)})
		out = append(out, r.fields(path, p, within)...)
	}
	return out
}

// typeOf says in a few words what a value must be.
func (r referencer) typeOf(s *huma.Schema) string {
	if s = resolve(r.schemas, s); s == nil || s.Type == "" {
		return "JSON"
	}
	says := []string{s.Type}
	if s.Format != "" && s.Format != "int64" {
		says = append(says, s.Format)
	}
	if s.Type == huma.TypeArray {
		says = []string{"list of " + r.typeOf(s.Items)}
	}
	if len(s.Enum) > 0 {
		says = append(says, "one of "+strings.Trim(fmt.Sprint(s.Enum...), "[]"))
	}
	for _, bound := range []struct {
		name string
		at   *int
	}{{"at least %s characters", s.MinLength}, {"at most %s characters", s.MaxLength}, {"at most %s", s.MaxItems}, {"at most %s keys", s.MaxProperties}} {
		if bound.at != nil {
			says = append(says, fmt.Sprintf(bound.name, strconv.Itoa(*bound.at)))
		}
	}
	for _, bound := range []struct {
		name string
		at   *float64
	}{{"from %v", s.Minimum}, {"to %v", s.Maximum}} {
		if bound.at != nil {
			says = append(says, fmt.Sprintf(bound.name, int64(*bound.at)))
		}
	}
	if s.Pattern != "" {
		says = append(says, s.Pattern)
	}
	if s.Default != nil {
		says = append(says, fmt.Sprintf("%v if it is missing", s.Default))
	}
	return strings.Join(says, ", ")
}
