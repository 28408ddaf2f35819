// Package otlptest is a collector of OpenTelemetry traces, in memory, for
// tests.
package otlptest

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as it came in, with the resource that sent it.
type Span struct {
	*tracepb.Span
	Resource map[string]string
	// Text is all that came with it, to look for what must not.
	Text string
}

// TraceID is the span's trace, in hexadecimal digits.
func (s Span) TraceID() string { return hex.EncodeToString(s.GetTraceId()) }

// Parent is the span that it is a child of, as a traceparent without flags.
func (s Span) Parent() string { return s.TraceID() + "-" + hex.EncodeToString(s.GetParentSpanId()) }

// Self is the span as a traceparent without flags.
func (s Span) Self() string { return s.TraceID() + "-" + hex.EncodeToString(s.GetSpanId()) }

// Links are the spans that it is linked to, as Parent is.
func (s Span) Links() (out []string) {
	for _, l := range s.GetLinks() {
		out = append(out, hex.EncodeToString(l.GetTraceId())+"-"+hex.EncodeToString(l.GetSpanId()))
	}
	return out
}

// Attributes are the span's, numbers as text.
func (s Span) Attributes() map[string]string { return attributes(s.GetAttributes()) }

func attributes(list []*commonpb.KeyValue) map[string]string {
	out := make(map[string]string)
	for _, kv := range list {
		out[kv.GetKey()] = kv.GetValue().GetStringValue()
		if _, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			out[kv.GetKey()] = strconv.FormatInt(kv.GetValue().GetIntValue(), 10)
		}
	}
	return out
}

// Collector takes spans by OTLP over HTTP, in protobuf.
type Collector struct {
	*httptest.Server
	// Answer, if set, answers instead, when the spans were read.
	Answer func(http.ResponseWriter, *http.Request)

	mu      sync.Mutex
	spans   []Span
	headers http.Header
}

// New starts a collector, which ends with the test.
func New(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var req v1.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &req)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("what came to the collector is no trace: %s %s: %v", r.URL.Path, r.Header.Get("Content-Type"), err)
			return
		}
		c.take(&req, r.Header)
		if c.Answer != nil {
			c.Answer(w, r)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *Collector) take(req *v1.ExportTraceServiceRequest, h http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = h
	for _, rs := range req.GetResourceSpans() {
		res := attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, Span{s, res, rs.String()})
			}
		}
	}
}

// Headers are those of the latest request.
func (c *Collector) Headers() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers
}

// Spans are those of a name that came so far; all if the name is empty.
func (c *Collector) Spans(name string) (out []Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if name == "" || s.GetName() == name {
			out = append(out, s)
		}
	}
	return out
}

// Await waits until n spans of a name have come, and returns them.
func (c *Collector) Await(t testing.TB, name string, n int) []Span {
	t.Helper()
	require.Eventually(t, func() bool { return len(c.Spans(name)) >= n }, 30*time.Second, 5*time.Millisecond, "%d spans %q", n, name)
	return c.Spans(name)
}
