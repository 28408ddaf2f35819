package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// headerTraceParent is the only header of a caller's trace that is read. Its
// tracestate is not: it is as long as its vendors like, says nothing to others,
// and would have to be kept on every event.
const headerTraceParent = "Traceparent"

// The scope and the attributes of spans; those with a meaning beyond this
// system go by OpenTelemetry's names.
const (
	traceScope       = "github.com/triggerd/triggerd/pkg/server"
	attrTenant       = "triggerd.tenant"
	attrEffect       = "triggerd.effect"
	attrSubscription = "triggerd.subscription"
	attrBot          = "triggerd.bot"
	attrAttempt      = "triggerd.attempt"
	attrGeneration   = "triggerd.generation"
	attrRun          = "triggerd.run"
	spanLaunch       = "launch"
)

// traced has the changes that a call makes keep its trace: the caller's, or
// with a tracer the call's own span in it.
func traced(next http.Handler, tracer trace.TracerProvider) http.Handler {
	if tracer == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if parent := callersTrace(r.Header); parent != "" {
				r = r.WithContext(tracker.WithTraceParent(r.Context(), parent))
			}
			next.ServeHTTP(w, r)
		})
	}
	kept := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := r.WithContext(tracker.WithTraceParent(r.Context(), traceParent(trace.SpanContextFromContext(r.Context()))))
		next.ServeHTTP(w, inner)
		r.Pattern = inner.Pattern // what names the span
	})
	return otelhttp.NewHandler(
		kept, "",
		otelhttp.WithTracerProvider(tracer), otelhttp.WithMeterProvider(metricnoop.NewMeterProvider()), otelhttp.WithPropagators(callers{}),
		// What asks all the time tells nothing, and changes nothing.
		otelhttp.WithFilter(func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/") }),
	)
}

// callersTrace returns what is kept of a caller's trace; "" if there is none,
// or none that can be read.
func callersTrace(h http.Header) string {
	if values := h.Values(headerTraceParent); len(values) == 1 {
		return tracker.ParseTraceParent(values[0])
	}
	return ""
}

// callers reads a caller's trace for a span.
type callers struct{}

func (callers) Extract(ctx context.Context, carrier propagation.TextMapCarrier) context.Context {
	h, ok := carrier.(propagation.HeaderCarrier)
	if !ok {
		return ctx
	}
	return remote(ctx, callersTrace(http.Header(h)))
}

func (callers) Inject(context.Context, propagation.TextMapCarrier) {}

func (callers) Fields() []string { return []string{headerTraceParent} }

// remote returns a context under which a span goes on with the trace; ctx if
// there is none.
func remote(ctx context.Context, parent string) context.Context {
	if parent = tracker.ParseTraceParent(parent); parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": parent})
}

// traceParent is how a span is told to others.
func traceParent(s trace.SpanContext) string {
	if !s.IsValid() {
		return ""
	}
	return "00-" + s.TraceID().String() + "-" + s.SpanID().String() + "-" + s.TraceFlags().String()
}

// tracedLauncher makes a span of each launch, and has the bot go on with it.
//
// The span is a child of the change's span, and linked to it: what comes long
// after, on another replica, is found by either, and the bot's own spans are in
// the caller's trace whether this replica has a tracer or not.
type tracedLauncher struct {
	trigger.Launcher
	tracer trace.Tracer
}

func newTracedLauncher(l trigger.Launcher, tracer trace.TracerProvider) trigger.Launcher {
	return &tracedLauncher{l, tracer.Tracer(traceScope)}
}

// Launch implements trigger.Launcher.
func (l *tracedLauncher) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	ctx = remote(ctx, r.TraceParent)
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(launchAttributes(r)...)}
	if change := trace.SpanContextFromContext(ctx); change.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: change}))
	}
	ctx, span := l.tracer.Start(ctx, spanLaunch, opts...)
	defer span.End()
	if parent := traceParent(span.SpanContext()); parent != "" {
		r.TraceParent = parent
	}
	got, err := l.Launcher.Launch(ctx, r)
	switch le := (*trigger.LaunchError)(nil); {
	case err == nil:
		if got.RunID != "" {
			span.SetAttributes(attribute.String(attrRun, got.RunID))
		}
	case errors.As(err, &le):
		kind := semconv.ErrorTypeOther
		if le.Status != 0 {
			kind = semconv.ErrorTypeKey.String(strconv.Itoa(le.Status))
			span.SetAttributes(semconv.HTTPResponseStatusCode(le.Status))
		}
		span.SetAttributes(kind)
		span.SetStatus(codes.Error, le.Message) // which holds no secret
	default:
		span.SetAttributes(semconv.ErrorTypeOther)
		span.SetStatus(codes.Error, "")
	}
	return got, err
}

// launchAttributes name the launch. Of the bot's URL only the host is told: the
// rest may hold a secret.
func launchAttributes(r trigger.LaunchRequest) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.String(attrTenant, r.TenantID), attribute.String(attrEffect, r.EffectID), attribute.String(attrSubscription, r.SubscriptionID),
		attribute.String(attrBot, r.BotID), attribute.Int(attrAttempt, r.Attempt), attribute.Int(attrGeneration, r.Generation),
	}
	u, err := url.Parse(r.URL)
	if err != nil || u.Hostname() == "" {
		return out
	}
	out = append(out, semconv.HTTPRequestMethodPost, semconv.ServerAddress(u.Hostname()))
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	if n, err := strconv.Atoi(port); err == nil {
		out = append(out, semconv.ServerPort(n))
	}
	return out
}
