package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/triggerd/triggerd/internal/client"
)

type cardsCmd struct {
	Ls       cardsLsCmd       `cmd:"" help:"List cards: of a board, a column, a bot, with a label or a text."`
	Show     cardsShowCmd     `cmd:"" help:"Show one card, with its latest effects."`
	Create   cardsCreateCmd   `cmd:"" help:"Make a card."`
	Edit     cardsEditCmd     `cmd:"" help:"Change a card's title or text."`
	Move     cardsMoveCmd     `cmd:"" help:"Move cards to another column."`
	Reorder  cardsReorderCmd  `cmd:"" help:"Move a card within its column."`
	Label    cardsLabelCmd    `cmd:"" help:"Put labels on cards, or take them off."`
	Assign   cardsAssignCmd   `cmd:"" help:"Assign people to a card, or take them off."`
	Comment  cardsCommentCmd  `cmd:"" help:"Comment on a card."`
	Comments cardsCommentsCmd `cmd:"" help:"List a card's comments."`
	Events   cardsEventsCmd   `cmd:"" help:"List a card's events, newest first."`
	Effects  cardsEffectsCmd  `cmd:"" help:"List a card's effects, newest first."`
	Delete   cardsDeleteCmd   `cmd:"" help:"Delete a card."`
}

var cardColumns = columns("CARD:id", "TITLE:title", "COLUMN:column_id", "LABELS:labels", "ASSIGNEES:assignees", "BOT:bot_id", "UPDATED:updated_at")

type cardsLsCmd struct {
	tenantFlag
	Board  string `env:"-" help:"Only cards of this board (id or name)." placeholder:"BOARD"`
	Column string `env:"-" help:"Only cards of the board's column with this id." placeholder:"COLUMN"`
	Bot    string `env:"-" help:"Only cards that were promoted to this bot (id or name)." placeholder:"BOT"`
	Label  string `env:"-" help:"Only cards with this label." placeholder:"LABEL"`
	Text   string `env:"-" help:"Only cards with this text in the title." placeholder:"TEXT"`
	listFlags
	apiFlags
}

// Run lists cards.
func (c *cardsLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		q := item{}
		given(q, "column", c.Column, c.Column != "")
		given(q, "label", c.Label, c.Label != "")
		given(q, "text", c.Text, c.Text != "")
		if err := ref(ctx, a, c.Tenant, &boardResource, q, "board", c.Board); err != nil {
			return err
		}
		if err := ref(ctx, a, c.Tenant, &botResource, q, "bot", c.Bot); err != nil {
			return err
		}
		query := url.Values{}
		for name := range q {
			query.Set(name, q.str(name))
		}
		return noTenant(c.Tenant, c.list(ctx, a, c.path("cards"), query, cardColumns))
	})
}

// cardFlags name a card.
type cardFlags struct {
	ID string `arg:"" help:"The card's id, from cards ls."`
	tenantFlag
}

func (c *cardFlags) missing(err error) error { return noCard(c.Tenant, c.ID, err) }

func noCard(tenant, id string, err error) error {
	return missing(err, "there is no card %s of tenant %s: `triggerd cards ls --tenant %s` lists them", id, tenant, tenant)
}

// card calls the API about a card, and shows what it answers.
func (c *cardFlags) card(ctx context.Context, f *apiFlags, out outputFlag, std streams, method string, body any, verb ...string) error {
	return c.of(ctx, f, std, func(a *api) error {
		var text json.RawMessage
		if _, err := a.Do(ctx, client.Request{
			Method: method, Path: c.path(append([]string{"cards", c.ID}, verb...)...), Body: body,
			Creates: len(verb) == 1 && verb[0] == "comments",
		}, &text); err != nil {
			return c.missing(err)
		}
		return out.show(a.out, text)
	})
}

// list lists something of a card's.
func (c *cardFlags) list(ctx context.Context, f *apiFlags, l *listFlags, std streams, what string, cols []column) error {
	if err := l.check(); err != nil {
		return err
	}
	return c.of(ctx, f, std, func(a *api) error {
		return c.missing(l.list(ctx, a, c.path("cards", c.ID, what), nil, cols))
	})
}

type cardsShowCmd struct {
	cardFlags
	outputFlag
	apiFlags
}

// Run shows one card.
func (c *cardsShowCmd) Run(ctx context.Context, std streams) error {
	return c.card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodGet, nil)
}

// textFlags are the text of a card or a comment.
type textFlags struct {
	Body     *string `env:"-" help:"The text." placeholder:"TEXT"`
	BodyFile string  `env:"-" help:"File with the text." placeholder:"FILE"`
}

func (f *textFlags) set(body item) error {
	given(body, "body", f.Body, f.Body != nil)
	switch {
	case f.BodyFile == "":
		return nil
	case f.Body != nil:
		return errors.New("give either --body or --body-file")
	}
	text, err := readFile(f.BodyFile)
	body["body"] = string(text)
	return err
}

