package trigger

import "time"

// EffectTotals counts the rows as FleetCounts says, each number up to most.
func (m *MemoryEffectOutbox) EffectTotals(now time.Time, pauses []Pause, most int) (out FleetNumbers) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out.Effects = make(map[string]int64)
	for _, state := range FleetStates() {
		out.Effects[state] = 0
	}
	paused := newPauseSet(pauses)
	for _, row := range m.rows {
		due := !row.NotBefore.After(now)
		state := string(row.State) // which the names of parked ones are
		switch {
		case row.State == StateClaimed && due:
			state = FleetExpired
		case row.State == StateClaimed:
			state = FleetInFlight
		case row.State == StatePending && !due:
			state = FleetRetrying
		case row.State == StatePending && paused.holds(laneKey{row.TenantID, row.Lane}):
			state = FleetPaused
		case row.State == StatePending:
			state = FleetReady
			out.OldestReadySeconds = max(out.OldestReadySeconds, now.Sub(row.NotBefore).Seconds())
		}
		if _, counts := out.Effects[state]; counts {
			out.Effects[state]++
		}
	}
	for _, state := range FleetStates() {
		out.Cap(state, out.Effects[state], most)
		out.Effects[state] = min(out.Effects[state], int64(most))
	}
	return out
}

// Cap notes that a number was cut off, if it is not below most.
func (f *FleetNumbers) Cap(what string, n int64, most int) {
	if n >= int64(most) {
		f.Capped = append(f.Capped, what)
	}
}
