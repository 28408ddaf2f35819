package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// quiesceFor is how long after its mark a call still stops a tenant; later it is
// the reaper's alone. It is far shorter than trigger.ReapAfterDefault.
const quiesceFor = time.Minute

// countMost is how far rows that would be lost are counted.
const countMost = 10_000

// TenantView is a tenant as the API shows it.
type TenantView struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Rev        int64      `json:"rev"`
	Status     string     `json:"status" enum:"active,deleting"`
	UpdatedAt  time.Time  `json:"updated_at"`
	DeletingAt *time.Time `json:"deleting_at,omitempty" doc:"since when it is being deleted"`
}

func newTenant(t *trigger.Tenant) TenantView {
	out := TenantView{ID: t.ID, Name: t.Name, Rev: t.Revision, Status: "active", UpdatedAt: t.UpdatedAt}
	if !t.DeletingAt.IsZero() {
		out.Status, out.DeletingAt = "deleting", &t.DeletingAt
	}
	return out
}

// asAWhole marks an operation on a tenant as such: it is entered into the audit
// log that outlives the tenant.
func asAWhole(o *huma.Operation) { mark(o, "tenant_as_a_whole", true) }

// whileDeleting marks an operation that a tenant which is being deleted answers.
func whileDeleting(o *huma.Operation) { mark(o, "while_deleting", true) }

// NewTenantBody asks for a tenant.
type NewTenantBody struct {
	ID   string `json:"id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]{0,62}$"`
	Name string `json:"name" minLength:"1" maxLength:"200"`
}

// TenantBody is what of a tenant can be changed.
type TenantBody struct {
	Name string `json:"name" minLength:"1" maxLength:"200"`
}

func (a *API) registerTenants(api huma.API) {
	huma.Post(api, "/v1/tenants", func(ctx context.Context, in *struct{ Body NewTenantBody }) (*made[TenantView], error) {
		_, again := newID(ctx)
		t := &trigger.Tenant{ID: in.Body.ID, Name: in.Body.Name, Revision: 1, UpdatedAt: a.Store.Now()}
		err := a.Store.TenantSave(ctx, t)
		if errors.Is(err, tracker.ErrConflict) {
			have, gerr := a.Store.TenantGet(ctx, in.Body.ID)
			if gerr != nil || !again || have.Revision != 1 || have.Name != t.Name {
				return nil, huma.Error409Conflict("there is a tenant with this id, or one is being deleted")
			}
			t, err = have, nil // a call with this key made it
		} else if err == nil {
			noteChange(ctx, "tenant", t.ID, nil, newTenant(t))
		}
		if err != nil {
			return nil, a.fail(err)
		}
		return &made[TenantView]{Status: http.StatusCreated, ETag: etag(t.Revision), Location: "/v1/tenants/" + t.ID, Body: newTenant(t)}, nil
	}, named("create-tenant", "Make a tenant. For admins."), write, creates, forAdmins, asAWhole)

	huma.Put(api, "/v1/tenants/{tenant}", func(ctx context.Context, in *struct {
		TenantInput
		MatchInput
		Body TenantBody
	},
	) (*tagged[TenantView], error) {
		t, err := a.tenantChange(ctx, in.Tenant, &in.MatchInput, true, func(t *trigger.Tenant) { t.Name = in.Body.Name })
		if err != nil {
			return nil, err
		}
		return &tagged[TenantView]{ETag: etag(t.Revision), Body: newTenant(t)}, nil
	}, named("replace-tenant", "Rename the tenant. For admins."), write, forAdmins, asAWhole)

	huma.Delete(api, "/v1/tenants/{tenant}", func(ctx context.Context, in *struct {
		TenantInput
		MatchInput
		Discard bool `query:"discard" doc:"true: also if rows would be lost that somebody may still want"`
	},
	) (*tagged[TenantView], error) {
		t, err := a.tenantDelete(ctx, in.Tenant, &in.MatchInput, in.Discard)
		if err != nil {
			return nil, err
		}
		return &tagged[TenantView]{ETag: etag(t.Revision), Body: newTenant(t)}, nil
	}, named("delete-tenant", "Delete the tenant and all that it has. It stops at once, and is gone some minutes later. For admins."),
		forAdmins, asAWhole, whileDeleting, func(o *huma.Operation) { o.DefaultStatus = http.StatusAccepted })
}

