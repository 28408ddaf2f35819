package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// HeadGet implements trigger.Heads.
func (s *Store) HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	var h headDoc
	err := s.db.Collection(collHeads).FindOne(ctx, bson.D{{Key: "_id", Value: tenantID}}).Decode(&h)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = tracker.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("head of %s: %w", tenantID, err)
	}
	return &h.Head, nil
}

// findHeads returns the heads that a bounded filter names.
func (s *Store) findHeads(ctx context.Context, filter bson.D, opts *options.FindOptionsBuilder) ([]trigger.Head, error) {
	return findAll[trigger.Head](ctx, s, collHeads, filter, opts)
}

// HeadsDirty implements trigger.Heads.
func (s *Store) HeadsDirty(ctx context.Context, now time.Time, limit int) ([]trigger.DirtyTenant, error) {
	heads, err := s.findHeads(ctx, bson.D{{Key: "dirty", Value: true}, {Key: "drain_after", Value: bson.D{{Key: "$lte", Value: now}}}},
		options.Find().SetSort(asc("drain_after")).SetLimit(int64(limit)).SetProjection(asc("tenant_id", "drain_after")))
	if err != nil {
		return nil, fmt.Errorf("dirty heads: %w", err)
	}
	out := make([]trigger.DirtyTenant, len(heads))
	for i, h := range heads {
		out[i] = trigger.DirtyTenant{TenantID: h.TenantID, Since: h.DrainAfter}
	}
	return out, nil
}

// HeadList implements trigger.Heads.
func (s *Store) HeadList(ctx context.Context, afterTenantID string, limit int) ([]trigger.Head, error) {
	heads, err := s.findHeads(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: afterTenantID}}}},
		options.Find().SetSort(asc("_id")).SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("heads after %s: %w", afterTenantID, err)
	}
	return heads, nil
}

// HeadAdvance implements trigger.Heads (T4, T6): dirty is set from the
// document's own fields by the same write.
func (s *Store) HeadAdvance(ctx context.Context, tenantID string, from, to int64) (bool, error) {
	if to < from {
		return false, nil
	}
	return s.updateOne(ctx, collHeads, bson.D{
		{Key: "_id", Value: tenantID}, {Key: "cursor", Value: from}, {Key: "seq", Value: bson.D{{Key: "$gte", Value: to}}},
	}, mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "cursor", Value: to},
		{Key: "dirty", Value: bson.D{{Key: "$gt", Value: bson.A{"$seq", to}}}},
		{Key: "drain_after", Value: s.Now()},
	}}}})
}

// HeadDefer implements trigger.Heads.
func (s *Store) HeadDefer(ctx context.Context, tenantID string, until time.Time) error {
	_, err := s.updateOne(ctx, collHeads, bson.D{{Key: "_id", Value: tenantID}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "drain_after", Value: until}}}})
	return err
}

// HeadWatchHole implements trigger.Heads (T3).
func (s *Store) HeadWatchHole(ctx context.Context, tenantID string, cursor, upTo int64, now time.Time) error {
	_, err := s.updateOne(ctx, collHeads, bson.D{
		{Key: "_id", Value: tenantID},
		{Key: "cursor", Value: cursor},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "hole_up_to", Value: bson.D{{Key: "$exists", Value: false}}}},
			bson.D{{Key: "hole_up_to", Value: bson.D{{Key: "$lte", Value: cursor}}}},
		}},
	}, bson.D{{Key: "$set", Value: bson.D{{Key: "hole_up_to", Value: upTo}, {Key: "hole_since", Value: now}}}})
	return err
}

// HeadWatchPoison implements trigger.Heads (T5).
func (s *Store) HeadWatchPoison(ctx context.Context, tenantID string, seq int64, now time.Time) (trigger.PoisonWatch, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	same := bson.D{{Key: "$eq", Value: bson.A{"$poison.seq", seq}}}
	var h headDoc
	err := s.db.Collection(collHeads).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: tenantID}}, mongo.Pipeline{{{Key: "$set", Value: bson.D{
		{Key: "poison", Value: bson.D{
			{Key: "seq", Value: bson.D{{Key: "$literal", Value: seq}}},
			{Key: "tries", Value: bson.D{{Key: "$cond", Value: bson.A{same, bson.D{{Key: "$add", Value: bson.A{"$poison.tries", 1}}}, 1}}}},
			{Key: "since", Value: bson.D{{Key: "$cond", Value: bson.A{same, "$poison.since", now}}}},
		}},
	}}}}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&h)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = tracker.ErrNotFound
	}
	if err != nil {
		return trigger.PoisonWatch{}, fmt.Errorf("watch event %d of %s: %w", seq, tenantID, err)
	}
	return h.Poison, nil
}

// ReplicaBeat implements trigger.Replicas.
func (s *Store) ReplicaBeat(ctx context.Context, name string, now, since time.Time) ([]string, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collReplicas).UpdateOne(ctx, bson.D{{Key: "_id", Value: name}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: now}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return nil, fmt.Errorf("heartbeat of %s: %w", name, err)
	}
	cur, err := s.db.Collection(collReplicas).Find(ctx, bson.D{{Key: "at", Value: bson.D{{Key: "$gte", Value: since}}}}, options.Find().SetSort(asc("_id")))
	if err != nil {
		return nil, fmt.Errorf("live replicas: %w", err)
	}
	var docs []struct {
		Name string `bson:"_id"`
	}
	if err := cur.All(ctx, &docs); err != nil {
		return nil, fmt.Errorf("live replicas: %w", err)
	}
	live := make([]string, len(docs))
	for i, d := range docs {
		live[i] = d.Name
	}
	return live, nil
}

// ReplicaLeave implements trigger.Replicas.
func (s *Store) ReplicaLeave(ctx context.Context, name string) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	if _, err := s.db.Collection(collReplicas).DeleteOne(ctx, bson.D{{Key: "_id", Value: name}}); err != nil {
		return fmt.Errorf("leave of %s: %w", name, err)
	}
	return nil
}
