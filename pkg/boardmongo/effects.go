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

	"github.com/triggerd/triggerd/pkg/trigger"
)

// knownKinds matches the kinds that this version may claim; an absent kind
// means launch (R1, R2).
var knownKinds = func() bson.D {
	kinds := bson.A{nil}
	for _, k := range trigger.KnownKinds() {
		kinds = append(kinds, k)
	}
	return bson.D{{Key: "$in", Value: kinds}}
}()

func in[T any](list []T) bson.D { return bson.D{{Key: "$in", Value: list}} }

// EffectMaterialize implements trigger.EffectOutbox (R3).
func (s *Store) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	ids := make([]string, len(rows))
	for i := range rows {
		if rows[i].TenantID != tenantID {
			return nil, fmt.Errorf("materialize %s: row of another tenant", rows[i].ID)
		}
		ids[i] = rows[i].ID
	}
	if len(rows) == 0 {
		return nil, nil
	}
	docs := make([]doc[trigger.Effect], len(rows))
	for i := range rows {
		docs[i] = doc[trigger.Effect]{rows[i].ID, rows[i]}
	}
	ictx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collEffects).InsertMany(ictx, docs, options.InsertMany().SetOrdered(false))
	switch {
	case err == nil:
		refs := make([]trigger.EffectRef, len(rows))
		for i := range rows {
			r := &rows[i]
			refs[i] = trigger.EffectRef{ID: r.ID, Lane: r.Lane, State: r.State, NotBefore: r.NotBefore, ClaimID: r.ClaimID}
		}
		return refs, nil
	case onlyDuplicates(err):
		// Some were there: of a batch that did not reach its cursor, or another
		// replica's. What the store holds counts. A duplicate key alone is no
		// proof that the other's row will stay (T1).
		refs, err := s.effectRefs(ctx, tenantID, ids)
		if err == nil && len(refs) != len(ids) {
			err = fmt.Errorf("%d of %d rows of %s are there after a race", len(refs), len(ids), tenantID)
		}
		return refs, err
	}
	return nil, fmt.Errorf("insert %d rows of %s: %w", len(rows), tenantID, err)
}

func (s *Store) effectRefs(ctx context.Context, tenantID string, ids []string) ([]trigger.EffectRef, error) {
	refs, err := findAll[trigger.EffectRef](ctx, s, collEffects,
		bson.D{{Key: "_id", Value: in(ids)}, {Key: "tenant_id", Value: tenantID}},
		options.Find().SetProjection(asc("id", "lane", "state", "not_before", "claim_id")))
	if err != nil {
		return nil, fmt.Errorf("look up %d rows of %s: %w", len(ids), tenantID, err)
	}
	return refs, nil
}

// dueFilter names the lane's rows of a state that are due.
func dueFilter(p trigger.ClaimParams, state trigger.State) bson.D {
	return bson.D{
		{Key: "tenant_id", Value: p.TenantID},
		{Key: "lane", Value: p.Lane},
		{Key: "state", Value: state},
		{Key: "not_before", Value: bson.D{{Key: "$lte", Value: p.Now}}},
		{Key: "kind", Value: knownKinds},
	}
}

// candidates reads some due rows, in no order: the claim's own filter decides.
func (s *Store) candidates(ctx context.Context, p trigger.ClaimParams, state trigger.State, limit int) ([]trigger.Effect, error) {
	return findAll[trigger.Effect](ctx, s, collEffects, dueFilter(p, state),
		options.Find().SetLimit(int64(limit)).SetProjection(asc("id", "attempts", "claim_id", "delivery_started_at")))
}

func claimUpdate(p trigger.ClaimParams) bson.D {
	return bson.D{
		{Key: "$set", Value: bson.D{
			{Key: "state", Value: trigger.StateClaimed},
			{Key: "claim_id", Value: p.ClaimID},
			{Key: "worker", Value: p.Worker},
			{Key: "claimed_at", Value: p.Now},
			{Key: "not_before", Value: p.LeaseEnd},
			{Key: "updated_at", Value: p.Now},
		}},
		{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
	}
}

// EffectClaim implements trigger.EffectOutbox (W1).
func (s *Store) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	found, err := s.candidates(ctx, p, trigger.StatePending, p.Limit)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	ids := make([]string, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	uctx, cancel := s.op(ctx)
	defer cancel()
	_, err = s.db.Collection(collEffects).UpdateMany(uctx,
		append(bson.D{{Key: "_id", Value: in(ids)}}, dueFilter(p, trigger.StatePending)...), claimUpdate(p))
	// After an error the read decides; what it can't see yet is claimed by
	// nobody who knows, and is due again when the lease ends.
	rows, rerr := s.claimedBy(ctx, p, ids)
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	return rows, nil
}

func (s *Store) claimedBy(ctx context.Context, p trigger.ClaimParams, ids []string) ([]trigger.Effect, error) {
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, bson.D{
		{Key: "_id", Value: in(ids)}, {Key: "tenant_id", Value: p.TenantID}, {Key: "claim_id", Value: p.ClaimID},
	})
	slices.SortFunc(rows, func(a, b trigger.Effect) int { return cmp.Compare(a.ID, b.ID) })
	return rows, err
}

