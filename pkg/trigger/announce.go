package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
)

// Numbers of the announcer.
const (
	AnnounceEveryDefault = 2 * time.Second
	// announceStepIn is how long a row waits for the preferred replica.
	announceStepIn = 10 * time.Second
	// announceRetry is how long a tenant's rows are put off whose events could
	// not be appended.
	announceRetry = 10 * time.Second
	announcePage  = 100
	// announcePages bounds one call, so that the loop hears of its end.
	announcePages = 100
)

// Announcer tells of rows that were parked, by events that subscriptions may
// ask for: effect.failed and effect.reconcile. Whatever parks a row says in
// the same write that it is to be announced; the announcer appends the event,
// whose id is the parking's own, and then takes the mark off the row. So each
// parking is told of at least once, and is in the log once, whatever dies in
// between, unless somebody has decided about the row before: he knows of it.
// Any number of announcers may run; one is preferred.
type Announcer struct {
	Outbox interface {
		EffectsUnannounced(ctx context.Context, due time.Time, limit int) ([]Effect, error)
		EffectsAnnounced(ctx context.Context, rows []Effect, until time.Time) error
	}
	Relay  *Relay
	Clock  Clock
	Logger zerolog.Logger
	Every  time.Duration // AnnounceEveryDefault if 0
	// Prefers, if set, reports whether this replica is the preferred one.
	Prefers func(key string) bool

	service   startstop.Service
	wake      nudge
	announced atomic.Int64
}

// Wake makes the announcer look for parked rows at once, where it is the
// preferred one.
func (a *Announcer) Wake() { a.wake.Nudge() }

// Announced counts the rows that this announcer has told of.
func (a *Announcer) Announced() int64 { return a.announced.Load() }

// Start starts the loop; it returns once it runs.
func (a *Announcer) Start(ctx context.Context) error { return a.service.Start(ctx, a.run) }

// Stop ends the loop and waits for the page under way.
func (a *Announcer) Stop() { a.service.Stop() }

func (a *Announcer) run(ctx context.Context) {
	for ctx.Err() == nil {
		due := a.Clock.Now()
		if a.Prefers != nil && !a.Prefers("announce") {
			due = due.Add(-announceStepIn)
		}
		if err := a.Announce(ctx, due); err != nil && ctx.Err() == nil {
			a.Logger.Warn().Err(err).Msg("announcer: a round failed, the next one goes on")
		}
		a.wake.Wait(ctx, jitter(orDefault(a.Every, AnnounceEveryDefault)))
	}
}

// Announce tells of the rows that are to be announced since due or before. A
// tenant whose events can't be appended is put off and does not hold up the
// others. It may be called at any time.
func (a *Announcer) Announce(ctx context.Context, due time.Time) error {
	var errs []error
	for range announcePages {
		rows, err := a.Outbox.EffectsUnannounced(ctx, due, announcePage)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		slices.SortFunc(rows, func(x, y Effect) int {
			return cmp.Or(cmp.Compare(x.TenantID, y.TenantID), x.AnnounceAt.Compare(y.AnnounceAt), cmp.Compare(x.ID, y.ID))
		})
		for from := 0; from < len(rows); {
			to := from + 1
			for to < len(rows) && rows[to].TenantID == rows[from].TenantID {
				to++
			}
			errs = append(errs, a.tenant(ctx, rows[from:to]))
			from = to
		}
		if err := errors.Join(errs...); err != nil && ctx.Err() != nil || len(rows) < announcePage {
			return err
		}
	}
	return errors.Join(errs...)
}

// tenant tells of some rows of one tenant: the events first, then the marks.
func (a *Announcer) tenant(ctx context.Context, rows []Effect) error {
	var events []Event
	for i := range rows {
		if e, ok := tell(&rows[i]); ok {
			events = append(events, e)
		}
	}
	if len(events) > 0 {
		_, err := a.Relay.Append(ctx, rows[0].TenantID, events)
		switch {
		case errors.Is(err, ErrEventExists):
			// Another version has told of it in other words.
			a.Logger.Warn().Err(err).Str("tenant", rows[0].TenantID).Msg("announcer: another version has told of it in other words")
		case err != nil:
			return errors.Join(fmt.Errorf("announce %d rows: %w", len(rows), err), a.Outbox.EffectsAnnounced(ctx, rows, a.Clock.Now().Add(announceRetry)))
		}
	}
	if err := a.Outbox.EffectsAnnounced(ctx, rows, time.Time{}); err != nil {
		return err
	}
	a.announced.Add(int64(len(events)))
	return nil
}
