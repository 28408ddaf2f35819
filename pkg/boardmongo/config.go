package boardmongo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func byKey(tenantID, id string) bson.D {
	return bson.D{{Key: "_id", Value: docKey(tenantID, id)}, {Key: "tenant_id", Value: tenantID}}
}

// listByName returns all of a tenant's, which a tenant's limits bound.
func listByName[T any](ctx context.Context, s *Store, coll, tenantID string) ([]T, error) {
	return findAll[T](ctx, s, coll, bson.D{{Key: "tenant_id", Value: tenantID}}, options.Find().SetSort(asc("name")))
}

// save writes a configured thing, conditional on the revision before it.
func save[T any](ctx context.Context, s *Store, coll, key string, revision int64, v T) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	var err error
	written := true
	// Those that take one name at once may wait for each other: whom the server
	// ended for another one finds that one's there, sooner or later.
	for {
		if revision == 1 {
			_, err = s.db.Collection(coll).InsertOne(ctx, doc[T]{key, v})
		} else {
			var res *mongo.UpdateResult
			res, err = s.db.Collection(coll).ReplaceOne(ctx, bson.D{{Key: "_id", Value: key}, {Key: "revision", Value: revision - 1}}, doc[T]{key, v})
			written = err != nil || res.MatchedCount > 0
		}
		if !contended(err) || ctx.Err() != nil {
			break
		}
		time.Sleep(rand.N(100 * time.Millisecond)) //nolint:gosec // jitter is no secret
	}
	if mongo.IsDuplicateKeyError(err) || !written {
		err = tracker.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("save %s %s at revision %d: %w", coll, key, revision, err)
	}
	return nil
}

// remove deletes a configured thing at a revision. What became of a delete
// whose answer was lost is for the caller to look up.
func (s *Store) remove(ctx context.Context, coll, tenantID, id string, revision int64) error {
	octx, cancel := s.op(ctx)
	defer cancel()
	res, err := s.db.Collection(coll).DeleteOne(octx, append(byKey(tenantID, id), bson.E{Key: "revision", Value: revision}))
	if err == nil && res.DeletedCount == 0 {
		// It is at another revision, or gone.
		if _, err = findOne[struct{}](ctx, s, coll, byKey(tenantID, id)); err == nil {
			err = tracker.ErrConflict
		}
	}
	if err != nil {
		return fmt.Errorf("delete %s %s/%s at revision %d: %w", coll, tenantID, id, revision, err)
	}
	return nil
}

// TenantGet implements trigger.Config.
func (s *Store) TenantGet(ctx context.Context, tenantID string) (*trigger.Tenant, error) {
	return findOne[trigger.Tenant](ctx, s, collTenants, bson.D{{Key: "_id", Value: tenantID}})
}

// TenantIDs implements trigger.Config.
func (s *Store) TenantIDs(ctx context.Context, afterID string, limit int) ([]string, error) {
	tenants, err := findAll[trigger.Tenant](ctx, s, collTenants, bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: afterID}}}, {Key: "deleting_at", Value: bson.D{{Key: "$exists", Value: false}}},
	}, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetProjection(asc("id")))
	if err != nil {
		return nil, fmt.Errorf("tenants after %s: %w", afterID, err)
	}
	ids := make([]string, len(tenants))
	for i, t := range tenants {
		ids[i] = t.ID
	}
	return ids, nil
}

// TenantSave implements trigger.Config.
func (s *Store) TenantSave(ctx context.Context, t *trigger.Tenant) error {
	return save(ctx, s, collTenants, t.ID, t.Revision, *t)
}

// BoardGet implements trigger.Config.
func (s *Store) BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error) {
	return findOne[tracker.Board](ctx, s, collBoards, byKey(tenantID, id))
}

// BoardList implements trigger.Config.
func (s *Store) BoardList(ctx context.Context, tenantID string) ([]tracker.Board, error) {
	return listByName[tracker.Board](ctx, s, collBoards, tenantID)
}

// BoardSave implements trigger.Config.
func (s *Store) BoardSave(ctx context.Context, b *tracker.Board) error {
	return save(ctx, s, collBoards, docKey(b.TenantID, b.ID), b.Revision, *b)
}

// BotGet implements trigger.Config.
func (s *Store) BotGet(ctx context.Context, tenantID, id string) (*trigger.Bot, error) {
	return findOne[trigger.Bot](ctx, s, collBots, byKey(tenantID, id))
}

// BotList implements trigger.Config.
func (s *Store) BotList(ctx context.Context, tenantID string) ([]trigger.Bot, error) {
	return listByName[trigger.Bot](ctx, s, collBots, tenantID)
}

// BotSave implements trigger.Config.
func (s *Store) BotSave(ctx context.Context, b *trigger.Bot) error {
	return save(ctx, s, collBots, docKey(b.TenantID, b.ID), b.Revision, *b)
}

// HookGet implements trigger.Config.
func (s *Store) HookGet(ctx context.Context, tenantID, id string) (*trigger.Hook, error) {
	return findOne[trigger.Hook](ctx, s, collHooks, byKey(tenantID, id))
}

// HookList implements trigger.Config.
func (s *Store) HookList(ctx context.Context, tenantID string) ([]trigger.Hook, error) {
	return listByName[trigger.Hook](ctx, s, collHooks, tenantID)
}

// HookSave implements trigger.Config.
func (s *Store) HookSave(ctx context.Context, h *trigger.Hook) error {
	return save(ctx, s, collHooks, docKey(h.TenantID, h.ID), h.Revision, *h)
}

// ProjectionGet implements trigger.Config.
func (s *Store) ProjectionGet(ctx context.Context, tenantID, id string) (*trigger.Projection, error) {
	return findOne[trigger.Projection](ctx, s, collProjections, byKey(tenantID, id))
}

