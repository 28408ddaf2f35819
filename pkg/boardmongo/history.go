package boardmongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// historyWindow is how many seqs the first read of newestFirst spans; each
// further one spans four times as many as the one before.
const historyWindow = 1000

// newestFirst reads up to limit documents with seq < before, newest first.
// Not every server reads an index in its order: it would sort all of a card's
// or a subscription's documents for a page of the newest. So it is asked for
// spans of seqs, from the newest on: a span holds no more documents than seqs,
// and few reads reach the beginning.
func newestFirst[T any](before int64, limit int, find func(seqs bson.D, limit int) ([]T, error)) (out []T, err error) {
	for width := int64(max(historyWindow, limit)); before > 1 && len(out) < limit; width *= 4 {
		from := max(before-width, 1)
		// Partial indexes ask for what is there: see upTo.
		seqs := bson.D{{Key: "$exists", Value: true}, {Key: "$gte", Value: from}, {Key: "$lt", Value: before}}
		page, err := find(seqs, limit-len(out))
		if err != nil {
			return nil, err
		}
		out, before = append(out, page...), from
	}
	return out, nil
}

// EventListByCard implements trigger.EventLog.
func (s *Store) EventListByCard(ctx context.Context, tenantID, cardID string, before int64, limit int) ([]trigger.Event, error) {
	events, err := newestFirst(before, limit, func(seqs bson.D, limit int) ([]trigger.Event, error) {
		return s.eventsFind(ctx, tenantID, bson.D{
			{Key: "tenant_id", Value: tenantID}, {Key: "card_id", Value: cardID}, {Key: "seq", Value: seqs},
		}, options.Find().SetSort(bson.D{{Key: "seq", Value: -1}}).SetLimit(int64(limit)))
	})
	if err != nil {
		return nil, fmt.Errorf("list events of card %s/%s before %d: %w", tenantID, cardID, before, err)
	}
	for i := range events {
		events[i].CardID = cardID // of one that can't be decoded, too
	}
	return events, nil
}

// EffectListBySubscription implements trigger.EffectOutbox.
func (s *Store) EffectListBySubscription(ctx context.Context, tenantID, subscriptionID string, before int64, limit int) ([]trigger.Effect, error) {
	rows, err := newestFirst(before, limit, func(seqs bson.D, limit int) ([]trigger.Effect, error) {
		return findAll[trigger.Effect](ctx, s, collEffects, bson.D{
			{Key: "tenant_id", Value: tenantID}, {Key: "subscription_id", Value: subscriptionID}, {Key: "event_seq", Value: seqs},
		}, withoutBodies().SetSort(bson.D{{Key: "event_seq", Value: -1}}).SetLimit(int64(limit)))
	})
	if err != nil {
		return nil, fmt.Errorf("list effects of subscription %s/%s before %d: %w", tenantID, subscriptionID, before, err)
	}
	return rows, nil
}

// EffectListByCard implements trigger.EffectOutbox.
func (s *Store) EffectListByCard(ctx context.Context, tenantID, cardID string, after trigger.EffectKey, limit int) ([]trigger.Effect, error) {
	find := func(seqs bson.D, limit int, more ...bson.E) ([]trigger.Effect, error) {
		return findAll[trigger.Effect](ctx, s, collEffects, append(bson.D{
			{Key: "tenant_id", Value: tenantID}, {Key: "card_id", Value: cardID}, {Key: "event_seq", Value: seqs},
		}, more...), withoutBodies().SetSort(bson.D{{Key: "event_seq", Value: -1}, {Key: "_id", Value: -1}}).SetLimit(int64(limit)))
	}
	fail := func(err error) ([]trigger.Effect, error) {
		return nil, fmt.Errorf("list effects of card %s/%s after %d: %w", tenantID, cardID, after.EventSeq, err)
	}
	var rows []trigger.Effect
	if after.ID != "" { // the others of its event
		var err error
		rows, err = find(bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: after.EventSeq}}, limit, bson.E{Key: "_id", Value: bson.D{{Key: "$lt", Value: after.ID}}})
		if err != nil {
			return fail(err)
		}
	}
	older, err := newestFirst(after.EventSeq, limit-len(rows), func(seqs bson.D, limit int) ([]trigger.Effect, error) { return find(seqs, limit) })
	if err != nil {
		return fail(err)
	}
	return append(rows, older...), nil
}
