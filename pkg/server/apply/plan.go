package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// plan is what a file asks of the store as it was read. Making it writes
// nothing.
type plan struct {
	Params
	file    *File
	now     time.Time
	errs    Errors
	changes []*Change
	// steps are the writes, what is referred to before what refers to it.
	steps []step
}

type step struct {
	change *Change
	write  func(ctx context.Context) error
}

// newPlan reads the store and checks everything. The error is an Errors, or
// the store's.
func newPlan(ctx context.Context, f *File, p Params) (*plan, error) {
	pl := &plan{Params: p, file: f, now: p.Clock.Now()}
	for i := range f.tenants {
		t := &tenantPlan{plan: pl, spec: &f.tenants[i], names: make(map[string]string)}
		if t.foreign() {
			continue
		}
		if err := t.read(ctx); err != nil {
			return nil, fmt.Errorf("apply %s: read tenant %s: %w", f.name, t.spec.id, err)
		}
		t.planTenant()
		if err := t.checkTenant(); err != nil {
			return nil, err
		}
		trims := t.planBoards()
		t.planBots()
		t.planHooks()
		t.planSubscriptions()
		t.planProjections()
		t.checkRemovedColumns()
		pl.steps = append(pl.steps, trims...)
	}
	if err := pl.errs.orNil(); err != nil {
		return nil, err
	}
	return pl, nil
}

func (pl *plan) errorf(path, format string, args ...any) {
	pl.errs = append(pl.errs, pl.file.errorf(path, format, args...))
}

// tenantPlan plans one tenant.
type tenantPlan struct {
	*plan
	spec *tenantSpec

	// What the store has.
	tenant        *trigger.Tenant
	boards        []tracker.Board
	bots          []trigger.Bot
	hooks         []trigger.Hook
	subscriptions []trigger.Subscription
	projections   []trigger.Projection

	// What there will be, by name: of the file, or of the store alone.
	nextBoards map[string]*tracker.Board
	botIDs     map[string]string
	names      map[string]string // boards' and bots', by id
}

func (t *tenantPlan) read(ctx context.Context) (err error) {
	id := t.spec.id
	t.tenant, err = t.Store.TenantGet(ctx, id)
	if err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return err
	}
	if err != nil {
		t.tenant = nil
	}
	if t.boards, err = t.Store.BoardList(ctx, id); err != nil {
		return err
	}
	if t.bots, err = t.Store.BotList(ctx, id); err != nil {
		return err
	}
	if t.hooks, err = t.Store.HookList(ctx, id); err != nil {
		return err
	}
	if t.subscriptions, err = t.Store.SubscriptionList(ctx, id); err != nil {
		return err
	}
	t.projections, err = t.Store.ProjectionList(ctx, id)
	return err
}

// foreign refuses a tenant that the file may not describe, ahead of all that is
// compared with what the store has of it: whose file this is must not learn that.
func (t *tenantPlan) foreign() bool {
	if t.Tenant == "" || t.spec.id == t.Tenant {
		return false
	}
	t.errorf(t.spec.path+".id", "only one tenant may be described here, and it is another one")
	return true
}

// checkTenant holds the file to a tenant that is there, and to its name.
func (t *tenantPlan) checkTenant() error {
	switch {
	case t.Tenant == "":
	case t.tenant == nil:
		return fmt.Errorf("apply %s: tenant %s: %w", t.file.name, t.Tenant, tracker.ErrNotFound)
	case t.tenant.Name != t.spec.name:
		t.errorf(t.spec.path+".name", "a tenant is renamed by an admin who applies a file for all tenants: write the name that it has")
	}
	return nil
}

// change notes what becomes of a thing: created when it has no old one, updated
// when there are details.
func (t *tenantPlan) change(kind, name, id string, isNew bool, details diff) *Change {
	c := &Change{Tenant: t.spec.id, Kind: kind, Name: name, ID: id, Action: Unchanged, Details: details}
	switch {
	case isNew:
		c.Action, c.Details = Created, nil
		if t.DryRun && kind != KindTenant {
			c.ID = "" // made when it is created
		}
	case len(details) > 0:
		c.Action = Updated
	}
	t.changes = append(t.changes, c)
	return c
}

// note keeps what was stored, and what will be.
func note[T any](c *Change, was, next *T) {
	if c.After = next; was != nil {
		c.Before = was
	}
}

// save plans the write of what the change tells of; none if nothing changed.
func (t *tenantPlan) save(c *Change, write func(ctx context.Context) error) {
	if c.Action == Unchanged {
		return
	}
	t.steps = append(t.steps, step{c, func(ctx context.Context) error {
		if err := write(ctx); err != nil {
			return fmt.Errorf("save %s %s/%s: %w", c.Kind, c.Tenant, c.Name, err)
		}
		return nil
	}})
}

// room counts a tenant's things of one kind, those that only the store has too.
type room struct {
	t    *tenantPlan
	kind string
	left int
	most int
}

func (t *tenantPlan) room(kind string, most, stored int) *room {
	return &room{t, kind, most - stored, most}
}

