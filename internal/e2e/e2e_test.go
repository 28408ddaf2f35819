// Package e2e tests the built binary: processes, signals, a real database.
package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

var binary string

func TestMain(m *testing.M) {
	if spec := os.Getenv(fleetEnv); spec != "" {
		if err := fleetProcess(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "triggerd-e2e")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "triggerd")
	build := exec.Command("go", "build", "-race", "-o", binary, "github.com/triggerd/triggerd/cmd/triggerd")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const secret = "a secret of this test's own"

// triggerd runs the binary to its end and returns what it printed.
func triggerd(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	require.NoError(t, ctx.Err(), "%v did not end\n%s%s", args, &out, &errOut)
	if exit := (*exec.ExitError)(nil); err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// replica is a running `triggerd serve`.
type replica struct {
	name, addr string
	cmd        *exec.Cmd
	exited     chan struct{}
	mu         sync.Mutex
	log        bytes.Buffer
}

func serve(t *testing.T, env []string, name string, args ...string) *replica {
	t.Helper()
	r := &replica{name: name, exited: make(chan struct{})}
	r.cmd = exec.Command(binary, append([]string{"serve", "--listen", "127.0.0.1:0", "--name", name}, args...)...)
	r.cmd.Env = append(os.Environ(), env...)
	stderr, err := r.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, r.cmd.Start())
	ready := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			r.mu.Lock()
			r.log.Write(append(lines.Bytes(), '\n'))
			r.mu.Unlock()
			var line struct{ Message, Listen string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "ready" {
				ready <- line.Listen
			}
		}
	}()
	go func() {
		<-read
		_ = r.cmd.Wait()
		close(r.exited)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.exited
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, r.logged())
		}
	})
	select {
	case r.addr = <-ready:
	case <-r.exited:
		require.Fail(t, "serve ended", r.logged())
	case <-time.After(time.Minute):
		require.Fail(t, "serve is not ready", r.logged())
	}
	return r
}

func (r *replica) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// bot records launches and holds each until released.
type bot struct {
	*httptest.Server
	mu       sync.Mutex
	launches map[string][]string // bodies by key
	arrived  chan string
	release  chan struct{}
}

func newBot(t *testing.T) *bot {
	t.Helper()
	b := &bot{launches: make(map[string][]string), arrived: make(chan string, 1000), release: make(chan struct{})}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = launch.Verify([]byte(secret), r.Header, body, time.Now(), launch.VerifyToleranceDefault)
		}
		if err != nil {
			t.Errorf("launch: %v", err)
			return
		}
		key := r.Header.Get(launch.HeaderIdempotencyKey)
		b.mu.Lock()
		b.launches[key] = append(b.launches[key], string(body))
		n := len(b.launches)
		b.mu.Unlock()
		b.arrived <- key
		select {
		case <-b.release:
		case <-r.Context().Done():
			return
		}
		fmt.Fprintf(w, `{"run_id":"run-%d"}`, n)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bot) of(key string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.launches[key]...)
}

// request builds a signed delivery.
func request(t *testing.T, addr, hook string, p github.Payload, id string, body io.Reader) *http.Request {
	t.Helper()
	req, err := newRequest(t.Context(), addr, hook, p, id, body)
	require.NoError(t, err)
	return req
}

