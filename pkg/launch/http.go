// Package launch reaches bots. Nothing in an error of this package comes from
// a bot's answer or repeats a URL's path or query: both may hold secrets, and
// errors stay on rows and in logs.
package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	// HTTPTimeoutDefault bounds one request, from the dial to the end of the
	// answer.
	HTTPTimeoutDefault = 30 * time.Second
	// UserAgentDefault is the User-Agent of launches.
	UserAgentDefault = "triggerd"
	// AnswerMaxBytes is how much of an answer's body is read.
	AnswerMaxBytes = 64 << 10
	// RunIDMaxBytes is the longest run id that is kept.
	RunIDMaxBytes = 256

	connectTimeout = 10 * time.Second
	// Shorter than the 5 s after which common servers (Node, uvicorn, Apache)
	// close an idle connection: a request sent into that costs an attempt,
	// because it is never sent again within one.
	idleTimeout = 4 * time.Second
)

// Headers of a launch besides those of Standard Webhooks.
const (
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderAttempt        = "Triggerd-Attempt"
	HeaderGeneration     = "Triggerd-Generation"
	// HeaderTraceParent is sent if the launch is part of a trace.
	HeaderTraceParent = "Traceparent"
)

// HTTPParams configures an HTTP launcher. The zero value works.
type HTTPParams struct {
	// Timeout bounds one request; HTTPTimeoutDefault if not positive.
	Timeout time.Duration
	// UserAgent is sent as such ("triggerd/1.2.3"); UserAgentDefault if empty.
	UserAgent string
}

// HTTP launches bots by a signed JSON POST (Standard Webhooks). One Launch
// sends one request, never a second one: it follows no redirect and repeats
// nothing that a broken connection may have carried (W8).
//
// Proxies are taken from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY),
// read once per process; loopback is reached directly. Any address that the
// replica can reach is allowed, internal ones too: who may register a bot may
// make triggerd POST there.
//
// Safe for concurrent use. Close it to drop its idle connections.
type HTTP struct {
	timeout   time.Duration
	userAgent string
	transport *http.Transport
	now       func() time.Time
}

var _ trigger.Launcher = (*HTTP)(nil)

// NewHTTP makes a launcher.
func NewHTTP(params HTTPParams) *HTTP {
	h := &HTTP{timeout: params.Timeout, userAgent: cmp.Or(params.UserAgent, UserAgentDefault), now: time.Now}
	if h.timeout <= 0 {
		h.timeout = HTTPTimeoutDefault
	}
	// HTTP/2 has resends of its own, and one silent connection would hold up
	// every launch to its bot.
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	// No limit on connections per host: slots bound what is in flight, and
	// waiting for a connection would count against the timeout. The dial has
	// a timeout of its own because it may outlive its request.
	h.transport = &http.Transport{
		Proxy:                  proxyFrom(http.ProxyFromEnvironment),
		OnProxyConnectResponse: proxyAnswered,
		DialContext:            (&net.Dialer{Timeout: min(connectTimeout, h.timeout)}).DialContext,
		TLSHandshakeTimeout:    min(connectTimeout, h.timeout),
		Protocols:              &protocols,
		MaxIdleConns:           4 * trigger.SlotsDefault,
		MaxIdleConnsPerHost:    trigger.SlotsDefault,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // so that AnswerMaxBytes holds for the wire
	}
	return h
}

// Close drops idle connections; those in use end with their request.
func (h *HTTP) Close() { h.transport.CloseIdleConnections() }

