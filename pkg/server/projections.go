package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// ProjectionSpec is what people set of a projection (docs/projections.md).
type ProjectionSpec struct {
	Name        string              `json:"name" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"once in the tenant"`
	Enabled     bool                `json:"enabled" doc:"it mirrors what happens after it was enabled"`
	FromBoardID string              `json:"from_board_id" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
	ToBoardID   string              `json:"to_board_id" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
	Columns     map[string]ColumnID `json:"columns" minProperties:"1" maxProperties:"100" doc:"which column of the one board stands for which of the other, no two for the same"`
}

// ColumnID is the id of a column.
type ColumnID string

// Schema implements huma.SchemaProvider.
func (ColumnID) Schema(huma.Registry) *huma.Schema {
	most := 63
	return &huma.Schema{Type: huma.TypeString, MaxLength: &most, Pattern: "^[a-z0-9][a-z0-9-]*$"}
}

// Projection is a projection as the API shows it.
type Projection struct {
	ID       string `json:"id"`
	Revision int64  `json:"revision"`
	ProjectionSpec
	ActiveFromSeq int64     `json:"active_from_seq" doc:"it mirrors what later events bring about"`
	Dangling      []string  `json:"dangling,omitempty" doc:"its fields that refer to what is no more"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// ProjectionInput is the projection of a call.
type ProjectionInput struct {
	TenantInput
	Projection string `path:"projection" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

func newProjection(p *trigger.Projection, dangling []string) Projection {
	columns := make(map[string]ColumnID, len(p.Columns))
	for _, c := range p.Columns {
		columns[c.From] = ColumnID(c.To)
	}
	return Projection{
		ID: p.ID, Revision: p.Revision, ProjectionSpec: ProjectionSpec{p.Name, p.Enabled, p.FromBoardID, p.ToBoardID, columns},
		ActiveFromSeq: p.ActiveFromSeq, Dangling: dangling, UpdatedAt: p.UpdatedAt,
	}
}

func (a *API) projections() *configured[trigger.Projection, Projection] {
	id := func(p *trigger.Projection) string { return p.ID }
	return &configured[trigger.Projection, Projection]{
		API: a, kind: "projection", path: "projections", most: trigger.ProjectionsMax, count: counts(a.Store.ProjectionList),
		get: a.Store.ProjectionGet, page: pages(a.Store.ProjectionList, id), save: a.saveProjection, remove: a.Store.ProjectionDelete,
		key: func(p *trigger.Projection) (string, string, int64) { return p.TenantID, p.ID, p.Revision },
		show: func(ctx context.Context, tenantID string) (func(*trigger.Projection) Projection, error) {
			boards, bots, err := a.referred(ctx, tenantID)
			return func(p *trigger.Projection) Projection { return newProjection(p, danglingOf(boards, bots, p)) }, err
		},
	}
}

// setProjection makes p what the spec asks for, ready to be saved conditional
// on the revision that it had. The seq that it is active from is read after p
// was (T7).
func (a *API) setProjection(ctx context.Context, s *ProjectionSpec, p *trigger.Projection) error {
	enabling := s.Enabled && !p.Enabled
	p.Name, p.Enabled, p.FromBoardID, p.ToBoardID, p.Columns = s.Name, s.Enabled, s.FromBoardID, s.ToBoardID, nil
	for _, from := range slices.Sorted(maps.Keys(s.Columns)) {
		p.Columns = append(p.Columns, trigger.ColumnPair{From: from, To: string(s.Columns[from])})
	}
	if err := a.checkProjection(ctx, p); err != nil {
		return err
	}
	if enabling {
		seq, err := config.ActiveFrom(ctx, a.Store, p.TenantID)
		if err != nil {
			return err
		}
		p.ActiveFromSeq = seq
	}
	p.Revision, p.UpdatedAt = p.Revision+1, a.Store.Now()
	return nil
}

// checkProjection refuses a projection that can't be served, or does not fit
// the tenant's others.
func (a *API) checkProjection(ctx context.Context, p *trigger.Projection) error {
	from, err := config.BoardOf(ctx, a.Store, p.TenantID, p.FromBoardID)
	if err != nil {
		return err
	}
	to, err := config.BoardOf(ctx, a.Store, p.TenantID, p.ToBoardID)
	if err != nil {
		return err
	}
	if err := p.Validate(from, to); err != nil {
		return asProjectionSpec(err)
	}
	return asProjectionSpec(a.fits(ctx, p))
}

func (a *API) fits(ctx context.Context, p *trigger.Projection) error {
	all, err := a.Store.ProjectionList(ctx, p.TenantID)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(all, func(o trigger.Projection) bool { return o.ID == p.ID })
	if len(others) >= trigger.ProjectionsMax {
		others = others[:trigger.ProjectionsMax-1] // how many there are is create's to refuse
	}
	return trigger.CheckProjections(others, p)
}

// asProjectionSpec names the field of an error as the spec does.
func asProjectionSpec(err error) error {
	fe, ok := errors.AsType[*tracker.FieldError](err)
	if !ok {
		return err
	}
	switch {
	case fe.Field == "from", fe.Field == "from, to":
		return tracker.Fieldf("from_board_id", "%s", fe.Want)
	case fe.Field == "to":
		return tracker.Fieldf("to_board_id", "%s", fe.Want)
	case strings.HasPrefix(fe.Field, "columns."):
		// A key that is no column of the board may be anything.
		return tracker.Fieldf("columns", "%s", fe.Want)
	}
	return err
}

// saveProjection saves p and then looks again whether it fits the tenant's
// others: of two saves at the same moment that don't go together at least the
// later one sees it, and is taken back (ADR 0019).
func (a *API) saveProjection(ctx context.Context, p *trigger.Projection) error {
	var was *trigger.Projection
	if p.Revision > 1 {
		var err error
		if was, err = a.Store.ProjectionGet(ctx, p.TenantID, p.ID); err != nil {
			return err
		}
	}
	if err := a.Store.ProjectionSave(ctx, p); err != nil {
		return err
	}
	err := a.fits(ctx, p)
	fe, unfit := errors.AsType[*tracker.FieldError](err)
	if !unfit {
		// That it could not be read is no reason to take back what fitted
		// before.
		if err != nil {
			a.Logger.Warn().Err(err).Str("tenant", p.TenantID).Str("projection", p.ID).Msg("API: could not look again whether a projection fits the others")
		}
		return nil
	}
	undo := func() error { return a.Store.ProjectionDelete(ctx, p.TenantID, p.ID, p.Revision) }
	if was != nil {
		was.Revision = p.Revision + 1
		undo = func() error { return a.Store.ProjectionSave(ctx, was) }
	}
	if err := undo(); err != nil && !errors.Is(err, tracker.ErrConflict) && !errors.Is(err, tracker.ErrNotFound) {
		return fmt.Errorf("take back projection %s/%s: %w", p.TenantID, p.ID, err)
	}
	return huma.Error409Conflict("another projection was saved at the same moment, and the two don't go together: " + fe.Want)
}

func (a *API) registerProjections(api huma.API) {
	k := a.projections // there is a store only once somebody calls
	huma.Get(api, "/v1/tenants/{tenant}/projections", func(ctx context.Context, in *ListInput) (*one[Page[Projection]], error) {
		return k().list(ctx, in)
	}, named("list-projections", "A page of the tenant's projections, by id."))
	huma.Post(api, "/v1/tenants/{tenant}/projections", func(ctx context.Context, in *struct {
		TenantInput
		Body ProjectionSpec
	},
	) (*made[Projection], error) {
		out, _, err := k().create(ctx, in.Tenant, func(id string) (*trigger.Projection, error) {
			p := &trigger.Projection{TenantID: in.Tenant, ID: id}
			return p, a.setProjection(ctx, &in.Body, p)
		})
		return out, err
	}, named("create-projection", "Mirror the columns of one board onto another."), creates, write)
	huma.Get(api, "/v1/tenants/{tenant}/projections/{projection}", func(ctx context.Context, in *struct{ ProjectionInput }) (*tagged[Projection], error) {
		return k().one(ctx, in.Tenant, in.Projection)
	}, named("get-projection", "One projection."))
	huma.Put(api, "/v1/tenants/{tenant}/projections/{projection}", func(ctx context.Context, in *struct {
		ProjectionInput
		MatchInput
		Body ProjectionSpec
	},
	) (*tagged[Projection], error) {
		return k().edit(ctx, in.Tenant, in.Projection, &in.MatchInput, true, func(next *trigger.Projection) (bool, error) {
			return true, a.setProjection(ctx, &in.Body, next)
		})
	}, named("replace-projection", "Edit the projection."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/projections/{projection}", func(ctx context.Context, in *struct {
		ProjectionInput
		MatchInput
	},
	) (*none, error) {
		return nil, k().drop(ctx, in.Tenant, in.Projection, &in.MatchInput)
	}, named("delete-projection", "Delete the projection. What it owes still ends as subscription_gone; mirrors stay."))
	huma.Post(api, "/v1/tenants/{tenant}/projections/{projection}/enable", func(ctx context.Context, in *struct {
		ProjectionInput
		MatchInput
		Body *NoBody
	},
	) (*tagged[Projection], error) {
		return k().edit(ctx, in.Tenant, in.Projection, &in.MatchInput, false, func(next *trigger.Projection) (bool, error) {
			if next.Enabled {
				return false, nil
			}
			spec := newProjection(next, nil).ProjectionSpec
			spec.Enabled = true
			err := a.setProjection(ctx, &spec, next)
			if fe, ok := errors.AsType[*tracker.FieldError](err); ok {
				err = huma.Error409Conflict("it can't be enabled as it is: edit it first", fe)
			}
			return true, err
		})
	}, named("enable-projection", "Let the projection mirror what happens from now on."), write)
	huma.Post(api, "/v1/tenants/{tenant}/projections/{projection}/disable", func(ctx context.Context, in *struct {
		ProjectionInput
		MatchInput
		Body *NoBody
	},
	) (*tagged[Projection], error) {
		return k().edit(ctx, in.Tenant, in.Projection, &in.MatchInput, false, func(next *trigger.Projection) (bool, error) {
			if !next.Enabled {
				return false, nil
			}
			next.Enabled, next.Revision, next.UpdatedAt = false, next.Revision+1, a.Store.Now()
			return true, nil
		})
	}, named("disable-projection", "Have the projection mirror nothing. What it owes still ends as subscription_disabled."), write)
}
