package boardmem

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// PauseList implements trigger.Pauses.
func (s *Store) PauseList(context.Context) ([]trigger.Pause, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.Pause
	for _, p := range s.pauses {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b trigger.Pause) int {
		return cmp.Or(cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.BotID, b.BotID))
	})
	return out, nil
}

// PauseSet implements trigger.Pauses.
func (s *Store) PauseSet(_ context.Context, p trigger.Pause) error {
	if p.TenantID == "" && p.BotID != "" {
		return tracker.Fieldf("tenant", "is required with a bot")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pauses == nil {
		s.pauses = make(map[key]trigger.Pause)
	}
	if _, there := s.pauses[key{p.TenantID, p.BotID}]; !there {
		s.pauses[key{p.TenantID, p.BotID}] = p
	}
	return nil
}

// PauseClear implements trigger.Pauses.
func (s *Store) PauseClear(_ context.Context, tenantID, botID string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.pauses[key{tenantID, botID}]
	delete(s.pauses, key{tenantID, botID})
	return there, nil
}

// BulkCreate implements trigger.Bulks.
func (s *Store) BulkCreate(_ context.Context, b *trigger.Bulk) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bulks == nil {
		s.bulks = make(map[key]*trigger.Bulk)
	}
	k := key{b.TenantID, b.ID}
	if s.bulks[k] != nil {
		return fmt.Errorf("bulk decision %s: %w", b.ID, tracker.ErrConflict)
	}
	kept := clone.Of(*b)
	s.bulks[k] = &kept
	return nil
}

// bulk returns the bulk decision; the caller holds the mutex.
func (s *Store) bulk(tenantID, id string) (*trigger.Bulk, error) {
	b := s.bulks[key{tenantID, id}]
	if b == nil || s.Now().Sub(b.CreatedAt) > trigger.BulkKept {
		return nil, fmt.Errorf("bulk decision %s: %w", id, tracker.ErrNotFound)
	}
	return b, nil
}

// BulkGet implements trigger.Bulks.
func (s *Store) BulkGet(_ context.Context, tenantID, id string) (*trigger.Bulk, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bulk(tenantID, id)
	if err != nil {
		return nil, err
	}
	out := clone.Of(*b)
	return &out, nil
}

// BulkAdvance implements trigger.Bulks.
func (s *Store) BulkAdvance(_ context.Context, tenantID, id string, from, to, applied, refused int) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bulk(tenantID, id)
	if err != nil || b.Next != from {
		return false, nil
	}
	b.Next = to
	b.Applied += applied
	b.Refused += refused
	return true, nil
}

// BulkStop implements trigger.Bulks.
func (s *Store) BulkStop(_ context.Context, tenantID, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.bulk(tenantID, id)
	if err != nil {
		return err
	}
	b.Stopped = true
	return nil
}
