package trigger

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"
)

// Numbers of the storm guard (docs/storm-guard.md).
const (
	MaxPerMinuteDefault = 100
	MaxPerMinuteMax     = 10_000
	// HeldMaxDefault is how many rows of one subscription are held; what
	// matches beyond is matched again when the subscription is resumed.
	HeldMaxDefault = 10_000
	// StormGuard is who pauses.
	StormGuard = "system:storm-guard"
	// stormMinutes are how many of the latest minutes a tail remembers.
	stormMinutes = 5
)

// Guard is what pauses of a subscription, and their ends, leave behind.
type Guard struct {
	// FromSeq is the tenant's seq as read before the latest resume: matches of
	// events up to it don't count any more.
	FromSeq int64 `json:"from_seq,omitempty"`
	// HeldFrom, if set, is the seq from which on nothing is written while the
	// subscription is paused: too much is held. Once it is resumed, what came
	// since is matched again, page by page, and HeldFrom moves along.
	HeldFrom int64 `json:"held_from,omitempty"`
	// DiscardTo is the seq up to which held rows are given up instead of
	// released.
	DiscardTo int64 `json:"discard_to,omitempty"`
	// DiscardFrom is the HeldFrom of the discard: from there to DiscardTo what
	// was owed was given up without rows. Explain tells of it.
	DiscardFrom int64 `json:"discard_from,omitempty"`
}

func (s *Subscription) perMinute() int {
	if s.MaxPerMinute == nil {
		return MaxPerMinuteDefault
	}
	return *s.MaxPerMinute
}

// Match is one match as the storm guard counts it.
type Match struct {
	Seq int64
	At  time.Time
	// Unit is what counts once: the event, or the bulk call that it is of.
	Unit string
}

// NewMatch returns the match of an event.
func NewMatch(seq int64, at time.Time, eid, bulk string) Match {
	if bulk != "" {
		return Match{seq, at, bulk}
	}
	return Match{seq, at, eid}
}

func matchOf(row *Effect) Match {
	return NewMatch(row.EventSeq, row.Event.At, row.Event.EID, row.Event.Bulk)
}

// minute numbers the minute of event time that the match is in.
func (m Match) minute() int64 { return m.At.Unix() / 60 }

// MatchesParams asks for matches of one subscription.
type MatchesParams struct {
	TenantID       string
	SubscriptionID string
	Since          time.Time
	AfterSeq       int64
	UpToSeq        int64
}

// storms is what a tail remembers of its tenants' matches, so that it need not
// ask the store for each batch. What it remembers is never trusted to be all:
// of seqs that other replicas drained it knows how many there were, and asks
// the store once those could make a difference. The zero value is ready.
type storms struct {
	mu      sync.Mutex
	tenants map[string]*tenantStorm
}

// tenantStorm is one tenant's. One that was committed is never changed.
type tenantStorm struct {
	upTo int64 // the seq that this tail has drained up to
	// unseen counts the seqs that others drained since it began to look.
	unseen int64
	counts map[string]stormCount // by subscription
	held   map[string]heldCount
}

// stormCount is how often a subscription matched.
type stormCount struct {
	from int64 // the seq that it counts from
	// Minutes from floor on are complete, but for matches in seqs that were
	// not seen: gap of them when unseen stood at seenAt.
	floor, gap, seenAt int64
	units              map[int64]map[string]bool // by minute
}

type heldCount struct {
	n           int
	gap, seenAt int64
}

// at returns a copy of what is known of a tenant, for a batch after the cursor.
func (s *storms) at(tenantID string, cursor int64) *tenantStorm {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.tenants[tenantID]
	if have == nil || have.upTo > cursor { // a cursor never moves back
		have = &tenantStorm{upTo: cursor}
	}
	next := tenantStorm{upTo: cursor, unseen: have.unseen + cursor - have.upTo, counts: maps.Clone(have.counts), held: maps.Clone(have.held)}
	if next.counts == nil {
		next.counts, next.held = make(map[string]stormCount), make(map[string]heldCount)
	}
	return &next
}

