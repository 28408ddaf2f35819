package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof" // what it adds to the default mux is served nowhere
	"net/netip"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// debugFlags say where profiles can be taken.
type debugFlags struct {
	DebugListen string `help:"Loopback address to serve profiles on (net/http/pprof), without a token; off if empty." placeholder:"ADDRESS"`
}

// checkDebug refuses an address that others can reach: profiles tell what is in the
// process's memory, and take no token.
func (f debugFlags) checkDebug() error {
	if f.DebugListen == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(f.DebugListen)
	if err != nil {
		return tracker.Fieldf("--debug-listen", "must be host:port")
	}
	if host == "localhost" {
		return nil // where it leads is seen once it is open
	}
	if addr, err := netip.ParseAddr(host); err != nil || !addr.Unmap().IsLoopback() {
		return tracker.Fieldf("--debug-listen", "must be of this machine alone: 127.0.0.1, ::1 or localhost")
	}
	return nil
}

// serveDebug serves profiles until what it returns is called. Without an address
// nothing runs.
func (f debugFlags) serveDebug(ctx context.Context, log zerolog.Logger) (func(), error) {
	if f.DebugListen == "" {
		return func() {}, nil
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.DebugListen)
	if err != nil {
		return nil, fmt.Errorf("--debug-listen: %w", err)
	}
	if addr, ok := ln.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
		_ = ln.Close()
		return nil, tracker.Fieldf("--debug-listen", "leads beyond this machine")
	}
	srv := &http.Server{Handler: profiles(), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error().Err(err).Msg("debug: profiles are served no longer")
		}
	}()
	log.Info().Str("listen", ln.Addr().String()).Msg("debug: profiles are served")
	return func() {
		_ = srv.Close() // a profile that is being taken is cut short
		<-done
	}, nil
}

// profiles is a mux of its own, with nothing but profiles.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}
