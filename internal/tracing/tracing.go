// Package tracing sends spans to an OpenTelemetry collector, as the standard
// variables say (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, …).
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	// valueMax bounds a text on a span, in bytes, unless
	// OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT says otherwise: a caller's
	// User-Agent is as long as it likes.
	valueMax = 1024
	// failuresLogEvery is how often it is logged that spans were lost, at most.
	failuresLogEvery = time.Minute
	// flushLeast is how long a stop waits for the collector, at least.
	flushLeast = 2 * time.Second
)

// Params says who traces.
type Params struct {
	Version string
	// Instance names the replica.
	Instance string
	Logger   zerolog.Logger
}

// Tracing makes spans and sends them, in the background. The nil one does
// nothing.
type Tracing struct {
	provider *sdktrace.TracerProvider
	log      zerolog.Logger
}

// Start begins to trace, if the environment names a collector; else it returns
// nil, and nothing runs. What the environment says and can't be done is an
// error, which names the variable and never repeats its value.
func Start(ctx context.Context, p Params) (*Tracing, error) {
	if on, err := environment(os.Getenv).check(); err != nil || !on {
		return nil, err
	}
	// The library's own log would repeat values; what it could complain about
	// is refused above, or reported below.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	res, err := resource.New(
		ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("triggerd"), semconv.ServiceVersion(p.Version), semconv.ServiceInstanceID(p.Instance)),
		resource.WithFromEnv(), // wins over the above
	)
	if err != nil {
		return nil, tracker.Fieldf(envResource, "must be key=value pairs with commas between them")
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	limits := sdktrace.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = valueMax
	}
	return &Tracing{log: p.Logger, provider: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&reporter{SpanExporter: exporter, log: p.Logger}), sdktrace.WithResource(res), sdktrace.WithRawSpanLimits(limits),
	)}, nil
}

// Provider returns what makes spans; nil if nothing is traced.
func (t *Tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Stop sends what is left, until the end of a grace period, or for flushLeast
// if that is over sooner. Spans that are made afterwards are lost.
func (t *Tracing) Stop(graceEnd time.Time) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithDeadline(context.Background(), laterOf(graceEnd, time.Now().Add(flushLeast)))
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn().Msg("tracing: the last spans were lost, the collector did not take them in time")
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reporter logs that spans were lost, now and then. What a collector answered
// is not repeated.
type reporter struct {
	sdktrace.SpanExporter
	log zerolog.Logger

	mu    sync.Mutex
	said  time.Time
	spans int
}

// ExportSpans implements sdktrace.SpanExporter.
func (r *reporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := r.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans += len(spans)
	if time.Since(r.said) < failuresLogEvery {
		return nil
	}
	why := "the collector did not take them"
	if broken := (*url.Error)(nil); errors.As(err, &broken) {
		why = broken.Err.Error()
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		why = "no answer in time"
	}
	r.log.Warn().Str("why", why).Int("spans", r.spans).Msg("tracing: spans were lost")
	r.said, r.spans = time.Now(), 0
	return nil
}
