package server

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// docs/openapi.yaml is what the API says of itself.
func TestOpenAPIIsCommitted(t *testing.T) {
	t.Parallel()
	want, err := NewAPI(APIParams{}).OpenAPIYAML()
	require.NoError(t, err)
	have, err := os.ReadFile("../../docs/openapi.yaml")
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "run `make docs`")
}

func TestOpenAPIIsServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asYAML, asJSON := b.get(t, "", "/openapi.yaml"), b.get(t, "", "/openapi.json")
	require.Equal(t, http.StatusOK, asYAML.status)
	require.Equal(t, http.StatusOK, asJSON.status)
	require.Equal(t, "application/yaml", asYAML.header.Get("Content-Type"))
	var one, two any
	require.NoError(t, yaml.Unmarshal([]byte(asYAML.body), &one))
	require.NoError(t, json.Unmarshal([]byte(asJSON.body), &two))
	normal, err := json.Marshal(one)
	require.NoError(t, err)
	require.JSONEq(t, asJSON.body, string(normal))
	require.Equal(t, "3.1.0", two.(map[string]any)["openapi"])
	for path, item := range b.server.api.openapi.Paths {
		for _, op := range operationsOf(item) {
			require.NotEmpty(t, op.Summary, path)
			require.NotEmpty(t, op.Tags, path)
			require.Contains(t, op.Responses["default"].Content, "application/problem+json", path)
			require.NotEmpty(t, op.Extensions["x-roles"], path)
		}
	}
}

// The reference page names each operation, and neither loads nor runs anything.
func TestReferencePage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.get(t, "", "/docs")
	require.Equal(t, http.StatusOK, a.status)
	require.Equal(t, "text/html; charset=utf-8", a.header.Get("Content-Type"))
	for _, item := range b.server.api.openapi.Paths {
		for _, op := range operationsOf(item) {
			require.Contains(t, a.body, `id="`+op.OperationID+`"`)
			require.Contains(t, a.body, strings.ReplaceAll(op.Path, "'", "&#39;"))
		}
	}
	require.NotRegexp(t, `(?i)<(script|link|img|iframe|object|embed|form)\b|url\(|@import|\son[a-z]+=|https?://`, a.body)
	policy := a.header.Get("Content-Security-Policy")
	require.True(t, strings.HasPrefix(policy, "default-src 'none'; "), policy)
	require.NotContains(t, policy, "unsafe")
	style := regexp.MustCompile(`(?s)<style>(.*)</style>`).FindStringSubmatch(a.body)
	require.NotNil(t, style)
	sum := sha256.Sum256([]byte(style[1]))
	require.Contains(t, policy, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'", "the style is let in as it stands there")
	require.Equal(t, http.StatusMethodNotAllowed, b.post(t, "", "/docs", "").status)
}
