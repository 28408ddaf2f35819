package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// bulkBudget is how long one call works on a bulk decision: less than what
// proxies wait for.
const bulkBudget = 10 * time.Second

// bulkSample is how many ids a bulk decision shows.
const bulkSample = 10

// Bulk is a bulk decision as the API shows it.
type Bulk struct {
	ID     string               `json:"id"`
	Action trigger.Action       `json:"action"`
	Filter trigger.EffectFilter `json:"filter"`
	By     string               `json:"by"`
	Note   string               `json:"note,omitempty"`
	Count  int                  `json:"count" doc:"how many effects it is about"`
	More   bool                 `json:"more,omitempty" doc:"more effects met the filter than one bulk decision takes: make another one afterwards"`
	Digest string               `json:"digest" doc:"names these effects, as they were; run asks for it"`
	Sample []string             `json:"sample" doc:"the first ids"`
	Last   string               `json:"last,omitempty" doc:"the last id"`
	// Done counts what was dealt with: Applied and Refused.
	Done      int       `json:"done"`
	Applied   int       `json:"applied"`
	Refused   int       `json:"refused" doc:"effects that had changed since"`
	Stopped   bool      `json:"stopped"`
	Finished  bool      `json:"finished"`
	CreatedAt time.Time `json:"created_at"`
}

// NewBulk shows a bulk decision.
func NewBulk(b *trigger.Bulk) Bulk {
	out := Bulk{
		ID: b.ID, Action: b.Action, Filter: b.Filter, By: b.By, Note: b.Note, Count: len(b.Items), More: b.More, Digest: b.Digest,
		Sample: []string{}, Done: b.Next, Applied: b.Applied, Refused: b.Refused, Stopped: b.Stopped, Finished: b.Finished(), CreatedAt: b.CreatedAt,
	}
	for _, item := range b.Items[:min(len(b.Items), bulkSample)] {
		out.Sample = append(out.Sample, item.ID)
	}
	if n := len(b.Items); n > 0 {
		out.Last = b.Items[n-1].ID
	}
	return out
}

// BulkBody asks for a bulk decision.
type BulkBody struct {
	Action string     `json:"action" enum:"replay,rerun,discard,release"`
	Filter BulkFilter `json:"filter"`
	Note   string     `json:"note,omitempty"`
}

// BulkFilter chooses rows as the parameters of list-effects do.
type BulkFilter struct {
	State        string `json:"state" enum:"failed,done,reconcile,held"`
	Subscription string `json:"subscription,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9-]*$"`
	Bot          string `json:"bot,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9-]*$"`
	Reason       string `json:"reason,omitempty" enum:"exhausted,permanent,lease_exhausted,poison"`
	OlderThan    string `json:"older_than,omitempty" maxLength:"20"`
	NewerThan    string `json:"newer_than,omitempty" maxLength:"20"`
}

// BulkInput is the bulk decision of a call.
type BulkInput struct {
	TenantInput
	Bulk string `path:"bulk" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

func (a *API) registerBulk(api huma.API) {
	huma.Post(api, "/v1/tenants/{tenant}/effects/bulk", func(ctx context.Context, in *struct {
		TenantInput
		Body BulkBody
	},
	) (*made[Bulk], error) {
		id, again := newID(ctx)
		if again {
			if b, err := a.Dead.BulkGet(ctx, in.Tenant, id); !errors.Is(err, tracker.ErrNotFound) {
				return a.bulkMade(b, err)
			}
		}
		f := FilterInput(in.Body.Filter)
		filter, err := f.filter(a.Store.Now(), "body.filter")
		if err != nil {
			return nil, a.fail(err)
		}
		b, err := a.Dead.BulkPrepare(ctx, trigger.BulkParams{
			TenantID: in.Tenant, Action: trigger.Action(in.Body.Action), Filter: filter, By: by(ctx), Note: in.Body.Note, ID: id,
		})
		if field, ok := errors.AsType[*tracker.FieldError](err); ok && field.Field == "state" {
			err = &tracker.FieldError{Field: "filter.state", Want: field.Want}
		}
		if errors.Is(err, tracker.ErrConflict) { // a call with the same key made it meanwhile
			b, err = a.Dead.BulkGet(ctx, in.Tenant, id)
		}
		if err == nil {
			noteChange(ctx, "bulk", b.ID, nil, NewBulk(b))
		}
		return a.bulkMade(b, inBody(err))
	}, named("prepare-bulk", "Find the effects that a bulk decision would touch, and keep them. Nothing is touched."), write, creates)

	huma.Get(api, "/v1/tenants/{tenant}/effects/bulk/{bulk}", func(ctx context.Context, in *struct{ BulkInput }) (*one[Bulk], error) {
		return a.bulk(a.Dead.BulkGet(ctx, in.Tenant, in.Bulk))
	}, named("get-bulk", "How far a bulk decision is."))

	huma.Post(api, "/v1/tenants/{tenant}/effects/bulk/{bulk}/run", func(ctx context.Context, in *struct {
		BulkInput
		Body struct {
			Digest  string `json:"digest" maxLength:"64" doc:"the bulk decision's"`
			Seconds int    `json:"seconds,omitempty" minimum:"1" maximum:"10" doc:"how long to work at most, ten seconds if it is missing: less tells more often how far it is"`
		}
	},
	) (*one[Bulk], error) {
		budget := bulkBudget
		if in.Body.Seconds > 0 {
			budget = time.Duration(in.Body.Seconds) * time.Second
		}
		return a.bulkChanged(ctx, in.BulkInput, func() (*trigger.Bulk, error) {
			return a.Dead.BulkRun(ctx, in.Tenant, in.Bulk, in.Body.Digest, budget)
		})
	}, named("run-bulk", "Go on with a bulk decision, for ten seconds at most. Call again until it is finished or stopped."), write)

	huma.Post(api, "/v1/tenants/{tenant}/effects/bulk/{bulk}/stop", func(ctx context.Context, in *struct{ BulkInput }) (*one[Bulk], error) {
		return a.bulkChanged(ctx, in.BulkInput, func() (*trigger.Bulk, error) { return a.Dead.BulkStop(ctx, in.Tenant, in.Bulk) })
	}, named("stop-bulk", "Stop a bulk decision for good. What was decided stays."), write)
}

func (a *API) bulk(b *trigger.Bulk, err error) (*one[Bulk], error) {
	if err != nil {
		return nil, a.fail(err)
	}
	return &one[Bulk]{NewBulk(b)}, nil
}

func (a *API) bulkMade(b *trigger.Bulk, err error) (*made[Bulk], error) {
	if err != nil {
		return nil, a.fail(err)
	}
	return &made[Bulk]{Status: http.StatusCreated, Location: "/v1/tenants/" + b.TenantID + "/effects/bulk/" + b.ID, Body: NewBulk(b)}, nil
}

// bulkChanged notes what a step of a bulk decision made of it; the rows that it
// decided about tell the rest in their histories.
func (a *API) bulkChanged(ctx context.Context, in BulkInput, step func() (*trigger.Bulk, error)) (*one[Bulk], error) {
	before, err := a.Dead.BulkGet(ctx, in.Tenant, in.Bulk)
	if err != nil {
		return nil, a.fail(err)
	}
	b, err := step()
	if err == nil {
		noteChange(ctx, "bulk", b.ID, NewBulk(before), NewBulk(b))
	}
	return a.bulk(b, err)
}
