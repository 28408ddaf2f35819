package launch

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testKey = "acme/000000000042|sub-1"
	// testToken stands in the URLs' queries and must appear in no error.
	testToken = "t0ken-in-the-query"
)

var testSecret = []byte("0123456789abcdef-the-bot's-secret")

func newHTTP(t *testing.T, params HTTPParams) *HTTP {
	t.Helper()
	h := NewHTTP(params)
	t.Cleanup(h.Close)
	return h
}

// serve starts a bot that outlives no test.
func serve(t *testing.T, bot http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(bot)
	t.Cleanup(s.Close)
	return s
}

// serveRaw runs a bot that speaks whatever it likes on each connection.
func serveRaw(t *testing.T, bot func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				bot(c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func request(base string) trigger.LaunchRequest {
	return trigger.LaunchRequest{
		Key: testKey, Attempt: 3, Generation: 1, URL: base + "/launch?token=" + testToken,
		Secret: testSecret, Body: `{"type":"launch","big":9007199254740993,"a.b":"<é>"}`,
	}
}

func launchError(t *testing.T, err error) *trigger.LaunchError {
	t.Helper()
	var le *trigger.LaunchError
	require.ErrorAs(t, err, &le)
	for _, secret := range []string{testToken, string(testSecret), "/launch"} {
		require.NotContains(t, le.Message, secret)
	}
	return le
}

func TestStatusClasses(t *testing.T) {
	t.Parallel()
	const success, permanent, retry = "success", "permanent", "retry"
	for class, codes := range map[string][]int{
		success:   {200, 201, 202, 204, 299},
		permanent: {300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 499},
		retry:     {101, 408, 425, 429, 500, 501, 502, 503, 504, 599, 600, 999},
	} {
		for _, code := range codes {
			t.Run(fmt.Sprintf("%s/%d", class, code), func(t *testing.T) {
				t.Parallel()
				// Raw, because net/http does not serve all of these codes. The
				// reason phrase and the body repeat secrets.
				addr := serveRaw(t, func(c net.Conn) {
					body := ""
					if code != 101 && code != 204 && code != 304 {
						body = testToken
					}
					_, _ = http.ReadRequest(bufio.NewReader(c))
					_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nRetry-After: 7\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
						code, testToken, len(body), body)
				})
				_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request("http://"+addr))
				if class == success {
					require.NoError(t, err)
					return
				}
				le := launchError(t, err)
				require.Contains(t, le.Message, strconv.Itoa(code))
				require.Equal(t, class == permanent, le.Permanent)
				require.Equal(t, code, le.Status)
				if class == retry {
					require.Equal(t, 7*time.Second, le.RetryAfter)
				} else {
					require.Zero(t, le.RetryAfter)
				}
			})
		}
	}
}

func TestRequestIsSignedAndComplete(t *testing.T) {
	t.Parallel()
	var got *http.Request
	var body []byte
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
	})
	h := newHTTP(t, HTTPParams{UserAgent: "triggerd/1.2.3"})
	r := request(s.URL)
	before := time.Now().Unix()
	_, err := h.Launch(t.Context(), r)
	require.NoError(t, err)

	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/launch?token="+testToken, got.URL.RequestURI())
	require.Equal(t, r.Body, string(body))
	timestamp := got.Header.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, seconds, before)
	require.LessOrEqual(t, seconds, time.Now().Unix())

	// By the text of the specification, not by this package's code.
	m := hmac.New(sha256.New, testSecret)
	_, _ = fmt.Fprintf(m, "%s.%s.%s", testKey, timestamp, r.Body)
	require.Equal(t, http.Header{
		"Accept":              {"application/json"},
		"Content-Type":        {"application/json"},
		"Content-Length":      {strconv.Itoa(len(r.Body))},
		"User-Agent":          {"triggerd/1.2.3"},
		"Idempotency-Key":     {testKey},
		"Triggerd-Attempt":    {"3"},
		"Triggerd-Generation": {"1"},
		"Webhook-Id":          {testKey},
		"Webhook-Timestamp":   {timestamp},
		"Webhook-Signature":   {"v1," + base64.StdEncoding.EncodeToString(m.Sum(nil))},
	}, got.Header)
	require.NoError(t, Verify(testSecret, got.Header, body, time.Now(), VerifyToleranceDefault))
}

