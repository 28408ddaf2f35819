package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// BulkRateDefault is how many rows a second a bulk decision goes through.
const BulkRateDefault = 100

// bulkPage is how many rows a bulk decision goes on by at once: its counts are
// behind by less than that.
const bulkPage = 10

// bulkListPage is how many rows are read at once to prepare one.
const bulkListPage = 500

// BulkActions lists the actions that have a bulk form. To confirm or to force
// takes a look at each row.
func BulkActions() []Action {
	return []Action{ActionReplay, ActionRerun, ActionDiscard, ActionRelease}
}

// BulkParams asks for a bulk decision.
type BulkParams struct {
	TenantID string
	Action   Action
	// Filter names a state that allows the action.
	Filter EffectFilter
	By     string
	Note   string
	// ID is what the bulk decision is to be called; a fresh one if empty.
	ID string
}

// BulkPrepare finds the rows that meet the filter and allow the action, and
// keeps them as a bulk decision, to be carried out by BulkRun. No row is
// touched. It takes the first BulkMax rows, by id, and says so in More.
func (dl *DeadLetters) BulkPrepare(ctx context.Context, p BulkParams) (*Bulk, error) {
	if err := checkWho(p.By, p.Note); err != nil {
		return nil, err
	}
	if !slices.Contains(BulkActions(), p.Action) {
		return nil, tracker.Fieldf("action", "must be one of %v", BulkActions())
	}
	if from := decisionsFrom[p.Action]; !slices.Contains(from, p.Filter.State) {
		return nil, tracker.Fieldf("state", "must be %s to %s", oneOf(from), p.Action)
	}
	b := &Bulk{
		TenantID: p.TenantID, ID: cmp.Or(p.ID, newID()), Action: p.Action, Filter: p.Filter, By: p.By, Note: p.Note,
		Items: []BulkItem{}, CreatedAt: dl.Clock.Now(),
	}
	could := Decision{Action: p.Action}
	for after, more := "", true; more && !b.More; {
		rows, err := dl.Outbox.EffectList(ctx, EffectListParams{TenantID: p.TenantID, EffectFilter: p.Filter, AfterID: after, Limit: bulkListPage})
		if err != nil {
			return nil, fmt.Errorf("prepare bulk decision: %w", err)
		}
		for i := range rows {
			after = rows[i].ID
			if _, err := could.Apply(rows[i]); err != nil {
				continue // it would only be refused
			}
			if b.More = len(b.Items) == BulkMax; b.More {
				break
			}
			b.Items = append(b.Items, BulkItem{ID: rows[i].ID, UpdatedAt: rows[i].UpdatedAt})
		}
		more = len(rows) == bulkListPage
	}
	b.Digest = BulkDigest(b.Action, b.Items)
	if err := dl.Bulks.BulkCreate(ctx, b); err != nil {
		return nil, err
	}
	return b, nil
}

// BulkGet returns a bulk decision, or tracker.ErrNotFound.
func (dl *DeadLetters) BulkGet(ctx context.Context, tenantID, id string) (*Bulk, error) {
	return dl.Bulks.BulkGet(ctx, tenantID, id)
}

// BulkStop stops a bulk decision for good, wherever it runs. Rows decided
// about already stay so.
func (dl *DeadLetters) BulkStop(ctx context.Context, tenantID, id string) (*Bulk, error) {
	if err := dl.Bulks.BulkStop(ctx, tenantID, id); err != nil {
		return nil, err
	}
	return dl.Bulks.BulkGet(ctx, tenantID, id)
}

// BulkRun goes on with a bulk decision, at BulkRate, until it is finished or
// was stopped, the budget is over (none if 0), or ctx ends; it returns how far
// it is. The caller calls again until it is Finished or Stopped. digest is the
// bulk decision's, else it returns a *RefusedError.
//
// It touches just the rows that BulkPrepare found, as they were then; one that
// was written since counts as refused. After a crash anywhere it goes on, and
// of several runners at once each row is decided about once: a decision's id is
// the bulk decision's and its item's, and the row remembers it. One that loses
// to another goes on where that one is. After an error of the store it returns
// that with the progress so far.
func (dl *DeadLetters) BulkRun(ctx context.Context, tenantID, id, digest string, budget time.Duration) (*Bulk, error) {
	b, err := dl.Bulks.BulkGet(ctx, tenantID, id)
	if err != nil {
		return nil, err
	}
	if digest != b.Digest {
		return nil, &RefusedError{Action: b.Action, ID: id, Why: "the digest is not the one of these rows: look at them again"}
	}
	deadline := time.Now().Add(budget)
	tick := time.NewTicker(time.Second / time.Duration(orDefault(dl.BulkRate, BulkRateDefault)))
	defer tick.Stop()
	for !b.Finished() && !b.Stopped && ctx.Err() == nil && (budget <= 0 || time.Now().Before(deadline)) {
		page, perr := dl.bulkPage(ctx, b, tick.C)
		if page.done > 0 {
			// What was decided is counted even when the caller is gone.
			// Another runner may have got there first, or somebody stopped it.
			cctx := context.WithoutCancel(ctx)
			_, err := dl.Bulks.BulkAdvance(cctx, tenantID, id, b.Next, b.Next+page.done, page.applied, page.refused)
			if err != nil {
				return b, errors.Join(perr, err)
			}
			if b, err = dl.Bulks.BulkGet(cctx, tenantID, id); err != nil {
				return nil, errors.Join(perr, err)
			}
		}
		if perr != nil && ctx.Err() == nil {
			return b, perr
		}
	}
	return b, nil
}

// paged is what came of some items.
type paged struct{ done, applied, refused int }

// bulkPage decides about the next items, one a tick. What it returns stands,
// with an error too.
func (dl *DeadLetters) bulkPage(ctx context.Context, b *Bulk, tick <-chan time.Time) (p paged, err error) {
	marks := laneMarks{}
	defer func() { dl.mark(ctx, marks) }()
	for i := b.Next; i < min(b.Next+bulkPage, len(b.Items)); i++ {
		select {
		case <-tick:
		case <-ctx.Done():
			return p, ctx.Err()
		}
		item := b.Items[i]
		row, err := dl.decide(ctx, Decision{
			TenantID: b.TenantID, EffectID: item.ID, ID: b.ID + "/" + itoa(i), Action: b.Action, By: b.By, Note: b.Note, SeenAt: item.UpdatedAt,
		})
		switch {
		case err == nil:
			marks.add(row)
			p.applied++
		case errors.Is(err, tracker.ErrConflict), errors.Is(err, tracker.ErrNotFound):
			p.refused++
		default:
			return p, fmt.Errorf("bulk decision %s, row %s: %w", b.ID, item.ID, err)
		}
		p.done++
	}
	return p, nil
}
