package boardmongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// createKeyTries bounds how often a key is met that is gone when it is read.
const createKeyTries = 10

// CreateKeyReserve implements trigger.CreateKeys.
func (s *Store) CreateKeyReserve(ctx context.Context, k trigger.CreateKey) (*trigger.CreateKey, bool, error) {
	wrap := func(err error) error { return fmt.Errorf("reserve create key %s/%s: %w", k.TenantID, k.ID, err) }
	k.Uses = 1
	at := byKey(k.TenantID, k.ID)
	for range createKeyTries {
		err := s.insertOne(ctx, collCreateKeys, doc[trigger.CreateKey]{docKey(k.TenantID, k.ID), k})
		if err == nil {
			return &k, false, nil
		}
		if !mongo.IsDuplicateKeyError(err) {
			return nil, false, wrap(err)
		}
		// Counted before it is read, so that nobody releases it after.
		if _, err := s.updateOne(ctx, collCreateKeys, at, bson.D{{Key: "$inc", Value: bson.D{{Key: "uses", Value: 1}}}}); err != nil {
			return nil, false, wrap(err)
		}
		have, err := findOne[trigger.CreateKey](ctx, s, collCreateKeys, at)
		if err == nil {
			return have, true, nil
		}
		if !errors.Is(err, tracker.ErrNotFound) {
			return nil, false, wrap(err)
		}
	}
	return nil, false, wrap(errors.New("it comes and goes"))
}

// CreateKeyRelease implements trigger.CreateKeys.
func (s *Store) CreateKeyRelease(ctx context.Context, k trigger.CreateKey) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collCreateKeys).DeleteOne(ctx,
		append(byKey(k.TenantID, k.ID), bson.E{Key: "resource_id", Value: k.ResourceID}, bson.E{Key: "uses", Value: 1}))
	if err != nil {
		return fmt.Errorf("release create key %s/%s: %w", k.TenantID, k.ID, err)
	}
	return nil
}

// insertOne inserts a document, within one operation's time.
func (s *Store) insertOne(ctx context.Context, coll string, v any) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(coll).InsertOne(ctx, v)
	return err
}