// A bot that knows either secret takes the launch, and the one that it has had
// all along comes first.
func TestBothSecretsSignWhileOneIsRotated(t *testing.T) {
	t.Parallel()
	var got http.Header
	var body []byte
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header
		body, _ = io.ReadAll(r.Body)
	})
	r := request(s.URL)
	r.NextSecret = []byte("the-next-secret-of-the-bot")
	_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), r)
	require.NoError(t, err)
	for _, secret := range [][]byte{r.Secret, r.NextSecret} {
		require.NoError(t, Verify(secret, got, body, time.Now(), VerifyToleranceDefault))
	}
	require.Error(t, Verify([]byte("another secret"), got, body, time.Now(), VerifyToleranceDefault))
	signatures := strings.Split(got.Get("webhook-signature"), " ")
	require.Len(t, signatures, 2)
	require.Equal(t, signature(r.Secret, r.Key, got.Get("webhook-timestamp"), body), signatures[0])
}

func TestW12_BodyAndKeyAreTheSameInEveryAttempt(t *testing.T) {
	t.Parallel()
	type seen struct{ key, id, attempt, body string }
	var all []seen
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		all = append(all, seen{r.Header.Get("Idempotency-Key"), r.Header.Get("webhook-id"), r.Header.Get("Triggerd-Attempt"), string(body)})
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	h := newHTTP(t, HTTPParams{})
	r := request(s.URL)
	for r.Attempt = 1; r.Attempt <= 3; r.Attempt++ {
		_, err := h.Launch(t.Context(), r)
		require.False(t, launchError(t, err).Permanent)
	}
	require.Equal(t, []seen{{testKey, testKey, "1", r.Body}, {testKey, testKey, "2", r.Body}, {testKey, testKey, "3", r.Body}}, all)
}

// A reused connection that the bot closes after it read the request: net/http
// would send a POST with an Idempotency-Key again, the bot get it twice and the
// worker count one attempt.
func TestW8_OneLaunchIsOneRequest(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(net.Conn){
		"closed": func(net.Conn) {},
		"reset":  func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests, connections atomic.Int32
			addr := serveRaw(t, func(c net.Conn) {
				connections.Add(1)
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if requests.Add(1) == 2 {
						end(c)
						return
					}
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			})
			h := newHTTP(t, HTTPParams{})
			_, err := h.Launch(t.Context(), request("http://"+addr))
			require.NoError(t, err)
			_, err = h.Launch(t.Context(), request("http://"+addr))
			le := launchError(t, err)
			require.False(t, le.Permanent)
			require.False(t, le.Definite, "the bot has got it")
			require.Contains(t, le.Message, "the connection broke before an answer came")
			require.EqualValues(t, 2, requests.Load())
			require.EqualValues(t, 1, connections.Load(), "the connection was to be reused")
		})
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	target := serve(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	for _, code := range []int{301, 302, 303, 307, 308} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target.URL+"/elsewhere", code) })
		_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request(s.URL))
		le := launchError(t, err)
		require.True(t, le.Permanent)
		require.Contains(t, le.Message, "redirects are not followed")
		require.NotContains(t, le.Message, target.Listener.Addr().String())
	}
	require.Zero(t, called.Load())
}

