package boardmem

import (
	"cmp"
	"context"
	"slices"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// EventListByCard implements trigger.EventLog.
func (s *Store) EventListByCard(_ context.Context, tenantID, cardID string, before int64, limit int) ([]trigger.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*trigger.Event
	for seq, e := range s.log(tenantID).events {
		if e.CardID == cardID && seq < before {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *trigger.Event) int { return cmp.Compare(b.Seq, a.Seq) })
	var out []trigger.Event
	for _, e := range found[:min(len(found), limit)] {
		out = append(out, clone.Of(*e))
	}
	return out, nil
}
