package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/stretchr/testify/require"
)

// strictIn has a field of each sort.
type strictIn struct {
	ID     string   `path:"id"`
	Filter string   `query:"filter"`
	Tags   []string `query:"tags,explode"`
	Body   struct {
		Name   string            `json:"name"`
		Text   string            `json:"text,omitempty" format:"multiline"`
		Short  string            `json:"short,omitempty" maxLength:"5"`
		Labels []string          `json:"labels,omitempty"`
		Args   map[string]string `json:"args,omitempty"`
		Deep   *struct {
			Parts []strictPart `json:"parts,omitempty"`
		} `json:"deep,omitempty"`
		Raw    json.RawMessage `json:"raw,omitempty"`
		Number int64           `json:"number,omitempty"`
	}
}

type strictPart struct {
	Title string `json:"title"`
}

// strictAPI is an API of one operation that takes all of it; what it took
// comes out of the channel.
func strictAPI(t *testing.T) (http.Handler, <-chan *strictIn) {
	t.Helper()
	mux, took := http.NewServeMux(), make(chan *strictIn, 1)
	api := humago.New(mux, huma.DefaultConfig("", ""))
	api.UseMiddleware((&API{}).strict(api))
	huma.Post(api, "/things/{id}", func(_ context.Context, in *strictIn) (*struct{}, error) {
		took <- in
		return nil, nil
	}, write)
	tighten(api.OpenAPI())
	return mux, took
}

