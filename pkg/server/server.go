// Package server is one replica: it answers the API and inbound webhooks,
// tails events and executes effects.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Params configures a replica. TimingDefault has the numbers to begin with.
type Params struct {
	Store    trigger.Store
	Sealer   trigger.Sealer
	Launcher trigger.Launcher
	Logger   zerolog.Logger
	// Listen is the address to answer on, "host:port".
	Listen string
	// TLSCert and TLSKey, if set, are PEM files of the certificate to answer
	// with, its chain included, and of its key. They are read again when they
	// change. Without them the replica speaks plain HTTP.
	TLSCert, TLSKey string
	// Name stands on the rows that this replica claims.
	Name string

	Timing Timing
	// FleetEvery is how often one of the replicas counts for the fleet's
	// metrics; trigger.FleetEveryDefault if 0.
	FleetEvery time.Duration
	// Tracer, if set, makes spans of the calls to the API and of launches.
	Tracer trace.TracerProvider
	// Settled, if set, is called with each settle that stands.
	Settled func(row trigger.Effect, s trigger.Settle)
}

// Timing holds the numbers that the guarantees depend on.
type Timing struct {
	Lease           time.Duration
	AttemptDeadline time.Duration
	HTTPTimeout     time.Duration
	RetryBase       time.Duration
	RetryCap        time.Duration
	Grace           time.Duration
	StoreTimeout    time.Duration
	Poll            time.Duration
	HoleWait        time.Duration
	EventRetention  time.Duration
	RowRetention    time.Duration
	Slots           int
	TailBatch       int
}

// TimingDefault returns the defaults.
func TimingDefault() Timing {
	return Timing{
		Lease: trigger.LeaseDefault, AttemptDeadline: trigger.AttemptDeadlineDefault, HTTPTimeout: launch.HTTPTimeoutDefault,
		RetryBase: trigger.RetryBaseDefault, RetryCap: trigger.RetryCapDefault, Grace: trigger.GraceDefault,
		StoreTimeout: trigger.StoreTimeoutDefault, Poll: trigger.PollDefault, HoleWait: trigger.HoleWaitDefault,
		EventRetention: trigger.EventRetentionDefault, RowRetention: trigger.RowRetentionDefault,
		Slots: trigger.SlotsDefault, TailBatch: trigger.TailBatchDefault,
	}
}

// Validate refuses numbers that break a guarantee together. The error names
// the flags.
func (t Timing) Validate() error {
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--lease", t.Lease},
		{"--attempt-deadline", t.AttemptDeadline},
		{"--http-timeout", t.HTTPTimeout},
		{"--retry-base", t.RetryBase},
		{"--retry-cap", t.RetryCap},
		{"--store-timeout", t.StoreTimeout},
		{"--poll", t.Poll},
		{"--hole-wait", t.HoleWait},
		{"--event-retention", t.EventRetention},
		{"--row-retention", t.RowRetention},
	} {
		if d.value <= 0 {
			return tracker.Fieldf(d.flag, "must be positive")
		}
	}
	switch {
	case t.HTTPTimeout >= t.AttemptDeadline:
		return tracker.Fieldf("--http-timeout", "must be shorter than --attempt-deadline (%s)", t.AttemptDeadline)
	case t.AttemptDeadline >= t.Lease:
		return tracker.Fieldf("--attempt-deadline", "must be shorter than --lease (%s): an attempt ends before its lease (W3)", t.Lease)
	case t.RetryBase > t.RetryCap:
		return tracker.Fieldf("--retry-base", "must not exceed --retry-cap (%s)", t.RetryCap)
	case t.HoleWait > trigger.PatienceMax:
		return tracker.Fieldf("--hole-wait", "must not exceed %s (T3)", trigger.PatienceMax)
	case t.EventRetention < time.Minute:
		return tracker.Fieldf("--event-retention", "must be at least a minute")
	case t.Grace < 0:
		return tracker.Fieldf("--grace", "must not be negative")
	case t.Slots < 1 || t.Slots > 10_000:
		return tracker.Fieldf("--slots", "must be 1 to 10000")
	case t.TailBatch < 1 || t.TailBatch > 10_000:
		return tracker.Fieldf("--tail-batch", "must be 1 to 10000")
	}
	return nil
}

