package server

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/triggerd/triggerd/internal/otlptest"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	callersTraceID = "0af7651916cd43dd8448eb211c80319c"
	callersSpan    = callersTraceID + "-b7ad6b7169203331"
	callersParent  = "00-" + callersSpan + "-01"
)

// traceBot answers launches with each status in turn, then 200s.
type traceBot struct {
	*httptest.Server
	got chan *http.Request // its body read into the context of nobody: see bodies
	// bodies are those of got.
	bodies chan string
}

// withBot launches a real bot, at a URL with a secret in it.
func withBot(t *testing.T, statuses ...int) (*traceBot, option) {
	t.Helper()
	bot := &traceBot{got: make(chan *http.Request, 100), bodies: make(chan string, 100)}
	answers := make(chan int, len(statuses))
	for _, s := range statuses {
		answers <- s
	}
	bot.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case s := <-answers:
			w.WriteHeader(s)
		default:
			_, _ = io.WriteString(w, `{"run_id":"run-7"}`)
		}
		bot.bodies <- string(body)
		bot.got <- r
	}))
	t.Cleanup(bot.Close)
	launcher := launch.NewHTTP(launch.HTTPParams{})
	t.Cleanup(launcher.Close)
	return bot, func(b *bundle, p *Params) {
		b.launch = launcher.Launch
		p.Timing.RetryBase, p.Timing.RetryCap = time.Millisecond, time.Millisecond
		bots, err := b.mem.BotGet(t.Context(), "acme", botID)
		require.NoError(t, err)
		bots.URL, bots.Revision = bot.URL+"/launch/s3cret?token=s3cret", bots.Revision+1
		require.NoError(t, b.mem.BotSave(t.Context(), bots))
	}
}

// withTracer has the replica trace, to a collector.
func withTracer(t *testing.T) (*otlptest.Collector, option) {
	t.Helper()
	c := otlptest.New(t)
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(c.URL+"/v1/traces"))
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	return c, func(_ *bundle, p *Params) { p.Tracer = provider }
}

// makeCard makes a card, the call having these headers.
func (b *bundle) makeCard(t *testing.T, token string, traceparent ...string) (event trigger.Event) {
	t.Helper()
	req := b.requestAs(t, http.MethodPost, acme+"/cards", token, `{"board_id":"board-1","column_id":"todo","title":"T"}`, "")
	req.Header["Traceparent"] = traceparent
	req.Header.Set("Tracestate", "vendor=s3cret")
	card := as[Card](t, 201, b.do(t, req))
	for _, e := range b.events(t) {
		if e.CardID == card.ID {
			event = e
		}
	}
	require.NotZero(t, event.Seq)
	return event
}

func (b *bundle) rowOf(t *testing.T, e trigger.Event) *trigger.Effect {
	t.Helper()
	row, err := b.mem.EffectGet(t.Context(), "acme", trigger.EffectID(e.ID(), "sub-1"))
	require.NoError(t, err)
	return row
}

