package server

import (
	"cmp"
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// Pause is a pause as the API shows it.
type Pause struct {
	Scope    string    `json:"scope" enum:"fleet,tenant,bot"`
	TenantID string    `json:"tenant_id,omitempty"`
	BotID    string    `json:"bot_id,omitempty"`
	By       string    `json:"by,omitempty"`
	Note     string    `json:"note,omitempty"`
	At       time.Time `json:"at"`
}

// NewPause shows a pause.
func NewPause(p *trigger.Pause) Pause {
	scope := "bot"
	switch {
	case p.TenantID == "":
		scope = "fleet"
	case p.BotID == "":
		scope = "tenant"
	}
	return Pause{scope, p.TenantID, p.BotID, p.By, p.Note, p.At}
}

// PausesPage is what holds up a tenant.
type PausesPage struct {
	Items []Pause `json:"items"`
	// Subscriptions that are paused: what they owe is held.
	Subscriptions []SubscriptionPause `json:"subscriptions"`
}

// SubscriptionPause is whether a subscription is paused.
type SubscriptionPause struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Paused    bool   `json:"paused"`
	By        string `json:"by,omitempty"`
	Note      string `json:"note,omitempty"`
	Released  int    `json:"released,omitempty" doc:"held effects that were released; others follow within seconds"`
	Discarded int    `json:"discarded,omitempty" doc:"held effects that were discarded; others follow within seconds"`
	HeldFrom  int64  `json:"held_from,omitempty" doc:"the seq from which on effects are not even held, because too many are: these events are matched again once the subscription is resumed"`
}

func newSubscriptionPause(s *trigger.Subscription) SubscriptionPause {
	return SubscriptionPause{ID: s.ID, Name: s.Name, Paused: s.Paused, By: s.PausedBy, Note: s.PausedWhy, HeldFrom: s.Guard.HeldFrom}
}

