package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
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
	Role   string        `help:"What it may do: ${enum}. An admin reads every tenant, a viewer one." enum:"admin,viewer" default:"viewer"`
	Tenant string        `help:"The tenant that a viewer's token is bound to." placeholder:"ID"`
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
		Name: c.Name, Role: trigger.Role(c.Role), TenantID: c.Tenant, TTL: c.TTL,
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
	tokens, err := store.TokenList(ctx)
	if err != nil {
		return err
	}
	type view struct {
		ID        string     `json:"id"`
		Name      string     `json:"name"`
		Role      string     `json:"role"`
		Tenant    string     `json:"tenant,omitempty"`
		Status    string     `json:"status"`
		CreatedAt time.Time  `json:"created_at"`
		ExpiresAt *time.Time `json:"expires_at,omitempty"`
	}
	views := make([]view, len(tokens))
	rows := [][]string{{"ID", "NAME", "ROLE", "TENANT", "STATUS", "CREATED"}}
	for i, t := range tokens {
		v := view{ID: t.ID, Name: t.Name, Role: string(t.Role), Tenant: t.TenantID, Status: "active", CreatedAt: t.CreatedAt}
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
		rows = append(rows, []string{v.ID, v.Name, v.Role, v.Tenant, v.Status, v.CreatedAt.Format(time.RFC3339)})
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

type effectsCmd struct {
	Ls   effectsLsCmd   `cmd:"" help:"List a tenant's effects."`
	Show effectsShowCmd `cmd:"" help:"Show one effect."`
}

type effectsLsCmd struct {
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
	State  string `help:"Only rows in this state: ${enum}." enum:"any,pending,claimed,done,failed" default:"any"`
	Limit  int    `help:"At most this many." default:"100"`
	After  string `help:"Only rows after this id." placeholder:"ID"`
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists effects.
func (c *effectsLsCmd) Run(ctx context.Context, std streams) error {
	if !tracker.ValidTenantID(c.Tenant) {
		return tracker.Fieldf("--tenant", "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	if c.Limit < 1 || c.Limit > 10_000 {
		return tracker.Fieldf("--limit", "must be 1 to 10000")
	}
	state := trigger.State(c.State)
	if c.State == "any" {
		state = ""
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	rows, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: c.Tenant, EffectFilter: trigger.EffectFilter{State: state}, AfterID: c.After, Limit: c.Limit})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		views := make([]server.Effect, len(rows))
		for i := range rows {
			views[i] = server.NewEffect(&rows[i])
		}
		return printJSON(std.out, views)
	}
	return printTable(std.out, effectTable(rows))
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

type effectsShowCmd struct {
	ID string `arg:"" help:"The effect's id, from effects ls."`
	requiredMongo
}

// Run shows one effect.
func (c *effectsShowCmd) Run(ctx context.Context, std streams) error {
	tenantID, _, _ := strings.Cut(c.ID, "/")
	if !tracker.ValidTenantID(tenantID) {
		return errors.New("the id must have the form <tenant>/<seq>|<subscription>: `triggerd effects ls` lists them")
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	row, err := store.EffectGet(ctx, tenantID, c.ID)
	if errors.Is(err, tracker.ErrNotFound) {
		return errors.New("there is no effect with this id: `triggerd effects ls` lists them")
	}
	if err != nil {
		return err
	}
	return printJSON(std.out, struct {
		server.Effect
		Event trigger.Event `json:"event"`
	}{server.NewEffect(row), row.Event})
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
