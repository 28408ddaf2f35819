package boardmem

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// CardList implements tracker.CardStore.
func (s *Store) CardList(_ context.Context, p tracker.CardListParams) (tracker.CardPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b *tracker.CardKey) int {
		c := cmp.Or(cmp.Compare(a.ColumnID, b.ColumnID), cmp.Compare(a.Position, b.Position), cmp.Compare(a.ID, b.ID))
		if p.Backward {
			return -c
		}
		return c
	}
	var read []tracker.Card
	for k, card := range s.cards {
		if k.tenant != p.TenantID || card.Deleted || (p.BoardID != "" && card.BoardID != p.BoardID) || (p.ColumnID != "" && card.ColumnID != p.ColumnID) ||
			(p.Indexed() && card.BotID != p.BotID) || (p.After != nil && order(p.Key(card), p.After) <= 0) {
			continue
		}
		read = append(read, card.Listed())
	}
	slices.SortFunc(read, func(a, b tracker.Card) int { return order(p.Key(&a), p.Key(&b)) })
	return p.Page(read[:min(len(read), p.ReadLimit())]), nil
}

// CardCount implements tracker.CardStore.
func (s *Store) CardCount(_ context.Context, tenantID, boardID, columnID string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k, card := range s.cards {
		if k.tenant == tenantID && card.BoardID == boardID && (columnID == "" || card.ColumnID == columnID) && !card.Deleted {
			n++
		}
	}
	return min(n, tracker.CardCountMax), nil
}

// CardComments implements tracker.CardStore.
func (s *Store) CardComments(_ context.Context, tenantID, cardID string) ([]tracker.Comment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{tenantID, cardID}
	if _, ok := s.cards[k]; !ok {
		return nil, fmt.Errorf("comments of card %s/%s: %w", tenantID, cardID, tracker.ErrNotFound)
	}
	return slices.Clone(s.comments[k]), nil
}