// Launch sends one request and judges its answer: 2xx is a success whatever
// its body is; 3xx and 4xx but 408, 425 and 429 are permanent; all else, and
// every failure of the way to the bot, can be tried again. Each error is a
// *trigger.LaunchError. It is definite for a 4xx and a 503, and when nothing
// of the request was written: it can't be rendered, ctx was already done (whose
// error it then wraps), or no connection came about. What happens once there is
// a connection is in doubt until one of those answers comes (W8).
func (h *HTTP) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	if err := ctx.Err(); err != nil {
		return trigger.Launched{}, &trigger.LaunchError{
			Message: fmt.Sprintf("launch %s not sent: %s", r.Key, err), Definite: true, Cause: err,
		}
	}
	req, err := h.request(r)
	if err != nil {
		return trigger.Launched{}, &trigger.LaunchError{Message: err.Error(), Permanent: true, Definite: true}
	}
	rctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	// The types of net/http's errors don't tell a failed dial or handshake
	// from a connection that broke later; this does. It is called by RoundTrip
	// itself, before anything of the request is written.
	connected := false
	traced := httptrace.WithClientTrace(rctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	// Not an http.Client: it would follow redirects, and put the URL into
	// its errors.
	resp, err := h.transport.RoundTrip(req.WithContext(traced))
	if err != nil {
		return trigger.Launched{}, &trigger.LaunchError{
			Message:  fmt.Sprintf("bot at %s: %s", req.URL.Host, h.failure(ctx, rctx, err)),
			Definite: !connected,
		}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 == 2 {
		return trigger.Launched{RunID: runID(resp.Body)}, nil
	}
	// The body is left unread: the status says enough, and a bot that is slow
	// to complain would hold the slot.
	return trigger.Launched{}, h.refusal(req.URL.Host, resp)
}

// request renders r. Its errors hold no secret.
func (h *HTTP) request(r trigger.LaunchRequest) (*http.Request, error) {
	u, err := parseURL(r.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the bot's %w", err)
	case !headerSafe(r.Key):
		return nil, fmt.Errorf("idempotency key %q can't travel in a header", r.Key)
	case len(r.Secret) == 0:
		return nil, errors.New("the bot has no secret to sign with")
	case r.Body == "":
		return nil, errors.New("the launch has no body")
	}
	timestamp := strconv.FormatInt(h.now().Unix(), 10)
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json")
	header.Set("User-Agent", h.userAgent)
	header.Set(HeaderIdempotencyKey, r.Key)
	header.Set(HeaderAttempt, strconv.Itoa(r.Attempt))
	header.Set(HeaderGeneration, strconv.Itoa(r.Generation))
	if parent := tracker.ParseTraceParent(r.TraceParent); parent != "" {
		header.Set(HeaderTraceParent, parent)
	}
	header.Set(HeaderWebhookID, r.Key)
	header.Set(HeaderWebhookTimestamp, timestamp)
	signed := signature(r.Secret, r.Key, timestamp, []byte(r.Body))
	if len(r.NextSecret) > 0 {
		signed += " " + signature(r.NextSecret, r.Key, timestamp, []byte(r.Body))
	}
	header.Set(HeaderWebhookSignature, signed)
	return &http.Request{
		Method: http.MethodPost, URL: u, Host: u.Host, Header: header,
		Body: io.NopCloser(strings.NewReader(r.Body)), ContentLength: int64(len(r.Body)),
		// Without GetBody: with it, net/http would send a POST that carries an
		// Idempotency-Key again by itself when a reused connection breaks (W8).
		GetBody: nil,
	}, nil
}

func headerSafe(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// runID finds the run id in the body of a success; "" if there is none that
// can be kept.
func runID(body io.Reader) string {
	read, err := io.ReadAll(io.LimitReader(body, AnswerMaxBytes))
	if err != nil {
		return ""
	}
	// A map, because a struct would also take "Run_ID".
	var answer map[string]json.RawMessage
	var id string
	if json.Unmarshal(read, &answer) != nil || json.Unmarshal(answer["run_id"], &id) != nil {
		return ""
	}
	if len(id) > RunIDMaxBytes || strings.ContainsFunc(id, unicode.IsControl) {
		return ""
	}
	return id
}

// refusal judges an answer that is no success (W5). Of the 5xx only 503 says
// that the request was not taken; a 502 or 504 is a gateway's, which may have
// passed it on (W8).
func (h *HTTP) refusal(host string, resp *http.Response) *trigger.LaunchError {
	code := resp.StatusCode
	le := &trigger.LaunchError{
		// The reason phrase is the bot's; the text here is Go's.
		Message:  strings.TrimSpace(fmt.Sprintf("bot at %s answered %d %s", host, code, http.StatusText(code))),
		Definite: code/100 == 4 || code == http.StatusServiceUnavailable,
		Status:   code,
	}
	switch {
	case code/100 == 3:
		le.Permanent = true
		le.Message += ": redirects are not followed, give the bot the URL that it is at"
	case code/100 == 4 && code != http.StatusRequestTimeout && code != http.StatusTooEarly && code != http.StatusTooManyRequests:
		le.Permanent = true
	default:
		// Codes outside 100…599 count as 5xx (RFC 9110, section 15).
		le.RetryAfter = h.retryAfter(resp.Header)
	}
	return le
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3); 0 if it is absent,
// malformed or past. A date is taken relative to the answer's own Date, so
// that a bot whose clock is off means what it says.
func (h *HTTP) retryAfter(header http.Header) time.Duration {
	value := strings.TrimSpace(header.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		const most = int64(1<<63-1) / int64(time.Second)
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > most { // out of range
			seconds = most
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	from, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		from = h.now()
	}
	return max(0, at.Sub(from))
}
