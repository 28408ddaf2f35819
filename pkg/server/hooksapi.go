package server

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// HookSpec is what people set of a hook (docs/webhooks.md).
type HookSpec struct {
	Name     string      `json:"name" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"once in the tenant"`
	Provider string      `json:"provider" enum:"github"`
	BoardID  string      `json:"board_id" maxLength:"64" pattern:"^[A-Za-z0-9-]+$" doc:"where the cards go"`
	Columns  HookColumns `json:"columns"`
}

// HookColumns are columns of a hook's board.
type HookColumns struct {
	Open   string `json:"open" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"where open issues stand"`
	Closed string `json:"closed" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"where closed issues stand"`
}

// NewHook is a hook to make.
type NewHook struct {
	HookSpec
	SecretBody
}

// Hook is a hook as the API shows it, without its secrets.
type Hook struct {
	ID       string `json:"id"`
	Revision int64  `json:"revision"`
	HookSpec
	Path          string    `json:"path" doc:"where the forge delivers to"`
	RotatingSince time.Time `json:"rotating_since,omitempty,omitzero" doc:"since when deliveries may be signed with either of two secrets"`
	Dangling      []string  `json:"dangling,omitempty" doc:"its fields that refer to what is no more"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// HookSecret is a hook with the secret that the call made.
type HookSecret struct {
	Hook
	Secret string `json:"secret,omitempty" doc:"the secret that was made; it is shown this once"`
}

// HookInput is the hook of a call.
type HookInput struct {
	TenantInput
	Hook string `path:"hook" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

func newHook(h *trigger.Hook, dangling []string) Hook {
	return Hook{
		ID: h.ID, Revision: h.Revision,
		HookSpec: HookSpec{h.Name, h.Provider, h.BoardID, HookColumns{h.OpenColumn, h.ClosedColumn}},
		Path:     "/v1/tenants/" + h.TenantID + "/hooks/" + h.ID, RotatingSince: h.RotatingSince, Dangling: dangling, UpdatedAt: h.UpdatedAt,
	}
}

// setHook makes h what the spec asks for.
func (a *API) setHook(ctx context.Context, s *HookSpec, h *trigger.Hook) error {
	h.Name, h.Provider, h.BoardID, h.OpenColumn, h.ClosedColumn = s.Name, s.Provider, s.BoardID, s.Columns.Open, s.Columns.Closed
	board, err := config.BoardOf(ctx, a.Store, h.TenantID, h.BoardID)
	if err != nil {
		return err
	}
	if board == nil {
		return tracker.Fieldf("board_id", "there is no such board")
	}
	var found faults
	if want := config.Column(board, h.OpenColumn); want != "" {
		found = append(found, tracker.FieldError{Field: "columns.open", Want: want})
	}
	if want := config.Column(board, h.ClosedColumn); want != "" {
		found = append(found, tracker.FieldError{Field: "columns.closed", Want: want})
	}
	return found.orNil()
}

func (a *API) hooks() *rotating[trigger.Hook, Hook] {
	id := func(h *trigger.Hook) string { return h.ID }
	return &rotating[trigger.Hook, Hook]{
		configured: &configured[trigger.Hook, Hook]{
			API: a, kind: "hook", path: "hooks", most: config.HooksMax, count: counts(a.Store.HookList),
			get: a.Store.HookGet, page: pages(a.Store.HookList, id), save: a.Store.HookSave, remove: a.Store.HookDelete,
			key: func(h *trigger.Hook) (string, string, int64) { return h.TenantID, h.ID, h.Revision },
			show: func(ctx context.Context, tenantID string) (func(*trigger.Hook) Hook, error) {
				boards, bots, err := a.referred(ctx, tenantID)
				return func(h *trigger.Hook) Hook { return newHook(h, danglingOf(boards, bots, h)) }, err
			},
		},
		secrets: secrets[trigger.Hook]{
			API: a, owner: trigger.HookOwner, parse: config.ParseHookSecret, make: config.NewHookSecret,
			fields: func(h *trigger.Hook) secretFields { return secretFields{&h.Secret, &h.NextSecret, &h.RotatingSince} },
		},
		stamp: func(h *trigger.Hook, now time.Time) { h.Revision, h.UpdatedAt = h.Revision+1, now },
	}
}

func (a *API) registerHooks(api huma.API) {
	k := a.hooks // there is a store only once somebody calls
	huma.Get(api, "/v1/tenants/{tenant}/hooks", func(ctx context.Context, in *ListInput) (*one[Page[Hook]], error) {
		return k().list(ctx, in)
	}, named("list-hooks", "A page of the tenant's hooks, by id."))
	huma.Post(api, "/v1/tenants/{tenant}/hooks", func(ctx context.Context, in *struct {
		TenantInput
		Body NewHook
	},
	) (*made[HookSecret], error) {
		var secret string
		out, mine, err := k().create(ctx, in.Tenant, func(id string) (*trigger.Hook, error) {
			h := &trigger.Hook{TenantID: in.Tenant, ID: id}
			if err := a.setHook(ctx, &in.Body.HookSpec, h); err != nil {
				return nil, err
			}
			var err error
			h.Secret, secret, err = k().secrets.seal(in.Tenant, id, in.Body.Secret)
			k().stamp(h, a.Store.Now())
			return h, err
		})
		if err != nil {
			return nil, err
		}
		if !mine {
			secret = ""
		}
		return &made[HookSecret]{out.Status, out.ETag, out.Location, HookSecret{out.Body, secret}}, nil
	}, named("create-hook", "Let a forge deliver to a board."), creates, write)
	huma.Get(api, "/v1/tenants/{tenant}/hooks/{hook}", func(ctx context.Context, in *struct{ HookInput }) (*tagged[Hook], error) {
		return k().one(ctx, in.Tenant, in.Hook)
	}, named("get-hook", "One hook."))
	huma.Put(api, "/v1/tenants/{tenant}/hooks/{hook}", func(ctx context.Context, in *struct {
		HookInput
		MatchInput
		Body HookSpec
	},
	) (*tagged[Hook], error) {
		return k().edit(ctx, in.Tenant, in.Hook, &in.MatchInput, true, func(next *trigger.Hook) (bool, error) {
			k().stamp(next, a.Store.Now())
			return true, a.setHook(ctx, &in.Body, next)
		})
	}, named("replace-hook", "Edit the hook. Its secret and its path stay."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/hooks/{hook}", func(ctx context.Context, in *struct {
		HookInput
		MatchInput
	},
	) (*none, error) {
		return nil, k().drop(ctx, in.Tenant, in.Hook, &in.MatchInput)
	}, named("delete-hook", "Delete the hook. Later deliveries are answered 404; its cards stay."))

	huma.Post(api, "/v1/tenants/{tenant}/hooks/{hook}/secret", func(ctx context.Context, in *struct {
		HookInput
		MatchInput
		Body *SecretBody
	},
	) (*tagged[HookSecret], error) {
		out, secret, err := k().rotate(ctx, in.Tenant, in.Hook, &in.MatchInput, in.Body)
		if err != nil {
			return nil, err
		}
		return &tagged[HookSecret]{out.ETag, HookSecret{out.Body, secret}}, nil
	}, named("rotate-hook-secret", "Begin to rotate the hook's secret: deliveries are taken with either."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/hooks/{hook}/secret/previous", func(ctx context.Context, in *struct {
		HookInput
		MatchInput
	},
	) (*none, error) {
		return k().endRotation(ctx, in.Tenant, in.Hook, &in.MatchInput, true)
	}, named("finish-hook-rotation", "End the rotation: deliveries are taken with the new secret alone."))
	huma.Delete(api, "/v1/tenants/{tenant}/hooks/{hook}/secret/next", func(ctx context.Context, in *struct {
		HookInput
		MatchInput
	},
	) (*none, error) {
		return k().endRotation(ctx, in.Tenant, in.Hook, &in.MatchInput, false)
	}, named("cancel-hook-rotation", "Give the rotation up: deliveries are taken with the secret that the hook had."))
}
