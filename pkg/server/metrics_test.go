package server

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	metricLine = regexp.MustCompile(`(?m)^(triggerd_[a-z_]+) (\d+)$`)
	metricDoc  = regexp.MustCompile("(?m)^\\| `(triggerd_[a-z_]+)` \\|")
)

func names(found [][]string) (out []string) {
	for _, m := range found {
		out = append(out, m[1])
	}
	return out
}

// What is counted is what the docs say, and it counts.
func TestMetrics(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.subscribe(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	recv(t, b.settled)
	a := b.get(t, "", "/metrics")
	require.Equal(t, http.StatusOK, a.status)
	found := metricLine.FindAllStringSubmatch(a.body, -1)
	docs, err := os.ReadFile("../../docs/ops/metrics.md")
	require.NoError(t, err)
	require.ElementsMatch(t, names(metricDoc.FindAllStringSubmatch(string(docs), -1)), names(found))
	values := make(map[string]string)
	for _, m := range found {
		values[m[1]] = m[2]
	}
	require.Equal(t, "1", values["triggerd_evaluations_total"])
	require.Equal(t, "1", values["triggerd_effects_claimed_total"])
	require.Equal(t, "1", values["triggerd_settles_total"])
	require.Equal(t, "0", values["triggerd_storm_pauses_total"])
	require.Equal(t, "0", values["triggerd_settles_refused_total"])
}
