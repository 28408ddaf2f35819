package server

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	// textMaxDefault is how long a text may be that its field does not bound
	// itself, in characters; linesMaxDefault, one of several lines.
	textMaxDefault  = 1000
	linesMaxDefault = 64 << 10
	// itemsMaxDefault and propertiesMaxDefault bound lists and maps likewise.
	itemsMaxDefault      = 1000
	propertiesMaxDefault = 100
)

func init() {
	// "Name" is not the field "name", whatever encoding/json makes of it: a
	// field could be given twice.
	huma.ValidateStrictCasing = true
}

// mark sets one mark of an operation, for the middlewares.
func mark(o *huma.Operation, key string, value any) {
	if o.Metadata == nil {
		o.Metadata = make(map[string]any)
	}
	o.Metadata[key] = value
}

// strict refuses calls that say something the operation does not have, or that
// could be read in two ways, before the operation sees them.
func (a *API) strict(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		if errs := checkParams(ctx); len(errs) > 0 {
			_ = huma.WriteErr(api, ctx, http.StatusUnprocessableEntity, "refused", errs...)
			return
		}
		op := ctx.Operation()
		if op.RequestBody == nil {
			next(ctx)
			return
		}
		body, rest := readAll(ctx, op)
		if len(body) > 0 && !isJSON(ctx.Header("Content-Type")) {
			_ = huma.WriteErr(api, ctx, http.StatusUnsupportedMediaType, "")
			return
		}
		if rest == nil && len(body) > 0 {
			var schema *huma.Schema
			if media := op.RequestBody.Content["application/json"]; media != nil {
				schema = media.Schema
			}
			errs := checkJSON(body, api.OpenAPI().Components.Schemas, schema)
			if slices.Contains(errs, errJSON) {
				_ = huma.WriteErr(api, ctx, http.StatusBadRequest, "the body can't be read", errs...)
				return
			}
			if len(errs) > 0 {
				_ = huma.WriteErr(api, ctx, http.StatusUnprocessableEntity, "refused", errs...)
				return
			}
		}
		// What was not read, or why it can't be, is for huma to tell.
		readers := []io.Reader{bytes.NewReader(body)}
		if rest != nil {
			readers = append(readers, rest)
		}
		next(huma.WithValue(bodyContext{ctx, io.MultiReader(readers...)}, bodyKey{}, body))
	}
}

type bodyKey struct{}

// bodyOf returns the body of the call.
func bodyOf(ctx context.Context) []byte {
	body, _ := ctx.Value(bodyKey{}).([]byte)
	return body
}

// humaContext has another name than its method Context, to be embedded.
type humaContext huma.Context

// bodyContext is a call whose body was read.
type bodyContext struct {
	humaContext
	body io.Reader
}

func (c bodyContext) BodyReader() io.Reader { return c.body }

// Unwrap returns the call as it was.
func (c bodyContext) Unwrap() huma.Context { return c.humaContext }

// readAll reads the body as far as the operation takes one. Rest is what is
// left to be read if it is not all of it.
func readAll(ctx huma.Context, op *huma.Operation) (body []byte, rest io.Reader) {
	if op.BodyReadTimeout > 0 {
		_ = ctx.SetReadDeadline(time.Now().Add(op.BodyReadTimeout))
	}
	r := ctx.BodyReader()
	if r == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r, op.MaxBodyBytes))
	switch {
	case err != nil:
		return body, failingReader{err}
	case int64(len(body)) >= op.MaxBodyBytes:
		return body, r
	}
	return body, nil
}

// failingReader fails as the one that it stands for did.
type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }

// isJSON reports whether a body of the type is taken: as JSON. No type is, and
// what is no type at all is checked, and then left to huma. Huma alone would
// read "json" and "x+application/json" as JSON, too.
func isJSON(contentType string) bool {
	if contentType == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	return err != nil || media == "application/json" || strings.HasSuffix(media, "+json")
}

