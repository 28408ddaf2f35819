package trigger

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// quickLane is a lane of a worker with 64 slots, whose attempts are known to be
// short.
func quickLane() (*slots, laneKey) {
	s := newSlots(64, time.Second, time.Minute)
	lane := laneKey{"acme", "bot"}
	for range paceKnown {
		s.paced(lane, time.Millisecond)
	}
	return s, lane
}

// admitted admits n rows of the lane and returns how many were, and how long
// that took.
func admitted(ctx context.Context, s *slots, lane laneKey, n int) (rows int, took time.Duration) {
	began := time.Now()
	g := &birthGroup{lane: lane, rows: make([]*Effect, n)}
	s.admit(ctx, []*birthGroup{g})
	return g.free + g.places, time.Since(began)
}

// TestW9_SlotsAreLeftToLanesThatAreDue: while a look at the lanes that are due
// found no slots for some, new rows and queued ones leave an eighth of them.
func TestW9_SlotsAreLeftToLanesThatAreDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := quickLane()
		for i := range 56 {
			s.take(laneKey{"other", strconv.Itoa(i)})
		}
		s.looked(true)
		fresh := laneKey{"acme", "fresh"}
		n, _ := admitted(t.Context(), s, fresh, 5)
		require.Zero(t, n)
		began := time.Now()
		time.AfterFunc(50*time.Millisecond, func() { s.looked(false) })
		require.True(t, s.wait(t.Context(), lane, began.Add(queueWait)))
		require.Equal(t, 50*time.Millisecond, time.Since(began))
		n, took := admitted(t.Context(), s, fresh, 5)
		require.Equal(t, 5, n)
		require.Zero(t, took)
		s.looked(true)
		room, _, _ := s.room(fresh, time.Now())
		require.Equal(t, 2, room, "what is left is for claims")
	})
}

// TestW9_BirthsAndClaimsTakeTurns: in a lane that holds more rows which are due,
// new ones are not always first.
func TestW9_BirthsAndClaimsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := quickLane()
		s.claimed(lane, true)
		n, _ := admitted(t.Context(), s, lane, 10)
		require.Equal(t, 10, n, "the births' turn")
		n, took := admitted(t.Context(), s, lane, 10)
		require.Zero(t, n, "the claims' turn")
		require.Equal(t, birthWait, took)
		time.AfterFunc(time.Millisecond, func() { s.claimed(lane, true) })
		n, _ = admitted(t.Context(), s, lane, 10)
		require.Equal(t, 10, n)
		s.claimed(lane, false)
		for range 3 {
			n, _ = admitted(t.Context(), s, lane, 10)
			require.Equal(t, 10, n, "nothing is due there")
		}
	})
}

// TestBirthsWaitForRoom: rows of a fast lane wait until there is room for all of
// them, not for longer than birthWait, and not once the tail is stopped.
func TestBirthsWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := quickLane()
		queued := s.ahead(lane, aheadMax)
		for s.ahead(lane, aheadMax) > 0 {
			queued += aheadMax
		}
		require.Equal(t, queuedMax, queued)
		n, took := admitted(t.Context(), s, lane, aheadMax)
		require.Equal(t, 24, n, "slots, but no place")
		require.Equal(t, birthWait, took)
		for range 24 {
			s.release(lane)
		}
		time.AfterFunc(30*time.Millisecond, func() { s.unqueue(aheadMax - 1) })
		time.AfterFunc(60*time.Millisecond, func() { s.unqueue(1) })
		n, took = admitted(t.Context(), s, lane, aheadMax)
		require.Equal(t, aheadMax, n)
		require.Equal(t, 60*time.Millisecond, took)
		require.Equal(t, queuedMax, s.queued)
		require.Zero(t, s.busy, "slots are not held while rows are written")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		_, took = admitted(ctx, s, lane, aheadMax)
		require.Equal(t, 10*time.Millisecond, took)
	})
}

// TestBirthsOfAnUnknownLane: its first rows tell how fast it is, and the next
// ones wait for that; where nothing is in flight there is nothing to wait for.
func TestBirthsOfAnUnknownLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSlots(64, time.Second, time.Minute)
		lane := laneKey{"acme", "bot"}
		rows := make([]Effect, 500)
		for i := range rows {
			rows[i] = Effect{TenantID: lane.tenant, Lane: lane.lane}
		}
		require.Len(t, s.chunk(rows), paceKnown)
		n, took := admitted(t.Context(), s, lane, paceKnown)
		require.Equal(t, paceKnown, n)
		require.Zero(t, took)
		require.Len(t, s.chunk(rows), 500, "they are on their way")
		time.AfterFunc(20*time.Millisecond, func() {
			for range paceKnown {
				s.paced(lane, time.Millisecond)
				s.release(lane)
			}
		})
		n, took = admitted(t.Context(), s, lane, birthChunk)
		require.Equal(t, birthChunk, n)
		require.Equal(t, 20*time.Millisecond, took)
		require.Len(t, s.chunk(rows), birthChunk)
		// One attempt, long ago: nobody knows, and nobody is going to tell.
		rare := laneKey{"acme", "rare"}
		s.paced(rare, time.Millisecond)
		n, took = admitted(t.Context(), s, rare, 100)
		require.Equal(t, 24, n)
		require.Zero(t, took)
	})
}
