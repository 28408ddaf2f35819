package trigger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Defaults of the tail.
const (
	TailBatchDefault = 500
	PollDefault      = 200 * time.Millisecond
	tenantsPerRound  = 100
	deferTenant      = 2 * time.Second
)

// Tail turns the log into rows: for each tenant, over the contiguous prefix
// after the cursor, it matches every event, writes all owed rows that are
// absent, marks their lanes, and only then advances the cursor (T1). Any
// number of tails may work on one tenant at once.
type Tail struct {
	Cards  tracker.CardStore
	Log    EventLog
	Heads  Heads
	Config interface {
		SubscriptionRefs(ctx context.Context, tenantID string) ([]SubscriptionRef, error)
		SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
	}
	Outbox EffectOutbox
	Lanes  Lanes
	Clock  Clock
	Logger zerolog.Logger

	Batch int           // events per batch; TailBatchDefault if 0
	Poll  time.Duration // PollDefault if 0
	// WakeWorker, if set, is called after lanes were marked.
	WakeWorker func()

	service startstop.Service
	wake    nudge
	cache   subscriptionCache
	warned  onceSet
}

// Wake tells the tail that a log has grown: it looks at once.
func (t *Tail) Wake(string) { t.wake.Nudge() }

// Start starts the loop; it returns once it runs.
func (t *Tail) Start(ctx context.Context) error { return t.service.Start(ctx, t.run) }

// Stop ends the loop and waits for the batch under way.
func (t *Tail) Stop() { t.service.Stop() }

func (t *Tail) run(ctx context.Context) {
	poll := orDefault(t.Poll, PollDefault)
	for ctx.Err() == nil {
		if err := t.DrainDirty(ctx); err != nil && ctx.Err() == nil {
			t.Logger.Warn().Err(err).Msg("tail: look for dirty tenants")
		}
		t.wake.Wait(ctx, jitter(poll))
	}
}

// DrainDirty drains each dirty tenant once. A tenant that fails is deferred
// and does not hold up the others (T6).
func (t *Tail) DrainDirty(ctx context.Context) error {
	tenants, err := t.Heads.HeadsDirty(ctx, t.Clock.Now(), tenantsPerRound)
	if err != nil {
		return err
	}
	for _, tenant := range tenants {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		moved, err := t.Drain(ctx, tenant)
		if err == nil && moved {
			continue
		}
		if err != nil && ctx.Err() == nil {
			t.report(tenant, err)
		}
		// Nothing to do before a hole either: look again, but not in a spin.
		wait := deferTenant
		if err == nil {
			wait = orDefault(t.Poll, PollDefault)
		}
		if derr := t.Heads.HeadDefer(ctx, tenant, t.Clock.Now().Add(wait)); derr != nil && ctx.Err() == nil {
			t.Logger.Warn().Err(derr).Str("tenant", tenant).Msg("tail: defer tenant")
		}
	}
	return nil
}

func (t *Tail) report(tenant string, err error) {
	if unknown := (*UnknownFeatureError)(nil); errors.As(err, &unknown) && !t.warned.First(tenant+" "+unknown.Error()) {
		return
	}
	t.Logger.Warn().Err(err).Str("tenant", tenant).Msg("tail: batch aborted, cursor untouched")
}

