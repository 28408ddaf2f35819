package boardmem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// createKeys forgets old ones when it has grown to twice of what was left the
// last time. The zero value is ready; the store's mutex guards it.
type createKeys struct {
	rows map[key]*trigger.CreateKey
	next int
}

func (c *createKeys) add(s *Store, k trigger.CreateKey) {
	if len(c.rows) >= c.next {
		before := s.Now().Add(-trigger.CreateKeyKept)
		maps.DeleteFunc(c.rows, func(_ key, have *trigger.CreateKey) bool { return have.CreatedAt.Before(before) })
		c.next = 2*len(c.rows) + 1000
	}
	if c.rows == nil {
		c.rows = make(map[key]*trigger.CreateKey)
	}
	c.rows[key{k.TenantID, k.ID}] = &k
}

// CreateKeyReserve implements trigger.CreateKeys.
func (s *Store) CreateKeyReserve(_ context.Context, k trigger.CreateKey) (*trigger.CreateKey, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, again := s.createKeys.rows[key{k.TenantID, k.ID}]
	if !again {
		k.Uses = 0
		s.createKeys.add(s, clone.Of(k))
		have = s.createKeys.rows[key{k.TenantID, k.ID}]
	}
	have.Uses++
	out := clone.Of(*have)
	return &out, again, nil
}

// CreateKeyRelease implements trigger.CreateKeys.
func (s *Store) CreateKeyRelease(_ context.Context, k trigger.CreateKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := key{k.TenantID, k.ID}
	if have := s.createKeys.rows[at]; have != nil && have.ResourceID == k.ResourceID && have.Uses == 1 {
		delete(s.createKeys.rows, at)
	}
	return nil
}

// AuditBegin implements trigger.Audit.
func (s *Store) AuditBegin(_ context.Context, e trigger.AuditEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{e.TenantID, e.ID}
	if s.audit[k] != nil {
		return fmt.Errorf("enter %s into the audit log: %w", e.ID, tracker.ErrConflict)
	}
	if s.audit == nil {
		s.audit = make(map[key]*trigger.AuditEntry)
	}
	kept := clone.Of(e)
	s.audit[k] = &kept
	return nil
}

// AuditComplete implements trigger.Audit.
func (s *Store) AuditComplete(_ context.Context, tenantID, id string, end trigger.AuditEnd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.audit[key{tenantID, id}]
	if e == nil {
		return fmt.Errorf("complete %s in the audit log: %w", id, tracker.ErrNotFound)
	}
	e.AuditEnd = clone.Of(end)
	return nil
}

// AuditList implements trigger.Audit.
func (s *Store) AuditList(_ context.Context, tenantID, afterID string, limit int) ([]trigger.AuditEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*trigger.AuditEntry
	for k, e := range s.audit {
		if k.tenant == tenantID && k.id > afterID {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *trigger.AuditEntry) int { return cmp.Compare(a.ID, b.ID) })
	var out []trigger.AuditEntry
	for _, e := range found[:min(len(found), limit)] {
		out = append(out, clone.Of(*e))
	}
	return out, nil
}
