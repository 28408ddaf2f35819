package trigger

import "sync"

// matchersMax bounds the subscriptions that a worker keeps compiled.
const matchersMax = 1000

// matcherCache keeps subscriptions compiled, each by its latest revision seen.
// The zero value is ready.
type matcherCache struct {
	mu   sync.Mutex
	have map[SubscriptionKey]*Matcher
}

// of returns the subscription's matcher, which may be one whose evaluations
// fail.
func (c *matcherCache) of(s *Subscription) *Matcher {
	key := SubscriptionKey{s.TenantID, s.ID}
	c.mu.Lock()
	m := c.have[key]
	c.mu.Unlock()
	if m.isOf(SubscriptionRef{s.ID, s.Revision, s.UpdatedAt}) {
		return m
	}
	m = storedMatcher(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.have == nil {
		c.have = make(map[SubscriptionKey]*Matcher)
	}
	if c.have[key] == nil && len(c.have) >= matchersMax {
		for other := range c.have { // any: compiling anew is cheap
			delete(c.have, other)
			break
		}
	}
	c.have[key] = m
	return m
}
