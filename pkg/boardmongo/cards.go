package boardmongo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// CardGet implements tracker.CardStore.
func (s *Store) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	card, err := findOne[tracker.Card](ctx, s, collCards, bson.D{{Key: "_id", Value: docKey(tenantID, cardID)}},
		options.FindOne().SetProjection(withoutComments))
	if err != nil {
		return nil, fmt.Errorf("get card %s/%s: %w", tenantID, cardID, err)
	}
	return card, nil
}

// withoutComments keeps the comments out of what the engine reads all the
// time; CardComments reads them.
var withoutComments = bson.D{{Key: "comments", Value: 0}}

// cardDoc is a card that is made.
type cardDoc struct {
	Key      string            `bson:"_id"`
	Card     tracker.Card      `bson:",inline"`
	Comments []tracker.Comment `bson:"comments,omitempty"`
}

// cardFields are all fields of a card's document: those that a card to write
// lacks, being empty, have to be unset. The pending events and their mark are
// not among them: they are never written as a whole.
var cardFields = func() (names []string) {
	card := reflect.TypeFor[tracker.Card]()
	for i := range card.NumField() {
		name, _, _ := strings.Cut(card.Field(i).Tag.Get("json"), ",")
		if name != "pending" && name != "pending_at" {
			names = append(names, name)
		}
	}
	return names
}()

// CardsGet implements tracker.CardStore.
func (s *Store) CardsGet(ctx context.Context, tenantID string, cardIDs []string) ([]*tracker.Card, error) {
	cards, err := findAll[tracker.Card](ctx, s, collCards, bson.D{{Key: "_id", Value: in(docKeys(tenantID, cardIDs))}},
		options.Find().SetProjection(withoutComments))
	if err != nil {
		return nil, fmt.Errorf("get %d cards of %s: %w", len(cardIDs), tenantID, err)
	}
	out := make([]*tracker.Card, len(cards))
	for i := range cards {
		out[i] = &cards[i]
	}
	return out, nil
}

func docKeys(tenantID string, ids []string) []string {
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = docKey(tenantID, id)
	}
	return keys
}

// CardWrite implements tracker.CardStore (E1).
func (s *Store) CardWrite(ctx context.Context, w tracker.CardWrite) error {
	key := docKey(w.Next.TenantID, w.Next.ID)
	wrap := func(err error) error { return fmt.Errorf("write card %s at rev %d: %w", key, w.PrevRev, err) }
	if w.PrevRev == 0 {
		ctx, cancel := s.op(ctx)
		defer cancel()
		_, err := s.db.Collection(collCards).InsertOne(ctx, s.newCardDoc(w))
		if mongo.IsDuplicateKeyError(err) {
			err = tracker.ErrConflict
		}
		if err != nil {
			return wrap(err)
		}
		return nil
	}
	filter, update, err := cardUpdate(w)
	if err != nil {
		return wrap(err)
	}
	matched, err := s.updateOne(ctx, collCards, filter, update)
	if err != nil {
		return wrap(err)
	}
	if !matched {
		return wrap(tracker.ErrConflict)
	}
	return nil
}

func (s *Store) newCardDoc(w tracker.CardWrite) cardDoc {
	card := *w.Next
	card.Pending, card.PendingAt = nil, time.Time{}
	if w.Event != nil {
		card.Pending, card.PendingAt = []tracker.BoardEvent{*w.Event}, s.Now()
	}
	return cardDoc{docKey(card.TenantID, card.ID), card, comments(w)}
}

// comments are those that a card has once it is made by the write.
func comments(w tracker.CardWrite) []tracker.Comment {
	if w.Comment == nil {
		return nil
	}
	return []tracker.Comment{*w.Comment}
}

