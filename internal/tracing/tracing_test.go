package tracing

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the environment asks for is done or refused, and never repeated.
func TestCheck(t *testing.T) {
	t.Parallel()
	const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"
	for _, c := range []struct {
		env  string
		on   bool
		says string // that which is refused
	}{
		{"", false, ""},
		{"OTEL_SERVICE_NAME=x\nOTEL_TRACES_SAMPLER=always_on", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT= ", false, ""},
		{endpoint, true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/v1/traces", true, ""},
		{endpoint + "\nOTEL_SDK_DISABLED=TRUE", false, ""},
		{endpoint + "\nOTEL_SDK_DISABLED=false", true, ""},
		{endpoint + "\nOTEL_TRACES_EXPORTER=none", false, ""},
		{endpoint + "\nOTEL_TRACES_EXPORTER=otlp", true, ""},
		{endpoint + "\nOTEL_TRACES_EXPORTER=s3cret", false, "OTEL_TRACES_EXPORTER"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=s3cret:4318", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=://s3cret", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=unix:///s3cret", false, "OTEL_EXPORTER_OTLP_ENDPOINT"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:s3cret@c", false, "OTEL_EXPORTER_OTLP_HEADERS"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c/?key=s3cret", false, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{endpoint + "\nOTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", false, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_PROTOCOL=grpc\nOTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", true, ""},
		{endpoint + "\nOTEL_EXPORTER_OTLP_TIMEOUT=500", true, ""},
		{endpoint + "\nOTEL_EXPORTER_OTLP_TIMEOUT=5s", false, "OTEL_EXPORTER_OTLP_TIMEOUT"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20s3cret, x-team = a", true, ""},
		{endpoint + "\nOTEL_EXPORTER_OTLP_HEADERS=s3cret", false, "OTEL_EXPORTER_OTLP_HEADERS"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_TRACES_HEADERS=a b=s3cret", false, "OTEL_EXPORTER_OTLP_TRACES_HEADERS"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_HEADERS=a=s3cret%2", false, "OTEL_EXPORTER_OTLP_HEADERS"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_HEADERS=a=s3cret%0d%0ab:c", false, "OTEL_EXPORTER_OTLP_HEADERS"},
		{endpoint + "\nOTEL_EXPORTER_OTLP_CERTIFICATE=/s3cret/ca.pem", false, "OTEL_EXPORTER_OTLP_CERTIFICATE"},
		{endpoint + "\nOTEL_TRACES_SAMPLER=parentbased_always_off", true, ""},
		{endpoint + "\nOTEL_TRACES_SAMPLER=traceidratio\nOTEL_TRACES_SAMPLER_ARG=0.25", true, ""},
		{endpoint + "\nOTEL_TRACES_SAMPLER=traceidratio\nOTEL_TRACES_SAMPLER_ARG=NaN", false, "OTEL_TRACES_SAMPLER_ARG"},
		{endpoint + "\nOTEL_TRACES_SAMPLER=parentbased_traceidratio\nOTEL_TRACES_SAMPLER_ARG=s3cret", false, "OTEL_TRACES_SAMPLER_ARG"},
		{endpoint + "\nOTEL_TRACES_SAMPLER=s3cret", false, "OTEL_TRACES_SAMPLER"},
	} {
		on, err := environment(func(name string) string {
			for line := range strings.SplitSeq(c.env, "\n") {
				if value, ok := strings.CutPrefix(line, name+"="); ok {
					return value
				}
			}
			return ""
		}).check()
		require.Equal(t, c.on, on, c.env)
		if c.says == "" {
			require.NoError(t, err, c.env)
			continue
		}
		require.ErrorContains(t, err, c.says, c.env)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// Not parallel, as it is the process's environment.
func TestStart(t *testing.T) {
	off, err := Start(t.Context(), Params{})
	require.NoError(t, err)
	require.Nil(t, off)
	require.Nil(t, off.Provider())
	off.Stop(time.Now())

	c := otlptest.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=9")
	var log syncBuffer
	begin := func() *Tracing {
		on, err := Start(t.Context(), Params{Version: "1.2.3", Instance: "replica-1", Logger: zerolog.New(&log)})
		require.NoError(t, err)
		return on
	}
	emit := func(on *Tracing, name string) {
		_, span := on.Provider().Tracer("test").Start(t.Context(), name)
		span.End()
	}
	on := begin()
	emit(on, "one")
	stop := func(on *Tracing) { on.Stop(time.Now().Add(30 * time.Second)) }
	stop(on)
	spans := c.Spans("one")
	require.Len(t, spans, 1)
	res := spans[0].Resource
	require.Equal(t, "triggerd", res["service.name"])
	require.Equal(t, "9", res["service.version"], "the environment's wins")
	require.Equal(t, "replica-1", res["service.instance.id"])
	require.Equal(t, "test", res["deployment.environment.name"])
	require.Equal(t, "Bearer s3cret", c.Headers().Get("Authorization"))

	t.Setenv("OTEL_SERVICE_NAME", "boards")
	on = begin()
	emit(on, "two")
	stop(on)
	require.Equal(t, "boards", c.Spans("two")[0].Resource["service.name"])

	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	on = begin()
	emit(on, "three")
	stop(on)
	require.Empty(t, c.Spans("three"))
	require.Empty(t, log.String())

	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "s3cret")
	_, err = Start(t.Context(), Params{})
	require.ErrorContains(t, err, "OTEL_RESOURCE_ATTRIBUTES: ")
	require.NotContains(t, err.Error(), "s3cret")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "")
	t.Setenv("OTEL_TRACES_SAMPLER", "")

	t.Log("a collector that refuses is logged, once for a while, without its words")
	c.Answer = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "s3cret", http.StatusForbidden) }
	on = begin()
	for range 3 {
		emit(on, "four")
		require.NoError(t, on.provider.ForceFlush(t.Context()))
	}
	stop(on)
	require.Equal(t, 1, strings.Count(log.String(), "tracing: spans were lost"), log.String())
	require.NotContains(t, log.String(), "s3cret")

	t.Log("one that hangs holds up the stop for a while, not for ever")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000") // it is not the exporter that gives up
	hang, hung := make(chan struct{}), make(chan struct{}, 10)
	c.Answer = func(http.ResponseWriter, *http.Request) { hung <- struct{}{}; <-hang }
	on = begin()
	emit(on, "five")
	began := time.Now()
	on.Stop(began) // for a while all the same
	took := time.Since(began)
	close(hang)
	require.NotEmpty(t, hung)
	require.GreaterOrEqual(t, took, flushLeast-100*time.Millisecond)
	require.Less(t, took, time.Minute)
	require.Contains(t, log.String(), "tracing: the last spans were lost")
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}
