package trigger

import "context"

// EffectPurge removes up to limit rows of a tenant, and returns how many.
func (m *MemoryEffectOutbox) EffectPurge(tenantID string, limit int) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, row := range m.rows {
		if n == limit {
			break
		}
		if row.TenantID != tenantID {
			continue
		}
		delete(m.rows, id)
		key := laneKey{tenantID, row.Lane}
		if delete(m.live[key], id); len(m.live[key]) == 0 {
			delete(m.live, key)
		}
		n++
	}
	return n
}

// LanePurge removes up to limit lanes of a tenant, and returns how many.
func (m *MemoryEffectOutbox) LanePurge(tenantID string, limit int) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.lanes {
		if n < limit && key.tenant == tenantID {
			delete(m.lanes, key)
			n++
		}
	}
	return n
}

// EffectCount implements Tenancy.
func (m *MemoryEffectOutbox) EffectCount(_ context.Context, tenantID string, state State, most int) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range m.rows {
		if n < most && row.TenantID == tenantID && row.State == state {
			n++
		}
	}
	return n, nil
}
