// Package boardmem keeps everything in memory, in one process: the embedded
// default for a first look, and the twin that tests run beside the database.
// What it holds is gone with the process.
package boardmem

import (
	"cmp"
	"context"
	"fmt"
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
	// comments are beside their cards, so that nobody carries them along.
	comments map[key][]tracker.Comment
	logs     map[string]*tenantLog

	tenants       table[trigger.Tenant]
	boards        table[tracker.Board]
	bots          table[trigger.Bot]
	hooks         table[trigger.Hook]
	subscriptions table[trigger.Subscription]
	projections   table[trigger.Projection]
	pauses        map[key]trigger.Pause // by tenant and bot
	bulks         map[key]*trigger.Bulk
	deliveries    map[deliveryKey]time.Time
	tokens        map[string]*trigger.Token
	createKeys    createKeys
	audit         map[key]*trigger.AuditEntry
	replicas      map[string]time.Time
	fleet         *trigger.Fleet
}

type (
	key         struct{ tenant, id string }
	deliveryKey struct{ tenant, hook, id string }
)

// tenantLog is one tenant's events and head.
type tenantLog struct {
	events map[int64]*trigger.Event
	byEID  map[string]int64
	head   *trigger.Head
	// highest is the highest seq that ever was in the log.
	highest int64
}

var _ trigger.Store = (*Store)(nil)

// New returns an empty store.
func New() *Store {
	return &Store{
		MemoryEffectOutbox: trigger.NewMemoryEffectOutbox(),
		cards:              make(map[key]*tracker.Card),
		comments:           make(map[key][]tracker.Comment),
		logs:               make(map[string]*tenantLog),
		deliveries:         make(map[deliveryKey]time.Time),
		tokens:             make(map[string]*trigger.Token),
	}
}

// Now implements trigger.Clock: this process is the database.
func (s *Store) Now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Epoch implements trigger.Epochs: there is one primary for ever.
func (s *Store) Epoch() int64 { return 0 }

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
	if !ok || have.Incarnation != next.Incarnation {
		delete(s.comments, k)
	}
	if w.Comment != nil {
		s.comments[k] = append(s.comments[k], clone.Of(*w.Comment))
	}
	s.cards[k] = &next
	return nil
}

// CardsGet implements tracker.CardStore.
func (s *Store) CardsGet(_ context.Context, tenantID string, cardIDs []string) ([]*tracker.Card, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*tracker.Card
	for _, id := range cardIDs {
		if card, ok := s.cards[key{tenantID, id}]; ok {
			c := clone.Of(*card)
			out = append(out, &c)
		}
	}
	return out, nil
}

// CardWriteMany implements tracker.CardStore.
func (s *Store) CardWriteMany(ctx context.Context, tenantID string, ws []tracker.CardWrite) ([]bool, error) {
	stands := make([]bool, len(ws))
	for i, w := range ws {
		if w.Next.TenantID != tenantID {
			return nil, fmt.Errorf("write card %s/%s: of another tenant", w.Next.TenantID, w.Next.ID)
		}
		stands[i] = s.CardWrite(ctx, w) == nil
	}
	return stands, nil
}

// CardPendingRemove implements tracker.CardStore (E3).
func (s *Store) CardPendingRemove(_ context.Context, tenantID string, eidsByCard map[string][]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, eids := range eidsByCard {
		card, ok := s.cards[key{tenantID, id}]
		if !ok {
			continue
		}
		card.Pending = slices.DeleteFunc(card.Pending, func(e tracker.BoardEvent) bool { return slices.Contains(eids, e.EID) })
		if len(card.Pending) == 0 {
			card.Pending = nil
			if !card.Deleted {
				card.PendingAt = time.Time{}
			}
		}
	}
	return nil
}

