package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// pair is a certificate of 127.0.0.1, signed by itself, and its key.
func pair(t *testing.T, serial int64, validFor time.Duration) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "triggerd"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(validFor), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}

func putFile(t *testing.T, path string, text []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// serial is that of the certificate which a new connection is shown.
func serial(t *testing.T, addr string) int64 {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, key := pair(t, 1, time.Hour)
	putFile(t, certFile, cert)
	putFile(t, keyFile, key)
	b := start(t, func(_ *bundle, p *Params) { p.TLSCert, p.TLSKey = certFile, keyFile })
	addr := b.server.Addr()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(cert))
	type answered struct {
		status, proto int
		version       uint16
	}
	get := func(scheme string, config *tls.Config) (a answered, err error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, ForceAttemptHTTP2: true}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+"://"+addr+"/readyz", http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return a, err
		}
		if resp.TLS != nil {
			a.version = resp.TLS.Version
		}
		a.status, a.proto = resp.StatusCode, resp.ProtoMajor
		return a, resp.Body.Close()
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		a, err := get("https", &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version})
		require.NoError(t, err)
		require.Equal(t, answered{http.StatusOK, 2, version}, a)
	}
	_, err := get("https", &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.ErrorContains(t, err, "protocol version")
	a, err := get("http", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, a.status, "plain HTTP gets nothing")

	t.Log("a renewal needs no restart")
	cert, key = pair(t, 2, time.Hour)
	putFile(t, certFile, cert)
	putFile(t, keyFile, key)
	require.Eventually(t, func() bool { return serial(t, addr) == 2 }, wait, 50*time.Millisecond)
	require.Contains(t, b.logs.String(), "the TLS certificate was replaced")
	require.NotContains(t, b.logs.String(), `"level":"error"`, "a handshake that failed is no news")
}

func TestTLSThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	var logs syncBuffer
	log := zerolog.New(&logs)
	_, err := openCert(certFile, keyFile, log)
	require.ErrorContains(t, err, "--tls-cert")
	require.ErrorContains(t, err, certFile)
	cert, key := pair(t, 1, -time.Hour)
	putFile(t, certFile, cert)
	putFile(t, keyFile, []byte("s3cret"))
	_, err = openCert(certFile, keyFile, log)
	require.ErrorContains(t, err, keyFile)
	require.NotContains(t, err.Error(), "s3cret")

	putFile(t, keyFile, key)
	c, err := openCert(certFile, keyFile, log)
	require.NoError(t, err)
	require.Contains(t, logs.String(), "has expired")
	shown := func() int64 {
		got, err := c.get(nil)
		require.NoError(t, err)
		return got.Leaf.SerialNumber.Int64()
	}
	c.look = time.Hour
	next, nextKey := pair(t, 2, time.Hour)
	putFile(t, certFile, next)
	require.EqualValues(t, 1, shown(), "the files are not read at each handshake")
	c.look = 0
	for range 3 {
		require.EqualValues(t, 1, shown(), "the key is another's: the one before goes on")
	}
	warned := func() int { return strings.Count(logs.String(), "the one before goes on") }
	require.Equal(t, 1, warned(), "said once")
	require.NoError(t, os.Remove(keyFile))
	for range 3 {
		require.EqualValues(t, 1, shown())
	}
	require.Equal(t, 2, warned())
	putFile(t, keyFile, nextKey)
	require.EqualValues(t, 2, shown())
	require.EqualValues(t, 2, shown())
	require.Equal(t, 1, strings.Count(logs.String(), "was replaced"))
	require.NotContains(t, logs.String(), "s3cret")

	_, err = New(Params{Timing: TimingDefault(), TLSCert: certFile})
	require.ErrorContains(t, err, "--tls-key")
}
