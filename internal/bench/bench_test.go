package bench_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/bench"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(serveEnv); at != "" {
		if err := serve(at); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func params() bench.Params {
	return bench.Params{
		Timeout: 30 * time.Second, Events: 120, Tenants: 3, Bots: 2, Subscriptions: 2, MatchRatio: 0.5, Replicas: 2, Slots: 16, Slices: 3,
		Rate: 50, RateFor: time.Second,
	}
}

// TestBench: a run finds each effect done and launched once, on both stores and
// by both launchers, and reports what it promises.
func TestBench(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*bench.Params){
		"memory":       func(*bench.Params) {},
		"memory, http": func(p *bench.Params) { p.HTTP = true },
		"mongodb": func(p *bench.Params) {
			p.MongoURI, p.Database, p.Baseline = testdb.URI(t), "bench_"+uuid.NewString()[:8], true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := params()
			set(&p)
			report, err := bench.Run(t.Context(), p)
			require.NoError(t, err)
			require.Positive(t, report.EmitPerS)
			require.Positive(t, report.MaterializePerS)
			require.Positive(t, report.ExecutePerS)
			require.Positive(t, report.LogToSettledPS)
			require.Equal(t, 40, report.Compared.Effects, "half of what came after the first slice")
			require.InDelta(t, 25, report.Latency.Launches, 3, "half of what was changed in a second, by each tenant")
			require.InDelta(t, 25, report.LatencyOther.Launches, 3)
			require.LessOrEqual(t, report.Latency.P50, report.Latency.P95)
			raw, err := json.Marshal(report)
			require.NoError(t, err)
			require.Contains(t, string(raw), `"log_to_settled_per_s"`)
			require.Contains(t, report.String(), "log to settled")
			if p.MongoURI == "" {
				return
			}
			require.InDelta(t, report.LogToSettledPS/report.BaselinePerS, report.Ratio, 1e-9)
			require.Positive(t, report.CommandsPerEffect)
			store, err := boardmongo.Connect(t.Context(), boardmongo.Params{URI: p.MongoURI, Database: p.Database})
			require.NoError(t, err)
			names, err := store.Database().ListCollectionNames(t.Context(), struct{}{})
			require.NoError(t, err)
			require.Empty(t, names, "the database is dropped")
			require.NoError(t, store.Close(t.Context()))
		})
	}
}

// TestBenchLeavesWhatItDidNotMake: a database that has something is no bench's.
func TestBenchLeavesWhatItDidNotMake(t *testing.T) {
	t.Parallel()
	store := testdb.Store(t)
	p := params()
	p.MongoURI, p.Database = testdb.URI(t), store.Database().Name()
	_, err := bench.Run(t.Context(), p)
	require.ErrorContains(t, err, "is not empty")
	names, err := store.Database().ListCollectionNames(t.Context(), struct{}{})
	require.NoError(t, err)
	require.NotEmpty(t, names)
}

func TestBenchRefusesByFlag(t *testing.T) {
	t.Parallel()
	for flag, set := range map[string]func(*bench.Params){
		"--events":        func(p *bench.Params) { p.Events = 0 },
		"--tenants":       func(p *bench.Params) { p.Tenants = bench.TenantsMax + 1 },
		"--bots":          func(p *bench.Params) { p.Bots = 0 },
		"--subscriptions": func(p *bench.Params) { p.Subscriptions = -1 },
		"--replicas":      func(p *bench.Params) { p.Replicas = 17 },
		"--slots":         func(p *bench.Params) { p.Slots = 0 },
		"--slices":        func(p *bench.Params) { p.Slices = p.Events + 1 },
		"--match-ratio":   func(p *bench.Params) { p.MatchRatio = 1.1 },
		"--rate":          func(p *bench.Params) { p.Rate = -1 },
		"--rate-for":      func(p *bench.Params) { p.RateFor = 0 },
		"--baseline":      func(p *bench.Params) { p.Baseline = true },
	} {
		p := params()
		set(&p)
		_, err := bench.Run(t.Context(), p)
		field := (*tracker.FieldError)(nil)
		require.ErrorAs(t, err, &field, flag)
		require.Equal(t, flag, field.Field)
	}
}