// cardUpdate is the conditional update of a card that is there.
func cardUpdate(w tracker.CardWrite) (filter, update bson.D, err error) {
	set, err := toDoc(w.Next)
	if err != nil {
		return nil, nil, err
	}
	set = slices.DeleteFunc(set, func(e bson.E) bool { return e.Key == "pending" || e.Key == "pending_at" })
	var unset bson.D
	for _, field := range cardFields {
		if !slices.ContainsFunc(set, func(e bson.E) bool { return e.Key == field }) {
			unset = append(unset, bson.E{Key: field, Value: ""})
		}
	}
	var push bson.D
	switch made := w.Next.Incarnation != w.PrevIncarnation; {
	case made && w.Comment == nil:
		unset = append(unset, bson.E{Key: "comments", Value: ""}) // a tombstone's
	case made:
		set = append(set, bson.E{Key: "comments", Value: comments(w)})
	case w.Comment != nil:
		push = append(push, bson.E{Key: "comments", Value: w.Comment})
	}
	update = bson.D{{Key: "$set", Value: set}}
	if len(unset) > 0 {
		update = append(update, bson.E{Key: "$unset", Value: unset})
	}
	if w.Event != nil {
		push = append(push, bson.E{Key: "pending", Value: w.Event})
		update = append(update, bson.E{Key: "$currentDate", Value: bson.D{{Key: "pending_at", Value: true}}})
	}
	if len(push) > 0 {
		update = append(update, bson.E{Key: "$push", Value: push})
	}
	return bson.D{
		{Key: "_id", Value: docKey(w.Next.TenantID, w.Next.ID)},
		{Key: "incarnation", Value: w.PrevIncarnation},
		{Key: "rev", Value: w.PrevRev},
	}, update, nil
}

// CardWriteMany implements tracker.CardStore: one bulk write, and one read
// that tells which writes stand.
func (s *Store) CardWriteMany(ctx context.Context, tenantID string, ws []tracker.CardWrite) ([]bool, error) {
	if len(ws) == 0 {
		return nil, nil
	}
	// In one order for everybody, no two bulk writes wait for each other.
	order := make([]int, len(ws))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(ws[a].Next.ID, ws[b].Next.ID) })
	models := make([]mongo.WriteModel, 0, len(ws))
	ids := make([]string, 0, len(ws))
	for _, i := range order {
		w := ws[i]
		if w.Next.TenantID != tenantID {
			return nil, fmt.Errorf("write card %s/%s: of another tenant", w.Next.TenantID, w.Next.ID)
		}
		ids = append(ids, w.Next.ID)
		if w.PrevRev == 0 {
			models = append(models, mongo.NewInsertOneModel().SetDocument(s.newCardDoc(w)))
			continue
		}
		filter, update, err := cardUpdate(w)
		if err != nil {
			return nil, fmt.Errorf("write %d cards of %s: %w", len(ws), tenantID, err)
		}
		models = append(models, mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update))
	}
	bctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collCards).BulkWrite(bctx, models, options.BulkWrite().SetOrdered(false))
	if err != nil && !onlyDuplicates(err) {
		return nil, fmt.Errorf("write %d cards of %s: %w", len(ws), tenantID, err)
	}
	cards, err := findAll[tracker.Card](ctx, s, collCards, bson.D{{Key: "_id", Value: in(docKeys(tenantID, ids))}},
		options.Find().SetProjection(asc("id", "last_write")))
	if err != nil {
		return nil, fmt.Errorf("write %d cards of %s: read back: %w", len(ws), tenantID, err)
	}
	last := make(map[string]string, len(cards))
	for i := range cards {
		last[cards[i].ID] = cards[i].LastWrite
	}
	stands := make([]bool, len(ws))
	for i, w := range ws {
		stands[i] = last[w.Next.ID] == w.Next.LastWrite
	}
	return stands, nil
}

