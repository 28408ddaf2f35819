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

// TenantsDeleting implements trigger.Tenancy.
func (s *Store) TenantsDeleting(_ context.Context, afterID string, limit int) ([]trigger.Tenant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.Tenant
	for k, e := range s.tenants.rows {
		if k.tenant > afterID && !e.value.DeletingAt.IsZero() {
			out = append(out, clone.Of(e.value))
		}
	}
	slices.SortFunc(out, func(a, b trigger.Tenant) int { return cmp.Compare(a.ID, b.ID) })
	return out[:min(len(out), limit)], nil
}

// purge removes up to limit entries of a map that are the tenant's.
func purge[K comparable, V any](m map[K]V, limit int, is func(K, V) bool) (n int) {
	for k, v := range m {
		if n < limit && is(k, v) {
			delete(m, k)
			n++
		}
	}
	return n
}

// TenantPurge implements trigger.Tenancy.
func (s *Store) TenantPurge(_ context.Context, tenantID string, part trigger.TenantPart, limit int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[tenantID]
	switch part {
	case trigger.PartHooks:
		return purge(s.hooks.rows, limit, ofTenant[entry[trigger.Hook]](tenantID)), nil
	case trigger.PartCards:
		return purge(s.cards, limit, func(k key, _ *tracker.Card) bool {
			if k.tenant == tenantID {
				delete(s.comments, k)
			}
			return k.tenant == tenantID
		}), nil
	case trigger.PartEvents:
		if l == nil {
			return 0, nil
		}
		return purge(l.events, limit, func(_ int64, e *trigger.Event) bool {
			delete(l.byEID, e.EID)
			return true
		}), nil
	case trigger.PartEffects:
		return s.EffectPurge(tenantID, limit), nil
	case trigger.PartLanes:
		return s.LanePurge(tenantID, limit), nil
	case trigger.PartBulks:
		return purge(s.bulks, limit, ofTenant[*trigger.Bulk](tenantID)), nil
	case trigger.PartDeliveries:
		return purge(s.deliveries, limit, func(k deliveryKey, _ time.Time) bool { return k.tenant == tenantID }), nil
	case trigger.PartCreateKeys:
		return purge(s.createKeys.rows, limit, ofTenant[*trigger.CreateKey](tenantID)), nil
	case trigger.PartSubscriptions:
		return purge(s.subscriptions.rows, limit, ofTenant[entry[trigger.Subscription]](tenantID)), nil
	case trigger.PartProjections:
		return purge(s.projections.rows, limit, ofTenant[entry[trigger.Projection]](tenantID)), nil
	case trigger.PartBots:
		return purge(s.bots.rows, limit, ofTenant[entry[trigger.Bot]](tenantID)), nil
	case trigger.PartBoards:
		return purge(s.boards.rows, limit, ofTenant[entry[tracker.Board]](tenantID)), nil
	case trigger.PartTokens:
		return purge(s.tokens, limit, func(_ string, t *trigger.Token) bool { return t.TenantID == tenantID }), nil
	case trigger.PartAudit:
		return purge(s.audit, limit, ofTenant[*trigger.AuditEntry](tenantID)), nil
	case trigger.PartPauses:
		return purge(s.pauses, limit, ofTenant[trigger.Pause](tenantID)), nil
	case trigger.PartHead:
		if l == nil || l.head == nil {
			return 0, nil
		}
		delete(s.logs, tenantID)
		return 1, nil
	}
	return 0, fmt.Errorf("remove %s of tenant %s: no such part", part, tenantID)
}

func ofTenant[V any](tenantID string) func(key, V) bool {
	return func(k key, _ V) bool { return k.tenant == tenantID }
}

// TenantRemove implements trigger.Tenancy.
func (s *Store) TenantRemove(_ context.Context, tenantID string, revision int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenants.remove(tenantID, tenantID, revision)
}

// TokensRevoke implements trigger.Tenancy.
func (s *Store) TokensRevoke(_ context.Context, tenantID string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tokens {
		if t.TenantID == tenantID && t.RevokedAt.IsZero() {
			t.RevokedAt = at.Truncate(time.Millisecond)
		}
	}
	return nil
}
