package boardmem

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// EventsRemovable implements trigger.Retention.
func (s *Store) EventsRemovable(_ context.Context, tenantID string, upTo int64, before time.Time, limit int) ([]trigger.EventRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.EventRef
	events := s.log(tenantID).events
	for _, seq := range slices.Sorted(maps.Keys(events)) {
		if len(out) == limit || seq > upTo || !events[seq].LoggedAt.Before(before) {
			break
		}
		out = append(out, trigger.EventRef{Seq: seq, EID: events[seq].EID})
	}
	return out, nil
}

// EventRemoveMany implements trigger.Retention.
func (s *Store) EventRemoveMany(_ context.Context, tenantID string, seqs []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	for _, seq := range seqs {
		if e, ok := l.events[seq]; ok {
			delete(l.byEID, e.EID)
			delete(l.events, seq)
		}
	}
	return nil
}

// ReplicaBeat implements trigger.Replicas.
func (s *Store) ReplicaBeat(_ context.Context, name string, now, since time.Time) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replicas == nil {
		s.replicas = make(map[string]time.Time)
	}
	s.replicas[name] = now
	var live []string
	for n, at := range s.replicas {
		if !at.Before(since) {
			live = append(live, n)
		}
	}
	slices.Sort(live)
	return live, nil
}

// ReplicaLeave implements trigger.Replicas.
func (s *Store) ReplicaLeave(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.replicas, name)
	return nil
}

// DeliverySeen implements trigger.Deliveries.
func (s *Store) DeliverySeen(_ context.Context, tenantID, hookID, deliveryID string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.deliveries[deliveryKey{tenantID, hookID, deliveryID}]
	return ok, nil
}

// DeliveryRecord implements trigger.Deliveries.
func (s *Store) DeliveryRecord(_ context.Context, tenantID, hookID, deliveryID string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.deliveries, func(_ deliveryKey, t time.Time) bool { return at.Sub(t) > trigger.DeliveriesKept })
	s.deliveries[deliveryKey{tenantID, hookID, deliveryID}] = at
	return nil
}
