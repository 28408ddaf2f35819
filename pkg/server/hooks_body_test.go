package server

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/github"
)

// readSlack is how far past the limit a reader may get.
const readSlack = 4 << 10

// counter is an endless body that counts what is read of it.
type counter struct{ n int64 }

func (c *counter) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	c.n += int64(len(p))
	return len(p), nil
}

func (c *counter) Close() error { return nil }

// Past 25 MiB nothing is read: nothing at all when the length says so.
func TestTooLargeBodies(t *testing.T) {
	t.Parallel()
	b := build(t)
	for _, c := range []struct {
		name   string
		length int64
		most   int64
	}{
		{"declared", github.BodyMaxBytes + 1, 0},
		{"declared, huge", 1 << 40, 0},
		{"chunked", -1, github.BodyMaxBytes + readSlack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			body := &counter{}
			req := httptest.NewRequest(http.MethodPost, "/v1/tenants/acme/hooks/"+hookID, body)
			req.ContentLength = c.length
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(github.HeaderEvent, "issues")
			req.Header.Set(github.HeaderDelivery, uuid.NewString())
			req.Header.Set(github.HeaderSignature, github.Sign([]byte(hookSecret), nil))
			w := httptest.NewRecorder()
			b.server.http.Handler.ServeHTTP(w, req)
			a := answer{w.Code, w.Header(), w.Body.String()}
			require.Equal(t, http.StatusRequestEntityTooLarge, a.status)
			require.Contains(t, a.problem(t).Detail, "25 MiB")
			require.Equal(t, "close", a.header.Get("Connection"))
			require.LessOrEqual(t, body.n, c.most)
		})
	}
}

// The same on the wire: the answer comes although the client has not sent what
// it announced, and after it the connection ends.
func TestTooLargeBodiesOnTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	head := fmt.Sprintf("POST /v1/tenants/acme/hooks/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", hookID)
	chunk := strings.Repeat(" ", 1<<20)
	for name, send := range map[string]func(w io.Writer) error{
		"declared": func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%sContent-Length: %d\r\n\r\n", head, github.BodyMaxBytes+1)
			return err
		},
		"chunked": func(w io.Writer) error {
			if _, err := io.WriteString(w, head+"Transfer-Encoding: chunked\r\n\r\n"); err != nil {
				return err
			}
			for range github.BodyMaxBytes / len(chunk) {
				if _, err := fmt.Fprintf(w, "%x\r\n%s\r\n", len(chunk), chunk); err != nil {
					return err
				}
			}
			_, err := io.WriteString(w, "1\r\n \r\n") // one byte more, and no end
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(wait)))
			require.NoError(t, send(conn))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			defer func() { _ = resp.Body.Close() }()
			require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
			require.True(t, resp.Close)
			rest, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Contains(t, string(rest), "25 MiB")
		})
	}
}

// 25 MiB is what GitHub sends at most: all of it is taken.
func TestBodyOfExactlyTheLimit(t *testing.T) {
	t.Parallel()
	body := payload(t, "issues.opened")
	body = append(bytes.Repeat([]byte(" "), github.BodyMaxBytes-len(body)), body...)
	require.Len(t, body, github.BodyMaxBytes)
	t.Run("declared", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		a := b.deliver(t, delivery{body: body})
		require.Equal(t, http.StatusAccepted, a.status, a.body)
		require.Equal(t, "accepted", a.hook(t).Status)
	})
	t.Run("chunked", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		chunked := func(r *http.Request) {
			r.ContentLength = -1
			r.Body, r.GetBody = io.NopCloser(io.MultiReader(bytes.NewReader(body))), nil
		}
		a := b.deliver(t, delivery{body: body, event: "ping", edit: chunked})
		require.Equal(t, http.StatusOK, a.status, a.body)
		a = b.deliver(t, delivery{body: body[1:], edit: chunked}) // signed for one byte less
		require.Equal(t, http.StatusUnauthorized, a.status, "a large body is still looked at")
	})
}

// A body that ends before its length is no delivery.
func TestBrokenBody(t *testing.T) {
	t.Parallel()
	b := build(t)
	req := httptest.NewRequest(http.MethodPost, "/v1/tenants/acme/hooks/"+hookID, io.MultiReader(
		strings.NewReader("{}"), readerFunc(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }),
	))
	w := httptest.NewRecorder()
	b.server.http.Handler.ServeHTTP(w, req)
	a := answer{w.Code, w.Header(), w.Body.String()}
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.problem(t).Detail, "could not be read")
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