type cardsCreateCmd struct {
	Title string `arg:"" help:"The card's title."`
	tenantFlag
	Board    string   `env:"-" required:"" help:"Id or name of its board." placeholder:"BOARD"`
	Column   string   `env:"-" required:"" help:"The column (an id) that it stands in." placeholder:"COLUMN"`
	Label    []string `env:"-" sep:"none" help:"Its labels." placeholder:"LABEL"`
	Assignee []string `env:"-" sep:"none" help:"Who is assigned." placeholder:"ID"`
	textFlags
	outputFlag
	apiFlags
}

// Run makes a card.
func (c *cardsCreateCmd) Run(ctx context.Context, std streams) error {
	body := item{"title": c.Title, "column_id": c.Column}
	given(body, "labels", c.Label, len(c.Label) > 0)
	given(body, "assignees", c.Assignee, len(c.Assignee) > 0)
	if err := c.set(body); err != nil {
		return err
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if err := ref(ctx, a, c.Tenant, &boardResource, body, "board_id", c.Board); err != nil {
			return err
		}
		var text json.RawMessage
		if err := a.Create(ctx, c.path("cards"), body, &text); err != nil {
			return noTenant(c.Tenant, err)
		}
		return c.show(a.out, text)
	})
}

type cardsEditCmd struct {
	cardFlags
	Title string `env:"-" help:"The new title." placeholder:"TEXT"`
	textFlags
	outputFlag
	apiFlags
}

// Run edits a card.
func (c *cardsEditCmd) Run(ctx context.Context, std streams) error {
	body := item{}
	given(body, "title", c.Title, c.Title != "")
	if err := c.set(body); err != nil {
		return err
	}
	if len(body) == 0 {
		return errors.New("say what is to change: --title, --body or --body-file")
	}
	return c.card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPatch, body)
}

// placeFlags say where in a column.
type placeFlags struct {
	Above  string `env:"-" help:"Right above the card with this id." placeholder:"CARD"`
	Below  string `env:"-" help:"Right below the card with this id." placeholder:"CARD"`
	Top    bool   `env:"-" help:"To the top."`
	Bottom bool   `env:"-" help:"To the bottom."`
}

func (f *placeFlags) set(body item) error {
	n := 0
	for _, given := range []bool{f.Above != "", f.Below != "", f.Top, f.Bottom} {
		if given {
			n++
		}
	}
	if n > 1 {
		return errors.New("give one of --top, --bottom, --above and --below")
	}
	given(body, "before", f.Above, f.Above != "")
	given(body, "after", f.Below, f.Below != "")
	given(body, "at", "top", f.Top)
	given(body, "at", "bottom", f.Bottom)
	return nil
}

// manyFlags name cards.
type manyFlags struct {
	IDs []string `arg:"" name:"id" help:"The cards' ids, from cards ls; up to 500."`
	tenantFlag
}

// many changes several cards by one call, and shows what became of each.
func (c *manyFlags) many(ctx context.Context, a *api, out outputFlag, verb string, body item) error {
	body["cards"] = c.IDs
	var done struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := a.Post(ctx, c.path("bulk", "cards", verb), body, &done); err != nil {
		return noTenant(c.Tenant, err)
	}
	if err := out.printItems(a.out, columns("CARD:id", "RESULT:result", "DETAIL:detail"), done.Items); err != nil {
		return err
	}
	for _, text := range done.Items {
		if i, err := decodeItem(text); err != nil || (i.str("result") != "changed" && i.str("result") != "unchanged") {
			return errors.New("not all of the cards were changed: see above")
		}
	}
	return nil
}

// one is the only card, as the commands for one name it.
func (c *manyFlags) one() *cardFlags { return &cardFlags{c.IDs[0], c.tenantFlag} }

type cardsMoveCmd struct {
	manyFlags
	To string `env:"-" required:"" help:"The column (an id) of the cards' board." placeholder:"COLUMN"`
	placeFlags
	outputFlag
	apiFlags
}

// Run moves cards.
func (c *cardsMoveCmd) Run(ctx context.Context, std streams) error {
	body := item{"column_id": c.To}
	if err := c.set(body); err != nil {
		return err
	}
	if len(c.IDs) == 1 {
		return c.one().card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPost, body, "move")
	}
	if c.Above != "" || c.Below != "" {
		return errors.New("--above and --below are for one card")
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		// All are of one board, which the API asks for.
		var first struct {
			BoardID string `json:"board_id"`
		}
		if _, err := a.Get(ctx, c.path("cards", c.IDs[0]), nil, &first); err != nil {
			return noCard(c.Tenant, c.IDs[0], err)
		}
		body["board_id"] = first.BoardID
		return c.many(ctx, a, c.outputFlag, "move", body)
	})
}