func TestRunID(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", RunIDMaxBytes)
	for _, c := range []struct{ body, want string }{
		{`{"run_id":"r-1"}`, "r-1"},
		{` {"other":[1,{}],"run_id":"Läufe/7 x"} ` + "\n", "Läufe/7 x"},
		{`{"run_id":"` + long + `"}`, long},
		{`{"run_id":"` + long + `r"}`, ""},
		{`{"run_id":"a\nb"}`, ""},
		{`{"run_id":"a\u0000b"}`, ""},
		{`{"run_id":"a\u009bb"}`, ""},
		{`{"run_id":"\u001b[2J"}`, ""},
		{`{"run_id":7}`, ""},
		{`{"run_id":null}`, ""},
		{`{"Run_ID":"r-1"}`, ""},
		{`{"run_id":"r-1"} trailing`, ""},
		{`["run_id"]`, ""},
		{`{"run_id":"r-1"`, ""},
		{`null`, ""},
		{`<html>`, ""},
		{``, ""},
	} {
		require.Equal(t, c.want, runID(strings.NewReader(c.body)), c.body)
	}

	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"run_id":"r-1"}`) })
	got, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request(s.URL))
	require.NoError(t, err)
	require.Equal(t, trigger.Launched{RunID: "r-1"}, got)
}

type countingReader struct {
	io.Reader
	n int
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestOversizedAnswerIsASuccessAndNotReadOn(t *testing.T) {
	t.Parallel()
	body := &countingReader{Reader: io.MultiReader(strings.NewReader(`{"run_id":"r-1"}`), endless(' '))}
	require.Equal(t, "r-1", runID(body), "only space was cut off")
	require.Equal(t, AnswerMaxBytes, body.n)
	body = &countingReader{Reader: io.MultiReader(strings.NewReader(`{"run_id":"r-1","x":"`), endless('x'))}
	require.Empty(t, runID(body))
	require.Equal(t, AnswerMaxBytes, body.n)

	ended := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		_, _ = io.Copy(w, endless('x')) // until the launcher hangs up
	})
	_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request(s.URL))
	require.NoError(t, err)
	<-ended

	// Headers are bounded too; without an answer nothing is known.
	s = serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) })
	_, err = newHTTP(t, HTTPParams{}).Launch(t.Context(), request(s.URL))
	require.False(t, launchError(t, err).Permanent)
}

func TestBodyThatBreaksIsASuccess(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(net.Conn){
		"cut":  func(net.Conn) {},
		"hang": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serveRaw(t, func(c net.Conn) {
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"run_id\":")
				after(c)
			})
			got, err := newHTTP(t, HTTPParams{Timeout: 200 * time.Millisecond}).Launch(t.Context(), request("http://"+addr))
			require.NoError(t, err)
			require.Empty(t, got.RunID)
		})
	}
}

