package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// GrowthParams says what to grow and how far. Of each list the first is what
// the others are compared with.
type GrowthParams struct {
	// MongoURI is the server; databases of the run's own are made on it, their
	// names beginning with Database, and dropped at the end.
	MongoURI string
	Database string
	Timeout  time.Duration

	History []int // rows that are over, or failed, each with its event
	Backlog []int // rows that are due, in a lane of their own
	Tenants []int // with nothing to do
	Pending int   // rows that are due while a server's memory is measured; 0: don't
	Rounds  int   // of measuring each of them, in turns

	// IdleFor is how long idle replicas are listened to, ServeFor how long the
	// server is let run whose memory is measured.
	IdleFor, ServeFor time.Duration
	// Serve makes the command that serves a database, with the environment
	// variables given besides its own.
	Serve func(ctx context.Context, database string, env []string) *exec.Cmd
	// Progress, if set, is told what is under way.
	Progress func(format string, args ...any)
}

// Limits of what grows.
const (
	GrowthMax        = 5_000_000
	GrowthTenantsMax = 100_000
	GrowthRoundsMax  = 1000
)

// The bars. Whatever is above them is in the report's Failures.
const (
	// GrowthRatioMax is how many times the time of the smallest a claim may
	// take.
	GrowthRatioMax = 1.5
	// IdleRatioMax is how many times the commands of the fewest tenants an idle
	// replica may send: it polls with jitter.
	IdleRatioMax = 1.1
	// RSSMax is what a server may have resident.
	RSSMax = 200 << 20
)

// Validate refuses a run that can't be made; the error names the flag.
func (p *GrowthParams) Validate() error {
	for _, f := range []struct {
		flag string
		is   []int
		max  int
	}{
		{"--history", p.History, GrowthMax},
		{"--backlog", p.Backlog, GrowthMax},
		{"--tenants", p.Tenants, GrowthTenantsMax},
		{"--rounds", []int{p.Rounds}, GrowthRoundsMax},
	} {
		if len(f.is) > 0 && (slices.Min(f.is) < 1 || slices.Max(f.is) > f.max) {
			return tracker.Fieldf(f.flag, "must be 1 to %d", f.max)
		}
		if !slices.IsSorted(f.is) || len(slices.Compact(slices.Clone(f.is))) < len(f.is) {
			return tracker.Fieldf(f.flag, "must ascend: the first is what the others are compared with")
		}
	}
	switch {
	case p.MongoURI == "":
		return tracker.Fieldf("--mongo-uri", "is required")
	case p.Pending < 0 || p.Pending > GrowthMax:
		return tracker.Fieldf("--pending", "must be 0 to %d", GrowthMax)
	case len(p.History)+len(p.Backlog)+len(p.Tenants)+p.Pending == 0:
		return tracker.Fieldf("--history", "or --backlog, --tenants or --pending must say what to measure")
	case len(p.Tenants) > 0 && (p.IdleFor < time.Second || p.IdleFor > time.Hour):
		return tracker.Fieldf("--idle-for", "must be 1s to 1h")
	case p.Pending > 0 && (p.ServeFor < time.Second || p.ServeFor > time.Hour):
		return tracker.Fieldf("--serve-for", "must be 1s to 1h")
	}
	return nil
}

// Growth is what grew, and what it costs by then.
type Growth struct {
	GoVersion string `json:"go_version"`
	CPUs      int    `json:"cpus"`
	Rounds    int    `json:"rounds"`

	Cases  []GrowthCase  `json:"cases"`
	Idle   []IdleCost    `json:"idle,omitempty"`
	Memory *ServerMemory `json:"memory,omitempty"`
	// Failures has what is above a bar, or went by another index.
	Failures []string `json:"failures"`
}

// GrowthCase is one operation where one thing has grown to one size.
type GrowthCase struct {
	Grown string `json:"grown"` // what
	Rows  int    `json:"rows"`
	Op    string `json:"op"`
	// MedianMS and P90MS are milliseconds. Ratio is the median by that of the
	// fewest rows, measured in turns with it.
	MedianMS float64 `json:"median_ms"`
	P90MS    float64 `json:"p90_ms"`
	Ratio    float64 `json:"ratio"`
	// Commands and Documents are the most that one operation took.
	Commands  int64 `json:"commands"`
	Documents int64 `json:"documents"`
	// Indexes are those of what grew, as the server explains the commands,
	// before and after the rounds.
	Indexes []string `json:"indexes,omitempty"`
}

