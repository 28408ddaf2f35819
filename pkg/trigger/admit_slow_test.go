package trigger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// rowsOf are n rows of the lane.
func rowsOf(lane laneKey, n int) []Effect {
	rows := make([]Effect, n)
	for i := range rows {
		rows[i] = Effect{TenantID: lane.tenant, Lane: lane.lane}
	}
	return rows
}

// TestT6_NewLanesDontWaitForOthersSlots: where other lanes' bots, which take
// long, have all slots, the rows of a lane whose pace is not known are written
// at once and all together: nothing of it is in flight that could tell its pace.
func TestT6_NewLanesDontWaitForOthersSlots(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]int{"no slot is free": 64, "what is free is left to claims": 60} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, lane := newSlots(64, time.Second, time.Minute), laneKey{"acme", "bot"}
				for i := range taken {
					s.take(laneKey{"slow", string(rune('a' + i%3))})
				}
				s.looked(true)
				require.Len(t, s.chunk(rowsOf(lane, 500)), 500)
				n, took := admitted(t.Context(), s, lane, 500)
				require.Zero(t, n)
				require.Zero(t, took)
			})
		})
	}
}

// TestT6_ALaneThatTellsNothingIsSlow: rows of a new lane wait for what its first
// ones tell, once: a bot that has not answered by then is not fast, and the
// drains, which other tenants need, are not held up by it again.
func TestT6_ALaneThatTellsNothingIsSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := newSlots(64, time.Second, time.Minute), laneKey{"acme", "hangs"}
		n, _ := admitted(t.Context(), s, lane, paceKnown)
		require.Equal(t, paceKnown, n)
		_, took := admitted(t.Context(), s, lane, 100)
		require.Equal(t, birthWait, took)
		for range 10 {
			_, took = admitted(t.Context(), s, lane, 100)
			require.Zero(t, took)
		}
		for range 30 { // it answers after all
			s.paced(lane, time.Millisecond)
		}
		require.Positive(t, s.ahead(lane, 10))
	})
}

// TestT6_ALaneThatWasFastDoesNotKeepTheQueue: a lane whose rows waited in vain
// for their slots takes no more places, which are all lanes', and holds up no
// drain, until its bot is known to be fast again.
func TestT6_ALaneThatWasFastDoesNotKeepTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := quickLane()
		for range 24 {
			s.take(lane) // and its bot hangs from now on
		}
		require.Equal(t, 1, s.ahead(lane, 1))
		require.False(t, s.wait(t.Context(), lane, time.Now().Add(queueWait)))
		s.unqueue(1)
		require.Zero(t, s.ahead(lane, aheadMax))
		_, took := admitted(t.Context(), s, lane, aheadMax)
		require.Zero(t, took)
		for range 30 {
			s.paced(lane, time.Millisecond)
		}
		require.Positive(t, s.ahead(lane, 10))
	})
}
