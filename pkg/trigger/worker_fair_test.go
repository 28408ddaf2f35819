package trigger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// expire has the lane's due rows claimed by a worker that died.
func (b *bundle) expire(t *testing.T, tenant, bot string, n int) {
	t.Helper()
	now := b.store.Now()
	rows, err := b.store.EffectClaim(t.Context(), trigger.ClaimParams{
		TenantID: tenant, Lane: trigger.LaneBot(bot), Worker: "dead", ClaimID: "dead-" + bot, Now: now, LeaseEnd: now.Add(-time.Second), Limit: n,
	})
	require.NoError(t, err)
	require.Len(t, rows, n)
}

// TestW9_AReclaimedRowThatHangsHoldsUpNoLane: however many lanes there are,
// those that have nothing more due do not stand in the others' way while a
// reclaimed row is in flight.
func TestW9_AReclaimedRowThatHangsHoldsUpNoLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if strings.Contains(r.URL, "hang") {
				<-ctx.Done()
				return trigger.Launched{}, ctx.Err()
			}
			return trigger.Launched{}, nil
		})
		b.worker.Grace = time.Millisecond
		b.lane(t, "aa", "hang", 2)
		b.expire(t, "aa", "hang", 2)
		const lanes = 300
		for i := range lanes {
			b.lane(t, fmt.Sprintf("t%03d", i), "fine", 1)
		}
		began := time.Now()
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		for range lanes + 1 {
			require.Equal(t, trigger.StateDone, (<-b.settles).To)
		}
		require.Less(t, time.Since(began), 5*time.Second)
	})
}

// TestW9_ATenantsOtherLaneGetsItsTurn: two busy lanes have all the slots that
// their tenant may have, and a backlog; a third one's rows don't wait for its end.
func TestW9_ATenantsOtherLaneGetsItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if strings.Contains(r.URL, "busy") {
				time.Sleep(time.Second + time.Duration(n.Add(1)%24)*41*time.Millisecond)
			}
			return trigger.Launched{}, nil
		})
		b.worker.Grace = time.Millisecond
		b.lane(t, "loud", "busy1", 500)
		b.lane(t, "loud", "busy2", 500)
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		time.Sleep(5 * time.Second)
		b.lane(t, "loud", "third", 1)
		began := time.Now()
		for s := range b.settles {
			if strings.HasSuffix(s.EffectID, "s-third") {
				break
			}
			require.Less(t, time.Since(began), 5*time.Second)
		}
	})
}

// marking is a store in which a lane is marked all the time.
type marking struct {
	*boardmem.Store
	lane trigger.LaneMark
}

func (m *marking) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	if p.Lane == m.lane.Lane {
		m.lane.Due = m.Now()
		if err := m.LaneMarkMany(ctx, []trigger.LaneMark{m.lane}); err != nil {
			return nil, err
		}
	}
	return m.Store.EffectClaim(ctx, p)
}

// TestW9_ALaneThatIsMarkedAllTheTimeTakesTurns: each of its marks keeps it from
// being put behind the others.
func TestW9_ALaneThatIsMarkedAllTheTimeTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			time.Sleep(time.Second)
			return trigger.Launched{}, nil
		})
		b.lane(t, "busy", "busy", 100)
		time.Sleep(time.Second)
		b.lane(t, "calm", "calm", 1)
		b.worker.Outbox = &marking{b.store, trigger.LaneMark{TenantID: "busy", Lane: trigger.LaneBot("busy")}}
		b.worker.Slots = 1
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		for n := 1; ; n++ {
			if s := <-b.settles; s.TenantID == "calm" {
				require.LessOrEqual(t, n, 5)
				break
			}
			require.Less(t, n, 50, "behind the other lane's backlog")
		}
	})
}