// Server is one replica.
type Server struct {
	p       Params
	log     zerolog.Logger
	board   *trigger.Board
	tail    *trigger.Tail
	worker  *trigger.EffectWorker
	sweeper *trigger.Sweeper
	lanes   *trigger.LaneSweeper
	parked  *trigger.Announcer
	janitor *trigger.Janitor
	members *trigger.Membership
	reaper  *trigger.Reaper
	fleet   *trigger.FleetWatch
	meters  *meters
	// observed: the store tells of its commands.
	observed bool
	api      *API
	http     *http.Server
	ready    atomic.Bool
	// cutRequests ends the contexts of all requests: closing its connection
	// does not reach one whose body was not read.
	cutRequests context.CancelFunc

	mu       sync.Mutex // held by Start and Stop
	started  bool       // it runs, or ran
	listener net.Listener
	serving  startstop.Service
	clock    startstop.Service
	failed   chan error
}

// New builds a replica; nothing runs yet.
func New(p Params) (*Server, error) {
	if err := p.Timing.Validate(); err != nil {
		return nil, err
	}
	if (p.TLSCert == "") != (p.TLSKey == "") {
		return nil, tracker.Fieldf("--tls-cert", "goes with --tls-key")
	}
	p.Logger = p.Logger.With().Str("replica", p.Name).Logger()
	if p.Tracer != nil {
		p.Launcher = newTracedLauncher(p.Launcher, p.Tracer)
	}
	s := &Server{p: p, log: p.Logger, failed: make(chan error, 1), meters: newMeters()}
	if store, ok := p.Store.(interface {
		ObserveCommands(f func(name string, took time.Duration, ok bool))
	}); ok {
		store.ObserveCommands(s.meters.command)
		s.observed = true
	}
	relay := &trigger.Relay{Cards: p.Store, Log: p.Store, Heads: p.Store, Logger: p.Logger, FillTimeout: p.Timing.StoreTimeout}
	s.board = &trigger.Board{Cards: p.Store, Log: p.Store, Clock: p.Store, Relay: relay}
	s.members = &trigger.Membership{Replicas: p.Store, Clock: p.Store, Logger: p.Logger, Name: p.Name}
	s.sweeper = &trigger.Sweeper{Cards: p.Store, Relay: relay, Clock: p.Store, Logger: p.Logger}
	s.janitor = &trigger.Janitor{
		Cards: p.Store, Log: p.Store, Heads: p.Store, Retention: p.Store, Clock: p.Store, Logger: p.Logger,
		Events: p.Timing.EventRetention, Rows: p.Timing.RowRetention, Prefers: s.members.Prefers,
	}
	s.reaper = &trigger.Reaper{Store: p.Store, Logger: p.Logger, Prefers: s.members.Prefers, After: p.Timing.Lease + 3*time.Minute}
	s.fleet = &trigger.FleetWatch{
		Counts: p.Store, Clock: p.Store, Logger: p.Logger, Name: p.Name, Every: p.FleetEvery, Prefers: s.members.Prefers,
	}
	s.tail = &trigger.Tail{
		Cards: p.Store, Log: p.Store, Heads: p.Store, Config: p.Store, Outbox: p.Store, Lanes: p.Store, Clock: p.Store, Epochs: p.Store,
		Logger: p.Logger, Batch: p.Timing.TailBatch, Poll: p.Timing.Poll, HoleWait: p.Timing.HoleWait, Prefers: s.members.Prefers,
	}
	evaluator := &trigger.Evaluator{
		Board: s.board, Outbox: p.Store, Config: p.Store, Launcher: p.Launcher, Sealer: p.Sealer, Logger: p.Logger, Matcher: s.tail,
	}
	s.janitor.Release = evaluator.Release
	s.lanes = &trigger.LaneSweeper{
		Outbox: p.Store, Lanes: p.Store, Pauses: p.Store, Config: p.Store, Clock: p.Store, Logger: p.Logger, Prefers: s.members.Prefers,
		Matcher: s.tail,
	}
	s.worker = &trigger.EffectWorker{
		Outbox: p.Store, Lanes: p.Store, Pauses: p.Store, Clock: p.Store, Epochs: p.Store, Logger: p.Logger,
		Evaluator: evaluator,
		Name:      p.Name, Slots: p.Timing.Slots, Lease: p.Timing.Lease, AttemptDeadline: p.Timing.AttemptDeadline,
		RetryBase: p.Timing.RetryBase, RetryCap: p.Timing.RetryCap, Poll: p.Timing.Poll,
		Grace:        max(p.Timing.Grace, 1), // to the worker 0 is its default
		StoreTimeout: p.Timing.StoreTimeout, Settled: p.Settled, Meters: s.meters.worker(),
	}
	s.parked = &trigger.Announcer{Outbox: p.Store, Relay: relay, Clock: p.Store, Logger: p.Logger, Prefers: s.members.Prefers}
	s.worker.Parked = s.parked.Wake
	dead := trigger.NewDeadLetters(p.Store, s.board, p.Logger)
	dead.Wake = s.worker.Wake
	s.api = NewAPI(APIParams{Store: p.Store, Sealer: p.Sealer, Logger: p.Logger, Board: s.board, Dead: dead})
	relay.Wake = s.tail.Wake
	s.tail.WakeWorker, s.tail.Worker = s.worker.Wake, s.worker
	s.lanes.WakeWorker = s.worker.Wake
	requests, cut := context.WithCancel(context.Background())
	s.cutRequests = cut
	s.http = &http.Server{
		Handler:           s.handler(),
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * time.Minute, // 25 MiB on a slow line
		WriteTimeout:      3 * time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          log.New(httpLog{p.Logger}, "", 0),
	}
	if p.TLSCert != "" {
		cert, err := openCert(p.TLSCert, p.TLSKey, p.Logger)
		if err != nil {
			return nil, err
		}
		s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.get}
	}
	return s, nil
}

