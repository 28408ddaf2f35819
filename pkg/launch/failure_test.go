package launch

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFailuresAreRetryableAndKeepTheURL(t *testing.T) {
	t.Parallel()
	hang := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	say := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, _ = io.WriteString(c, strings.ReplaceAll(text, "URL", r.RequestURI))
			}
		}
	}
	badTLS := func(t *testing.T) string {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.URL
	}
	raw := func(scheme string, bot func(net.Conn)) func(*testing.T) string {
		return func(t *testing.T) string { return scheme + "://" + serveRaw(t, bot) }
	}
	for name, c := range map[string]struct {
		url  func(*testing.T) string
		want string
	}{
		"refused":            {refused, "connection refused"},
		"hang":               {raw("http", hang), "no answer within 300ms"},
		"hang in TLS":        {raw("https", hang), "within 300ms"},
		"closed":             {raw("http", say("")), "the connection broke"},
		"cut in the headers": {raw("http", say("HTTP/1.1 200 OK\r\nX: ")), "the connection broke"},
		"malformed":          {raw("http", say("URL what?\r\n\r\n")), "no valid HTTP answer"},
		"malformed status":   {raw("http", say("HTTP/1.1 URL\r\n\r\n")), "no valid HTTP answer"},
		"malformed header":   {raw("http", say("HTTP/1.1 200 OK\r\nURL\r\n\r\n")), "no valid HTTP answer"},
		"unknown authority":  {badTLS, "TLS: the certificate is signed by an unknown authority"},
		"http for https":     {raw("https", func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad\r\n\r\n"); hang(c) }), "TLS: the answer is not TLS"},
		"TLS alert":          {raw("https", func(c net.Conn) { _, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 40}); hang(c) }), "TLS: the handshake failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := c.url(t)
			timeout := HTTPTimeoutDefault
			if strings.HasPrefix(name, "hang") {
				timeout = 300 * time.Millisecond
			}
			began := time.Now()
			_, err := newHTTP(t, HTTPParams{Timeout: timeout}).Launch(t.Context(), request(base))
			require.Less(t, time.Since(began), 10*time.Second)
			le := launchError(t, err)
			require.Contains(t, le.Message, c.want)
			require.False(t, le.Permanent)
			require.Zero(t, le.RetryAfter)
			u, _ := url.Parse(base)
			require.Contains(t, le.Message, u.Host)
		})
	}
}

func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return "http://" + l.Addr().String()
}

func TestProxyFailures(t *testing.T) {
	t.Parallel()
	proxy := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusProxyAuthRequired) })
	by := func(raw string) func(*http.Request) (*url.URL, error) {
		u, err := url.Parse(strings.Replace(raw, "//", "//user:"+testToken+"@", 1))
		require.NoError(t, err)
		return http.ProxyURL(u)
	}
	for _, c := range []struct {
		find func(*http.Request) (*url.URL, error)
		want string
	}{
		{by(proxy.URL), "the proxy answered 407 to CONNECT"},
		{by(refused(t)), "the proxy could not be reached"},
		{func(*http.Request) (*url.URL, error) { return nil, errors.New("invalid proxy address " + testToken) }, "is not a URL"},
	} {
		h := newHTTP(t, HTTPParams{})
		h.transport.Proxy = proxyFrom(c.find)
		_, err := h.Launch(t.Context(), request("https://bot.invalid"))
		le := launchError(t, err)
		require.Contains(t, le.Message, c.want)
		require.False(t, le.Permanent)
	}
}

// What can't be brought about here without a name server or another platform.
func TestFailureTexts(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, HTTPParams{Timeout: time.Minute})
	quoted := errors.New(testToken)
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, c := range []struct {
		err  error
		want string
	}{
		{dial(&net.DNSError{Err: testToken, IsNotFound: true}), "the host name does not exist"},
		{dial(&net.DNSError{Err: testToken, IsTimeout: true}), "the host name could not be resolved"},
		{dial(os.ErrDeadlineExceeded), "no connection within 10s"},
		{dial(quoted), "could not connect"},
		{&tls.CertificateVerificationError{Err: x509.HostnameError{Certificate: &x509.Certificate{}, Host: testToken}}, "TLS: the certificate is not for this host"},
		{&tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}, "TLS: the certificate has expired or is not valid yet"},
		{&tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}}, "TLS: the certificate is not valid"},
		{errors.New("tls: " + testToken), "TLS: the handshake failed"},
		{&net.OpError{Op: "read", Err: quoted}, "the connection broke before an answer came"},
		{&url.Error{Op: "Post", URL: testToken, Err: quoted}, "no valid HTTP answer"},
	} {
		require.Equal(t, c.want, h.failure(t.Context(), t.Context(), c.err))
	}
}