// BotInput is the bot of a call.
type BotInput struct {
	TenantInput
	Bot string `path:"bot" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

// SubscriptionInput is the subscription of a call.
type SubscriptionInput struct {
	TenantInput
	Subscription string `path:"subscription" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

type none struct{}

func (a *API) registerPauses(api huma.API) {
	huma.Put(api, "/v1/pause", func(ctx context.Context, in *struct{ Body *NoteBody }) (*one[Pause], error) {
		return a.pause(ctx, "", "", in.Body)
	}, named("pause-fleet", "Hold up all launches. For admins."), write, forAdmins)
	huma.Delete(api, "/v1/pause", func(ctx context.Context, _ *struct{}) (*none, error) {
		return a.resume(ctx, "", "")
	}, named("resume-fleet", "End the fleet's pause. For admins."), forAdmins)
	huma.Put(api, "/v1/tenants/{tenant}/pause", func(ctx context.Context, in *struct {
		TenantInput
		Body *NoteBody
	},
	) (*one[Pause], error) {
		return a.pause(ctx, in.Tenant, "", in.Body)
	}, named("pause-tenant", "Hold up the tenant's effects."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/pause", func(ctx context.Context, in *struct{ TenantInput }) (*none, error) {
		return a.resume(ctx, in.Tenant, "")
	}, named("resume-tenant", "End the tenant's pause."))
	huma.Put(api, "/v1/tenants/{tenant}/bots/{bot}/pause", func(ctx context.Context, in *struct {
		BotInput
		Body *NoteBody
	},
	) (*one[Pause], error) {
		return a.pause(ctx, in.Tenant, in.Bot, in.Body)
	}, named("pause-bot", "Hold up the bot's launches."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/bots/{bot}/pause", func(ctx context.Context, in *struct{ BotInput }) (*none, error) {
		return a.resume(ctx, in.Tenant, in.Bot)
	}, named("resume-bot", "End the bot's pause."))

	huma.Get(api, "/v1/tenants/{tenant}/pauses", func(ctx context.Context, in *struct{ TenantInput }) (*one[PausesPage], error) {
		all, err := a.Store.PauseList(ctx)
		if err != nil {
			return nil, a.fail(err)
		}
		page := PausesPage{Items: []Pause{}, Subscriptions: []SubscriptionPause{}}
		for i := range all {
			p := NewPause(&all[i])
			switch p.TenantID {
			case in.Tenant:
			case "":
				if caller(ctx).Role != trigger.RoleAdmin {
					p.By, p.Note = "", "" // not the tenant's affair
				}
			default:
				continue
			}
			page.Items = append(page.Items, p)
		}
		subs, err := a.Store.SubscriptionList(ctx, in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		for i := range subs {
			if subs[i].Paused {
				page.Subscriptions = append(page.Subscriptions, newSubscriptionPause(&subs[i]))
			}
		}
		return &one[PausesPage]{page}, nil
	}, named("list-pauses", "What is paused: the fleet, the tenant, its bots and its subscriptions."))

	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/pause", func(ctx context.Context, in *struct {
		SubscriptionInput
		Body *NoteBody
	},
	) (*one[SubscriptionPause], error) {
		before, err := a.Store.SubscriptionGet(ctx, in.Tenant, in.Subscription)
		if err != nil {
			return nil, a.fail(err)
		}
		sub, err := a.Dead.SubscriptionPause(ctx, in.Tenant, in.Subscription, by(ctx), in.Body.note())
		if err != nil {
			return nil, a.fail(inBody(err))
		}
		out := newSubscriptionPause(sub)
		noteChange(ctx, "subscription", sub.ID, newSubscriptionPause(before), out)
		return &one[SubscriptionPause]{out}, nil
	}, named("pause-subscription", "Hold what the subscription owes, until it is resumed."), write)
	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/resume", func(ctx context.Context, in *struct {
		SubscriptionInput
		Body *ResumeBody
	},
	) (*one[SubscriptionPause], error) {
		end := a.Dead.SubscriptionResume
		discards := in.Body != nil && in.Body.Held == "discard"
		if discards {
			end = a.Dead.SubscriptionDiscard
		}
		before, err := a.Store.SubscriptionGet(ctx, in.Tenant, in.Subscription)
		if err != nil {
			return nil, a.fail(err)
		}
		sub, n, err := end(ctx, in.Tenant, in.Subscription, by(ctx))
		if err != nil {
			return nil, a.fail(err)
		}
		out := newSubscriptionPause(sub)
		if discards {
			out.Discarded = n
		} else {
			out.Released = n
		}
		noteChange(ctx, "subscription", sub.ID, newSubscriptionPause(before), out)
		return &one[SubscriptionPause]{out}, nil
	}, named("resume-subscription", "End the subscription's pause, and release or discard what it held."), write)
}

// ResumeBody says what becomes of what a subscription held; no body: it is
// released.
type ResumeBody struct {
	Held string `json:"held,omitempty" enum:"release,discard" doc:"what becomes of held effects, and of events that were left because too many were held; release if it is missing"`
}

func (a *API) pause(ctx context.Context, tenantID, botID string, body *NoteBody) (*one[Pause], error) {
	p, err := a.Dead.Pause(ctx, trigger.Pause{TenantID: tenantID, BotID: botID, By: by(ctx), Note: body.note()})
	if err != nil {
		return nil, a.fail(inBody(err))
	}
	out := NewPause(p)
	noteChange(ctx, "pause", pauseID(tenantID, botID), nil, out)
	return &one[Pause]{out}, nil
}

func (a *API) resume(ctx context.Context, tenantID, botID string) (*none, error) {
	there, err := a.Dead.Resume(ctx, tenantID, botID)
	if err != nil {
		return nil, a.fail(err)
	}
	if there {
		p := NewPause(&trigger.Pause{TenantID: tenantID, BotID: botID})
		noteChange(ctx, "pause", pauseID(tenantID, botID), p, nil)
	}
	return nil, nil
}

// pauseID is what the audit log calls a pause.
func pauseID(tenantID, botID string) string { return cmp.Or(botID, tenantID, "fleet") }
