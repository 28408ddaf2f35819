package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type effectsCmd struct {
	Ls      effectsLsCmd      `cmd:"" help:"List a tenant's effects."`
	Show    effectsShowCmd    `cmd:"" help:"Show one effect, with its event and what people did with it."`
	Replay  effectsReplayCmd  `cmd:"" help:"Try failed effects again, under their keys."`
	Rerun   effectsRerunCmd   `cmd:"" help:"Run done effects again, under other keys."`
	Discard effectsDiscardCmd `cmd:"" help:"Give failed, reconcile or held effects up."`
	Release effectsReleaseCmd `cmd:"" help:"Let held effects go on."`
	Resolve effectsResolveCmd `cmd:"" help:"Say what became of a delivery that can't be repeated, or send it once more."`
}

// filterFlags choose rows.
type filterFlags struct {
	State        string        `env:"-" help:"Only rows in this state: ${enum}." enum:"any,pending,claimed,done,failed,reconcile,held,discarded" default:"any"`
	Subscription string        `env:"-" help:"Only rows of the subscription with this id." placeholder:"ID"`
	Bot          string        `env:"-" help:"Only rows of the bot with this id." placeholder:"ID"`
	Reason       string        `env:"-" help:"Only rows that failed for this reason: ${enum}." enum:"any,exhausted,permanent,lease_exhausted,poison" default:"any"`
	OlderThan    time.Duration `env:"-" help:"Only rows last written longer ago than this."`
	NewerThan    time.Duration `env:"-" help:"Only rows last written less long ago than this."`
}

func (f *filterFlags) check() error {
	for flag, d := range map[string]time.Duration{"--older-than": f.OlderThan, "--newer-than": f.NewerThan} {
		if d < 0 {
			return tracker.Fieldf(flag, "must be positive, such as 90m or 24h")
		}
	}
	return nil
}

// given names the filters that were given.
func (f *filterFlags) given() (flags []string) {
	for _, flag := range []struct {
		name string
		set  bool
	}{
		{"--state", f.State != "any"},
		{"--subscription", f.Subscription != ""},
		{"--bot", f.Bot != ""},
		{"--reason", f.Reason != "any"},
		{"--older-than", f.OlderThan != 0},
		{"--newer-than", f.NewerThan != 0},
	} {
		if flag.set {
			flags = append(flags, flag.name)
		}
	}
	return flags
}

func (f *filterFlags) filter(now time.Time) trigger.EffectFilter {
	out := trigger.EffectFilter{SubscriptionID: f.Subscription, BotID: f.Bot}
	if f.State != "any" {
		out.State = trigger.State(f.State)
	}
	if f.Reason != "any" {
		out.Reason = trigger.Reason(f.Reason)
	}
	if f.OlderThan > 0 {
		out.UpdatedBefore = now.Add(-f.OlderThan)
	}
	if f.NewerThan > 0 {
		out.UpdatedFrom = now.Add(-f.NewerThan)
	}
	return out
}

