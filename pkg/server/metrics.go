package server

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// family is one metric with all its labels (docs/ops/metrics.md). None has a
// tenant, a bot or anything else that somebody named for a label: there may be
// many, and whoever scrapes need not know them.
type family struct {
	name, help string
	kind       string
	labels     []string
	// values tells the values as they are now: of a counter what this replica
	// has counted since it started.
	values func(tell func(value float64, labels ...string))
	// histogram, in the stead of values.
	histogram prometheus.Collector
}

const (
	kindCounter   = "counter"
	kindGauge     = "gauge"
	kindHistogram = "histogram"
)

func counted(name, help string, value func() int64) family {
	return family{name: name, help: help, kind: kindCounter, values: func(tell func(float64, ...string)) { tell(float64(value())) }}
}

// meters are the distributions that a replica keeps.
type meters struct {
	scheduleToStart, emitToDone, claimRows, claimSeconds prometheus.Histogram

	storeSeconds  *prometheus.HistogramVec
	storeFailures *prometheus.CounterVec
}

// Buckets: what a bot's launch waits may be anything up to an hour; what the
// database takes is bounded by its timeout.
var (
	latencyBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}
	storeBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	rowsBuckets    = []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256}
)

// storeCommands are the commands that are told apart.
var storeCommands = []string{"aggregate", "delete", "find", "findAndModify", "getMore", "hello", "insert", "ping", "update", storeOther}

const storeOther = "other"

func newMeters() *meters {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m := &meters{
		scheduleToStart: histogram("triggerd_schedule_to_start_seconds", "From a row's making to its first attempt.", latencyBuckets),
		emitToDone:      histogram("triggerd_emit_to_done_seconds", "From a card's change to the end of a row that did what it is for.", latencyBuckets),
		claimRows:       histogram("triggerd_claim_rows", "Rows that a claim got.", rowsBuckets),
		claimSeconds:    histogram("triggerd_claim_seconds", "How long a claim took.", storeBuckets),
		storeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "triggerd_store_command_seconds", Help: "How long the database took for a command.", Buckets: storeBuckets,
		}, []string{"command"}),
		storeFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "triggerd_store_command_failures_total", Help: "Commands that failed.",
		}, []string{"command"}),
	}
	for _, name := range storeCommands {
		m.storeSeconds.WithLabelValues(name)
		m.storeFailures.WithLabelValues(name)
	}
	return m
}

// command takes a command of the database.
func (m *meters) command(name string, took time.Duration, ok bool) {
	known := storeOther
	for _, c := range storeCommands {
		if c == name {
			known = c
		}
	}
	m.storeSeconds.WithLabelValues(known).Observe(took.Seconds())
	if !ok {
		m.storeFailures.WithLabelValues(known).Inc()
	}
}

// worker are those that the worker tells.
func (m *meters) worker() trigger.WorkerMeters {
	return trigger.WorkerMeters{
		ScheduleToStart: m.scheduleToStart, EmitToDone: m.emitToDone, ClaimRows: m.claimRows, ClaimSeconds: m.claimSeconds,
	}
}

// families lists all metrics.
func (s *Server) families() []family {
	histograms := []family{
		{name: "triggerd_schedule_to_start_seconds", kind: kindHistogram, histogram: s.meters.scheduleToStart},
		{name: "triggerd_emit_to_done_seconds", kind: kindHistogram, histogram: s.meters.emitToDone},
		{name: "triggerd_claim_rows", kind: kindHistogram, histogram: s.meters.claimRows},
		{name: "triggerd_claim_seconds", kind: kindHistogram, histogram: s.meters.claimSeconds},
	}
	if s.observed {
		histograms = append(histograms,
			family{name: "triggerd_store_command_seconds", kind: kindHistogram, labels: []string{"command"}, histogram: s.meters.storeSeconds},
			family{name: "triggerd_store_command_failures_total", kind: kindCounter, labels: []string{"command"}, histogram: s.meters.storeFailures})
	}
	return append(append(append(s.tailFamilies(), s.workerFamilies()...), histograms...), s.fleetFamilies()...)
}

