package boardmongo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// headDoc is a tenant's head as stored.
type headDoc struct {
	Key          string `bson:"_id"`
	trigger.Head `bson:",inline"`
}

// SeqAllocate implements trigger.EventLog. DrainAfter becomes the time since
// when the head is dirty.
func (s *Store) SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (int64, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	set := bson.D{
		{Key: "seq", Value: bson.D{{Key: "$add", Value: bson.A{"$seq", int64(n)}}}},
		{Key: "dirty", Value: true},
		{Key: "drain_after", Value: bson.D{{Key: "$cond", Value: bson.A{"$dirty", "$drain_after", "$$NOW"}}}},
	}
	if lost {
		doubled := bson.D{{Key: "$multiply", Value: bson.A{
			bson.D{{Key: "$max", Value: bson.A{bson.D{{Key: "$ifNull", Value: bson.A{"$patience_ms", int64(0)}}}, trigger.HoleWaitDefault.Milliseconds()}}}, int64(2),
		}}}
		set = append(set, bson.E{Key: "patience_ms", Value: bson.D{{Key: "$min", Value: bson.A{doubled, trigger.PatienceMax.Milliseconds()}}}})
	}
	var head headDoc
	err := s.db.Collection(collHeads).FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: tenantID}}, mongo.Pipeline{{{Key: "$set", Value: set}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After).SetProjection(asc("seq"))).Decode(&head)
	if errors.Is(err, mongo.ErrNoDocuments) {
		err = tracker.ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("allocate %d seqs of %s: %w", n, tenantID, err)
	}
	return head.Seq - int64(n) + 1, nil
}

// HeadLift implements trigger.Heads (T4).
func (s *Store) HeadLift(ctx context.Context, tenantID string) (trigger.Lifted, error) {
	for range 10 {
		have, err := s.HeadGet(ctx, tenantID)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return trigger.Lifted{}, err
		}
		lowest, highest, known, err := s.seqsKnown(ctx, tenantID)
		if err != nil {
			return trigger.Lifted{}, fmt.Errorf("lift head of %s: %w", tenantID, err)
		}
		next := trigger.LiftHead(have, tenantID, lowest, highest, known)
		out := trigger.Lifted{Created: have == nil, Log: highest > 0, To: next.Seq}
		if have != nil {
			out.From = have.Seq
			if next.Seq == have.Seq && next.Dirty == have.Dirty {
				return out, nil
			}
		}
		next.DrainAfter = s.Now()
		switch stands, err := s.headPut(ctx, have, next); {
		case err != nil:
			return trigger.Lifted{}, fmt.Errorf("lift head of %s: %w", tenantID, err)
		case stands:
			return out, nil
		}
	}
	return trigger.Lifted{}, fmt.Errorf("lift head of %s: it does not hold still", tenantID)
}

// headPut writes a lifted head, if it still is as it was read.
func (s *Store) headPut(ctx context.Context, have *trigger.Head, next trigger.Head) (bool, error) {
	if have != nil {
		return s.updateOne(ctx, collHeads, bson.D{
			{Key: "_id", Value: next.TenantID}, {Key: "seq", Value: have.Seq}, {Key: "cursor", Value: have.Cursor},
		}, bson.D{{Key: "$set", Value: bson.D{
			{Key: "seq", Value: next.Seq}, {Key: "cursor", Value: next.Cursor}, {Key: "dirty", Value: next.Dirty}, {Key: "drain_after", Value: next.DrainAfter},
		}}})
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collHeads).InsertOne(ctx, headDoc{next.TenantID, next})
	if mongo.IsDuplicateKeyError(err) {
		return false, nil // another replica made it
	}
	return err == nil, err
}

// seqsKnown reads which seqs a tenant's log, rows and subscriptions know.
func (s *Store) seqsKnown(ctx context.Context, tenantID string) (lowest, highest, known int64, err error) {
	// Keys hold the seq, and every server reads them in their order: no log is
	// sorted for its first and last event.
	for order, seq := range map[int]*int64{1: &lowest, -1: &highest} {
		events, err := findAll[seqOnly](ctx, s, collEvents, append(keyRange(tenantID+"/"), bson.E{Key: "tenant_id", Value: tenantID}),
			options.Find().SetSort(bson.D{{Key: "_id", Value: order}}).SetLimit(1).SetProjection(asc("seq")))
		if err != nil {
			return 0, 0, 0, err
		}
		for _, e := range events {
			*seq = e.Seq
		}
	}
	// A row's key begins with its event's.
	rows, err := findAll[trigger.EffectSeq](ctx, s, collEffects, keyRange(tenantID+"/"),
		options.Find().SetSort(bson.D{{Key: "_id", Value: -1}}).SetLimit(1).SetProjection(asc("id", "event_seq")))
	if err != nil {
		return 0, 0, 0, err
	}
	for _, row := range rows {
		known = max(known, row.EventSeq)
	}
	subs, err := s.SubscriptionList(ctx, tenantID)
	if err != nil {
		return 0, 0, 0, err
	}
	for i := range subs {
		known = max(known, subs[i].ActiveFromSeq)
	}
	projections, err := s.ProjectionList(ctx, tenantID)
	if err != nil {
		return 0, 0, 0, err
	}
	for i := range projections {
		known = max(known, projections[i].ActiveFromSeq)
	}
	return lowest, highest, known, nil
}

