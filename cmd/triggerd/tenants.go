package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/triggerd/triggerd/internal/client"
)

type tenantsCmd struct {
	Ls tenantsLsCmd `cmd:"" help:"List the tenants that have a log: seq, cursor, lag, open holes, poison watch."`
}

type tenantsLsCmd struct {
	listFlags
	apiFlags
}

var tenantColumns = []column{
	{head: "TENANT", path: "tenant_id"},
	{head: "SEQ", path: "seq"},
	{head: "CURSOR", path: "cursor"},
	{head: "LAG", path: "lag_events"},
	{head: "WAITING", show: func(i item) string {
		s, _ := strconv.ParseFloat(i.str("lag_seconds"), 64)
		return (time.Duration(s*1000) * time.Millisecond).String()
	}},
	{head: "OPEN HOLES", path: "open_holes"},
	{head: "POISON WATCH", show: func(i item) string {
		if i["poison"] == nil {
			return ""
		}
		return fmt.Sprintf("seq %s, %s tries since %s", i.str("poison.seq"), i.str("poison.tries"), i.str("poison.since"))
	}},
	{head: "RETRY AT", path: "retry_at"},
}

// Run lists where tenants' logs stand.
func (c *tenantsLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		return missing(c.list(ctx, a, client.Path("tenants"), nil, tenantColumns), "an admin's token is required to list tenants")
	})
}
