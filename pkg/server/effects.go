package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Effect is a row as the API shows it.
type Effect struct {
	ID             string                 `json:"id"`
	Kind           trigger.EffectKind     `json:"kind"`
	State          trigger.State          `json:"state"`
	Outcome        trigger.Outcome        `json:"outcome,omitempty"`
	Reason         trigger.Reason         `json:"reason,omitempty"`
	EventSeq       int64                  `json:"event_seq"`
	EventKind      tracker.Kind           `json:"event_kind"`
	CardID         string                 `json:"card_id"`
	SubscriptionID string                 `json:"subscription_id,omitempty"`
	ProjectionID   string                 `json:"projection_id,omitempty"`
	BotID          string                 `json:"bot_id,omitempty"`
	Replay         trigger.ReplayClass    `json:"replay,omitempty" doc:"whether the bot can be sent the same twice"`
	Consume        []string               `json:"consume,omitempty"`
	Consumed       bool                   `json:"consumed,omitempty"`
	Attempts       int                    `json:"attempts"`
	Generation     int                    `json:"generation"`
	RunID          string                 `json:"run_id,omitempty"`
	Worker         string                 `json:"worker,omitempty"`
	NotBefore      *time.Time             `json:"not_before,omitempty" doc:"when a live row is due: its next attempt, or the end of its lease"`
	StartedAt      *time.Time             `json:"delivery_started_at,omitempty" doc:"a request that can't be repeated may have been sent since, and no definite answer came"`
	Errors         []trigger.AttemptError `json:"errors,omitempty"`
	CreatedAt      time.Time              `json:"created_at"`
	UpdatedAt      time.Time              `json:"updated_at"`
	DoneAt         *time.Time             `json:"done_at,omitempty"`
}

// NewEffect shows a row.
func NewEffect(row *trigger.Effect) Effect { return newEffect(row) }