func checkTenant(id string) error {
	if !tracker.ValidTenantID(id) {
		return tracker.Fieldf("--tenant", "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	return nil
}

// tenantThere fails if there is no such tenant: a misspelt one must not look
// like one where all is well.
func tenantThere(ctx context.Context, store *boardmongo.Store, id string) error {
	_, err := store.TenantGet(ctx, id)
	if errors.Is(err, tracker.ErrNotFound) {
		return fmt.Errorf("there is no tenant %s: `triggerd tenants ls` lists them", id)
	}
	return err
}

type effectsLsCmd struct {
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
	filterFlags
	Limit  int    `help:"At most this many." default:"100"`
	After  string `help:"Only rows after this id." placeholder:"ID"`
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists effects.
func (c *effectsLsCmd) Run(ctx context.Context, std streams) error {
	if err := errors.Join(checkTenant(c.Tenant), c.check()); err != nil {
		return err
	}
	if c.Limit < 1 || c.Limit > 10_000 {
		return tracker.Fieldf("--limit", "must be 1 to 10000")
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	rows, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: c.Tenant, EffectFilter: c.filter(store.Now()), AfterID: c.After, Limit: c.Limit + 1})
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		if err := tenantThere(ctx, store, c.Tenant); err != nil {
			return err
		}
	}
	more := len(rows) > c.Limit
	rows = rows[:min(len(rows), c.Limit)]
	if c.Output == "json" {
		views := make([]server.Effect, len(rows))
		for i := range rows {
			views[i] = server.NewEffect(&rows[i])
		}
		err = printJSON(std.out, views)
	} else {
		err = printTable(std.out, effectTable(rows))
	}
	if more && err == nil {
		fmt.Fprintf(std.err, "There are more: go on with --after '%s', or raise --limit.\n", rows[len(rows)-1].ID)
	}
	return err
}

func effectTable(rows []trigger.Effect) [][]string {
	table := [][]string{{"EFFECT", "EVENT", "STATE", "OUTCOME", "ATTEMPTS", "RUN"}}
	for i := range rows {
		row := &rows[i]
		how := string(row.Outcome)
		if row.State == trigger.StateFailed {
			how = string(row.Reason)
		}
		table = append(table, []string{row.ID, string(row.Event.Kind), string(row.State), how, strconv.Itoa(row.Attempts), row.RunID})
	}
	return table
}

// effectTenant returns the tenant of a row's id.
func effectTenant(id string) (string, error) {
	tenantID, rest, _ := strings.Cut(id, "/")
	if !tracker.ValidTenantID(tenantID) || rest == "" {
		return "", errors.New("the id must have the form <tenant>/<seq>|<subscription>: `triggerd effects ls --tenant TENANT` lists them")
	}
	return tenantID, nil
}

var errNoEffect = errors.New("there is no effect with this id: `triggerd effects ls --tenant TENANT` lists them")

type effectsShowCmd struct {
	ID string `arg:"" help:"The effect's id, from effects ls."`
	requiredMongo
}

// Run shows one effect.
func (c *effectsShowCmd) Run(ctx context.Context, std streams) error {
	tenantID, err := effectTenant(c.ID)
	if err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	row, err := store.EffectGet(ctx, tenantID, c.ID)
	if errors.Is(err, tracker.ErrNotFound) {
		return errNoEffect
	}
	if err != nil {
		return err
	}
	return printJSON(std.out, server.NewEffectDetail(row))
}

type effectsResolveCmd struct {
	ID        string `arg:"" help:"The effect's id, from effects ls --state reconcile."`
	Confirmed bool   `env:"-" help:"The bot did get it: the effect is done."`
	RunID     string `env:"-" help:"With --confirmed: what the bot called the run." placeholder:"ID"`
	SendAgain bool   `env:"-" help:"Send it once more; the bot may get it twice."`
	StartedAt string `env:"-" name:"delivery-started-at" help:"With --send-again: the delivery that you looked at, delivery_started_at of effects show." placeholder:"TIME"`
	Yes       bool   `env:"-" help:"With --send-again: yes, the bot may get it twice."`
	whoFlags
	requiredMongo
}

// Run resolves one effect.
func (c *effectsResolveCmd) Run(ctx context.Context, std streams) error {
	tenantID, err := effectTenant(c.ID)
	if err != nil {
		return err
	}
	d := trigger.Decision{TenantID: tenantID, EffectID: c.ID, Action: trigger.ActionConfirm, RunID: c.RunID, By: c.by(), Note: c.Note}
	switch {
	case c.Confirmed == c.SendAgain:
		return errors.New("say either --confirmed (the bot did get it) or --send-again: the bot's own log tells")
	case c.Confirmed && (c.StartedAt != "" || c.Yes):
		return errors.New("--delivery-started-at and --yes go with --send-again")
	case c.SendAgain && c.RunID != "":
		return errors.New("--run-id goes with --confirmed")
	case c.SendAgain && c.StartedAt == "":
		return fmt.Errorf("--delivery-started-at: is required with --send-again, as `triggerd effects show '%s'` shows it", c.ID)
	case c.SendAgain && !c.Yes:
		return errors.New("--yes: is required with --send-again: the bot may get it twice")
	case c.SendAgain:
		d.Action = trigger.ActionForce
		if d.StartedAt, err = time.Parse(time.RFC3339Nano, c.StartedAt); err != nil {
			return tracker.Fieldf("--delivery-started-at", "must be a time as effects show prints it: 2026-11-30T09:33:48.111Z")
		}
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	row, err := deadLetters(store, std).Decide(ctx, d)
	if err != nil {
		return explain(c.ID, err)
	}
	_, err = fmt.Fprintf(std.out, "%s: %s\n", row.ID, row.State)
	return err
}
