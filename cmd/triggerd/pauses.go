package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// scopeFlags name what is paused.
type scopeFlags struct {
	Tenant string `env:"-" help:"The tenant." placeholder:"ID"`
	Bot    string `env:"-" help:"The bot's id, with --tenant: that bot alone." placeholder:"ID"`
	Fleet  bool   `env:"-" help:"In place of --tenant: everything, of all tenants."`
}

func (c *scopeFlags) check() error {
	switch {
	case c.Fleet && (c.Tenant != "" || c.Bot != ""):
		return errors.New("give either --fleet, or --tenant and maybe --bot")
	case c.Fleet:
		return nil
	case c.Tenant == "" && c.Bot != "":
		return tracker.Fieldf("--tenant", "is required with --bot")
	case c.Tenant == "":
		return errors.New("say what: --tenant, --tenant and --bot, or --fleet for everything")
	}
	return checkTenant(c.Tenant)
}

func (c *scopeFlags) explain(err error) error {
	var field *tracker.FieldError
	switch {
	case errors.Is(err, tracker.ErrNotFound) && c.Bot != "":
		return fmt.Errorf("there is no bot %s of tenant %s: `triggerd subs ls --tenant %s` shows the ids of bots", c.Bot, c.Tenant, c.Tenant)
	case errors.Is(err, tracker.ErrNotFound):
		return fmt.Errorf("there is no tenant %s: `triggerd tenants ls` lists them", c.Tenant)
	case errors.As(err, &field):
		return flagError(field)
	}
	return err
}

func scopeName(p *trigger.Pause) string {
	switch {
	case p.TenantID == "":
		return "the fleet"
	case p.BotID == "":
		return "tenant " + p.TenantID
	}
	return fmt.Sprintf("bot %s of tenant %s", p.BotID, p.TenantID)
}

type pauseCmd struct {
	scopeFlags
	whoFlags
	requiredMongo
}

// Run pauses.
func (c *pauseCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	p, err := deadLetters(store, std).Pause(ctx, trigger.Pause{TenantID: c.Tenant, BotID: c.Bot, By: c.by(), Note: c.Note})
	if err != nil {
		return c.explain(err)
	}
	_, err = fmt.Fprintf(std.out, "%s is paused, since %s, by %s\n", scopeName(p), p.At.Format(time.RFC3339), p.By)
	return err
}

type resumeCmd struct {
	scopeFlags
	requiredMongo
}

// Run ends a pause.
func (c *resumeCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	was, err := deadLetters(store, std).Resume(ctx, c.Tenant, c.Bot)
	if err != nil {
		return c.explain(err)
	}
	name := scopeName(&trigger.Pause{TenantID: c.Tenant, BotID: c.Bot})
	if was {
		_, err = fmt.Fprintf(std.out, "%s is resumed\n", name)
	} else {
		_, err = fmt.Fprintf(std.out, "%s was not paused: `triggerd pauses` lists what is\n", name)
	}
	return err
}

type pausesCmd struct {
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists pauses.
func (c *pausesCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	all, err := store.PauseList(ctx)
	if err != nil {
		return err
	}
	views := make([]server.Pause, len(all))
	table := [][]string{{"SCOPE", "TENANT", "BOT", "SINCE", "BY", "NOTE"}}
	for i := range all {
		v := server.NewPause(&all[i])
		views[i] = v
		table = append(table, []string{v.Scope, v.TenantID, v.BotID, v.At.Format(time.RFC3339), v.By, v.Note})
	}
	if c.Output == "json" {
		return printJSON(std.out, views)
	}
	return printTable(std.out, table)
}

type subsCmd struct {
	Ls     subsLsCmd     `cmd:"" help:"List a tenant's subscriptions."`
	Pause  subsPauseCmd  `cmd:"" help:"Hold what a subscription owes, until it is resumed."`
	Resume subsResumeCmd `cmd:"" help:"End a subscription's pause, and release or discard what it held."`

	Explain subsExplainCmd `cmd:"" help:"Say why a card did or did not fire subscriptions."`
	DryRun  subsDryRunCmd  `cmd:"" help:"See what a subscription, or a draft, would make of stored events."`
	Log     subsLogCmd     `cmd:"" help:"List what a subscription made, newest first."`
}

type subsLsCmd struct {
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
	requiredMongo
}

// Run lists subscriptions.
func (c *subsLsCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	subs, err := store.SubscriptionList(ctx, c.Tenant)
	if err != nil {
		return err
	}
	if len(subs) == 0 {
		if err := tenantThere(ctx, store, c.Tenant); err != nil {
			return err
		}
	}
	table := [][]string{{"SUBSCRIPTION", "NAME", "ENABLED", "BOT", "PAUSED BY", "WHY"}}
	for i := range subs {
		s := &subs[i]
		why := s.PausedWhy
		if s.Failing != "" {
			why = strings.TrimPrefix(fmt.Sprintf("%s; failing since %s: %s", why, s.FailingSince.UTC().Format(time.RFC3339), s.Failing), "; ")
		}
		table = append(table, []string{s.ID, s.Name, strconv.FormatBool(s.Enabled), s.BotID, s.PausedBy, plain(why)})
	}
	return printTable(std.out, table)
}

// subFlags name a subscription.
type subFlags struct {
	ID     string `arg:"" help:"The subscription's id, from subs ls."`
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
}

func (c *subFlags) explain(err error) error {
	var refused *trigger.RefusedError
	var field *tracker.FieldError
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return fmt.Errorf("there is no subscription %s of tenant %s: `triggerd subs ls --tenant %s` lists them", c.ID, c.Tenant, c.Tenant)
	case errors.As(err, &refused):
		return errors.New(refused.Why)
	case errors.As(err, &field):
		return flagError(field)
	}
	return err
}

type subsPauseCmd struct {
	subFlags
	whoFlags
	requiredMongo
}

// Run pauses a subscription.
func (c *subsPauseCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	sub, err := deadLetters(store, std).SubscriptionPause(ctx, c.Tenant, c.ID, c.by(), c.Note)
	if err != nil {
		return c.explain(err)
	}
	_, err = fmt.Fprintf(std.out, "subscription %s is paused by %s; what it owes is held\n", sub.Name, sub.PausedBy)
	return err
}

type subsResumeCmd struct {
	subFlags
	By      string `help:"Who does it; the system's user by default." placeholder:"NAME"`
	Discard bool   `env:"-" help:"Give up what is held instead of releasing it."`
	requiredMongo
}

// Run resumes a subscription.
func (c *subsResumeCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	who := whoFlags{By: c.By}
	end, became := deadLetters(store, std).SubscriptionResume, "released"
	if c.Discard {
		end, became = deadLetters(store, std).SubscriptionDiscard, "discarded"
	}
	sub, n, err := end(ctx, c.Tenant, c.ID, who.by())
	if err != nil {
		return c.explain(err)
	}
	_, err = fmt.Fprintf(std.out, "subscription %s is resumed; %d held effects were %s, others follow within seconds\n", sub.Name, n, became)
	return err
}
