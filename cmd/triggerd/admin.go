package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a token; it is printed this once."`
	Ls     tokenLsCmd     `cmd:"" help:"List tokens, without the tokens themselves."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a token."`
}

type tokenCreateCmd struct {
	Name   string        `arg:"" help:"What the token is for."`
	Role   string        `help:"What it may do: ${enum}. An admin reads and acts in every tenant, an editor in one, a viewer reads one, a bot what is its own." enum:"admin,editor,viewer,bot" default:"viewer"`
	Tenant string        `help:"The tenant that an editor's, a viewer's or a bot's token is bound to." placeholder:"ID"`
	Bot    string        `env:"-" help:"The bot whose token it is, by its id; with --role bot." placeholder:"ID"`
	TTL    time.Duration `help:"How long it is valid; for ever if 0." default:"0s"`
	requiredMongo
}

// Run makes a token.
func (c *tokenCreateCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if err := store.SchemaApply(ctx); err != nil {
		return err
	}
	token, text, err := server.TokenCreate(ctx, store, server.TokenParams{
		Name: c.Name, Role: trigger.Role(c.Role), TenantID: c.Tenant, BotID: c.Bot, TTL: c.TTL,
	})
	if errors.Is(err, tracker.ErrNotFound) {
		return fmt.Errorf("--tenant: there is no tenant %s", c.Tenant)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(std.err, "token %s (%s); keep it, it is not shown again:\n", token.ID, token.Role)
	_, err = fmt.Fprintln(std.out, text)
	return err
}

type tokenLsCmd struct {
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists tokens.
func (c *tokenLsCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	var tokens []trigger.Token
	for after := ""; ; {
		page, err := store.TokenList(ctx, after, server.PageMax)
		if err != nil {
			return err
		}
		tokens = append(tokens, page...)
		if len(page) < server.PageMax {
			break
		}
		after = page[len(page)-1].ID
	}
	type view struct {
		ID        string     `json:"id"`
		Name      string     `json:"name"`
		Role      string     `json:"role"`
		Tenant    string     `json:"tenant,omitempty"`
		Bot       string     `json:"bot,omitempty"`
		Status    string     `json:"status"`
		CreatedAt time.Time  `json:"created_at"`
		ExpiresAt *time.Time `json:"expires_at,omitempty"`
	}
	views := make([]view, len(tokens))
	rows := [][]string{{"ID", "NAME", "ROLE", "TENANT", "BOT", "STATUS", "CREATED"}}
	for i, t := range tokens {
		v := view{ID: t.ID, Name: t.Name, Role: string(t.Role), Tenant: t.TenantID, Bot: t.BotID, Status: "active", CreatedAt: t.CreatedAt}
		switch {
		case !t.RevokedAt.IsZero():
			v.Status = "revoked"
		case !t.Active(store.Now()):
			v.Status = "expired"
		}
		if !t.ExpiresAt.IsZero() {
			v.ExpiresAt = &t.ExpiresAt
		}
		views[i] = v
		rows = append(rows, []string{v.ID, v.Name, v.Role, v.Tenant, v.Bot, v.Status, v.CreatedAt.Format(time.RFC3339)})
	}
	if c.Output == "json" {
		return printJSON(std.out, views)
	}
	return printTable(std.out, rows)
}

type tokenRevokeCmd struct {
	ID string `arg:"" help:"The token's id, from token ls."`
	requiredMongo
}

// Run revokes a token.
func (c *tokenRevokeCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	err = store.TokenRevoke(ctx, c.ID, store.Now())
	if errors.Is(err, tracker.ErrNotFound) {
		return errors.New("there is no token with this id: `triggerd token ls` lists them")
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, "revoked")
	return err
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}