func (s *Server) tailFamilies() []family {
	return []family{
		counted("triggerd_events_drained_total", "Events that this replica moved cursors past.", s.tail.Drained),
		counted("triggerd_effects_owed_total", "Rows that those events owed.", s.tail.Owed),
		counted("triggerd_poison_events_total", "Events that were kept as poison rows.", s.tail.Poisoned),
		counted("triggerd_holes_closed_total", "Seqs that were given up since no event came.", s.tail.HolesClosed),
		counted("triggerd_evaluations_total", "Evaluations of a subscription against an event.", s.tail.Evaluated),
		counted("triggerd_evaluations_failed_total", "Evaluations that failed; each leaves a poison row.", s.tail.EvaluationsFailed),
		counted("triggerd_storm_pauses_total", "Subscriptions that the storm guard paused.", s.tail.Storms),
	}
}

func (s *Server) workerFamilies() []family {
	stat := func(field func(trigger.WorkerStats) int64) func() int64 {
		return func() int64 { return field(s.worker.Stats()) }
	}
	return []family{
		{
			name: "triggerd_effects_total", help: "Ends of attempts, and of rows without one.", kind: kindCounter,
			labels: []string{"kind", "state", "outcome"}, values: s.ended,
		},
		counted("triggerd_effects_claimed_total", "Rows claimed, those whose lease had run out left out.",
			stat(func(w trigger.WorkerStats) int64 { return w.Claimed })),
		counted("triggerd_effects_born_claimed_total", "Those of them that were claimed as they were made.", s.worker.Born),
		counted("triggerd_effects_reclaimed_total", "Rows taken over because their lease had run out, or parked for it.",
			stat(func(w trigger.WorkerStats) int64 { return w.Reclaimed })),
		counted("triggerd_effects_announced_total", "Parked rows that events tell of.", s.parked.Announced),
		counted("triggerd_settles_total", "Settles that stand.", stat(func(w trigger.WorkerStats) int64 { return w.Settled })),
		counted("triggerd_settles_late_total", "Settles that stand and came after their lease.",
			stat(func(w trigger.WorkerStats) int64 { return w.Late })),
		counted("triggerd_settles_refused_total", "Writes refused because the claim was no longer held.",
			stat(func(w trigger.WorkerStats) int64 { return w.Refused })),
		counted("triggerd_worker_rounds_total", "Looks for due lanes that were answered.", s.worker.Rounds),
		{
			name: "triggerd_worker_slots", help: "Slots for attempts.", kind: kindGauge, labels: []string{"state"},
			values: func(tell func(float64, ...string)) {
				g := s.worker.Gauges()
				tell(float64(g.Busy), "busy")
				tell(float64(g.Free), "free")
			},
		},
		{
			name: "triggerd_worker_queued_rows", help: "Claimed rows that wait for a slot.", kind: kindGauge,
			values: func(tell func(float64, ...string)) { tell(float64(s.worker.Gauges().Queued)) },
		},
		{
			name: "triggerd_breakers", help: "Lanes that this replica holds up because their bots fail.", kind: kindGauge, labels: []string{"state"},
			values: func(tell func(float64, ...string)) {
				g := s.worker.Gauges()
				tell(float64(g.Open), "open")
				tell(float64(g.HalfOpen), "half_open")
			},
		},
	}
}

// ended tells how rows ended, by the worker and by the tail.
func (s *Server) ended(tell func(float64, ...string)) {
	worker, tail := s.worker.Ended(), s.tail.Ended()
	for _, e := range trigger.Endings() {
		tell(float64(worker[e]+tail[e]), string(e.Kind), string(e.State), e.Outcome)
	}
}

// fleetToldFor is how old the fleet's numbers may be. A replica that can't read
// new ones would go on with what is long over beside others that know better,
// and the max of all is what alerts ask for.
const fleetToldFor = 5 * time.Minute

