package tracing

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the library would ignore, do otherwise, or panic at is refused before it
// sees it.
func TestCheckBeforeTheLibrary(t *testing.T) {
	t.Parallel()
	cert, key, noPEM := certFiles(t)
	for _, c := range []struct{ env, names string }{
		{"", ""},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=gzip", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION=none", ""},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=s3cret", "OTEL_EXPORTER_OTLP_COMPRESSION"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=99999999999999999", "OTEL_EXPORTER_OTLP_TIMEOUT"},
		{"OTEL_EXPORTER_OTLP_INSECURE=true", ""},
		{"OTEL_EXPORTER_OTLP_INSECURE=false", "OTEL_EXPORTER_OTLP_INSECURE"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/v1/traces\nOTEL_EXPORTER_OTLP_INSECURE=true", "OTEL_EXPORTER_OTLP_INSECURE"},

		{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + cert, ""},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + noPEM, "OTEL_EXPORTER_OTLP_CERTIFICATE"},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + cert + "\nOTEL_EXPORTER_OTLP_CLIENT_KEY=" + key, ""},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + cert + "\nOTEL_EXPORTER_OTLP_CLIENT_KEY=" + noPEM, "OTEL_EXPORTER_OTLP_CLIENT_KEY"},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE=" + cert, "OTEL_EXPORTER_OTLP_CLIENT_KEY"},
		{"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=" + key, "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE"},

		{"OTEL_BSP_SCHEDULE_DELAY=1000\nOTEL_BSP_EXPORT_TIMEOUT=0\nOTEL_BSP_MAX_QUEUE_SIZE=10\nOTEL_BSP_MAX_EXPORT_BATCH_SIZE=5", ""},
		{"OTEL_BSP_SCHEDULE_DELAY=0", "OTEL_BSP_SCHEDULE_DELAY"},
		{"OTEL_BSP_SCHEDULE_DELAY=5s", "OTEL_BSP_SCHEDULE_DELAY"},
		{"OTEL_BSP_EXPORT_TIMEOUT=-1", "OTEL_BSP_EXPORT_TIMEOUT"},
		{"OTEL_BSP_MAX_QUEUE_SIZE=-1", "OTEL_BSP_MAX_QUEUE_SIZE"},
		{"OTEL_BSP_MAX_QUEUE_SIZE=1000000000000000", "OTEL_BSP_MAX_QUEUE_SIZE"},
		{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE=0", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"},
		{"OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT=-1\nOTEL_SPAN_LINK_COUNT_LIMIT=4", ""},
		{"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT=s3cret", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"},
		{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=1k", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"},
	} {
		on, err := environment(func(name string) string {
			for line := range strings.SplitSeq(c.env+"\nOTEL_EXPORTER_OTLP_ENDPOINT=http://c", "\n") {
				if value, ok := strings.CutPrefix(line, name+"="); ok {
					return value
				}
			}
			return ""
		}).check()
		if c.names == "" {
			require.NoError(t, err, c.env)
			require.True(t, on, c.env)
			continue
		}
		require.ErrorContains(t, err, c.names+": ", c.env)
		require.NotContains(t, err.Error(), "s3cret")
	}
}

// certFiles makes a certificate, its key, and a file that is neither.
func certFiles(t *testing.T) (cert, key, neither string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certDER, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	return write("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certDER})),
		write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
		write("neither.pem", []byte("neither"))
}
