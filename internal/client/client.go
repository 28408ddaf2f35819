// Package client calls the HTTP API: a server's, or one in the same process.
// The command line is built on it, so that each command does the same whether
// it is given a server or a database.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// TimeoutDefault bounds one request: more than the ten seconds that the longest
// call works for, and the store's own timeout.
const TimeoutDefault = time.Minute

// Bounds of the client.
const (
	// pageMax is the largest page that the API gives.
	pageMax = 100
	// tries is how often a read or a create is made while the server asks to
	// wait, and a create whose answer is lost.
	tries = 3
	// lostWait is how long a create waits when its answer was lost.
	lostWait = time.Second
	// waitMax is the longest of these waits: who asks for more is not waited for.
	waitMax = 10 * time.Second
	// answerMaxBytes is the largest answer that is read.
	answerMaxBytes = 64 << 20
)

// Params say whose API is called: URL and Token, or Handler.
type Params struct {
	// URL is the server's, without a path: https://triggerd.example.
	URL string
	// Token is sent to that server alone, and shows in no error.
	Token string
	// Handler answers in this process, in place of a server.
	Handler   http.Handler
	UserAgent string
	// Timeout bounds one request to a server; TimeoutDefault if 0.
	Timeout time.Duration
}

// Client calls one API. Safe for concurrent use.
type Client struct {
	base  url.URL
	token string
	agent string
	http  http.Client
}

// New makes a client. It refuses a URL that is none, or that holds a user, a
// password, a query or a fragment.
func New(p Params) (*Client, error) {
	c := &Client{token: p.Token, agent: p.UserAgent}
	// Nothing of the API redirects. Whoever does would get the token.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if p.Handler != nil {
		c.base = url.URL{Scheme: "http", Host: "in-process"}
		c.http.Transport = inProcess{p.Handler}
		return c, nil
	}
	u, err := url.Parse(p.URL)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "":
		return nil, errors.New("must be http or https and a host: https://triggerd.example")
	case u.User != nil:
		return nil, errors.New("must not hold a user or a password: the token has a place of its own")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("must not hold a query or a fragment")
	}
	if strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		return nil, errors.New("must not end in /v1, which each call adds: https://triggerd.example")
	}
	c.base = url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/"), RawPath: strings.TrimRight(u.RawPath, "/")}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	c.http.Transport, c.http.Timeout = transport, cmp.Or(p.Timeout, TimeoutDefault)
	return c, nil
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Path makes the path of a call of /v1 from segments, which it escapes: ids
// hold slashes.
func Path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// Request is one call.
type Request struct {
	Method string
	Path   string // made by Path
	Query  url.Values
	Body   any // sent as JSON; none if nil
	// IfMatch is the ETag of what is edited.
	IfMatch string
	// Reads marks a call that changes nothing though it is no GET.
	Reads bool
	// Creates marks a call that makes something, and takes an Idempotency-Key:
	// it gets one of its own, so that it may be repeated.
	Creates bool
}

// Do makes a call and decodes its answer into out, unless that is nil. It
// returns the answer's header. A read or a create that the server can't answer
// now, and asks to repeat, is repeated a few times; a create also when no answer
// came. The error is an *Error where the API, or whoever answered in its place,
// refused.
func (c *Client) Do(ctx context.Context, r Request, out any) (http.Header, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = json.Marshal(r.Body); err != nil {
			return nil, fmt.Errorf("encode the call: %w", err)
		}
	}
	key := ""
	if r.Creates {
		key = uuid.NewString()
	}
	for try := 1; ; try++ {
		header, err := c.once(ctx, r, key, body, out)
		after, again := r.again(err)
		if !again || try == tries {
			return header, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(after):
		}
	}
}

