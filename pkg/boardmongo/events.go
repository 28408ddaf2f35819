package boardmongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// headDoc is a tenant's head as stored.
type headDoc struct {
	TenantID   string    `bson:"_id"`
	Seq        int64     `bson:"seq"`
	Cursor     int64     `bson:"cursor"`
	Dirty      bool      `bson:"dirty"`
	DrainAfter time.Time `bson:"drain_after"`
}

// SeqAllocate implements trigger.EventLog.
func (s *Store) SeqAllocate(ctx context.Context, tenantID string, n int) (int64, error) {
	for range 3 {
		last, err := s.seqIncrement(ctx, tenantID, n)
		if err == nil {
			return last - int64(n) + 1, nil
		}
		if !errors.Is(err, mongo.ErrNoDocuments) {
			return 0, fmt.Errorf("allocate %d seqs of %s: %w", n, tenantID, err)
		}
		if err := s.headCreate(ctx, tenantID); err != nil {
			return 0, fmt.Errorf("make head of %s: %w", tenantID, err)
		}
	}
	return 0, fmt.Errorf("allocate %d seqs of %s: the head does not stay", n, tenantID)
}

func (s *Store) seqIncrement(ctx context.Context, tenantID string, n int) (int64, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	var head headDoc
	err := s.db.Collection(collHeads).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: tenantID}}, bson.D{
		{Key: "$inc", Value: bson.D{{Key: "seq", Value: int64(n)}}},
		{Key: "$set", Value: bson.D{{Key: "dirty", Value: true}}},
	}, options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&head)
	return head.Seq, err
}

// headCreate makes the head of a tenant that has none, from what the database
// knows of the tenant (T4).
func (s *Store) headCreate(ctx context.Context, tenantID string) error {
	var logged []int64
	for _, order := range []int{1, -1} {
		events, err := findAll[trigger.Event](ctx, s, collEvents, bson.D{{Key: "tenant_id", Value: tenantID}},
			options.Find().SetSort(bson.D{{Key: "tenant_id", Value: order}, {Key: "seq", Value: order}}).SetLimit(1))
		if err != nil {
			return err
		}
		for _, e := range events {
			logged = append(logged, e.Seq)
		}
	}
	// A row's key holds its event's seq: the last key of the tenant has the
	// highest.
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, keyRange(tenantID+"/"),
		options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetLimit(1))
	if err != nil {
		return err
	}
	var known int64
	for _, row := range rows {
		known = max(known, row.EventSeq)
	}
	subs, err := s.SubscriptionList(ctx, tenantID)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		known = max(known, sub.ActiveFromSeq)
	}
	head := trigger.SeedHead(tenantID, logged, known)
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err = s.db.Collection(collHeads).InsertOne(ctx, headDoc{TenantID: tenantID, Seq: head.Seq, Cursor: head.Cursor, Dirty: head.Dirty, DrainAfter: s.Now()})
	if mongo.IsDuplicateKeyError(err) {
		return nil // another replica made it
	}
	return err
}

// keyRange is the filter of all keys with a prefix.
func keyRange(prefix string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: prefixEnd(prefix)}}}}
}

// prefixEnd is the first key after all keys with an ASCII prefix.
func prefixEnd(prefix string) string {
	last := len(prefix) - 1
	return prefix[:last] + string(prefix[last]+1)
}

// EventInsertMany implements trigger.EventLog (E2): one ordered insert.
func (s *Store) EventInsertMany(ctx context.Context, tenantID string, events []trigger.Event) error {
	docs := make([]doc[trigger.Event], len(events))
	for i := range events {
		docs[i] = doc[trigger.Event]{events[i].ID(), events[i]}
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEvents).InsertMany(ctx, docs)
	if mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("insert %d events of %s: %w", len(events), tenantID, trigger.ErrEventExists)
	}
	if err != nil {
		return fmt.Errorf("insert %d events of %s: %w", len(events), tenantID, err)
	}
	return nil
}

// EventFillVoids implements trigger.EventLog.
func (s *Store) EventFillVoids(ctx context.Context, tenantID string, first, last int64) error {
	var docs []doc[trigger.Event]
	for seq := first; seq <= last; seq++ {
		void := trigger.VoidEvent(tenantID, seq)
		docs = append(docs, doc[trigger.Event]{void.ID(), void})
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEvents).InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	if err != nil && !onlyDuplicates(err) {
		return fmt.Errorf("give up seqs %d to %d of %s: %w", first, last, tenantID, err)
	}
	return nil
}

// onlyDuplicates reports whether all that went wrong with an insert is that
// some of its documents were there.
func onlyDuplicates(err error) bool {
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || bulk.WriteConcernError != nil {
		return false
	}
	for _, we := range bulk.WriteErrors {
		if !mongo.IsDuplicateKeyError(we.WriteError) {
			return false
		}
	}
	return len(bulk.WriteErrors) > 0
}

// EventSeqsByEID implements trigger.EventLog.
func (s *Store) EventSeqsByEID(ctx context.Context, tenantID string, eids []string) (map[string]int64, error) {
	events, err := findAll[trigger.Event](ctx, s, collEvents, bson.D{
		{Key: "tenant_id", Value: tenantID}, {Key: "eid", Value: bson.D{{Key: "$in", Value: eids}}},
	}, options.Find().SetProjection(asc("eid", "seq")))
	if err != nil {
		return nil, fmt.Errorf("look up %d events of %s: %w", len(eids), tenantID, err)
	}
	out := make(map[string]int64, len(events))
	for _, e := range events {
		out[e.EID] = e.Seq
	}
	return out, nil
}

// EventList implements trigger.EventLog.
func (s *Store) EventList(ctx context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	events, err := findAll[trigger.Event](ctx, s, collEvents, bson.D{
		{Key: "tenant_id", Value: tenantID},
		{Key: "seq", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lte", Value: upTo}}},
	})
	if err != nil {
		return nil, fmt.Errorf("list events of %s after %d: %w", tenantID, after, err)
	}
	// The range bounds the read, so it is sorted here.
	slices.SortFunc(events, func(a, b trigger.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events, nil
}

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
	return &trigger.Head{TenantID: h.TenantID, Seq: h.Seq, Cursor: h.Cursor, Dirty: h.Dirty}, nil
}

// HeadsDirty implements trigger.Heads.
func (s *Store) HeadsDirty(ctx context.Context, now time.Time, limit int) ([]string, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(collHeads).Find(ctx,
		bson.D{{Key: "dirty", Value: true}, {Key: "drain_after", Value: bson.D{{Key: "$lte", Value: now}}}},
		options.Find().SetSort(asc("drain_after")).SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("dirty heads: %w", err)
	}
	var heads []headDoc
	if err := cur.All(ctx, &heads); err != nil {
		return nil, fmt.Errorf("dirty heads: %w", err)
	}
	out := make([]string, len(heads))
	for i, h := range heads {
		out[i] = h.TenantID
	}
	return out, nil
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
