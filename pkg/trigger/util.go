package trigger

import (
	"context"
	"strconv"
	"sync"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func orDefault[T comparable](v, def T) T {
	if v == *new(T) {
		return def
	}
	return v
}

// nudge wakes one waiting loop; nudges while it works fold into one. The zero
// value is ready.
type nudge struct {
	once sync.Once
	ch   chan struct{}
}

func (n *nudge) c() chan struct{} {
	n.once.Do(func() { n.ch = make(chan struct{}, 1) })
	return n.ch
}

// Nudge wakes the waiter, now or at its next Wait.
func (n *nudge) Nudge() {
	select {
	case n.c() <- struct{}{}:
	default:
	}
}

// Wait returns after a nudge, after d, or when ctx ends.
func (n *nudge) Wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-n.c():
	case <-t.C:
	}
}

// onceSet says of each key whether it is new. The zero value is ready.
type onceSet struct{ m sync.Map }

// First reports whether the key has not been seen before.
func (o *onceSet) First(key string) bool {
	_, seen := o.m.LoadOrStore(key, struct{}{})
	return !seen
}

// subscriptionCache keeps subscriptions by id and revision. The zero value is
// ready.
type subscriptionCache struct {
	mu      sync.Mutex
	tenants map[string]map[string]*Subscription
}

// load returns the tenant's enabled subscriptions as of now: which there are
// is read from the store, and of those only what changed since (T7).
func (c *subscriptionCache) load(ctx context.Context, store interface {
	SubscriptionRefs(ctx context.Context, tenantID string) ([]SubscriptionRef, error)
	SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
}, tenantID string,
) ([]*Subscription, error) {
	refs, err := store.SubscriptionRefs(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	have := c.tenants[tenantID]
	c.mu.Unlock()
	next := make(map[string]*Subscription, len(refs))
	list := make([]*Subscription, 0, len(refs))
	for _, ref := range refs {
		s := have[ref.ID]
		if s == nil || s.Revision != ref.Revision {
			// A newer revision than the ref's may come back; it is as good.
			if s, err = store.SubscriptionGet(ctx, tenantID, ref.ID); err != nil {
				return nil, err
			}
		}
		next[ref.ID] = s
		list = append(list, s)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tenants == nil {
		c.tenants = make(map[string]map[string]*Subscription)
	}
	c.tenants[tenantID] = next
	return list, nil
}