func newEffect(row *trigger.Effect) Effect {
	e := Effect{
		ID: row.ID, Kind: cmp.Or(row.Kind, trigger.KindLaunch), State: row.State, Outcome: row.Outcome, Reason: row.Reason, EventSeq: row.EventSeq, EventKind: row.Event.Kind,
		CardID: row.CardID, SubscriptionID: row.SubscriptionID, ProjectionID: row.ProjectionID, BotID: row.BotID, Replay: row.Replay, Consume: row.Consume, Consumed: row.ConsumeMarked,
		Attempts: row.Attempts, Generation: row.Generation, RunID: row.RunID, Worker: row.Worker, Errors: row.Errors,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
	if row.State.Live() {
		e.NotBefore = &row.NotBefore
	}
	if !row.DeliveryStartedAt.IsZero() {
		e.StartedAt = &row.DeliveryStartedAt
	}
	if !row.DoneAt.IsZero() {
		e.DoneAt = &row.DoneAt
	}
	return e
}

// EffectDetail is a row with its event, and with what people did with it.
type EffectDetail struct {
	Effect
	History []trigger.HistoryEntry `json:"history"`
	Event   trigger.Event          `json:"event"`
}

// NewEffectDetail shows all of a row.
func NewEffectDetail(row *trigger.Effect) EffectDetail {
	return EffectDetail{newEffect(row), append([]trigger.HistoryEntry{}, row.History...), row.Event}
}

// effectIDForm is what an effect's id looks like (R1); EffectInput asks for
// it too.
var effectIDForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*/[0-9]{12,}[|>!][A-Za-z0-9-]*$`)

// A cursor is opaque: the key of the last row of a page.
func encodeCursor(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

func decodeCursor(tenantID, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	id, err := base64.RawURLEncoding.DecodeString(cursor)
	// The decoder is lenient about line breaks and the last bits.
	if err != nil || encodeCursor(string(id)) != cursor || !effectIDForm.Match(id) || !strings.HasPrefix(string(id), tenantID+"/") {
		return "", tracker.Fieldf("query.after", "must be a cursor that the page before gave")
	}
	return string(id), nil
}

// FilterInput chooses rows by query parameters.
type FilterInput struct {
	State        string `query:"state" enum:"pending,claimed,done,failed,reconcile,held,discarded" doc:"only rows in this state"`
	Subscription string `query:"subscription" maxLength:"64" pattern:"^[A-Za-z0-9-]*$" doc:"only rows of the subscription with this id"`
	Bot          string `query:"bot" maxLength:"64" pattern:"^[A-Za-z0-9-]*$" doc:"only rows of the bot with this id"`
	Reason       string `query:"reason" enum:"exhausted,permanent,lease_exhausted,poison" doc:"only rows that failed for this reason"`
	OlderThan    string `query:"older_than" maxLength:"20" doc:"only rows last written longer ago than this: 90m, 24h"`
	NewerThan    string `query:"newer_than" maxLength:"20" doc:"only rows last written less long ago than this"`
}

// filter translates it; at names the fields of an error.
func (f *FilterInput) filter(now time.Time, at string) (trigger.EffectFilter, error) {
	out := trigger.EffectFilter{
		State: trigger.State(f.State), SubscriptionID: f.Subscription, BotID: f.Bot, Reason: trigger.Reason(f.Reason),
	}
	for _, age := range []struct {
		name, text string
		time       *time.Time
	}{{"older_than", f.OlderThan, &out.UpdatedBefore}, {"newer_than", f.NewerThan, &out.UpdatedFrom}} {
		if age.text == "" {
			continue
		}
		d, err := time.ParseDuration(age.text)
		if err != nil || d <= 0 {
			return out, tracker.Fieldf(at+"."+age.name, "must be a positive duration, such as 90m or 24h")
		}
		*age.time = now.Add(-d)
	}
	return out, nil
}

// EffectInput is the row of a call.
type EffectInput struct {
	TenantInput
	Effect string `path:"effect" maxLength:"200" pattern:"^[a-z0-9][a-z0-9-]*/[0-9]{12,}[|>!][A-Za-z0-9-]*$" doc:"the effect's id, percent-encoded"`
}

// NoteBody says why something was done.
type NoteBody struct {
	Note string `json:"note,omitempty" doc:"why, in one line of at most 1000 bytes; it stays on what it is about"`
}

// note returns the note of a body that may be missing.
func (b *NoteBody) note() string {
	if b == nil {
		return ""
	}
	return b.Note
}

// inBody says that the field of an error stands in the body.
func inBody(err error) error {
	if field, ok := errors.AsType[*tracker.FieldError](err); ok {
		return &tracker.FieldError{Field: "body." + field.Field, Want: field.Want}
	}
	return err
}

func (a *API) registerEffects(api huma.API) {
	huma.Get(api, "/v1/tenants/{tenant}/effects", func(ctx context.Context, in *struct {
		TenantInput
		FilterInput
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Effect]], error) {
		after, err := decodeCursor(in.Tenant, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		filter, err := in.filter(a.Store.Now(), "query")
		if err != nil {
			return nil, a.fail(err)
		}
		rows, err := a.Store.EffectList(ctx, trigger.EffectListParams{
			TenantID: in.Tenant, EffectFilter: filter, AfterID: after, Limit: in.Limit + 1,
		})
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[Effect]{Items: []Effect{}}
		for i := range rows {
			if i == in.Limit {
				page.Next = encodeCursor(rows[i-1].ID)
				break
			}
			page.Items = append(page.Items, newEffect(&rows[i]))
		}
		return &one[Page[Effect]]{page}, nil
	}, named("list-effects", "A page of the tenant's effects, oldest event first."), botReads(botInQuery))

	huma.Get(api, "/v1/tenants/{tenant}/effects/{effect}", func(ctx context.Context, in *struct{ EffectInput }) (*one[EffectDetail], error) {
		row, err := a.Store.EffectGet(ctx, in.Tenant, in.Effect)
		if err == nil {
			err = ownThing(ctx, row.BotID)
		}
		if err != nil {
			return nil, a.fail(err)
		}
		return &one[EffectDetail]{NewEffectDetail(row)}, nil
	}, named("get-effect", "One effect, with its event and what people did with it."), botReads(botInThing))

	for action, summary := range map[trigger.Action]string{
		trigger.ActionReplay:  "Try a failed effect again, under its key.",
		trigger.ActionRerun:   "Run a done effect again, under another key.",
		trigger.ActionDiscard: "Give a failed, reconcile or held effect up.",
		trigger.ActionRelease: "Let a held effect go on.",
	} {
		huma.Post(api, "/v1/tenants/{tenant}/effects/{effect}/"+string(action), func(ctx context.Context, in *struct {
			EffectInput
			Body *NoteBody
		},
		) (*one[EffectDetail], error) {
			return a.decide(ctx, trigger.Decision{TenantID: in.Tenant, EffectID: in.Effect, Action: action, Note: in.Body.note()})
		}, named(string(action)+"-effect", summary), write)
	}

	huma.Post(api, "/v1/tenants/{tenant}/effects/{effect}/resolve", func(ctx context.Context, in *struct {
		EffectInput
		Body ResolveBody
	},
	) (*one[EffectDetail], error) {
		d, err := in.Body.decision()
		if err != nil {
			return nil, a.fail(err)
		}
		d.TenantID, d.EffectID = in.Tenant, in.Effect
		return a.decide(ctx, d)
	}, named("resolve-effect", "Say what became of a delivery that can't be repeated, or send it once more."), write)
}

// ResolveBody says what became of a delivery.
type ResolveBody struct {
	As    string `json:"as" enum:"confirmed,send_again"`
	Note  string `json:"note,omitempty"`
	RunID string `json:"run_id,omitempty" doc:"of confirmed: what the bot called the run"`
	// A force is said twice.
	StartedAt *time.Time `json:"delivery_started_at,omitempty" doc:"of send_again: the delivery that was looked at, as the effect shows it"`
	Confirm   bool       `json:"confirm,omitempty" doc:"of send_again: true, the bot may get it a second time"`
}

func (b *ResolveBody) decision() (trigger.Decision, error) {
	d := trigger.Decision{Action: trigger.ActionConfirm, Note: b.Note, RunID: b.RunID}
	switch {
	case b.As == "confirmed" && b.StartedAt != nil:
		return d, tracker.Fieldf("body.delivery_started_at", "goes with send_again")
	case b.As == "confirmed" && b.Confirm:
		return d, tracker.Fieldf("body.confirm", "goes with send_again")
	case b.As == "confirmed":
		return d, nil
	case b.RunID != "":
		return d, tracker.Fieldf("body.run_id", "goes with confirmed")
	case b.StartedAt == nil:
		return d, tracker.Fieldf("body.delivery_started_at", "is required to send again: as the effect shows it")
	case !b.Confirm:
		return d, tracker.Fieldf("body.confirm", "must be true to send again: the bot may get it a second time")
	}
	d.Action, d.StartedAt = trigger.ActionForce, *b.StartedAt
	return d, nil
}

func (a *API) decide(ctx context.Context, d trigger.Decision) (*one[EffectDetail], error) {
	d.By = by(ctx)
	before, err := a.Store.EffectGet(ctx, d.TenantID, d.EffectID)
	if err != nil {
		return nil, a.fail(err)
	}
	row, err := a.Dead.Decide(ctx, d)
	if err != nil {
		return nil, a.fail(inBody(err))
	}
	noteChange(ctx, "effect", row.ID, newEffect(before), newEffect(row))
	return &one[EffectDetail]{NewEffectDetail(row)}, nil
}