// ProjectionList implements trigger.Config.
func (s *Store) ProjectionList(ctx context.Context, tenantID string) ([]trigger.Projection, error) {
	return listByName[trigger.Projection](ctx, s, collProjections, tenantID)
}

// ProjectionSave implements trigger.Config.
func (s *Store) ProjectionSave(ctx context.Context, p *trigger.Projection) error {
	return save(ctx, s, collProjections, docKey(p.TenantID, p.ID), p.Revision, *p)
}

// SubscriptionGet implements trigger.Config.
func (s *Store) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	return findOne[trigger.Subscription](ctx, s, collSubscriptions, byKey(tenantID, id))
}

// SubscriptionList implements trigger.Config.
func (s *Store) SubscriptionList(ctx context.Context, tenantID string) ([]trigger.Subscription, error) {
	return listByName[trigger.Subscription](ctx, s, collSubscriptions, tenantID)
}

// SubscriptionPage implements trigger.Config.
func (s *Store) SubscriptionPage(ctx context.Context, tenantID, afterID string, limit int) ([]trigger.Subscription, error) {
	prefix := docKey(tenantID, "")
	subs, err := findAll[trigger.Subscription](ctx, s, collSubscriptions, bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: prefix + afterID}, {Key: "$lt", Value: prefixEnd(prefix)}}},
		{Key: "tenant_id", Value: tenantID},
	}, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetHint(indexID))
	if err != nil {
		return nil, fmt.Errorf("subscriptions of %s: %w", tenantID, err)
	}
	return subs, nil
}

// SubscriptionRefs implements trigger.Config.
func (s *Store) SubscriptionRefs(ctx context.Context, tenantID string) ([]trigger.SubscriptionRef, error) {
	return findAll[trigger.SubscriptionRef](ctx, s, collSubscriptions,
		bson.D{{Key: "tenant_id", Value: tenantID}, {Key: "enabled", Value: true}},
		options.Find().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: "id", Value: 1}, {Key: "revision", Value: 1}, {Key: "updated_at", Value: 1}}))
}

// SubscriptionSave implements trigger.Config.
func (s *Store) SubscriptionSave(ctx context.Context, sub *trigger.Subscription) error {
	return save(ctx, s, collSubscriptions, docKey(sub.TenantID, sub.ID), sub.Revision, *sub)
}

// BoardDelete implements trigger.Config.
func (s *Store) BoardDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return s.remove(ctx, collBoards, tenantID, id, revision)
}

// BotDelete implements trigger.Config.
func (s *Store) BotDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return s.remove(ctx, collBots, tenantID, id, revision)
}

// HookDelete implements trigger.Config.
func (s *Store) HookDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return s.remove(ctx, collHooks, tenantID, id, revision)
}

// SubscriptionDelete implements trigger.Config.
func (s *Store) SubscriptionDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return s.remove(ctx, collSubscriptions, tenantID, id, revision)
}

// ProjectionDelete implements trigger.Config.
func (s *Store) ProjectionDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return s.remove(ctx, collProjections, tenantID, id, revision)
}

type deliveryDoc struct {
	Key      string    `bson:"_id"`
	TenantID string    `bson:"tenant_id"`
	At       time.Time `bson:"at"`
}

func deliveryKey(tenantID, hookID, deliveryID string) string {
	return docKey(tenantID, hookID+"/"+deliveryID)
}

// DeliverySeen implements trigger.Deliveries.
func (s *Store) DeliverySeen(ctx context.Context, tenantID, hookID, deliveryID string) (bool, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	n, err := s.db.Collection(collDeliveries).CountDocuments(ctx,
		bson.D{{Key: "_id", Value: deliveryKey(tenantID, hookID, deliveryID)}}, options.Count().SetLimit(1))
	if err != nil {
		return false, fmt.Errorf("look up delivery %s: %w", deliveryID, err)
	}
	return n > 0, nil
}

// DeliveryRecord implements trigger.Deliveries.
func (s *Store) DeliveryRecord(ctx context.Context, tenantID, hookID, deliveryID string, at time.Time) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collDeliveries).InsertOne(ctx, deliveryDoc{deliveryKey(tenantID, hookID, deliveryID), tenantID, at})
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("record delivery %s: %w", deliveryID, err)
	}
	return nil
}

// TokenCreate implements trigger.Tokens.
func (s *Store) TokenCreate(ctx context.Context, t *trigger.Token) error {
	return save(ctx, s, collTokens, t.ID, 1, *t)
}

// TokenByHash implements trigger.Tokens.
func (s *Store) TokenByHash(ctx context.Context, hash string) (*trigger.Token, error) {
	return findOne[trigger.Token](ctx, s, collTokens, bson.D{{Key: "hash", Value: hash}})
}

// TokenList implements trigger.Tokens.
func (s *Store) TokenList(ctx context.Context, afterID string, limit int) ([]trigger.Token, error) {
	return findAll[trigger.Token](ctx, s, collTokens, bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: afterID}}}},
		options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetHint(indexID))
}

// TokenGet implements trigger.Tokens.
func (s *Store) TokenGet(ctx context.Context, id string) (*trigger.Token, error) {
	return findOne[trigger.Token](ctx, s, collTokens, bson.D{{Key: "_id", Value: id}})
}

// TokenRevoke implements trigger.Tokens.
func (s *Store) TokenRevoke(ctx context.Context, id string, at time.Time) error {
	found, err := s.updateOne(ctx, collTokens, bson.D{{Key: "_id", Value: id}},
		mongo.Pipeline{{{Key: "$set", Value: bson.D{{Key: "revoked_at", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$revoked_at", at}}}}}}}})
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("token %s: %w", id, tracker.ErrNotFound)
	}
	return nil
}
