package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/triggerd/triggerd/internal/client"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// scopeFlags name what is paused.
type scopeFlags struct {
	Tenant string `env:"-" help:"The tenant." placeholder:"ID"`
	Bot    string `env:"-" help:"With --tenant: that bot (id or name) alone." placeholder:"BOT"`
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

// path finds the bot, if one is named.
func (c *scopeFlags) path(ctx context.Context, a *api) (string, error) {
	switch {
	case c.Fleet:
		return client.Path("pause"), nil
	case c.Bot == "":
		return tenantPath(c.Tenant, "pause"), nil
	}
	id, err := a.find(ctx, c.Tenant, &botResource, c.Bot)
	return tenantPath(c.Tenant, "bots", id, "pause"), err
}

func (c *scopeFlags) explain(err error) error {
	switch {
	case c.Fleet:
		return missing(err, "the token may not pause the fleet: an admin's is required")
	case c.Bot != "":
		return missing(err, "there is no bot %s of tenant %s: `triggerd bots ls --tenant %s` lists them", c.Bot, c.Tenant, c.Tenant)
	}
	return noTenant(c.Tenant, err)
}

func (c *scopeFlags) name() string {
	switch {
	case c.Fleet:
		return "the fleet"
	case c.Bot == "":
		return "tenant " + c.Tenant
	}
	return fmt.Sprintf("bot %s of tenant %s", c.Bot, c.Tenant)
}

type pauseCmd struct {
	scopeFlags
	noteFlag
	apiFlags
}

// Run pauses.
func (c *pauseCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		path, err := c.path(ctx, a)
		if err != nil {
			return err
		}
		var p server.Pause
		if _, err := a.Do(ctx, client.Request{Method: http.MethodPut, Path: path, Body: server.NoteBody{Note: c.Note}}, &p); err != nil {
			return c.explain(err)
		}
		return a.say("%s is paused, since %s, by %s", c.name(), p.At.Format(time.RFC3339), p.By)
	})
}

type resumeCmd struct {
	scopeFlags
	apiFlags
}

// Run ends a pause.
func (c *resumeCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		path, err := c.path(ctx, a)
		if err != nil {
			return err
		}
		if _, err := a.Do(ctx, client.Request{Method: http.MethodDelete, Path: path}, nil); err != nil {
			return c.explain(err)
		}
		return a.say("%s is not paused: `triggerd pauses` lists what is", c.name())
	})
}

type pausesCmd struct {
	Tenant string `env:"-" help:"Only what holds up this tenant. A token that is no admin's needs it." placeholder:"ID"`
	listFlags
	apiFlags
}

// Run lists pauses.
func (c *pausesCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	cols := columns("SCOPE:scope", "TENANT:tenant_id", "BOT:bot_id", "SINCE:at", "BY:by", "NOTE:note")
	if c.Tenant == "" {
		return c.with(ctx, std, func(a *api) error {
			return missing(c.list(ctx, a, client.Path("pauses"), nil, cols), "an admin's token is required to list all pauses: give --tenant for one tenant's")
		})
	}
	one := tenantFlag{c.Tenant}
	return one.of(ctx, &c.apiFlags, std, func(a *api) error {
		var page struct {
			Items []json.RawMessage `json:"items"`
		}
		if _, err := a.Get(ctx, one.path("pauses"), nil, &page); err != nil {
			return noTenant(c.Tenant, err)
		}
		return c.printItems(a.out, cols, page.Items)
	})
}
