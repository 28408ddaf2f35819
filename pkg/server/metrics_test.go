package server

import (
	"bytes"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/trigger"
)

var (
	sampleLine = regexp.MustCompile(`(?m)^(triggerd_[a-z_]+)(?:\{(.*)\})? (\S+)$`)
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (triggerd_[a-z_]+) (\w+)$`)
	labelPair  = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	metricRow  = regexp.MustCompile("(?m)^\\| `(triggerd_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|([^|]*)\\|([^|]+)\\|$")
)

// scrape is what a replica answered.
type scrape struct {
	kinds   map[string]string
	samples map[string]float64 // by name and labels, as they stand there
	labels  map[string]map[string][]string
}

func readScrape(t *testing.T, body string) scrape {
	t.Helper()
	s := scrape{make(map[string]string), make(map[string]float64), make(map[string]map[string][]string)}
	for _, m := range typeLine.FindAllStringSubmatch(body, -1) {
		s.kinds[m[1]] = m[2]
	}
	for _, m := range sampleLine.FindAllStringSubmatch(body, -1) {
		name, key := m[1], m[1]
		if m[2] != "" {
			key += "{" + m[2] + "}"
		}
		value, err := strconv.ParseFloat(m[3], 64)
		require.NoError(t, err)
		s.samples[key] = value
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); s.kinds[base] == kindHistogram {
				name = base
			}
		}
		if s.labels[name] == nil {
			s.labels[name] = make(map[string][]string)
		}
		for _, p := range labelPair.FindAllStringSubmatch(m[2], -1) {
			if p[1] != "le" {
				s.labels[name][p[1]] = append(s.labels[name][p[1]], p[2])
			}
		}
	}
	return s
}

// scraped asks a replica for its metrics.
func (b *bundle) scraped(t *testing.T) scrape {
	t.Helper()
	a := b.get(t, "", "/metrics")
	require.Equal(t, http.StatusOK, a.status)
	return readScrape(t, a.body)
}

// What a replica does is counted and measured, in memory too.
func TestMetrics(t *testing.T) {
	t.Parallel()
	b := start(t)
	b.subscribe(t)
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	recv(t, b.settled)
	s := b.scraped(t)
	for name, want := range map[string]float64{
		"triggerd_evaluations_total":                                               1,
		"triggerd_events_drained_total":                                            1,
		"triggerd_effects_owed_total":                                              1,
		"triggerd_effects_claimed_total":                                           1,
		"triggerd_settles_total":                                                   1,
		"triggerd_storm_pauses_total":                                              0,
		"triggerd_settles_refused_total":                                           0,
		"triggerd_schedule_to_start_seconds_count":                                 1,
		"triggerd_emit_to_done_seconds_count":                                      1,
		`triggerd_effects_total{kind="launch",outcome="launched",state="done"}`:    1,
		`triggerd_effects_total{kind="launch",outcome="exhausted",state="failed"}`: 0,
	} {
		require.Contains(t, s.samples, name)
		if name == "triggerd_events_drained_total" || name == "triggerd_effects_owed_total" {
			continue // the rows go to the worker before the cursor moves
		}
		require.InDelta(t, want, s.samples[name], 0, name)
	}
	require.Eventually(t, func() bool {
		s := b.scraped(t)
		return s.samples["triggerd_events_drained_total"] == 1 && s.samples["triggerd_effects_owed_total"] == 1
	}, wait, tick)
	require.NotContains(t, s.kinds, "triggerd_store_command_seconds", "there is no database")
	require.Contains(t, b.get(t, "", "/metrics").body, "\ngo_goroutines ")
}

// declared are all metrics, with what their labels may be.
func declared(t *testing.T) (map[string]family, map[string]map[string][]string) {
	t.Helper()
	b := build(t)
	b.server.observed = true
	require.NoError(t, b.server.fleet.Look(t.Context()))
	families, values := make(map[string]family), make(map[string]map[string][]string)
	for _, f := range b.server.families() {
		require.NotContains(t, families, f.name)
		families[f.name], values[f.name] = f, make(map[string][]string)
		if f.values != nil {
			f.values(func(_ float64, labels ...string) {
				require.Len(t, labels, len(f.labels), f.name)
				for i, v := range labels {
					values[f.name][f.labels[i]] = append(values[f.name][f.labels[i]], v)
				}
			})
		}
	}
	values["triggerd_fleet_capped"]["what"] = append(trigger.FleetStates(), trigger.FleetTenantsBehind, trigger.FleetPausedSubscriptions)
	values["triggerd_store_command_seconds"]["command"] = storeCommands
	return families, values
}

