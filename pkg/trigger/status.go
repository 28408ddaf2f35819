package trigger

import (
	"context"
	"slices"
	"time"
)

// statusWindow is how far after the cursor open holes are counted.
const statusWindow = 1000

// TenantStatus is where a tenant's log stands, for people to look at.
type TenantStatus struct {
	TenantID string `json:"tenant_id"`
	// Name and Status ("active" or "deleting") are the tenant's own; a list
	// has no names. Of a head without a tenant there is neither.
	Name   string `json:"name,omitempty"`
	Status string `json:"status,omitempty"`
	Seq    int64  `json:"seq"`
	Cursor int64  `json:"cursor"`
	// LagEvents is how many seqs the cursor is behind; LagSeconds how long
	// the first of them has been waiting.
	LagEvents  int64   `json:"lag_events"`
	LagSeconds float64 `json:"lag_seconds"`
	// OpenHoles counts the seqs without an event among the 1000 after the
	// cursor.
	OpenHoles int        `json:"open_holes"`
	HoleSince *time.Time `json:"hole_since,omitempty" doc:"since when holes are watched"`
	// Poison is the watch of the event after the cursor, if it fails.
	Poison *PoisonWatch `json:"poison,omitempty"`
	// RetryAt is until when a tenant that failed backs off.
	RetryAt *time.Time `json:"retry_at,omitempty"`
}

// Status looks at a tenant's log. It may be called at any time.
func Status(ctx context.Context, log EventLog, clock Clock, h *Head) (TenantStatus, error) {
	s := TenantStatus{TenantID: h.TenantID, Seq: h.Seq, Cursor: h.Cursor, LagEvents: max(h.Seq-h.Cursor, 0)}
	if s.LagEvents == 0 {
		return s, nil
	}
	now := clock.Now()
	upTo := min(h.Seq, h.Cursor+statusWindow)
	taken, err := log.EventSeqs(ctx, h.TenantID, h.Cursor, upTo)
	if err != nil {
		return s, err
	}
	s.OpenHoles = int(upTo-h.Cursor) - len(taken)
	waiting := h.DrainAfter
	if h.HoleUpTo > h.Cursor {
		s.HoleSince, waiting = &h.HoleSince, h.HoleSince
	}
	if _, there := slices.BinarySearch(taken, h.Cursor+1); there {
		events, err := log.EventList(ctx, h.TenantID, h.Cursor, h.Cursor+1)
		if err != nil {
			return s, err
		}
		for i := range events {
			waiting = events[i].LoggedAt
		}
	}
	if !waiting.IsZero() {
		s.LagSeconds = max(now.Sub(waiting).Seconds(), 0)
	}
	if h.Poison.Seq == h.Cursor+1 && h.Poison.Tries > 0 {
		s.Poison = &h.Poison
	}
	if h.DrainAfter.After(now) {
		s.RetryAt = &h.DrainAfter
	}
	return s, nil
}
