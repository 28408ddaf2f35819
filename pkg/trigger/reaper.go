package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Defaults of the reaper.
const (
	ReapEveryDefault = 15 * time.Second
	// ReapAfterDefault is longer than a lease, and than a request may take: what
	// was under way when the tenant was marked has ended.
	ReapAfterDefault = LeaseDefault + 3*time.Minute
	// ReapQuietDefault is how long nothing may have come back before the tenant
	// itself goes: longer than any one operation and what it tries again.
	ReapQuietDefault = 30 * time.Second
	// reapLease is how long one reaper has a tenant to itself; it sends nothing
	// more once reapMargin, longer than any operation takes, is left of it.
	reapLease   = 2 * time.Minute
	reapMargin  = 30 * time.Second
	reapPage    = 500
	reapTenants = 100
)

// TenantPart is one kind of what a tenant has.
type TenantPart string

// The parts of a tenant, in the order in which they go: first what makes
// others, and the head, which numbers events, last.
const (
	PartHooks         TenantPart = "hooks"
	PartCards         TenantPart = "cards"
	PartEvents        TenantPart = "events"
	PartEffects       TenantPart = "effects"
	PartLanes         TenantPart = "lanes"
	PartBulks         TenantPart = "bulks"
	PartDeliveries    TenantPart = "deliveries"
	PartCreateKeys    TenantPart = "create keys"
	PartSubscriptions TenantPart = "subscriptions"
	PartProjections   TenantPart = "projections"
	PartBots          TenantPart = "bots"
	PartBoards        TenantPart = "boards"
	PartTokens        TenantPart = "tokens"
	PartAudit         TenantPart = "audit"
	PartPauses        TenantPart = "pauses"
	PartHead          TenantPart = "head"
)

// TenantParts lists the parts in the order in which they go.
func TenantParts() []TenantPart {
	return []TenantPart{
		PartHooks, PartCards, PartEvents, PartEffects, PartLanes, PartBulks, PartDeliveries, PartCreateKeys, PartSubscriptions, PartProjections,
		PartBots, PartBoards, PartTokens, PartAudit, PartPauses, PartHead,
	}
}

// Tenancy removes tenants.
type Tenancy interface {
	// TenantsDeleting returns up to limit tenants that are being deleted, with
	// ids after one, by id. TenantIDs leaves them out.
	TenantsDeleting(ctx context.Context, afterID string, limit int) ([]Tenant, error)
	// TenantPurge removes up to limit things of a part of a tenant, and
	// returns how many it removed. Of a part that the tenant has none of, or
	// of a tenant that is not there, that is 0.
	TenantPurge(ctx context.Context, tenantID string, part TenantPart, limit int) (int, error)
	// TenantRemove removes the tenant itself, at the revision: ErrConflict
	// when it has another one, ErrNotFound when it is not there.
	TenantRemove(ctx context.Context, tenantID string, revision int64) error
	// EffectCount counts the tenant's rows in a state, up to most.
	EffectCount(ctx context.Context, tenantID string, state State, most int) (int, error)
	// TokensRevoke revokes all tokens that are bound to the tenant.
	TokensRevoke(ctx context.Context, tenantID string, at time.Time) error
}

// Reaper removes what tenants had that are being deleted, and then them: in
// pages, from the start again after a crash. Any number of reapers may run; one
// is preferred, and one has a tenant at a time.
type Reaper struct {
	Store interface {
		Tenancy
		Config
		Pauses
		Clock
	}
	Logger zerolog.Logger
	// Every is how often to look, After how long after the mark the first thing
	// goes, Quiet how long nothing may have come back before the tenant goes;
	// the defaults if 0.
	Every, After, Quiet time.Duration
	// Prefers, if set, says whether this replica is the one to do it.
	Prefers func(string) bool

	// mine are the tenants that this reaper had last, by id. They are this
	// process's own: another begins anew, and so does this one after another.
	mine    map[string]reaping
	service startstop.Service
}

// reaping is a tenant as a reaper took it.
type reaping struct {
	revision int64
	until    time.Time
	// clean is since when whole passes have found nothing; zero if the last one
	// did.
	clean time.Time
}

// Start starts the loop; it returns once it runs.
func (r *Reaper) Start(ctx context.Context) error { return r.service.Start(ctx, r.run) }

// Stop ends the loop and waits for the page under way.
func (r *Reaper) Stop() { r.service.Stop() }

func (r *Reaper) run(ctx context.Context) {
	var wait nudge
	for {
		wait.Wait(ctx, jitter(orDefault(r.Every, ReapEveryDefault)))
		if ctx.Err() != nil {
			return
		}
		if r.Prefers != nil && !r.Prefers("reaper") {
			continue
		}
		if err := r.Reap(ctx); err != nil && ctx.Err() == nil {
			r.Logger.Warn().Err(err).Msg("reaper: a round failed, the next one goes on")
		}
	}
}

