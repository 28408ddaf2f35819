package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// rate adds up pieces of work and the time that they took.
type rate struct {
	n    int
	took time.Duration
}

func (r *rate) add(n int, took time.Duration) { r.n, r.took = r.n+n, r.took+took }

func (r *rate) perSecond() float64 {
	if r.took <= 0 {
		return 0
	}
	return float64(r.n) / r.took.Seconds()
}

// Latency is how long it took from the beginning of a change to the launch of
// its bot, in milliseconds.
type Latency struct {
	Launches int     `json:"launches"`
	P50      float64 `json:"p50"`
	P95      float64 `json:"p95"`
	P99      float64 `json:"p99"`
	Max      float64 `json:"max"`
}

func newLatency(took []time.Duration) *Latency {
	slices.Sort(took)
	at := func(q float64) float64 {
		i := min(int(q*float64(len(took))), len(took)-1)
		return float64(took[i].Microseconds()) / 1000
	}
	if len(took) == 0 {
		return &Latency{}
	}
	return &Latency{Launches: len(took), P50: at(0.5), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

// Compared is what the effects cost that went from the log to settled.
type Compared struct {
	Effects int `json:"effects"`
	Counts
	// ByKind has the commands by name and collection.
	ByKind         map[string]Kind `json:"by_kind,omitempty"`
	Allocations    uint64          `json:"allocations"`
	AllocatedBytes uint64          `json:"allocated_bytes"`
}

func (c *Compared) add(n Counts, kinds map[string]Kind) {
	if c.ByKind == nil {
		c.ByKind = make(map[string]Kind)
	}
	for kind, k := range kinds {
		is := c.ByKind[kind]
		c.ByKind[kind] = Kind{is.Commands + k.Commands, is.MS + k.MS}
	}
	c.Commands, c.Documents, c.Bytes = c.Commands+n.Commands, c.Documents+n.Documents, c.Bytes+n.Bytes
}

// Report is what a run measured. Rates are per second of wall time.
type Report struct {
	Store     string `json:"store"`
	GoVersion string `json:"go_version"`
	CPUs      int    `json:"cpus"`
	Events    int    `json:"events"`
	Tenants   int    `json:"tenants"`
	Replicas  int    `json:"replicas"`
	Launcher  string `json:"launcher"`

	EmitPerS        float64 `json:"emit_per_s"`
	MaterializePerS float64 `json:"materialize_per_s,omitempty"`
	ExecutePerS     float64 `json:"execute_per_s,omitempty"`
	LogToSettledPS  float64 `json:"log_to_settled_per_s"`
	BaselinePerS    float64 `json:"baseline_per_s,omitempty"`
	// Ratio is LogToSettledPS by BaselinePerS.
	Ratio float64 `json:"ratio,omitempty"`

	CommandsPerEffect  float64  `json:"commands_per_effect"`
	DocumentsPerEffect float64  `json:"documents_per_effect"`
	BytesPerEffect     float64  `json:"bytes_per_effect"`
	AllocsPerEffect    float64  `json:"allocations_per_effect"`
	Compared           Compared `json:"compared"`

	// Latency is that of a replica that made the change itself,
	// LatencyOther that of one which has to find it.
	Latency      *Latency `json:"latency_ms,omitempty"`
	LatencyOther *Latency `json:"latency_other_ms,omitempty"`

	RSSPeakBytes int64 `json:"rss_peak_bytes"`

	emit, materialize, execute, settled, baseline rate
	botURL                                        string
}

func (r *Report) finish() {
	r.EmitPerS, r.MaterializePerS, r.ExecutePerS = r.emit.perSecond(), r.materialize.perSecond(), r.execute.perSecond()
	r.LogToSettledPS, r.BaselinePerS = r.settled.perSecond(), r.baseline.perSecond()
	if r.BaselinePerS > 0 {
		r.Ratio = r.LogToSettledPS / r.BaselinePerS
	}
	if n := float64(r.Compared.Effects); n > 0 {
		r.CommandsPerEffect = float64(r.Compared.Commands) / n
		r.DocumentsPerEffect = float64(r.Compared.Documents) / n
		r.BytesPerEffect = float64(r.Compared.Bytes) / n
		r.AllocsPerEffect = float64(r.Compared.Allocations) / n
	}
}

// String is the report for people.
func (r *Report) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-28s "+format+"\n", append([]any{name}, args...)...)
	}
	line("store", "%s, %d tenants, %d replicas, launcher %s, %d CPUs, %s", r.Store, r.Tenants, r.Replicas, r.Launcher, r.CPUs, r.GoVersion)
	line("emit", "%.0f events/s", r.EmitPerS)
	if r.MaterializePerS > 0 {
		line("materialize", "%.0f effects/s", r.MaterializePerS)
		line("execute", "%.0f effects/s", r.ExecutePerS)
	}
	line("log to settled", "%.0f effects/s", r.LogToSettledPS)
	if r.Ratio > 0 {
		line("one row at a time", "%.0f effects/s", r.BaselinePerS)
		line("ratio", "%.1f", r.Ratio)
	}
	line("an effect costs", "%.3f commands, %.2f documents, %.0f bytes, %.0f allocations",
		r.CommandsPerEffect, r.DocumentsPerEffect, r.BytesPerEffect, r.AllocsPerEffect)
	latency := func(name string, l *Latency) {
		if l != nil {
			line(name, "p50 %.0f ms, p95 %.0f ms, p99 %.0f ms, at most %.0f ms, of %d launches", l.P50, l.P95, l.P99, l.Max, l.Launches)
		}
	}
	latency("emit to launch", r.Latency)
	latency("emitted by another replica", r.LatencyOther)
	line("memory", "%d MiB resident at most", r.RSSPeakBytes>>20)
	return b.String()
}
