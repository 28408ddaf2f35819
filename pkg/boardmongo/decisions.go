package boardmongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// decideTries bounds how often one decision is computed anew because the row
// changed in between.
const decideTries = 5

// EffectDecide implements trigger.EffectOutbox. The write names the state, the
// claim id and the time of the last write that the decision was computed from.
func (s *Store) EffectDecide(ctx context.Context, d trigger.Decision) (*trigger.Effect, error) {
	var lastErr error
	for range decideTries {
		row, err := s.EffectGet(ctx, d.TenantID, d.EffectID)
		if err != nil {
			return nil, errors.Join(lastErr, err)
		}
		if row.Decided(d.ID) {
			return row, nil
		}
		next, err := d.Apply(*row)
		if err != nil {
			return nil, err
		}
		set := bson.D{
			{Key: "state", Value: next.State},
			{Key: "not_before", Value: next.NotBefore},
			{Key: "updated_at", Value: next.UpdatedAt},
			{Key: "lane", Value: next.Lane},
			{Key: "claim_id", Value: next.ClaimID},
			{Key: "attempts", Value: next.Attempts},
			{Key: "generation", Value: next.Generation},
			{Key: "history", Value: next.History},
		}
		unset := bson.D{{Key: "expire_at", Value: ""}}
		for _, f := range []struct {
			key   string
			value any
			empty bool
		}{
			{"outcome", next.Outcome, next.Outcome == ""},
			{"reason", next.Reason, next.Reason == ""},
			{"run_id", next.RunID, next.RunID == ""},
			{"rendered", next.Rendered, next.Rendered == ""},
			{"delivery_started_at", next.DeliveryStartedAt, next.DeliveryStartedAt.IsZero()},
			{"done_at", next.DoneAt, next.DoneAt.IsZero()},
			{"announce_at", next.AnnounceAt, next.AnnounceAt.IsZero()},
		} {
			if f.empty {
				unset = append(unset, bson.E{Key: f.key, Value: ""})
			} else {
				set = append(set, bson.E{Key: f.key, Value: f.value})
			}
		}
		ok, err := s.updateOne(ctx, collEffects, bson.D{
			{Key: "_id", Value: row.ID},
			{Key: "tenant_id", Value: row.TenantID},
			{Key: "state", Value: row.State},
			{Key: "updated_at", Value: row.UpdatedAt},
			{Key: "claim_id", Value: claimOrNone(row.ClaimID)},
		}, bson.D{{Key: "$set", Value: set}, {Key: "$unset", Value: unset}})
		if ok && err == nil {
			return &next, nil
		}
		lastErr = err // the next read decides
	}
	if lastErr == nil {
		lastErr = tracker.ErrConflict
	}
	return nil, fmt.Errorf("%s %s: %w", d.Action, d.EffectID, lastErr)
}

// claimOrNone matches a row's claim id as it was read: a row that was never
// claimed has none.
func claimOrNone(id string) any {
	if id == "" {
		return in([]any{nil, ""})
	}
	return id
}

// EffectsHeld implements trigger.EffectOutbox.
func (s *Store) EffectsHeld(ctx context.Context, after trigger.SubscriptionKey, limit int) ([]trigger.SubscriptionKey, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(collEffects).Aggregate(ctx, mongo.Pipeline{
		// Every held row has a subscription; naming it leaves no doubt about
		// the index.
		{{Key: "$match", Value: bson.D{
			anyTenant, {Key: "subscription_id", Value: bson.D{{Key: "$gt", Value: ""}}}, {Key: "state", Value: trigger.StateHeld},
		}}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: bson.D{
			{Key: "tenant_id", Value: "$tenant_id"}, {Key: "subscription_id", Value: "$subscription_id"},
		}}}}},
		{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "_id.tenant_id", Value: bson.D{{Key: "$gt", Value: after.TenantID}}}},
			bson.D{{Key: "_id.tenant_id", Value: after.TenantID}, {Key: "_id.subscription_id", Value: bson.D{{Key: "$gt", Value: after.SubscriptionID}}}},
		}}}}},
		{{Key: "$sort", Value: asc("_id.tenant_id", "_id.subscription_id")}},
		{{Key: "$limit", Value: limit}},
	})
	if err != nil {
		return nil, fmt.Errorf("subscriptions with held rows: %w", err)
	}
	var groups []struct {
		ID trigger.SubscriptionKey `bson:"_id"`
	}
	if err := cur.All(ctx, &groups); err != nil {
		return nil, fmt.Errorf("subscriptions with held rows: %w", err)
	}
	out := make([]trigger.SubscriptionKey, len(groups))
	for i, g := range groups {
		out[i] = g.ID
	}
	return out, nil
}

