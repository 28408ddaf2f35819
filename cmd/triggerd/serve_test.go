package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/server/github"
)

// find returns the first group of what the expression finds.
func find(t *testing.T, text, expression string) string {
	t.Helper()
	m := regexp.MustCompile(expression).FindStringSubmatch(text)
	require.NotNil(t, m, "%s in:\n%s", expression, text)
	return m[1]
}

// ask sends a request on a connection of its own.
func ask(t *testing.T, method, url string, body []byte, header map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	require.NoError(t, err)
	for k, v := range header {
		req.Header.Set(k, v)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func TestServe(t *testing.T) {
	t.Parallel()
	file := writeTriggers(t, goodTriggers)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(seal.NewKey()), 0o600))
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--seal-key-file", key, "--apply", file, "--name", "replica-7")
	p.err.await(t, `"message":"ready"`)
	require.Contains(t, p.err.String(), "EMBEDDED STORE")
	require.Equal(t, "warn", find(t, p.err.String(), `"level":"(\w+)".*EMBEDDED`))
	base := "http://" + find(t, p.err.String(), `"listen":"([^"]+)"`)
	token := find(t, p.out.String(), `admin token \(of this process only\): (trg_\S+)`)
	hook := find(t, p.out.String(), `POST (/v1/tenants/acme/hooks/\S+)`)

	for _, path := range []string{"/healthz", "/readyz"} {
		status, _ := ask(t, http.MethodGet, base+path, nil, nil)
		require.Equal(t, http.StatusOK, status, path)
	}
	status, body := ask(t, http.MethodGet, base+"/v1/tenants/acme/events", nil, map[string]string{"Authorization": "Bearer " + token})
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"items":[]}`, body)
	status, body = ask(t, http.MethodPost, base+hook, []byte("{}"), map[string]string{
		"Content-Type": "application/json", github.HeaderEvent: "ping", github.HeaderDelivery: "1",
		github.HeaderSignature: github.Sign([]byte(fileHookSecret), []byte("{}")),
	})
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"status":"pong"}`, body)

	t.Log("a second one on its port fails, and says which")
	addr := strings.TrimPrefix(base, "http://")
	r := command(t, "serve", "--listen", addr)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, addr)

	p.interrupt()
	p.end(t)
	r = p.result(t)
	require.Zero(t, r.code, "an interrupt is no failure")
	lines := strings.Split(strings.TrimSpace(r.err), "\n")
	for _, line := range lines {
		require.True(t, json.Valid([]byte(line)), line)
	}
	require.Contains(t, lines[len(lines)-1], `"message":"stopped"`)
	require.Contains(t, lines[len(lines)-1], "replica-7")
}

func TestServeWithoutASealKey(t *testing.T) {
	t.Parallel()
	r := command(t, "serve", "--apply", writeTriggers(t, goodTriggers), "--listen", "127.0.0.1:0")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "TRIGGERD_SEAL_KEY")
	require.Contains(t, r.err, "openssl rand")
}

func TestLogFlags(t *testing.T) {
	t.Parallel()
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--log-format", "console")
	p.err.await(t, "ready")
	p.interrupt()
	p.end(t)
	require.NotContains(t, p.result(t).err, "{")
	require.NotContains(t, p.result(t).err, "\x1b", "no colours")

	p = begin(t, "serve", "--listen", "127.0.0.1:0", "--log-level", "error")
	p.out.await(t, "admin token")
	p.interrupt()
	p.end(t)
	require.Zero(t, p.code)
	require.Empty(t, p.result(t).err)
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	require.False(t, terminal(newOutput()))
	f, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.False(t, terminal(f), "a file is read by machines")
	device, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = device.Close() }()
	require.True(t, terminal(device), "as a terminal is, it is a character device")
}

// Not parallel, as it is the process's environment. What tracing can't do as
// asked is refused before a database is looked for.
func TestTracingIsCheckedAtTheDoor(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	r := command(t, "serve", "--mongo-uri", nobody)
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `^triggerd: OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf`, r.err)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "")
	r = command(t, "serve", "--mongo-uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=10", "--store-timeout", "100ms")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "127.0.0.1:1", "it goes on to the database, and stops what it began")
}

// All lines of a replica say whose they are, those too that are before it starts
// and after it has stopped; and none says it twice.
func TestServeLogsItsName(t *testing.T) {
	t.Parallel()
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--debug-listen", "127.0.0.1:0", "--name", "replica-9")
	p.err.await(t, `"message":"ready"`)
	p.interrupt()
	p.end(t)
	require.Zero(t, p.result(t).code)
	for _, message := range []string{"EMBEDDED STORE", "profiles are served", "ready", "stopping", "stopped"} {
		require.Contains(t, p.err.String(), message)
	}
	for line := range strings.Lines(p.err.String()) {
		require.Equal(t, 1, strings.Count(line, `"replica":"replica-9"`), line)
	}
}
