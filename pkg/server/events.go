package server

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (a *API) registerEvents(api huma.API) {
	huma.Get(api, "/v1/tenants/{tenant}/events/{seq}", func(ctx context.Context, in *struct {
		TenantInput
		Seq int64 `path:"seq" minimum:"1" maximum:"999999999999"`
	},
	) (*one[trigger.Event], error) {
		events, err := a.Store.EventList(ctx, in.Tenant, in.Seq-1, in.Seq)
		if err == nil && len(events) == 0 {
			err = tracker.ErrNotFound
		}
		if err != nil {
			return nil, a.fail(err)
		}
		return &one[trigger.Event]{events[0]}, nil
	}, named("get-event", "One event of the tenant's log."))

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}/events", func(ctx context.Context, in *struct {
		CardInput
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[trigger.Event]], error) {
		before, err := readSeqCursor("events/"+in.Card, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		if before == 0 {
			before, err = a.nextSeq(ctx, in.Tenant)
		}
		var events []trigger.Event
		if err == nil {
			events, err = a.Store.EventListByCard(ctx, in.Tenant, in.Card, before, in.Limit+1)
		}
		if err == nil && len(events) == 0 && in.After == "" {
			// A card that is gone has its events for as long as they are kept.
			_, err = a.Board.CardGet(ctx, in.Tenant, in.Card)
		}
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[trigger.Event]{Items: append([]trigger.Event{}, events[:min(len(events), in.Limit)]...)}
		if len(events) > in.Limit {
			page.Next = newCursor("events/"+in.Card, strconv.FormatInt(events[in.Limit-1].Seq, 10))
		}
		return &one[Page[trigger.Event]]{page}, nil
	}, named("list-card-events", "A page of the card's events in the log, newest first."))

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}/effects", func(ctx context.Context, in *struct {
		CardInput
		After string `query:"after" maxLength:"500" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Effect]], error) {
		list := "effects/" + in.Card
		key, err := readCursor(list, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		var after trigger.EffectKey
		if key != "" && (json.Unmarshal([]byte(key), &after) != nil || after.EventSeq <= 0) {
			return nil, a.fail(tracker.Fieldf("query.after", "must be a cursor that the page before gave"))
		}
		rows, err := a.effectsOfCard(ctx, in.Tenant, in.Card, after, in.Limit+1)
		if err == nil && len(rows) == 0 && in.After == "" {
			_, err = a.Board.CardGet(ctx, in.Tenant, in.Card)
		}
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[Effect]{Items: []Effect{}}
		for i := range rows {
			if i == in.Limit {
				key, err := json.Marshal(trigger.EffectKey{EventSeq: rows[i-1].EventSeq, ID: rows[i-1].ID})
				if err != nil {
					return nil, a.fail(err)
				}
				page.Next = newCursor(list, string(key))
				break
			}
			page.Items = append(page.Items, newEffect(&rows[i]))
		}
		return &one[Page[Effect]]{page}, nil
	}, named("list-card-effects", "A page of the card's effects, newest event first."))
}

// effectsOfCard returns rows of a card after one; from the newest on if that is
// zero.
func (a *API) effectsOfCard(ctx context.Context, tenantID, cardID string, after trigger.EffectKey, limit int) (rows []trigger.Effect, err error) {
	if after.EventSeq == 0 {
		if after.EventSeq, err = a.nextSeq(ctx, tenantID); err != nil {
			return nil, err
		}
	}
	return a.Store.EffectListByCard(ctx, tenantID, cardID, after, limit)
}

// nextSeq is above all seqs of the tenant's log.
func (a *API) nextSeq(ctx context.Context, tenantID string) (int64, error) {
	head, err := a.Store.HeadGet(ctx, tenantID)
	if errors.Is(err, tracker.ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return head.Seq + 1, nil
}

// readSeqCursor returns the seq of a cursor; 0 for none.
func readSeqCursor(list, cursor string) (int64, error) {
	key, err := readCursor(list, cursor)
	if err != nil || key == "" {
		return 0, err
	}
	seq, err := strconv.ParseInt(key, 10, 64)
	if err != nil || seq <= 0 {
		return 0, tracker.Fieldf("query.after", "must be a cursor that the page before gave")
	}
	return seq, nil
}