// Reap goes once over all tenants that are being deleted. One that fails does
// not keep the others. It is for one goroutine.
func (r *Reaper) Reap(ctx context.Context) error {
	var errs []error
	for after := ""; ctx.Err() == nil; {
		page, err := r.Store.TenantsDeleting(ctx, after, reapTenants)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i := range page {
			after = page[i].ID
			if err := r.tenant(ctx, &page[i]); err != nil {
				errs = append(errs, fmt.Errorf("delete tenant %s: %w", after, err))
			}
		}
		if len(page) < reapTenants {
			break
		}
	}
	return errors.Join(errs...)
}

// errReapLease says that the pass took too long; the next one goes on.
var errReapLease = errors.New("the lease is nearly over")

func (r *Reaper) tenant(ctx context.Context, marked *Tenant) error {
	// One reaper at a time, by a lease on the tenant: another one that is still
	// removing when the tenant is gone would remove what one of the same id has
	// that was made since.
	now := r.Store.Now()
	had := r.mine[marked.ID]
	if had.revision != marked.Revision || !had.until.Equal(marked.ReapUntil) {
		had = reaping{} // another one had it since, or it is another tenant
		if now.Before(marked.ReapUntil) {
			return nil
		}
	}
	// Whatever takes so long ends before the lease.
	ctx, cancel := context.WithTimeout(ctx, reapLease-reapMargin)
	defer cancel()
	t := *marked
	t.Revision, t.UpdatedAt, t.ReapUntil = t.Revision+1, now, now.Add(reapLease)
	switch err := r.Store.TenantSave(ctx, &t); {
	case errors.Is(err, tracker.ErrConflict): // another reaper was faster
		return nil
	case err != nil:
		return err
	}
	if r.mine == nil {
		r.mine = make(map[string]reaping)
	}
	r.mine[t.ID] = reaping{revision: t.Revision, until: t.ReapUntil}
	// A crash may have come right after the mark.
	if err := TenantQuiesce(ctx, r.Store, &t); err != nil {
		return err
	}
	if now.Before(t.DeletingAt.Add(orDefault(r.After, ReapAfterDefault))) {
		return nil
	}
	found, err := r.pass(ctx, &t)
	switch {
	case errors.Is(err, errReapLease):
		return nil
	case err != nil:
		return err
	case found > 0:
		return nil
	}
	if had.clean.IsZero() || now.Sub(had.clean) < orDefault(r.Quiet, ReapQuietDefault) {
		if had.clean.IsZero() {
			had.clean = now
		}
		r.mine[t.ID] = reaping{t.Revision, t.ReapUntil, had.clean}
		return nil
	}
	if err := r.Store.TenantRemove(ctx, t.ID, t.Revision); err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return err
	}
	delete(r.mine, t.ID)
	r.Logger.Info().Str("tenant", t.ID).Msg("a tenant is deleted")
	return nil
}

// pass removes what there is of the tenant, part by part, and returns how much
// it was. The pause is not counted: each pass sets it, and takes it away last.
func (r *Reaper) pass(ctx context.Context, t *Tenant) (found int, err error) {
	for _, part := range TenantParts() {
		for {
			if r.Store.Now().After(t.ReapUntil.Add(-reapMargin)) {
				return found, errReapLease
			}
			n, err := r.Store.TenantPurge(ctx, t.ID, part, reapPage)
			if err != nil {
				return found, err
			}
			if part != PartPauses {
				found += n
			}
			if n < reapPage {
				break
			}
		}
	}
	return found, nil
}

// TenantQuiesce keeps a tenant that is being deleted from doing anything more:
// its launches are paused, its tokens revoked, its hooks gone and its
// subscriptions and projections disabled. It may be called again at any time.
func TenantQuiesce(ctx context.Context, store interface {
	Tenancy
	Config
	Pauses
	Clock
}, t *Tenant,
) error {
	now := store.Now()
	if err := store.PauseSet(ctx, Pause{TenantID: t.ID, By: "deletion", Note: "the tenant is being deleted", At: now}); err != nil {
		return err
	}
	if err := store.TokensRevoke(ctx, t.ID, now); err != nil {
		return err
	}
	for {
		n, err := store.TenantPurge(ctx, t.ID, PartHooks, reapPage)
		if err != nil {
			return err
		}
		if n < reapPage {
			break
		}
	}
	subs, err := store.SubscriptionList(ctx, t.ID)
	if err != nil {
		return err
	}
	for i := range subs {
		if s := subs[i]; s.Enabled {
			s.Enabled, s.Revision, s.UpdatedAt = false, s.Revision+1, now
			if err := store.SubscriptionSave(ctx, &s); err != nil {
				return err
			}
		}
	}
	projections, err := store.ProjectionList(ctx, t.ID)
	if err != nil {
		return err
	}
	for i := range projections {
		if err := store.ProjectionDelete(ctx, t.ID, projections[i].ID, projections[i].Revision); err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return err
		}
	}
	return nil
}
