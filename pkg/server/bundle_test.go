package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// The secrets of every bundle: no answer and no log line may have them.
const (
	hookSecret   = "hook-Zk3x9-of-acme"
	secondSecret = "hook-Qp71m-of-acme"
	otherSecret  = "hook-Wt52n-of-other"
	botSecret    = "bot-Rv84k-of-acme"
)

// The things of every bundle.
const (
	hookID   = "hook-1"
	secondID = "hook-2"
	otherID  = "hook-3"
	botID    = "bot-1"
)

// wait bounds what a test waits for: far more than it takes.
const wait = 30 * time.Second

// tick is how often it looks where there is no signal.
const tick = 5 * time.Millisecond

// bundle is one replica and what it works with. It answers HTTP; its loops run
// only after start.
type bundle struct {
	store    *faultStore
	mem      *boardmem.Store
	server   *Server
	url      string
	client   *http.Client
	launch   launchFunc
	launched chan trigger.LaunchRequest
	settled  chan trigger.Settle
	logs     *syncBuffer
	// hidden are the texts that must not come out of the replica.
	hidden []string
}

type launchFunc func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error)

func (f launchFunc) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	return f(ctx, r)
}

// option changes a bundle's parameters before its replica is made.
type option func(*bundle, *Params)

func withTiming(change func(*Timing)) option { return func(_ *bundle, p *Params) { change(&p.Timing) } }

func withLaunch(f launchFunc) option { return func(b *bundle, _ *Params) { b.launch = f } }

// build makes a replica of the tenants acme and other; nothing runs or listens.
func build(t *testing.T, opts ...option) *bundle {
	t.Helper()
	b := &bundle{
		mem: boardmem.New(), logs: &syncBuffer{}, client: &http.Client{Transport: &http.Transport{}},
		launched: make(chan trigger.LaunchRequest, 100), settled: make(chan trigger.Settle, 100),
	}
	b.store = &faultStore{Store: b.mem}
	b.launch = func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
		b.launched <- r
		return trigger.Launched{RunID: "run-1"}, nil
	}
	t.Cleanup(func() {
		b.client.CloseIdleConnections()
		b.checkHidden(t, "the log", b.logs.String())
	})
	key, err := seal.ParseKey(seal.NewKey())
	require.NoError(t, err)
	sealer, err := seal.New(key)
	require.NoError(t, err)
	b.configure(t, sealer)
	p := Params{
		Store: b.store, Sealer: sealer, Logger: zerolog.New(b.logs), Listen: "127.0.0.1:0", Name: "replica-1", Timing: TimingDefault(),
		Settled: func(_ trigger.Effect, s trigger.Settle) { b.settled <- s },
	}
	for _, o := range opts {
		o(b, &p)
	}
	p.Launcher = b.launch
	b.server, err = New(p)
	require.NoError(t, err)
	b.server.api.failures.max = 1 << 30 // all of a test's calls come from one address
	return b
}

// setup is a replica that answers HTTP; its loops don't run, so that nothing
// but the test's own requests touches the store.
func setup(t *testing.T, opts ...option) *bundle {
	t.Helper()
	b := build(t, opts...)
	srv := httptest.NewServer(b.server.http.Handler)
	t.Cleanup(srv.Close)
	b.url = srv.URL
	return b
}

// start is a whole replica.
func start(t *testing.T, opts ...option) *bundle {
	t.Helper()
	b := build(t, opts...)
	require.NoError(t, b.server.Start(t.Context()))
	t.Cleanup(b.server.Stop)
	b.url = "http://" + b.server.Addr()
	return b
}

func (b *bundle) configure(t *testing.T, sealer *seal.Sealer) {
	t.Helper()
	ctx := t.Context()
	sealed := func(owner, secret string) trigger.Sealed {
		out, err := sealer.Seal(owner, []byte(secret))
		require.NoError(t, err)
		b.hidden = append(b.hidden, string(out), secret)
		return out
	}
	b.hidden = append(b.hidden, errFault.Error(), "s3cret")
	for tenant, hooks := range map[string]map[string]string{
		"acme":  {hookID: hookSecret, secondID: secondSecret},
		"other": {otherID: otherSecret},
	} {
		require.NoError(t, b.mem.TenantSave(ctx, &trigger.Tenant{ID: tenant, Name: tenant, Revision: 1}))
		board := map[string]string{"acme": "board-1", "other": "board-o"}[tenant]
		require.NoError(t, b.mem.BoardSave(ctx, &tracker.Board{
			TenantID: tenant, ID: board, Name: "issues", Revision: 1,
			Columns: []tracker.Column{{ID: "todo", Name: "To do"}, {ID: "done", Name: "Done", Terminal: true}},
		}))
		for id, secret := range hooks {
			require.NoError(t, b.mem.HookSave(ctx, &trigger.Hook{
				TenantID: tenant, ID: id, Name: id, Provider: github.Provider, BoardID: board, OpenColumn: "todo", ClosedColumn: "done",
				Secret: sealed(trigger.HookOwner(tenant, id), secret), Revision: 1,
			}))
		}
	}
	require.NoError(t, b.mem.BotSave(ctx, &trigger.Bot{
		TenantID: "acme", ID: botID, Name: "implementer", URL: "http://127.0.0.1:1/launch", Replay: trigger.ReplaySafe,
		Secret: sealed(trigger.BotOwner("acme", botID), botSecret), Revision: 1,
	}))
}

