package boardmongo

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// How a page of parked rows is read.
const (
	// parkedFew is how many parked rows are not sorted for a page of them.
	parkedFew = 500
	// parkedSpan is how many seqs the first span has; each further one has
	// four times as many as the one before.
	parkedSpan = 1000
	seqEnd     = 1_000_000_000_000 // beyond the digits that an id has for it
)

// effectPage reads a page of a tenant's rows, by id.
func (s *Store) effectPage(ctx context.Context, p trigger.EffectListParams, filter bson.D) ([]trigger.Effect, error) {
	prefix := docKey(p.TenantID, "")
	opts := withoutBodies().SetSort(asc("_id")).SetLimit(int64(p.Limit))
	// Which index a server prefers depends on how old its statistics are, and
	// most of them would have it sort all rows of a state for one page.
	switch p.State {
	case trigger.StateFailed, trigger.StateReconcile, trigger.StateHeld:
		return s.parkedPage(ctx, p.TenantID, p.AfterID, p.Limit, filter)
	case trigger.StatePending, trigger.StateClaimed:
	default:
		opts.SetHint(indexID)
	}
	return findAll[trigger.Effect](ctx, s, collEffects, append(bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: cmp.Or(p.AfterID, prefix)}, {Key: "$lt", Value: prefixEnd(prefix)}}},
	}, filter...), opts)
}

// parkedPage reads a page of the rows that a filter finds by indexParked, by
// id. Not every server reads an index in its order: it would sort all of a
// tenant's failed rows for a page of them. So it is asked first whether there
// are more than a few. If so it is asked for spans of seqs, each of which
// begins at the tenant's next row, of any state.
func (s *Store) parkedPage(ctx context.Context, tenantID, after string, limit int, filter bson.D) ([]trigger.Effect, error) {
	prefix := docKey(tenantID, "")
	end := prefixEnd(prefix)
	after = max(after, prefix)
	between := func(before string, filter bson.D) bson.D {
		return append(bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: before}}}}, filter...)
	}
	page := func(before string, limit int) ([]trigger.Effect, error) {
		return findAll[trigger.Effect](ctx, s, collEffects, between(before, filter),
			withoutBodies().SetSort(asc("_id")).SetLimit(int64(limit)).SetHint(indexParked))
	}
	some, err := findAll[trigger.EffectRef](ctx, s, collEffects, between(end, filter),
		options.Find().SetLimit(parkedFew).SetProjection(asc("_id")).SetHint(indexParked))
	switch {
	case err != nil || len(some) == 0:
		return nil, err
	case len(some) < parkedFew:
		return page(end, limit)
	}
	var rows []trigger.Effect
	seq, ok := seqOf(prefix, after)
	for width := int64(parkedSpan); ; width *= 4 {
		if !ok {
			next, err := findAll[trigger.EffectRef](ctx, s, collEffects, between(end, bson.D{{Key: "tenant_id", Value: tenantID}}),
				options.Find().SetSort(asc("_id")).SetLimit(1).SetProjection(asc("id")).SetHint(indexID))
			if err != nil || len(next) == 0 {
				return rows, err
			}
			seq, _ = seqOf(prefix, next[0].ID)
		}
		to := end
		if seq+width < seqEnd {
			to = trigger.EventID(tenantID, seq+width)
		}
		more, err := page(to, limit-len(rows))
		if err != nil {
			return nil, err
		}
		if rows = append(rows, more...); len(rows) == limit || to == end {
			return rows, nil
		}
		after, ok = to, false // no row's id is just its event's
	}
}

// seqOf is the seq in the id of a row, which begins with its event's.
func seqOf(prefix, id string) (int64, bool) {
	digits, ok := strings.CutPrefix(id, prefix)
	if n := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); n >= 0 {
		digits = digits[:n]
	}
	seq, err := strconv.ParseInt(digits, 10, 64)
	return seq, ok && err == nil && seq < seqEnd
}