func pauseKey(tenantID, botID string) string {
	switch {
	case tenantID == "":
		return "*"
	case botID == "":
		return tenantID
	}
	return docKey(tenantID, botID)
}

// PauseList implements trigger.Pauses.
func (s *Store) PauseList(ctx context.Context) ([]trigger.Pause, error) {
	return findAll[trigger.Pause](ctx, s, collPauses, bson.D{}, options.Find().SetSort(asc("tenant_id", "bot_id")))
}

// PauseSet implements trigger.Pauses.
func (s *Store) PauseSet(ctx context.Context, p trigger.Pause) error {
	if p.TenantID == "" && p.BotID != "" {
		return tracker.Fieldf("tenant", "is required with a bot")
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collPauses).InsertOne(ctx, doc[trigger.Pause]{pauseKey(p.TenantID, p.BotID), p})
	if err != nil && !mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("pause %s: %w", pauseKey(p.TenantID, p.BotID), err)
	}
	return nil
}

// PauseClear implements trigger.Pauses.
func (s *Store) PauseClear(ctx context.Context, tenantID, botID string) (bool, error) {
	if tenantID == "" && botID != "" {
		return false, tracker.Fieldf("tenant", "is required with a bot")
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	res, err := s.db.Collection(collPauses).DeleteOne(ctx, bson.D{{Key: "_id", Value: pauseKey(tenantID, botID)}})
	if err != nil {
		return false, fmt.Errorf("resume %s: %w", pauseKey(tenantID, botID), err)
	}
	return res.DeletedCount > 0, nil
}

// BulkCreate implements trigger.Bulks.
func (s *Store) BulkCreate(ctx context.Context, b *trigger.Bulk) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collBulks).InsertOne(ctx, doc[trigger.Bulk]{docKey(b.TenantID, b.ID), *b})
	if mongo.IsDuplicateKeyError(err) {
		err = tracker.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("bulk decision %s: %w", b.ID, err)
	}
	return nil
}

// BulkGet implements trigger.Bulks.
func (s *Store) BulkGet(ctx context.Context, tenantID, id string) (*trigger.Bulk, error) {
	return findOne[trigger.Bulk](ctx, s, collBulks, append(byKey(tenantID, id), s.bulkKept()))
}

// bulkKept leaves out what the TTL index has not come to yet.
func (s *Store) bulkKept() bson.E {
	return bson.E{Key: "created_at", Value: bson.D{{Key: "$gte", Value: s.Now().Add(-trigger.BulkKept)}}}
}

// BulkAdvance implements trigger.Bulks.
func (s *Store) BulkAdvance(ctx context.Context, tenantID, id string, from, to, applied, refused int) (bool, error) {
	return s.updateOne(ctx, collBulks,
		append(byKey(tenantID, id), s.bulkKept(), bson.E{Key: "next", Value: from}),
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "next", Value: to}}},
			{Key: "$inc", Value: bson.D{{Key: "applied", Value: applied}, {Key: "refused", Value: refused}}},
		})
}

// BulkStop implements trigger.Bulks.
func (s *Store) BulkStop(ctx context.Context, tenantID, id string) error {
	ok, err := s.updateOne(ctx, collBulks, append(byKey(tenantID, id), s.bulkKept()), bson.D{{Key: "$set", Value: bson.D{{Key: "stopped", Value: true}}}})
	if err == nil && !ok {
		err = tracker.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("stop bulk decision %s: %w", id, err)
	}
	return nil
}
