package trigger

import (
	"context"
	"sync"
)

// claimView is the configuration as the rows of one claim see it: what one of
// them has read since the claim, the others of it take over. They run at the
// same time, and mostly are of one subscription and one bot.
type claimView struct {
	EvaluatorConfig
	mu   sync.Mutex
	subs map[string]*shared[Subscription]
	bots map[string]*shared[Bot]
}

// shared is one thing that is read once.
type shared[T any] struct {
	mu    sync.Mutex
	value *T
}

func newClaimView(config EvaluatorConfig) *claimView {
	return &claimView{EvaluatorConfig: config, subs: make(map[string]*shared[Subscription]), bots: make(map[string]*shared[Bot])}
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