// again reports whether the call may be repeated after that error, and when.
func (r *Request) again(err error) (after time.Duration, again bool) {
	if r.Method != http.MethodGet && !r.Reads && !r.Creates {
		return 0, false
	}
	if refused, ok := errors.AsType[*Error](err); ok {
		return refused.RetryAfter, refused.again()
	}
	// Whether the call was taken is open; under its key that does not matter.
	_, lost := errors.AsType[*UnreachableError](err)
	return lostWait, lost && r.Creates
}

func (c *Client) once(ctx context.Context, r Request, key string, body []byte, out any) (http.Header, error) {
	for s := range strings.SplitSeq(strings.TrimPrefix(r.Path, "/"), "/") {
		if s == "" || s == "." || s == ".." { // no id; a server would look elsewhere
			return nil, &Error{Status: http.StatusNotFound, Problem: true, Detail: "there is no such thing"}
		}
	}
	u := c.base
	u.RawPath = u.EscapedPath() + r.Path
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, fmt.Errorf("the path of the call: %w", err)
	}
	u.Path, u.RawQuery = path, r.Query.Encode()
	var reader io.Reader = http.NoBody
	if body != nil {
		reader = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("the call: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.agent != "" {
		req.Header.Set("User-Agent", c.agent)
	}
	if r.IfMatch != "" {
		req.Header.Set("If-Match", r.IfMatch)
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerMaxBytes+1))
	switch {
	case err != nil:
		return nil, c.unreachable(ctx, err)
	case len(text) > answerMaxBytes:
		return nil, fmt.Errorf("%s: the answer is longer than %d bytes", c.base.Host, answerMaxBytes)
	case resp.StatusCode >= 300:
		return nil, newError(resp, text)
	case out == nil || len(text) == 0:
		return resp.Header, nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("%s does not answer as triggerd does: is it the URL of its API? (%w)", c.base.Host, err)
	}
	return resp.Header, nil
}

// UnreachableError says that no answer came. Whether the server took the call
// is open.
type UnreachableError struct {
	Host string
	Err  error
}

func (e *UnreachableError) Error() string { return e.Host + " does not answer: " + e.Err.Error() }

func (e *UnreachableError) Unwrap() error { return e.Err }

// unreachable drops the URL that net/http puts before its errors: queries hold
// what people look for.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		if ue.Timeout() {
			return &UnreachableError{c.base.Host, errors.New("no answer in time")}
		}
		err = ue.Err
	}
	return &UnreachableError{c.base.Host, err}
}

// Get reads one thing into out, and returns its ETag.
func (c *Client) Get(ctx context.Context, path string, query url.Values, out any) (etag string, err error) {
	header, err := c.Do(ctx, Request{Method: http.MethodGet, Path: path, Query: query}, out)
	return header.Get("ETag"), err
}

// Post makes a call with a body; none if that is nil.
func (c *Client) Post(ctx context.Context, path string, body, out any) error {
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body}, out)
	return err
}

// Create makes a call that makes something, under an Idempotency-Key.
func (c *Client) Create(ctx context.Context, path string, body, out any) error {
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body, Creates: true}, out)
	return err
}

// List reads a list page by page, up to limit items. Next is where the list goes
// on, for the parameter `after`; empty if this was all.
func (c *Client) List(ctx context.Context, path string, query url.Values, limit int) (items []json.RawMessage, next string, err error) {
	items = []json.RawMessage{}
	q := url.Values{}
	for k, v := range query {
		q[k] = v
	}
	for {
		q.Set("limit", strconv.Itoa(min(pageMax, limit-len(items))))
		var page struct {
			Items []json.RawMessage `json:"items"`
			Next  json.RawMessage   `json:"next"`
		}
		if _, err := c.Get(ctx, path, q, &page); err != nil {
			return items, next, err
		}
		items = append(items, page.Items...)
		// A cursor is a text, but of events, whose cursor is a number.
		if next = strings.Trim(string(page.Next), `"`); next == "null" {
			next = ""
		}
		if next == "" || len(items) >= limit {
			return items, next, nil
		}
		q.Set("after", next)
	}
}
