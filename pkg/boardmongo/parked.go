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
	// parkedSpan is how many seqs the first span has; each further one has
	// parkedWider times as many as the one before.
	parkedSpan  = 1000
	parkedWider = 8
	seqDigits   = 12 // of an id
	seqEnd      = 1_000_000_000_000
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
// id. Not every server reads an index in its order: it would find and sort all
// of a tenant's failed rows for a page of them, even for a few in no order. So
// it is asked for spans of seqs, which get wider, from the tenant's first row
// on, of any state, up to its last.
func (s *Store) parkedPage(ctx context.Context, tenantID, after string, limit int, filter bson.D) ([]trigger.Effect, error) {
	prefix := docKey(tenantID, "")
	end := prefixEnd(prefix)
	after = max(after, prefix)
	between := func(filter bson.D, before string) bson.D {
		return append(bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: after}, {Key: "$lt", Value: before}}}}, filter...)
	}
	// outermost returns the seq of the first row beyond, or of the last.
	outermost := func(order int) (int64, bool, error) {
		rows, err := findAll[trigger.EffectRef](ctx, s, collEffects, between(bson.D{{Key: "tenant_id", Value: tenantID}}, end),
			options.Find().SetSort(bson.D{{Key: "_id", Value: order}}).SetLimit(1).SetProjection(asc("id")).SetHint(indexID))
		if err != nil || len(rows) == 0 {
			return 0, false, err
		}
		seq, _ := seqOf(prefix, rows[0].ID)
		return seq, true, nil
	}
	seq, ok := seqOf(prefix, after)
	if !ok {
		var err error
		if seq, ok, err = outermost(1); err != nil || !ok {
			return nil, err
		}
	}
	var rows []trigger.Effect
	last := int64(-1)
	for width := int64(parkedSpan); ; width *= parkedWider {
		seq += width
		to := end
		if seq < seqEnd {
			to = trigger.EventID(tenantID, seq) // no row's id is just its event's
		}
		page, err := findAll[trigger.Effect](ctx, s, collEffects, between(filter, to),
			withoutBodies().SetSort(asc("_id")).SetLimit(int64(limit-len(rows))).SetHint(indexParked))
		if err != nil {
			return nil, err
		}
		if rows = append(rows, page...); len(rows) >= limit || to == end {
			return rows, nil
		}
		after = to
		if last < 0 {
			if last, ok, err = outermost(-1); err != nil || !ok {
				return rows, err
			}
		}
		if seq > last {
			return rows, nil
		}
	}
}

// seqOf is the seq in the id of a row, which begins with its event's.
func seqOf(prefix, id string) (int64, bool) {
	digits, ok := strings.CutPrefix(id, prefix)
	if ok = ok && len(digits) >= seqDigits; !ok {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits[:seqDigits], 10, 63)
	return int64(seq), err == nil
}
