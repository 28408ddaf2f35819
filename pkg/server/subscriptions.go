package server

import (
	"cmp"
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// SubscriptionSpec is what people set of a subscription
// (docs/triggers-yaml.md#subscriptions).
type SubscriptionSpec struct {
	Name         string          `json:"name" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"once in the tenant"`
	Enabled      bool            `json:"enabled" doc:"it fires for events after it was enabled"`
	On           OnSpec          `json:"on,omitempty,omitzero" doc:"which events it looks at"`
	If           IfSpec          `json:"if,omitempty,omitzero" doc:"conditions on the card's state"`
	When         string          `json:"when,omitempty" maxLength:"4096" format:"multiline" doc:"a condition in CEL"`
	BotID        string          `json:"bot_id" maxLength:"64" pattern:"^[A-Za-z0-9-]+$" doc:"the bot to launch, or to promote"`
	Mode         string          `json:"mode,omitempty" enum:"direct,promote" doc:"direct, if it is missing, launches the bot; promote stamps it onto the card"`
	ToColumn     string          `json:"to_column,omitempty" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"with promote: the column that the card moves to"`
	Consume      []string        `json:"consume,omitempty" maxItems:"100" maxLength:"255" doc:"labels that are taken off the card, once for each effect"`
	Rank         int             `json:"rank,omitempty" minimum:"-2147483648" maximum:"2147483647" doc:"of several takers of a label the lowest gets it"`
	MaxPerMinute *int            `json:"max_per_minute,omitempty" minimum:"0" maximum:"10000" doc:"more matches within a minute pause it; 100 if it is missing, 0 turns that off"`
	Args         map[string]Text `json:"args,omitempty" maxProperties:"50" doc:"texts that are handed to the bot"`
	Vars         map[string]Text `json:"vars,omitempty" maxProperties:"50" doc:"texts that are handed to the bot"`
}

// OnSpec says which events a subscription looks at.
type OnSpec struct {
	Kinds   []string `json:"kinds,omitempty" maxItems:"100" maxLength:"64"`
	From    string   `json:"from,omitempty" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"a column of the board"`
	To      string   `json:"to,omitempty" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"a column of the board"`
	BoardID string   `json:"board_id,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
	Sources []string `json:"sources,omitempty" maxItems:"100" maxLength:"64"`
	Actors  []string `json:"actors,omitempty" maxItems:"100" maxLength:"255" doc:"logins, or ids of bots"`
}

// IfSpec is conditions on the card's state.
type IfSpec struct {
	Columns    []string `json:"columns,omitempty" maxItems:"100" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"it stands in one of these columns of the board"`
	LabelsAll  []string `json:"labels_all,omitempty" maxItems:"100" maxLength:"255"`
	LabelsAny  []string `json:"labels_any,omitempty" maxItems:"100" maxLength:"255"`
	LabelsNone []string `json:"labels_none,omitempty" maxItems:"100" maxLength:"255"`
	Assignees  []string `json:"assignees,omitempty" maxItems:"100" maxLength:"255" doc:"one of these is assigned"`
}

// Text is a text that is handed to a bot.
type Text string

// Schema implements huma.SchemaProvider.
func (Text) Schema(huma.Registry) *huma.Schema {
	most := 4096
	return &huma.Schema{Type: huma.TypeString, MaxLength: &most, Format: "multiline"}
}

// Subscription is a subscription as the API shows it.
type Subscription struct {
	ID       string `json:"id"`
	Revision int64  `json:"revision"`
	SubscriptionSpec
	Paused    bool   `json:"paused" doc:"what it owes is held until somebody resumes it"`
	PausedBy  string `json:"paused_by,omitempty"`
	PausedWhy string `json:"paused_why,omitempty"`
	// Guard is what pauses and their ends leave behind.
	Guard         trigger.Guard `json:"guard,omitempty,omitzero"`
	Failing       string        `json:"failing,omitempty" doc:"why its evaluations keep failing"`
	FailingSince  time.Time     `json:"failing_since,omitempty,omitzero"`
	ActiveFromSeq int64         `json:"active_from_seq" doc:"it fires for later events"`
	Requires      []string      `json:"requires,omitempty" doc:"what a replica must know to serve it"`
	Dangling      []string      `json:"dangling,omitempty" doc:"its fields that refer to what is no more"`
	UpdatedAt     time.Time     `json:"updated_at"`
}

func newSubscription(s *trigger.Subscription, dangling []string) Subscription {
	perMinute := trigger.MaxPerMinuteDefault
	if s.MaxPerMinute != nil {
		perMinute = *s.MaxPerMinute
	}
	return Subscription{
		ID: s.ID, Revision: s.Revision,
		SubscriptionSpec: SubscriptionSpec{
			Name: s.Name, Enabled: s.Enabled,
			On: OnSpec{texts[string](s.On.Kinds), s.On.From, s.On.To, s.On.BoardID, texts[string](s.On.Sources), s.On.Actors},
			If: IfSpec(s.If), When: s.When, BotID: s.BotID, Mode: string(cmp.Or(s.Mode, trigger.ModeDirect)), ToColumn: s.ToColumn,
			Consume: s.Consume, Rank: s.Rank, MaxPerMinute: &perMinute, Args: values[Text](s.Args), Vars: values[Text](s.Vars),
		},
		Paused: s.Paused, PausedBy: s.PausedBy, PausedWhy: s.PausedWhy, Guard: s.Guard,
		Failing: s.Failing, FailingSince: s.FailingSince, ActiveFromSeq: s.ActiveFromSeq,
		Requires: s.Requires, Dangling: dangling, UpdatedAt: s.UpdatedAt,
	}
}

// want is the subscription that the spec asks for.
func (s *SubscriptionSpec) want(tenantID, id string) *trigger.Subscription {
	return &trigger.Subscription{
		TenantID: tenantID, ID: id, Name: s.Name, Enabled: s.Enabled,
		On: trigger.EventFilter{
			Kinds: texts[tracker.Kind](s.On.Kinds), From: s.On.From, To: s.On.To, BoardID: s.On.BoardID,
			Sources: texts[trigger.Source](s.On.Sources), Actors: s.On.Actors,
		},
		If: trigger.Conditions(s.If), When: s.When, BotID: s.BotID, Mode: trigger.Mode(s.Mode), ToColumn: s.ToColumn,
		Consume: s.Consume, Rank: s.Rank, MaxPerMinute: s.MaxPerMinute, Args: values[string](s.Args), Vars: values[string](s.Vars),
	}
}

func (a *API) subscriptions() *configured[trigger.Subscription, Subscription] {
	return &configured[trigger.Subscription, Subscription]{
		API: a, kind: "subscription", path: "subscriptions", most: config.SubscriptionsMax,
		count: counts(a.Store.SubscriptionList), get: a.Store.SubscriptionGet, page: a.Store.SubscriptionPage,
		save: a.Store.SubscriptionSave, remove: a.Store.SubscriptionDelete,
		key: func(s *trigger.Subscription) (string, string, int64) { return s.TenantID, s.ID, s.Revision },
		show: func(ctx context.Context, tenantID string) (func(*trigger.Subscription) Subscription, error) {
			boards, bots, err := a.referred(ctx, tenantID)
			return func(s *trigger.Subscription) Subscription { return newSubscription(s, danglingOf(boards, bots, s)) }, err
		},
	}
}

// errForeign refuses an edit of what has features of a newer version: a save by
// this version would lose what it does not know of.
func errForeign() error {
	return huma.Error409Conflict("the subscription has features of a newer version: edit it with that")
}

func (a *API) registerSubscriptions(api huma.API) {
	k := a.subscriptions // there is a store only once somebody calls
	huma.Get(api, "/v1/tenants/{tenant}/subscriptions", func(ctx context.Context, in *ListInput) (*one[Page[Subscription]], error) {
		return k().list(ctx, in)
	},
		named("list-subscriptions", "A page of the tenant's subscriptions, by id."))
	huma.Post(api, "/v1/tenants/{tenant}/subscriptions", func(ctx context.Context, in *struct {
		TenantInput
		Body SubscriptionSpec
	},
	) (*made[Subscription], error) {
		out, _, err := k().create(ctx, in.Tenant, func(id string) (*trigger.Subscription, error) {
			next := &trigger.Subscription{TenantID: in.Tenant, ID: id}
			_, err := a.become(ctx, next, in.Body.want(in.Tenant, id))
			return next, err
		})
		return out, err
	}, named("create-subscription", "Attach a subscription."), creates, large)
	huma.Get(api, "/v1/tenants/{tenant}/subscriptions/{subscription}", func(ctx context.Context, in *struct{ SubscriptionInput }) (*tagged[Subscription], error) {
		return k().one(ctx, in.Tenant, in.Subscription)
	}, named("get-subscription", "One subscription."))
	huma.Put(api, "/v1/tenants/{tenant}/subscriptions/{subscription}", func(ctx context.Context, in *struct {
		SubscriptionInput
		MatchInput
		Body SubscriptionSpec
	},
	) (*tagged[Subscription], error) {
		want := in.Body.want(in.Tenant, in.Subscription)
		return k().edit(ctx, in.Tenant, in.Subscription, &in.MatchInput, true, func(next *trigger.Subscription) (bool, error) {
			return a.become(ctx, next, want)
		})
	}, named("replace-subscription", "Edit the subscription. A pause stays; that it is failing is forgotten."), large)
	huma.Delete(api, "/v1/tenants/{tenant}/subscriptions/{subscription}", func(ctx context.Context, in *struct {
		SubscriptionInput
		MatchInput
	},
	) (*none, error) {
		return nil, k().drop(ctx, in.Tenant, in.Subscription, &in.MatchInput)
	}, named("delete-subscription", "Delete the subscription. What it owes still ends as subscription_gone."))
	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/enable", func(ctx context.Context, in *struct {
		SubscriptionInput
		MatchInput
		Body *NoBody
	},
	) (*tagged[Subscription], error) {
		return k().edit(ctx, in.Tenant, in.Subscription, &in.MatchInput, false, func(next *trigger.Subscription) (bool, error) {
			if next.Enabled {
				return false, nil
			}
			want := *next
			want.Enabled = true
			write, err := a.become(ctx, next, &want)
			if f, ok := err.(faults); ok { //nolint:errorlint // it is not wrapped
				err = huma.Error409Conflict("it can't be enabled as it is: edit it first", f.fields("")...)
			}
			return write, err
		})
	}, named("enable-subscription", "Let the subscription fire for what comes from now on."), write)
	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/disable", func(ctx context.Context, in *struct {
		SubscriptionInput
		MatchInput
		Body *NoBody
	},
	) (*tagged[Subscription], error) {
		return k().edit(ctx, in.Tenant, in.Subscription, &in.MatchInput, false, func(next *trigger.Subscription) (bool, error) {
			switch {
			case !next.Enabled:
				return false, nil
			case next.Foreign():
				return false, errForeign()
			}
			next.Enabled = false
			next.Edited(a.Store.Now())
			return true, nil
		})
	}, named("disable-subscription", "Have the subscription fire for nothing. What it owes still ends as subscription_disabled."), write)
}

// become makes next what is wanted of it, ready to be saved conditional on the
// revision that it had. The seq that it is active from is read after next was
// (T7).
func (a *API) become(ctx context.Context, next, want *trigger.Subscription) (bool, error) {
	if next.Foreign() {
		return false, errForeign()
	}
	found, err := config.Check(ctx, a.Store, want)
	if err == nil {
		err = faults(found).orNil()
	}
	if err != nil {
		return false, err
	}
	if want.Enabled && !next.Enabled {
		if next.ActiveFromSeq, err = config.ActiveFrom(ctx, a.Store, next.TenantID); err != nil {
			return false, err
		}
	}
	config.Edit(next, want, a.Store.Now())
	return true, nil
}

// referred reads what a tenant's things may refer to, by id. What a tenant may
// have of it is bounded.
func (a *API) referred(ctx context.Context, tenantID string) (map[string]*tracker.Board, map[string]*trigger.Bot, error) {
	boards, err := a.Store.BoardList(ctx, tenantID)
	if err != nil {
		return nil, nil, err
	}
	bots, err := a.Store.BotList(ctx, tenantID)
	if err != nil {
		return nil, nil, err
	}
	return byID(boards, func(b *tracker.Board) string { return b.ID }), byID(bots, func(b *trigger.Bot) string { return b.ID }), nil
}

// texts converts a list of texts.
func texts[B, A ~string](list []A) []B {
	if list == nil {
		return nil
	}
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = B(v)
	}
	return out
}

// values converts the texts of a map.
func values[B, A ~string](m map[string]A) map[string]B {
	if m == nil {
		return nil
	}
	out := make(map[string]B, len(m))
	for k, v := range m {
		out[k] = B(v)
	}
	return out
}

// large bounds the body of a call that may have a whole subscription.
func large(o *huma.Operation) { o.MaxBodyBytes = draftMaxBytes }