// commit keeps what is known once the batch up to a seq is written.
func (s *storms) commit(tenantID string, t *tenantStorm, upTo int64, subs map[string]*Matcher) {
	gone := func(id string) bool { return subs[id] == nil }
	maps.DeleteFunc(t.counts, func(id string, _ stormCount) bool { return gone(id) })
	maps.DeleteFunc(t.held, func(id string, _ heldCount) bool { return gone(id) })
	t.upTo = upTo
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tenants == nil {
		s.tenants = make(map[string]*tenantStorm)
	}
	if len(t.counts)+len(t.held) == 0 {
		delete(s.tenants, tenantID)
		return
	}
	s.tenants[tenantID] = t
}

// Storms counts the subscriptions that this tail's storm guard paused.
func (t *Tail) Storms() int64 { return t.paused.Load() }

// guard looks at the rows that a batch owes, before they are written: the match
// that is one too many within its minute pauses its subscription, and what a
// paused one owes beyond the rows that may be held is left for its resume. It
// decides from the events and from the rows of those before, so that any
// replica, in batches of any size and after a crash anywhere, decides the same.
// What it writes, to subscriptions, it writes before the rows: what a crash
// leaves is a subscription that holds somewhat more. An error that wraps
// tracker.ErrConflict says that a subscription was changed meanwhile, and the
// batch is to be matched anew.
func (t *Tail) guard(ctx context.Context, tenantID string, cursor int64, out *judged) error {
	g := guarding{Tail: t, tenantID: tenantID, cursor: cursor, known: t.storm.at(tenantID, cursor)}
	out.storm = g.known
	rows := make(map[string][]*Effect)
	for i := range out.rows {
		if row := &out.rows[i]; row.Kind.launches() {
			rows[row.SubscriptionID] = append(rows[row.SubscriptionID], row)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		m := out.subs[id]
		if m == nil {
			continue
		}
		if err := g.subscription(ctx, m.sub, rows[id]); err != nil {
			return fmt.Errorf("guard subscription %s: %w", id, err)
		}
	}
	if len(g.left) > 0 {
		out.rows = slices.DeleteFunc(out.rows, func(row Effect) bool { return g.left[row.ID] })
	}
	return nil
}

// guarding is one look at one batch.
type guarding struct {
	*Tail
	tenantID string
	cursor   int64
	known    *tenantStorm
	left     map[string]bool // rows that are not to be written
}

func (g *guarding) subscription(ctx context.Context, s *Subscription, rows []*Effect) error {
	if !s.Paused {
		limit := s.perMinute()
		if limit == 0 {
			return nil
		}
		at, minute, err := g.count(ctx, s, limit, rows)
		if err != nil || at < 0 {
			return err
		}
		if s, err = g.pause(ctx, s, limit, minute); err != nil {
			return err
		}
		rows = rows[at:]
		for _, row := range rows {
			if row.State == StatePending {
				row.State = StateHeld
			}
		}
	}
	return g.hold(ctx, s, rows)
}

// counts reports whether the guard counts the row.
func (s *Subscription) counts(row *Effect) bool {
	return row.Outcome != OutcomeLoopCut && row.EventSeq > s.Guard.FromSeq
}

// count counts the rows, and returns the index of the first that is too many,
// and its minute; -1 if none is.
func (g *guarding) count(ctx context.Context, s *Subscription, limit int, rows []*Effect) (at int, minute int64, err error) {
	fresh := make(map[int64]map[string]bool)
	low := int64(math.MaxInt64)
	for _, row := range rows {
		if !s.counts(row) {
			continue
		}
		m := matchOf(row)
		add(fresh, m)
		low = min(low, m.minute())
	}
	from := max(s.Guard.FromSeq, s.ActiveFromSeq)
	c, ok := g.known.counts[s.ID]
	if !ok || c.from != from {
		c = stormCount{from: from, floor: math.MinInt64, gap: max(0, g.cursor-from), seenAt: g.known.unseen}
	}
	c.units = cloneUnits(c.units)
	for m, units := range fresh {
		gap := c.gap + g.known.unseen - c.seenAt
		if m >= c.floor && (gap == 0 || int64(len(c.units[m])+len(units))+gap <= int64(limit)) {
			continue
		}
		// It could be too many: now the store has to say.
		matches, err := g.Outbox.EffectMatches(ctx, MatchesParams{
			TenantID: g.tenantID, SubscriptionID: s.ID, Since: time.Unix(low*60, 0), AfterSeq: from, UpToSeq: g.cursor,
		})
		if err != nil {
			return 0, 0, err
		}
		c = stormCount{from: from, floor: low, seenAt: g.known.unseen, units: make(map[int64]map[string]bool)}
		for _, m := range matches {
			add(c.units, m)
		}
		break
	}
	for i, row := range rows {
		if !s.counts(row) {
			continue
		}
		m := matchOf(row)
		if add(c.units, m); len(c.units[m.minute()]) > limit {
			delete(g.known.counts, s.ID) // it counts anew once it is resumed
			return i, m.minute(), nil
		}
	}
	c.trim()
	g.known.counts[s.ID] = c
	return -1, 0, nil
}

func add(units map[int64]map[string]bool, m Match) {
	if units[m.minute()] == nil {
		units[m.minute()] = make(map[string]bool)
	}
	units[m.minute()][m.Unit] = true
}

func cloneUnits(units map[int64]map[string]bool) map[int64]map[string]bool {
	out := make(map[int64]map[string]bool, len(units))
	for m, u := range units {
		out[m] = maps.Clone(u)
	}
	return out
}

// trim forgets all but the latest minutes.
func (c *stormCount) trim() {
	latest := int64(math.MinInt64)
	for m := range c.units {
		latest = max(latest, m)
	}
	if latest == math.MinInt64 {
		return
	}
	c.floor = max(c.floor, latest-stormMinutes+1)
	maps.DeleteFunc(c.units, func(m int64, _ map[string]bool) bool { return m < c.floor })
}

// pause pauses the subscription as it was read.
func (g *guarding) pause(ctx context.Context, s *Subscription, limit int, minute int64) (*Subscription, error) {
	next := *s
	at := time.Unix(minute*60, 0).UTC().Format("2006-01-02T15:04Z")
	next.Paused, next.PausedBy = true, StormGuard
	next.PausedWhy = fmt.Sprintf("%d matches in the minute %s, max_per_minute is %d", limit+1, at, limit)
	if err := g.save(ctx, &next); err != nil {
		return nil, err
	}
	g.paused.Add(1)
	g.Logger.Warn().Str("tenant", g.tenantID).Str("subscription", s.ID).Str("name", s.Name).Str("minute", at).Int("max_per_minute", limit).
		Msg("storm guard: subscription paused, what it owes is held until somebody resumes it")
	return &next, nil
}

func (g *guarding) save(ctx context.Context, s *Subscription) error {
	s.Edited(g.Clock.Now())
	return g.Config.SubscriptionSave(ctx, s)
}

// hold leaves out rows of a paused subscription beyond what may be held. That
// it does so is kept on the subscription before the cursor passes them.
func (g *guarding) hold(ctx context.Context, s *Subscription, rows []*Effect) error {
	if s.Guard.HeldFrom == 0 {
		from, err := g.room(ctx, s, rows)
		if err != nil || from == 0 {
			return err
		}
		next := *s
		next.Guard.HeldFrom = from
		if err := g.save(ctx, &next); err != nil {
			return err
		}
		g.Logger.Warn().Str("tenant", g.tenantID).Str("subscription", s.ID).Int64("from_seq", from).
			Msg("storm guard: too much is held, what matches from here on is matched again when the subscription is resumed")
		s = &next
	}
	for _, row := range rows {
		if row.EventSeq >= s.Guard.HeldFrom {
			if g.left == nil {
				g.left = make(map[string]bool)
			}
			g.left[row.ID] = true
		}
	}
	return nil
}

// room returns the seq of the first row that may not be held any more; 0 if all
// may.
func (g *guarding) room(ctx context.Context, s *Subscription, rows []*Effect) (from int64, err error) {
	most := orDefault(g.HeldMax, HeldMaxDefault)
	var held []*Effect
	for _, row := range rows {
		if row.State == StateHeld {
			held = append(held, row)
		}
	}
	h, ok := g.known.held[s.ID]
	if !ok {
		h = heldCount{gap: max(0, g.cursor-s.ActiveFromSeq), seenAt: g.known.unseen}
	}
	if gap := h.gap + g.known.unseen - h.seenAt; int64(h.n+len(held))+gap > int64(most) {
		n, err := g.Outbox.EffectHeldCount(ctx, g.tenantID, s.ID, g.cursor)
		if err != nil {
			return 0, err
		}
		h = heldCount{n: n, seenAt: g.known.unseen}
	}
	if room := max(0, most-h.n); room < len(held) {
		delete(g.known.held, s.ID)
		return held[room].EventSeq, nil
	}
	h.n += len(held)
	g.known.held[s.ID] = h
	return 0, nil
}