type seqOnly struct {
	Seq int64 `json:"seq"`
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
	now := s.Now()
	for i := range events {
		docs[i] = doc[trigger.Event]{events[i].ID(), events[i]}
		docs[i].V.LoggedAt = now
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEvents).InsertMany(ctx, docs)
	if mongo.IsDuplicateKeyError(err) {
		return fmt.Errorf("insert %d events of %s: %w", len(events), tenantID, trigger.ErrEventExists)
	}
	if contended(err) {
		return fmt.Errorf("insert %d events of %s: %w: %w", len(events), tenantID, trigger.ErrContended, err)
	}
	if err != nil {
		return fmt.Errorf("insert %d events of %s: %w", len(events), tenantID, err)
	}
	return nil
}

// EventFillVoids implements trigger.EventLog.
func (s *Store) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	docs := make([]doc[trigger.Event], len(seqs))
	now := s.Now()
	for i, seq := range seqs {
		void := trigger.VoidEvent(tenantID, seq)
		void.LoggedAt = now
		docs[i] = doc[trigger.Event]{void.ID(), void}
	}
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEvents).InsertMany(ctx, docs, options.InsertMany().SetOrdered(false))
	if err != nil && !onlyDuplicates(err) {
		return fmt.Errorf("give up %d seqs of %s: %w", len(seqs), tenantID, err)
	}
	return nil
}

// EventSeqs implements trigger.EventLog.
func (s *Store) EventSeqs(ctx context.Context, tenantID string, after, upTo int64) ([]int64, error) {
	events, err := findAll[seqOnly](ctx, s, collEvents, seqRange(tenantID, after, upTo), options.Find().SetProjection(asc("seq")))
	if err != nil {
		return nil, fmt.Errorf("seqs of %s after %d: %w", tenantID, after, err)
	}
	out := make([]int64, len(events))
	for i, e := range events {
		out[i] = e.Seq
	}
	slices.Sort(out)
	return out, nil
}

func seqRange(tenantID string, after, upTo int64) bson.D {
	return bson.D{
		{Key: "tenant_id", Value: tenantID},
		{Key: "seq", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lte", Value: upTo}}},
	}
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

// contended reports whether the server ended a write because it and another
// waited for each other, and nothing else: MongoDB's WriteConflict, or
// PostgreSQL's deadlock_detected (40P01) and serialization_failure (40001),
// which DocumentDB passes on as MAKE_SQLSTATE packs them, six bits a character.
// The documents before it in an ordered write are in, it and those after it are
// not.
func contended(err error) bool {
	is := func(code int) bool {
		return code == 112 || code == 4|('P'-'0')<<12|1<<24 || code == 4|1<<24
	}
	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) {
		return bulk.WriteConcernError == nil && len(bulk.WriteErrors) > 0 &&
			!slices.ContainsFunc(bulk.WriteErrors, func(we mongo.BulkWriteError) bool { return !is(we.Code) })
	}
	var one mongo.WriteException
	return errors.As(err, &one) && one.WriteConcernError == nil && len(one.WriteErrors) > 0 &&
		!slices.ContainsFunc(one.WriteErrors, func(we mongo.WriteError) bool { return !is(we.Code) })
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
	events, err := s.eventsFind(ctx, tenantID, seqRange(tenantID, after, upTo), options.Find())
	if err != nil {
		return nil, fmt.Errorf("list events of %s after %d: %w", tenantID, after, err)
	}
	// The range bounds the read, so it is sorted here.
	slices.SortFunc(events, func(a, b trigger.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	return events, nil
}

// eventsFind reads events. Each is decoded on its own, so that one that can't
// be does not hide the others (T5).
func (s *Store) eventsFind(ctx context.Context, tenantID string, filter bson.D, opts *options.FindOptionsBuilder) ([]trigger.Event, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(collEvents).Find(ctx, filter, opts.SetBatchSize(findBatch))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	var events []trigger.Event
	for cur.Next(ctx) {
		var d doc[trigger.Event]
		if err := cur.Decode(&d); err != nil {
			seq, ok := cur.Current.Lookup("seq").AsInt64OK()
			if !ok {
				return nil, fmt.Errorf("an event without a seq: %w", err)
			}
			d.V = trigger.Event{TenantID: tenantID, Seq: seq, Undecodable: err.Error()}
		}
		events = append(events, d.V)
	}
	return events, cur.Err()
}
