package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// CardInput is the card of a call.
type CardInput struct {
	TenantInput
	Card string `path:"card" maxLength:"255" pattern:"^[A-Za-z0-9@~-]+$" doc:"the card's id, percent-encoded"`
}

// CardDetail is a card with what else there is to know of it.
type CardDetail struct {
	Card
	ColumnGone bool         `json:"column_gone,omitempty" doc:"its board or its column is no more: move it to another column"`
	Effects    []CardEffect `json:"effects" doc:"its latest effects, at most 20, newest first; …/effects lists all"`
}

// CardEffect is an effect as its card shows it.
type CardEffect struct {
	ID             string          `json:"id"`
	State          trigger.State   `json:"state"`
	Outcome        trigger.Outcome `json:"outcome,omitempty"`
	Reason         trigger.Reason  `json:"reason,omitempty"`
	SubscriptionID string          `json:"subscription_id,omitempty"`
	ProjectionID   string          `json:"projection_id,omitempty"`
	BotID          string          `json:"bot_id,omitempty"`
	UpdatedAt      time.Time       `json:"updated_at"`
}

// cardEffects is how many effects a card shows.
const cardEffects = 20

// ListedCard is a card in a list: without its body.
type ListedCard struct {
	ID         string            `json:"id"`
	Rev        int64             `json:"rev"`
	BoardID    string            `json:"board_id"`
	ColumnID   string            `json:"column_id"`
	ColumnGone bool              `json:"column_gone,omitempty" doc:"its board or its column is no more: move it to another column"`
	Position   string            `json:"position,omitempty"`
	Title      string            `json:"title"`
	Labels     []string          `json:"labels"`
	Assignees  []string          `json:"assignees"`
	External   *tracker.External `json:"external,omitempty"`
	BotID      string            `json:"bot_id,omitempty"`
	BotArgs    map[string]string `json:"bot_args,omitempty"`
	MirrorOf   *tracker.Mirror   `json:"mirror_of,omitempty"`
	Comments   int               `json:"comments" doc:"how many there are"`
	CreatedAt  time.Time         `json:"created_at"`
	UpdatedAt  time.Time         `json:"updated_at"`
}

func newListedCard(c *tracker.Card) ListedCard {
	v := newCard(c)
	return ListedCard{
		ID: v.ID, Rev: v.Rev, BoardID: v.BoardID, ColumnID: v.ColumnID, Position: v.Position, Title: v.Title, Labels: v.Labels, Assignees: v.Assignees,
		External: v.External, BotID: v.BotID, BotArgs: v.BotArgs, MirrorOf: v.MirrorOf, Comments: v.Comments, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt,
	}
}

