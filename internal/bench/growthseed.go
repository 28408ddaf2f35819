package bench

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// keyed is a document as the store keeps it.
type keyed[T any] struct {
	Key string `bson:"_id"`
	V   T      `bson:",inline"`
}

// The loader's inserts.
const (
	loadBatch    = 1000
	loadParallel = 4
)

// load writes n documents past the store, which has no way to make history.
func load[T any](ctx context.Context, s *boardmongo.Store, coll string, n int, each func(i int) (key string, v T)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(loadParallel)
	for from := 0; from < n; from += loadBatch {
		g.Go(func() error {
			var docs []keyed[T]
			for i := from; i < min(from+loadBatch, n); i++ {
				key, v := each(i)
				docs = append(docs, keyed[T]{key, v})
			}
			_, err := s.Database().Collection(coll).InsertMany(gctx, docs, options.InsertMany().SetOrdered(false))
			if err != nil {
				return fmt.Errorf("insert into %s: %w", coll, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// oldEvent is the event of a seq that a card was made in a while ago, with the
// label of a subscription.
func oldEvent(tenant string, seq, sub int, at time.Time) trigger.Event {
	card := fmt.Sprintf("old-%07d", seq)
	return trigger.Event{
		TenantID: tenant, Seq: int64(seq), Source: trigger.SourceBoard, LoggedAt: at,
		BoardEvent: tracker.BoardEvent{
			EID: fmt.Sprintf("board:%s-%d", tenant, seq), Kind: tracker.KindCreated, BoardID: "board", CardID: card, CardRev: 1, At: at, ToColumn: "ready",
			Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "bench"},
			After: &tracker.Snapshot{Incarnation: "i", Rev: 1, BoardID: "board", ColumnID: "ready", Title: "A card of the bench", Labels: []string{labelOf(sub)}},
		},
	}
}

// oldRow is what it owes, pending.
func oldRow(e trigger.Event, sub int, bot string) trigger.Effect {
	at, name := e.LoggedAt, subID(sub)
	return trigger.Effect{
		ID: trigger.EffectID(e.ID(), name), TenantID: e.TenantID, Kind: trigger.KindLaunch, Lane: trigger.LaneBot(bot), State: trigger.StatePending,
		NotBefore: at, SubscriptionID: name, SubscriptionRevision: 1, BotID: bot, Replay: trigger.ReplaySafe, EventSeq: e.Seq, CardID: e.CardID, CardRev: 1,
		Event: e, CreatedAt: at, UpdatedAt: at,
	}
}

// historyAge is how far back history goes.
const historyAge = 6 * 24 * time.Hour

// loadHistory loads n events that are below their cursor, and their rows: most
// are done, one in ten failed, and some were given up. The cursor is beyond
// those and as many that are loaded beside them.
func loadHistory(ctx context.Context, s *boardmongo.Store, tenant string, n, beside int) error {
	now := s.Now()
	at := func(i int) time.Time {
		return now.Add(-time.Hour - historyAge + time.Duration(i)*(historyAge/time.Duration(n))).Truncate(time.Millisecond)
	}
	if err := load(ctx, s, "board_events", n, func(i int) (string, trigger.Event) {
		e := oldEvent(tenant, i+1, 0, at(i))
		return e.ID(), e
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "trigger_effects", n, func(i int) (string, trigger.Effect) {
		row := oldRow(oldEvent(tenant, i+1, 0, at(i)), 0, botID(0))
		row.ClaimID, row.Worker, row.ClaimedAt, row.Attempts = fmt.Sprintf("claim-%d", i/8), "bench", at(i), 1
		switch i % 50 {
		case 4, 14, 24, 34, 44:
			row.State, row.Reason, row.Attempts = trigger.StateFailed, trigger.ReasonExhausted, trigger.AttemptsMax
			row.Errors = []trigger.AttemptError{{At: at(i), Attempt: trigger.AttemptsMax, Message: "the bot answered 500 Internal Server Error"}}
		case 9:
			row.State = trigger.StateDiscarded
		default:
			row.State, row.Outcome, row.DoneAt, row.RunID = trigger.StateDone, trigger.OutcomeLaunched, at(i), "run"
		}
		return row.ID, row
	}); err != nil {
		return err
	}
	return loadHead(ctx, s, tenant, n+beside)
}

// backlogAge is since when a backlog is due: the storm guard counts a minute.
const backlogAge = 10 * time.Minute

// loadBacklog loads n events after a seq, and their rows, which are due, in the
// lane of a bot.
func loadBacklog(ctx context.Context, s *boardmongo.Store, tenant, bot string, from, n int) error {
	now := s.Now().Add(-backlogAge)
	if err := load(ctx, s, "board_events", n, func(i int) (string, trigger.Event) {
		e := oldEvent(tenant, from+i+1, 0, now)
		return e.ID(), e
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "trigger_effects", n, func(i int) (string, trigger.Effect) {
		row := oldRow(oldEvent(tenant, from+i+1, 0, now), 0, bot)
		return row.ID, row
	}); err != nil {
		return err
	}
	return s.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: trigger.LaneBot(bot), Due: now}})
}

// loadHead sets the tenant's head to a seq that all before was derived from.
func loadHead(ctx context.Context, s *boardmongo.Store, tenant string, seq int) error {
	_, err := s.Database().Collection("tenant_heads").InsertOne(ctx,
		keyed[trigger.Head]{tenant, trigger.Head{TenantID: tenant, Seq: int64(seq), Cursor: int64(seq), DrainAfter: s.Now()}})
	if err != nil {
		return fmt.Errorf("head of %s: %w", tenant, err)
	}
	return nil
}

// loadIdle makes tenants that have nothing to do: heads that are clean, lanes
// that are not due, or not yet.
func loadIdle(ctx context.Context, s *boardmongo.Store, n int) error {
	now := s.Now()
	if err := load(ctx, s, "tenants", n, func(i int) (string, trigger.Tenant) {
		return tenantID(i), trigger.Tenant{ID: tenantID(i), Name: tenantID(i), Revision: 1}
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "tenant_heads", n, func(i int) (string, trigger.Head) {
		return tenantID(i), trigger.Head{TenantID: tenantID(i), Seq: 1, Cursor: 1, DrainAfter: now}
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "lanes", n, func(i int) (string, trigger.Lane) {
		lane := trigger.Lane{TenantID: tenantID(i), Lane: trigger.LaneBot(botID(0)), Version: 3}
		if i%3 == 0 {
			lane.DueAt = now.Add(time.Hour)
		}
		return tenantID(i) + "/" + lane.Lane, lane
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "cards", n, func(i int) (string, tracker.Card) {
		return tenantID(i) + "/c", tracker.Card{TenantID: tenantID(i), ID: "c", Rev: 1, Title: "A card of the bench", BoardID: "board", ColumnID: "ready"}
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "board_events", n, func(i int) (string, trigger.Event) {
		e := oldEvent(tenantID(i), 1, 0, now.Add(-time.Hour))
		return e.ID(), e
	}); err != nil {
		return err
	}
	return load(ctx, s, "trigger_effects", n, func(i int) (string, trigger.Effect) {
		row := oldRow(oldEvent(tenantID(i), 1, 0, now.Add(-time.Hour)), 0, botID(0))
		row.State, row.Outcome, row.DoneAt = trigger.StateDone, trigger.OutcomeLaunched, row.UpdatedAt
		return row.ID, row
	})
}

// loadPending loads n rows that are due, in the lanes of all of a run's bots,
// of one card of each tenant.
func (w *world) loadPending(ctx context.Context, s *boardmongo.Store, n int) error {
	now := s.Now()
	labels := make([]string, w.Subscriptions)
	for i := range labels {
		labels[i] = labelOf(i)
	}
	if err := load(ctx, s, "cards", w.Tenants, func(i int) (string, tracker.Card) {
		return tenantID(i) + "/c", tracker.Card{
			TenantID: tenantID(i), ID: "c", Incarnation: "i", Rev: 1, Title: "A card of the bench", BoardID: "board", ColumnID: "ready", Labels: labels,
		}
	}); err != nil {
		return err
	}
	if err := load(ctx, s, "trigger_effects", n, func(i int) (string, trigger.Effect) {
		tenant, sub := i%w.Tenants, i/w.Tenants%w.Subscriptions
		e := oldEvent(tenantID(tenant), i/w.Tenants+1, sub, now)
		e.CardID = "c"
		row := oldRow(e, sub, botID(sub%w.Bots))
		return row.ID, row
	}); err != nil {
		return err
	}
	var marks []trigger.LaneMark
	for i := range w.Tenants {
		if err := loadHead(ctx, s, tenantID(i), n/w.Tenants+1); err != nil {
			return err
		}
		for j := range w.Bots {
			marks = append(marks, trigger.LaneMark{TenantID: tenantID(i), Lane: trigger.LaneBot(botID(j)), Due: now})
		}
	}
	return s.LaneMarkMany(ctx, marks)
}