// Start probes the store, listens and starts the loops, in this order. It
// returns once all of it runs. After an error it may be called again; a
// replica that was stopped stays so.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return startstop.ErrRunning
	}
	if err := s.p.Store.Ping(ctx); err != nil {
		return fmt.Errorf("the store does not answer: %w", err)
	}
	// Before anything allocates (T4).
	if err := trigger.LiftAll(ctx, s.p.Store, s.p.Store, s.log); err != nil {
		return err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.p.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.listener, s.started = ln, true
	err = s.serving.Start(ctx, func(context.Context) {
		serve := s.http.Serve
		if s.p.TLSCert != "" {
			serve = func(ln net.Listener) error { return s.http.ServeTLS(ln, "", "") }
		}
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve HTTP: %w", err)
		}
	})
	if err != nil {
		return err
	}
	// The loops end with Stop, in its order, not with ctx.
	loops := context.WithoutCancel(ctx)
	if err := errors.Join(
		s.clock.Start(loops, s.syncClock), s.members.Start(loops), s.tail.Start(loops), s.worker.Start(loops),
		s.sweeper.Start(loops), s.lanes.Start(loops), s.parked.Start(loops), s.janitor.Start(loops), s.reaper.Start(loops),
		s.fleet.Start(loops),
	); err != nil {
		return err
	}
	s.ready.Store(true)
	s.log.Info().Str("listen", ln.Addr().String()).Bool("tls", s.p.TLSCert != "").Msg("ready")
	return nil
}

const (
	// clockEvery is how often the store's clock is measured again.
	clockEvery = 30 * time.Second
	// epochEvery is how soon it is when the primary changed.
	epochEvery = time.Second
)

// syncClock measures the store's clock again and again, and when its primary
// changes, where it has one of its own (W11).
func (s *Server) syncClock(ctx context.Context) {
	store, ok := s.p.Store.(interface{ ClockSync(context.Context) error })
	if !ok {
		return
	}
	tick := time.NewTicker(epochEvery)
	defer tick.Stop()
	epoch, next := s.p.Store.Epoch(), time.Now().Add(clockEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.p.Store.Epoch()
		if now == epoch && time.Now().Before(next) {
			continue
		}
		err := store.ClockSync(ctx)
		next = time.Now().Add(clockEvery)
		if err == nil {
			epoch = now // else it is tried again at once
		} else if ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("the database's clock could not be measured")
		}
	}
}

// Addr returns the address that the replica listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Failed delivers the error that ended serving, if one does.
func (s *Server) Failed() <-chan error { return s.failed }

// Stop ends the replica (W10): it fails readiness, claims nothing more,
// finishes what is in flight within the grace period, and returns when all of
// it is settled and no connection is open. It may be called any number of
// times, from anywhere.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		return
	}
	s.ready.Store(false)
	// One grace period for all; requests are answered while the worker ends,
	// and readiness says that it does.
	ctx, cancel := context.WithTimeout(context.Background(), s.p.Timing.Grace+time.Second)
	defer cancel()
	s.worker.Stop()
	err := s.http.Shutdown(ctx)
	s.cutRequests()
	if err != nil {
		_ = s.http.Close()
	}
	s.serving.Stop()
	s.fleet.Stop()
	s.reaper.Stop()
	s.janitor.Stop()
	s.parked.Stop()
	s.lanes.Stop()
	s.sweeper.Stop()
	s.tail.Stop()
	s.members.Stop()
	s.clock.Stop()
	s.log.Info().Msg("stopped")
}