// EffectReclaim implements trigger.EffectOutbox (W4).
func (s *Store) EffectReclaim(ctx context.Context, p trigger.ClaimParams) (*trigger.Effect, error) {
	found, err := s.candidates(ctx, p, trigger.StateClaimed, 1)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	row := found[0]
	update := claimUpdate(p)
	started := bson.E{Key: "delivery_started_at", Value: bson.D{{Key: "$exists", Value: !row.DeliveryStartedAt.IsZero()}}}
	if !row.DeliveryStartedAt.IsZero() {
		p.ClaimID = row.ClaimID // which keeps it, for a late answer (W8)
		update = bson.D{{Key: "$set", Value: bson.D{
			{Key: "state", Value: trigger.StateReconcile},
			{Key: "updated_at", Value: p.Now},
			{Key: "announce_at", Value: p.Now},
		}}, pushError(trigger.LeaseLost(row.Attempts, p.Now))}
	} else if row.Attempts >= trigger.AttemptsMax {
		update = bson.D{{Key: "$set", Value: bson.D{
			{Key: "state", Value: trigger.StateFailed},
			{Key: "reason", Value: trigger.ReasonLeaseExhausted},
			{Key: "claim_id", Value: p.ClaimID},
			{Key: "updated_at", Value: p.Now},
			{Key: "announce_at", Value: p.Now},
		}}}
	}
	_, err = s.updateOne(ctx, collEffects, append(bson.D{
		{Key: "_id", Value: row.ID}, {Key: "claim_id", Value: row.ClaimID}, {Key: "attempts", Value: row.Attempts}, started,
	}, dueFilter(p, trigger.StateClaimed)...), update)
	rows, rerr := s.claimedBy(ctx, p, []string{row.ID})
	if rerr != nil {
		return nil, errors.Join(err, rerr)
	}
	if len(rows) == 0 || (!row.DeliveryStartedAt.IsZero() && rows[0].State != trigger.StateReconcile) {
		return nil, err // it was settled, or another replica was there
	}
	return &rows[0], nil
}

// fenceFilter names the row only while the claim is held (W2).
func fenceFilter(f trigger.Fence) bson.D {
	return bson.D{
		{Key: "_id", Value: f.EffectID},
		{Key: "tenant_id", Value: f.TenantID},
		{Key: "claim_id", Value: f.ClaimID},
		{Key: "state", Value: trigger.StateClaimed},
	}
}

func pushError(e trigger.AttemptError) bson.E {
	return bson.E{Key: "$push", Value: bson.D{{Key: "errors", Value: bson.D{
		{Key: "$each", Value: bson.A{e}}, {Key: "$slice", Value: -trigger.ErrorsKept},
	}}}}
}

func (s *Store) fenced(ctx context.Context, f trigger.Fence, set bson.D) error {
	if !f.Complete() {
		return fmt.Errorf("effect %q: %w", f.EffectID, trigger.ErrFenceLost)
	}
	held, err := s.updateOne(ctx, collEffects, fenceFilter(f), bson.D{{Key: "$set", Value: set}})
	if err != nil {
		return fmt.Errorf("effect %s: %w", f.EffectID, err)
	}
	if !held {
		return fmt.Errorf("effect %s: %w", f.EffectID, trigger.ErrFenceLost)
	}
	return nil
}

// EffectPlan implements trigger.EffectOutbox (W7).
func (s *Store) EffectPlan(ctx context.Context, f trigger.Fence, plan trigger.LaunchPlan) error {
	return s.fenced(ctx, f, bson.D{{Key: "plan", Value: plan}})
}

// EffectMarkConsumed implements trigger.EffectOutbox (W7).
func (s *Store) EffectMarkConsumed(ctx context.Context, f trigger.Fence) error {
	return s.fenced(ctx, f, bson.D{{Key: "consume_marked", Value: true}})
}

// EffectStart implements trigger.EffectOutbox (W8).
func (s *Store) EffectStart(ctx context.Context, f trigger.Fence, at time.Time, rendered string) error {
	return s.fenced(ctx, f, bson.D{
		{Key: "delivery_started_at", Value: at}, {Key: "rendered", Value: rendered}, {Key: "replay", Value: trigger.ReplayUnsafe},
	})
}

