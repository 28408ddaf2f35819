package trigger

import (
	"context"
	"sync"
	"time"
)

// slots shares what a worker executes at once among lanes and tenants (W9).
// One tenant takes at most three quarters of the slots, and one lane at most
// half of that, so that bots which never answer always leave some to others. A lane
// whose bot fails again and again is held up for a while (its breaker is open),
// and then tried with one row.
type slots struct {
	mu      sync.Mutex
	size    int
	busy    int
	tenants map[string]int
	lanes   map[laneKey]int
	gates   map[laneKey]*gate
	paces   map[laneKey]*pace
	// queued rows are claimed and wait for a slot; freed is told of each slot
	// and place that becomes free.
	queued int
	freed  *sync.Cond
	// starved: lanes that are due get no slots.
	// In a lane with more rows that are due, turns has whose turn it is.
	starved bool
	turns   map[laneKey]turn
	// openMin and openMax bound how long a breaker stays open.
	openMin, openMax time.Duration
}

// gate is a lane's breaker. One that was never needed is not there.
type gate struct {
	failures int // in a row
	open     time.Duration
	until    time.Time
}

// turn is who may take rows of a lane next, those that look for rows that are
// due, or those that write new ones: neither is to wait for ever.
type turn int

const (
	birthsTurn turn = iota + 1
	claimsTurn
)

// pace is how long a lane's attempts take.
type pace struct {
	n    int // attempts so far, up to paceKnown
	mean time.Duration
}

const (
	// paceKnown is how many attempts tell a lane's pace.
	paceKnown = 8
	// paceFast is the pace up to which rows are claimed ahead of free slots,
	// as many as are through within aheadFor, and queuedMax of all lanes.
	paceFast  = 50 * time.Millisecond
	aheadFor  = 200 * time.Millisecond
	aheadMax  = 256
	queuedMax = 1024
	// queueWait is how long the rows of one claim wait for their slots, before
	// they are handed back: their bot has become slow.
	queueWait = 2 * time.Second
	// birthWait is how long rows that are about to be written wait for room.
	birthWait = 200 * time.Millisecond
	// pacesMax bounds what is remembered.
	pacesMax = 10_000
)

// breakerAfter is how many failures in a row open a lane's breaker.
const breakerAfter = 10

func newSlots(size int, openMin, openMax time.Duration) *slots {
	s := &slots{
		paces: make(map[laneKey]*pace), size: size, openMin: max(openMin, time.Millisecond), openMax: max(openMax, time.Millisecond),
		tenants: make(map[string]int), lanes: make(map[laneKey]int), gates: make(map[laneKey]*gate), turns: make(map[laneKey]turn),
	}
	s.freed = sync.NewCond(&s.mu)
	return s
}

// free returns how many slots are free at all, and how many lanes are busy.
func (s *slots) free() (n, busyLanes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size - s.busy, len(s.lanes)
}

// room says how many rows of a lane may be begun. Where there is none, full is
// set when that is the tenant's share, and until is when an open breaker lets
// one through.
func (s *slots) room(lane laneKey, now time.Time) (n int, tenantFull bool, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomNow(lane, now)
}

func (s *slots) roomNow(lane laneKey, now time.Time) (n int, tenantFull bool, until time.Time) {
	inTenant := max(1, s.size*3/4) - s.tenants[lane.tenant]
	n = min(s.size-s.busy, inTenant, max(1, s.size*3/8)-s.lanes[lane])
	if g := s.gates[lane]; g != nil && g.failures >= breakerAfter {
		if now.Before(g.until) {
			return 0, false, g.until
		}
		n = min(n, 1-s.lanes[lane])
	}
	return max(n, 0), inTenant <= 0, time.Time{}
}

// takeUpTo takes as many slots for the lane as there is room for, n at most, and
// returns how many.
func (s *slots) takeUpTo(lane laneKey, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	room, _, _ := s.roomNow(lane, time.Now())
	n = min(n, room)
	for range n {
		s.takeNow(lane)
	}
	return n
}

// giveBack frees n slots of the lane.
func (s *slots) giveBack(lane laneKey, n int) {
	for range n {
		s.release(lane)
	}
}

