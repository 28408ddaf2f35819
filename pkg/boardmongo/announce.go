package boardmongo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// EffectsUnannounced implements trigger.EffectOutbox.
func (s *Store) EffectsUnannounced(ctx context.Context, due time.Time, limit int) ([]trigger.Effect, error) {
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, bson.D{
		{Key: "announce_at", Value: upTo(due)}, {Key: "kind", Value: knownKinds},
	}, withoutBodies().SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("rows to announce: %w", err)
	}
	return rows, nil
}

// EffectsAnnounced implements trigger.EffectOutbox.
func (s *Store) EffectsAnnounced(ctx context.Context, rows []trigger.Effect, until time.Time) error {
	if len(rows) == 0 {
		return nil
	}
	update := bson.D{{Key: "$unset", Value: bson.D{{Key: "announce_at", Value: ""}}}}
	if !until.IsZero() {
		update = bson.D{{Key: "$set", Value: bson.D{{Key: "announce_at", Value: until}}}}
	}
	// In one order for everybody, as in LaneMarkMany.
	rows = slices.SortedFunc(slices.Values(rows), func(a, b trigger.Effect) int { return cmp.Compare(a.ID, b.ID) })
	models := make([]mongo.WriteModel, len(rows))
	for i := range rows {
		row := &rows[i]
		models[i] = mongo.NewUpdateOneModel().SetUpdate(update).SetFilter(bson.D{
			{Key: "_id", Value: row.ID},
			{Key: "tenant_id", Value: row.TenantID},
			{Key: "claim_id", Value: claimOrNone(row.ClaimID)},
			{Key: "state", Value: row.State},
			{Key: "announce_at", Value: row.AnnounceAt},
		})
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	if _, err := s.db.Collection(collEffects).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("mark %d rows announced: %w", len(rows), err)
	}
	return nil
}

// EffectsToAnnounce implements trigger.Retention.
func (s *Store) EffectsToAnnounce(ctx context.Context, tenantID string, ids []string) ([]string, error) {
	rows, err := findAll[trigger.EffectSeq](ctx, s, collEffects, bson.D{
		{Key: "_id", Value: in(ids)}, {Key: "tenant_id", Value: tenantID}, {Key: "announce_at", Value: exists},
	}, options.Find().SetProjection(asc("id")))
	if err != nil {
		return nil, fmt.Errorf("rows to announce among %d of %s: %w", len(ids), tenantID, err)
	}
	open := make([]string, len(rows))
	for i := range rows {
		open[i] = rows[i].ID
	}
	return open, nil
}