// Without a tracer the caller's trace is kept and handed on as it came, and
// where the caller has none the bot gets none.
func TestTraceWithoutATracer(t *testing.T) {
	t.Parallel()
	bot, with := withBot(t)
	b := start(t, with)
	b.subscribe(t)
	token := b.token(t, "")
	for name, c := range map[string]struct {
		sent []string
		kept string
	}{
		"the caller's":    {[]string{callersParent}, callersParent},
		"a later version": {[]string{"7f-" + callersSpan + "-01-more"}, callersParent},
		"none":            {nil, ""},
		"two":             {[]string{callersParent, callersParent}, ""},
		"10 kB":           {[]string{strings.Repeat("a", 10<<10)}, ""},
		"10 kB more":      {[]string{callersParent + strings.Repeat("0", 10<<10)}, ""},
		"wrong version":   {[]string{"ff" + callersParent[2:]}, ""},
		"no trace":        {[]string{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01"}, ""},
		"no span":         {[]string{"00-" + callersTraceID + "-0000000000000000-01"}, ""},
		"capitals":        {[]string{strings.ToUpper(callersParent)}, ""},
	} {
		event := b.makeCard(t, token, c.sent...)
		require.Equal(t, c.kept, event.TraceParent, name)
		got, body := recv(t, bot.got), recv(t, bot.bodies)
		require.Equal(t, c.kept, got.Header.Get("Traceparent"), name)
		require.NotContains(t, got.Header, "Tracestate")
		require.NotContains(t, body, callersTraceID, "what is sent does not depend on it")
		require.NotContains(t, body, "traceparent")
		recv(t, b.settled)
		require.Equal(t, c.kept, b.rowOf(t, event).Event.TraceParent, name)
		shown := as[trigger.Event](t, 200, b.get(t, token, acme+"/events/"+strconv.FormatInt(event.Seq, 10)))
		require.Equal(t, c.kept, shown.TraceParent, name)
	}
}

// Every call that changes cards keeps its trace, and a delivery too.
func TestTraceOfEachChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := b.token(t, "")
	for op, c := range b.boardWrites(t) {
		if strings.HasSuffix(op, "-board") {
			continue
		}
		req := b.requestAs(t, c.method, c.path, token, c.body, "")
		if op == "delete-card" || op == "edit-card" {
			req.Header.Set("If-Match", b.get(t, token, c.path).header.Get("Etag"))
		}
		req.Header.Set("Traceparent", callersParent)
		before := len(b.events(t))
		require.Equal(t, c.status, b.do(t, req).status, op)
		events := b.events(t)[before:]
		require.NotEmpty(t, events, op)
		for _, e := range events {
			want := ""
			if e.Kind != tracker.KindCreated || op == "create-card" {
				want = callersParent
			}
			require.Equal(t, want, e.TraceParent, "%s: %s", op, e.Kind)
		}
	}
	b.deliver(t, delivery{body: payload(t, "issues.opened"), edit: func(r *http.Request) { r.Header.Set("Traceparent", callersParent) }})
	require.Equal(t, callersParent, b.lastEvent(t).TraceParent)
	require.Equal(t, issueCard(), b.lastEvent(t).CardID)
}

// With a tracer the call is a span, which the event keeps; the launch is
// another, child of the call's and linked to it, and the bot goes on with that;
// an attempt that is made again is a span of its own in the same trace.
func TestTraceWithATracer(t *testing.T) {
	t.Parallel()
	bot, with := withBot(t, http.StatusBadGateway)
	collector, tracing := withTracer(t)
	b := start(t, with, tracing)
	b.subscribe(t)
	token := b.token(t, "")
	event := b.makeCard(t, token, callersParent)
	call := collector.Await(t, "POST /v1/tenants/{tenant}/cards", 1)[0]
	require.Equal(t, callersSpan, call.Parent())
	require.Equal(t, "00-"+call.Self()+"-01", event.TraceParent, "the call's own span is kept")
	require.Equal(t, "SPAN_KIND_SERVER", call.GetKind().String())
	require.Equal(t, "201", call.Attributes()["http.response.status_code"])

	launches := collector.Await(t, "launch", 2)
	u, err := url.Parse(bot.URL)
	require.NoError(t, err)
	var bodies []string
	for i, span := range launches {
		got := recv(t, bot.got)
		bodies = append(bodies, recv(t, bot.bodies))
		require.Equal(t, "00-"+span.Self()+"-01", got.Header.Get("Traceparent"), "attempt %d", i)
		require.Equal(t, call.Self(), span.Parent())
		require.Equal(t, []string{call.Self()}, span.Links())
		require.Equal(t, "SPAN_KIND_CLIENT", span.GetKind().String())
		want := map[string]string{
			"triggerd.tenant": "acme", "triggerd.effect": trigger.EffectID(event.ID(), "sub-1"), "triggerd.subscription": "sub-1", "triggerd.bot": botID,
			"triggerd.attempt": strconv.Itoa(i + 1), "triggerd.generation": "0", "http.request.method": "POST", "server.address": u.Hostname(), "server.port": u.Port(),
		}
		if i == 0 {
			want["error.type"], want["http.response.status_code"] = "502", "502"
			require.Equal(t, "STATUS_CODE_ERROR", span.GetStatus().GetCode().String())
			require.Contains(t, span.GetStatus().GetMessage(), "502")
		} else {
			want["triggerd.run"] = "run-7"
			require.Equal(t, "STATUS_CODE_UNSET", span.GetStatus().GetCode().String())
		}
		require.Equal(t, want, span.Attributes())
	}
	require.NotEqual(t, launches[0].Self(), launches[1].Self())
	require.Equal(t, bodies[0], bodies[1], "W12")

	t.Log("a caller without a trace begins one")
	recv(t, b.settled)
	recv(t, b.settled)
	event = b.makeCard(t, token)
	call = collector.Await(t, "POST /v1/tenants/{tenant}/cards", 2)[1]
	require.NotEqual(t, callersTraceID, call.TraceID())
	require.Empty(t, call.GetParentSpanId())
	require.Equal(t, call.Self(), collector.Await(t, "launch", 3)[2].Parent())
	require.Contains(t, recv(t, bot.got).Header.Get("Traceparent"), call.TraceID())
	require.Equal(t, "00-"+call.Self()+"-01", event.TraceParent)

	t.Log("so does a change that nobody's call made")
	b.newCard(t, "c9")
	_, err = b.server.board.Relay.Card(t.Context(), "acme", "c9")
	require.NoError(t, err)
	alone := collector.Await(t, "launch", 4)[3]
	require.Empty(t, alone.GetParentSpanId())
	require.Empty(t, alone.Links())
	require.Equal(t, "00-"+alone.Self()+"-01", recv(t, bot.got).Header.Get("Traceparent"))

	t.Log("a delivery is a call too; probes are not, and no span has a secret")
	b.deliver(t, delivery{body: payload(t, "issues.opened"), edit: func(r *http.Request) { r.URL.RawQuery = "token=s3cret" }})
	collector.Await(t, "POST /v1/tenants/{tenant}/hooks/{hook}", 1)
	collector.Await(t, "launch", 5)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		b.get(t, "", path)
	}
	b.get(t, token, "/v1/nowhere?token=s3cret")
	collector.Await(t, "GET", 1)
	for _, span := range collector.Spans("") {
		b.checkHidden(t, "a span", span.Text)
		require.NotContains(t, span.Text, token)
		require.NotRegexp(t, "healthz|readyz|metrics", span.GetName()+span.Attributes()["url.path"])
	}
}