// CardsPending implements tracker.CardStore.
func (s *Store) CardsPending(_ context.Context, before time.Time, limit int) ([]tracker.PendingCard, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []tracker.PendingCard
	for k, card := range s.cards {
		if !card.PendingAt.IsZero() && !card.PendingAt.After(before) {
			out = append(out, tracker.PendingCard{TenantID: k.tenant, CardID: k.id, PendingAt: card.PendingAt})
		}
	}
	slices.SortFunc(out, func(a, b tracker.PendingCard) int {
		return cmp.Or(a.PendingAt.Compare(b.PendingAt), cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.CardID, b.CardID))
	})
	return out[:min(len(out), limit)], nil
}

// CardPendingTouch implements tracker.CardStore (E3).
func (s *Store) CardPendingTouch(_ context.Context, p tracker.PendingCard, now time.Time) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	card, ok := s.cards[key{p.TenantID, p.CardID}]
	if !ok || card.PendingAt.IsZero() || !card.PendingAt.Equal(p.PendingAt) {
		return false, nil
	}
	card.PendingAt = now.Truncate(time.Millisecond)
	return true, nil
}

// CardPendingEIDs implements tracker.CardStore (R4).
func (s *Store) CardPendingEIDs(_ context.Context, tenantID string, eids []string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for k, card := range s.cards {
		if k.tenant != tenantID {
			continue
		}
		for _, e := range card.Pending {
			if slices.Contains(eids, e.EID) {
				out = append(out, e.EID)
			}
		}
	}
	return out, nil
}

// CardBury implements tracker.CardStore (E4).
func (s *Store) CardBury(_ context.Context, tenantID, cardID, incarnation string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{tenantID, cardID}
	card, ok := s.cards[k]
	if !ok || card.Incarnation != incarnation {
		return true, nil
	}
	if !card.Deleted || len(card.Pending) > 0 || len(card.Consumed) > 0 {
		return false, nil
	}
	delete(s.cards, k)
	delete(s.comments, k)
	return true, nil
}

func (s *Store) log(tenantID string) *tenantLog {
	l := s.logs[tenantID]
	if l == nil {
		l = &tenantLog{events: make(map[int64]*trigger.Event), byEID: make(map[string]int64)}
		s.logs[tenantID] = l
	}
	return l
}

// SeqAllocate implements trigger.EventLog.
func (s *Store) SeqAllocate(_ context.Context, tenantID string, n int, lost bool) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.log(tenantID).head
	if h == nil {
		return 0, fmt.Errorf("allocate %d seqs of %s: no head: %w", n, tenantID, tracker.ErrNotFound)
	}
	first := h.Seq + 1
	h.Seq += int64(n)
	if !h.Dirty {
		h.Dirty, h.DrainAfter = true, s.Now()
	}
	if lost {
		h.PatienceMS = trigger.Doubled(h.PatienceMS)
	}
	return first, nil
}

// bounds returns the lowest and highest seq in the log; 0 if it is empty.
func (l *tenantLog) bounds() (lowest, highest int64) {
	for seq := range l.events {
		highest = max(highest, seq)
		if lowest == 0 || seq < lowest {
			lowest = seq
		}
	}
	return lowest, highest
}

// HeadLift implements trigger.Heads (T4).
func (s *Store) HeadLift(_ context.Context, tenantID string) (trigger.Lifted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	lowest, highest := l.bounds()
	known := s.EffectMaxSeq(tenantID)
	for _, sub := range s.subscriptions.list(tenantID) {
		known = max(known, sub.ActiveFromSeq)
	}
	for _, p := range s.projections.list(tenantID) {
		known = max(known, p.ActiveFromSeq)
	}
	next := trigger.LiftHead(l.head, tenantID, lowest, highest, known)
	out := trigger.Lifted{Created: l.head == nil, Log: highest > 0, To: next.Seq}
	if l.head != nil {
		out.From = l.head.Seq
	}
	if out.Created || next.Seq != l.head.Seq || next.Dirty != l.head.Dirty {
		next.DrainAfter = s.Now()
		l.head = &next
	}
	return out, nil
}

// EventInsertMany implements trigger.EventLog.
func (s *Store) EventInsertMany(_ context.Context, tenantID string, events []trigger.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.log(tenantID)
	for _, e := range events {
		if !l.insert(e, s.Now()) {
			return fmt.Errorf("insert event %s (%s): %w", e.ID(), e.EID, trigger.ErrEventExists)
		}
	}
	return nil
}

