package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/tracing"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// timingFlags are the numbers that docs/configuration.md explains.
type timingFlags struct {
	Lease           time.Duration `help:"How long a claim holds a row." default:"2m"`
	AttemptDeadline time.Duration `help:"Longest that one attempt may take; shorter than the lease." default:"90s"`
	HTTPTimeout     time.Duration `name:"http-timeout" help:"Timeout of one request to a bot; shorter than the attempt's deadline." default:"30s"`
	RetryBase       time.Duration `help:"First back-off after a failed attempt; it doubles, with full jitter." default:"15s"`
	RetryCap        time.Duration `help:"Longest back-off." default:"10m"`
	Grace           time.Duration `help:"How long a stop waits for what is in flight." default:"30s"`
	Poll            time.Duration `help:"How often to look for work that nobody told of, with jitter." default:"200ms"`
	HoleWait        time.Duration `help:"How long the tail waits for the event of a seq before it gives the seq up." default:"3s"`
	EventRetention  time.Duration `help:"How long events are kept, at least." default:"168h"`
	RowRetention    time.Duration `help:"How long done effects are kept, at least." default:"168h"`
	Slots           int           `help:"Effects executing at once." default:"64"`
	TailBatch       int           `help:"Events per batch of the tail." default:"500"`
}

func (f timingFlags) timing(store time.Duration) server.Timing {
	return server.Timing{
		Lease: f.Lease, AttemptDeadline: f.AttemptDeadline, HTTPTimeout: f.HTTPTimeout, RetryBase: f.RetryBase, RetryCap: f.RetryCap,
		Grace: f.Grace, Poll: f.Poll, HoleWait: f.HoleWait, EventRetention: f.EventRetention, RowRetention: f.RowRetention,
		Slots: f.Slots, TailBatch: f.TailBatch, StoreTimeout: store,
	}
}

type serveCmd struct {
	listenFlags
	Apply string `help:"A triggers.yaml to apply before serving." placeholder:"FILE"`
	Name  string `help:"Name of this replica, on the rows that it claims; made up if empty." placeholder:"NAME"`
	mongoFlags
	sealFlags
	logFlags
	debugFlags
	timingFlags
}

// Run serves until the context ends.
func (c *serveCmd) Run(ctx context.Context, std streams) error {
	timing := c.timing(c.StoreTimeout)
	if err := timing.Validate(); err != nil {
		return err
	}
	if err := errors.Join(c.check(), c.checkDebug()); err != nil {
		return err
	}
	name := replicaName(c.Name)
	logger := c.logger(std.err) // to which the replica adds its name itself
	log := logger.With().Str("replica", name).Logger()
	tracer, err := tracing.Start(ctx, tracing.Params{Version: version, Instance: name, Logger: log})
	if err != nil {
		return err
	}
	stopBy := time.Now()
	defer func() { tracer.Stop(stopBy) }() // after the replica, whose last spans it sends
	var file *triggersFile
	if c.Apply != "" {
		if file, err = readTriggers(c.Apply); err != nil {
			return err
		}
	}
	sealer, err := c.sealer()
	if err != nil {
		return err
	}
	store, closeFn, err := c.open(ctx, log)
	if err != nil {
		return err
	}
	defer closeFn()
	if file != nil {
		if err := file.apply(ctx, store, sealer, false, std); err != nil {
			return err
		}
	}
	if c.MongoURI == "" {
		// Nobody else can make a token for a store that lives in here.
		_, token, err := server.TokenCreate(ctx, store, server.TokenParams{Name: "embedded", Role: trigger.RoleAdmin})
		if err != nil {
			return err
		}
		fmt.Fprintln(std.out, "admin token (of this process only):", token)
	}
	if _, missing := sealer.(seal.Missing); missing && c.MongoURI != "" {
		log.Warn().Msg("NO SEAL KEY: bots can't be launched and deliveries can't be verified; set " + seal.KeyEnv + " or --seal-key-file to the key that the secrets were sealed with")
	}
	launcher := launch.NewHTTP(launch.HTTPParams{Timeout: c.HTTPTimeout, UserAgent: "triggerd/" + version})
	defer launcher.Close()
	replica, err := server.New(server.Params{
		Store: store, Sealer: sealer, Launcher: launcher, Logger: logger, Name: name, Timing: timing,
		Listen: c.Listen, TLSCert: c.TLSCert, TLSKey: c.TLSKey, Tracer: tracer.Provider(),
	})
	if err != nil {
		return err
	}
	if c.insecure() {
		log.Warn().Msg("LISTENING WITHOUT TLS beyond this machine: tokens and cards can be read on the way, unless a proxy or a private network is before it")
	}
	// Before the replica, so that a start that hangs can be looked at.
	stopDebug, err := c.serveDebug(ctx, log)
	if err != nil {
		return err
	}
	defer stopDebug()
	if err := replica.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case err = <-replica.Failed():
	}
	log.Info().Msg("stopping")
	stopBy = time.Now().Add(c.Grace)
	replica.Stop()
	return err
}

func replicaName(name string) string {
	if name != "" {
		return name
	}
	host, _ := os.Hostname()
	return host + "-" + uuid.NewString()[:8]
}