// fleetFamilies are the numbers that one replica counts for all (ADR 38).
// Before there are any, and once they are old, they are not told; their age is.
func (s *Server) fleetFamilies() []family {
	fleet := func(name, help string, labels []string, values func(n *trigger.FleetNumbers, tell func(float64, ...string))) family {
		return family{name: name, help: help, kind: kindGauge, labels: labels, values: func(tell func(float64, ...string)) {
			if n, age := s.fleet.Latest(); n != nil && age <= fleetToldFor {
				values(n, tell)
			}
		}}
	}
	by := func(name, help, label string, counts func(n *trigger.FleetNumbers) map[string]int64) family {
		return fleet(name, help, []string{label}, func(n *trigger.FleetNumbers, tell func(float64, ...string)) {
			for key, count := range counts(n) {
				tell(float64(count), key)
			}
		})
	}
	number := func(name, help string, value func(n *trigger.FleetNumbers) float64) family {
		return fleet(name, help, nil, func(n *trigger.FleetNumbers, tell func(float64, ...string)) { tell(value(n)) })
	}
	return []family{
		by("triggerd_fleet_effects", "Rows of the fleet.", "state", func(n *trigger.FleetNumbers) map[string]int64 { return n.Effects }),
		number("triggerd_fleet_oldest_ready_seconds", "How long the longest waiting ready row had been due.",
			func(n *trigger.FleetNumbers) float64 { return n.OldestReadySeconds }),
		number("triggerd_fleet_tenants_behind", "Tenants whose log is ahead of its cursor.",
			func(n *trigger.FleetNumbers) float64 { return float64(n.TenantsBehind) }),
		number("triggerd_fleet_event_lag", "Events that are not matched yet.", func(n *trigger.FleetNumbers) float64 { return float64(n.Lag) }),
		number("triggerd_fleet_event_lag_worst", "Events that are not matched yet, of the tenant that has most of them.",
			func(n *trigger.FleetNumbers) float64 { return float64(n.LagWorst) }),
		by("triggerd_fleet_paused_subscriptions", "Subscriptions that are paused.", "by",
			func(n *trigger.FleetNumbers) map[string]int64 { return n.PausedSubscriptions }),
		by("triggerd_fleet_launch_pauses", "Pauses of launches.", "of", func(n *trigger.FleetNumbers) map[string]int64 { return n.Pauses }),
		fleet("triggerd_fleet_capped", "1 for each number that was cut off: there are at least as many.", []string{"what"},
			func(n *trigger.FleetNumbers, tell func(float64, ...string)) {
				for _, what := range n.Capped {
					tell(1, what)
				}
			}),
		{
			name: "triggerd_fleet_age_seconds", help: "How old the fleet's numbers are.", kind: kindGauge,
			values: func(tell func(float64, ...string)) {
				if n, age := s.fleet.Latest(); n != nil {
					tell(age.Seconds())
				}
			},
		},
		counted("triggerd_fleet_counts_total", "Counts for the fleet by this replica.", s.fleet.Counted),
	}
}

// familyCollector tells the values of families as they are when it is asked.
type familyCollector struct {
	family

	desc  *prometheus.Desc
	value prometheus.ValueType
}

// Describe implements prometheus.Collector.
func (c *familyCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c *familyCollector) Collect(ch chan<- prometheus.Metric) {
	c.values(func(value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.desc, c.value, value, labels...)
	})
}

// metricsHandler answers in the format of Prometheus.
func (s *Server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, f := range s.families() {
		if f.histogram != nil {
			registry.MustRegister(f.histogram)
			continue
		}
		c := &familyCollector{family: f, desc: prometheus.NewDesc(f.name, f.help, f.labels, nil), value: prometheus.CounterValue}
		if f.kind == kindGauge {
			c.value = prometheus.GaugeValue
		}
		registry.MustRegister(c)
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
