package testdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/triggerd/triggerd/internal/chaos"
)

// Breakable is a database that a test may take away, and bring back. Other
// tests don't notice.
type Breakable struct {
	URI string
	// Stop returns when the database is gone, Start when it answers again.
	Stop, Start func() error
}

// Crashing starts an instance of the test's own, of the database that
// scripts/testdb runs: Stop crashes it, as `pg_ctl stop -m immediate` does. It
// ends with the test, and with the test's process if that dies.
//
// Where the tests run on another database (TRIGGERD_TEST_MONGO_URI, Docker),
// whose process is not theirs to stop, this is Cut: then nothing that was
// acknowledged is put to the test, but the connections are, and what the
// product makes of them.
func Crashing(tb testing.TB) *Breakable {
	tb.Helper()
	if !NeedsScript(tb.Context()) {
		tb.Logf("the test database can't be crashed; its connections are cut")
		return Cut(tb)
	}
	for try := 1; ; try++ {
		b, err := ownInstance(tb)
		if err == nil {
			return b
		}
		if try == 3 { // somebody else may have taken a port
			tb.Fatalf("start a test database to crash: %v", err)
		}
	}
}

// Cut puts a proxy before the test database: Stop resets and refuses all
// connections through it.
func Cut(tb testing.TB) *Breakable {
	tb.Helper()
	p, uri := proxy(tb)
	return &Breakable{URI: uri, Stop: func() error { p.Cut(); return nil }, Start: func() error { p.Mend(); return nil }}
}

// Stalled puts a proxy before the test database: after Stop nothing comes
// through it, and what was sent meanwhile arrives after Start.
func Stalled(tb testing.TB) *Breakable {
	tb.Helper()
	p, uri := proxy(tb)
	return &Breakable{URI: uri, Stop: func() error { p.Stall(); return nil }, Start: func() error { p.Mend(); return nil }}
}

func proxy(tb testing.TB) (*chaos.Proxy, string) {
	tb.Helper()
	u, err := url.Parse(URI(tb))
	if err != nil || u.Scheme != "mongodb" {
		tb.Fatalf("a proxy needs a mongodb:// URI")
	}
	// One host, and no discovery of others past the proxy.
	host, _, _ := strings.Cut(u.Host, ",")
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(host, "27017")
	}
	p, err := chaos.Listen(tb.Context(), host)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(p.Close)
	u.Host = p.Addr()
	q := u.Query()
	q.Del("replicaSet")
	q.Set("directConnection", "true")
	u.RawQuery = q.Encode()
	u.Path = cmp.Or(u.Path, "/")
	return p, u.String()
}

// ownInstance starts scripts/testdb on a directory and ports of its own. It
// shares what is built once with the instance that all tests use.
func ownInstance(tb testing.TB) (*Breakable, error) {
	tb.Helper()
	root, err := Root()
	if err != nil {
		return nil, err
	}
	base := cmp.Or(os.Getenv("TRIGGERD_TESTDB_BASE"), os.Getenv("TRIGGERD_TESTDB_DIR"))
	if base == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		base = filepath.Join(cache, "triggerd-testdb")
	}
	dir, err := os.MkdirTemp("", "triggerd-testdb-") //nolint:usetesting // the guard removes it, when this process is dead too
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	script := filepath.Join(root, "scripts", "testdb")
	env := append(os.Environ(), "TRIGGERD_TESTDB_DIR="+dir, "TRIGGERD_TESTDB_BASE="+base,
		"TRIGGERD_TESTDB_PORT="+ports[0], "TRIGGERD_TESTDB_PG_PORT="+ports[1])

	// The instance outlives this process on its own: a guard, which reads its
	// input until this process closes it or dies, stops and removes it.
	// Its output goes to a file, since a pipe would end with this process.
	guard := exec.Command("sh", "-c", `cat >/dev/null; "$0" down >"$1.log" 2>&1 && rm -rf -- "$1" "$1.log"`, script, dir)
	guard.Env = env
	guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // no Ctrl-C
	leave, err := guard.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := guard.Start(); err != nil {
		return nil, err
	}
	end := sync.OnceValue(func() error { return errors.Join(leave.Close(), guard.Wait()) })
	tb.Cleanup(func() {
		if err := end(); err != nil {
			tb.Errorf("stop the test database in %s: %v; see %s.log", dir, err, dir)
		}
	})

	run := func(command string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, script, command)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("testdb %s: %w\n%s", command, err, out)
		}
		return nil
	}
	if err := run("up"); err != nil {
		return nil, errors.Join(err, end())
	}
	return &Breakable{
		URI:  "mongodb://127.0.0.1:" + ports[0] + "/",
		Stop: func() error { return run("crash") }, Start: func() error { return run("up") },
	}, nil
}

// freePorts finds ports that nobody uses, below those that the system gives to
// outgoing connections: one that is free for a while, while its server is
// stopped, is not given away.
func freePorts(n int) ([]string, error) {
	var ports []string
	var held []io.Closer
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for range 100 {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		held, ports = append(held, l), append(ports, port)
		if len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports")
}
