package main

import (
	"context"
	"strings"
)

// The kinds.
type (
	boardKind        struct{}
	botKind          struct{}
	hookKind         struct{}
	subscriptionKind struct{}
	projectionKind   struct{}
)

func (boardKind) resource() *resource        { return &boardResource }
func (botKind) resource() *resource          { return &botResource }
func (hookKind) resource() *resource         { return &hookResource }
func (subscriptionKind) resource() *resource { return &subscriptionResource }
func (projectionKind) resource() *resource   { return &projectionResource }

var (
	boardResource = resource{
		"board", "boards", "boards",
		[]column{{head: "BOARD", path: "id"}, {head: "NAME", path: "name"}, {head: "COLUMNS", show: columnIDs}, {head: "UPDATED", path: "updated_at"}},
		[]string{"name", "columns"},
		false,
	}
	botResource = resource{
		"bot", "bots", "bots",
		columns("BOT:id", "NAME:name", "URL:url", "REPLAY:replay", "ROTATING SINCE:rotating_since", "UPDATED:updated_at"),
		[]string{"name", "url", "replay"},
		true,
	}
	hookResource = resource{
		"hook", "hooks", "hooks",
		columns("HOOK:id", "NAME:name", "PROVIDER:provider", "BOARD:board_id", "PATH:path", "DANGLING:dangling"),
		[]string{"name", "provider", "board_id", "columns"},
		true,
	}
	subscriptionResource = resource{
		"subscription", "subscriptions", "subs", subColumns,
		[]string{"name", "enabled", "on", "if", "when", "bot_id", "mode", "to_column", "consume", "rank", "max_per_minute", "args", "vars"},
		false,
	}
	projectionResource = resource{
		"projection", "projections", "projections",
		columns("PROJECTION:id", "NAME:name", "ENABLED:enabled", "FROM:from_board_id", "TO:to_board_id", "DANGLING:dangling"),
		[]string{"name", "enabled", "from_board_id", "to_board_id", "columns"},
		false,
	}
)

func columnIDs(i item) string {
	var ids []string
	list, _ := i["columns"].([]any)
	for _, c := range list {
		if m, ok := c.(map[string]any); ok {
			ids = append(ids, item(m).str("id"))
		}
	}
	return strings.Join(ids, ", ")
}

// given sets a field that a flag was given for.
func given[T any](body item, field string, v T, is bool) {
	if is {
		body[field] = v
	}
}

// ref sets a field that refers to a thing by its id or its name.
func ref(ctx context.Context, a *api, tenant string, r *resource, body item, field, named string) error {
	if named == "" {
		return nil
	}
	id, err := a.find(ctx, tenant, r, named)
	if err == nil {
		body[field] = id
	}
	return err
}

type boardsCmd struct {
	Ls     lsCmd[boardKind]                              `cmd:"" help:"List a tenant's boards."`
	Show   showCmd[boardKind]                            `cmd:"" help:"Show one board."`
	Create createCmd[boardKind, boardFlags, *boardFlags] `cmd:"" help:"Make a board."`
	Edit   editCmd[boardKind, boardFlags, *boardFlags]   `cmd:"" help:"Rename a board, or change its columns."`
	Delete deleteCmd[boardKind]                          `cmd:"" help:"Delete a board that has no cards."`
}

type boardFlags struct {
	Column []string `env:"-" sep:"none" help:"A column, left to right: ID, ID:Name, or ID:Name:terminal. All of them, of an edit too." placeholder:"ID:NAME"`
}

func (f *boardFlags) set(_ context.Context, _ *api, _ string, body item) error { //nolint:unparam // as the other kinds' flags
	var cols []item
	for _, text := range f.Column {
		id, rest, _ := strings.Cut(text, ":")
		name, terminal := strings.CutSuffix(rest, ":terminal")
		if name == "" {
			name = id
		}
		cols = append(cols, item{"id": id, "name": name, "terminal": terminal})
	}
	given(body, "columns", cols, len(cols) > 0)
	return nil
}

type botsCmd struct {
	Ls     lsCmd[botKind]                                `cmd:"" help:"List a tenant's bots."`
	Show   showCmd[botKind]                              `cmd:"" help:"Show one bot."`
	Create createCmd[botKind, newBotFlags, *newBotFlags] `cmd:"" help:"Make a bot."`
	Edit   editCmd[botKind, botFlags, *botFlags]         `cmd:"" help:"Edit a bot; its secret stays."`
	Delete deleteCmd[botKind]                            `cmd:"" help:"Delete a bot."`
	Rotate rotateCmd[botKind]                            `cmd:"" help:"Begin to rotate its secret, finish that, or give it up."`
}

