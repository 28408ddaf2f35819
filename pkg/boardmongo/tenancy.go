package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// partColls are the collections of a tenant's parts.
var partColls = map[trigger.TenantPart]string{
	trigger.PartHooks: collHooks, trigger.PartCards: collCards, trigger.PartEvents: collEvents, trigger.PartEffects: collEffects,
	trigger.PartLanes: collLanes, trigger.PartBulks: collBulks, trigger.PartDeliveries: collDeliveries, trigger.PartCreateKeys: collCreateKeys,
	trigger.PartSubscriptions: collSubscriptions, trigger.PartProjections: collProjections, trigger.PartBots: collBots, trigger.PartBoards: collBoards,
	trigger.PartTokens: collTokens, trigger.PartAudit: collAudit, trigger.PartPauses: collPauses, trigger.PartHead: collHeads,
}

// TenantsDeleting implements trigger.Tenancy.
func (s *Store) TenantsDeleting(ctx context.Context, afterID string, limit int) ([]trigger.Tenant, error) {
	return findAll[trigger.Tenant](ctx, s, collTenants, bson.D{
		{Key: "deleting_at", Value: bson.D{{Key: "$exists", Value: true}}}, {Key: "_id", Value: bson.D{{Key: "$gt", Value: afterID}}},
	}, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetHint(indexDeleting))
}

// TenantPurge implements trigger.Tenancy: a page is found by key and removed
// by key, so that a command's work is bounded.
func (s *Store) TenantPurge(ctx context.Context, tenantID string, part trigger.TenantPart, limit int) (int, error) {
	wrap := func(err error) error { return fmt.Errorf("remove %s of tenant %s: %w", part, tenantID, err) }
	coll, ok := partColls[part]
	if !ok || tenantID == "" {
		return 0, wrap(errors.New("no such part, or no tenant"))
	}
	prefix := docKey(tenantID, "")
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: prefixEnd(prefix)}}}, {Key: "tenant_id", Value: tenantID}}
	switch part {
	case trigger.PartTokens, trigger.PartPauses: // few, and of other keys
		filter = bson.D{{Key: "tenant_id", Value: tenantID}}
	case trigger.PartHead:
		filter = bson.D{{Key: "_id", Value: tenantID}}
	}
	type ref struct {
		Key string `bson:"_id"`
	}
	octx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(coll).Find(octx, filter, options.Find().SetLimit(int64(limit)).SetProjection(asc("_id")).SetBatchSize(findBatch))
	if err != nil {
		return 0, wrap(err)
	}
	var refs []ref
	if err := cur.All(octx, &refs); err != nil {
		return 0, wrap(err)
	}
	if len(refs) == 0 {
		return 0, nil
	}
	keys := make([]string, len(refs))
	for i, r := range refs {
		keys[i] = r.Key
	}
	octx, cancel = s.op(ctx)
	defer cancel()
	if _, err := s.db.Collection(coll).DeleteMany(octx, bson.D{{Key: "_id", Value: in(keys)}}); err != nil {
		return 0, wrap(err)
	}
	return len(keys), nil
}

// TenantRemove implements trigger.Tenancy.
func (s *Store) TenantRemove(ctx context.Context, tenantID string, revision int64) error {
	octx, cancel := s.op(ctx)
	defer cancel()
	res, err := s.db.Collection(collTenants).DeleteOne(octx, bson.D{{Key: "_id", Value: tenantID}, {Key: "revision", Value: revision}})
	if err == nil && res.DeletedCount == 0 {
		if _, err = s.TenantGet(ctx, tenantID); err == nil {
			err = tracker.ErrConflict
		}
	}
	if err != nil {
		return fmt.Errorf("remove tenant %s: %w", tenantID, err)
	}
	return nil
}

// EffectCount implements trigger.Tenancy.
func (s *Store) EffectCount(ctx context.Context, tenantID string, state trigger.State, most int) (int, error) {
	octx, cancel := s.op(ctx)
	defer cancel()
	n, err := s.db.Collection(collEffects).CountDocuments(octx, bson.D{{Key: "tenant_id", Value: tenantID}, {Key: "state", Value: state}},
		options.Count().SetLimit(int64(most)))
	if err != nil {
		return 0, fmt.Errorf("count %s rows of %s: %w", state, tenantID, err)
	}
	return int(n), nil
}

// TokensRevoke implements trigger.Tenancy.
func (s *Store) TokensRevoke(ctx context.Context, tenantID string, at time.Time) error {
	octx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collTokens).UpdateMany(octx, bson.D{{Key: "tenant_id", Value: tenantID}, {Key: "revoked_at", Value: bson.D{{Key: "$exists", Value: false}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "revoked_at", Value: at}}}})
	if err != nil {
		return fmt.Errorf("revoke the tokens of %s: %w", tenantID, err)
	}
	return nil
}
