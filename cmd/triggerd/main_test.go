package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// What the commands read from the environment is not the tests' to choose.
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "TRIGGERD_") && !strings.HasPrefix(name, "TRIGGERD_TEST_") {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

// wait bounds what a test waits for: far more than it takes.
const wait = time.Minute

// nobody is a database that is not there.
const nobody = "mongodb://u:s3cret@127.0.0.1:1/"

// output is a stream to read, and to wait on, while it is written.
type output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	written chan struct{}
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await waits until the text was written. One goroutine may wait.
func (o *output) await(t *testing.T, text string) {
	t.Helper()
	limit := time.After(wait)
	for !strings.Contains(o.String(), text) {
		select {
		case <-o.written:
		case <-limit:
			require.Failf(t, "waited in vain", "for %q in:\n%s", text, o)
		}
	}
}

// result is what a command left.
type result struct {
	code     int
	out, err string
}

// command runs a command to its end.
func command(t *testing.T, args ...string) result {
	t.Helper()
	p := begin(t, args...)
	p.end(t)
	return p.result(t)
}

// process is a command that runs in here.
type process struct {
	std       streams
	out, err  *output
	interrupt context.CancelFunc
	done      chan int
	code      int
}

func begin(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{out: newOutput(), err: newOutput(), done: make(chan int, 1)}
	p.std = streams{p.out, p.err}
	ctx, cancel := context.WithCancel(t.Context())
	p.interrupt = cancel
	t.Cleanup(cancel)
	go func() { p.done <- runContext(ctx, args, p.std) }()
	return p
}

// end waits for the command.
func (p *process) end(t *testing.T) {
	t.Helper()
	select {
	case p.code = <-p.done:
	case <-time.After(wait):
		require.Failf(t, "the command does not end", "%s%s", p.out, p.err)
	}
}

func (p *process) result(t *testing.T) result {
	t.Helper()
	r := result{p.code, p.out.String(), p.err.String()}
	require.NotContains(t, r.out+r.err, "s3cret")
	return r
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out, errs := newOutput(), newOutput()
	require.Zero(t, run([]string{"version"}, streams{out, errs}))
	require.Regexp(t, `^triggerd dev( [0-9a-f]{40})? go1\.\S+\n$`, out.String())
	require.Empty(t, errs.String())
}

func TestHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"serve", "--help"}, {"apply", "-h"}, {"token", "create", "--help"}, {"effects", "ls", "--help"}} {
		r := command(t, args...)
		require.Zero(t, r.code, args)
		require.Contains(t, r.out, "Usage: triggerd")
		require.Empty(t, r.err, args)
	}
	top := command(t, "--help").out
	for _, says := range []string{"serve", "demo", "apply", "effects", "token", "schema", "version", "TRIGGERD_MONGO_URI", "TRIGGERD_SEAL_KEY"} {
		require.Contains(t, top, says)
	}
}

func TestWrongCalls(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"nothing":                    {nil, []string{"serve", "--help"}},
		"no such command":            {[]string{"sreve"}, []string{"sreve", "--help"}},
		"unknown flag":               {[]string{"serve", "--leese", "1s"}, []string{"--leese", "--lease"}},
		"a flag of another command":  {[]string{"version", "--lease", "1s"}, []string{"--lease"}},
		"no duration":                {[]string{"serve", "--lease", "fast"}, []string{"--lease", "duration"}},
		"no number":                  {[]string{"serve", "--slots", "many"}, []string{"--slots"}},
		"no such level":              {[]string{"serve", "--log-level", "loud"}, []string{"--log-level", "debug"}},
		"no such role":               {[]string{"token", "create", "x", "--role", "root", "--mongo-uri", nobody}, []string{"--role", "viewer"}},
		"apply without a file":       {[]string{"apply", "--mongo-uri", nobody}, []string{"--file"}},
		"effects of nobody":          {[]string{"effects", "ls", "--mongo-uri", nobody}, []string{"--tenant"}},
		"no effect":                  {[]string{"effects", "show", "--mongo-uri", nobody}, []string{"<id>"}},
		"schema without a database":  {[]string{"schema", "apply"}, []string{"--mongo-uri"}},
		"a URI in the wrong place":   {[]string{"serve", nobody}, []string{"unexpected argument mongodb://***@127.0.0.1:1/"}},
		"a URI for a duration":       {[]string{"serve", "--store-timeout", nobody}, []string{"--store-timeout", "mongodb://***@127.0.0.1:1/"}},
		"a URI with an odd password": {[]string{"serve", "mongodb://u:s3cret@s3cret@h/"}, []string{"mongodb://***@h/"}},
	} {
		r := command(t, c.args...)
		require.Equal(t, exitUsage, r.code, name)
		require.Empty(t, r.out, name)
		for _, s := range append(c.says, "triggerd: ", "triggerd --help") {
			require.Contains(t, r.err, s, name)
		}
	}
}