type botFlags struct {
	BotURL string `env:"-" help:"Where it is launched." placeholder:"URL"`
	Replay string `env:"-" help:"safe: it honours the idempotency key. unsafe: a second request could do harm." placeholder:"CLASS"`
}

func (f *botFlags) set(_ context.Context, _ *api, _ string, body item) error {
	given(body, "url", f.BotURL, f.BotURL != "")
	given(body, "replay", f.Replay, f.Replay != "")
	return nil
}

type newBotFlags struct {
	botFlags
	secretFlag
}

func (f *newBotFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	if err := f.botFlags.set(ctx, a, tenant, body); err != nil {
		return err
	}
	return f.secretFlag.set(body)
}

type hooksCmd struct {
	Ls     lsCmd[hookKind]                                  `cmd:"" help:"List a tenant's hooks."`
	Show   showCmd[hookKind]                                `cmd:"" help:"Show one hook."`
	Create createCmd[hookKind, newHookFlags, *newHookFlags] `cmd:"" help:"Let a forge deliver to a board."`
	Edit   editCmd[hookKind, hookFlags, *hookFlags]         `cmd:"" help:"Edit a hook; its secret and its path stay."`
	Delete deleteCmd[hookKind]                              `cmd:"" help:"Delete a hook; its cards stay."`
	Rotate rotateCmd[hookKind]                              `cmd:"" help:"Begin to rotate its secret, finish that, or give it up."`
}

type hookFlags struct {
	Board  string `env:"-" help:"Id or name of the board that the cards go to." placeholder:"BOARD"`
	Open   string `env:"-" help:"Its column (an id) for open issues." placeholder:"COLUMN"`
	Closed string `env:"-" help:"Its column (an id) for closed issues." placeholder:"COLUMN"`
}

func (f *hookFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	cols := item{}
	given(cols, "open", f.Open, f.Open != "")
	given(cols, "closed", f.Closed, f.Closed != "")
	given(body, "columns", cols, len(cols) > 0)
	return ref(ctx, a, tenant, &boardResource, body, "board_id", f.Board)
}

type newHookFlags struct {
	hookFlags
	secretFlag
}

func (f *newHookFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	if body["provider"] == nil {
		body["provider"] = "github"
	}
	if err := f.hookFlags.set(ctx, a, tenant, body); err != nil {
		return err
	}
	return f.secretFlag.set(body)
}

type projectionsCmd struct {
	Ls      lsCmd[projectionKind]                                              `cmd:"" help:"List a tenant's projections."`
	Show    showCmd[projectionKind]                                            `cmd:"" help:"Show one projection."`
	Create  createCmd[projectionKind, newProjectionFlags, *newProjectionFlags] `cmd:"" help:"Mirror the columns of one board onto another."`
	Edit    editCmd[projectionKind, projectionFlags, *projectionFlags]         `cmd:"" help:"Edit a projection."`
	Delete  deleteCmd[projectionKind]                                          `cmd:"" help:"Delete a projection; mirrors stay."`
	Enable  enableCmd[projectionKind]                                          `cmd:"" help:"Let a projection mirror what happens from now on."`
	Disable disableCmd[projectionKind]                                         `cmd:"" help:"Have a projection mirror nothing."`
}

type projectionFlags struct {
	From string            `env:"-" help:"Id or name of the board that is mirrored." placeholder:"BOARD"`
	To   string            `env:"-" help:"Id or name of the board that mirrors it." placeholder:"BOARD"`
	Map  map[string]string `env:"-" mapsep:"none" help:"Which column of --from (an id) stands for which of --to. All of them, of an edit too." placeholder:"FROM=TO"`
}

func (f *projectionFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	given(body, "columns", f.Map, len(f.Map) > 0)
	if err := ref(ctx, a, tenant, &boardResource, body, "from_board_id", f.From); err != nil {
		return err
	}
	return ref(ctx, a, tenant, &boardResource, body, "to_board_id", f.To)
}

type newProjectionFlags struct {
	projectionFlags
	disabledFlag
}

func (f *newProjectionFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	f.disabledFlag.set(body)
	return f.projectionFlags.set(ctx, a, tenant, body)
}

// disabledFlag is for what is made but not enabled.
type disabledFlag struct {
	Disabled bool `env:"-" help:"Make it, and enable it later."`
}