// subscribe has each new card of acme's board launch the bot.
func (b *bundle) subscribe(t *testing.T) {
	t.Helper()
	require.NoError(t, b.mem.SubscriptionSave(t.Context(), &trigger.Subscription{
		TenantID: "acme", ID: "sub-1", Name: "greet", Revision: 1, Enabled: true, BotID: botID,
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated}},
	}))
}

// token makes a token; a viewer's if a tenant is named, else an admin's.
func (b *bundle) token(t *testing.T, tenant string) string {
	t.Helper()
	p := TokenParams{Name: "test", Role: trigger.RoleAdmin}
	if tenant != "" {
		p.Role, p.TenantID = trigger.RoleViewer, tenant
	}
	token, text, err := TokenCreate(t.Context(), b.mem, p)
	require.NoError(t, err)
	b.hidden = append(b.hidden, token.Hash, text)
	return text
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) hook(t *testing.T) (h HookAnswer) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), &h))
	return h
}

// problem checks that the answer is a problem of its own status.
func (a answer) problem(t *testing.T) (p Problem) {
	t.Helper()
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
	require.NoError(t, json.Unmarshal([]byte(a.body), &p))
	require.Equal(t, a.status, p.Status)
	require.Equal(t, http.StatusText(a.status), p.Title)
	return p
}

func (b *bundle) checkHidden(t *testing.T, where, text string) {
	t.Helper()
	for _, h := range b.hidden {
		if where == "the log" && h == errFault.Error() {
			continue // the log is where it belongs
		}
		assert.NotContains(t, text, h, where)
	}
}

// do sends a request and checks that the answer gives nothing away.
func (b *bundle) do(t *testing.T, req *http.Request) answer {
	t.Helper()
	resp, err := b.client.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var header bytes.Buffer
	require.NoError(t, resp.Header.Write(&header))
	b.checkHidden(t, "an answer", header.String()+string(body))
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// get asks the API; without a token if that is empty.
func (b *bundle) get(t *testing.T, token, path string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+path, http.NoBody)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return b.do(t, req)
}

// delivery is an inbound delivery; the zero value of a field is what is right.
type delivery struct {
	tenant, hook string
	event        string
	id           string
	body         []byte
	secret       string
	// edit changes the request once it is signed.
	edit func(*http.Request)
}

func (b *bundle) request(t *testing.T, d delivery) *http.Request {
	t.Helper()
	or := func(s, def string) string {
		if s == "" {
			return def
		}
		return s
	}
	path := "/v1/tenants/" + or(d.tenant, "acme") + "/hooks/" + or(d.hook, hookID)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+path, bytes.NewReader(d.body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(github.HeaderEvent, or(d.event, "issues"))
	req.Header.Set(github.HeaderDelivery, or(d.id, uuid.NewString()))
	req.Header.Set(github.HeaderSignature, github.Sign([]byte(or(d.secret, hookSecret)), d.body))
	if d.edit != nil {
		d.edit(req)
	}
	return req
}

func (b *bundle) deliver(t *testing.T, d delivery) answer {
	t.Helper()
	return b.do(t, b.request(t, d))
}

// payload returns a delivery that ships with the program.
func payload(t *testing.T, name string) []byte {
	t.Helper()
	all, err := github.Payloads()
	require.NoError(t, err)
	for _, p := range all {
		if p.Name == name {
			return p.Body
		}
	}
	require.Failf(t, "no such payload", "%s", name)
	return nil
}

// changed returns a shipped delivery with some of it replaced: "a.b" is a path.
func changed(t *testing.T, name string, values map[string]any) []byte {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(payload(t, name)))
	dec.UseNumber()
	var root map[string]any
	require.NoError(t, dec.Decode(&root))
	for path, v := range values {
		at, keys := root, strings.Split(path, ".")
		for _, k := range keys[:len(keys)-1] {
			at = at[k].(map[string]any)
		}
		at[keys[len(keys)-1]] = v
	}
	out, err := json.Marshal(root)
	require.NoError(t, err)
	return out
}

// issueCard is the card of the shipped payloads' issue.
func issueCard() string { return github.CardID("acme", "Codertocat/Hello-World", 1) }

// events returns acme's log without its voids.
func (b *bundle) events(t *testing.T) (out []trigger.Event) {
	t.Helper()
	all, err := b.mem.EventList(t.Context(), "acme", 0, 10_000)
	require.NoError(t, err)
	for _, e := range all {
		if e.Source != trigger.SourceVoid {
			out = append(out, e)
		}
	}
	return out
}

// kinds returns the kinds of acme's events, in order.
func (b *bundle) kinds(t *testing.T) (out []tracker.Kind) {
	t.Helper()
	for _, e := range b.events(t) {
		out = append(out, e.Kind)
	}
	return out
}

func (b *bundle) card(t *testing.T) *tracker.Card {
	t.Helper()
	card, err := b.mem.CardGet(t.Context(), "acme", issueCard())
	require.NoError(t, err)
	return card
}

// recv waits for a signal.
func recv[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(wait):
		require.Fail(t, "waited in vain")
		return *new(T)
	}
}

// syncBuffer is a log to read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
