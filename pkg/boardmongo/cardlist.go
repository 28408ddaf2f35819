package boardmongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// CardList implements tracker.CardStore.
func (s *Store) CardList(ctx context.Context, p tracker.CardListParams) (tracker.CardPage, error) {
	read, err := s.cardsRead(ctx, p)
	if err != nil {
		return tracker.CardPage{}, fmt.Errorf("list cards of %s: %w", p.TenantID, err)
	}
	return p.Page(read), nil
}

// cardsRead reads what the page is made of: from one span of an index after
// the other, since a server orders what it finds by an `$or` in memory.
func (s *Store) cardsRead(ctx context.Context, p tracker.CardListParams) (read []tracker.Card, err error) {
	spans, order := idSpans(p)
	if p.ByPosition() {
		spans, order = positionSpans(p)
	}
	// As tracker.Card.Listed leaves out.
	bare := bson.D{}
	for _, field := range []string{"body", "comments", "pending", "pending_at", "stamps", "consumed", "deliveries"} {
		bare = append(bare, bson.E{Key: field, Value: 0})
	}
	for _, span := range spans {
		limit := p.ReadLimit() - len(read)
		if limit == 0 {
			break
		}
		span = append(span, bson.E{Key: "deleted", Value: bson.D{{Key: "$ne", Value: true}}})
		page, err := findAll[tracker.Card](ctx, s, collCards, span, options.Find().SetSort(order).SetLimit(int64(limit)).SetProjection(bare))
		if err != nil {
			return nil, err
		}
		read = append(read, page...)
	}
	return read, nil
}

// idSpans is the span of a list by id.
func idSpans(p tracker.CardListParams) (spans []bson.D, order bson.D) {
	after := ""
	if p.After != nil {
		after = p.After.ID
	}
	if p.Indexed() {
		return []bson.D{{
			{Key: "tenant_id", Value: p.TenantID}, {Key: "bot_id", Value: p.BotID}, {Key: "id", Value: bson.D{{Key: "$gt", Value: after}}},
		}}, asc("_id")
	}
	prefix := docKey(p.TenantID, "")
	return []bson.D{{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: prefix + after}, {Key: "$lt", Value: prefixEnd(prefix)}}}, {Key: "tenant_id", Value: p.TenantID},
	}}, asc("_id")
}

// positionSpans are the spans of a list by position: of the cards that stand
// at the key's position, of its column's others, of the other columns.
func positionSpans(p tracker.CardListParams) (spans []bson.D, order bson.D) {
	past, dir := "$gt", 1
	if p.Backward {
		past, dir = "$lt", -1
	}
	order = bson.D{{Key: "column_id", Value: dir}, {Key: "position", Value: dir}, {Key: "id", Value: dir}}
	board := func(more ...bson.E) bson.D {
		return append(bson.D{{Key: "tenant_id", Value: p.TenantID}, {Key: "board_id", Value: p.BoardID}}, more...)
	}
	beyond := func(field string, v any) bson.E { return bson.E{Key: field, Value: bson.D{{Key: past, Value: v}}} }
	column := bson.E{Key: "column_id", Value: p.ColumnID}
	// A position that is not there sorts before all others, and no comparison
	// finds it.
	none := bson.E{Key: "position", Value: nil}
	switch {
	case p.After == nil && p.ColumnID == "":
		return []bson.D{board()}, order
	case p.After == nil:
		return []bson.D{board(column)}, order
	case p.ColumnID == "":
		column.Value = p.After.ColumnID
	}
	at, others := bson.E{Key: "position", Value: p.After.Position}, beyond("position", p.After.Position)
	if p.After.Position == "" {
		at, others = none, bson.E{Key: "position", Value: exists}
	}
	spans = []bson.D{board(column, at, beyond("id", p.After.ID))}
	if p.After.Position != "" || !p.Backward {
		spans = append(spans, board(column, others))
	}
	if p.Backward && p.After.Position != "" {
		spans = append(spans, board(column, none))
	}
	if p.ColumnID == "" {
		spans = append(spans, board(beyond("column_id", p.After.ColumnID)))
	}
	return spans, order
}

// CardCount implements tracker.CardStore.
func (s *Store) CardCount(ctx context.Context, tenantID, boardID, columnID string) (int, error) {
	filter := bson.D{{Key: "tenant_id", Value: tenantID}, {Key: "board_id", Value: boardID}}
	if columnID != "" {
		filter = append(filter, bson.E{Key: "column_id", Value: columnID})
	}
	filter = append(filter, bson.E{Key: "deleted", Value: bson.D{{Key: "$ne", Value: true}}})
	octx, cancel := s.op(ctx)
	defer cancel()
	n, err := s.db.Collection(collCards).CountDocuments(octx, filter, options.Count().SetLimit(tracker.CardCountMax))
	if err != nil {
		return 0, fmt.Errorf("count cards of board %s/%s: %w", tenantID, boardID, err)
	}
	return int(n), nil
}

// CardComments implements tracker.CardStore.
func (s *Store) CardComments(ctx context.Context, tenantID, cardID string) ([]tracker.Comment, error) {
	type card struct {
		Comments []tracker.Comment `json:"comments"`
	}
	got, err := findOne[card](ctx, s, collCards, bson.D{{Key: "_id", Value: docKey(tenantID, cardID)}},
		options.FindOne().SetProjection(bson.D{{Key: "_id", Value: 1}, {Key: "comments", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("comments of card %s/%s: %w", tenantID, cardID, err)
	}
	return got.Comments, nil
}