func newRequest(ctx context.Context, addr, hook string, p github.Payload, id string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+hook, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(p.Body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(github.HeaderEvent, p.Event)
	req.Header.Set(github.HeaderDelivery, id)
	req.Header.Set(github.HeaderSignature, github.Sign([]byte(secret), p.Body))
	return req, nil
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

// deliver sends a delivery and returns the answer's status and body.
func deliver(t *testing.T, addr, hook string, p github.Payload, id string) (int, map[string]any) {
	t.Helper()
	resp, err := client.Do(request(t, addr, hook, p, id, bytes.NewReader(p.Body)))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var answer map[string]any
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	return resp.StatusCode, answer
}

func payloads(t *testing.T) map[string]github.Payload {
	t.Helper()
	list, err := github.Payloads()
	require.NoError(t, err)
	out := make(map[string]github.Payload)
	for _, p := range list {
		out[p.Name] = p
	}
	return out
}

const triggers = `tenants:
  - id: acme
    boards:
      - name: issues
        columns: [{id: open, name: Open}, {id: closed, name: Closed, terminal: true}]
    bots:
      - {name: implementer, url: "%s", secret: {env: E2E_SECRET}}
    hooks:
      - {name: github, provider: github, board: issues, columns: {open: open, closed: closed}, secret: {env: E2E_SECRET}}
    subscriptions:
      - {name: greet, on: {kinds: [card.created], board: issues}, bot: implementer}
      - {name: fix-once, if: {labels_all: [bug]}, bot: implementer, consume: [bug]}
`

// configured applies the triggers to a fresh database and returns the flags
// for it, the environment, and the hook's path.
func configured(t *testing.T, botURL string) (flags, env []string, hook string, store *boardmongo.Store) {
	t.Helper()
	store = testdb.Store(t)
	name := store.Database().Name()
	flags = []string{"--mongo-uri", testdb.URI(t), "--database", name}
	env = []string{"TRIGGERD_SEAL_KEY=" + seal.NewKey(), "E2E_SECRET=" + secret}
	file := filepath.Join(t.TempDir(), "triggers.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, triggers, botURL), 0o600))
	out, errOut, code := triggerd(t, env, append([]string{"apply", "-f", file}, flags...)...)
	require.Zero(t, code, errOut)
	require.NotContains(t, out+errOut, secret)
	again, errOut, code := triggerd(t, env, append([]string{"apply", "-f", file}, flags...)...)
	require.Zero(t, code, errOut)
	require.Contains(t, again, "nothing to change")
	_, rest, ok := strings.Cut(out, "POST ")
	require.True(t, ok, out)
	hook = strings.Fields(rest)[0]
	return flags, env, hook, store
}

// eventually waits for a condition of the database.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		require.True(t, time.Now().Before(deadline), "waiting for %s", what)
		time.Sleep(20 * time.Millisecond)
	}
}

// Two replicas, one killed with a request half sent to it and a launch under
// way: every accepted delivery has its effects, each key is launched, and the
// one-shot label is spent once.
func TestTwoReplicasOneKilled(t *testing.T) {
	t.Parallel()
	b := newBot(t)
	flags, env, hook, store := configured(t, b.URL)
	serveFlags := append([]string{"--lease", "3s", "--attempt-deadline", "2500ms", "--http-timeout", "2s", "--retry-base", "50ms", "--retry-cap", "200ms"}, flags...)
	replicas := map[string]*replica{}
	for _, name := range []string{"alpha", "beta"} {
		replicas[name] = serve(t, env, name, serveFlags...)
	}
	ps := payloads(t)
	ids := map[string]string{}
	for name := range ps {
		ids[name] = uuid.NewString()
	}
	status, _ := deliver(t, replicas["alpha"].addr, hook, ps["ping"], ids["ping"])
	require.Equal(t, http.StatusOK, status)
	status, answer := deliver(t, replicas["beta"].addr, hook, ps["issues.opened"], ids["issues.opened"])
	require.Equal(t, http.StatusAccepted, status)
	require.Equal(t, "accepted", answer["status"])
	cardID, _ := answer["card_id"].(string)

	// Both effects of the card's creation are under way at the bot. The
	// replica that holds the one-shot dies, and with it its two requests: the
	// one to the bot, and a delivery of which it has half.
	<-b.arrived
	<-b.arrived
	rows, err := store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", Limit: 100})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	var victim, survivor *replica
	for _, row := range rows {
		if len(row.Consume) > 0 {
			require.Equal(t, trigger.StateClaimed, row.State)
			victim = replicas[row.Worker]
		}
	}
	for _, r := range replicas {
		if r != victim {
			survivor = r
		}
	}
	labeled := ps["issues.labeled"]
	half, sent := newHalfBody(labeled.Body)
	broken := make(chan error, 1)
	req := request(t, victim.addr, hook, labeled, ids[labeled.Name], half)
	go func() {
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		broken <- err
	}()
	<-sent
	require.NoError(t, victim.cmd.Process.Signal(syscall.SIGKILL))
	<-victim.exited
	require.NoError(t, half.Close())
	require.Error(t, <-broken, "not answered")

	close(b.release)
	for _, name := range []string{"issues.labeled", "issues.assigned", "issues.unlabeled"} {
		status, answer := deliver(t, survivor.addr, hook, ps[name], ids[name])
		require.Equal(t, http.StatusAccepted, status)
		require.Equal(t, "accepted", answer["status"], name)
	}
	for _, name := range []string{"issues.opened", "issues.labeled"} {
		status, answer := deliver(t, survivor.addr, hook, ps[name], ids[name])
		require.Equal(t, http.StatusAccepted, status)
		require.Equal(t, "duplicate", answer["status"], name)
	}
	for _, name := range []string{"issue_comment.created", "pull_request.labeled"} {
		status, answer := deliver(t, survivor.addr, hook, ps[name], ids[name])
		require.Equal(t, http.StatusAccepted, status)
		require.Equal(t, "ignored", answer["status"], name)
	}

	eventually(t, "all effects to be done", func() bool {
		rows, err = store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", Limit: 100})
		require.NoError(t, err)
		for _, row := range rows {
			if row.State != trigger.StateDone {
				return false
			}
		}
		return true
	})
	require.Len(t, rows, 2, "nothing but the creation fires: the label is spent by then")
	for _, row := range rows {
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		bodies := b.of(row.ID)
		require.NotEmpty(t, bodies, "each key is launched")
		for _, body := range bodies {
			if len(row.Consume) > 0 {
				require.Equal(t, bodies[0], body, "the same bytes in every attempt")
			}
		}
	}
	head, err := store.HeadGet(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, head.Seq, head.Cursor)
	events, err := store.EventList(t.Context(), "acme", 0, head.Seq)
	require.NoError(t, err)
	spent := 0
	for i, e := range events {
		require.EqualValues(t, i+1, e.Seq)
		if e.Kind == tracker.KindUnlabeled {
			spent++
		}
	}
	require.Equal(t, 1, spent, "the one-shot label is spent once")
	card, err := store.CardGet(t.Context(), "acme", cardID)
	require.NoError(t, err)
	require.Empty(t, card.Labels)
	require.Empty(t, card.Pending)
	require.Equal(t, "Codertocat/Hello-World", card.External.Repo)

	// SIGTERM ends a replica cleanly.
	require.NoError(t, survivor.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-survivor.exited:
	case <-time.After(20 * time.Second):
		require.Fail(t, "SIGTERM does not end the replica")
	}
	require.Zero(t, survivor.cmd.ProcessState.ExitCode(), survivor.logged())
	require.NotContains(t, survivor.logged()+victim.logged(), secret)
	require.NotContains(t, survivor.logged(), "DATA RACE")
}

// halfBody is a body whose second half never comes.
type halfBody struct {
	first *bytes.Reader
	sent  chan struct{}
	once  sync.Once
	ended sync.Once // the transport closes it too
	end   chan struct{}
}

func newHalfBody(body []byte) (*halfBody, chan struct{}) {
	h := &halfBody{first: bytes.NewReader(body[:len(body)/2]), sent: make(chan struct{}), end: make(chan struct{})}
	return h, h.sent
}

func (h *halfBody) Read(p []byte) (int, error) {
	if n, err := h.first.Read(p); err == nil {
		return n, nil
	}
	// Asked for more: what there was is on its way.
	h.once.Do(func() { close(h.sent) })
	<-h.end
	return 0, io.ErrUnexpectedEOF
}

func (h *halfBody) Close() error {
	h.ended.Do(func() { close(h.end) })
	return nil
}

// Replicas die at any instruction while deliveries go on: whatever was
// accepted, its events are in the log once, each effect is launched, and each
// one-shot label is spent once.
func TestReplicasKilledAtAnyTime(t *testing.T) {
	t.Parallel()
	const issues, senders, kills = 40, 4, 4
	b := newBot(t)
	close(b.release)
	flags, env, hook, store := configured(t, b.URL)
	serveFlags := append([]string{
		"--lease", "3s", "--attempt-deadline", "2500ms", "--http-timeout", "2s", "--retry-base", "50ms", "--retry-cap", "200ms", "--hole-wait", "500ms",
	}, flags...)
	var mu sync.Mutex
	replicas := make([]*replica, 2)
	for i := range replicas {
		replicas[i] = serve(t, env, fmt.Sprint("first", i), serveFlags...)
	}
	pick := func(i int) string {
		mu.Lock()
		defer mu.Unlock()
		return replicas[i%len(replicas)].addr
	}
	var issue map[string]any
	require.NoError(t, json.Unmarshal(payloads(t)["issues.opened"].Body, &issue))
	bodies := make([]github.Payload, issues)
	for n := range bodies {
		fields, ok := issue["issue"].(map[string]any)
		require.True(t, ok)
		fields["number"] = n + 1
		body, err := json.Marshal(issue)
		require.NoError(t, err)
		bodies[n] = github.Payload{Name: "issues.opened", Event: "issues", Body: body}
	}
	next := make(chan int, issues)
	for n := range issues {
		next <- n
	}
	close(next)
	sent := make(chan struct{}, issues)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for n := range next {
				id := uuid.NewString()
				// GitHub would not send it again by itself; this sender does.
				for try := s; ; try++ {
					req, err := newRequest(t.Context(), pick(try), hook, bodies[n], id, bytes.NewReader(bodies[n].Body))
					if err != nil {
						t.Error(err)
						return
					}
					resp, err := client.Do(req)
					if err == nil {
						_ = resp.Body.Close()
						if resp.StatusCode == http.StatusAccepted {
							break
						}
					}
					if t.Context().Err() != nil {
						return
					}
					time.Sleep(20 * time.Millisecond)
				}
				sent <- struct{}{}
			}
		})
	}
	// A replica is killed whenever some more deliveries were accepted.
	for k := range kills {
		for range issues / (kills + 1) {
			<-sent
		}
		at := k % len(replicas)
		mu.Lock()
		victim := replicas[at]
		mu.Unlock()
		require.NoError(t, victim.cmd.Process.Signal(syscall.SIGKILL))
		<-victim.exited
		fresh := serve(t, env, fmt.Sprint("fresh", k), serveFlags...)
		mu.Lock()
		replicas[at] = fresh
		mu.Unlock()
	}
	wg.Wait()
	eventually(t, "the log to be matched and all effects to be done", func() bool {
		head, err := store.HeadGet(t.Context(), "acme")
		require.NoError(t, err)
		rows, err := store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", EffectFilter: trigger.EffectFilter{State: trigger.StateDone}, Limit: 1000})
		require.NoError(t, err)
		pending, err := store.CardsPending(t.Context(), store.Now().Add(time.Hour), 1)
		require.NoError(t, err)
		return head.Cursor == head.Seq && len(rows) == 2*issues && len(pending) == 0
	})
	rows, err := store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", Limit: 1000})
	require.NoError(t, err)
	require.Len(t, rows, 2*issues, "no effect that nobody owes")
	for _, row := range rows {
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		require.NotEmpty(t, b.of(row.ID))
	}
	head, err := store.HeadGet(t.Context(), "acme")
	require.NoError(t, err)
	events, err := store.EventList(t.Context(), "acme", 0, head.Seq)
	require.NoError(t, err)
	kinds := map[string][]tracker.Kind{}
	for i, e := range events {
		require.EqualValues(t, i+1, e.Seq)
		if e.Source != trigger.SourceVoid {
			kinds[e.CardID] = append(kinds[e.CardID], e.Kind)
		}
	}
	require.Len(t, kinds, issues)
	for card, k := range kinds {
		require.Equal(t, []tracker.Kind{tracker.KindCreated, tracker.KindUnlabeled}, k, card)
	}
}

