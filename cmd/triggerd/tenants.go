package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type tenantsCmd struct {
	Ls tenantsLsCmd `cmd:"" help:"List the tenants that have a log: seq, cursor, lag, open holes, poison watch."`
}

type tenantsLsCmd struct {
	Limit  int    `help:"At most this many." default:"1000"`
	After  string `help:"Only tenants after this id." placeholder:"ID"`
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists where tenants' logs stand.
func (c *tenantsLsCmd) Run(ctx context.Context, std streams) error {
	if c.Limit < 1 || c.Limit > 10_000 {
		return tracker.Fieldf("--limit", "must be 1 to 10000")
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	heads, err := store.HeadList(ctx, c.After, c.Limit)
	if err != nil {
		return err
	}
	list := make([]trigger.TenantStatus, len(heads))
	table := [][]string{{"TENANT", "SEQ", "CURSOR", "LAG", "WAITING", "OPEN HOLES", "POISON WATCH", "RETRY AT"}}
	for i := range heads {
		s, err := trigger.Status(ctx, store, store, &heads[i])
		if err != nil {
			return err
		}
		list[i] = s
		poison, retry := "", ""
		if s.Poison != nil {
			poison = fmt.Sprintf("seq %d, %d tries since %s", s.Poison.Seq, s.Poison.Tries, s.Poison.Since.Format(time.RFC3339))
		}
		if s.RetryAt != nil {
			retry = s.RetryAt.Format(time.RFC3339)
		}
		table = append(table, []string{
			s.TenantID, strconv.FormatInt(s.Seq, 10), strconv.FormatInt(s.Cursor, 10), strconv.FormatInt(s.LagEvents, 10),
			(time.Duration(s.LagSeconds*1000) * time.Millisecond).String(), strconv.Itoa(s.OpenHoles), poison, retry,
		})
	}
	if c.Output == "json" {
		return printJSON(std.out, list)
	}
	return printTable(std.out, table)
}
