package tracing

import (
	"net/url"
	"os"
	"strconv"
	"strings"
	"unicode"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// The variables that are looked at here. The others of the OTLP exporter, of
// its batches and of its limits are the library's to read.
const (
	exporterPrefix = "OTEL_EXPORTER_OTLP_"
	tracesPrefix   = exporterPrefix + "TRACES_"
	envExporter    = "OTEL_TRACES_EXPORTER"
	envDisabled    = "OTEL_SDK_DISABLED"
	envSampler     = "OTEL_TRACES_SAMPLER"
	envSamplerArg  = "OTEL_TRACES_SAMPLER_ARG"
	envResource    = "OTEL_RESOURCE_ATTRIBUTES"
)

// environment is os.Getenv, in tests another.
type environment func(name string) string

func (env environment) get(name string) string { return strings.TrimSpace(env(name)) }

// otlp returns the exporter's variable of a name, that for traces before that
// for all signals, and which of them it is; "" if neither is set.
func (env environment) otlp(name string) (variable, value string) {
	for _, prefix := range []string{tracesPrefix, exporterPrefix} {
		if value := env.get(prefix + name); value != "" {
			return prefix + name, value
		}
	}
	return "", ""
}

// check reports whether anything is to be traced. It refuses what the library
// would ignore, or do otherwise, with an error that names the variable and does
// not repeat its value.
func (env environment) check() (on bool, err error) {
	if _, endpoint := env.otlp("ENDPOINT"); endpoint == "" || strings.EqualFold(env.get(envDisabled), "true") {
		return false, nil
	}
	switch env.get(envExporter) {
	case "none":
		return false, nil
	case "", "otlp":
	default:
		return false, tracker.Fieldf(envExporter, "must be otlp or none")
	}
	for _, check := range []func() error{env.checkEndpoint, env.checkHeaders, env.checkFiles, env.checkSampler} {
		if err := check(); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (env environment) checkEndpoint() error {
	name, endpoint := env.otlp("ENDPOINT")
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return tracker.Fieldf(name, "must be an http or https URL")
	case u.User != nil || u.RawQuery != "":
		return tracker.Fieldf(name, "must have no user and no query: credentials go into "+exporterPrefix+"HEADERS")
	}
	if name, protocol := env.otlp("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return tracker.Fieldf(name, "must be http/protobuf, the one that is spoken here (port 4318 of most collectors)")
	}
	if name, timeout := env.otlp("TIMEOUT"); timeout != "" {
		if ms, err := strconv.Atoi(timeout); err != nil || ms <= 0 {
			return tracker.Fieldf(name, "must be a number of milliseconds")
		}
	}
	return nil
}

// checkHeaders refuses what the library would put into its log.
func (env environment) checkHeaders() error {
	for _, prefix := range []string{tracesPrefix, exporterPrefix} {
		headers := env.get(prefix + "HEADERS")
		if headers == "" {
			continue
		}
		for pair := range strings.SplitSeq(headers, ",") {
			key, value, ok := strings.Cut(pair, "=")
			value, err := url.PathUnescape(value)
			if !ok || err != nil || !headerName(strings.TrimSpace(key)) || strings.ContainsFunc(value, unicode.IsControl) {
				return tracker.Fieldf(prefix+"HEADERS", "must be name=value pairs with commas between them, the values URL-encoded")
			}
		}
	}
	return nil
}

// headerName reports whether s is a token (RFC 9110, section 5.6.2).
func headerName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// checkFiles finds out that a file can't be read before a connection fails
// without it.
func (env environment) checkFiles() error {
	for _, what := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		name, path := env.otlp(what)
		if path == "" {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			return tracker.Fieldf(name, "names a file that can't be read")
		}
	}
	return nil
}

func (env environment) checkSampler() error {
	switch strings.ToLower(env.get(envSampler)) {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
	case "traceidratio", "parentbased_traceidratio":
		arg := env.get(envSamplerArg)
		if arg == "" {
			return nil
		}
		if ratio, err := strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			return tracker.Fieldf(envSamplerArg, "must be a number from 0 to 1")
		}
	default:
		return tracker.Fieldf(envSampler, "must be always_on, always_off, traceidratio, or one of these with parentbased_ before it")
	}
	return nil
}
