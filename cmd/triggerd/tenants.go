package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/triggerd/triggerd/internal/client"
	"github.com/triggerd/triggerd/pkg/tracker"
)

type tenantsCmd struct {
	Ls     tenantsLsCmd     `cmd:"" help:"List the tenants and where their logs stand: seq, cursor, lag, open holes, poison watch."`
	Show   tenantsShowCmd   `cmd:"" help:"Show one tenant, and where its log stands."`
	Create tenantsCreateCmd `cmd:"" help:"Make a tenant."`
	Rename tenantsRenameCmd `cmd:"" help:"Change what a tenant is called; its id stays."`
	Pause  tenantsPauseCmd  `cmd:"" help:"Hold up a tenant's launches, as pause --tenant does."`
	Resume tenantsResumeCmd `cmd:"" help:"End a tenant's pause."`
	Delete tenantsDeleteCmd `cmd:"" help:"Delete a tenant and all that it has. It can't be called back."`
}

const adminForTenants = "an admin's token is required to manage tenants"

type tenantsLsCmd struct {
	listFlags
	apiFlags
}

var tenantColumns = []column{
	{head: "TENANT", path: "tenant_id"},
	{head: "STATUS", path: "status"},
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

// Run lists tenants.
func (c *tenantsLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		return missing(c.list(ctx, a, client.Path("tenants"), nil, tenantColumns), adminForTenants)
	})
}

// oneTenant names a tenant. The variable that other commands take theirs from
// does not choose what is deleted.
type oneTenant struct {
	ID string `arg:"" help:"The tenant's id."`
	apiFlags
}

func (c *oneTenant) with(ctx context.Context, std streams, do func(*api) error) error {
	if err := checkTenantID(c.ID); err != nil {
		return err
	}
	return c.apiFlags.with(ctx, std, func(a *api) error { return noTenant(c.ID, do(a)) })
}

func checkTenantID(id string) error {
	if !tracker.ValidTenantID(id) {
		return tracker.Fieldf("the tenant's id", "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	return nil
}

type tenantsShowCmd struct {
	oneTenant
	outputFlag
}

// Run shows one tenant.
func (c *tenantsShowCmd) Run(ctx context.Context, std streams) error {
	return c.with(ctx, std, func(a *api) error {
		var text json.RawMessage
		if _, err := a.Get(ctx, tenantPath(c.ID), nil, &text); err != nil {
			return err
		}
		return c.show(a.out, text)
	})
}

type tenantsCreateCmd struct {
	ID   string `arg:"" help:"Its id, which stays: lower case letters, digits and hyphens."`
	Name string `env:"-" help:"What it is called; its id by default." placeholder:"NAME"`
	outputFlag
	apiFlags
}

// Run makes a tenant, which may be the first thing in a database.
func (c *tenantsCreateCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenantID(c.ID); err != nil {
		return err
	}
	a, err := c.open(ctx, std, true)
	if err != nil {
		return err
	}
	defer a.Close()
	var text json.RawMessage
	if err := a.Create(ctx, client.Path("tenants"), item{"id": c.ID, "name": cmp.Or(c.Name, c.ID)}, &text); err != nil {
		return missing(err, adminForTenants)
	}
	return c.show(a.out, text)
}

type tenantsRenameCmd struct {
	ID   string `arg:"" help:"The tenant's id."`
	Name string `arg:"" help:"What it is called from now on."`
	outputFlag
	apiFlags
}

// Run renames a tenant.
func (c *tenantsRenameCmd) Run(ctx context.Context, std streams) error {
	one := oneTenant{c.ID, c.apiFlags}
	return one.with(ctx, std, func(a *api) error {
		text, err := replace(ctx, a, tenantPath(c.ID), nil, item{"name": c.Name})
		if err != nil {
			return err
		}
		return c.show(a.out, text)
	})
}

type (
	tenantsPauseCmd struct {
		oneTenant
		noteFlag
	}
	tenantsResumeCmd struct{ oneTenant }
)

// Run pauses.
func (c *tenantsPauseCmd) Run(ctx context.Context, std streams) error {
	p := pauseCmd{scopeFlags{Tenant: c.ID}, c.noteFlag, c.apiFlags}
	return p.Run(ctx, std)
}

// Run ends a pause.
func (c *tenantsResumeCmd) Run(ctx context.Context, std streams) error {
	r := resumeCmd{scopeFlags{Tenant: c.ID}, c.apiFlags}
	return r.Run(ctx, std)
}

type tenantsDeleteCmd struct {
	oneTenant
	Discard bool `env:"-" help:"Also if it has effects that somebody may still want: they are lost with the rest."`
}

// Run deletes a tenant.
func (c *tenantsDeleteCmd) Run(ctx context.Context, std streams) error {
	return c.with(ctx, std, func(a *api) error {
		r := client.Request{Method: http.MethodDelete, Path: tenantPath(c.ID)}
		if c.Discard {
			r.Query = url.Values{"discard": {"true"}}
		}
		if _, err := a.Do(ctx, r, nil); err != nil {
			if isStatus(err, http.StatusConflict) && !c.Discard {
				return fmt.Errorf("%s: `triggerd effects ls --tenant %s` lists them", strings.ReplaceAll(err.Error(), "discard=true", "--discard"), c.ID)
			}
			return err
		}
		a.note("A replica removes all that it has within some minutes; `triggerd tenants show %s` ends with %d when it is gone.", c.ID, exitMissing)
		return a.say("tenant %s is being deleted", c.ID)
	})
}
