package bench_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/internal/bench"
	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// serveEnv has this test's binary serve a database instead: URI and name.
const serveEnv = "BENCH_TEST_SERVE"

// serve is `triggerd serve`, which a package that it imports can't run.
func serve(at string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	uri, database, _ := strings.Cut(at, " ")
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: uri, Database: database})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close(context.Background()) }()
	sealer, err := seal.Load(os.Getenv(seal.KeyEnv), "")
	if err != nil {
		return err
	}
	launcher := launch.NewHTTP(launch.HTTPParams{})
	defer launcher.Close()
	replica, err := server.New(server.Params{
		Store: store, Sealer: sealer, Launcher: launcher, Logger: zerolog.New(os.Stderr).Level(zerolog.WarnLevel), Listen: "127.0.0.1:0",
		Name: "served", Timing: server.TimingDefault(),
	})
	if err != nil {
		return err
	}
	if err := replica.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	replica.Stop()
	return nil
}

func growthParams(t *testing.T) bench.GrowthParams {
	t.Helper()
	uri := testdb.URI(t)
	return bench.GrowthParams{
		MongoURI: uri, Database: "bench_" + uuid.NewString()[:8], Timeout: 30 * time.Second, Rounds: 1, IdleFor: 3 * time.Second, ServeFor: time.Second,
		Serve: func(ctx context.Context, database string, env []string) *exec.Cmd {
			exe, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(ctx, exe)
			cmd.Env = slices.Concat(env, []string{serveEnv + "=" + uri + " " + database})
			return cmd
		},
	}
}

// measureGrowth measures, and sees that nothing is left on the server.
func measureGrowth(t *testing.T, p bench.GrowthParams) *bench.Growth {
	t.Helper()
	report, err := bench.MeasureGrowth(t.Context(), p)
	require.NoError(t, err)
	raw, err := json.Marshal(report)
	require.NoError(t, err)
	require.Contains(t, string(raw), `"failures":[`)
	t.Log("\n" + report.String())
	store, err := boardmongo.Connect(t.Context(), boardmongo.Params{URI: p.MongoURI, Database: p.Database})
	require.NoError(t, err)
	names, err := store.Database().Client().ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: bson.D{{Key: "$regex", Value: "^" + p.Database}}}}, options.ListDatabases())
	require.NoError(t, err)
	require.Empty(t, names)
	require.NoError(t, store.Close(t.Context()))
	return report
}

// sendsMore are the failures that depend neither on how busy the machine is, as
// times of some milliseconds do, nor on when the server last gathered what it
// knows of so few rows, as the index does that it prefers.
func sendsMore(report *bench.Growth) (out []string) {
	for _, f := range report.Failures {
		if strings.Contains(f, " commands") {
			out = append(out, f)
		}
	}
	return out
}

// TestGrowth measures with few rows what `make bench-growth` measures with
// many: each operation with the index that it goes by, and by as many commands.
func TestGrowth(t *testing.T) {
	t.Parallel()
	t.Run("operations", func(t *testing.T) {
		t.Parallel()
		p := growthParams(t)
		p.History, p.Backlog = []int{500, 2500}, []int{500}
		report := measureGrowth(t, p)
		require.Empty(t, sendsMore(report))
		require.Len(t, report.Cases, (2+2)*7, "beside a backlog, those of the tenant and those of another")
		for _, c := range report.Cases {
			require.Positive(t, c.MedianMS, c.Op)
			require.Positive(t, c.Commands, c.Op)
			require.NotEmpty(t, c.Indexes, c.Op)
		}
		require.Contains(t, report.String(), "history, rows")
	})
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		p := growthParams(t)
		p.Tenants, p.Pending = []int{2, 50}, 2000
		report := measureGrowth(t, p)
		require.Len(t, report.Idle, 2)
		for _, c := range report.Idle {
			require.Positive(t, c.ByKind["find tenant_heads"])
			require.Positive(t, c.JanitorCommands)
		}
		require.Positive(t, report.Memory.Launched)
		require.Equal(t, 100, report.Memory.Lanes)
	})
}

func TestGrowthRefusesByFlag(t *testing.T) {
	t.Parallel()
	for flag, set := range map[string]func(*bench.GrowthParams){
		"--mongo-uri": func(p *bench.GrowthParams) { p.MongoURI = "" },
		"--history":   func(p *bench.GrowthParams) { p.History = []int{1000, 10} },
		"--backlog":   func(p *bench.GrowthParams) { p.Backlog = []int{0} },
		"--tenants":   func(p *bench.GrowthParams) { p.Tenants = []int{10, bench.GrowthTenantsMax + 1} },
		"--pending":   func(p *bench.GrowthParams) { p.Pending = -1 },
		"--rounds":    func(p *bench.GrowthParams) { p.Rounds = 0 },
		"--idle-for":  func(p *bench.GrowthParams) { p.Tenants, p.IdleFor = []int{10}, 0 },
		"--serve-for": func(p *bench.GrowthParams) { p.Pending, p.ServeFor = 10, 0 },
	} {
		p := bench.GrowthParams{MongoURI: "mongodb://127.0.0.1:1/", Rounds: 1, Backlog: []int{10}}
		set(&p)
		_, err := bench.MeasureGrowth(t.Context(), p)
		field := (*tracker.FieldError)(nil)
		require.ErrorAs(t, err, &field, flag)
		require.Equal(t, flag, field.Field)
	}
	_, err := bench.MeasureGrowth(t.Context(), bench.GrowthParams{MongoURI: "mongodb://127.0.0.1:1/", Rounds: 1})
	require.ErrorContains(t, err, "--history", "nothing to measure")
}
