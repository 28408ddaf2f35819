package main

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/internal/bench"
	"github.com/triggerd/triggerd/pkg/tracker"
)

type benchCmd struct {
	Store         string        `env:"-" help:"Where to measure: ${enum}. mongodb needs --mongo-uri." enum:"mongodb,memory" default:"mongodb"`
	MongoURI      string        `name:"mongo-uri" help:"MongoDB connection string. The bench makes a database of its own there, and drops it." placeholder:"URI"`
	StoreTimeout  time.Duration `help:"Timeout of one database operation." default:"10s"`
	Events        int           `env:"-" help:"Changes of cards." default:"20000"`
	Tenants       int           `env:"-" help:"Tenants that they are of." default:"20"`
	Bots          int           `env:"-" help:"Bots of each tenant." default:"1"`
	Subscriptions int           `env:"-" help:"Subscriptions of each tenant; each event fires one at most." default:"1"`
	MatchRatio    float64       `env:"-" help:"How many of the events fire one, 0 to 1." default:"1"`
	Replicas      int           `env:"-" help:"Replicas, in this process." default:"1"`
	Slots         int           `env:"-" help:"Effects executing at once, in each replica." default:"64"`
	Launcher      string        `env:"-" help:"What a launch does: ${enum}. http asks a bot on loopback." enum:"noop,http" default:"noop"`
	Slices        int           `env:"-" help:"Parts that the events come in; the first warms up." default:"4"`
	Baseline      bool          `env:"-" help:"Compare with an engine that works one row at a time, on the same log, in turns."`
	Rate          float64       `env:"-" help:"Changes a second to measure latencies at; 0: don't." default:"0"`
	RateFor       time.Duration `env:"-" help:"How long, for each of the two latencies." default:"20s"`
	CPUProfile    string        `name:"cpu-profile" env:"-" help:"File to write a CPU profile of the run to, for go tool pprof." placeholder:"FILE"`
	JSON          bool          `name:"json" env:"-" help:"Report as JSON."`
}

// Run measures and reports.
func (c *benchCmd) Run(ctx context.Context, std streams) error {
	p := bench.Params{
		Timeout: c.StoreTimeout, Events: c.Events, Tenants: c.Tenants, Bots: c.Bots, Subscriptions: c.Subscriptions, MatchRatio: c.MatchRatio,
		Replicas: c.Replicas, Slots: c.Slots, HTTP: c.Launcher == "http", Slices: c.Slices, Baseline: c.Baseline, Rate: c.Rate, RateFor: c.RateFor,
	}
	if c.Store == "mongodb" {
		if c.MongoURI == "" {
			return tracker.Fieldf("--mongo-uri", "is required, or --store memory")
		}
		if c.StoreTimeout <= 0 {
			return tracker.Fieldf("--store-timeout", "must be positive")
		}
		p.MongoURI, p.Database = c.MongoURI, "triggerd_bench_"+strings.ReplaceAll(uuid.NewString()[:13], "-", "")
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if c.CPUProfile != "" {
		f, err := os.Create(c.CPUProfile)
		if err != nil {
			return tracker.Fieldf("--cpu-profile", "can't be written: %v", err)
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	tell, done := progress(std)
	p.Progress = tell
	report, err := bench.Run(ctx, p)
	done()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if c.JSON {
		return printJSON(std.out, report)
	}
	_, err = fmt.Fprint(std.out, report.String())
	return err
}
