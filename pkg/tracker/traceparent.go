package tracker

import (
	"context"
	"strings"
)

// The parts of a traceparent (W3C Trace Context): version, trace id, span id,
// flags, in lower hexadecimal digits.
const (
	traceParentLen = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	traceIDFrom    = 3
	spanIDFrom     = 36
	flagsFrom      = 53
)

// ParseTraceParent returns a caller's traceparent in the form of version 00,
// or "" if it is none. One of a later version is read by what it has in common
// with 00, as the standard says; what follows is dropped.
func ParseTraceParent(s string) string {
	if len(s) < traceParentLen || s[2] != '-' || s[spanIDFrom-1] != '-' || s[flagsFrom-1] != '-' {
		return ""
	}
	version, rest := s[:2], s[traceParentLen:]
	trace, span, flags := s[traceIDFrom:spanIDFrom-1], s[spanIDFrom:flagsFrom-1], s[flagsFrom:traceParentLen]
	switch {
	case !lowerHex(version) || !lowerHex(trace) || !lowerHex(span) || !lowerHex(flags):
		return ""
	case version == "ff", strings.Trim(trace, "0") == "", strings.Trim(span, "0") == "":
		return ""
	case version == "00" && rest != "", rest != "" && rest[0] != '-':
		return ""
	case version == "00":
		return s
	}
	// Of the flags of a later version the one of 00 is known.
	sampled := "00"
	if strings.IndexByte("13579bdf", flags[1]) >= 0 {
		sampled = "01"
	}
	return "00" + s[2:flagsFrom] + sampled
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

type traceParentKey struct{}

// WithTraceParent has the events of the changes that are made under the context
// keep the traceparent. One that is none is ignored.
func WithTraceParent(ctx context.Context, traceParent string) context.Context {
	if traceParent = ParseTraceParent(traceParent); traceParent == "" {
		return ctx
	}
	return context.WithValue(ctx, traceParentKey{}, traceParent)
}

// TraceParentOf returns the context's traceparent, in the form of version 00;
// "" if it has none.
func TraceParentOf(ctx context.Context) string {
	s, _ := ctx.Value(traceParentKey{}).(string)
	return s
}
