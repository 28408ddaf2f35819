package trigger

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// claimView is the configuration as the rows of one claim see it: what one of
// them has read since the claim, the others of it take over. They run at the
// same time, and mostly are of one subscription and one bot.
type claimView struct {
	EvaluatorConfig
	board *Board
	mu    sync.Mutex
	subs  map[string]*shared[Subscription]
	bots  map[string]*shared[Bot]

	cardIDs []string // of the claim's rows
	cardsMu sync.Mutex
	cards   map[string]*tracker.Card // all of them, once read
}

// shared is one thing that is read once.
type shared[T any] struct {
	mu    sync.Mutex
	value *T
}

func newClaimView(config EvaluatorConfig, board *Board, rows []Effect) *claimView {
	c := &claimView{EvaluatorConfig: config, board: board, subs: make(map[string]*shared[Subscription]), bots: make(map[string]*shared[Bot])}
	for i := range rows {
		if id := rows[i].CardID; id != "" && !slices.Contains(c.cardIDs, id) {
			c.cardIDs = append(c.cardIDs, id)
		}
	}
	return c
}

// cardGet returns the card as it was after the claim; the first of the rows
// that asks reads the cards of all.
func (c *claimView) cardGet(ctx context.Context, tenantID, id string) (*tracker.Card, error) {
	c.cardsMu.Lock()
	defer c.cardsMu.Unlock()
	if c.cards == nil {
		found, err := c.board.Cards.CardsGet(ctx, tenantID, c.cardIDs)
		if err != nil {
			return nil, err
		}
		c.cards = make(map[string]*tracker.Card, len(found))
		for _, card := range found {
			c.cards[card.ID] = card
		}
	}
	card := c.cards[id]
	if card == nil || card.Deleted {
		return nil, fmt.Errorf("card %s/%s: %w", tenantID, id, tracker.ErrNotFound)
	}
	return card, nil
}

// prepare reads what all rows of a claim need, at once. What can't be read
// now is read by the row that needs it, and fails that one.
func (v *Evaluator) prepare(ctx context.Context, rows []Effect) {
	row := &rows[0]
	if row.Kind != KindLaunch && row.Kind != "" {
		return
	}
	var reads sync.WaitGroup
	defer reads.Wait()
	for _, read := range []func() error{
		func() error { _, err := v.Config.SubscriptionGet(ctx, row.TenantID, row.SubscriptionID); return err },
		func() error { _, err := v.Config.BotGet(ctx, row.TenantID, row.BotID); return err },
		func() error { _, err := v.card(ctx, row); return err },
	} {
		reads.Go(func() { _ = safely(read) })
	}
}

// SubscriptionGet reads a subscription of the claim's tenant.
func (c *claimView) SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error) {
	return once(ctx, c, c.subs, tenantID, id, c.EvaluatorConfig.SubscriptionGet)
}

// BotGet reads a bot of the claim's tenant.
func (c *claimView) BotGet(ctx context.Context, tenantID, id string) (*Bot, error) {
	return once(ctx, c, c.bots, tenantID, id, c.EvaluatorConfig.BotGet)
}

// once reads a thing unless it was read. An error is the caller's alone: the
// next one reads again. Nobody changes what is returned.
func once[T any](ctx context.Context, c *claimView, all map[string]*shared[T], tenantID, id string,
	read func(ctx context.Context, tenantID, id string) (*T, error),
) (*T, error) {
	c.mu.Lock()
	s := all[id]
	if s == nil {
		s = &shared[T]{}
		all[id] = s
	}
	c.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value != nil {
		return s.value, nil
	}
	value, err := read(ctx, tenantID, id)
	if err == nil {
		s.value = value
	}
	return value, err
}
