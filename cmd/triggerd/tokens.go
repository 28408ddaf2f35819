package main

import (
	"context"
	"net/http"
	"time"

	"github.com/triggerd/triggerd/internal/client"
)

type tokensCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a token; it is printed this once."`
	Ls     tokenLsCmd     `cmd:"" help:"List tokens, without the tokens themselves."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a token."`
}

const adminOnly = "an admin's token is required to manage tokens"

type tokenCreateCmd struct {
	Name   string        `arg:"" help:"What the token is for."`
	Role   string        `help:"What it may do: ${enum}. An admin reads and acts in every tenant, an editor in one, a viewer reads one, a bot reads what is its own." enum:"admin,editor,viewer,bot" default:"viewer"`
	Tenant string        `help:"The tenant that the token is bound to; not an admin's." placeholder:"ID"`
	Bot    string        `env:"-" help:"Id or name of the bot that the token of the role bot is." placeholder:"BOT"`
	TTL    time.Duration `help:"How long it is valid; for ever if 0." default:"0s"`
	apiFlags
}

// Run makes a token.
func (c *tokenCreateCmd) Run(ctx context.Context, std streams) error {
	if c.Tenant != "" {
		if err := checkTenant(c.Tenant); err != nil {
			return err
		}
	}
	a, err := c.open(ctx, std, true)
	if err != nil {
		return err
	}
	defer a.Close()
	body := item{"name": c.Name, "role": c.Role}
	given(body, "tenant_id", c.Tenant, c.Tenant != "")
	given(body, "ttl", c.TTL.String(), c.TTL != 0)
	if c.Bot != "" {
		if err := ref(ctx, a, c.Tenant, &botResource, body, "bot_id", c.Bot); err != nil {
			return err
		}
	}
	var made struct {
		ID    string `json:"id"`
		Token string `json:"token"`
	}
	if err := a.Create(ctx, client.Path("tokens"), body, &made); err != nil {
		return missing(err, adminOnly)
	}
	a.note("token %s (%s); keep it, it is not shown again:", made.ID, c.Role)
	return a.say("%s", made.Token)
}

type tokenLsCmd struct {
	listFlags
	apiFlags
}

// Run lists tokens.
func (c *tokenLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		return missing(c.list(ctx, a, client.Path("tokens"), nil,
			columns("ID:id", "NAME:name", "ROLE:role", "TENANT:tenant_id", "BOT:bot_id", "STATUS:status", "CREATED:created_at", "EXPIRES:expires_at")), adminOnly)
	})
}

type tokenRevokeCmd struct {
	ID string `arg:"" help:"The token's id, from tokens ls."`
	apiFlags
}

// Run revokes a token.
func (c *tokenRevokeCmd) Run(ctx context.Context, std streams) error {
	return c.with(ctx, std, func(a *api) error {
		_, err := a.Do(ctx, client.Request{Method: http.MethodPost, Path: client.Path("tokens", c.ID, "revoke")}, nil)
		if err != nil {
			return missing(err, "there is no token with this id: `triggerd tokens ls` lists them")
		}
		return a.say("revoked")
	})
}

type auditCmd struct {
	Ls auditLsCmd `cmd:"" default:"withargs" help:"List who changed what, newest first."`
}

type auditLsCmd struct {
	Tenant string `env:"-" help:"Of this tenant; of the fleet, tokens and tenants as a whole by default." placeholder:"ID"`
	listFlags
	apiFlags
}

// Run lists the audit log.
func (c *auditLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	path := client.Path("audit")
	if c.Tenant != "" {
		if err := checkTenant(c.Tenant); err != nil {
			return err
		}
		path = tenantPath(c.Tenant, "audit")
	}
	return c.with(ctx, std, func(a *api) error {
		return noTenant(c.Tenant, c.list(ctx, a, path, nil, []column{
			{head: "AT", path: "at"},
			{head: "WHO", path: "token_name"},
			{head: "ROLE", path: "role"},
			{head: "WHAT", path: "operation"},
			{head: "OUTCOME", path: "outcome"},
			{head: "STATUS", path: "status"},
			{head: "CHANGED", show: changedThings},
		}))
	})
}

func changedThings(i item) string {
	list, _ := i["changes"].([]any)
	out := ""
	for n, c := range list {
		if n == 3 {
			return out + ", …"
		}
		if n > 0 {
			out += ", "
		}
		out += mapping(c).str("kind") + " " + mapping(c).str("id")
	}
	return out
}