func (s *slots) take(lane laneKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takeNow(lane)
}

func (s *slots) takeNow(lane laneKey) {
	s.busy++
	s.tenants[lane.tenant]++
	s.lanes[lane]++
}

func (s *slots) release(lane laneKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseNow(lane)
	s.freed.Broadcast()
}

func (s *slots) releaseNow(lane laneKey) {
	s.busy--
	drop(s.tenants, lane.tenant)
	drop(s.lanes, lane)
}

// ahead takes places in the queue for up to want rows of a lane beyond its free
// slots, and returns how many: none unless its attempts are known to be short,
// so that rows don't wait for long under their lease.
func (s *slots) ahead(lane laneKey, want int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, _ := s.aheadNow(lane, want)
	return n
}

// aheadNow is ahead; short if there would be more but for others in the queue.
func (s *slots) aheadNow(lane laneKey, want int) (n int, short bool) {
	if !s.fast(lane) {
		return 0, false
	}
	// The busy lanes share the slots.
	share := max(1, min(s.size*3/8, s.size/max(1, len(s.lanes))))
	through := int(aheadFor/max(s.paces[lane].mean, time.Microsecond)) * share
	most := min(want, through, aheadMax)
	n = max(0, min(most, queuedMax-s.queued))
	s.queued += n
	return n, n < most
}

// fast reports whether the lane's attempts are known to be short.
func (s *slots) fast(lane laneKey) bool {
	p := s.paces[lane]
	return p != nil && p.n >= paceKnown && p.mean <= paceFast && s.gates[lane] == nil
}

// unknown reports whether it has yet to be seen how long the lane's attempts
// take.
func (s *slots) unknown(lane laneKey) bool {
	p := s.paces[lane]
	return (p == nil || p.n < paceKnown) && s.gates[lane] == nil
}

// unqueue gives places in the queue back.
func (s *slots) unqueue(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued -= n
	s.freed.Broadcast()
}

// looked tells what came of looking at the lanes that are due: starved, if some
// of them got no slots.
func (s *slots) looked(starved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starved = starved
	s.freed.Broadcast()
}

// reserved is how many slots new rows and queued ones leave to claims: an eighth,
// while lanes that are due get none.
func (s *slots) reserved() int {
	if !s.starved {
		return 0
	}
	return max(1, s.size/8)
}

// claimed tells that a claim of the lane's due rows was made, and whether there
// are more of them.
func (s *slots) claimed(lane laneKey, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if more {
		s.turns[lane] = birthsTurn
	} else {
		delete(s.turns, lane)
	}
	s.freed.Broadcast()
}

// admit takes slots and places in the queue for rows that are about to be
// written, and says so on the groups. Those of fast lanes wait for it, up to
// birthWait: written as pending they would only come later, and cost a claim.
func (s *slots) admit(ctx context.Context, groups []*birthGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var over, waits bool
	for s.admitNow(groups) && !over {
		s.giveUpNow(groups)
		if !waits {
			waits = true
			end := func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				over = true
				s.freed.Broadcast()
			}
			timer := time.AfterFunc(birthWait, end)
			defer timer.Stop()
			defer context.AfterFunc(ctx, end)()
		}
		s.freed.Wait()
	}
	for _, g := range groups {
		if over && ctx.Err() == nil && s.untold(g) {
			s.slow(g.lane)
		}
		if s.turns[g.lane] == birthsTurn && g.free+g.places > 0 {
			s.turns[g.lane] = claimsTurn
		}
	}
}

// chunk returns as many of the rows, the first ones, as are to be written at
// once.
func (s *slots) chunk(rows []Effect) []Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for i := range rows {
		lane := laneKey{rows[i].TenantID, rows[i].Lane}
		switch {
		case s.fast(lane):
			return rows[:min(len(rows), birthChunk)]
		case s.paces[lane] == nil && s.gates[lane] == nil && s.lanes[lane] == 0 && s.birthRoom(lane, now) > 0:
			return rows[:min(len(rows), paceKnown)] // they will tell
		}
	}
	return rows
}

