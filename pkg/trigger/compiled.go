package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// compiledSet is a tenant's enabled subscriptions, indexed by what they ask
// of an event's kind.
type compiledSet struct {
	subs map[string]*Matcher
	// byKind holds those that name kinds; any holds the others.
	byKind map[tracker.Kind][]*Matcher
	any    []*Matcher
	// unknown is set when a subscription needs a feature of a newer version.
	unknown error
}

// caring calls f for each subscription that may care for an event of the kind.
func (c *compiledSet) caring(kind tracker.Kind, f func(*Matcher)) {
	for _, m := range c.byKind[kind] {
		f(m)
	}
	for _, m := range c.any {
		f(m)
	}
}

func compile(subs map[string]*Matcher) *compiledSet {
	c := &compiledSet{subs: subs, byKind: make(map[tracker.Kind][]*Matcher)}
	for _, m := range subs {
		s := m.sub
		if err := checkFeatures("subscription "+s.ID, s.Requires); err != nil {
			c.unknown = err
		}
		if len(m.kinds) == 0 {
			c.any = append(c.any, m)
		}
		for _, k := range m.kinds {
			c.byKind[k] = append(c.byKind[k], m)
		}
	}
	return c
}

// subscriptionCache keeps each tenant's set, compiled once per change. The
// zero value is ready.
type subscriptionCache struct {
	mu      sync.Mutex
	tenants map[string]*compiledSet
}

type subscriptionReader interface {
	SubscriptionRefs(ctx context.Context, tenantID string) ([]SubscriptionRef, error)
	SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
	SubscriptionList(ctx context.Context, tenantID string) ([]Subscription, error)
}

// tailConfig is what the tail matches against. Projections are read whole,
// by one command a batch: a tenant has few, and they are small.
type tailConfig interface {
	subscriptionReader
	ProjectionList(ctx context.Context, tenantID string) ([]Projection, error)
	// SubscriptionSave flags a subscription that keeps failing.
	SubscriptionSave(ctx context.Context, s *Subscription) error
}

// subscriptionsSingly is how many subscriptions are read one by one; when more
// of a tenant's are not known yet, all of its are read at once.
const subscriptionsSingly = 5

// load returns the tenant's enabled subscriptions as of now: which there are
// is read from the store, and of those only what changed since (T7).
func (c *subscriptionCache) load(ctx context.Context, store subscriptionReader, tenantID string) (*compiledSet, error) {
	refs, err := store.SubscriptionRefs(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	have := c.tenants[tenantID]
	c.mu.Unlock()
	if have != nil && have.is(refs) {
		return have, nil
	}
	next := make(map[string]*Matcher, len(refs))
	var unread []string
	for _, ref := range refs {
		if have != nil && have.subs[ref.ID].isOf(ref) {
			next[ref.ID] = have.subs[ref.ID]
		} else {
			unread = append(unread, ref.ID)
		}
	}
	read, err := readSubscriptions(ctx, store, tenantID, unread)
	if err != nil {
		return nil, err
	}
	for _, s := range read {
		// A newer revision than the ref's may have come back; it is as good,
		// unless it is no longer enabled.
		if s.Enabled {
			next[s.ID] = storedMatcher(s)
		}
	}
	set := compile(next)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tenants == nil {
		c.tenants = make(map[string]*compiledSet)
	}
	if len(next) == 0 {
		delete(c.tenants, tenantID)
	} else {
		c.tenants[tenantID] = set
	}
	return set, nil
}

// readSubscriptions reads those of the subscriptions that are still there.
func readSubscriptions(ctx context.Context, store subscriptionReader, tenantID string, ids []string) (out []*Subscription, err error) {
	if len(ids) > subscriptionsSingly {
		all, err := store.SubscriptionList(ctx, tenantID)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if slices.Contains(ids, all[i].ID) {
				out = append(out, &all[i])
			}
		}
		return out, nil
	}
	for _, id := range ids {
		s, err := store.SubscriptionGet(ctx, tenantID, id)
		if errors.Is(err, tracker.ErrNotFound) {
			continue // deleted since its id was read
		}
		if err != nil {
			return nil, fmt.Errorf("subscription %s: %w", id, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// isOf reports whether m, which may be nil, is of the state that the ref names.
func (m *Matcher) isOf(ref SubscriptionRef) bool {
	return m != nil && m.sub.Revision == ref.Revision && m.sub.UpdatedAt.Equal(ref.UpdatedAt)
}

func (c *compiledSet) is(refs []SubscriptionRef) bool {
	if len(refs) != len(c.subs) {
		return false
	}
	for _, ref := range refs {
		if !c.subs[ref.ID].isOf(ref) {
			return false
		}
	}
	return true
}
