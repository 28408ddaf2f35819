package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// The engine to compare with: the outbox that one writes by hand. It works on
// the same log, on the same server.
const (
	baseWorkers = 4
	baseBacklog = 1000    // rows that the tail runs ahead of the workers
	basePage    = 100     // events read at once, and by one move of the cursor
	basePrefix  = "base:" // of its rows' ids
	baseRows    = "baseline_effects"
	baseCursors = "baseline_cursors"
)

// baseline reads a tenant's log after its own cursor; for each event it reads
// the card and upserts one row, and moves the cursor by a CAS for each page.
// Workers claim one row by a sorted findAndModify on the index meant for it,
// launch, and settle it by one update fenced with the claim id.
type baseline struct {
	run     *run
	store   *boardmongo.Store
	rows    *mongo.Collection
	cursors *mongo.Collection
	subs    map[string]string // labels to subscriptions

	pending atomic.Int64
	done    atomic.Int64
}

func newBaseline(ctx context.Context, r *run) (*baseline, error) {
	store, ok := r.store.(*boardmongo.Store)
	if !ok {
		return nil, errors.New("no database")
	}
	b := &baseline{
		run: r, store: store, rows: store.Database().Collection(baseRows), cursors: store.Database().Collection(baseCursors),
		subs: make(map[string]string),
	}
	for i := range r.Subscriptions {
		b.subs[labelOf(i)] = fmt.Sprint("sub-", i)
	}
	_, err := b.rows.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{Key: "state", Value: 1}, {Key: "not_before", Value: 1}}})
	return b, err
}

type baseRow struct {
	ID        string         `json:"id" bson:"_id"`
	State     string         `json:"state"`
	NotBefore time.Time      `json:"not_before"`
	Tenant    string         `json:"tenant_id"`
	BotID     string         `json:"bot_id"`
	Event     *trigger.Event `json:"event"`
	ClaimID   string         `json:"claim_id,omitempty"`
	Lease     time.Time      `json:"lease,omitempty,omitzero"`
	Attempts  int            `json:"attempts,omitempty"`
}

// slice works off what the log has since the last one.
func (b *baseline) slice(ctx context.Context) (effects int, took time.Duration, err error) {
	before := b.done.Load()
	began := time.Now()
	materialized := make(chan struct{})
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(materialized)
		for tenant := range b.run.Tenants {
			if err := b.tail(gctx, tenantID(tenant)); err != nil {
				return err
			}
		}
		return nil
	})
	for range baseWorkers {
		g.Go(func() error { return b.work(gctx, materialized) })
	}
	err = g.Wait()
	return int(b.done.Load() - before), time.Since(began), err
}

func (b *baseline) tail(ctx context.Context, tenant string) error {
	for {
		var cursor struct {
			Seq int64 `json:"seq"`
		}
		err := b.cursors.FindOne(ctx, bson.D{{Key: "_id", Value: tenant}}).Decode(&cursor)
		if errors.Is(err, mongo.ErrNoDocuments) {
			_, err = b.cursors.InsertOne(ctx, bson.D{{Key: "_id", Value: tenant}, {Key: "seq", Value: int64(0)}})
		}
		if err != nil {
			return fmt.Errorf("cursor of %s: %w", tenant, err)
		}
		events, err := b.store.EventList(ctx, tenant, cursor.Seq, cursor.Seq+basePage)
		if err != nil || len(events) == 0 {
			return err
		}
		for i := range events {
			if err := b.materialize(ctx, &events[i]); err != nil {
				return err
			}
		}
		to := events[len(events)-1].Seq
		res, err := b.cursors.UpdateOne(ctx, bson.D{{Key: "_id", Value: tenant}, {Key: "seq", Value: cursor.Seq}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "seq", Value: to}}}})
		if err != nil || res.MatchedCount == 0 {
			return errors.Join(fmt.Errorf("the cursor of %s was not moved", tenant), err)
		}
	}
}

func (b *baseline) materialize(ctx context.Context, e *trigger.Event) error {
	card, err := b.store.CardGet(ctx, e.TenantID, e.CardID)
	if err != nil {
		return err
	}
	for _, label := range card.Labels {
		sub, ok := b.subs[label]
		if !ok {
			continue
		}
		for b.pending.Load() >= baseBacklog {
			if err := sleepUntil(ctx, time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
		}
		row := baseRow{ID: basePrefix + trigger.EffectID(e.ID(), sub), State: "pending", NotBefore: b.store.Now(), Tenant: e.TenantID, BotID: botID(0), Event: e}
		if _, err := b.rows.UpdateOne(ctx, bson.D{{Key: "_id", Value: row.ID}}, bson.D{{Key: "$setOnInsert", Value: row}}, options.UpdateOne().SetUpsert(true)); err != nil {
			return fmt.Errorf("upsert %s: %w", row.ID, err)
		}
		b.pending.Add(1)
	}
	return nil
}

// work executes rows one at a time until all are through.
func (b *baseline) work(ctx context.Context, materialized <-chan struct{}) error {
	for {
		over := false
		select {
		case <-materialized:
			over = true // if there is none now, there will be none
		default:
		}
		now, claim := b.store.Now(), uuid.NewString()
		var row baseRow
		err := b.rows.FindOneAndUpdate(ctx,
			bson.D{{Key: "state", Value: "pending"}, {Key: "not_before", Value: bson.D{{Key: "$lte", Value: now}}}},
			bson.D{
				{Key: "$set", Value: bson.D{{Key: "state", Value: "claimed"}, {Key: "claim_id", Value: claim}, {Key: "lease", Value: now.Add(trigger.LeaseDefault)}}},
				{Key: "$inc", Value: bson.D{{Key: "attempts", Value: 1}}},
			},
			options.FindOneAndUpdate().SetSort(bson.D{{Key: "not_before", Value: 1}}).SetReturnDocument(options.After)).Decode(&row)
		switch {
		case errors.Is(err, mongo.ErrNoDocuments) && over:
			return nil
		case errors.Is(err, mongo.ErrNoDocuments):
			if err := sleepUntil(ctx, time.Now().Add(time.Millisecond)); err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("claim: %w", err)
		}
		b.pending.Add(-1)
		if _, err := b.run.launcher.Launch(ctx, trigger.LaunchRequest{Key: row.ID, Attempt: 1, URL: b.run.botURL(), Secret: []byte("a secret of the bench's own, 32 b"), Body: "{}"}); err != nil {
			return err
		}
		res, err := b.rows.UpdateOne(ctx, bson.D{{Key: "_id", Value: row.ID}, {Key: "claim_id", Value: claim}, {Key: "state", Value: "claimed"}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "state", Value: "done"}, {Key: "done_at", Value: b.store.Now()}}}})
		if err != nil || res.MatchedCount == 0 {
			return errors.Join(fmt.Errorf("settle %s: the claim was lost", row.ID), err)
		}
		b.done.Add(1)
	}
}
