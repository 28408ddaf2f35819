package tracker

import "strings"

const (
	// CardScanMax bounds how many cards one call of CardList reads for a
	// filter that no index serves.
	CardScanMax = 500
	// CardCountMax is as far as CardCount counts.
	CardCountMax = 10_000
)

// CardListParams asks for a page of a tenant's cards. An empty filter accepts
// any. The cards of a board come by column, position and id, all others by id.
// Neither order depends on what changes elsewhere, so that pages see each card
// that stays where it is just once.
type CardListParams struct {
	TenantID string
	BoardID  string
	ColumnID string // needs the board
	BotID    string // cards that carry the bot
	Label    string // compared under Fold
	// Text stands in the title, both under Fold. It is no pattern.
	Text string
	// After is where the page before ended; nil for the first page.
	After *CardKey
	// Backward, of a column's list, goes up from After, or from the bottom.
	Backward bool
	Limit    int
}

// CardKey is a card's place in a list.
type CardKey struct {
	ColumnID string `json:"c,omitempty"` // of a board's list, and so is the next
	Position string `json:"p,omitempty"`
	ID       string `json:"i"`
}

// CardPage is a page of cards, without their bodies, pending events and
// bookkeeping. It may be short, or empty, and not be the last one.
type CardPage struct {
	Cards []Card
	// Next is where it ended; nil on the last page.
	Next *CardKey
}

// ByPosition reports whether the list is in the order of positions.
func (p *CardListParams) ByPosition() bool { return p.BoardID != "" }

// Indexed reports whether an index serves the filter by the bot.
func (p *CardListParams) Indexed() bool { return p.BotID != "" && !p.ByPosition() }

// ReadLimit is how many cards a store is to read for the page.
func (p *CardListParams) ReadLimit() int {
	if p.Label == "" && p.Text == "" && (p.BotID == "" || p.Indexed()) {
		return p.Limit + 1
	}
	return max(CardScanMax, p.Limit+1)
}

// Page makes the page of what a store read: in order, at most ReadLimit.
func (p *CardListParams) Page(read []Card) (page CardPage) {
	label, text := Fold(p.Label), Fold(p.Text)
	for i := range read {
		c := &read[i]
		if (label != "" && !c.HasLabel(label)) || (p.BotID != "" && c.BotID != p.BotID) || (text != "" && !strings.Contains(Fold(c.Title), text)) {
			continue
		}
		if len(page.Cards) == p.Limit {
			page.Next = p.Key(&read[i-1])
			return page
		}
		page.Cards = append(page.Cards, *c)
	}
	if len(read) > 0 && len(read) == p.ReadLimit() {
		page.Next = p.Key(&read[len(read)-1])
	}
	return page
}

// Key is the card's place in the list.
func (p *CardListParams) Key(c *Card) *CardKey {
	if !p.ByPosition() {
		return &CardKey{ID: c.ID}
	}
	return &CardKey{c.ColumnID, c.Position, c.ID}
}

// Listed returns the card as lists hold it.
func (c *Card) Listed() Card {
	out := *c.Clone()
	out.Body, out.Pending, out.Stamps, out.Consumed, out.Deliveries = "", nil, Stamps{}, nil, nil
	return out
}
