package boardmem

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// table keeps one kind of configuration: by tenant and id, names unique
// within a tenant, each save conditional on the revision before it. The zero
// value is ready; the store's mutex guards it.
type table[T any] struct{ rows map[key]entry[T] }

type entry[T any] struct {
	name     string
	revision int64
	value    T
}

func (t *table[T]) get(tenantID, id string) (*T, error) {
	e, ok := t.rows[key{tenantID, id}]
	if !ok {
		return nil, fmt.Errorf("%T %s/%s: %w", e.value, tenantID, id, tracker.ErrNotFound)
	}
	out := clone.Of(e.value)
	return &out, nil
}

func (t *table[T]) list(tenantID string) []T {
	var found []entry[T]
	for k, e := range t.rows {
		if k.tenant == tenantID {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b entry[T]) int { return cmp.Compare(a.name, b.name) })
	out := make([]T, len(found))
	for i, e := range found {
		out[i] = clone.Of(e.value)
	}
	return out
}

func (t *table[T]) save(tenantID, id, name string, revision int64, value T) error {
	k := key{tenantID, id}
	if t.rows[k].revision != revision-1 {
		return fmt.Errorf("save %T %s/%s at revision %d: %w", value, tenantID, id, revision, tracker.ErrConflict)
	}
	for other, e := range t.rows {
		if other.tenant == tenantID && other.id != id && e.name == name {
			return fmt.Errorf("save %T %s/%s: the name is taken: %w", value, tenantID, id, tracker.ErrConflict)
		}
	}
	if t.rows == nil {
		t.rows = make(map[key]entry[T])
	}
	t.rows[k] = entry[T]{name, revision, clone.Of(value)}
	return nil
}

func (t *table[T]) remove(tenantID, id string, revision int64) error {
	k := key{tenantID, id}
	switch e, ok := t.rows[k]; {
	case !ok:
		return fmt.Errorf("delete %T %s/%s: %w", e.value, tenantID, id, tracker.ErrNotFound)
	case e.revision != revision:
		return fmt.Errorf("delete %T %s/%s at revision %d: %w", e.value, tenantID, id, revision, tracker.ErrConflict)
	}
	delete(t.rows, k)
	return nil
}

// TenantGet implements trigger.Config.
func (s *Store) TenantGet(_ context.Context, tenantID string) (*trigger.Tenant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenants.get(tenantID, tenantID)
}

// TenantIDs implements trigger.Config.
func (s *Store) TenantIDs(_ context.Context, afterID string, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for k, e := range s.tenants.rows {
		if k.tenant > afterID && e.value.DeletingAt.IsZero() {
			ids = append(ids, k.tenant)
		}
	}
	slices.Sort(ids)
	return ids[:min(len(ids), limit)], nil
}

// TenantSave implements trigger.Config.
func (s *Store) TenantSave(_ context.Context, t *trigger.Tenant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenants.save(t.ID, t.ID, t.ID, t.Revision, *t)
}

// BoardGet implements trigger.Config.
func (s *Store) BoardGet(_ context.Context, tenantID, id string) (*tracker.Board, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boards.get(tenantID, id)
}

// BoardList implements trigger.Config.
func (s *Store) BoardList(_ context.Context, tenantID string) ([]tracker.Board, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boards.list(tenantID), nil
}

// BoardSave implements trigger.Config.
func (s *Store) BoardSave(_ context.Context, b *tracker.Board) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boards.save(b.TenantID, b.ID, b.Name, b.Revision, *b)
}

// BotGet implements trigger.Config.
func (s *Store) BotGet(_ context.Context, tenantID, id string) (*trigger.Bot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bots.get(tenantID, id)
}

// BotList implements trigger.Config.
func (s *Store) BotList(_ context.Context, tenantID string) ([]trigger.Bot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bots.list(tenantID), nil
}

// BotSave implements trigger.Config.
func (s *Store) BotSave(_ context.Context, b *trigger.Bot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bots.save(b.TenantID, b.ID, b.Name, b.Revision, *b)
}

// HookGet implements trigger.Config.
func (s *Store) HookGet(_ context.Context, tenantID, id string) (*trigger.Hook, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks.get(tenantID, id)
}

// HookList implements trigger.Config.
func (s *Store) HookList(_ context.Context, tenantID string) ([]trigger.Hook, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks.list(tenantID), nil
}

// HookSave implements trigger.Config.
func (s *Store) HookSave(_ context.Context, h *trigger.Hook) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks.save(h.TenantID, h.ID, h.Name, h.Revision, *h)
}

// SubscriptionGet implements trigger.Config.
func (s *Store) SubscriptionGet(_ context.Context, tenantID, id string) (*trigger.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions.get(tenantID, id)
}

// SubscriptionList implements trigger.Config.
func (s *Store) SubscriptionList(_ context.Context, tenantID string) ([]trigger.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions.list(tenantID), nil
}

