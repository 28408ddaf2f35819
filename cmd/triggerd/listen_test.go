package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Beyond this machine there is TLS, or somebody said that there is none.
func TestListenCheck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags listenFlags
		says  string // "" if allowed
	}{
		{listenFlags{Listen: "127.0.0.1:8080"}, ""},
		{listenFlags{Listen: "127.8.9.1:0"}, ""},
		{listenFlags{Listen: "[::1]:8080"}, ""},
		{listenFlags{Listen: "[::ffff:127.0.0.1]:8080"}, ""},
		{listenFlags{Listen: "localhost:8080"}, ""},
		{listenFlags{Listen: ":8080"}, "--insecure-listen"},
		{listenFlags{Listen: "0.0.0.0:8080"}, "--insecure-listen"},
		{listenFlags{Listen: "[::]:8080"}, "--insecure-listen"},
		{listenFlags{Listen: "10.0.0.7:8080"}, "--tls-cert"},
		{listenFlags{Listen: "localhost.example.org:8080"}, "--tls-cert"},
		{listenFlags{Listen: "2130706433:8080"}, "--tls-cert"},
		{listenFlags{Listen: ":8080", InsecureListen: true}, ""},
		{listenFlags{Listen: ":8080", TLSCert: "c", TLSKey: "k"}, ""},
		{listenFlags{Listen: ":8080", TLSCert: "c"}, "--tls-key"},
		{listenFlags{Listen: "127.0.0.1:8080", TLSKey: "k"}, "--tls-cert"},
		{listenFlags{Listen: "s3cret"}, "--listen"},
		{listenFlags{Listen: "::1:8080"}, "--listen"},
	} {
		err := c.flags.check()
		if c.says == "" {
			require.NoError(t, err, c.flags)
			continue
		}
		require.ErrorContains(t, err, c.says, c.flags)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// Neither serve nor the demo gets as far as a database.
func TestListenIsCheckedAtTheDoor(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"serve", "--listen", ":0"}, {"demo", "--listen", ":0"}, {"serve", "--tls-cert", "/nowhere/cert.pem"},
	} {
		r := command(t, append(args, "--mongo-uri", nobody)...)
		require.Equal(t, 1, r.code, args)
		require.NotContains(t, r.err, "MongoDB", args)
		require.Regexp(t, `triggerd: (--listen|--tls-key): `, r.err)
	}
	r := command(t, "serve", "--listen", ":0", "--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "/nowhere/cert.pem")

	p := begin(t, "serve", "--listen", "0.0.0.0:0", "--insecure-listen")
	p.err.await(t, `"message":"ready"`)
	p.interrupt()
	p.end(t)
	require.Regexp(t, `"level":"warn".*LISTENING WITHOUT TLS`, p.result(t).err)
	require.Contains(t, p.result(t).err, `"tls":false`)
}
