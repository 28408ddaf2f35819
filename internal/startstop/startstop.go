// Package startstop gives every long-running part one lifecycle.
package startstop

import (
	"context"
	"errors"
	"sync"
)

// ErrRunning is returned by Start when the part already runs.
var ErrRunning = errors.New("already started")

// Service runs one goroutine. The zero value is ready; all methods are safe
// for concurrent use.
type Service struct {
	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
}

// Start runs run in a goroutine and returns at once. The context that run
// gets ends with Stop, or with ctx.
func (s *Service) Start(ctx context.Context, run func(ctx context.Context)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		return ErrRunning
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	s.cancel, s.done = cancel, done
	go func() {
		defer close(done)
		defer cancel()
		run(ctx)
	}()
	return nil
}

// Stop ends the context that run got and waits until run has returned. It may
// be called any number of times, from anywhere but run itself; afterwards
// Start may be called again.
func (s *Service) Stop() {
	s.mu.Lock()
	cancel, done := s.cancel, s.done
	s.mu.Unlock()
	if done == nil {
		return
	}
	cancel()
	<-done
	s.mu.Lock()
	if s.done == done {
		s.cancel, s.done = nil, nil
	}
	s.mu.Unlock()
}