// What can be refused without a database is.
func TestRefusedBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"lease":               {[]string{"serve", "--lease", "1s", "--mongo-uri", nobody}, []string{"--lease", "--attempt-deadline"}},
		"lease, no mongo":     {[]string{"serve", "--lease", "1s"}, []string{"--lease", "--attempt-deadline"}},
		"HTTP timeout":        {[]string{"serve", "--http-timeout", "2m", "--mongo-uri", nobody}, []string{"--http-timeout", "--attempt-deadline"}},
		"retries":             {[]string{"serve", "--retry-base", "1h", "--mongo-uri", nobody}, []string{"--retry-base", "--retry-cap"}},
		"slots":               {[]string{"serve", "--slots", "0", "--mongo-uri", nobody}, []string{"--slots"}},
		"tenant":              {[]string{"effects", "ls", "--tenant", "A B", "--mongo-uri", nobody}, []string{"--tenant", "[a-z0-9]"}},
		"limit":               {[]string{"effects", "ls", "--tenant", "acme", "--limit", "0", "--mongo-uri", nobody}, []string{"--limit", "10000"}},
		"an effect's id":      {[]string{"effects", "show", "nonsense here", "--mongo-uri", nobody}, []string{"<tenant>/<seq>|<subscription>", "effects ls"}},
		"dry run of nothing":  {[]string{"subs", "dry-run", "--tenant", "acme", "--mongo-uri", nobody}, []string{"--file"}},
		"dry run of two":      {[]string{"subs", "dry-run", "x", "-f", "y", "--tenant", "acme", "--mongo-uri", nobody}, []string{"--file"}},
		"last of a dry run":   {[]string{"subs", "dry-run", "x", "--last", "1001", "--tenant", "acme", "--mongo-uri", nobody}, []string{"--last", "1000"}},
		"before of a dry run": {[]string{"subs", "dry-run", "x", "--before=-1", "--tenant", "acme", "--mongo-uri", nobody}, []string{"--before"}},
		"no such draft":       {[]string{"subs", "dry-run", "-f", "/nowhere/draft.yaml", "--tenant", "acme", "--mongo-uri", nobody}, []string{"/nowhere/draft.yaml"}},
		"tenant of a dry run": {[]string{"subs", "dry-run", "x", "--tenant", "A B", "--mongo-uri", nobody}, []string{"--tenant"}},
		"explain's tenant":    {[]string{"subs", "explain", "--card", "x", "--tenant", "A B", "--mongo-uri", nobody}, []string{"--tenant"}},
		"limit of a log":      {[]string{"subs", "log", "x", "--limit", "0", "--tenant", "acme", "--mongo-uri", nobody}, []string{"--limit"}},
		"nowhere":             {[]string{"effects", "ls", "--tenant", "acme"}, []string{"TRIGGERD_URL", "TRIGGERD_TOKEN", "TRIGGERD_MONGO_URI"}},
		"two places":          {[]string{"effects", "ls", "--tenant", "acme", "--url", "https://h", "--mongo-uri", nobody}, []string{"--url", "--mongo-uri"}},
		"no token":            {[]string{"effects", "ls", "--tenant", "acme", "--url", "https://h"}, []string{"TRIGGERD_TOKEN", "--token-file"}},
		"no token file":       {[]string{"effects", "ls", "--tenant", "acme", "--url", "https://h", "--token-file", "/nowhere/t"}, []string{"--token-file", "/nowhere/t"}},
		"a token file alone":  {[]string{"effects", "ls", "--tenant", "acme", "--mongo-uri", nobody, "--token-file", "/nowhere/t"}, []string{"--token-file", "--url"}},
		"who, of a server":    {[]string{"pauses", "--url", "https://h", "--by", "me"}, []string{"--by", "--mongo-uri"}},
		"log's tenant":        {[]string{"subs", "log", "x", "--tenant", "A B", "--mongo-uri", nobody}, []string{"--tenant"}},
		"seal key file":       {[]string{"serve", "--seal-key-file", "/nowhere/key", "--mongo-uri", nobody}, []string{"seal key file", "/nowhere/key"}},
		"no such file":        {[]string{"apply", "-f", "/nowhere/triggers.yaml", "--mongo-uri", nobody}, []string{"/nowhere/triggers.yaml"}},
		"no such file, serve": {[]string{"serve", "--apply", "/nowhere/triggers.yaml", "--mongo-uri", nobody}, []string{"/nowhere/triggers.yaml"}},
	} {
		r := command(t, c.args...)
		require.Equal(t, 1, r.code, name)
		require.Empty(t, r.out, name)
		require.NotContains(t, r.err, "MongoDB", name)
		for _, s := range c.says {
			require.Contains(t, r.err, s, name)
		}
	}
}

