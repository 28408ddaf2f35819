package boardmongo

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// settleFilter names the row only while the settle may still reach it: while
// the claim is held, and for a definite answer also when the row went to
// reconcile under it meanwhile (W8). A hand-back takes no row whose delivery
// was started (W10).
func settleFilter(st trigger.Settle) bson.D {
	f := fenceFilter(st.Fence)
	if st.Definite() {
		f[len(f)-1].Value = in([]trigger.State{trigger.StateClaimed, trigger.StateReconcile})
	}
	if st.HandBack {
		f = append(f, bson.E{Key: "delivery_started_at", Value: bson.D{{Key: "$exists", Value: false}}})
	}
	return f
}

func settleUpdate(st trigger.Settle) bson.D {
	set := bson.D{{Key: "state", Value: st.To}, {Key: "updated_at", Value: st.At}}
	update, unset := bson.D{}, bson.D{}
	if st.To.Parked() {
		set = append(set, bson.E{Key: "announce_at", Value: st.At})
	} else if st.Definite() { // a late one, of a row that is in reconcile
		unset = append(unset, bson.E{Key: "announce_at", Value: ""})
	}
	switch st.To {
	case trigger.StateDone:
		set = append(set, bson.E{Key: "outcome", Value: st.Outcome}, bson.E{Key: "done_at", Value: st.At})
		if st.RunID != "" {
			set = append(set, bson.E{Key: "run_id", Value: st.RunID})
		}
	case trigger.StateFailed:
		set = append(set, bson.E{Key: "reason", Value: st.Reason})
	case trigger.StatePending:
		set = append(set, bson.E{Key: "not_before", Value: st.NotBefore})
		if st.HandBack || st.Uncount {
			update = append(update, bson.E{Key: "$inc", Value: bson.D{{Key: "attempts", Value: -1}}})
		}
	}
	if st.Rendered != "" {
		set = append(set, bson.E{Key: "rendered", Value: st.Rendered})
	}
	if st.Error != nil {
		update = append(update, pushError(*st.Error))
	}
	if st.Definite() {
		unset = append(unset, bson.E{Key: "delivery_started_at", Value: ""})
	}
	if len(unset) > 0 {
		update = append(update, bson.E{Key: "$unset", Value: unset})
	}
	return append(update, bson.E{Key: "$set", Value: set})
}

// alike is what settles have in common that are written by one update: each
// statement of a command is planned and executed on its own, and for a database
// that is most of the work. Of one claim only, or a settle of a claim that was
// lost could reach a row which another one holds (W2).
type alike struct {
	tenantID, claimID string
	outcome           trigger.Outcome
	run               bool
}

// settleModels returns the updates that make the settles: one for all of a claim
// that end alike, one for each of the others. Those that end alike take the
// latest one's time.
func settleModels(settles []trigger.Settle) []mongo.WriteModel {
	var models []mongo.WriteModel
	groups := make(map[alike][]trigger.Settle)
	var order []alike
	for _, st := range settles {
		if st.To != trigger.StateDone || st.Error != nil || st.Rendered != "" || st.HandBack {
			models = append(models, mongo.NewUpdateOneModel().SetFilter(settleFilter(st)).SetUpdate(settleUpdate(st)))
			continue
		}
		k := alike{st.TenantID, st.ClaimID, st.Outcome, st.RunID != ""}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], st)
	}
	for _, k := range order {
		models = append(models, settleAlike(groups[k]))
	}
	return models
}

func settleAlike(group []trigger.Settle) mongo.WriteModel {
	all := group[0]
	if len(group) == 1 {
		return mongo.NewUpdateOneModel().SetFilter(settleFilter(all)).SetUpdate(settleUpdate(all))
	}
	ids, runs := make([]string, len(group)), make([]string, len(group))
	for i, st := range group {
		ids[i], runs[i] = st.EffectID, st.RunID
		if st.At.After(all.At) {
			all.At = st.At
		}
	}
	filter := settleFilter(all)
	filter[0].Value = in(ids)
	model := mongo.NewUpdateManyModel().SetFilter(filter)
	if all.RunID == "" {
		return model.SetUpdate(settleUpdate(all))
	}
	// Each has a run of its own. Strings of others could be taken for field
	// paths: they are literals.
	literal := func(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }
	run := bson.D{{Key: "$arrayElemAt", Value: bson.A{literal(runs), bson.D{{Key: "$indexOfArray", Value: bson.A{literal(ids), "$_id"}}}}}}
	return model.SetUpdate(mongo.Pipeline{
		{{Key: "$set", Value: bson.D{
			{Key: "state", Value: all.To},
			{Key: "updated_at", Value: all.At},
			{Key: "outcome", Value: literal(all.Outcome)},
			{Key: "done_at", Value: all.At},
			{Key: "run_id", Value: run},
		}}},
		{{Key: "$unset", Value: bson.A{"announce_at", "delivery_started_at"}}},
	})
}

// EffectSettleMany implements trigger.EffectOutbox (W2).
func (s *Store) EffectSettleMany(ctx context.Context, settles []trigger.Settle) ([]bool, error) {
	if err := trigger.CheckSettles(settles); err != nil || len(settles) == 0 {
		return nil, err
	}
	models := settleModels(settles)
	ids := make([]string, len(settles))
	for i, st := range settles {
		ids[i] = st.EffectID
	}
	octx, cancel := s.op(ctx)
	defer cancel()
	res, werr := s.db.Collection(collEffects).BulkWrite(octx, models, options.BulkWrite().SetOrdered(false))
	stands := make([]bool, len(settles))
	if werr == nil && res.MatchedCount == int64(len(settles)) {
		for i := range stands {
			stands[i] = true
		}
		return stands, nil
	}
	// Some rows were not held, or the answer was lost: what the rows say
	// decides. A claim id that is still the row's, in another state, is a
	// settle that was applied, now or before.
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, bson.D{{Key: "_id", Value: in(ids)}},
		options.Find().SetProjection(asc("id", "tenant_id", "claim_id", "state")))
	if err != nil {
		return nil, fmt.Errorf("settle %d rows: read back: %w", len(settles), errors.Join(werr, err))
	}
	byID := make(map[string]trigger.Effect, len(rows))
	for _, row := range rows {
		byID[row.ID] = row
	}
	all := true
	for i, st := range settles {
		row := byID[st.EffectID]
		stands[i] = row.ClaimID == st.ClaimID && row.TenantID == st.TenantID && row.State != trigger.StateClaimed &&
			(row.State != trigger.StateReconcile || st.To == trigger.StateReconcile)
		all = all && stands[i]
	}
	if werr != nil && !all {
		// What does not stand may still be on its way.
		return nil, fmt.Errorf("settle %d rows: %w", len(settles), werr)
	}
	return stands, nil
}
