// Package boardmem keeps everything in memory, in one process: the embedded
// default for a first look, and the twin that tests run beside the database.
// What it holds is gone with the process.
package boardmem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Store implements every port. Safe for concurrent use.
type Store struct {
	*trigger.MemoryEffectOutbox

	mu    sync.Mutex
	cards map[key]*tracker.Card
	logs  map[string]*tenantLog

	tenants       table[trigger.Tenant]
	boards        table[tracker.Board]
	bots          table[trigger.Bot]
	hooks         table[trigger.Hook]
	subscriptions table[trigger.Subscription]
	deliveries    map[deliveryKey]time.Time
	tokens        map[string]*trigger.Token
}

type (
	key         struct{ tenant, id string }
	deliveryKey struct{ tenant, hook, id string }
)

// tenantLog is one tenant's events and head.
type tenantLog struct {
	events     map[int64]*trigger.Event
	byEID      map[string]int64
	head       *trigger.Head
	drainAfter time.Time
}

var _ trigger.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{
		MemoryEffectOutbox: trigger.NewMemoryEffectOutbox(),
		cards:              make(map[key]*tracker.Card),
		logs:               make(map[string]*tenantLog),
		deliveries:         make(map[deliveryKey]time.Time),
		tokens:             make(map[string]*trigger.Token),
	}
}

// Now implements trigger.Clock: this process is the database.
func (s *Store) Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Ping implements trigger.Store.
func (s *Store) Ping(context.Context) error { return nil }

// CardGet implements tracker.CardStore.
func (s *Store) CardGet(_ context.Context, tenantID, cardID string) (*tracker.Card, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	card, ok := s.cards[key{tenantID, cardID}]
	if !ok {
		return nil, fmt.Errorf("card %s/%s: %w", tenantID, cardID, tracker.ErrNotFound)
	}
	out := clone.Of(*card)
	return &out, nil
}

// CardWrite implements tracker.CardStore (E1).
func (s *Store) CardWrite(_ context.Context, w tracker.CardWrite) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{w.Next.TenantID, w.Next.ID}
	have, ok := s.cards[k]
	if ok != (w.PrevRev != 0) || (ok && (have.Rev != w.PrevRev || have.Incarnation != w.PrevIncarnation)) {
		return fmt.Errorf("write card %s/%s at rev %d: %w", k.tenant, k.id, w.PrevRev, tracker.ErrConflict)
	}
	next := clone.Of(*w.Next)
	next.Pending, next.PendingAt = nil, time.Time{}
	if ok {
		next.Pending, next.PendingAt = have.Pending, have.PendingAt
	}
	if w.Event != nil {
		next.Pending = append(slices.Clone(next.Pending), clone.Of(*w.Event))
		next.PendingAt = s.Now()
	}
	s.cards[k] = &next
	return nil
}

// CardPendingRemove implements tracker.CardStore (E3).
func (s *Store) CardPendingRemove(_ context.Context, tenantID, cardID string, eids []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	card, ok := s.cards[key{tenantID, cardID}]
	if !ok {
		return nil
	}
	card.Pending = slices.DeleteFunc(card.Pending, func(e tracker.BoardEvent) bool { return slices.Contains(eids, e.EID) })
	if len(card.Pending) == 0 {
		card.Pending, card.PendingAt = nil, time.Time{}
	}
	return nil
}

func (s *Store) log(tenantID string) *tenantLog {
	l := s.logs[tenantID]
	if l == nil {
		l = &tenantLog{events: make(map[int64]*trigger.Event), byEID: make(map[string]int64)}
		s.logs[tenantID] = l
	}
	return l
}

// SeqAllocate implements trigger.EventLog. A head is made lifted to the
// highest seq that the tenant's log, rows or subscriptions know (T4).
func (s *Store) SeqAllocate(_ context.Context, tenantID string, n int) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	if l.head == nil {
		var logged []int64
		for seq := range l.events {
			logged = append(logged, seq)
		}
		known := s.EffectMaxSeq(tenantID)
		for _, sub := range s.subscriptions.list(tenantID) {
			known = max(known, sub.ActiveFromSeq)
		}
		head := trigger.SeedHead(tenantID, logged, known)
		l.head = &head
	}
	first := l.head.Seq + 1
	l.head.Seq += int64(n)
	l.head.Dirty = true
	return first, nil
}

