package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// fleetKey is the one document of its collection.
const fleetKey = "numbers"

// FleetGet implements trigger.FleetCounts.
func (s *Store) FleetGet(ctx context.Context) (*trigger.Fleet, error) {
	return findOne[trigger.Fleet](ctx, s, collFleet, bson.D{{Key: "_id", Value: fleetKey}})
}

// FleetTake implements trigger.FleetCounts. The write's own condition decides
// who counts; the first turn of all goes to whoever inserts the document.
func (s *Store) FleetTake(ctx context.Context, by string, at, ifBefore time.Time) (bool, error) {
	turn := bson.D{{Key: "taken_at", Value: at}, {Key: "taken_by", Value: by}}
	taken, err := s.updateOne(ctx, collFleet, bson.D{{Key: "_id", Value: fleetKey}, {Key: "taken_at", Value: bson.D{{Key: "$lte", Value: ifBefore}}}},
		bson.D{{Key: "$set", Value: turn}})
	if err != nil || taken {
		return taken, err
	}
	if _, err := s.FleetGet(ctx); !errors.Is(err, tracker.ErrNotFound) {
		return false, err
	}
	octx, cancel := s.op(ctx)
	defer cancel()
	_, err = s.db.Collection(collFleet).InsertOne(octx, append(bson.D{{Key: "_id", Value: fleetKey}}, turn...))
	if mongo.IsDuplicateKeyError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", collFleet, err)
	}
	return true, nil
}

// FleetSave implements trigger.FleetCounts.
func (s *Store) FleetSave(ctx context.Context, f *trigger.Fleet) error {
	_, err := s.updateOne(ctx, collFleet, bson.D{
		{Key: "_id", Value: fleetKey}, {Key: "taken_at", Value: f.TakenAt}, {Key: "taken_by", Value: f.TakenBy},
	}, bson.D{{Key: "$set", Value: bson.D{{Key: "counted_at", Value: f.CountedAt}, {Key: "numbers", Value: f.Numbers}}}})
	return err
}

// tally is one group of a bounded count.
type tally struct {
	ID    bson.RawValue `bson:"_id"`
	N     int64         `bson:"n"`
	Least time.Time     `bson:"least"`
	Sum   int64         `bson:"sum"`
	Most  int64         `bson:"most"`
}

// tallies groups the first documents of a filter, up to most of them. The index
// is named, so that no server goes through documents that are not counted.
func (s *Store) tallies(ctx context.Context, coll, index string, filter bson.D, most int, group bson.D) ([]tally, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(coll).Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: filter}},
		{{Key: "$limit", Value: most}},
		{{Key: "$group", Value: append(group, bson.E{Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}})}},
	}, options.Aggregate().SetHint(index))
	if err != nil {
		return nil, fmt.Errorf("count %s for the fleet: %w", coll, err)
	}
	var out []tally
	if err := cur.All(ctx, &out); err != nil {
		return nil, fmt.Errorf("count %s for the fleet: %w", coll, err)
	}
	return out, nil
}

// pausedRows matches the rows whose launches are paused; nil if none are.
func pausedRows(pauses []trigger.Pause) bson.D {
	ofBots := bson.E{Key: "lane", Value: bson.D{{Key: "$gte", Value: trigger.LaneBot("")}, {Key: "$lt", Value: prefixEnd(trigger.LaneBot(""))}}}
	var which bson.A
	for _, p := range pauses {
		switch {
		case p.TenantID == "":
			return bson.D{ofBots}
		case p.BotID == "":
			which = append(which, bson.D{{Key: "tenant_id", Value: p.TenantID}, ofBots})
		default:
			which = append(which, bson.D{{Key: "tenant_id", Value: p.TenantID}, {Key: "lane", Value: trigger.LaneBot(p.BotID)}})
		}
	}
	if which == nil {
		return nil
	}
	return bson.D{{Key: "$or", Value: which}}
}

