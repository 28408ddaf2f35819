package tracker

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTraceParent(t *testing.T) {
	t.Parallel()
	const trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	good := "00-" + trace + "-" + span + "-01"
	for in, want := range map[string]string{
		good:                               good,
		"00-" + trace + "-" + span + "-00": "00-" + trace + "-" + span + "-00",
		"00-" + trace + "-" + span + "-03": "00-" + trace + "-" + span + "-03", // random
		// Later versions.
		"01-" + trace + "-" + span + "-01":           good,
		"cc-" + trace + "-" + span + "-0b-what-else": good,
		"cc-" + trace + "-" + span + "-02-":          "00-" + trace + "-" + span + "-00",
		// None.
		"":                                 "",
		"ff-" + trace + "-" + span + "-01": "",
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01":             "",
		"00-" + trace + "-" + strings.Repeat("0", 16) + "-01":            "",
		"00-" + strings.ToUpper(trace) + "-" + span + "-01":              "",
		"00-" + trace + "-" + strings.ToUpper(span) + "-01":              "",
		"00-" + trace + "-" + span + "-0g":                               "",
		"0x-" + trace + "-" + span + "-01":                               "",
		"00_" + trace + "-" + span + "-01":                               "",
		"00-" + trace + "_" + span + "-01":                               "",
		"00-" + trace + "-" + span + "_01":                               "",
		"00-" + trace + span + "-01":                                     "",
		good + "-more":                                                   "",
		good + "\r\nX: y":                                                "",
		"01" + good[2:] + "1":                                            "",
		" " + good:                                                       "",
		good[:54]:                                                        "",
		strings.Repeat("0", 10<<10):                                      "",
		"00-" + strings.Repeat("é", 16) + "-" + span + "-01":             "",
		"00-" + trace[:31] + "\x00-" + span + "-01":                      "",
		"00-" + trace + "-" + span + "-01" + strings.Repeat(" ", 10<<10): "",
	} {
		require.Equal(t, want, ParseTraceParent(in), "%.80q", in)
	}
	require.Empty(t, TraceParentOf(t.Context()))
	require.Equal(t, t.Context(), WithTraceParent(t.Context(), "nonsense"))
	ctx := WithTraceParent(t.Context(), "01"+good[2:])
	require.Equal(t, good, TraceParentOf(ctx))
	require.Equal(t, good, TraceParentOf(WithTraceParent(ctx, "")), "nothing is said")
}