// EventInsertMany implements trigger.EventLog.
func (s *Store) EventInsertMany(_ context.Context, tenantID string, events []trigger.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	for _, e := range events {
		if !l.insert(e) {
			return fmt.Errorf("insert event %s (%s): %w", e.ID(), e.EID, trigger.ErrEventExists)
		}
	}
	return nil
}

func (l *tenantLog) insert(e trigger.Event) bool {
	_, seqTaken := l.events[e.Seq]
	_, eidTaken := l.byEID[e.EID]
	if seqTaken || eidTaken {
		return false
	}
	stored := clone.Of(e)
	l.events[e.Seq], l.byEID[e.EID] = &stored, e.Seq
	return true
}

// EventFillVoids implements trigger.EventLog.
func (s *Store) EventFillVoids(_ context.Context, tenantID string, first, last int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := first; seq <= last; seq++ {
		s.log(tenantID).insert(trigger.VoidEvent(tenantID, seq))
	}
	return nil
}

// EventSeqsByEID implements trigger.EventLog.
func (s *Store) EventSeqsByEID(_ context.Context, tenantID string, eids []string) (map[string]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]int64)
	for _, eid := range eids {
		if seq, ok := s.log(tenantID).byEID[eid]; ok {
			out[eid] = seq
		}
	}
	return out, nil
}

// EventList implements trigger.EventLog.
func (s *Store) EventList(_ context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.Event
	l := s.log(tenantID)
	for seq := after + 1; seq <= upTo; seq++ {
		if e, ok := l.events[seq]; ok {
			out = append(out, clone.Of(*e))
		}
	}
	return out, nil
}

// HeadGet implements trigger.Heads.
func (s *Store) HeadGet(_ context.Context, tenantID string) (*trigger.Head, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[tenantID]
	if l == nil || l.head == nil {
		return nil, fmt.Errorf("head %s: %w", tenantID, tracker.ErrNotFound)
	}
	out := *l.head
	return &out, nil
}

// HeadsDirty implements trigger.Heads.
func (s *Store) HeadsDirty(_ context.Context, now time.Time, limit int) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for tenant, l := range s.logs {
		if l.head != nil && l.head.Dirty && !l.drainAfter.After(now) {
			out = append(out, tenant)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(s.logs[a].drainAfter.Compare(s.logs[b].drainAfter), cmp.Compare(a, b))
	})
	return out[:min(len(out), limit)], nil
}

// HeadAdvance implements trigger.Heads.
func (s *Store) HeadAdvance(_ context.Context, tenantID string, from, to int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	if l.head == nil || l.head.Cursor != from || l.head.Seq < to || to < from {
		return false, nil
	}
	l.head.Cursor = to
	l.head.Dirty = l.head.Seq > to
	l.drainAfter = s.Now()
	return true, nil
}

// HeadDefer implements trigger.Heads.
func (s *Store) HeadDefer(_ context.Context, tenantID string, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log(tenantID).drainAfter = until.Truncate(time.Millisecond)
	return nil
}

// DeliverySeen implements trigger.Deliveries.
func (s *Store) DeliverySeen(_ context.Context, tenantID, hookID, deliveryID string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.deliveries[deliveryKey{tenantID, hookID, deliveryID}]
	return ok, nil
}

// DeliveryRecord implements trigger.Deliveries.
func (s *Store) DeliveryRecord(_ context.Context, tenantID, hookID, deliveryID string, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.deliveries, func(_ deliveryKey, t time.Time) bool { return at.Sub(t) > trigger.DeliveriesKept })
	s.deliveries[deliveryKey{tenantID, hookID, deliveryID}] = at
	return nil
}