func (f *disabledFlag) set(body item) {
	if f.Disabled || body["enabled"] == nil {
		body["enabled"] = !f.Disabled
	}
}

// subscriptionFlags are the fields of a subscription.
type subscriptionFlags struct {
	Bot       string            `env:"-" help:"Id or name of the bot." placeholder:"BOT"`
	Kind      []string          `env:"-" sep:"none" help:"It fires on events of this kind: card.created, card.moved, …" placeholder:"KIND"`
	Board     string            `env:"-" help:"Only on this board (id or name); whose columns the others are." placeholder:"BOARD"`
	From      string            `env:"-" help:"It fires when a card leaves this column (an id)." placeholder:"COLUMN"`
	To        string            `env:"-" help:"It fires when a card enters this column (an id)." placeholder:"COLUMN"`
	Actor     []string          `env:"-" sep:"none" help:"Only if this login, or bot (its id), caused it." placeholder:"ID"`
	Column    []string          `env:"-" sep:"none" help:"The card stands in one of these columns (ids)." placeholder:"COLUMN"`
	Label     []string          `env:"-" sep:"none" help:"The card has all of these labels." placeholder:"LABEL"`
	AnyLabel  []string          `env:"-" sep:"none" help:"The card has one of these labels." placeholder:"LABEL"`
	NoLabel   []string          `env:"-" sep:"none" help:"The card has none of these labels." placeholder:"LABEL"`
	Assignee  []string          `env:"-" sep:"none" help:"One of these is assigned." placeholder:"ID"`
	When      *string           `env:"-" help:"A condition in CEL." placeholder:"CEL"`
	Mode      string            `env:"-" help:"direct launches the bot, promote stamps it onto the card." placeholder:"MODE"`
	ToColumn  string            `env:"-" help:"With promote: the column (an id) that the card moves to." placeholder:"COLUMN"`
	Consume   []string          `env:"-" sep:"none" help:"Labels that are spent, once for each effect." placeholder:"LABEL"`
	Rank      *int              `env:"-" help:"Of several that want one label, the lowest gets it."`
	PerMinute *int              `env:"-" name:"max-per-minute" help:"More matches within a minute pause it; 0: never."`
	Arg       map[string]string `env:"-" mapsep:"none" help:"Handed to the bot." placeholder:"NAME=TEXT"`
	Var       map[string]string `env:"-" mapsep:"none" help:"Handed to the bot." placeholder:"NAME=TEXT"`
}

func (f *subscriptionFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	on, cond := item{}, item{}
	given(on, "kinds", f.Kind, len(f.Kind) > 0)
	given(on, "from", f.From, f.From != "")
	given(on, "to", f.To, f.To != "")
	given(on, "actors", f.Actor, len(f.Actor) > 0)
	given(cond, "columns", f.Column, len(f.Column) > 0)
	given(cond, "labels_all", f.Label, len(f.Label) > 0)
	given(cond, "labels_any", f.AnyLabel, len(f.AnyLabel) > 0)
	given(cond, "labels_none", f.NoLabel, len(f.NoLabel) > 0)
	given(cond, "assignees", f.Assignee, len(f.Assignee) > 0)
	if err := ref(ctx, a, tenant, &boardResource, on, "board_id", f.Board); err != nil {
		return err
	}
	for name, fields := range map[string]item{"on": on, "if": cond} {
		if len(fields) == 0 {
			continue
		}
		// Those of a file stay beside the flags'.
		body.merge(item{name: fields})
	}
	given(body, "when", f.When, f.When != nil)
	given(body, "mode", f.Mode, f.Mode != "")
	given(body, "to_column", f.ToColumn, f.ToColumn != "")
	given(body, "consume", f.Consume, len(f.Consume) > 0)
	given(body, "rank", f.Rank, f.Rank != nil)
	given(body, "max_per_minute", f.PerMinute, f.PerMinute != nil)
	given(body, "args", f.Arg, len(f.Arg) > 0)
	given(body, "vars", f.Var, len(f.Var) > 0)
	return ref(ctx, a, tenant, &botResource, body, "bot_id", f.Bot)
}

type newSubscriptionFlags struct {
	subscriptionFlags
	disabledFlag
}

func (f *newSubscriptionFlags) set(ctx context.Context, a *api, tenant string, body item) error {
	f.disabledFlag.set(body)
	return f.subscriptionFlags.set(ctx, a, tenant, body)
}