func TestCommandsOnADatabase(t *testing.T) {
	t.Parallel()
	b := newBot(t)
	close(b.release)
	flags, env, hook, store := configured(t, b.URL)
	out, errOut, code := triggerd(t, env, append([]string{"token", "create", "ops", "--tenant", "acme"}, flags...)...)
	require.Zero(t, code, errOut)
	token := strings.TrimSpace(out)
	require.True(t, strings.HasPrefix(token, "trg_"), out)
	out, _, code = triggerd(t, env, append([]string{"token", "ls"}, flags...)...)
	require.Zero(t, code)
	require.NotContains(t, out, token)
	tokenID := strings.Fields(strings.Split(out, "\n")[1])[0]

	r := serve(t, env, "solo", flags...)
	status, _ := deliver(t, r.addr, hook, payloads(t)["issues.opened"], uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)
	eventually(t, "two effects", func() bool {
		rows, err := store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", EffectFilter: trigger.EffectFilter{State: trigger.StateDone}, Limit: 10})
		require.NoError(t, err)
		return len(rows) == 2
	})
	out, errOut, code = triggerd(t, env, append([]string{"effects", "ls", "--tenant", "acme", "-o", "json"}, flags...)...)
	require.Zero(t, code, errOut)
	var effects []struct{ ID, Outcome string }
	require.NoError(t, json.Unmarshal([]byte(out), &effects))
	require.Len(t, effects, 2)
	out, errOut, code = triggerd(t, env, append([]string{"effects", "show", effects[0].ID}, flags...)...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, "Codertocat")

	get := func() int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/v1/tenants/acme/effects", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, http.StatusOK, get())
	_, errOut, code = triggerd(t, env, append([]string{"token", "revoke", tokenID}, flags...)...)
	require.Zero(t, code, errOut)
	require.Equal(t, http.StatusUnauthorized, get())

	_, errOut, code = triggerd(t, env, append([]string{"schema", "apply"}, flags...)...)
	require.Zero(t, code, errOut)
}

func TestDemo(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"embedded": nil,
		"database": {"--mongo-uri", testdb.URI(t), "--database", testdb.Name(t)},
	} {
		out, errOut, code := triggerd(t, nil, append([]string{"demo"}, flags...)...)
		require.Zero(t, code, "%s: %s%s", name, out, errOut)
		require.Contains(t, out, "demo: 2 effects delivered, 0 failed\n", name)
		require.Contains(t, out, "Codertocat/Hello-World#1", name)
		require.Contains(t, out, "labels [bug]", name)
	}
}

func TestServeWithoutItsDatabaseEndsSoonAndNamesTheHost(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := ln.Addr().String()
	require.NoError(t, ln.Close()) // nobody listens there now
	began := time.Now()
	_, errOut, code := triggerd(t, nil, "serve", "--listen", "127.0.0.1:0", "--mongo-uri", "mongodb://user:s3cret@"+addr+"/")
	require.Equal(t, 1, code)
	require.Less(t, time.Since(began), 15*time.Second)
	require.Contains(t, errOut, addr)
	require.NotContains(t, errOut, "s3cret")
}
