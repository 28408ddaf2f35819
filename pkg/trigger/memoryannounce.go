package trigger

import (
	"context"
	"slices"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
)

// EffectsUnannounced implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectsUnannounced(_ context.Context, due time.Time, limit int) ([]Effect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Effect
	for _, row := range m.announces {
		if len(out) == limit {
			break
		}
		if row.Kind.Known() && !row.AnnounceAt.After(due) {
			bare := *row
			bare.Plan, bare.Rendered = nil, ""
			out = append(out, clone.Of(bare))
		}
	}
	return out, nil
}

// EffectsAnnounced implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectsAnnounced(_ context.Context, rows []Effect, until time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range rows {
		read := &rows[i]
		row, ok := m.announces[read.ID]
		if !ok || row.TenantID != read.TenantID || row.ClaimID != read.ClaimID || row.State != read.State || !row.AnnounceAt.Equal(read.AnnounceAt) {
			continue
		}
		next := *row
		next.AnnounceAt = until
		m.put(next)
	}
	return nil
}

// EffectsToAnnounce implements Retention.
func (m *MemoryEffectOutbox) EffectsToAnnounce(_ context.Context, tenantID string, ids []string) (open []string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range m.announces {
		if row.TenantID == tenantID && slices.Contains(ids, row.ID) {
			open = append(open, row.ID)
		}
	}
	return open, nil
}
