package boardmem

import (
	"context"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// FleetGet implements trigger.FleetCounts.
func (s *Store) FleetGet(context.Context) (*trigger.Fleet, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fleet == nil {
		return nil, fmt.Errorf("fleet: %w", tracker.ErrNotFound)
	}
	out := clone.Of(*s.fleet)
	return &out, nil
}

// FleetTake implements trigger.FleetCounts.
func (s *Store) FleetTake(_ context.Context, by string, at, ifBefore time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fleet == nil {
		s.fleet = &trigger.Fleet{}
	} else if s.fleet.TakenAt.After(ifBefore) {
		return false, nil
	}
	s.fleet.TakenAt, s.fleet.TakenBy = at, by
	return true, nil
}

// FleetSave implements trigger.FleetCounts.
func (s *Store) FleetSave(_ context.Context, f *trigger.Fleet) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fleet != nil && s.fleet.TakenAt.Equal(f.TakenAt) && s.fleet.TakenBy == f.TakenBy {
		next := clone.Of(*f)
		s.fleet = &next
	}
	return nil
}

// FleetCount implements trigger.FleetCounts.
func (s *Store) FleetCount(ctx context.Context, now time.Time, most int) (trigger.FleetNumbers, error) {
	pauses, err := s.PauseList(ctx)
	if err != nil {
		return trigger.FleetNumbers{}, err
	}
	out := s.EffectTotals(now, pauses, most)
	out.Pauses = trigger.CountPauses(pauses)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		if l.head == nil || !l.head.Dirty || out.TenantsBehind >= int64(most) {
			continue
		}
		lag := l.head.Seq - l.head.Cursor
		out.TenantsBehind++
		out.Lag += lag
		out.LagWorst = max(out.LagWorst, lag)
	}
	out.Cap(trigger.FleetTenantsBehind, out.TenantsBehind, most)
	out.PausedSubscriptions = map[string]int64{trigger.PausedByGuard: 0, trigger.PausedByPerson: 0}
	n := 0
	for _, e := range s.subscriptions.rows {
		if !e.value.Paused || n >= most {
			continue
		}
		n++
		by := trigger.PausedByPerson
		if e.value.PausedBy == trigger.StormGuard {
			by = trigger.PausedByGuard
		}
		out.PausedSubscriptions[by]++
	}
	out.Cap(trigger.FleetPausedSubscriptions, int64(n), most)
	return out, nil
}