// tenantChange changes a tenant, again if somebody else did meanwhile and the
// caller does not mind.
func (a *API) tenantChange(ctx context.Context, id string, match *MatchInput, required bool, change func(*trigger.Tenant)) (*trigger.Tenant, error) {
	for try := 0; ; try++ {
		before, err := a.Store.TenantGet(ctx, id)
		if err != nil {
			return nil, a.fail(err)
		}
		if err := match.check(before.Revision, required); err != nil {
			return nil, err
		}
		next := *before
		change(&next)
		next.Revision, next.UpdatedAt = next.Revision+1, a.Store.Now()
		switch err := a.Store.TenantSave(ctx, &next); {
		case err == nil:
			noteChange(ctx, "tenant", id, newTenant(before), newTenant(&next))
			return &next, nil
		case !errors.Is(err, tracker.ErrConflict):
			return nil, a.fail(err)
		case !match.blind():
			return nil, errChanged()
		case try == 5:
			return nil, a.fail(err)
		}
	}
}

// tenantDelete marks the tenant; a reaper does the rest.
func (a *API) tenantDelete(ctx context.Context, id string, match *MatchInput, discard bool) (*trigger.Tenant, error) {
	t, err := a.Store.TenantGet(ctx, id)
	if err != nil {
		return nil, a.fail(err)
	}
	if t.DeletingAt.IsZero() {
		if !discard {
			if err := a.nothingToLose(ctx, id); err != nil {
				return nil, err
			}
		}
		t, err = a.tenantChange(ctx, id, match, false, func(t *trigger.Tenant) {
			if t.DeletingAt.IsZero() {
				t.DeletingAt = a.Store.Now()
			}
		})
		if err != nil {
			return nil, err
		}
	}
	// Long after the mark it may go at any moment, and its id be used again: this
	// would stop the new one.
	if a.Store.Now().Sub(t.DeletingAt) > quiesceFor {
		return t, nil
	}
	// If this fails the reaper does it.
	if err := trigger.TenantQuiesce(ctx, a.Store, t); err != nil {
		return nil, a.fail(err)
	}
	return t, nil
}

// nothingToLose refuses while there are rows that a person may still want.
func (a *API) nothingToLose(ctx context.Context, id string) error {
	var says []string
	// First the log: what it owes is rows by the time that these are counted.
	head, err := a.Store.HeadGet(ctx, id)
	if err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return a.fail(err)
	}
	if head != nil && head.Seq > head.Cursor {
		says = append(says, fmt.Sprintf("those of %d events that are not matched yet", head.Seq-head.Cursor))
	}
	for _, state := range []trigger.State{trigger.StatePending, trigger.StateClaimed, trigger.StateHeld, trigger.StateFailed, trigger.StateReconcile} {
		n, err := a.Store.EffectCount(ctx, id, state, countMost)
		if err != nil {
			return a.fail(err)
		}
		if n == countMost {
			says = append(says, fmt.Sprintf("%d or more %s", n, state))
		} else if n > 0 {
			says = append(says, fmt.Sprintf("%d %s", n, state))
		}
	}
	if len(says) > 0 {
		return huma.Error409Conflict("the tenant has effects that would be lost (" + strings.Join(says, ", ") + "): deal with them, or say discard=true")
	}
	return nil
}

// tenantPage is a page of all tenants: those that live, those that are being
// deleted, and those of which a head alone is left. Each of the three is read
// from the same id on, up to the same number, so that the first of them all
// together are complete.
func (a *API) tenantPage(ctx context.Context, after string, limit int) (*one[Page[trigger.TenantStatus]], error) {
	live, err := a.Store.TenantIDs(ctx, after, limit+1)
	if err != nil {
		return nil, a.fail(err)
	}
	deleting, err := a.Store.TenantsDeleting(ctx, after, limit+1)
	if err != nil {
		return nil, a.fail(err)
	}
	heads, err := a.Store.HeadList(ctx, after, limit+1)
	if err != nil {
		return nil, a.fail(err)
	}
	found, is := map[string]*trigger.Head{}, map[string]string{}
	for _, id := range live {
		found[id], is[id] = &trigger.Head{TenantID: id}, "active"
	}
	for i := range deleting {
		found[deleting[i].ID], is[deleting[i].ID] = &trigger.Head{TenantID: deleting[i].ID}, "deleting"
	}
	for i := range heads {
		found[heads[i].TenantID] = &heads[i]
	}
	page := Page[trigger.TenantStatus]{Items: []trigger.TenantStatus{}}
	for i, id := range slices.Sorted(maps.Keys(found)) {
		if i == limit {
			page.Next = page.Items[i-1].TenantID
			break
		}
		status, err := trigger.Status(ctx, a.Store, a.Store, found[id])
		if err != nil {
			return nil, a.fail(err)
		}
		status.Status = is[id]
		page.Items = append(page.Items, status)
	}
	return &one[Page[trigger.TenantStatus]]{page}, nil
}
