package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// bulkWait bounds a bulk change of cards with its relay.
const bulkWait = 30 * time.Second

// BulkCards are the cards of a bulk change.
type BulkCards struct {
	Cards []CardID `json:"cards" minItems:"1" maxItems:"500" nullable:"false" doc:"their ids, each once"`
}

// BulkMoveBody moves cards of one board to one column.
type BulkMoveBody struct {
	BulkCards
	BoardID  string `json:"board_id" minLength:"1" maxLength:"64" pattern:"^[A-Za-z0-9-]+$" doc:"the board that all of the cards are on"`
	ColumnID string `json:"column_id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$"`
	At       string `json:"at,omitempty" enum:"top,bottom" doc:"where in the column they go, in the order of cards; if it is missing, those that are in the column stay where they are, and the others go to the bottom"`
}

// BulkLabelBody adds labels to cards and takes some off.
type BulkLabelBody struct {
	BulkCards
	NamesBody
}

// BulkChanged says what became of each card of a bulk change.
type BulkChanged struct {
	Items []CardResult `json:"items" doc:"in the order of the cards"`
}

// CardResult is what became of one card.
type CardResult struct {
	ID     string `json:"id"`
	Result string `json:"result" enum:"changed,unchanged,not_found,refused,unknown" doc:"unknown: the store did not answer; the card may have been changed"`
	Rev    int64  `json:"rev,omitempty"`
	Detail string `json:"detail,omitempty" doc:"why it was refused"`
}

func (a *API) registerBulkCards(api huma.API) {
	huma.Post(api, "/v1/tenants/{tenant}/bulk/cards/move", func(ctx context.Context, in *struct {
		TenantInput
		Body BulkMoveBody
	},
	) (*one[BulkChanged], error) {
		wctx, cancel := context.WithTimeout(ctx, bulkWait)
		defer cancel()
		b := &in.Body
		if err := a.column(wctx, in.Tenant, b.BoardID, b.ColumnID); err != nil {
			return nil, a.fail(inBody(err))
		}
		positions, err := a.positions(wctx, in.Tenant, b)
		if err != nil {
			return nil, a.fail(err)
		}
		return a.changeCards(ctx, wctx, in.Tenant, b.Cards, move(b.ColumnID, func(_ context.Context, card *tracker.Card, _ time.Time) (string, error) {
			if card.BoardID != b.BoardID {
				return "", tracker.Fieldf("board_id", "the card is on another board")
			}
			if b.At == "" && card.ColumnID == b.ColumnID {
				return card.Position, nil
			}
			return positions[card.ID].chosen(card.Position), nil
		}))
	}, named("bulk-move-cards", "Move up to 500 cards of a board to one of its columns. Each is a change of its own."), bulkCards)

	huma.Post(api, "/v1/tenants/{tenant}/bulk/cards/label", func(ctx context.Context, in *struct {
		TenantInput
		Body BulkLabelBody
	},
	) (*one[BulkChanged], error) {
		if err := in.Body.check(); err != nil {
			return nil, a.fail(inBody(err))
		}
		wctx, cancel := context.WithTimeout(ctx, bulkWait)
		defer cancel()
		return a.changeCards(ctx, wctx, in.Tenant, in.Body.Cards, in.Body.label)
	}, named("bulk-label-cards", "Add labels to up to 500 cards, and take some off. Each is a change of its own."), bulkCards)
}

// bulkCards bounds a body with five hundred ids.
func bulkCards(o *huma.Operation) { o.MaxBodyBytes = 512 << 10 }

// bulkPosition is where one of the cards goes, and two positions that there is
// nobody between.
type bulkPosition struct{ at, low, high string }

// chosen returns the position, another one than the card has in the column that
// it comes from: one that changes tells that it was chosen.
func (p bulkPosition) chosen(now string) string {
	if p.at == now {
		if other, ok := tracker.PositionsBetween(p.low, p.high, 1); ok {
			return other[0]
		}
	}
	return p.at
}

// positions gives each of the cards a position at the column's top or bottom.
func (a *API) positions(ctx context.Context, tenantID string, b *BulkMoveBody) (map[string]bulkPosition, error) {
	first := &tracker.Card{TenantID: tenantID, BoardID: b.BoardID}
	at, err := a.Board.Position(ctx, first, b.ColumnID, trigger.Place{Top: b.At == "top"}, a.Store.Now())
	if err != nil {
		return nil, err
	}
	low, high := at, ""
	if b.At == "top" {
		low, high = "", at
	}
	list, ok := tracker.PositionsBetween(low, high, len(b.Cards)-1)
	if !ok {
		return nil, errors.New("no positions at the end of a column")
	}
	if b.At == "top" {
		list = append(list, at)
	} else {
		list = slices.Insert(list, 0, at)
	}
	out := make(map[string]bulkPosition, len(b.Cards))
	for i, id := range b.Cards {
		p := bulkPosition{at: list[i], low: list[i]}
		if b.At == "top" {
			p.low, p.high = "", list[i]
			if i > 0 {
				p.low = list[i-1]
			}
		} else if i+1 < len(list) {
			p.high = list[i+1]
		}
		out[string(id)] = p
	}
	return out, nil
}

// changeCards makes one change of many cards, each on its own.
func (a *API) changeCards(ctx, wctx context.Context, tenantID string, ids []CardID, f edit) (*one[BulkChanged], error) {
	before := make(map[string]*tracker.Card, len(ids))
	results, err := a.Board.ChangeMany(wctx, tenantID, texts[string](ids), func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		var was *tracker.Card
		id := ""
		if card != nil {
			id = card.ID
		}
		next, event, err := a.changer(wctx, tenantID, id, &MatchInput{}, &was, f)(card, now)
		before[id] = was
		return next, event, err
	})
	if err != nil {
		return nil, a.fail(inBody(err))
	}
	out := BulkChanged{Items: make([]CardResult, len(results))}
	for i := range results {
		r := &results[i]
		out.Items[i] = a.cardResult(r)
		if r.Err == nil && r.Written {
			noteCard(ctx, before[r.CardID], r.Card)
		}
	}
	return &one[BulkChanged]{out}, nil
}

func (a *API) cardResult(r *trigger.CardChanged) CardResult {
	out := CardResult{ID: r.CardID, Result: "unchanged"}
	var field *tracker.FieldError
	switch {
	case errors.Is(r.Err, tracker.ErrNotFound):
		out.Result = "not_found"
	case errors.As(r.Err, &field):
		out.Result, out.Detail = "refused", field.Error()
	case errors.Is(r.Err, tracker.ErrPendingFull):
		out.Result, out.Detail = "refused", tracker.ErrPendingFull.Error()+"; try again"
	case r.Err != nil:
		a.Logger.Warn().Err(r.Err).Msg("API: a card of a bulk change could not be written")
		out.Result = "unknown"
	case r.Card == nil: // there is none, and nothing was made
		out.Result = "not_found"
	default:
		out.Rev = r.Card.Rev
		if r.Written {
			out.Result = "changed"
		}
	}
	return out
}
