package boardmongo

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// EventsRemovable implements trigger.Retention.
func (s *Store) EventsRemovable(ctx context.Context, tenantID string, upTo int64, before time.Time, limit int) ([]trigger.EventRef, error) {
	// By key, which has the order of the seqs on every server, so that a page
	// of a long log is read without sorting all of it; and without asking for
	// the time, which would read all of a log that has nothing to be removed.
	events, err := findAll[loggedRef](ctx, s, collEvents, bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gte", Value: tenantID + "/"}, {Key: "$lte", Value: trigger.EventID(tenantID, upTo)}}},
		{Key: "tenant_id", Value: tenantID},
	}, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetProjection(asc("seq", "eid", "logged_at")))
	if err != nil {
		return nil, fmt.Errorf("removable events of %s: %w", tenantID, err)
	}
	var refs []trigger.EventRef
	old := 0
	for _, e := range events {
		at, ok := e.LoggedAt.TimeOK()
		if ok && !at.Before(before) {
			break
		}
		refs = append(refs, trigger.EventRef{Seq: e.Seq, EID: e.EID})
		if ok {
			old = len(refs)
		}
	}
	// One that tells no time, of a foreign emitter, is as old as those after it.
	return refs[:old], nil
}

type loggedRef struct {
	Seq      int64         `json:"seq"`
	EID      string        `json:"eid"`
	LoggedAt bson.RawValue `json:"logged_at"`
}

// EventRemoveMany implements trigger.Retention.
func (s *Store) EventRemoveMany(ctx context.Context, tenantID string, seqs []int64) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	if _, err := s.db.Collection(collEvents).DeleteMany(ctx, bson.D{{Key: "tenant_id", Value: tenantID}, {Key: "seq", Value: in(seqs)}}); err != nil {
		return fmt.Errorf("remove %d events of %s: %w", len(seqs), tenantID, err)
	}
	return nil
}

var overStates = []trigger.State{trigger.StateDone, trigger.StateDiscarded}

// EffectsSettledBefore implements trigger.Retention.
func (s *Store) EffectsSettledBefore(ctx context.Context, tenantID string, before time.Time, afterID string, limit int) ([]trigger.EffectSeq, error) {
	rows, err := findAll[trigger.EffectSeq](ctx, s, collEffects, bson.D{
		{Key: "tenant_id", Value: tenantID},
		{Key: "state", Value: in(overStates)},
		{Key: "updated_at", Value: bson.D{{Key: "$lt", Value: before}}},
		{Key: "kind", Value: knownKinds},
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: afterID}}},
		{Key: "expire_at", Value: bson.D{{Key: "$exists", Value: false}}},
	}, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetProjection(asc("id", "event_seq", "card_id", "consume")))
	if err != nil {
		return nil, fmt.Errorf("done rows of %s: %w", tenantID, err)
	}
	return rows, nil
}

// EffectsOpen implements trigger.Retention.
func (s *Store) EffectsOpen(ctx context.Context, tenantID string, ids []string) ([]string, error) {
	rows, err := findAll[trigger.EffectSeq](ctx, s, collEffects, bson.D{
		{Key: "_id", Value: in(ids)}, {Key: "tenant_id", Value: tenantID}, {Key: "state", Value: bson.D{{Key: "$nin", Value: overStates}}},
	}, options.Find().SetProjection(asc("id")))
	if err != nil {
		return nil, fmt.Errorf("open ones of %d rows of %s: %w", len(ids), tenantID, err)
	}
	open := make([]string, len(rows))
	for i, row := range rows {
		open[i] = row.ID
	}
	return open, nil
}

// EffectExpireMany implements trigger.Retention: the TTL index acts on the
// date that is set here.
func (s *Store) EffectExpireMany(ctx context.Context, tenantID string, ids []string) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEffects).UpdateMany(ctx, bson.D{
		{Key: "_id", Value: in(ids)}, {Key: "tenant_id", Value: tenantID}, {Key: "state", Value: in(overStates)}, {Key: "kind", Value: knownKinds},
	}, bson.D{{Key: "$set", Value: bson.D{{Key: "expire_at", Value: s.Now()}}}})
	if err != nil {
		return fmt.Errorf("expire %d rows of %s: %w", len(ids), tenantID, err)
	}
	return nil
}
