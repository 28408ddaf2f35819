package main

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// Profiles are for this machine alone.
func TestDebugListenCheck(t *testing.T) {
	t.Parallel()
	for addr, ok := range map[string]bool{
		"": true, "127.0.0.1:0": true, "127.8.9.1:6060": true, "[::1]:6060": true, "[::ffff:127.0.0.1]:6060": true, "localhost:6060": true,
		":6060": false, "0.0.0.0:6060": false, "[::]:6060": false, "10.0.0.7:6060": false, "localhost.example.org:6060": false,
		"2130706433:6060": false, "s3cret": false, "::1:6060": false, "[fe80::1%lo]:6060": false,
	} {
		err := debugFlags{DebugListen: addr}.checkDebug()
		if ok {
			require.NoError(t, err, addr)
			continue
		}
		require.ErrorContains(t, err, "--debug-listen", addr)
		require.NotContains(t, err.Error(), "s3cret")
	}
	r := command(t, "serve", "--debug-listen", ":0", "--mongo-uri", nobody)
	require.Equal(t, exitFailed, r.code)
	require.Regexp(t, `triggerd: --debug-listen: `, r.err)
	require.NotContains(t, r.err, "MongoDB", "it is refused at the door")
}

// Profiles are served where they were asked for, and nowhere else; nothing else
// is served there.
func TestDebugListen(t *testing.T) {
	t.Parallel()
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--debug-listen", "127.0.0.1:0")
	p.err.await(t, `"message":"ready"`)
	at := regexp.MustCompile(`"listen":"([^"]+)"`).FindAllStringSubmatch(p.err.String(), -1)
	require.Len(t, at, 2, "%s", p.err)
	profiles, api := "http://"+at[0][1], "http://"+at[1][1]
	for path, says := range map[string]string{
		"/debug/pprof/": "goroutine", "/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/cmdline": os.Args[0],
	} {
		status, body := ask(t, http.MethodGet, profiles+path, nil, nil)
		require.Equal(t, http.StatusOK, status, path)
		require.Contains(t, body, says, path)
		status, _ = ask(t, http.MethodGet, api+path, nil, nil)
		require.Equal(t, http.StatusNotFound, status, path)
	}
	for _, path := range []string{"/", "/metrics", "/readyz", "/v1/tenants"} {
		status, _ := ask(t, http.MethodGet, profiles+path, nil, nil)
		require.Equal(t, http.StatusNotFound, status, path)
	}
	p.interrupt()
	p.end(t)
	require.Zero(t, p.result(t).code)

	t.Log("off by default")
	p = begin(t, "serve", "--listen", "127.0.0.1:0")
	p.err.await(t, `"message":"ready"`)
	require.NotContains(t, p.err.String(), "profiles")
	p.interrupt()
	p.end(t)
}
