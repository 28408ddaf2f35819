package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// requests is a raw bot that counts the requests that begin to arrive and ends
// each its own way, the connection with it.
func requests(t *testing.T, n *atomic.Int32, end func(c net.Conn)) (addr string) {
	t.Helper()
	return serveRaw(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		if _, err := in.Peek(1); err != nil {
			return
		}
		n.Add(1)
		if r, err := http.ReadRequest(in); err == nil {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		end(c)
	})
}

func answer(status string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", status)
	}
}

// hold keeps the connection until the launcher hangs up.
func hold(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func TestW8_WhichAnswersAreDefinite(t *testing.T) {
	t.Parallel()
	for code, definite := range map[int]bool{
		101: false, 300: false, 301: false, 302: false, 304: false, 307: false, 308: false,
		400: true, 401: true, 403: true, 404: true, 408: true, 409: true, 410: true, 422: true, 425: true, 429: true, 499: true,
		500: false, 501: false, 502: false, 503: true, 504: false, 505: false, 599: false, 600: false, 999: false,
	} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			addr := requests(t, &n, answer(fmt.Sprint(code, " x")))
			_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request("http://"+addr))
			le := launchError(t, err)
			require.Equal(t, code, le.Status)
			require.Equal(t, definite, le.Definite)
			require.EqualValues(t, 1, n.Load(), "one request")
		})
	}
}

// Once there is a connection, whatever is no answer leaves the launch in doubt.
func TestW8_InDoubtOnceConnected(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(net.Conn){
		"timeout":            hold,
		"closed":             func(net.Conn) {},
		"reset":              func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
		"only informational": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n"); hold(c) },
		"malformed":          func(c net.Conn) { _, _ = io.WriteString(c, "what?\r\n\r\n") },
		"refused, malformed": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 503 No\r\nX\r\n\r\n") },
		"refused, cut":       func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 503 No\r\nX: y\r\n") },
		"huge headers": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 503 No\r\nX: "+strings.Repeat("x", 1<<20)+"\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			addr := requests(t, &n, end)
			_, err := newHTTP(t, HTTPParams{Timeout: time.Second}).Launch(t.Context(), request("http://"+addr))
			le := launchError(t, err)
			require.False(t, le.Definite)
			require.False(t, le.Permanent)
			require.Zero(t, le.Status)
			require.EqualValues(t, 1, n.Load(), "one request")
		})
	}

	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var n atomic.Int32
		addr := requests(t, &n, func(c net.Conn) { cancel(); hold(c) })
		_, err := newHTTP(t, HTTPParams{}).Launch(ctx, request("http://"+addr))
		require.False(t, launchError(t, err).Definite)
		require.EqualValues(t, 1, n.Load())
	})
}

// A server that closes an idle connection as a request is sent into it: the
// launcher can't know that it was not read.
func TestW8_IdleConnectionThatTheBotCloses(t *testing.T) {
	t.Parallel()
	var n, connections atomic.Int32
	addr := serveRaw(t, func(c net.Conn) {
		if connections.Add(1) > 1 {
			answer("200 OK")(c)
			return
		}
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		n.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = in.Peek(1) // what it closes over is on its way
		n.Add(1)
	})
	h := newHTTP(t, HTTPParams{})
	_, err := h.Launch(t.Context(), request("http://"+addr))
	require.NoError(t, err)
	_, err = h.Launch(t.Context(), request("http://"+addr))
	le := launchError(t, err)
	require.False(t, le.Definite)
	require.EqualValues(t, 1, connections.Load(), "it is not sent again on another connection")
	require.EqualValues(t, 2, n.Load())
}

// Nothing of a request is written before there is a connection to write it to.
func TestW8_NoConnectionIsDefinite(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	raw := func(bot func(net.Conn)) string { return serveRaw(t, bot) }
	proxied := func(proxy string) func(*HTTP) {
		return func(h *HTTP) {
			h.transport.Proxy = proxyFrom(func(*http.Request) (*url.URL, error) { return url.Parse(proxy) })
		}
	}
	dialing := func(dial func(context.Context, string, string) (net.Conn, error)) func(*HTTP) {
		return func(h *HTTP) { h.transport.DialContext = dial }
	}
	hangs := dialing(func(ctx context.Context, _, _ string) (net.Conn, error) {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second):
		}
		return nil, errors.New("no")
	})
	for name, c := range map[string]struct {
		url string
		set func(*HTTP)
	}{
		"refused": {url: refused(t)},
		"DNS": {"http://bot.invalid", dialing(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}
		})},
		"no route": {"http://bot.invalid", dialing(func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("no route")}
		})},
		"timeout": {"http://bot.invalid", hangs},
		// What the client says in a handshake is no request.
		"TLS: hang":   {url: "https://" + raw(hold)},
		"TLS: closed": {url: "https://" + raw(func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })},
		"TLS: alert":  {url: "https://" + raw(func(c net.Conn) { _, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 40}); hold(c) })},
		"proxy: setting": {"https://bot.invalid", func(h *HTTP) {
			h.transport.Proxy = proxyFrom(func(*http.Request) (*url.URL, error) { return nil, errors.New("no") })
		}},
		"proxy: refused":        {"https://bot.invalid", proxied(refused(t))},
		"proxy: CONNECT, 407":   {"https://bot.invalid", proxied("http://" + raw(answer("407 x")))},
		"proxy: CONNECT, 502":   {"https://bot.invalid", proxied("http://" + raw(answer("502 x")))},
		"proxy: CONNECT, hang":  {"https://bot.invalid", proxied("http://" + raw(hold))},
		"proxy: CONNECT, close": {"https://bot.invalid", proxied("http://" + requests(t, &n, func(net.Conn) {}))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHTTP(t, HTTPParams{Timeout: time.Second})
			if c.set != nil {
				c.set(h)
			}
			_, err := h.Launch(t.Context(), request(c.url))
			le := launchError(t, err)
			require.True(t, le.Definite, le.Message)
			require.False(t, le.Permanent)
			require.Zero(t, le.Status)
		})
	}

	t.Run("cancelled while dialing", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		h := newHTTP(t, HTTPParams{})
		release := make(chan struct{})
		defer close(release)
		h.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			cancel()
			<-release
			return nil, errors.New("no")
		}
		_, err := h.Launch(ctx, request("http://bot.invalid"))
		require.True(t, launchError(t, err).Definite)
	})
}

func TestW8_NotSentIsDefinite(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	base := "http://" + requests(t, &n, answer("200 OK"))
	h := newHTTP(t, HTTPParams{})

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Launch(cancelled, request(base))
	require.True(t, launchError(t, err).Definite)
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, launchError(t, err).Permanent)

	late, end := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer end()
	_, err = h.Launch(late, request(base))
	require.True(t, launchError(t, err).Definite)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	for name, change := range map[string]func(*trigger.LaunchRequest){
		"URL": func(r *trigger.LaunchRequest) { r.URL = "bot" }, "body": func(r *trigger.LaunchRequest) { r.Body = "" },
	} {
		r := request(base)
		change(&r)
		_, err = h.Launch(t.Context(), r)
		le := launchError(t, err)
		require.True(t, le.Definite, name)
		require.True(t, le.Permanent, name)
	}
	require.Zero(t, n.Load())
}