func (r *room) take(path string) {
	if r.left--; r.left == -1 {
		r.t.errorf(path, "at most %d %ss are allowed in a tenant, with those that only the store has", r.most, r.kind)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func (t *tenantPlan) planTenant() {
	next := trigger.Tenant{ID: t.spec.id}
	var d diff
	if t.tenant != nil {
		next = *t.tenant
		if !next.DeletingAt.IsZero() {
			t.errorf("id", "the tenant is being deleted: apply again when it is gone")
		}
		diffValue(&d, "name", next.Name, t.spec.name)
	}
	next.Name = t.spec.name
	next.Revision++
	next.UpdatedAt = t.now
	c := t.change(KindTenant, next.ID, next.ID, t.tenant == nil, d)
	note(c, t.tenant, &next)
	t.save(c, func(ctx context.Context) error { return t.Store.TenantSave(ctx, &next) })
}

func (t *tenantPlan) planBots() {
	room := t.room(KindBot, BotsMax, len(t.bots))
	t.botIDs = make(map[string]string)
	old := byName(t.bots, func(b *trigger.Bot) string { return b.Name })
	for name, b := range old {
		t.botIDs[name], t.names[b.ID] = b.ID, name
	}
	for i := range t.spec.bots {
		spec := &t.spec.bots[i]
		was := old[spec.name]
		next := trigger.Bot{TenantID: t.spec.id, ID: newID()}
		if was != nil {
			next = *was
		}
		url := t.keepURL(spec.path+".url", next.URL, spec.url)
		var d diff
		if was != nil {
			if next.URL != url {
				d = append(d, "url: changed")
			}
			diffValue(&d, "replay", next.Replay, spec.replay)
		} else {
			room.take(spec.path)
		}
		next.Name, next.URL, next.Replay = spec.name, url, spec.replay
		next.Revision++
		next.UpdatedAt = t.now
		t.botIDs[next.Name], t.names[next.ID] = next.ID, next.Name
		t.planSecret(&d, spec.secret, trigger.BotOwner(t.spec.id, next.ID), &next.Secret, next.NextSecret, t.ParseSecret)
		c := t.change(KindBot, next.Name, next.ID, was == nil, d)
		note(c, was, &next)
		t.save(c, func(ctx context.Context) error { return t.Store.BotSave(ctx, &next) })
	}
}

// planSecret replaces the stored secret by the one that ref names, if that is
// another. One that is being rotated stays as it is: a file that was not made
// for the rotation must not end it.
func (t *tenantPlan) planSecret(d *diff, ref secretRef, owner string, stored *trigger.Sealed, next trigger.Sealed, parse func(string) ([]byte, error)) {
	switch {
	case *stored != "" && (ref.initial || ref.SecretRef == SecretRef{}):
		return
	case ref.SecretRef == SecretRef{}:
		t.errorf(ref.path, "is required: there is no stored secret that could be kept")
		return
	}
	secret, ok := t.secret(ref, parse)
	if !ok {
		return
	}
	if next != "" {
		same, ok := t.same(ref, owner, next, secret)
		if !ok || same {
			return
		}
		if same, ok = t.same(ref, owner, *stored, secret); ok && !same {
			t.errorf(ref.path, "it is being rotated, and this is neither of the two secrets: end the rotation first, or give it up")
		}
		return
	}
	sealed, changed := t.seal(ref, owner, *stored, secret)
	if changed {
		*d = append(*d, "secret: changed")
	}
	*stored = sealed
}

func (t *tenantPlan) planHooks() {
	room := t.room(KindHook, HooksMax, len(t.hooks))
	old := byName(t.hooks, func(h *trigger.Hook) string { return h.Name })
	for i := range t.spec.hooks {
		spec := &t.spec.hooks[i]
		was := old[spec.name]
		next := trigger.Hook{TenantID: t.spec.id, ID: newID()}
		board := t.board(spec.path+".board", spec.board)
		if board != nil {
			t.checkColumn(spec.path+".columns.open", board, spec.open)
			t.checkColumn(spec.path+".columns.closed", board, spec.closed)
		} else {
			board = &tracker.Board{} // an error was noted
		}
		var d diff
		if was != nil {
			next = *was
			diffValue(&d, "provider", next.Provider, spec.provider)
			diffValue(&d, "board", t.nameOf(next.BoardID), t.nameOf(board.ID))
			diffValue(&d, "columns.open", next.OpenColumn, spec.open)
			diffValue(&d, "columns.closed", next.ClosedColumn, spec.closed)
		} else {
			room.take(spec.path)
		}
		next.Name, next.Provider, next.BoardID = spec.name, spec.provider, board.ID
		next.OpenColumn, next.ClosedColumn = spec.open, spec.closed
		next.Revision++
		next.UpdatedAt = t.now
		t.planSecret(&d, spec.secret, trigger.HookOwner(t.spec.id, next.ID), &next.Secret, next.NextSecret, config.ParseHookSecret)
		c := t.change(KindHook, next.Name, next.ID, was == nil, d)
		note(c, was, &next)
		t.save(c, func(ctx context.Context) error { return t.Store.HookSave(ctx, &next) })
	}
}

// board returns the board of that name as it will be, or nil after an error.
func (t *tenantPlan) board(path, name string) *tracker.Board {
	b := t.nextBoards[name]
	if b == nil {
		t.errorf(path, "there is no board of this name, neither in the file's tenant nor in the store")
	}
	return b
}

func (t *tenantPlan) checkColumn(path string, b *tracker.Board, column string) {
	if want := config.Column(b, column); want != "" {
		t.errorf(path, "%s", want)
	}
}

// bot returns the id of the bot of that name, or "" after an error.
func (t *tenantPlan) bot(path, name string) string {
	id := t.botIDs[name]
	if id == "" {
		t.errorf(path, "there is no bot of this name, neither in the file's tenant nor in the store")
	}
	return id
}

// nameOf is how a board or bot shows in details.
func (t *tenantPlan) nameOf(id string) string {
	if name, ok := t.names[id]; ok {
		return name
	}
	return id
}

func byName[T any](list []T, name func(*T) string) map[string]*T {
	out := make(map[string]*T, len(list))
	for i := range list {
		out[name(&list[i])] = &list[i]
	}
	return out
}