func (s *slots) admitNow(groups []*birthGroup) (short bool) {
	now := time.Now()
	for _, g := range groups {
		if s.turns[g.lane] == claimsTurn {
			short = short || s.fast(g.lane)
			continue
		}
		// Places before slots, which would be held while the rows are written.
		// In a lane whose pace is not known the next rows wait until the first
		// ones have told it.
		places, more := s.aheadNow(g.lane, len(g.rows))
		g.places, g.free = places, min(len(g.rows)-places, s.birthRoom(g.lane, now))
		for range g.free {
			s.takeNow(g.lane)
		}
		short = short || more || s.untold(g)
	}
	return short
}

// birthRoom is how many rows of the lane may be begun besides those that claims
// are to take.
func (s *slots) birthRoom(lane laneKey, now time.Time) int {
	room, _, _ := s.roomNow(lane, now)
	return max(0, min(room, s.size-s.busy-s.reserved()))
}

// untold reports whether there was no room for all rows of the group, while
// others of its lane are on their way that will tell how fast it is. Slots that
// other lanes have tell nothing: they may be held for long.
func (s *slots) untold(g *birthGroup) bool {
	return g.free+g.places < len(g.rows) && s.unknown(g.lane) && s.lanes[g.lane] > g.free
}

// slow notes that rows of the lane waited for birthWait or longer in vain:
// nobody is to wait for it again before its attempts are known to be short.
func (s *slots) slow(lane laneKey) {
	p := s.pace(lane)
	p.n, p.mean = paceKnown, max(p.mean, birthWait)
}

// giveUp gives back what the groups were admitted.
func (s *slots) giveUp(groups []*birthGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.giveUpNow(groups)
	s.freed.Broadcast()
}

func (s *slots) giveUpNow(groups []*birthGroup) {
	for _, g := range groups {
		for range g.free {
			s.releaseNow(g.lane)
		}
		s.queued -= g.places
		g.free, g.places = 0, 0
	}
}

// wait takes a slot for a queued row of the lane as soon as there is one. It
// returns false when there is none until then, the lane's breaker opens or ctx
// ends.
func (s *slots) wait(ctx context.Context, lane laneKey, until time.Time) bool {
	over := false
	end := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		over = true
		s.freed.Broadcast()
	}
	timer := time.AfterFunc(time.Until(until), end)
	defer timer.Stop()
	defer context.AfterFunc(ctx, end)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		n, _, open := s.roomNow(lane, time.Now())
		switch {
		case over && ctx.Err() == nil && open.IsZero():
			s.slow(lane) // or its rows would take all places again
			return false
		case over || !open.IsZero():
			return false
		case n > 0 && s.size-s.busy > s.reserved():
			s.takeNow(lane)
			return true
		}
		s.freed.Wait()
	}
}

// paced tells how long an attempt in the lane took.
func (s *slots) paced(lane laneKey, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pace(lane)
	p.n = min(p.n+1, paceKnown)
	p.mean += (took - p.mean) / time.Duration(p.n)
}

// pace returns the lane's pace, to be changed.
func (s *slots) pace(lane laneKey) *pace {
	p := s.paces[lane]
	if p == nil {
		if len(s.paces) >= pacesMax {
			clear(s.paces)
		}
		p = &pace{}
		s.paces[lane] = p
	}
	return p
}

func drop[K comparable](m map[K]int, k K) {
	if m[k]--; m[k] <= 0 {
		delete(m, k)
	}
}

// has reports whether rows of the lane are in flight.
func (s *slots) has(lane laneKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes[lane] > 0
}

// answered tells how the lane's bot did: well, or badly; after is how long it
// asked to be left alone.
func (s *slots) answered(lane laneKey, well bool, after time.Duration, now time.Time) (opened bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if well {
		delete(s.gates, lane)
		return false
	}
	g := s.gates[lane]
	if g == nil {
		g = &gate{}
		s.gates[lane] = g
	}
	g.failures++
	if g.failures < breakerAfter || now.Before(g.until) {
		return false
	}
	opened = g.open == 0
	g.open = min(max(2*g.open, s.openMin), s.openMax)
	g.until = now.Add(max(g.open, min(after, s.openMax)))
	return opened
}
