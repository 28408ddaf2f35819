package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

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
	Subscription string        `env:"-" help:"Only rows of this subscription (id or name)." placeholder:"SUBSCRIPTION"`
	Bot          string        `env:"-" help:"Only rows of this bot (id or name)." placeholder:"BOT"`
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

// find finds the things that the filter names. Of one that is gone the id does.
func (f *filterFlags) find(ctx context.Context, a *api, tenant string) error {
	for _, named := range []struct {
		r    *resource
		flag *string
	}{{&subscriptionResource, &f.Subscription}, {&botResource, &f.Bot}} {
		if *named.flag == "" {
			continue
		}
		id, err := a.find(ctx, tenant, named.r, *named.flag)
		if err != nil {
			return err
		}
		*named.flag = id
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

// query is the filter as the API takes it.
func (f *filterFlags) query() url.Values {
	b := f.body()
	q := url.Values{}
	for name, v := range map[string]string{
		"state": b.State, "subscription": b.Subscription, "bot": b.Bot, "reason": b.Reason, "older_than": b.OlderThan, "newer_than": b.NewerThan,
	} {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

func (f *filterFlags) body() server.BulkFilter {
	set := func(v string) string {
		if v == "any" {
			return ""
		}
		return v
	}
	age := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return server.BulkFilter{
		State: set(f.State), Subscription: f.Subscription, Bot: f.Bot, Reason: set(f.Reason), OlderThan: age(f.OlderThan), NewerThan: age(f.NewerThan),
	}
}

type effectsLsCmd struct {
	tenantFlag
	filterFlags
	listFlags
	apiFlags
}

var effectColumns = []column{
	{head: "EFFECT", path: "id"},
	{head: "EVENT", path: "event_kind"},
	{head: "STATE", path: "state"},
	{head: "OUTCOME", show: func(i item) string {
		if i.str("state") == string(trigger.StateFailed) {
			return i.str("reason")
		}
		return i.str("outcome")
	}},
	{head: "ATTEMPTS", path: "attempts"},
	{head: "RUN", path: "run_id"},
}

// Run lists effects.
func (c *effectsLsCmd) Run(ctx context.Context, std streams) error {
	if err := errors.Join(c.filterFlags.check(), c.listFlags.check()); err != nil {
		return err
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if err := c.find(ctx, a, c.Tenant); err != nil {
			return err
		}
		return noTenant(c.Tenant, c.list(ctx, a, c.path("effects"), c.query(), effectColumns))
	})
}

// effectPath returns the path of a row's calls.
func effectPath(id string, verb ...string) (string, error) {
	tenantID, rest, _ := strings.Cut(id, "/")
	if !tracker.ValidTenantID(tenantID) || rest == "" {
		return "", errors.New("the id must have the form <tenant>/<seq>|<subscription>: `triggerd effects ls --tenant TENANT` lists them")
	}
	return tenantPath(tenantID, append([]string{"effects", id}, verb...)...), nil
}

// effectError tells what to do about an error.
func effectError(id string, err error) error {
	err = missing(err, "%s: there is no effect with this id: `triggerd effects ls --tenant TENANT` lists them", id)
	if isStatus(err, http.StatusConflict) {
		return fmt.Errorf("%s: %w; `triggerd effects show '%s'` shows it", id, err, id)
	}
	return err
}

type effectsShowCmd struct {
	ID     string `arg:"" help:"The effect's id, from effects ls."`
	Output string `short:"o" env:"-" help:"Form: ${enum}." enum:"table,json" default:"json"`
	apiFlags
}

// Run shows one effect.
func (c *effectsShowCmd) Run(ctx context.Context, std streams) error {
	path, err := effectPath(c.ID)
	if err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		var row json.RawMessage
		if _, err := a.Get(ctx, path, nil, &row); err != nil {
			return effectError(c.ID, err)
		}
		return outputFlag{c.Output}.show(a.out, row)
	})
}

type effectsResolveCmd struct {
	ID        string `arg:"" help:"The effect's id, from effects ls --state reconcile."`
	Confirmed bool   `env:"-" help:"The bot did get it: the effect is done."`
	RunID     string `env:"-" help:"With --confirmed: what the bot called the run." placeholder:"ID"`
	SendAgain bool   `env:"-" help:"Send it once more; the bot may get it twice."`
	StartedAt string `env:"-" name:"delivery-started-at" help:"With --send-again: the delivery that you looked at, delivery_started_at of effects show." placeholder:"TIME"`
	Yes       bool   `env:"-" help:"With --send-again: yes, the bot may get it twice."`
	noteFlag
	apiFlags
}

// Run resolves one effect.
func (c *effectsResolveCmd) Run(ctx context.Context, std streams) error {
	path, err := effectPath(c.ID, "resolve")
	if err != nil {
		return err
	}
	body := server.ResolveBody{As: "confirmed", RunID: c.RunID, Note: c.Note}
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
		at, err := time.Parse(time.RFC3339Nano, c.StartedAt)
		if err != nil {
			return tracker.Fieldf("--delivery-started-at", "must be a time as effects show prints it: 2026-11-30T09:33:48.111Z")
		}
		body.As, body.StartedAt, body.Confirm = "send_again", &at, true
	}
	return c.with(ctx, std, func(a *api) error {
		var row server.Effect
		if err := a.Post(ctx, path, body, &row); err != nil {
			return effectError(c.ID, err)
		}
		return a.say("%s: %s", row.ID, row.State)
	})
}
