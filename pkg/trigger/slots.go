package trigger

import (
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
	// openMin and openMax bound how long a breaker stays open.
	openMin, openMax time.Duration
}

// gate is a lane's breaker. One that was never needed is not there.
type gate struct {
	failures int // in a row
	open     time.Duration
	until    time.Time
}

// breakerAfter is how many failures in a row open a lane's breaker.
const breakerAfter = 10

func newSlots(size int, openMin, openMax time.Duration) *slots {
	return &slots{
		size: size, openMin: max(openMin, time.Millisecond), openMax: max(openMax, time.Millisecond),
		tenants: make(map[string]int), lanes: make(map[laneKey]int), gates: make(map[laneKey]*gate),
	}
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

func (s *slots) take(lane laneKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.tenants[lane.tenant]++
	s.lanes[lane]++
}

func (s *slots) release(lane laneKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	drop(s.tenants, lane.tenant)
	drop(s.lanes, lane)
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