// A database that is not there is named, without its password, within seconds.
func TestNoDatabase(t *testing.T) {
	t.Parallel()
	file := writeTriggers(t, goodTriggers)
	for name, args := range map[string][]string{
		"serve":        {"serve", "--listen", "127.0.0.1:0"},
		"demo":         {"demo"},
		"apply":        {"apply", "-f", file},
		"dry run":      {"apply", "-f", file, "--dry-run"},
		"token create": {"token", "create", "x", "--tenant", "acme"},
		"token ls":     {"token", "ls"},
		"token revoke": {"token", "revoke", "x"},
		"effects ls":   {"effects", "ls", "--tenant", "acme"},
		"effects show": {"effects", "show", "acme/000000000001|x"},
		"replay":       {"effects", "replay", "acme/000000000001|x"},
		"bulk":         {"effects", "discard", "--all", "--tenant", "acme", "--state", "failed"},
		"resolve":      {"effects", "resolve", "acme/000000000001|x", "--confirmed"},
		"pause":        {"pause", "--fleet"},
		"resume":       {"resume", "--fleet"},
		"pauses":       {"pauses"},
		"subs ls":      {"subs", "ls", "--tenant", "acme"},
		"subs pause":   {"subs", "pause", "x", "--tenant", "acme"},
		"subs resume":  {"subs", "resume", "x", "--tenant", "acme"},
		"subs explain": {"subs", "explain", "--card", "x", "--tenant", "acme"},
		"subs dry-run": {"subs", "dry-run", "x", "--tenant", "acme"},
		"subs log":     {"subs", "log", "x", "--tenant", "acme"},
		"schema apply": {"schema", "apply"},
		"schema check": {"schema", "check"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			r := command(t, append(args, "--mongo-uri", nobody, "--store-timeout", "300ms")...)
			require.Less(t, time.Since(began), 15*time.Second)
			require.Equal(t, 1, r.code)
			require.Contains(t, r.err, "127.0.0.1:1")
			require.Empty(t, r.out)
		})
	}
	for name, uri := range map[string]string{
		"no scheme": "u:s3cret@127.0.0.1:1", "another scheme": "postgres://u:s3cret@127.0.0.1:1/", "a bad port": "mongodb://u:s3cret@127.0.0.1:99999/",
		"no host": "mongodb://u:s3cret@/", "a bad option": "mongodb://u:s3cret@127.0.0.1:1/?w=-1",
	} {
		r := command(t, "serve", "--mongo-uri", uri, "--store-timeout", "300ms")
		require.Equal(t, 1, r.code, name)
		require.Contains(t, r.err, "URI is not valid", name)
	}
}

// Flags win over the environment, and that over the defaults. (It sets the
// environment, so that it runs alone.)
func TestEnvironment(t *testing.T) {
	t.Setenv("TRIGGERD_MONGO_URI", nobody)
	t.Setenv("TRIGGERD_TENANT", "A B")
	r := command(t, "effects", "ls")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "--tenant")
	r = command(t, "effects", "ls", "--tenant", "acme", "--limit", "0")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "--limit")
	t.Setenv("TRIGGERD_LEASE", "1s")
	r = command(t, "serve")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "--lease")
	t.Setenv("TRIGGERD_SEAL_KEY", "s3cret")
	r = command(t, "serve", "--lease", "2m")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "TRIGGERD_SEAL_KEY")
	t.Setenv("TRIGGERD_LEASE", "s3cret")
	r = command(t, "version")
	require.Zero(t, r.code)
}