// The docs have each metric, as it is, and no other.
func TestMetricsDocs(t *testing.T) {
	t.Parallel()
	families, _ := declared(t)
	docs, err := os.ReadFile("../../docs/ops/metrics.md")
	require.NoError(t, err)
	documented := make(map[string]bool)
	for _, m := range metricRow.FindAllStringSubmatch(string(docs), -1) {
		name := m[1]
		documented[name] = true
		f, ok := families[name]
		require.True(t, ok, "%s is in the docs only", name)
		assert.Equal(t, f.kind, m[2], name)
		var labels []string
		for _, l := range strings.Split(m[3], ",") {
			if l = strings.Trim(strings.TrimSpace(l), "`"); l != "" {
				labels = append(labels, l)
			}
		}
		assert.Equal(t, f.labels, labels, name)
		assert.NotEmpty(t, strings.TrimSpace(m[5]), name)
	}
	for name, f := range families {
		assert.True(t, documented[name], "%s is not in the docs, or not in the form of the tables", name)
		// The conventions of Prometheus.
		assert.Equal(t, f.kind == kindCounter, strings.HasSuffix(name, "_total"), name)
	}
	assert.Equal(t, len(documented), strings.Count(string(docs), "\n| `triggerd_"), "a row of another form")
	// Each value of a label that is told in words is one that there is.
	for _, state := range trigger.FleetStates() {
		assert.Contains(t, string(docs), "`"+state+"`")
	}
}

// alertFile is the part of Prometheus' rule files that is used.
type alertFile struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert       string
			Expr        string
			For         string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
}

var (
	metricUse  = regexp.MustCompile(`(\w+\()?(triggerd_[a-z_]+)(\{[^}]*\})?(\[\d+[smh]\])?`)
	byLabels   = regexp.MustCompile(`by \(([^)]*)\)`)
	annotation = regexp.MustCompile(`\$labels\.(\w+)`)
)

// The alert rules ask only for metrics that there are, in the ways that their
// types allow, and say what to do.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	families, values := declared(t)
	text, err := os.ReadFile("../../docs/ops/alerts.yaml")
	require.NoError(t, err)
	var file alertFile
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(&file))
	alerts := make(map[string]string)
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			require.NotContains(t, alerts, r.Alert)
			alerts[r.Alert] = r.Expr
			assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
			assert.Greater(t, len(r.Annotations["action"]), 80, "%s says what to do", r.Alert)
			assert.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
			assert.Equal(t, strings.Count(r.Expr, "("), strings.Count(r.Expr, ")"), r.Alert)
			by := []string{}
			for _, m := range byLabels.FindAllStringSubmatch(r.Expr, -1) {
				for _, l := range strings.Split(m[1], ",") {
					by = append(by, strings.TrimSpace(l))
				}
			}
			known := []string{}
			for _, m := range metricUse.FindAllStringSubmatch(r.Expr, -1) {
				known = append(known, checkUse(t, r.Alert, m, families, values, slices.Contains(by, "le"))...)
			}
			assert.Subset(t, known, by, r.Alert)
			for _, text := range r.Annotations {
				for _, m := range annotation.FindAllStringSubmatch(text, -1) {
					assert.Contains(t, by, m[1], "%s tells of a label that its expression has not", r.Alert)
				}
				for _, m := range metricUse.FindAllStringSubmatch(text, -1) {
					name := strings.TrimSuffix(m[2], "_bucket")
					assert.Contains(t, families, name, "%s: what to do", r.Alert)
				}
			}
		}
	}
	for _, name := range []string{"TriggerdReconcile", "TriggerdReadyRowsWait", "TriggerdDeadLettersGrow", "TriggerdClaimsSlow", "TriggerdTailStands"} {
		assert.Contains(t, alerts, name)
	}
	// Without the database nobody counts: what the fleet's numbers were, most
	// often that nothing is ready, must not keep it quiet.
	assert.Contains(t, alerts["TriggerdWorkersStand"], `or max(triggerd_worker_slots{state="free"}) > 0`)
}

// checkUse checks one use of a metric, and returns the labels that it has.
func checkUse(t *testing.T, alert string, m []string, families map[string]family, values map[string]map[string][]string, le bool) []string {
	t.Helper()
	call, name, matchers, window := m[1], m[2], m[3], m[4]
	labels := []string{}
	f, ok := families[name]
	if !ok {
		base := strings.TrimSuffix(name, "_bucket")
		f, ok = families[base]
		assert.True(t, ok && base != name && f.kind == kindHistogram, "%s: there is no %s", alert, name)
		assert.True(t, le, "%s: buckets are told apart by le", alert)
		labels = append(labels, "le")
	} else {
		assert.NotEqual(t, kindHistogram, f.kind, "%s: %s is asked for by its buckets, sum or count", alert, name)
	}
	grows := call == "rate(" || call == "increase("
	assert.Equal(t, f.kind != kindGauge, grows, "%s: %s is a %s", alert, name, f.kind)
	assert.Equal(t, grows, window != "", "%s: %s", alert, name)
	pairs := labelPair.FindAllStringSubmatch(matchers, -1)
	assert.Len(t, pairs, strings.Count(matchers, "="), "%s: %s%s", alert, name, matchers)
	for _, p := range pairs {
		assert.Contains(t, values[f.name][p[1]], p[2], "%s: %s%s", alert, name, matchers)
	}
	return append(labels, f.labels...)
}
