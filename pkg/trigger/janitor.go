package trigger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Defaults of the janitor (R4).
const (
	JanitorEveryDefault   = 10 * time.Minute
	EventRetentionDefault = 7 * 24 * time.Hour
	RowRetentionDefault   = 7 * 24 * time.Hour
	janitorPage           = 500
	janitorPageMin        = 10
	janitorTenants        = 1000
	// restMax is how long a tenant is let alone at most that has nothing to be
	// removed in that time.
	restMax = 24 * time.Hour
)

// Janitor removes events that are below the cursor, past their retention and
// no longer pending on their card; and done rows past theirs, but only when
// their event is gone (R4). Else whoever reads the log again could create an
// effect twice. It works in pages, smaller ones after failures. Any number of
// janitors may run; one is preferred.
type Janitor struct {
	Cards     tracker.CardStore
	Log       EventLog
	Heads     Heads
	Retention Retention
	Clock     Clock
	Logger    zerolog.Logger
	// Release takes an effect's consumption off its card, if it is there (W7).
	Release func(ctx context.Context, tenantID, cardID, effectID string) error
	// Every is how often to clean up; Events and Rows are the retentions.
	Every, Events, Rows time.Duration
	// Prefers, if set, reports whether this replica is the preferred janitor.
	Prefers func(key string) bool

	service startstop.Service
	page    int
	// resting says until when a tenant has nothing to be removed: most have
	// not, and asking each of them every time would cost more than all else
	// that an idle replica does.
	resting map[string]time.Time
}

// Start starts the loop; it returns once it runs.
func (j *Janitor) Start(ctx context.Context) error { return j.service.Start(ctx, j.run) }

// Stop ends the loop and waits for the page under way.
func (j *Janitor) Stop() { j.service.Stop() }

func (j *Janitor) run(ctx context.Context) {
	var wait nudge
	for {
		wait.Wait(ctx, jitter(orDefault(j.Every, JanitorEveryDefault)))
		if ctx.Err() != nil {
			return
		}
		if j.Prefers != nil && !j.Prefers("janitor") {
			continue
		}
		if err := j.Clean(ctx); err != nil && ctx.Err() == nil {
			j.Logger.Warn().Err(err).Msg("janitor: a round failed, the next one goes on")
		}
	}
}

// Clean cleans up after all tenants. One that fails does not keep the others
// from being cleaned.
func (j *Janitor) Clean(ctx context.Context) error {
	var errs []error
	now := j.Clock.Now()
	maps.DeleteFunc(j.resting, func(_ string, until time.Time) bool { return !now.Before(until) })
	after := ""
	for ctx.Err() == nil {
		heads, err := j.Heads.HeadList(ctx, after, janitorTenants)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i := range heads {
			after = heads[i].TenantID
			if _, rests := j.resting[after]; rests {
				continue
			}
			if err := j.tenant(ctx, &heads[i]); err != nil {
				errs = append(errs, fmt.Errorf("clean up %s: %w", after, err))
				j.page = max(janitorPageMin, j.size()/2)
			}
		}
		if len(heads) < janitorTenants {
			break
		}
	}
	return errors.Join(errs...)
}

func (j *Janitor) size() int { return orDefault(j.page, janitorPage) }

func (j *Janitor) tenant(ctx context.Context, head *Head) error {
	if rests, err := j.rest(ctx, head); rests || err != nil {
		return err
	}
	if err := j.events(ctx, head); err != nil {
		return err
	}
	return j.rows(ctx, head.TenantID)
}

// rest looks whether the tenant has anything to be removed soon, and lets it
// rest if not. What enters the log or is settled from now on stays for longer
// than that, and what is there does not get older than it is.
func (j *Janitor) rest(ctx context.Context, head *Head) (bool, error) {
	events, rows := orDefault(j.Events, EventRetentionDefault), orDefault(j.Rows, RowRetentionDefault)
	now, span := j.Clock.Now(), min(events, rows, restMax)
	// Up to the end of the log: the cursor gets there meanwhile.
	some, err := j.Retention.EventsRemovable(ctx, head.TenantID, head.Seq, now.Add(span-events), j.size())
	if err != nil || len(some) > 0 {
		return false, err
	}
	over, err := j.Retention.EffectsSettledBefore(ctx, head.TenantID, now.Add(span-rows), "", 1)
	if err != nil || len(over) > 0 {
		return false, err
	}
	if j.resting == nil {
		j.resting = make(map[string]time.Time)
	}
	j.resting[head.TenantID] = now.Add(span)
	return true, nil
}

