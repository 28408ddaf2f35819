package launch

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The trace that a launch is part of goes along; what is none does not.
func TestTraceParentHeader(t *testing.T) {
	t.Parallel()
	var got http.Header
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for in, want := range map[string][]string{good: {good}, "": nil, "00-x\r\nX: y": nil, strings.Repeat("0", 55): nil} {
		r := request(s.URL)
		r.TraceParent = in
		_, err := newHTTP(t, HTTPParams{}).Launch(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, want, got[HeaderTraceParent], "%.60q", in)
	}
}