// Drain handles one batch of one tenant and reports whether the cursor moved.
// Any error leaves the cursor where it was; rows that were written already are
// found there by the next try (T1, T2).
func (t *Tail) Drain(ctx context.Context, tenantID string) (moved bool, err error) {
	head, err := t.Heads.HeadGet(ctx, tenantID)
	if errors.Is(err, tracker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("drain %s: %w", tenantID, err)
	}
	batch := int64(orDefault(t.Batch, TailBatchDefault))
	events, err := t.Log.EventList(ctx, tenantID, head.Cursor, min(head.Seq, head.Cursor+batch))
	if err != nil {
		return false, fmt.Errorf("drain %s after %d: %w", tenantID, head.Cursor, err)
	}
	events = contiguous(events, head.Cursor)
	if len(events) == 0 {
		return false, nil
	}
	// Subscriptions are read after the events: one whose save was answered
	// before an event was written is seen by that event's batch (T7).
	subs, err := t.cache.load(ctx, t.Config, tenantID)
	if err != nil {
		return false, fmt.Errorf("drain %s: subscriptions: %w", tenantID, err)
	}
	var rows []Effect
	for i := range events {
		owed, err := t.owed(ctx, &events[i], subs)
		if err != nil {
			return false, fmt.Errorf("drain %s: event %d: %w", tenantID, events[i].Seq, err)
		}
		rows = append(rows, owed...)
	}
	if err := t.write(ctx, tenantID, rows); err != nil {
		return false, fmt.Errorf("drain %s: %w", tenantID, err)
	}
	to := events[len(events)-1].Seq
	// A lost CAS is silent: another replica did the same work.
	if _, err := t.Heads.HeadAdvance(ctx, tenantID, head.Cursor, to); err != nil {
		return false, fmt.Errorf("advance cursor %s from %d to %d: %w", tenantID, head.Cursor, to, err)
	}
	if to < head.Seq {
		t.wake.Nudge()
	}
	return true, nil
}

// contiguous returns the prefix of the events that follows the cursor without
// a hole: the cursor never passes one (T3).
func contiguous(events []Event, cursor int64) []Event {
	for i := range events {
		if events[i].Seq != cursor+int64(i)+1 {
			return events[:i]
		}
	}
	return events
}

// owed returns the rows that an event owes.
func (t *Tail) owed(ctx context.Context, e *Event, subs []*Subscription) ([]Effect, error) {
	if e.Source == SourceVoid {
		return nil, nil
	}
	if err := checkFeatures("event "+e.ID(), e.Requires); err != nil {
		return nil, err
	}
	if e.After == nil {
		if gone, err := t.normalize(ctx, e); gone || err != nil {
			return nil, err
		}
	}
	var rows []Effect
	for _, s := range subs {
		if err := checkFeatures("subscription "+s.ID, s.Requires); err != nil {
			return nil, err
		}
		if s.Enabled && e.Seq > s.ActiveFromSeq && s.Matches(e) {
			rows = append(rows, s.row(e, t.Clock))
		}
	}
	return rows, nil
}

// normalize gives an event without a snapshot (an older or foreign emitter's)
// the card as it stands. Only a card that is not there skips the event; any
// other error is transient (T2).
func (t *Tail) normalize(ctx context.Context, e *Event) (gone bool, err error) {
	card, err := t.Cards.CardGet(ctx, e.TenantID, e.CardID)
	if errors.Is(err, tracker.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("normalize from card %s: %w", e.CardID, err)
	}
	e.After, e.BoardID, e.CardRev = card.Snapshot(), card.BoardID, card.Rev
	e.BeforeUnknown = e.Before == nil && e.Kind != tracker.KindCreated
	return false, nil
}

// write writes the rows that are absent and marks the lanes of all of them:
// not only of new ones, since whoever wrote the others may have died before
// marking; and the lanes that the rows carry, since a subscription may have
// moved to another bot meanwhile.
func (t *Tail) write(ctx context.Context, tenantID string, rows []Effect) error {
	if len(rows) == 0 {
		return nil
	}
	refs, err := t.Outbox.EffectMaterialize(ctx, tenantID, rows)
	if err != nil {
		return fmt.Errorf("write %d rows: %w", len(rows), err)
	}
	due := make(map[string]time.Time)
	for _, ref := range refs {
		if at, ok := due[ref.Lane]; ref.State.Live() && (!ok || ref.NotBefore.Before(at)) {
			due[ref.Lane] = ref.NotBefore
		}
	}
	if len(due) == 0 {
		return nil
	}
	marks := make([]LaneMark, 0, len(due))
	for lane, at := range due {
		marks = append(marks, LaneMark{TenantID: tenantID, Lane: lane, Due: at})
	}
	if err := t.Lanes.LaneMarkMany(ctx, marks); err != nil {
		return fmt.Errorf("mark %d lanes: %w", len(marks), err)
	}
	if t.WakeWorker != nil {
		t.WakeWorker()
	}
	return nil
}

// jitter spreads a period over 75 % to 125 % of it, so that replicas that
// started together drift apart.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // jitter is no secret
}
