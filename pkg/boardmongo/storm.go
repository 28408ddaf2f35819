package boardmongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// EffectsOfCards implements trigger.EffectOutbox.
func (s *Store) EffectsOfCards(ctx context.Context, p trigger.CardEffectsParams) ([]trigger.Effect, error) {
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, bson.D{
		{Key: "tenant_id", Value: p.TenantID},
		{Key: "card_id", Value: in(p.CardIDs)},
		{Key: "claimed_at", Value: bson.D{{Key: "$gte", Value: p.ClaimedSince}}},
		{Key: "kind", Value: in([]any{trigger.KindLaunch, "", nil})},
	}, withoutBodies().SetSort(bson.D{{Key: "event_seq", Value: -1}}).SetLimit(int64(p.Limit)))
	if err != nil {
		return nil, fmt.Errorf("launches of %d cards of %s: %w", len(p.CardIDs), p.TenantID, err)
	}
	return rows, nil
}

// EffectMatches implements trigger.EffectOutbox.
func (s *Store) EffectMatches(ctx context.Context, p trigger.MatchesParams) ([]trigger.Match, error) {
	type row struct {
		EventSeq int64 `json:"event_seq"`
		Event    struct {
			EID  string    `json:"eid"`
			At   time.Time `json:"at"`
			Bulk string    `json:"bulk"`
		} `json:"event"`
	}
	rows, err := findAll[row](ctx, s, collEffects, bson.D{
		{Key: "tenant_id", Value: p.TenantID},
		{Key: "subscription_id", Value: p.SubscriptionID},
		{Key: "event.at", Value: bson.D{{Key: "$gte", Value: p.Since}}},
		{Key: "outcome", Value: bson.D{{Key: "$ne", Value: trigger.OutcomeLoopCut}}},
	}, options.Find().SetProjection(asc("event_seq", "event.eid", "event.at", "event.bulk")))
	if err != nil {
		return nil, fmt.Errorf("matches of subscription %s/%s: %w", p.TenantID, p.SubscriptionID, err)
	}
	// The seqs are compared here: asked for them too, a server would rather go
	// through all rows since the first of them than through the latest minutes.
	out := make([]trigger.Match, 0, len(rows))
	for _, r := range rows {
		if r.EventSeq > p.AfterSeq && r.EventSeq <= p.UpToSeq {
			out = append(out, trigger.NewMatch(r.EventSeq, r.Event.At, r.Event.EID, r.Event.Bulk))
		}
	}
	return out, nil
}

// EffectHeldCount implements trigger.EffectOutbox.
func (s *Store) EffectHeldCount(ctx context.Context, tenantID, subscriptionID string, upTo int64) (int, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	n, err := s.db.Collection(collEffects).CountDocuments(ctx, bson.D{
		{Key: "tenant_id", Value: tenantID},
		{Key: "subscription_id", Value: subscriptionID},
		{Key: "state", Value: trigger.StateHeld},
		{Key: "event_seq", Value: bson.D{{Key: "$lte", Value: upTo}}},
	})
	if err != nil {
		return 0, fmt.Errorf("held rows of subscription %s/%s: %w", tenantID, subscriptionID, err)
	}
	return int(n), nil
}

// SubscriptionsBehind implements trigger.Config.
func (s *Store) SubscriptionsBehind(ctx context.Context, limit int) ([]trigger.SubscriptionKey, error) {
	type row struct {
		TenantID string `json:"tenant_id"`
		ID       string `json:"id"`
	}
	rows, err := findAll[row](ctx, s, collSubscriptions, bson.D{
		{Key: "guard.held_from", Value: bson.D{{Key: "$exists", Value: true}, {Key: "$gt", Value: 0}}},
		{Key: "paused", Value: bson.D{{Key: "$ne", Value: true}}},
	}, options.Find().SetLimit(int64(limit)).SetProjection(asc("tenant_id", "id")))
	if err != nil {
		return nil, fmt.Errorf("subscriptions with a range to match: %w", err)
	}
	out := make([]trigger.SubscriptionKey, len(rows))
	for i, r := range rows {
		out[i] = trigger.SubscriptionKey{TenantID: r.TenantID, SubscriptionID: r.ID}
	}
	return out, nil
}
