package client

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func problem(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// both are a client of a server, and one of the same handler in this process.
func both(t *testing.T, h http.HandlerFunc) map[string]*Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	remote, err := New(Params{URL: srv.URL, Token: "trg_s3cret"})
	require.NoError(t, err)
	t.Cleanup(remote.Close)
	local, err := New(Params{Handler: h})
	require.NoError(t, err)
	return map[string]*Client{"server": remote, "in process": local}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	for name, c := range both(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.EscapedPath() + "?" + r.URL.RawQuery {
		case "/v1/tenants/acme/effects/acme%2F0%7Cx?":
			w.Header().Set("ETag", `"7"`)
			_, _ = w.Write([]byte(`{"a":1}`))
		default:
			problem(w, 422, `{"detail":"refused","errors":[{"field":"body.a","message":"no"}]}`)
		}
	}) {
		var out struct{ A int }
		etag, err := c.Get(t.Context(), Path("tenants", "acme", "effects", "acme/0|x"), nil, &out)
		require.NoError(t, err, name)
		require.Equal(t, `"7"`, etag)
		require.Equal(t, 1, out.A)
		err = c.Post(t.Context(), Path("x"), map[string]string{"a": "b"}, nil)
		var refused *Error
		require.ErrorAs(t, err, &refused, name)
		require.Equal(t, []Field{{Field: "body.a", Message: "no"}}, refused.Fields)
		for _, id := range []string{"", ".", ".."} {
			_, err = c.Get(t.Context(), Path("tenants", id), nil, nil)
			require.ErrorAs(t, err, &refused)
			require.Equal(t, 404, refused.Status)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.Post(ctx, Path("x"), nil, nil), context.Canceled, name)
	}
}

// A read is repeated while the server asks for it, a change never, and neither
// for ever.
func TestReadsAreRepeated(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	for name, c := range both(t, func(w http.ResponseWriter, r *http.Request) {
		if n := calls.Add(1); r.URL.Path == "/v1/well" && n == 2 {
			_, _ = w.Write([]byte(`{}`))
			return
		}
		w.Header().Set("Retry-After", map[string]string{"/v1/long": "3600"}[r.URL.Path]+"0")
		problem(w, 503, `{"detail":"the store does not answer"}`)
	}) {
		for _, tc := range []struct {
			call  Request
			fails bool
			calls int32
		}{
			{Request{Method: "GET", Path: "/v1/well"}, false, 2},
			{Request{Method: "GET", Path: "/v1/bad"}, true, tries},
			{Request{Method: "POST", Path: "/v1/bad", Reads: true}, true, tries},
			{Request{Method: "POST", Path: "/v1/bad"}, true, 1},
			{Request{Method: "POST", Path: "/v1/well", Creates: true}, false, 2},
			{Request{Method: "POST", Path: "/v1/long", Creates: true}, true, 1},
			{Request{Method: "DELETE", Path: "/v1/bad"}, true, 1},
			{Request{Method: "GET", Path: "/v1/long"}, true, 1},
		} {
			calls.Store(0)
			_, err := c.Do(t.Context(), tc.call, nil)
			require.Equal(t, tc.fails, err != nil, "%s %v", name, tc.call)
			require.Equal(t, tc.calls, calls.Load(), "%s %v", name, tc.call)
		}
	}
}

// A create whose answer is lost is sent again under the same key, and what it
// makes under that is made once. The next create has another.
func TestCreatesCarryAKey(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	keys := map[string]int{}
	lost := false
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		keys[r.Header.Get("Idempotency-Key")]++
		if lost = !lost; lost {
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write([]byte(`{"a":1}`))
	}))
	t.Cleanup(srv.Close)
	c, err := New(Params{URL: srv.URL, Token: "trg_s3cret"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var out struct{ A int }
	for range 2 {
		require.NoError(t, c.Create(t.Context(), Path("x"), item{}, &out))
		require.Equal(t, 1, out.A)
	}
	seen := func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		defer clear(keys)
		return maps.Clone(keys)
	}
	first := seen()
	require.Len(t, first, 2)
	for key, n := range first {
		require.NotEmpty(t, key)
		require.Equal(t, 2, n)
	}
	var gone *UnreachableError
	require.ErrorAs(t, c.Post(t.Context(), Path("x"), item{}, nil), &gone, "a change without a key is not repeated")
	require.Equal(t, map[string]int{"": 1}, seen())
}

type item map[string]string

// No redirect is followed, so that the token stays where it belongs, and no
// error tells it.
func TestTheTokenStays(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen.Store(r.Header.Get("Authorization")) }))
	t.Cleanup(elsewhere.Close)
	c := both(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/v1/x?token="+r.Header.Get("Authorization"), http.StatusTemporaryRedirect)
	})["server"]
	_, err := c.Get(t.Context(), "/v1/x", url.Values{"q": {"s3cret"}}, nil)
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, elsewhere.URL, refused.Location)
	require.NotContains(t, err.Error(), "s3cret")
	require.Nil(t, seen.Load())
	elsewhere.Close()
	gone, err := New(Params{URL: elsewhere.URL, Token: "trg_s3cret"})
	require.NoError(t, err)
	t.Cleanup(gone.Close)
	_, err = gone.Get(t.Context(), "/v1/x", url.Values{"q": {"s3cret"}}, nil)
	var unreachable *UnreachableError
	require.ErrorAs(t, err, &unreachable)
	require.NotContains(t, err.Error(), "s3cret")
}

func TestLists(t *testing.T) {
	t.Parallel()
	for name, c := range both(t, func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); q.Get("after") + "/" + q.Get("limit") {
		case "/100", "/3":
			_, _ = w.Write([]byte(`{"items":[1,2,3],"next":"a"}`))
		case "a/97", "a/1":
			_, _ = w.Write([]byte(`{"items":[],"next":7}`)) // a short page is not the last
		case "7/97":
			_, _ = w.Write([]byte(`{"items":[4]}`))
		default:
			problem(w, 422, `{"detail":"`+r.URL.RawQuery+`"}`)
		}
	}) {
		items, next, err := c.List(t.Context(), "/v1/x", nil, 100)
		require.NoError(t, err, name)
		require.Len(t, items, 4)
		require.Empty(t, next)
		items, next, err = c.List(t.Context(), "/v1/x", nil, 3)
		require.NoError(t, err, name)
		require.Len(t, items, 3)
		require.Equal(t, "a", next)
	}
}