// checkParams looks at all that is not the body: no parameter that the
// operation does not have, none twice, no control characters.
func checkParams(ctx huma.Context) (errs []error) {
	op := ctx.Operation()
	u := ctx.URL()
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return []error{tracker.Fieldf("query", "must be parameters, percent-encoded and with & between them")}
	}
	known := make(map[string]bool)
	for _, p := range op.Parameters {
		where := p.In + "." + p.Name
		var values []string
		switch p.In {
		case "path":
			values = []string{ctx.Param(p.Name)}
		case "header":
			values = headers(ctx, p.Name)
			switch {
			case len(values) > 1:
				errs = append(errs, tracker.Fieldf(where, "is given twice"))
			case len(values) == 1 && values[0] == "":
				// A condition that got lost on the way is none that holds.
				errs = append(errs, tracker.Fieldf(where, "must not be empty"))
			}
		case "query":
			known[p.Name] = true
			values = query[p.Name]
			if len(values) > 1 && (p.Schema == nil || p.Schema.Type != huma.TypeArray) {
				errs = append(errs, tracker.Fieldf(where, "is given twice"))
			}
		}
		for _, v := range values {
			if fault := textFault(v, nil, p.Schema != nil && p.Schema.Format == multiline); fault != "" {
				errs = append(errs, tracker.Fieldf(where, "%s", fault))
				break
			}
		}
	}
	for name := range query {
		if known[name] {
			continue
		}
		where := "query"
		if fieldForm.MatchString(name) {
			where += "." + name
		}
		errs = append(errs, tracker.Fieldf(where, "is not a parameter of this operation"))
	}
	return errs
}

// headers returns all values of a header: ctx.Header knows the first one alone.
func headers(ctx huma.Context, name string) (values []string) {
	ctx.EachHeader(func(have, value string) {
		if strings.EqualFold(have, name) {
			values = append(values, value)
		}
	})
	return values
}

// tighten bounds each text, list and map that comes in and does not say how
// large it may be. It is called once, when all operations are registered.
func tighten(api *huma.OpenAPI) {
	t := tightener{api.Components.Schemas, make(map[*huma.Schema]bool)}
	for _, item := range api.Paths {
		for _, op := range operationsOf(item) {
			for _, p := range op.Parameters {
				t.schema(p.Schema)
			}
			if op.RequestBody == nil {
				continue
			}
			for _, media := range op.RequestBody.Content {
				t.schema(media.Schema)
			}
		}
	}
	for s := range t.seen {
		s.PrecomputeMessages()
	}
}

// operationsOf returns what a path can be asked for.
func operationsOf(item *huma.PathItem) []*huma.Operation {
	all := []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch, item.Head, item.Options, item.Trace}
	return slices.DeleteFunc(all, func(o *huma.Operation) bool { return o == nil })
}

type tightener struct {
	schemas huma.Registry
	seen    map[*huma.Schema]bool
}

func (t tightener) schema(s *huma.Schema) {
	if s = resolve(t.schemas, s); s == nil || t.seen[s] {
		return
	}
	t.seen[s] = true
	bound := func(have **int, to int) {
		if *have == nil {
			*have = &to
		}
	}
	switch s.Type {
	case huma.TypeString:
		switch {
		case len(s.Enum) > 0:
		case s.Format == multiline:
			bound(&s.MaxLength, linesMaxDefault)
		default:
			bound(&s.MaxLength, textMaxDefault)
		}
	case huma.TypeArray:
		bound(&s.MaxItems, itemsMaxDefault)
		t.schema(s.Items)
	case huma.TypeObject:
		for _, p := range s.Properties {
			t.schema(p)
		}
		if rest, ok := s.AdditionalProperties.(*huma.Schema); ok {
			bound(&s.MaxProperties, propertiesMaxDefault)
			t.schema(rest)
		}
	}
}