func (l *tenantLog) insert(e trigger.Event, now time.Time) bool {
	_, seqTaken := l.events[e.Seq]
	_, eidTaken := l.byEID[e.EID]
	if seqTaken || eidTaken {
		return false
	}
	stored := clone.Of(e)
	stored.LoggedAt = now
	l.highest = max(l.highest, e.Seq)
	l.events[e.Seq], l.byEID[e.EID] = &stored, e.Seq
	return true
}

// EventFillVoids implements trigger.EventLog.
func (s *Store) EventFillVoids(_ context.Context, tenantID string, seqs []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range seqs {
		s.log(tenantID).insert(trigger.VoidEvent(tenantID, seq), s.Now())
	}
	return nil
}

// EventSeqs implements trigger.EventLog.
func (s *Store) EventSeqs(_ context.Context, tenantID string, after, upTo int64) ([]int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []int64
	l := s.log(tenantID)
	for seq := range l.events {
		if seq > after && seq <= upTo {
			out = append(out, seq)
		}
	}
	slices.Sort(out)
	return out, nil
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
	for seq := after + 1; seq <= min(upTo, l.highest); seq++ {
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
func (s *Store) HeadsDirty(_ context.Context, now time.Time, limit int) ([]trigger.DirtyTenant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.DirtyTenant
	for tenant, l := range s.logs {
		if l.head != nil && l.head.Dirty && !l.head.DrainAfter.After(now) {
			out = append(out, trigger.DirtyTenant{TenantID: tenant, Since: l.head.DrainAfter})
		}
	}
	slices.SortFunc(out, func(a, b trigger.DirtyTenant) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.TenantID, b.TenantID))
	})
	return out[:min(len(out), limit)], nil
}

// HeadList implements trigger.Heads.
func (s *Store) HeadList(_ context.Context, afterTenantID string, limit int) ([]trigger.Head, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []trigger.Head
	for tenant, l := range s.logs {
		if l.head != nil && tenant > afterTenantID {
			out = append(out, *l.head)
		}
	}
	slices.SortFunc(out, func(a, b trigger.Head) int { return cmp.Compare(a.TenantID, b.TenantID) })
	return out[:min(len(out), limit)], nil
}

// HeadAdvance implements trigger.Heads.
func (s *Store) HeadAdvance(_ context.Context, tenantID string, from, to int64) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.log(tenantID).head
	if h == nil || h.Cursor != from || h.Seq < to || to < from {
		return false, nil
	}
	h.Cursor, h.Dirty, h.DrainAfter = to, h.Seq > to, s.Now()
	return true, nil
}

// HeadDefer implements trigger.Heads.
func (s *Store) HeadDefer(_ context.Context, tenantID string, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.log(tenantID).head; h != nil {
		h.DrainAfter = until.Truncate(time.Millisecond)
	}
	return nil
}

// HeadWatchHole implements trigger.Heads (T3).
func (s *Store) HeadWatchHole(_ context.Context, tenantID string, cursor, upTo int64, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.log(tenantID).head; h != nil && h.Cursor == cursor && h.HoleUpTo <= cursor {
		h.HoleUpTo, h.HoleSince = upTo, now.Truncate(time.Millisecond)
	}
	return nil
}

// HeadWatchPoison implements trigger.Heads (T5).
func (s *Store) HeadWatchPoison(_ context.Context, tenantID string, seq int64, now time.Time) (trigger.PoisonWatch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.log(tenantID).head
	if h == nil {
		return trigger.PoisonWatch{}, fmt.Errorf("watch event %d of %s: %w", seq, tenantID, tracker.ErrNotFound)
	}
	if h.Poison.Seq != seq {
		h.Poison = trigger.PoisonWatch{Seq: seq, Since: now.Truncate(time.Millisecond)}
	}
	h.Poison.Tries++
	return h.Poison, nil
}