func TestConnectionIsReused(t *testing.T) {
	t.Parallel()
	var addrs []string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		addrs = append(addrs, r.RemoteAddr)
		_, _ = io.WriteString(w, `{"run_id":"r-1"}`)
	})
	h := newHTTP(t, HTTPParams{})
	for range 3 {
		_, err := h.Launch(t.Context(), request(s.URL))
		require.NoError(t, err)
	}
	require.Equal(t, []string{addrs[0], addrs[0], addrs[0]}, addrs)
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	h := newHTTP(t, HTTPParams{})
	h.now = func() time.Time { return now }
	for _, c := range []struct {
		value, date string
		want        time.Duration
	}{
		{value: "", want: 0},
		{value: "0", want: 0},
		{value: "120", want: 2 * time.Minute},
		{value: " 120 ", want: 2 * time.Minute},
		{value: "-5", want: 0},
		{value: "+5", want: 0},
		{value: "1.5", want: 0},
		{value: "soon", want: 0},
		{value: "Sun, 01 Mar 2026 12:01:30 GMT", want: 90 * time.Second},
		{value: "Sunday, 01-Mar-26 12:01:30 GMT", want: 90 * time.Second},
		{value: "Sun Mar  1 12:01:30 2026", want: 90 * time.Second},
		{value: "Sun, 01 Mar 2026 11:00:00 GMT", want: 0},
		// The bot's clock is ten years behind.
		{value: "Tue, 01 Mar 2016 12:01:30 GMT", date: "Tue, 01 Mar 2016 12:01:00 GMT", want: 30 * time.Second},
		{value: "Sun, 01 Mar 2026 12:01:30 GMT", date: "yesterday", want: 90 * time.Second},
	} {
		header := http.Header{"Retry-After": {c.value}, "Date": {c.date}}
		require.Equal(t, c.want, h.retryAfter(header), "%+v", c)
	}
	for _, huge := range []string{"9223372037", "9223372036854775807", strings.Repeat("9", 400)} {
		require.Greater(t, h.retryAfter(http.Header{"Retry-After": {huge}}), 24*time.Hour, huge)
	}
	require.Positive(t, h.retryAfter(http.Header{"Retry-After": {"Fri, 31 Dec 9999 23:59:59 GMT"}}))

	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), request(s.URL))
	require.InDelta(t, time.Hour, launchError(t, err).RetryAfter, float64(2*time.Second))
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	arrived := make(chan struct{}, 2)
	addr := serveRaw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			requests.Add(1)
			arrived <- struct{}{}
			_, _ = io.Copy(io.Discard, c)
		}
	})
	h := newHTTP(t, HTTPParams{})
	r := request("http://" + addr)

	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := h.Launch(ctx, r)
	require.Contains(t, launchError(t, err).Message, "cancelled")

	// The same ctx, now done: nothing is sent, and the bot is not blamed.
	_, err = h.Launch(ctx, r)
	require.ErrorIs(t, err, context.Canceled)
	require.Contains(t, launchError(t, err).Message, "not sent")
	require.NotContains(t, err.Error(), addr)
	require.EqualValues(t, 1, requests.Load())

	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = h.Launch(ctx, r)
	require.Contains(t, launchError(t, err).Message, "no answer before the attempt's deadline")
}

func TestUnsendableIsPermanent(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	s := serve(t, func(http.ResponseWriter, *http.Request) { called.Add(1) })
	for name, change := range map[string]func(*trigger.LaunchRequest){
		"user info": func(r *trigger.LaunchRequest) { r.URL = strings.Replace(r.URL, "//", "//"+testToken+"@", 1) },
		"fragment":  func(r *trigger.LaunchRequest) { r.URL += "#" + testToken },
		"no secret": func(r *trigger.LaunchRequest) { r.Secret = nil },
		"no key":    func(r *trigger.LaunchRequest) { r.Key = "" },
		"bad key":   func(r *trigger.LaunchRequest) { r.Key += "\r\nX: y" },
		"no body":   func(r *trigger.LaunchRequest) { r.Body = "" },
	} {
		r := request(s.URL)
		change(&r)
		_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), r)
		require.True(t, launchError(t, err).Permanent, name)
	}
	require.Zero(t, called.Load())
}

func TestConcurrentLaunches(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := Verify(testSecret, r.Header, body, time.Now(), VerifyToleranceDefault); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprintf(w, `{"run_id":%q}`, r.Header.Get("webhook-id"))
	})
	h := newHTTP(t, HTTPParams{})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 8 {
				r := request(s.URL)
				r.Key = fmt.Sprintf("acme/%012d|sub-%d", j, i)
				if got, err := h.Launch(t.Context(), r); err != nil || got.RunID != r.Key {
					t.Errorf("%s: %v, %v", r.Key, got, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestParamsDefaults(t *testing.T) {
	t.Parallel()
	h := newHTTP(t, HTTPParams{})
	require.Equal(t, HTTPTimeoutDefault, h.timeout)
	require.Equal(t, UserAgentDefault, h.userAgent)
	h = newHTTP(t, HTTPParams{Timeout: time.Second, UserAgent: "x"})
	require.Equal(t, time.Second, h.timeout)
	require.Equal(t, "x", h.userAgent)
}
