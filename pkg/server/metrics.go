package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// metric is one counter of this replica, since it started. None has a tenant
// for a label: there may be many.
type metric struct {
	name, help string
	value      func() int64
}

// metrics lists the counters (docs/ops/metrics.md).
func (s *Server) metrics() []metric {
	worker := func(field func(trigger.WorkerStats) int64) func() int64 {
		return func() int64 { return field(s.worker.Stats()) }
	}
	return []metric{
		{"triggerd_evaluations_total", "Evaluations of a subscription against an event.", s.tail.Evaluated},
		{"triggerd_evaluations_failed_total", "Evaluations that failed; each leaves a poison row.", s.tail.EvaluationsFailed},
		{"triggerd_storm_pauses_total", "Subscriptions that the storm guard paused.", s.tail.Storms},
		{
			"triggerd_effects_claimed_total", "Rows claimed, those whose lease had run out left out.",
			worker(func(w trigger.WorkerStats) int64 { return w.Claimed }),
		},
		{
			"triggerd_effects_reclaimed_total", "Rows taken over because their lease had run out, or parked for it.",
			worker(func(w trigger.WorkerStats) int64 { return w.Reclaimed }),
		},
		{"triggerd_effects_announced_total", "Parked rows that events tell of.", s.parked.Announced},
		{"triggerd_settles_total", "Settles that stand.", worker(func(w trigger.WorkerStats) int64 { return w.Settled })},
		{"triggerd_settles_late_total", "Settles that stand and came after their lease.", worker(func(w trigger.WorkerStats) int64 { return w.Late })},
		{
			"triggerd_settles_refused_total", "Writes refused because the claim was no longer held.",
			worker(func(w trigger.WorkerStats) int64 { return w.Refused }),
		},
	}
}

// metricsHandler answers in the format of Prometheus.
func (s *Server) metricsHandler() http.Handler {
	registry := prometheus.NewRegistry()
	for _, m := range s.metrics() {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: m.name, Help: m.help}, func() float64 { return float64(m.value()) }))
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}