// TestW11_RowsThatAreDueAreClaimedAfterANewPrimary: only what would be reclaimed
// waits, not what is claimed as ever, in the same lane.
func TestW11_RowsThatAreDueAreClaimedAfterANewPrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e epochs
		first := true
		b := setup(t, 2, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			if first {
				first = false
				e.n.Add(1)
				return trigger.Launched{}, &trigger.LaunchError{Message: "429", RetryAfter: 5 * time.Second}
			}
			return trigger.Launched{}, nil
		})
		b.worker.Epochs, b.worker.RetryBase = &e, time.Millisecond
		b.expire(t, "acme", "bot", 1)
		require.NoError(t, b.store.LaneMarkMany(t.Context(), []trigger.LaneMark{{TenantID: "acme", Lane: trigger.LaneBot("bot"), Due: b.store.Now()}}))
		// The expired one is not looked at before the primary changed.
		b.worker.Outbox = &blindReclaims{Store: b.store, e: &e}
		began := time.Now()
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		require.Equal(t, trigger.StatePending, (<-b.settles).To)
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		require.Less(t, time.Since(began), 10*time.Second)
	})
}

// blindReclaims finds nothing to reclaim under the first primary.
type blindReclaims struct {
	*boardmem.Store
	e *epochs
}

func (s *blindReclaims) EffectReclaim(ctx context.Context, p trigger.ClaimParams) (*trigger.Effect, error) {
	if s.e.Epoch() == 0 {
		return nil, nil
	}
	return s.Store.EffectReclaim(ctx, p)
}

// electing is a store whose primary changes once, after the lanes were read.
type electing struct {
	*boardmem.Store
	e *epochs
}

func (s *electing) LanesDue(ctx context.Context, now time.Time, limit int) ([]trigger.Lane, error) {
	defer s.e.n.Store(1)
	return s.Store.LanesDue(ctx, now, limit)
}

// TestW11_NothingIsReclaimedWhenThePrimaryChangesWithinARound: the time that
// the lease is compared with may be the new one's already.
func TestW11_NothingIsReclaimedWhenThePrimaryChangesWithinARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e epochs
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) { return trigger.Launched{}, nil })
		b.expire(t, "acme", "bot", 1)
		b.worker.Epochs, b.worker.Lanes = &e, &electing{b.store, &e}
		began := time.Now()
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		require.GreaterOrEqual(t, time.Since(began), trigger.LeaseDefault)
	})
}

// resuming is a store in which a bot is resumed, once, just before the due
// lanes are read.
type resuming struct {
	*boardmem.Store
	once sync.Once
	do   func()
}

func (s *resuming) LanesDue(ctx context.Context, now time.Time, limit int) ([]trigger.Lane, error) {
	s.once.Do(s.do)
	return s.Store.LanesDue(ctx, now, limit)
}

// TestW9_ResumeIsNotLostOnAWorkerThatSawThePause: its view of the pauses is
// older than the mark that it sees.
func TestW9_ResumeIsNotLostOnAWorkerThatSawThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) { return trigger.Launched{}, nil })
		require.NoError(t, b.store.PauseSet(t.Context(), trigger.Pause{TenantID: "acme", BotID: "bot", By: "mona", At: b.store.Now()}))
		b.worker.Lanes = &resuming{Store: b.store, do: func() {
			_, err := b.store.PauseClear(t.Context(), "acme", "bot")
			require.NoError(t, err)
			require.NoError(t, b.store.LaneMarkMany(t.Context(), []trigger.LaneMark{{TenantID: "acme", Lane: trigger.LaneBot("bot"), Due: b.store.Now()}}))
		}}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		select {
		case s := <-b.settles:
			require.Equal(t, trigger.StateDone, s.To)
		case <-time.After(time.Minute):
			t.Fatal("put off with nobody left to mark it")
		}
	})
}

// behind is a store whose first reads of the rows are answered by a server that
// does not have them yet; by the second of them, another one is the primary.
type behind struct {
	*boardmem.Store
	e *epochs
}

func (s *behind) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	if s.e.Epoch() == 0 {
		return nil, nil
	}
	return s.Store.EffectClaim(ctx, p)
}