// SubscriptionPage implements trigger.Config.
func (s *Store) SubscriptionPage(_ context.Context, tenantID, afterID string, limit int) ([]trigger.Subscription, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subs := slices.DeleteFunc(s.subscriptions.list(tenantID), func(sub trigger.Subscription) bool { return sub.ID <= afterID })
	slices.SortFunc(subs, func(a, b trigger.Subscription) int { return cmp.Compare(a.ID, b.ID) })
	return subs[:min(len(subs), limit)], nil
}

// SubscriptionRefs implements trigger.Config.
func (s *Store) SubscriptionRefs(_ context.Context, tenantID string) ([]trigger.SubscriptionRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.SubscriptionRef
	for _, sub := range s.subscriptions.list(tenantID) {
		if sub.Enabled {
			out = append(out, trigger.SubscriptionRef{ID: sub.ID, Revision: sub.Revision, UpdatedAt: sub.UpdatedAt})
		}
	}
	return out, nil
}

// ProjectionGet implements trigger.Config.
func (s *Store) ProjectionGet(_ context.Context, tenantID, id string) (*trigger.Projection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.projections.get(tenantID, id)
}

// ProjectionList implements trigger.Config.
func (s *Store) ProjectionList(_ context.Context, tenantID string) ([]trigger.Projection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.projections.list(tenantID), nil
}

// ProjectionSave implements trigger.Config.
func (s *Store) ProjectionSave(_ context.Context, p *trigger.Projection) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.projections.save(p.TenantID, p.ID, p.Name, p.Revision, *p)
}

// SubscriptionSave implements trigger.Config.
func (s *Store) SubscriptionSave(_ context.Context, sub *trigger.Subscription) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions.save(sub.TenantID, sub.ID, sub.Name, sub.Revision, *sub)
}

// SubscriptionsBehind implements trigger.Config.
func (s *Store) SubscriptionsBehind(_ context.Context, limit int) ([]trigger.SubscriptionKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.SubscriptionKey
	for k, e := range s.subscriptions.rows {
		if !e.value.Paused && e.value.Guard.HeldFrom > 0 && len(out) < limit {
			out = append(out, trigger.SubscriptionKey{TenantID: k.tenant, SubscriptionID: e.value.ID})
		}
	}
	return out, nil
}

// TokenCreate implements trigger.Tokens.
func (s *Store) TokenCreate(_ context.Context, t *trigger.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, have := range s.tokens {
		if have.ID == t.ID || have.Hash == t.Hash {
			return fmt.Errorf("create token %s: %w", t.ID, tracker.ErrConflict)
		}
	}
	stored := clone.Of(*t)
	s.tokens[t.ID] = &stored
	return nil
}

// TokenByHash implements trigger.Tokens.
func (s *Store) TokenByHash(_ context.Context, hash string) (*trigger.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tokens {
		if t.Hash == hash {
			out := clone.Of(*t)
			return &out, nil
		}
	}
	return nil, fmt.Errorf("token: %w", tracker.ErrNotFound)
}

// TokenList implements trigger.Tokens.
func (s *Store) TokenList(_ context.Context, afterID string, limit int) ([]trigger.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.Token
	for _, t := range s.tokens {
		if t.ID > afterID {
			out = append(out, clone.Of(*t))
		}
	}
	slices.SortFunc(out, func(a, b trigger.Token) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(len(out), limit)], nil
}

// TokenGet implements trigger.Tokens.
func (s *Store) TokenGet(_ context.Context, id string) (*trigger.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[id]
	if !ok {
		return nil, fmt.Errorf("token %s: %w", id, tracker.ErrNotFound)
	}
	out := clone.Of(*t)
	return &out, nil
}

// TokenRevoke implements trigger.Tokens.
func (s *Store) TokenRevoke(_ context.Context, id string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[id]
	if !ok {
		return fmt.Errorf("token %s: %w", id, tracker.ErrNotFound)
	}
	if t.RevokedAt.IsZero() {
		t.RevokedAt = at.Truncate(time.Millisecond)
	}
	return nil
}

// BoardDelete implements trigger.Config.
func (s *Store) BoardDelete(_ context.Context, tenantID, id string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boards.remove(tenantID, id, revision)
}

// BotDelete implements trigger.Config.
func (s *Store) BotDelete(_ context.Context, tenantID, id string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bots.remove(tenantID, id, revision)
}

// HookDelete implements trigger.Config.
func (s *Store) HookDelete(_ context.Context, tenantID, id string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hooks.remove(tenantID, id, revision)
}

// SubscriptionDelete implements trigger.Config.
func (s *Store) SubscriptionDelete(_ context.Context, tenantID, id string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.subscriptions.remove(tenantID, id, revision)
}

// ProjectionDelete implements trigger.Config.
func (s *Store) ProjectionDelete(_ context.Context, tenantID, id string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.projections.remove(tenantID, id, revision)
}
