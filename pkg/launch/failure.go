package launch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

// failure says in fixed words why no answer came. Go's own texts are not
// passed on: among them are quotes of what the bot sent and, with a bad
// setting, the proxy's URL with its password.
func (h *HTTP) failure(ctx, rctx context.Context, err error) string {
	var (
		proxy   *proxyError
		dns     *net.DNSError
		op      *net.OpError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, errProxySetting):
		return errProxySetting.Error()
	case errors.As(err, &proxy):
		return proxy.Error()
	case errors.As(err, &op) && op.Op == "proxyconnect":
		return "the proxy could not be reached"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(ctx.Err(), context.Canceled):
		return "the launch was cancelled before an answer came"
	case ctx.Err() != nil:
		return "no answer before the attempt's deadline"
	case rctx.Err() != nil:
		return fmt.Sprintf("no answer within %s", h.timeout)
	case errors.As(err, &dns) && dns.IsNotFound:
		return "the host name does not exist"
	case errors.As(err, &dns):
		return "the host name could not be resolved"
	case isTimeout(err):
		return fmt.Sprintf("no connection within %s", min(connectTimeout, h.timeout))
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "TLS: the certificate is signed by an unknown authority"
	case errors.As(err, new(x509.HostnameError)):
		return "TLS: the certificate is not for this host"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "TLS: the certificate has expired or is not valid yet"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "TLS: the certificate is not valid"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "TLS: the answer is not TLS, is this an http URL?"
	case strings.HasPrefix(err.Error(), "tls: "), errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"):
		return "TLS: the handshake failed"
	case errors.As(err, &op) && op.Op == "dial":
		return "could not connect"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return "the connection broke before an answer came"
	}
	return "no valid HTTP answer"
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

var errProxySetting = errors.New("HTTP_PROXY or HTTPS_PROXY is not a URL")

// proxyFrom marks an error of find as one of the settings.
func proxyFrom(find func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(r *http.Request) (*url.URL, error) {
		u, err := find(r)
		if err != nil {
			return nil, errProxySetting
		}
		return u, nil
	}
}

// proxyError is a proxy that opened no tunnel.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return fmt.Sprintf("the proxy answered %d to CONNECT", e.status)
}

func proxyAnswered(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return &proxyError{status: resp.StatusCode}
	}
	return nil
}