func (s *behind) EffectNextDue(ctx context.Context, tenantID, lane string) (time.Time, bool, error) {
	if s.e.n.CompareAndSwap(0, 1) {
		return time.Time{}, false, nil
	}
	return s.Store.EffectNextDue(ctx, tenantID, lane)
}

// TestW11_ALaneIsNotClearedByWhatTwoPrimariesSaid: its version may be of one
// server and its rows of another.
func TestW11_ALaneIsNotClearedByWhatTwoPrimariesSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e epochs
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) { return trigger.Launched{}, nil })
		b.worker.Epochs, b.worker.Outbox = &e, &behind{b.store, &e}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		select {
		case s := <-b.settles:
			require.Equal(t, trigger.StateDone, s.To)
		case <-time.After(time.Minute):
			t.Fatal("the lane was cleared")
		}
	})
}

// TestW9_LanesThatWaitDoNotFillThePage: more lanes than are looked at in one
// round wait for their bots, or for their tenant's turn; one that is due later
// is served all the same.
func TestW9_LanesThatWaitDoNotFillThePage(t *testing.T) {
	t.Parallel()
	const lanes = 200
	for _, c := range []struct {
		name string
		make func(t *testing.T, b *bundle)
	}{
		{"open breakers", func(t *testing.T, b *bundle) {
			for i := range lanes {
				b.lane(t, fmt.Sprintf("t%03d", i), "down", 20)
			}
			require.NoError(t, b.worker.Start(t.Context()))
			for failed := 0; failed < 10*lanes; {
				if s := <-b.settles; s.Error != nil {
					failed++
				}
			}
		}},
		{"a tenant at its share", func(t *testing.T, b *bundle) {
			b.lane(t, "loud", "hang1", 24)
			b.lane(t, "loud", "hang2", 24)
			require.NoError(t, b.worker.Start(t.Context()))
			synctest.Wait()
			for i := range lanes {
				b.lane(t, "loud", fmt.Sprint("fine", i), 1)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
					switch {
					case strings.Contains(r.URL, "hang"):
						<-ctx.Done()
					case strings.Contains(r.URL, "fine"):
						return trigger.Launched{}, nil
					}
					return trigger.Launched{}, &trigger.LaunchError{Message: "no answer"}
				})
				b.worker.Grace, b.worker.RetryBase = time.Millisecond, 10*time.Minute
				c.make(t, b)
				defer b.worker.Stop()
				time.Sleep(time.Second)
				b.lane(t, "quiet", "fine", 1)
				began := time.Now()
				for s := range b.settles {
					if s.TenantID == "quiet" {
						break
					}
				}
				require.Less(t, time.Since(began), 2*time.Second)
			})
		})
	}
}

// refusing is a store that never takes the settles of one lane's rows.
type refusing struct {
	*boardmem.Store
	tenant string
}

func (s *refusing) EffectSettleMany(ctx context.Context, settles []trigger.Settle) ([]bool, error) {
	if slices.ContainsFunc(settles, func(st trigger.Settle) bool { return st.TenantID == s.tenant }) {
		return nil, errors.New("document too large")
	}
	return s.Store.EffectSettleMany(ctx, settles)
}

// TestW9_ASettleThatIsNeverTakenGivesItsSlotBack, in the end.
func TestW9_ASettleThatIsNeverTakenGivesItsSlotBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := make(chan struct{}, 10)
		b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if strings.Contains(r.URL, "never") {
				began <- struct{}{}
			}
			return trigger.Launched{}, nil
		})
		b.worker.Slots, b.worker.Outbox = 1, &refusing{b.store, "never"}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		<-b.settles // the row of setup
		b.lane(t, "never", "never", 1)
		<-began
		b.lane(t, "quiet", "fine", 1)
		select {
		case s := <-b.settles:
			require.Equal(t, "quiet", s.TenantID)
		case <-time.After(3 * trigger.LeaseDefault):
			t.Fatal("the slot is lost")
		}
	})
}
