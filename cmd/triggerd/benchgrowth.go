package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/internal/bench"
	"github.com/triggerd/triggerd/pkg/tracker"
)

type benchGrowthCmd struct {
	MongoURI     string        `name:"mongo-uri" help:"MongoDB connection string. The bench makes databases of its own there, and drops them." placeholder:"URI"`
	StoreTimeout time.Duration `help:"Timeout of one database operation." default:"10s"`
	History      []int         `env:"-" help:"Rows of history to measure with; empty: don't." default:"1000,100000,1000000"`
	Backlog      []int         `env:"-" help:"Rows of backlog in another lane to measure with; empty: don't." default:"1000,100000"`
	Tenants      []int         `env:"-" help:"Idle tenants to measure with; empty: don't." default:"10,10000"`
	Pending      int           `env:"-" help:"Pending rows while a server's memory is measured; 0: don't." default:"1000000"`
	Rounds       int           `env:"-" help:"How often each is measured, in turns." default:"25"`
	IdleFor      time.Duration `env:"-" help:"How long to listen to idle replicas." default:"30s"`
	ServeFor     time.Duration `env:"-" help:"How long to let the server work whose memory is measured." default:"30s"`
	JSON         bool          `name:"json" env:"-" help:"Report as JSON."`
}

// Run measures and reports. It fails when something costs too much.
func (c *benchGrowthCmd) Run(ctx context.Context, std streams) error {
	if c.MongoURI == "" {
		return tracker.Fieldf("--mongo-uri", "is required")
	}
	if c.StoreTimeout <= 0 {
		return tracker.Fieldf("--store-timeout", "must be positive")
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	p := bench.GrowthParams{
		MongoURI: c.MongoURI, Database: "triggerd_bench_" + strings.ReplaceAll(uuid.NewString()[:13], "-", ""), Timeout: c.StoreTimeout,
		History: c.History, Backlog: c.Backlog, Tenants: c.Tenants, Pending: c.Pending, Rounds: c.Rounds, IdleFor: c.IdleFor, ServeFor: c.ServeFor,
		Serve: func(ctx context.Context, database string, env []string) *exec.Cmd {
			cmd := exec.CommandContext(ctx, exe, "serve", "--listen", "127.0.0.1:0", "--log-level", "warn")
			// By the environment: arguments can be read by anybody on the machine.
			cmd.Env = slices.Concat(env, []string{"TRIGGERD_MONGO_URI=" + c.MongoURI, "TRIGGERD_DATABASE=" + database, "TRIGGERD_STORE_TIMEOUT=" + c.StoreTimeout.String()})
			return cmd
		},
	}
	tell, done := progress(std)
	p.Progress = tell
	report, err := bench.MeasureGrowth(ctx, p)
	done()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if c.JSON {
		err = printJSON(std.out, report)
	} else {
		_, err = fmt.Fprint(std.out, report.String())
	}
	if err == nil && len(report.Failures) > 0 {
		err = fmt.Errorf("bench: %d failures, the first: %s", len(report.Failures), report.Failures[0])
	}
	return err
}

// progress tells on a terminal what is under way; done clears the line.
func progress(std streams) (tell func(format string, args ...any), done func()) {
	if terminal(std.err) {
		return func(format string, args ...any) { fmt.Fprintf(std.err, "\r\x1b[K"+format, args...) }, func() { fmt.Fprint(std.err, "\r\x1b[K") }
	}
	return nil, func() {}
}
