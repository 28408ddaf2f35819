package trigger

import (
	"context"
	"strings"
	"time"
)

const (
	// pausesEvery is how old a worker's view of the pauses may be.
	pausesEvery = time.Second
	// pausesKnown is how old it may be for rows to be born claimed: a worker
	// whose rounds fail reads no new one.
	pausesKnown = 3 * pausesEvery
)

// pauseSet is what is paused.
type pauseSet struct {
	fleet   bool
	tenants map[string]bool
	lanes   map[laneKey]bool
	read    time.Time // when reading it began
}

func newPauseSet(pauses []Pause) pauseSet {
	s := pauseSet{tenants: make(map[string]bool), lanes: make(map[laneKey]bool)}
	for _, p := range pauses {
		switch {
		case p.TenantID == "":
			s.fleet = true
		case p.BotID == "":
			s.tenants[p.TenantID] = true
		default:
			s.lanes[laneKey{p.TenantID, LaneBot(p.BotID)}] = true
		}
	}
	return s
}

// holds reports whether the lane's launches are paused. A pause of a tenant or
// the fleet is of launches: projections and replayed events go on.
func (s pauseSet) holds(lane laneKey) bool {
	return strings.HasPrefix(lane.lane, laneBot) && (s.fleet || s.tenants[lane.tenant] || s.lanes[lane])
}

// pauseWatch keeps a view of the pauses, for one loop.
type pauseWatch struct {
	set  pauseSet
	next time.Time
}

func (w *pauseWatch) load(ctx context.Context, store Pauses) (pauseSet, error) {
	now := time.Now()
	if now.Before(w.next) {
		return w.set, nil
	}
	pauses, err := store.PauseList(ctx)
	if err != nil {
		return pauseSet{}, err
	}
	w.set, w.next = newPauseSet(pauses), now.Add(pausesEvery)
	w.set.read = now
	return w.set, nil
}
