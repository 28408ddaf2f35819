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

// LaneMarkMany implements trigger.Lanes.
func (s *Store) LaneMarkMany(ctx context.Context, marks []trigger.LaneMark) error {
	if len(marks) == 0 {
		return nil
	}
	// Servers may lock each document until the command ends: in one order for
	// everybody, no two commands wait for each other.
	marks = slices.SortedFunc(slices.Values(marks), func(a, b trigger.LaneMark) int {
		return cmp.Compare(docKey(a.TenantID, a.Lane), docKey(b.TenantID, b.Lane))
	})
	models := make([]mongo.WriteModel, len(marks))
	for i, m := range marks {
		models[i] = mongo.NewUpdateOneModel().SetUpsert(true).
			SetFilter(bson.D{{Key: "_id", Value: docKey(m.TenantID, m.Lane)}}).
			SetUpdate(bson.D{
				{Key: "$min", Value: bson.D{{Key: "due_at", Value: m.Due}}},
				{Key: "$inc", Value: bson.D{{Key: "version", Value: int64(1)}}},
				{Key: "$setOnInsert", Value: bson.D{{Key: "tenant_id", Value: m.TenantID}, {Key: "lane", Value: m.Lane}}},
			})
	}
	var err error
	for range 3 {
		err = func() error {
			ctx, cancel := s.op(ctx)
			defer cancel()
			_, err := s.db.Collection(collLanes).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
			return err
		}()
		// Two upserts of a new lane can meet; marking again changes nothing
		// but the version.
		if err == nil || !onlyDuplicates(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mark %d lanes: %w", len(marks), err)
	}
	return nil
}

// LanesDue implements trigger.Lanes.
func (s *Store) LanesDue(ctx context.Context, now time.Time, limit int) ([]trigger.Lane, error) {
	lanes, err := findAll[trigger.Lane](ctx, s, collLanes,
		bson.D{{Key: "due_at", Value: upTo(now)}},
		options.Find().SetSort(asc("due_at")).SetLimit(int64(limit)))
	if err != nil {
		return nil, fmt.Errorf("due lanes: %w", err)
	}
	return lanes, nil
}

// LaneReschedule implements trigger.Lanes.
func (s *Store) LaneReschedule(ctx context.Context, lane trigger.Lane, due time.Time) (bool, error) {
	update := bson.D{{Key: "$set", Value: bson.D{{Key: "due_at", Value: due}}}}
	if due.IsZero() {
		update = bson.D{{Key: "$unset", Value: bson.D{{Key: "due_at", Value: ""}}}}
	}
	return s.updateOne(ctx, collLanes, bson.D{
		{Key: "_id", Value: docKey(lane.TenantID, lane.Lane)}, {Key: "version", Value: lane.Version},
	}, update)
}

// anyTenant matches every tenant. An index that begins with the tenant is used
// only by a query that names it: without, a server scans the collection.
var anyTenant = bson.E{Key: "tenant_id", Value: bson.D{{Key: "$gt", Value: ""}}}

// LanesLate implements trigger.Lanes.
func (s *Store) LanesLate(ctx context.Context) ([]trigger.LaneMark, error) {
	octx, cancel := s.op(ctx)
	defer cancel()
	// Without the hint a server may take tenant_state_updated, which has the
	// rows that are long done, too.
	cur, err := s.db.Collection(collEffects).Aggregate(octx, mongo.Pipeline{
		{{Key: "$match", Value: bson.D{
			anyTenant,
			{Key: "state", Value: in([]trigger.State{trigger.StatePending, trigger.StateClaimed})},
			{Key: "kind", Value: knownKinds},
		}}},
		{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: bson.D{{Key: "tenant_id", Value: "$tenant_id"}, {Key: "lane", Value: "$lane"}}},
			{Key: "due", Value: bson.D{{Key: "$min", Value: "$not_before"}}},
		}}},
	}, options.Aggregate().SetBatchSize(findBatch).SetHint(indexLive))
	if err != nil {
		return nil, fmt.Errorf("lanes with live rows: %w", err)
	}
	var groups []struct {
		ID struct {
			TenantID string `bson:"tenant_id"`
			Lane     string `bson:"lane"`
		} `bson:"_id"`
		Due time.Time `bson:"due"`
	}
	if err := cur.All(octx, &groups); err != nil {
		return nil, fmt.Errorf("lanes with live rows: %w", err)
	}
	var late []trigger.LaneMark
	for chunk := range slices.Chunk(groups, lanesPerRead) {
		keys := make([]string, len(chunk))
		for i, g := range chunk {
			keys[i] = docKey(g.ID.TenantID, g.ID.Lane)
		}
		lanes, err := findAll[trigger.Lane](ctx, s, collLanes, bson.D{{Key: "_id", Value: in(keys)}})
		if err != nil {
			return nil, fmt.Errorf("lanes with live rows: %w", err)
		}
		due := make(map[string]time.Time, len(lanes))
		for _, l := range lanes {
			due[docKey(l.TenantID, l.Lane)] = l.DueAt
		}
		for i, g := range chunk {
			if at := due[keys[i]]; at.IsZero() || at.After(g.Due) {
				late = append(late, trigger.LaneMark{TenantID: g.ID.TenantID, Lane: g.ID.Lane, Due: g.Due.UTC()})
			}
		}
	}
	return late, nil
}

// lanesPerRead is how many lanes are looked up by one command.
const lanesPerRead = 1000