// events removes events up to the cursor. A page that holds one that is still
// pending on its card (a resumed relay would emit it a second time), or tells
// of a row that still says it is to be announced (likewise), ends
// there: the log loses its oldest events only, without gaps.
func (j *Janitor) events(ctx context.Context, head *Head) error {
	before := j.Clock.Now().Add(-orDefault(j.Events, EventRetentionDefault))
	for ctx.Err() == nil {
		size := j.size()
		page, err := j.Retention.EventsRemovable(ctx, head.TenantID, head.Cursor, before, size)
		if err != nil || len(page) == 0 {
			return err
		}
		eids := make([]string, len(page))
		for i, e := range page {
			eids[i] = e.EID
		}
		pending, err := j.Cards.CardPendingEIDs(ctx, head.TenantID, eids)
		if err != nil {
			return err
		}
		untold, err := j.untold(ctx, head.TenantID, eids)
		if err != nil {
			return err
		}
		var seqs []int64
		for _, e := range page {
			if slices.Contains(pending, e.EID) || slices.Contains(untold, toldRow(e.EID)) {
				break
			}
			seqs = append(seqs, e.Seq)
		}
		if len(seqs) == 0 {
			return nil
		}
		if err := j.Retention.EventRemoveMany(ctx, head.TenantID, seqs); err != nil {
			return err
		}
		if len(seqs) < len(page) || len(page) < size {
			return nil
		}
	}
	return ctx.Err()
}

// untold returns those of the rows that the events tell of which are not known
// to be told of: an announcer that goes on would tell of them a second time.
func (j *Janitor) untold(ctx context.Context, tenantID string, eids []string) ([]string, error) {
	var rows []string
	for _, eid := range eids {
		if id := toldRow(eid); id != "" {
			rows = append(rows, id)
		}
	}
	if len(rows) == 0 {
		return nil, nil
	}
	return j.Retention.EffectsToAnnounce(ctx, tenantID, rows)
}

// rows lets done and discarded rows go whose event is gone, and will not be matched again: a
// poison row that is not over may be replayed, from the event that it carries.
func (j *Janitor) rows(ctx context.Context, tenantID string) error {
	before := j.Clock.Now().Add(-orDefault(j.Rows, RowRetentionDefault))
	after := ""
	for ctx.Err() == nil {
		size := j.size()
		page, err := j.Retention.EffectsSettledBefore(ctx, tenantID, before, after, size)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].ID
		// Ids sort by seq, so a page's seqs are a range.
		kept, err := j.Log.EventSeqs(ctx, tenantID, page[0].EventSeq-1, page[len(page)-1].EventSeq)
		if err != nil {
			return err
		}
		gone, err := j.gone(ctx, tenantID, page, kept)
		if err != nil {
			return err
		}
		for _, row := range page {
			if len(row.Consume) == 0 || !slices.Contains(gone, row.ID) {
				continue
			}
			// A crash right after the row was done has left it (W7).
			if err := j.Release(ctx, tenantID, row.CardID, row.ID); err != nil {
				return err
			}
		}
		if len(gone) > 0 {
			if err := j.Retention.EffectExpireMany(ctx, tenantID, gone); err != nil {
				return err
			}
		}
		if len(page) < size {
			return nil
		}
	}
	return ctx.Err()
}

// gone returns the ids of those rows whose event is not among the seqs kept,
// nor has a poison row that is not over.
func (j *Janitor) gone(ctx context.Context, tenantID string, page []EffectSeq, kept []int64) (ids []string, err error) {
	page = slices.DeleteFunc(slices.Clone(page), func(row EffectSeq) bool {
		_, there := slices.BinarySearch(kept, row.EventSeq)
		return there
	})
	if len(page) == 0 {
		return nil, nil
	}
	poison := make([]string, len(page))
	for i, row := range page {
		poison[i] = PoisonID(EventID(tenantID, row.EventSeq))
	}
	open, err := j.Retention.EffectsOpen(ctx, tenantID, slices.Compact(slices.Clone(poison)))
	if err != nil {
		return nil, err
	}
	for i, row := range page {
		if !slices.Contains(open, poison[i]) {
			ids = append(ids, row.ID)
		}
	}
	return ids, nil
}

// LiftAll lifts every tenant's head, once at start-up (T4): after a restore a
// reused seq would find its row's key taken, a subscription would be blind,
// and a quiet tenant's log would lie there unseen.
func LiftAll(ctx context.Context, heads Heads, tenants interface {
	TenantIDs(ctx context.Context, afterID string, limit int) ([]string, error)
}, log zerolog.Logger,
) error {
	after := ""
	for {
		ids, err := tenants.TenantIDs(ctx, after, janitorTenants)
		if err != nil {
			return fmt.Errorf("lift heads: %w", err)
		}
		for _, id := range ids {
			after = id
			if err := liftHead(ctx, heads, log, id); err != nil {
				return err
			}
		}
		if len(ids) < janitorTenants {
			return nil
		}
	}
}
