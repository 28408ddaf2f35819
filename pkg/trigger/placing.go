package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Place says where in a column a card is to stand; the zero value is the
// bottom.
type Place struct {
	After, Before string // another card's id, one of the two
	Top           bool
}

// placeWindows is how many cards below a place may be moved on to make room.
var placeWindows = []int{0, 15, 60, 240, 500}

// Position returns the position of the place in the column for the card, which
// has its tenant, id and board, and stands anywhere; its own, if it is there
// already. Where there is no room between two cards, those below are moved on
// first, within the column and without an event: their order stays, at every
// instruction. It returns a *tracker.FieldError for a card that is not in the
// column, and a *RefusedError where too many stand too close. Of two cards that
// come to one place at once, either may stand above.
func (b *Board) Position(ctx context.Context, card *tracker.Card, columnID string, p Place, now time.Time) (string, error) {
	c := placing{Board: b, card: card, id: columnID}
	above, err := c.above(ctx, p)
	if err != nil {
		return "", err
	}
	for _, window := range placeWindows {
		below, err := c.next(ctx, above, window+1)
		if err != nil {
			return "", err
		}
		end := len(below) <= window
		low, high := position(above), ""
		if !end {
			if high = below[window].Position; high == "" {
				continue // it stands above all that have one
			}
			below = below[:window]
		}
		if len(below) == 0 && card.ColumnID == columnID && card.Position != "" && low < card.Position && (end || card.Position < high) {
			return card.Position, nil
		}
		if end {
			low = max(low, tracker.PositionAt(now.Add(-time.Millisecond)))
		}
		found, ok := tracker.PositionsBetween(low, high, len(below)+1)
		if ok && found[0] == card.Position {
			// It is another column's: one that changes tells that it was chosen.
			var other []string
			next := high
			if len(found) > 1 {
				next = found[1]
			}
			if other, ok = tracker.PositionsBetween(found[0], next, 1); ok {
				found[0] = other[0]
			}
		}
		if !ok {
			continue
		}
		return found[0], c.moveOn(ctx, below, found[1:])
	}
	return "", &RefusedError{Action: "place", ID: card.ID, Why: "too many cards stand too close there: put it to the top or the bottom"}
}

// placing puts a card into a column.
type placing struct {
	*Board
	card *tracker.Card
	id   string
}

func position(c *tracker.Card) string {
	if c == nil {
		return ""
	}
	return c.Position
}

// above returns the card that is right above the place; nil at the top.
func (c *placing) above(ctx context.Context, p Place) (*tracker.Card, error) {
	switch {
	case p.Top:
		return nil, nil
	case p.After != "":
		return c.anchor(ctx, "after", p.After)
	case p.Before != "":
		anchor, err := c.anchor(ctx, "before", p.Before)
		if err != nil {
			return nil, err
		}
		return c.previous(ctx, anchor)
	}
	return c.previous(ctx, nil)
}

func (c *placing) anchor(ctx context.Context, field, id string) (*tracker.Card, error) {
	anchor, err := c.CardGet(ctx, c.card.TenantID, id)
	if err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return nil, err
	}
	if err != nil || id == c.card.ID || anchor.BoardID != c.card.BoardID || anchor.ColumnID != c.id {
		return nil, tracker.Fieldf(field, "must be another card of the column")
	}
	return anchor, nil
}

// previous returns the card above one, the last of all if that is nil.
func (c *placing) previous(ctx context.Context, of *tracker.Card) (*tracker.Card, error) {
	found, err := c.list(ctx, of, true, 1)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

// next returns up to n cards below one, the first ones if that is nil.
func (c *placing) next(ctx context.Context, of *tracker.Card, n int) ([]tracker.Card, error) {
	return c.list(ctx, of, false, n)
}

// list lists the column without the card itself.
func (c *placing) list(ctx context.Context, of *tracker.Card, backward bool, n int) ([]tracker.Card, error) {
	p := tracker.CardListParams{TenantID: c.card.TenantID, BoardID: c.card.BoardID, ColumnID: c.id, Backward: backward, Limit: n + 1}
	if of != nil {
		p.After = p.Key(of)
	}
	page, err := c.Cards.CardList(ctx, p)
	if err != nil {
		return nil, err
	}
	out := page.Cards[:0]
	for i := range page.Cards {
		if page.Cards[i].ID != c.card.ID {
			out = append(out, page.Cards[i])
		}
	}
	return out[:min(len(out), n)], nil
}

// moveOn gives neighbouring cards new positions between the same two others:
// those that go down first, the last one first, then those that go up, the
// first one first. So no card ever passes another.
func (c *placing) moveOn(ctx context.Context, cards []tracker.Card, to []string) error {
	for i := len(cards) - 1; i >= 0; i-- {
		if to[i] > cards[i].Position {
			if err := c.reposition(ctx, &cards[i], to[i]); err != nil {
				return err
			}
		}
	}
	for i := range cards {
		if to[i] < cards[i].Position {
			if err := c.reposition(ctx, &cards[i], to[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// reposition leaves a card alone that somebody else moved meanwhile.
func (c *placing) reposition(ctx context.Context, was *tracker.Card, to string) error {
	_, err := c.Change(ctx, was.TenantID, was.ID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil || card.BoardID != was.BoardID || card.ColumnID != was.ColumnID || card.Position != was.Position {
			return nil, nil, nil
		}
		card.Position = to
		return card, nil, nil
	})
	if err != nil {
		return fmt.Errorf("make room in column %s: %w", c.id, err)
	}
	return nil
}