// EffectTouch implements trigger.EffectOutbox.
func (s *Store) EffectTouch(ctx context.Context, f trigger.Fence, at time.Time) error {
	return s.fenced(ctx, f, bson.D{{Key: "updated_at", Value: at}})
}

// EffectGet implements trigger.EffectOutbox.
func (s *Store) EffectGet(ctx context.Context, tenantID, effectID string) (*trigger.Effect, error) {
	row, err := findOne[trigger.Effect](ctx, s, collEffects, bson.D{{Key: "_id", Value: effectID}, {Key: "tenant_id", Value: tenantID}})
	if err != nil {
		return nil, fmt.Errorf("get effect %s: %w", effectID, err)
	}
	return row, nil
}

func withoutBodies() *options.FindOptionsBuilder {
	return options.Find().SetProjection(bson.D{{Key: "plan", Value: 0}, {Key: "rendered", Value: 0}})
}

// EffectListByEvent implements trigger.EffectOutbox.
func (s *Store) EffectListByEvent(ctx context.Context, tenantID, eventID string) ([]trigger.Effect, error) {
	rows, err := findAll[trigger.Effect](ctx, s, collEffects, append(keyRange(eventID+"|"), bson.E{Key: "tenant_id", Value: tenantID}), withoutBodies())
	if err != nil {
		return nil, fmt.Errorf("rows of event %s: %w", eventID, err)
	}
	slices.SortFunc(rows, func(a, b trigger.Effect) int { return cmp.Compare(a.ID, b.ID) })
	return rows, nil
}

// EffectList implements trigger.EffectOutbox.
func (s *Store) EffectList(ctx context.Context, p trigger.EffectListParams) ([]trigger.Effect, error) {
	filter := append(bson.D{{Key: "tenant_id", Value: p.TenantID}}, filterBy(p.EffectFilter)...)
	rows, err := s.effectPage(ctx, p, filter)
	if err != nil {
		return nil, fmt.Errorf("list effects of %s: %w", p.TenantID, err)
	}
	return rows, nil
}

// filterBy is the filter, without the tenant.
func filterBy(f trigger.EffectFilter) bson.D {
	var d bson.D
	for _, c := range []struct{ key, value string }{
		{"state", string(f.State)}, {"subscription_id", f.SubscriptionID}, {"bot_id", f.BotID}, {"reason", string(f.Reason)},
	} {
		if c.value != "" {
			d = append(d, bson.E{Key: c.key, Value: c.value})
		}
	}
	var updated bson.D
	if !f.UpdatedBefore.IsZero() {
		updated = append(updated, bson.E{Key: "$lt", Value: f.UpdatedBefore})
	}
	if !f.UpdatedFrom.IsZero() {
		updated = append(updated, bson.E{Key: "$gte", Value: f.UpdatedFrom})
	}
	if updated != nil {
		d = append(d, bson.E{Key: "updated_at", Value: updated})
	}
	return d
}

// EffectNextDue implements trigger.EffectOutbox.
func (s *Store) EffectNextDue(ctx context.Context, tenantID, lane string) (time.Time, bool, error) {
	// All of a lane's live rows take long to read when there are many; rows
	// that are due soon are not, and if there is one, no other comes before.
	// If there is none, the one command that reads all of them decides.
	soon := bson.D{{Key: "$lte", Value: s.Now().Add(dueSoon)}}
	due, ok, err := s.earliestDue(ctx, tenantID, lane, bson.E{Key: "not_before", Value: soon})
	if err == nil && !ok {
		due, ok, err = s.earliestDue(ctx, tenantID, lane)
	}
	if err != nil {
		return time.Time{}, false, fmt.Errorf("next due row of %s/%s: %w", tenantID, lane, err)
	}
	return due, ok, nil
}

// dueSoon is how far EffectNextDue looks before it reads all live rows: at
// worst it does so once in this time.
const dueSoon = 5 * time.Second

func (s *Store) earliestDue(ctx context.Context, tenantID, lane string, more ...bson.E) (time.Time, bool, error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	cur, err := s.db.Collection(collEffects).Aggregate(ctx, mongo.Pipeline{
		{{Key: "$match", Value: append(bson.D{
			{Key: "tenant_id", Value: tenantID},
			{Key: "lane", Value: lane},
			{Key: "state", Value: in([]trigger.State{trigger.StatePending, trigger.StateClaimed})},
			{Key: "kind", Value: knownKinds},
		}, more...)}},
		{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "due", Value: bson.D{{Key: "$min", Value: "$not_before"}}}}}},
	})
	if err != nil {
		return time.Time{}, false, err
	}
	var out []struct {
		Due time.Time `bson:"due"`
	}
	if err := cur.All(ctx, &out); err != nil || len(out) == 0 {
		return time.Time{}, false, err
	}
	return out[0].Due.UTC(), true, nil
}