type cardsReorderCmd struct {
	cardFlags
	placeFlags
	outputFlag
	apiFlags
}

// Run moves a card within its column.
func (c *cardsReorderCmd) Run(ctx context.Context, std streams) error {
	body := item{}
	if err := c.set(body); err != nil {
		return err
	}
	if len(body) == 0 {
		return errors.New("say where: --top, --bottom, --above or --below")
	}
	return c.card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPost, body, "reorder")
}

// namesFlags add and remove.
type namesFlags struct {
	Add    []string `env:"-" sep:"none" help:"To put on." placeholder:"NAME"`
	Remove []string `env:"-" sep:"none" help:"To take off." placeholder:"NAME"`
}

func (f *namesFlags) body() (item, error) {
	if len(f.Add)+len(f.Remove) == 0 {
		return nil, errors.New("say what: --add, --remove or both")
	}
	body := item{}
	given(body, "add", f.Add, len(f.Add) > 0)
	given(body, "remove", f.Remove, len(f.Remove) > 0)
	return body, nil
}

type cardsLabelCmd struct {
	manyFlags
	namesFlags
	outputFlag
	apiFlags
}

// Run labels cards.
func (c *cardsLabelCmd) Run(ctx context.Context, std streams) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	if len(c.IDs) == 1 {
		return c.one().card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPost, body, "labels")
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error { return c.many(ctx, a, c.outputFlag, "label", body) })
}

type cardsAssignCmd struct {
	cardFlags
	namesFlags
	outputFlag
	apiFlags
}

// Run assigns people.
func (c *cardsAssignCmd) Run(ctx context.Context, std streams) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	return c.card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPost, body, "assignees")
}

type cardsCommentCmd struct {
	cardFlags
	textFlags
	outputFlag
	apiFlags
}

// Run comments on a card.
func (c *cardsCommentCmd) Run(ctx context.Context, std streams) error {
	body := item{}
	if err := c.set(body); err != nil {
		return err
	}
	if len(body) == 0 {
		return errors.New("say what: --body or --body-file")
	}
	return c.card(ctx, &c.apiFlags, c.outputFlag, std, http.MethodPost, body, "comments")
}

type cardsCommentsCmd struct {
	cardFlags
	listFlags
	apiFlags
}

// Run lists comments.
func (c *cardsCommentsCmd) Run(ctx context.Context, std streams) error {
	return c.cardFlags.list(ctx, &c.apiFlags, &c.listFlags, std, "comments", columns("COMMENT:id", "AT:at", "BY:actor.id", "TEXT:body"))
}

var eventColumns = columns("EVENT:seq", "AT:at", "KIND:kind", "CARD:card_id", "BY:actor.id", "FROM:from_column", "TO:to_column", "ADDED:added", "REMOVED:removed")

type cardsEventsCmd struct {
	cardFlags
	listFlags
	apiFlags
}

// Run lists a card's events.
func (c *cardsEventsCmd) Run(ctx context.Context, std streams) error {
	return c.cardFlags.list(ctx, &c.apiFlags, &c.listFlags, std, "events", eventColumns)
}

type cardsEffectsCmd struct {
	cardFlags
	listFlags
	apiFlags
}

// Run lists a card's effects.
func (c *cardsEffectsCmd) Run(ctx context.Context, std streams) error {
	return c.cardFlags.list(ctx, &c.apiFlags, &c.listFlags, std, "effects", effectColumns)
}

type cardsDeleteCmd struct {
	cardFlags
	apiFlags
}

// Run deletes a card.
func (c *cardsDeleteCmd) Run(ctx context.Context, std streams) error {
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if _, err := a.Do(ctx, client.Request{Method: http.MethodDelete, Path: c.path("cards", c.ID)}, nil); err != nil {
			return c.missing(err)
		}
		return a.say("card %s is deleted", c.ID)
	})
}

type eventsCmd struct {
	Ls   eventsLsCmd   `cmd:"" help:"List a tenant's events, by number."`
	Show eventsShowCmd `cmd:"" help:"Show one event."`
}

type eventsLsCmd struct {
	tenantFlag
	listFlags
	apiFlags
}

// Run lists events.
func (c *eventsLsCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return noTenant(c.Tenant, c.list(ctx, a, c.path("events"), nil, eventColumns))
	})
}

type eventsShowCmd struct {
	Seq int64 `arg:"" help:"The event's number, from events ls."`
	tenantFlag
	outputFlag
	apiFlags
}

// Run shows one event.
func (c *eventsShowCmd) Run(ctx context.Context, std streams) error {
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		var text json.RawMessage
		if _, err := a.Get(ctx, c.path("events", strconv.FormatInt(c.Seq, 10)), nil, &text); err != nil {
			return missing(err, "there is no event %d of tenant %s, or it is no longer kept", c.Seq, c.Tenant)
		}
		return c.show(a.out, text)
	})
}