func TestStrictBodies(t *testing.T) {
	t.Parallel()
	mux, took := strictAPI(t)
	for name, c := range map[string]struct {
		body   string
		status int
		field  string // "" if it is taken
	}{
		"good":                          {`{"name":"x","text":"a\nb\tc\r\n","labels":["l"],"args":{"k":"v"},"raw":{"any":["thing\n"]},"number":9007199254740993}`, 204, ""},
		"astral":                        {`{"name":"\ud83d\ude00 and \ud83d\ude00"}`, 204, ""},
		"a backslash before u":          {`{"name":"\\ud800"}`, 204, ""},
		"cut":                           {`{"name":"x"`, 400, "body"},
		"no JSON":                       {`name=x`, 400, "body"},
		"two values":                    {`{"name":"x"}{"name":"y"}`, 400, "body"},
		"trailing text":                 {`{"name":"x"} x`, 400, "body"},
		"a comma too many":              {`{"name":"x",}`, 400, "body"},
		"too deep":                      {`{"name":"x","raw":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, 400, "body"},
		"as deep as may be":             {`{"name":"x","raw":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, 204, ""},
		"a key twice":                   {`{"name":"x","name":"y"}`, 422, "body.name"},
		"a key twice, escaped":          {`{"name":"x","n\u0061me":"y"}`, 422, "body.name"},
		"a key twice, further in":       {`{"name":"x","deep":{"parts":[{"title":"a"},{"title":"a","title":"b"}]}}`, 422, "body.deep.parts[1].title"},
		"a key of a map twice":          {`{"name":"x","args":{"one":"1","two":"2","one":"3"}}`, 422, "body.args.one"},
		"a key of raw JSON twice":       {`{"name":"x","raw":{"s3cret-9":1,"s3cret-9":2}}`, 422, "body.raw"},
		"another case":                  {`{"name":"x","Name":"y"}`, 422, "body"},
		"unknown":                       {`{"name":"x","title":"y"}`, 422, "body.title"},
		"unknown, maybe a secret":       {`{"name":"x","s3cret-9":"y"}`, 422, "body"},
		"no double":                     {`{"name":"x","raw":{"n":77e777}}`, 422, "body.raw.n"},
		"no integer":                    {`{"name":"x","number":77e7}`, 422, "body.number"},
		"a fraction":                    {`{"name":"x","number":77.5}`, 422, "body.number"},
		"larger than any integer":       {`{"name":"x","number":77777777777777777777}`, 422, "body.number"},
		"less than any integer":         {`{"name":"x","number":-77777777777777777777}`, 422, "body.number"},
		"unknown, further in":           {`{"name":"x","deep":{"parts":[{"title":"x","more":1}]}}`, 422, "body.deep.parts[0].more"},
		"a control character":           {`{"name":"x\u0001"}`, 422, "body.name"},
		"NUL":                           {`{"name":"x\u0000"}`, 422, "body.name"},
		"DEL":                           {"{\"name\":\"x\x7f\"}", 422, "body.name"},
		"C1":                            {`{"name":"x\u0085"}`, 422, "body.name"},
		"a line break where none is":    {`{"name":"x\ny"}`, 422, "body.name"},
		"in a list":                     {`{"name":"x","labels":["a","b\u0007"]}`, 422, "body.labels[1]"},
		"in a map's value":              {`{"name":"x","args":{"one":"\u001b[2J"}}`, 422, "body.args.one"},
		"in a map's key":                {`{"name":"x","args":{"o\u0000ne":"1"}}`, 422, "body.args"},
		"in an unknown key":             {`{"name":"x","o\u0000ne":"1"}`, 422, "body"},
		"in several lines":              {`{"name":"x","text":"a\u0000"}`, 422, "body.text"},
		"an escape in several lines":    {`{"name":"x","text":"a\u001b"}`, 422, "body.text"},
		"in raw JSON":                   {`{"name":"x","raw":{"when":["a\u0000"]}}`, 422, "body.raw.when[0]"},
		"half a character":              {`{"name":"x\ud800"}`, 422, "body.name"},
		"the other half":                {`{"name":"\udc00"}`, 422, "body.name"},
		"two first halves":              {`{"name":"\ud800\ud800"}`, 422, "body.name"},
		"half, and then a letter":       {`{"name":"\ud800\u0061"}`, 422, "body.name"},
		"no UTF-8":                      {"{\"name\":\"x\xff\"}", 422, "body.name"},
		"no UTF-8 in a key":             {"{\"name\":\"x\",\"args\":{\"x\xff\":\"1\"}}", 422, "body.args"},
		"an object for a text":          {`{"name":{"$ne":""}}`, 422, "body.name"},
		"too long for its own bound":    {`{"name":"x","short":"123456"}`, 422, "body.short"},
		"too long where none is said":   {`{"name":"` + strings.Repeat("x", textMaxDefault+1) + `"}`, 422, "body.name"},
		"too long in a list":            {`{"name":"x","labels":["` + strings.Repeat("x", textMaxDefault+1) + `"]}`, 422, "body.labels[0]"},
		"too long in a map":             {`{"name":"x","args":{"k":"` + strings.Repeat("x", textMaxDefault+1) + `"}}`, 422, "body.args.k"},
		"too long by a reference":       {`{"name":"x","deep":{"parts":[{"title":"` + strings.Repeat("x", textMaxDefault+1) + `"}]}}`, 422, "body.deep.parts[0].title"},
		"long in several lines":         {`{"name":"x","text":"` + strings.Repeat("x", 10*textMaxDefault) + `"}`, 204, ""},
		"too many in a list":            {`{"name":"x","labels":[` + strings.Repeat(`"x",`, itemsMaxDefault) + `"x"]}`, 422, "body.labels"},
		"as long as may be, not a byte": {`{"name":"` + strings.Repeat("ä", textMaxDefault) + `"}`, 204, ""},
	} {
		for _, contentType := range []string{"application/json", "application/json; charset=utf-8", "application/x+json", ""} {
			req := httptest.NewRequest(http.MethodPost, "/things/1", strings.NewReader(c.body))
			req.Header.Set("Content-Type", contentType)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, req)
			require.Equal(t, c.status, w.Code, "%s: %s", name, w.Body)
			if c.field == "" {
				require.NotEmpty(t, (<-took).Body.Name)
				continue
			}
			var p Problem
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p), name)
			require.NotEmpty(t, p.Errors, name)
			require.Equal(t, c.field, p.Errors[0].Field, name)
			require.NotEmpty(t, p.Errors[0].Message, name)
			require.NotContains(t, w.Body.String(), "s3cret", name)
			require.NotContains(t, w.Body.String(), "77", name)
		}
	}
	require.Empty(t, took)
}

