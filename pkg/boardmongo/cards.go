package boardmongo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// CardGet implements tracker.CardStore.
func (s *Store) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	card, err := findOne[tracker.Card](ctx, s, collCards, bson.D{{Key: "_id", Value: docKey(tenantID, cardID)}})
	if err != nil {
		return nil, fmt.Errorf("get card %s/%s: %w", tenantID, cardID, err)
	}
	return card, nil
}

// optionalCardFields are the fields that a card's document lacks when they are
// empty, so that a write has to unset them. The pending events and their mark
// are not among them: they are never written as a whole.
var optionalCardFields = []string{"body", "labels", "assignees", "external", "stamps", "consumed", "deliveries"}

// CardWrite implements tracker.CardStore (E1).
func (s *Store) CardWrite(ctx context.Context, w tracker.CardWrite) error {
	key := docKey(w.Next.TenantID, w.Next.ID)
	wrap := func(err error) error { return fmt.Errorf("write card %s at rev %d: %w", key, w.PrevRev, err) }
	if w.PrevRev == 0 {
		if err := s.cardInsert(ctx, key, *w.Next, w.Event); err != nil {
			return wrap(err)
		}
		return nil
	}
	set, err := toDoc(w.Next)
	if err != nil {
		return wrap(err)
	}
	set = slices.DeleteFunc(set, func(e bson.E) bool { return e.Key == "pending" || e.Key == "pending_at" })
	var unset bson.D
	for _, field := range optionalCardFields {
		if !slices.ContainsFunc(set, func(e bson.E) bool { return e.Key == field }) {
			unset = append(unset, bson.E{Key: field, Value: ""})
		}
	}
	update := bson.D{{Key: "$set", Value: set}}
	if len(unset) > 0 {
		update = append(update, bson.E{Key: "$unset", Value: unset})
	}
	if w.Event != nil {
		update = append(update,
			bson.E{Key: "$push", Value: bson.D{{Key: "pending", Value: w.Event}}},
			bson.E{Key: "$currentDate", Value: bson.D{{Key: "pending_at", Value: true}}})
	}
	matched, err := s.updateOne(ctx, collCards, bson.D{
		{Key: "_id", Value: key}, {Key: "incarnation", Value: w.PrevIncarnation}, {Key: "rev", Value: w.PrevRev},
	}, update)
	if err != nil {
		return wrap(err)
	}
	if !matched {
		return wrap(tracker.ErrConflict)
	}
	return nil
}

func (s *Store) cardInsert(ctx context.Context, key string, card tracker.Card, event *tracker.BoardEvent) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	card.Pending, card.PendingAt = nil, time.Time{}
	if event != nil {
		card.Pending, card.PendingAt = []tracker.BoardEvent{*event}, s.Now()
	}
	_, err := s.db.Collection(collCards).InsertOne(ctx, doc[tracker.Card]{key, card})
	if mongo.IsDuplicateKeyError(err) {
		return tracker.ErrConflict
	}
	return err
}

// CardPendingRemove implements tracker.CardStore (E3).
func (s *Store) CardPendingRemove(ctx context.Context, tenantID, cardID string, eids []string) error {
	left := bson.D{{Key: "$filter", Value: bson.D{
		{Key: "input", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$pending", bson.A{}}}}},
		{Key: "as", Value: "e"},
		{Key: "cond", Value: bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$in", Value: bson.A{"$$e.eid", eids}}}}}}},
	}}}
	pipeline := mongo.Pipeline{
		{{Key: "$set", Value: bson.D{{Key: "pending", Value: left}}}},
		{{Key: "$set", Value: bson.D{{Key: "pending_at", Value: bson.D{{Key: "$cond", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$size", Value: "$pending"}}, 0}}}, "$$REMOVE", "$pending_at",
		}}}}}}},
	}
	if _, err := s.updateOne(ctx, collCards, bson.D{{Key: "_id", Value: docKey(tenantID, cardID)}}, pipeline); err != nil {
		return fmt.Errorf("take %d events off card %s/%s: %w", len(eids), tenantID, cardID, err)
	}
	return nil
}