// ServerMemory is what a server had resident at most, in bytes; 0 where the
// system does not tell.
type ServerMemory struct {
	PendingRows  int   `json:"pending_rows"`
	Launched     int   `json:"launched"` // meanwhile
	Lanes        int   `json:"lanes"`
	RSSPeakBytes int64 `json:"rss_peak_bytes"`
	// Warned is how many lines the server logged, at Warn and above.
	Warned int `json:"warned"`
	// Log is the end of that.
	Log string `json:"log,omitempty"`
}

// growth is one such run under way.
type growth struct {
	GrowthParams
	report *Growth
	worlds []*world
}

// MeasureGrowth measures what history, a backlog beside, idle tenants and
// pending rows cost. It returns an error if that could not be measured; what
// costs too much is in the report's Failures.
func MeasureGrowth(ctx context.Context, p GrowthParams) (_ *Growth, err error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Progress == nil {
		p.Progress = func(string, ...any) {}
	}
	g := &growth{GrowthParams: p, report: &Growth{
		GoVersion: runtime.Version(), CPUs: runtime.GOMAXPROCS(0), Rounds: p.Rounds, Failures: []string{},
	}}
	defer func() {
		for _, w := range g.worlds {
			err = errors.Join(err, w.close())
		}
	}()
	for _, step := range []func(context.Context) error{g.cases, g.idle, g.memory} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return g.report, nil
}

func (g *growth) failed(format string, args ...any) {
	if f := fmt.Sprintf(format, args...); !slices.Contains(g.report.Failures, f) {
		g.report.Failures = append(g.report.Failures, f)
	}
}

// world is a database that something has grown in.
type world struct {
	*run
	grown    string
	rows     int
	history  int // rows of each tenant that are over
	closeDB  func() error
	measured *boardmongo.Store // the connection that is listened to
	sent     *recorder
	tail     *trigger.Tail
	ops      map[opKey]*samples
}

type opKey struct {
	tenant int
	op     string
}

// world makes a database, has it seeded, and opens what the operations need.
func (g *growth) world(ctx context.Context, grown string, rows int, seed func(ctx context.Context, s *boardmongo.Store) error) (*world, error) {
	w := &world{grown: grown, rows: rows, sent: &recorder{}, ops: make(map[opKey]*samples), history: growthBefore}
	w.run = &run{
		Params: Params{
			MongoURI: g.MongoURI, Database: fmt.Sprintf("%s_%d", g.Database, len(g.worlds)), Timeout: g.Timeout, Progress: g.Progress,
			Tenants: 1, Bots: 1, Subscriptions: 1, MatchRatio: growthRatio,
		},
		meter: &meter{}, launched: newLedger(), report: &Report{},
	}
	g.Progress("%s: load %d", grown, rows)
	var err error
	if w.closeDB, err = w.openStore(ctx); err != nil {
		return nil, err
	}
	g.worlds = append(g.worlds, w)
	if err := seed(ctx, w.store.(*boardmongo.Store)); err != nil {
		return nil, fmt.Errorf("load %d rows (%s): %w", rows, grown, err)
	}
	return w, nil
}

func (w *world) close() error {
	if w.closeDB == nil {
		return nil
	}
	closeDB := w.closeDB
	w.closeDB = nil
	return closeDB()
}

func (w *world) database() *boardmongo.Store { return w.store.(*boardmongo.Store) }

// samples are what one operation of a world took, each time.
type samples struct {
	took                []time.Duration
	commands, documents int64      // the most
	used                [][]string // indexes, of each time that it was explained
	scans               []string
}

// size is a number for people: 1,000,000 is "1 M".
func size(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%d M", n/1_000_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d k", n/1000)
	}
	return strconv.Itoa(n)
}

func quantile(took []time.Duration, q float64) float64 {
	s := slices.SortedFunc(slices.Values(took), cmp.Compare[time.Duration])
	if len(s) == 0 {
		return 0
	}
	return float64(s[min(int(q*float64(len(s))), len(s)-1)].Microseconds()) / 1000
}