// FleetCount implements trigger.FleetCounts.
func (s *Store) FleetCount(ctx context.Context, now time.Time, most int) (trigger.FleetNumbers, error) {
	pauses, err := s.PauseList(ctx)
	if err != nil {
		return trigger.FleetNumbers{}, err
	}
	out := trigger.FleetNumbers{Effects: make(map[string]int64), Pauses: trigger.CountPauses(pauses)}
	if err := s.countRows(ctx, &out, now, pauses, most); err != nil {
		return out, err
	}
	// How far each is behind is on the heads that are dirty, and only on those.
	behind, err := s.tallies(ctx, collHeads, indexDirty, bson.D{{Key: "dirty", Value: true}, {Key: "drain_after", Value: exists}}, most, bson.D{
		{Key: "_id", Value: nil},
		{Key: "sum", Value: bson.D{{Key: "$sum", Value: bson.D{{Key: "$subtract", Value: bson.A{"$seq", "$cursor"}}}}}},
		{Key: "most", Value: bson.D{{Key: "$max", Value: bson.D{{Key: "$subtract", Value: bson.A{"$seq", "$cursor"}}}}}},
	})
	if err != nil {
		return out, err
	}
	for _, b := range behind {
		out.TenantsBehind, out.Lag, out.LagWorst = b.N, b.Sum, b.Most
	}
	out.Cap(trigger.FleetTenantsBehind, out.TenantsBehind, most)
	paused, err := s.tallies(ctx, collSubscriptions, indexPaused, bson.D{{Key: "paused", Value: bson.D{{Key: "$exists", Value: true}, {Key: "$eq", Value: true}}}}, most,
		bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: bson.A{"$paused_by", trigger.StormGuard}}}}})
	if err != nil {
		return out, err
	}
	out.PausedSubscriptions = map[string]int64{trigger.PausedByGuard: 0, trigger.PausedByPerson: 0}
	all := int64(0)
	for _, p := range paused {
		by := trigger.PausedByPerson
		if guard, ok := p.ID.BooleanOK(); ok && guard {
			by = trigger.PausedByGuard
		}
		out.PausedSubscriptions[by] += p.N
		all += p.N
	}
	out.Cap(trigger.FleetPausedSubscriptions, all, most)
	return out, nil
}

// countRows counts the rows, of any kind, each state by a read of its own: many
// rows of one don't hide the others, and what is not counted is not read.
func (s *Store) countRows(ctx context.Context, out *trigger.FleetNumbers, now time.Time, pauses []trigger.Pause, most int) error {
	due, later := bson.D{{Key: "$lte", Value: now}}, bson.D{{Key: "$gt", Value: now}}
	live := func(state trigger.State, when bson.D, more ...bson.E) bson.D {
		return append(bson.D{anyTenant, {Key: "state", Value: state}, {Key: "not_before", Value: when}}, more...)
	}
	ready, held := live(trigger.StatePending, due), bson.D(nil)
	if p := pausedRows(pauses); p != nil {
		ready, held = append(ready, bson.E{Key: "$nor", Value: bson.A{p}}), live(trigger.StatePending, due, p...)
	}
	for _, c := range []struct {
		what, index string
		filter      bson.D
	}{
		{trigger.FleetReady, indexLive, ready},
		{trigger.FleetPaused, indexLive, held},
		{trigger.FleetRetrying, indexLive, live(trigger.StatePending, later)},
		{trigger.FleetInFlight, indexLive, live(trigger.StateClaimed, later)},
		{trigger.FleetExpired, indexLive, live(trigger.StateClaimed, due)},
		{trigger.FleetFailed, indexParked, bson.D{anyTenant, {Key: "state", Value: trigger.StateFailed}}},
		{trigger.FleetReconcile, indexParked, bson.D{anyTenant, {Key: "state", Value: trigger.StateReconcile}}},
		{trigger.FleetHeld, indexParked, bson.D{anyTenant, {Key: "state", Value: trigger.StateHeld}}},
	} {
		out.Effects[c.what] = 0
		if c.filter == nil {
			continue
		}
		group := bson.D{{Key: "_id", Value: nil}}
		if c.what == trigger.FleetReady {
			group = append(group, bson.E{Key: "least", Value: bson.D{{Key: "$min", Value: "$not_before"}}})
		}
		found, err := s.tallies(ctx, collEffects, c.index, c.filter, most, group)
		if err != nil {
			return err
		}
		for _, f := range found {
			out.Effects[c.what] = f.N
			if c.what == trigger.FleetReady {
				out.OldestReadySeconds = now.Sub(f.Least).Seconds()
			}
		}
		out.Cap(c.what, out.Effects[c.what], most)
	}
	return nil
}
