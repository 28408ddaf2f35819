// Package testdb gives tests a real database: the one in
// TRIGGERD_TEST_MONGO_URI if set; else mongo:8 in a container if a Docker
// engine answers; else the one that scripts/testdb has started. Without any of
// them a test fails and says how to start one: it never skips.
package testdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/triggerd/triggerd/pkg/boardmongo"
)

// EnvURI names the variable with the URI of a database to use.
const EnvURI = "TRIGGERD_TEST_MONGO_URI"

var find = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if uri := os.Getenv(EnvURI); uri != "" {
		return uri, nil
	}
	if dockerAnswers(ctx) {
		return startContainer(ctx)
	}
	return fromScript(ctx)
})

// NeedsScript reports whether the test database is the one of scripts/testdb.
func NeedsScript(ctx context.Context) bool {
	return os.Getenv(EnvURI) == "" && !dockerAnswers(ctx)
}

// URI returns the URI of the test database; it fails the test if there is none.
func URI(tb testing.TB) string {
	tb.Helper()
	uri, err := find()
	if err != nil {
		tb.Fatalf("no test database: %v", err)
	}
	return uri
}

// Name returns a fresh database name. The database is dropped when the test
// ends.
func Name(tb testing.TB) string {
	tb.Helper()
	name := "t_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20]
	uri := URI(tb)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: uri, Database: name})
		if err != nil {
			tb.Errorf("drop test database %s: %v", name, err)
			return
		}
		if err := errors.Join(store.Database().Drop(ctx), store.Close(ctx)); err != nil {
			tb.Errorf("drop test database %s: %v", name, err)
		}
	})
	return name
}

// Store opens a store on a database of the test's own, with its schema applied.
func Store(tb testing.TB) *boardmongo.Store {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: URI(tb), Database: Name(tb)})
	if err != nil {
		tb.Fatalf("open test database: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Close(ctx); err != nil {
			tb.Errorf("close test database: %v", err)
		}
	})
	if err := store.SchemaApply(ctx); err != nil {
		tb.Fatalf("open test database: %v", err)
	}
	return store
}

// dockerAnswers reports whether an engine answers a ping: a client without an
// engine is common.
func dockerAnswers(ctx context.Context) bool {
	network, address := "unix", "/var/run/docker.sock"
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		u, err := url.Parse(host)
		if err != nil {
			return false
		}
		if network, address = u.Scheme, u.Host; network == "unix" {
			address = u.Path
		}
	}
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK
}

// startContainer starts mongo:8, one for all the packages of a test run.
func startContainer(ctx context.Context) (string, error) {
	c, err := testcontainers.GenericContainer(ctx, testcontainers.GenericContainerRequest{
		ContainerRequest: testcontainers.ContainerRequest{
			Name: "triggerd-test-mongo", Image: "mongo:8", ExposedPorts: []string{"27017/tcp"},
			WaitingFor: wait.ForAll(wait.ForLog("Waiting for connections"), wait.ForListeningPort("27017/tcp")),
		},
		Started: true, Reuse: true,
	})
	if err != nil {
		return "", fmt.Errorf("start mongo:8 in Docker: %w", err)
	}
	endpoint, err := c.PortEndpoint(ctx, "27017/tcp", "mongodb")
	if err != nil {
		return "", fmt.Errorf("mongo:8 in Docker: %w", err)
	}
	return endpoint + "/?directConnection=true", nil
}

// fromScript asks scripts/testdb.
func fromScript(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	script := filepath.Join(root, "scripts", "testdb")
	out, err := exec.CommandContext(ctx, script, "uri").Output()
	if err != nil {
		return "", fmt.Errorf("%s is not set, no Docker engine answers, and scripts/testdb is not up: start it with `scripts/testdb up` (%w)", EnvURI, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Root returns the root of the repository.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("not inside the repository")
		}
		dir = parent
	}
}
