package server

import (
	"context"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/trigger"
)

const allPausesList = "pauses"

// registerAllPauses registers the list of all tenants' pauses.
func (a *API) registerAllPauses(api huma.API) {
	huma.Get(api, "/v1/pauses", func(ctx context.Context, in *struct {
		After string `query:"after" maxLength:"300" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Pause]], error) {
		after, err := readCursor(allPausesList, in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		all, err := a.Store.PauseList(ctx)
		if err != nil {
			return nil, a.fail(err)
		}
		slices.SortFunc(all, func(p, q trigger.Pause) int { return strings.Compare(pauseKey(&p), pauseKey(&q)) })
		page := Page[Pause]{Items: []Pause{}}
		for i := range all {
			switch {
			case after != "" && pauseKey(&all[i]) <= after:
				continue
			case len(page.Items) == in.Limit:
				page.Next = newCursor(allPausesList, pauseKey(&all[i-1]))
				return &one[Page[Pause]]{page}, nil
			}
			page.Items = append(page.Items, NewPause(&all[i]))
		}
		return &one[Page[Pause]]{page}, nil
	}, named("list-all-pauses", "Which launches are paused: the fleet, tenants and bots, of all tenants. For admins."), forAdmins)
}

// pauseKey orders pauses: the fleet's, then by tenant, each before its bots.
func pauseKey(p *trigger.Pause) string { return p.TenantID + "/" + p.BotID }