// A call that is not sampled is handed on as that.
func TestTraceThatIsNotSampled(t *testing.T) {
	t.Parallel()
	bot, with := withBot(t)
	collector, tracing := withTracer(t)
	b := start(t, with, tracing)
	b.subscribe(t)
	event := b.makeCard(t, b.token(t, ""), "00-"+callersSpan+"-00")
	require.Regexp(t, "^00-"+callersTraceID+"-[0-9a-f]{16}-00$", event.TraceParent)
	require.Regexp(t, "^00-"+callersTraceID+"-[0-9a-f]{16}-00$", recv(t, bot.got).Header.Get("Traceparent"))
	recv(t, b.settled)
	require.Empty(t, collector.Spans(""))
}

// Old events and rows have no such field, and nobody minds one that is no trace.
func TestTraceThatWasStoredWrong(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(tracker.BoardEvent{EID: "board:1"})
	require.NoError(t, err)
	require.NotContains(t, string(text), "traceparent")
	bot, with := withBot(t)
	collector, tracing := withTracer(t)
	b := start(t, with, tracing)
	b.subscribe(t)
	row := trigger.LaunchRequest{
		Key: "k", URL: bot.URL, Secret: []byte("s"), Body: "{}", TraceParent: "00-" + strings.Repeat("é", 40),
	}
	_, err = b.server.p.Launcher.Launch(t.Context(), row)
	require.NoError(t, err)
	span := collector.Await(t, "launch", 1)[0]
	require.Empty(t, span.GetParentSpanId())
	require.Equal(t, "00-"+span.Self()+"-01", recv(t, bot.got).Header.Get("Traceparent"))
}