// CardPendingRemove implements tracker.CardStore (E3). A tombstone keeps its
// mark, so that a sweeper buries it (E4).
func (s *Store) CardPendingRemove(ctx context.Context, tenantID string, eidsByCard map[string][]string) error {
	var models []mongo.WriteModel
	for _, id := range slices.Sorted(maps.Keys(eidsByCard)) {
		left := bson.D{{Key: "$filter", Value: bson.D{
			{Key: "input", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$pending", bson.A{}}}}},
			{Key: "as", Value: "e"},
			{Key: "cond", Value: bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$in", Value: bson.A{"$$e.eid", eidsByCard[id]}}}}}}},
		}}}
		rest := bson.D{{Key: "$and", Value: bson.A{
			bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$size", Value: "$pending"}}, 0}}},
			bson.D{{Key: "$ne", Value: bson.A{"$deleted", true}}},
		}}}
		models = append(models, mongo.NewUpdateOneModel().
			SetFilter(bson.D{{Key: "_id", Value: docKey(tenantID, id)}}).
			SetUpdate(mongo.Pipeline{
				{{Key: "$set", Value: bson.D{{Key: "pending", Value: left}}}},
				{{Key: "$set", Value: bson.D{{Key: "pending_at", Value: bson.D{{Key: "$cond", Value: bson.A{rest, "$$REMOVE", "$pending_at"}}}}}}},
			}))
	}
	if len(models) == 0 {
		return nil
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	if _, err := s.db.Collection(collCards).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("take events off %d cards of %s: %w", len(models), tenantID, err)
	}
	return nil
}

// CardsPending implements tracker.CardStore.
func (s *Store) CardsPending(ctx context.Context, before time.Time, limit int) ([]tracker.PendingCard, error) {
	cards, err := findAll[tracker.PendingCard](ctx, s, collCards,
		bson.D{{Key: "pending_at", Value: upTo(before)}},
		options.Find().SetSort(asc("pending_at")).SetLimit(int64(limit)).SetProjection(asc("tenant_id", "id", "pending_at")))
	if err != nil {
		return nil, fmt.Errorf("cards with pending events: %w", err)
	}
	return cards, nil
}

// CardPendingTouch implements tracker.CardStore (E3).
func (s *Store) CardPendingTouch(ctx context.Context, p tracker.PendingCard, now time.Time) (bool, error) {
	return s.updateOne(ctx, collCards,
		bson.D{{Key: "_id", Value: docKey(p.TenantID, p.CardID)}, {Key: "pending_at", Value: p.PendingAt}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "pending_at", Value: now}}}})
}

// CardPendingEIDs implements tracker.CardStore (R4).
func (s *Store) CardPendingEIDs(ctx context.Context, tenantID string, eids []string) ([]string, error) {
	cards, err := findAll[tracker.Card](ctx, s, collCards, bson.D{
		{Key: "pending_at", Value: exists}, {Key: "tenant_id", Value: tenantID}, {Key: "pending.eid", Value: in(eids)},
	}, options.Find().SetProjection(asc("pending.eid")))
	if err != nil {
		return nil, fmt.Errorf("pending events of %s: %w", tenantID, err)
	}
	var out []string
	for i := range cards {
		for _, e := range cards[i].Pending {
			if slices.Contains(eids, e.EID) {
				out = append(out, e.EID)
			}
		}
	}
	return out, nil
}

// CardBury implements tracker.CardStore (E4): one conditional delete.
func (s *Store) CardBury(ctx context.Context, tenantID, cardID, incarnation string) (bool, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	key := bson.E{Key: "_id", Value: docKey(tenantID, cardID)}
	none := bson.D{{Key: "$exists", Value: false}}
	_, err := s.db.Collection(collCards).DeleteOne(ctx, bson.D{
		key,
		{Key: "incarnation", Value: incarnation},
		{Key: "deleted", Value: true},
		{Key: "pending.0", Value: none},
		{Key: "consumed.0", Value: none},
	})
	if err != nil {
		return false, fmt.Errorf("bury card %s/%s: %w", tenantID, cardID, err)
	}
	n, err := s.db.Collection(collCards).CountDocuments(ctx, bson.D{key, {Key: "incarnation", Value: incarnation}}, options.Count().SetLimit(1))
	if err != nil {
		return false, fmt.Errorf("bury card %s/%s: %w", tenantID, cardID, err)
	}
	return n == 0, nil
}
