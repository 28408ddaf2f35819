package boardmongo

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
)

// ObserveCommands has f told of each command from now on that was answered or
// failed: its name, how long it took, and whether the server took it. Whoever
// was told before is told no more. f is called by many goroutines at once.
func (s *Store) ObserveCommands(f func(name string, took time.Duration, ok bool)) {
	s.observer.Store(&f)
}

// observed returns a monitor that tells the store's observer, and also what m
// does, if that is set.
func (s *Store) observed(m *event.CommandMonitor) *event.CommandMonitor {
	tell := func(name string, took time.Duration, ok bool) {
		if f := s.observer.Load(); f != nil {
			(*f)(name, took, ok)
		}
	}
	out := &event.CommandMonitor{
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { tell(e.CommandName, e.Duration, true) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { tell(e.CommandName, e.Duration, false) },
	}
	if m == nil {
		return out
	}
	own := *out
	out.Started = m.Started
	if m.Succeeded != nil {
		out.Succeeded = func(ctx context.Context, e *event.CommandSucceededEvent) {
			own.Succeeded(ctx, e)
			m.Succeeded(ctx, e)
		}
	}
	if m.Failed != nil {
		out.Failed = func(ctx context.Context, e *event.CommandFailedEvent) {
			own.Failed(ctx, e)
			m.Failed(ctx, e)
		}
	}
	return out
}
