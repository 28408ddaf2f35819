package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// draftMaxBytes is the largest draft of a subscription.
const draftMaxBytes = 256 << 10

// readsOnly marks an operation that changes nothing though it is no GET: a
// viewer may call it.
func readsOnly(o *huma.Operation) { mark(o, "reads_only", true) }

// mayRead reports whether a call needs no more than to read.
func mayRead(o *huma.Operation, method string) bool {
	return method == http.MethodGet || method == http.MethodHead || (o != nil && o.Metadata["reads_only"] == true)
}

// DryRunInput chooses the stored events of a dry run.
type DryRunInput struct {
	Card   string `query:"card" maxLength:"255" pattern:"^[A-Za-z0-9@~-]*$" doc:"only events of the card with this id"`
	Last   int    `query:"last" minimum:"1" maximum:"1000" default:"50" doc:"how many events, from the newest on"`
	Before int64  `query:"before" minimum:"0" maximum:"999999999999" doc:"only events before this seq: the next of the page before"`
}

func (in *DryRunInput) params() trigger.DryRunParams {
	return trigger.DryRunParams{CardID: in.Card, Last: in.Last, BeforeSeq: in.Before}
}

func (a *API) explainer() *trigger.Explainer { return trigger.NewExplainer(a.Store) }

func (a *API) registerExplain(api huma.API) {
	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/dry-run", func(ctx context.Context, in *struct {
		TenantInput
		DryRunInput
		Body json.RawMessage `doc:"a subscription, in the form that it is stored in"`
	},
	) (*one[trigger.DryRun], error) {
		draft, err := trigger.DraftDecode(in.Body)
		if err != nil {
			return nil, a.fail(inBody(err))
		}
		dry, err := a.explainer().DryRun(ctx, in.Tenant, draft, in.params())
		if err != nil {
			return nil, a.fail(inBody(err))
		}
		return &one[trigger.DryRun]{*dry}, nil
	}, named("dry-run-draft", "What a draft of a subscription would make of stored events. Writes nothing."), readsOnly,
		func(o *huma.Operation) { o.MaxBodyBytes = draftMaxBytes })

	huma.Post(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/dry-run", func(ctx context.Context, in *struct {
		SubscriptionInput
		DryRunInput
		Body *NoBody
	},
	) (*one[trigger.DryRun], error) {
		sub, err := a.Store.SubscriptionGet(ctx, in.Tenant, in.Subscription)
		if err != nil {
			return nil, a.fail(err)
		}
		dry, err := a.explainer().DryRun(ctx, in.Tenant, sub, in.params())
		if err != nil {
			return nil, a.fail(err)
		}
		return &one[trigger.DryRun]{*dry}, nil
	}, named("dry-run-subscription", "What the subscription, as it is, makes of stored events. Writes nothing."), readsOnly, write)

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}/explain", func(ctx context.Context, in *struct {
		TenantInput
		Card         string `path:"card" maxLength:"255" pattern:"^[A-Za-z0-9@~-]+$" doc:"the card's id, percent-encoded"`
		Subscription string `query:"subscription" maxLength:"64" pattern:"^[A-Za-z0-9-]*$" doc:"only for the subscription with this id"`
		After        string `query:"after" maxLength:"63" pattern:"^[a-z0-9-]*$" doc:"only for subscriptions with names after this: the next of the page before"`
	},
	) (*one[Page[trigger.Explanation]], error) {
		if in.Subscription != "" {
			got, err := a.explainer().Explain(ctx, in.Tenant, in.Card, in.Subscription)
			if err != nil {
				return nil, a.fail(err)
			}
			return &one[Page[trigger.Explanation]]{Page[trigger.Explanation]{Items: []trigger.Explanation{*got}}}, nil
		}
		if _, err := a.Store.TenantGet(ctx, in.Tenant); err != nil {
			return nil, a.fail(err)
		}
		all, more, err := a.explainer().ExplainAll(ctx, in.Tenant, in.Card, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[trigger.Explanation]{Items: append([]trigger.Explanation{}, all...)}
		if more {
			page.Next = all[len(all)-1].SubscriptionName
		}
		return &one[Page[trigger.Explanation]]{page}, nil
	}, named("explain-card", "Why the card did or did not fire a subscription, or each of the tenant's, at most 100 on a page."))

	huma.Get(api, "/v1/tenants/{tenant}/subscriptions/{subscription}/log", func(ctx context.Context, in *struct {
		SubscriptionInput
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[trigger.LogEntry]], error) {
		before, err := decodeLogCursor(in.Tenant, in.Subscription, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		got, err := a.explainer().SubscriptionLog(ctx, in.Tenant, in.Subscription, before, in.Limit)
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[trigger.LogEntry]{Items: got.Entries}
		if got.Next > 0 {
			page.Next = encodeCursor(trigger.EffectID(trigger.EventID(in.Tenant, got.Next), in.Subscription))
		}
		return &one[Page[trigger.LogEntry]]{page}, nil
	}, named("log-subscription", "A page of what the subscription made, newest event first."))
}

// decodeLogCursor returns the seq that the page is before. A cursor is the
// last row of the page before; another subscription's is refused.
func decodeLogCursor(tenantID, subscriptionID, cursor string) (int64, error) {
	id, err := decodeCursor(tenantID, cursor)
	if err != nil || id == "" {
		return 0, err
	}
	digits, of := strings.CutPrefix(strings.TrimSuffix(id, "|"+subscriptionID), tenantID+"/")
	seq, err := strconv.ParseInt(digits, 10, 64)
	if !of || err != nil {
		return 0, tracker.Fieldf("query.after", "must be a cursor that the page before gave")
	}
	return seq, nil
}
