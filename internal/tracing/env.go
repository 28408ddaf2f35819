package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"math"
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

const (
	// msMax is the longest time, a day, that a variable may say in milliseconds.
	msMax = 24 * 60 * 60 * 1000
	// spansMax bounds a queue and a batch: room for either is made at once.
	spansMax = 1_000_000
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
	for _, check := range []func() error{env.checkEndpoint, env.checkExport, env.checkHeaders, env.checkFiles, env.checkNumbers, env.checkSampler} {
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
	if name, insecure := env.otlp("INSECURE"); insecure != "" && strings.EqualFold(insecure, "true") != (u.Scheme == "http") {
		// It would win: what is to go by TLS would go without.
		return tracker.Fieldf(name, "contradicts the endpoint, whose http or https says it")
	}
	return nil
}

func (env environment) checkExport() error {
	if name, protocol := env.otlp("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return tracker.Fieldf(name, "must be http/protobuf, the one that is spoken here (port 4318 of most collectors)")
	}
	if name, timeout := env.otlp("TIMEOUT"); timeout != "" {
		if ms, err := strconv.Atoi(timeout); err != nil || ms <= 0 || ms > msMax {
			return tracker.Fieldf(name, "must be a number of milliseconds, at most %d", msMax)
		}
	}
	if name, compression := env.otlp("COMPRESSION"); compression != "" && compression != "gzip" && compression != "none" {
		return tracker.Fieldf(name, "must be gzip or none")
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

// checkFiles finds out what is wrong with a file before a connection fails, or
// comes about, without it.
func (env environment) checkFiles() error {
	if name, path := env.otlp("CERTIFICATE"); path != "" {
		text, err := readFile(name, path)
		if err != nil {
			return err
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return tracker.Fieldf(name, "names a file without a certificate in PEM")
		}
	}
	for _, prefix := range []string{tracesPrefix, exporterPrefix} {
		if err := env.checkPair(prefix+"CLIENT_CERTIFICATE", prefix+"CLIENT_KEY"); err != nil {
			return err
		}
	}
	return nil
}

// checkPair looks at a client's certificate and its key. One is nothing without
// the other.
func (env environment) checkPair(certName, keyName string) error {
	certPath, keyPath := env.get(certName), env.get(keyName)
	switch {
	case certPath == "" && keyPath == "":
		return nil
	case certPath == "":
		return tracker.Fieldf(certName, "is missing; %s needs it", keyName)
	case keyPath == "":
		return tracker.Fieldf(keyName, "is missing; %s needs it", certName)
	}
	cert, err := readFile(certName, certPath)
	if err != nil {
		return err
	}
	key, err := readFile(keyName, keyPath)
	if err != nil {
		return err
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return tracker.Fieldf(keyName, "names no key in PEM that fits the certificate in %s", certName)
	}
	return nil
}

// readFile reads the file that a variable names; its error doesn't.
func readFile(name, path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, tracker.Fieldf(name, "names a file that can't be read")
	}
	return text, nil
}

// checkNumbers refuses numbers that the library would ignore, or panic at, or
// that would have it send without a pause.
func (env environment) checkNumbers() error {
	for _, n := range []struct {
		name        string
		least, most int
	}{
		{"OTEL_BSP_SCHEDULE_DELAY", 1, msMax},
		{"OTEL_BSP_EXPORT_TIMEOUT", 0, msMax},
		{"OTEL_BSP_MAX_QUEUE_SIZE", 1, spansMax},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1, spansMax},
		{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", -1, math.MaxInt32},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", -1, math.MaxInt32},
		{"OTEL_SPAN_EVENT_COUNT_LIMIT", -1, math.MaxInt32},
		{"OTEL_SPAN_LINK_COUNT_LIMIT", -1, math.MaxInt32},
		{"OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", -1, math.MaxInt32},
		{"OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", -1, math.MaxInt32},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", -1, math.MaxInt32},
		{"OTEL_ATTRIBUTE_COUNT_LIMIT", -1, math.MaxInt32},
	} {
		value := env(n.name) // not trimmed: the library does not trim these
		if value == "" {
			continue
		}
		if got, err := strconv.Atoi(value); err != nil || got < n.least || got > n.most {
			return tracker.Fieldf(n.name, "must be a number from %d to %d", n.least, n.most)
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