func TestStrictParameters(t *testing.T) {
	t.Parallel()
	mux, took := strictAPI(t)
	for target, field := range map[string]string{
		"/things/1?filter=x&tags=a&tags=b":                 "",
		"/things/1?filter=x&filter=y":                      "query.filter",
		"/things/1?filter=x%00":                            "query.filter",
		"/things/1?filter=x%0ay":                           "query.filter",
		"/things/1?filter=x%c2%85":                         "query.filter",
		"/things/1?filter=x%ff":                            "query.filter",
		"/things/1?tags=a&tags=%1b":                        "query.tags",
		"/things/%00":                                      "path.id",
		"/things/x%7f":                                     "path.id",
		"/things/x%ff":                                     "path.id",
		"/things/1?fliter=x":                               "query.fliter",
		"/things/1?s3cret-9=x":                             "query",
		"/things/1?filter=%zz":                             "query",
		"/things/1?filter=a;b=c":                           "query",
		"/things/" + strings.Repeat("x", textMaxDefault+1): "path.id",
		"/things/1?filter=" + url.QueryEscape(strings.Repeat("x", textMaxDefault+1)): "query.filter",
	} {
		req := httptest.NewRequest(http.MethodPost, target, strings.NewReader(`{"name":"x"}`))
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		if field == "" {
			require.Equal(t, http.StatusNoContent, w.Code, w.Body)
			require.Equal(t, []string{"a", "b"}, (<-took).Tags)
			continue
		}
		var p Problem
		require.Equal(t, http.StatusUnprocessableEntity, w.Code, "%s: %s", target, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, field, p.Errors[0].Field, target)
		require.NotContains(t, w.Body.String(), "s3cret")
	}
}

// What would be read as JSON is checked as JSON, whatever it is called; and what
// a caller says twice does not depend on which of the two is read.
func TestStrictHeaders(t *testing.T) {
	t.Parallel()
	mux, took := strictAPI(t)
	post := func(header http.Header) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodPost, "/things/1", strings.NewReader(`{"name":"x\u001b","name":"y"}`))
		req.Header = header
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, req)
		return w
	}
	for _, contentType := range []string{
		"json", "json; charset=utf-8", "x+application/json", "+", "x+", ";", "Application/JSON", "a/b+json", "a/b+json+json", "a;b=+json", "text/plain", "JSON", "+json",
	} {
		w := post(http.Header{"Content-Type": {contentType}})
		require.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType}, w.Code, "%s: %s", contentType, w.Body)
	}
	w := post(http.Header{"Content-Type": {"application/json", "text/plain"}})
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	require.Empty(t, took)
}

// What could not be decoded is not repeated, whatever gets as far as that.
func TestDecodingErrorsAreNotRepeated(t *testing.T) {
	t.Parallel()
	var v struct {
		N    int8
		At   time.Time
		Text json.RawMessage
	}
	for _, body := range []string{`{"n":777}`, `{"at":"777"}`, `{"at":777}`, `{"text":777x}`, `{"n":"777"}`} {
		err := json.Unmarshal([]byte(body), &v)
		require.Error(t, err, body)
		p := newProblem(422, "refused", &huma.ErrorDetail{Location: "body", Message: err.Error()})
		require.NotContains(t, p.Errors[0].Message, "777")
		require.NotContains(t, p.Errors[0].Message, "json")
	}
	kept := &huma.ErrorDetail{Location: "body.name", Message: "expected string"}
	require.Equal(t, "expected string", newProblem(422, "refused", kept).Errors[0].Message)
}

// A body that is larger than the operation takes is refused as before.
func TestStrictLargeBody(t *testing.T) {
	t.Parallel()
	mux, _ := strictAPI(t)
	req := httptest.NewRequest(http.MethodPost, "/things/1", strings.NewReader(`{"name":"`+strings.Repeat("x", 17<<10)+`"}`))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, req)
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code)
}