// CardBody is a card to be made.
type CardBody struct {
	BoardID   string     `json:"board_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
	ColumnID  string     `json:"column_id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$"`
	Title     string     `json:"title" minLength:"1" maxLength:"1024" doc:"at most 1024 bytes"`
	Body      string     `json:"body,omitempty" maxLength:"262144" format:"multiline" doc:"at most 256 KiB"`
	Labels    []NameText `json:"labels,omitempty" maxItems:"100"`
	Assignees []NameText `json:"assignees,omitempty" maxItems:"100"`
}

// NameText is a label or an assignee.
type NameText string

// Schema implements huma.SchemaProvider: tags say nothing of what is in a list.
func (NameText) Schema(huma.Registry) *huma.Schema {
	least, most := 1, tracker.LabelMaxBytes
	return &huma.Schema{Type: huma.TypeString, MinLength: &least, MaxLength: &most}
}

// CardID is a card's id within a body.
type CardID string

// Schema implements huma.SchemaProvider.
func (CardID) Schema(huma.Registry) *huma.Schema {
	most := 255
	return &huma.Schema{Type: huma.TypeString, MaxLength: &most, Pattern: "^[A-Za-z0-9@~-]+$"}
}

// cardBody bounds an operation's body: a card's text, however it is escaped.
func cardBody(o *huma.Operation) { o.MaxBodyBytes = 2 << 20 }

// CardFilterInput chooses cards.
type CardFilterInput struct {
	Board  string `query:"board" maxLength:"64" pattern:"^[A-Za-z0-9-]*$" doc:"only cards of the board with this id, by column and position"`
	Column string `query:"column" maxLength:"63" pattern:"^[a-z0-9-]*$" doc:"only cards of the board's column with this id, by position"`
	Bot    string `query:"bot" maxLength:"64" pattern:"^[A-Za-z0-9-]*$" doc:"only cards that were promoted to the bot with this id"`
	Label  string `query:"label" maxLength:"255" doc:"only cards with this label; upper and lower case are one"`
	Text   string `query:"text" maxLength:"255" doc:"only cards with this text in the title; upper and lower case are one"`
	After  string `query:"after" maxLength:"1000" doc:"the cursor that the page before gave"`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
}

// list names the list that a cursor is of.
func (in *CardFilterInput) list() string { return "cards/" + in.Board + "/" + in.Column }

func (in *CardFilterInput) params(tenantID string) (p tracker.CardListParams, err error) {
	if in.Column != "" && in.Board == "" {
		return p, tracker.Fieldf("query.column", "needs the board, too")
	}
	p = tracker.CardListParams{
		TenantID: tenantID, BoardID: in.Board, ColumnID: in.Column, BotID: in.Bot, Label: in.Label, Text: in.Text, Limit: in.Limit,
	}
	key, err := readCursor(in.list(), in.After)
	if err != nil || key == "" {
		return p, err
	}
	p.After = &tracker.CardKey{}
	if json.Unmarshal([]byte(key), p.After) != nil || p.After.ID == "" {
		return p, tracker.Fieldf("query.after", "must be a cursor that the page before gave")
	}
	return p, nil
}

func (a *API) registerCards(api huma.API) {
	huma.Get(api, "/v1/tenants/{tenant}/cards", func(ctx context.Context, in *struct {
		TenantInput
		CardFilterInput
	},
	) (*one[Page[ListedCard]], error) {
		p, err := in.params(in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		got, err := a.Store.CardList(ctx, p)
		if err != nil {
			return nil, a.fail(err)
		}
		gone, err := a.columnsGone(ctx, in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[ListedCard]{Items: []ListedCard{}}
		for i := range got.Cards {
			v := newListedCard(&got.Cards[i])
			v.ColumnGone = gone(&got.Cards[i])
			page.Items = append(page.Items, v)
		}
		if got.Next != nil {
			key, err := json.Marshal(got.Next)
			if err != nil {
				return nil, a.fail(err)
			}
			page.Next = newCursor(in.list(), string(key))
		}
		return &one[Page[ListedCard]]{page}, nil
	}, named("list-cards", "A page of cards: of a board by column and position, others by id. With a filter a page may be short, or empty, and not the last one."), botReads(botInQuery))

	huma.Post(api, "/v1/tenants/{tenant}/cards", func(ctx context.Context, in *struct {
		TenantInput
		Body CardBody
	},
	) (*made[Card], error) {
		return a.cardCreate(ctx, in.Tenant, &in.Body)
	}, named("create-card", "Make a card, at the bottom of its column."), creates, cardBody)

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}", func(ctx context.Context, in *struct{ CardInput }) (*tagged[CardDetail], error) {
		card, err := a.Board.CardGet(ctx, in.Tenant, in.Card)
		if err != nil {
			return nil, a.fail(err)
		}
		out := CardDetail{Card: newCard(card), Effects: []CardEffect{}}
		board, err := a.Store.BoardGet(ctx, in.Tenant, card.BoardID)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return nil, a.fail(err)
		}
		out.ColumnGone = err != nil || board.Column(card.ColumnID) == nil
		rows, err := a.effectsOfCard(ctx, in.Tenant, in.Card, trigger.EffectKey{}, cardEffects)
		if err != nil {
			return nil, a.fail(err)
		}
		for i := range rows {
			r := &rows[i]
			out.Effects = append(out.Effects, CardEffect{r.ID, r.State, r.Outcome, r.Reason, r.SubscriptionID, r.ProjectionID, r.BotID, r.UpdatedAt})
		}
		return &tagged[CardDetail]{etag(card.Rev), out}, nil
	}, named("get-card", "One card, with its latest effects."))
}

// columnsGone returns what tells whether a card's column is no more.
func (a *API) columnsGone(ctx context.Context, tenantID string) (func(*tracker.Card) bool, error) {
	list, err := a.Store.BoardList(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	boards := byID(list, func(b *tracker.Board) string { return b.ID })
	return func(c *tracker.Card) bool {
		board := boards[c.BoardID]
		return board == nil || board.Column(c.ColumnID) == nil
	}, nil
}

// column refuses a column that the board lacks, or a board that is not there.
func (a *API) column(ctx context.Context, tenantID, boardID, columnID string) error {
	board, err := a.Store.BoardGet(ctx, tenantID, boardID)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return tracker.Fieldf("board_id", "there is no such board")
	case err != nil:
		return err
	case board.Column(columnID) == nil:
		return tracker.Fieldf("column_id", "the board has no such column")
	}
	return nil
}

func cardPath(tenantID, id string) string { return "/v1/tenants/" + tenantID + "/cards/" + id }

func (a *API) cardCreate(ctx context.Context, tenantID string, body *CardBody) (*made[Card], error) {
	id, again := newID(ctx)
	answer := func(c *tracker.Card) *made[Card] {
		return &made[Card]{http.StatusCreated, etag(c.Rev), cardPath(tenantID, id), newCard(c)}
	}
	if again {
		card, err := a.Board.CardGet(ctx, tenantID, id)
		if err == nil {
			return answer(card), nil
		}
		if !errors.Is(err, tracker.ErrNotFound) {
			return nil, a.fail(err)
		}
	}
	wctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	if err := a.column(wctx, tenantID, body.BoardID, body.ColumnID); err != nil {
		return nil, a.fail(inBody(err))
	}
	changed, err := a.Board.Change(wctx, tenantID, id, func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card != nil {
			return nil, nil, nil // an earlier call with the same key, at this moment
		}
		card = &tracker.Card{
			BoardID: body.BoardID, ColumnID: body.ColumnID, Title: body.Title, Body: body.Body,
			Labels: tracker.UniqueFold(texts[string](body.Labels)), Assignees: tracker.UniqueFold(texts[string](body.Assignees)),
		}
		for _, l := range card.Labels {
			card.Stamps.SetLabel(tracker.LabelStamp{Label: l, Present: true, Stamp: tracker.Stamp{At: now, Delta: true}})
		}
		event := &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: actor(ctx), ToColumn: body.ColumnID}
		return card, event, nil
	})
	if err != nil {
		return nil, a.fail(inBody(err))
	}
	if changed.Written {
		noteChange(ctx, "card", id, nil, newCard(changed.Card))
	}
	a.relay(ctx, tenantID, id)
	return answer(changed.Card), nil
}

// relay brings a card's events into the log. The change is durable and will be
// answered: a relay that does not get through is the sweeper's.
func (a *API) relay(ctx context.Context, tenantID, cardID string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), relayWait)
	defer cancel()
	if _, err := a.Board.Relay.Card(ctx, tenantID, cardID); err != nil {
		a.Logger.Warn().Err(err).Str("tenant", tenantID).Str("card", cardID).Msg("API: the relay did not get through, the sweeper goes on with it")
	}
}
