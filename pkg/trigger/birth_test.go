package trigger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// emit makes n more cards that fire the subscription.
func (b *bundle) emit(t *testing.T, n int) {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("born-%04d", i)
	}
	done, err := b.board.ChangeMany(t.Context(), "acme", ids, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}}, nil
	})
	require.NoError(t, err)
	for _, c := range done {
		require.NoError(t, c.Err)
	}
}

// tail is a tail beside the bundle's worker, on a store that may be another view
// of the bundle's.
func (b *bundle) tail(store trigger.EffectOutbox, worker *trigger.EffectWorker) *trigger.Tail {
	return &trigger.Tail{
		Cards: b.store, Log: b.store, Heads: b.store, Config: b.store, Outbox: store, Lanes: b.store, Clock: b.store, Epochs: b.store,
		Worker: worker, Logger: b.worker.Logger,
	}
}

// counted is an outbox that counts claims and may fail inserts.
type counted struct {
	trigger.EffectOutbox
	claims      atomic.Int64
	failInserts atomic.Int64 // after they were applied
	claimLimit  atomic.Int64
}

func (c *counted) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	rows, err := c.EffectOutbox.EffectClaim(ctx, p)
	if len(rows) > 0 {
		c.claims.Add(1)
	}
	c.claimLimit.Store(max(c.claimLimit.Load(), int64(len(rows))))
	return rows, err
}

func (c *counted) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	refs, err := c.EffectOutbox.EffectMaterialize(ctx, tenantID, rows)
	if err == nil && c.failInserts.Add(-1) >= 0 {
		return nil, errors.New("the answer was lost")
	}
	return refs, err
}

// quick is a launcher that counts the launches of each key.
func quick(keys chan<- string) launcher {
	return func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
		keys <- r.Key
		return trigger.Launched{}, nil
	}
}

// TestW1_RowsBornClaimedNeedNoClaim: what the worker has room for it executes
// without claiming it; what another replica wrote first is that one's.
func TestW1_RowsBornClaimedNeedNoClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := make(chan string, 100)
		b := setup(t, 0, quick(keys))
		outbox := &counted{EffectOutbox: b.store}
		b.worker.Outbox = outbox
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait() // it has looked what is paused
		b.emit(t, 20)
		first, second := b.tail(outbox, b.worker), b.tail(outbox, b.worker)
		for _, tail := range []*trigger.Tail{first, second} {
			_, err := tail.Drain(t.Context(), "acme")
			require.NoError(t, err)
		}
		seen := map[string]bool{}
		for range 20 {
			key := <-keys
			require.False(t, seen[key], "launched twice")
			seen[key] = true
			require.Equal(t, trigger.StateDone, (<-b.settles).To)
		}
		require.Zero(t, outbox.claims.Load())
		for _, row := range b.rows(t) {
			require.Equal(t, 1, row.Attempts)
		}
	})
}

// TestW1_AnotherReplicasRowsAreNotTaken: of two replicas that materialize the
// same events, the one whose row it is executes it.
func TestW1_AnotherReplicasRowsAreNotTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := make(chan string, 100)
		b := setup(t, 0, quick(keys))
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait()
		b.emit(t, 10)
		other := &earlyOutbox{EffectOutbox: b.store}
		_, err := b.tail(other, b.worker).Drain(t.Context(), "acme")
		require.NoError(t, err)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, keys, "the rows are claimed by the other replica")
		for _, row := range b.rows(t) {
			require.Equal(t, "other", row.Worker)
		}
	})
}

// earlyOutbox has another replica write the rows just before.
type earlyOutbox struct{ trigger.EffectOutbox }

// EffectMaterialize implements trigger.EffectOutbox.
func (o *earlyOutbox) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	theirs := make([]trigger.Effect, len(rows))
	copy(theirs, rows)
	for i := range theirs {
		theirs[i].State, theirs[i].ClaimID, theirs[i].Worker, theirs[i].NotBefore = trigger.StateClaimed, "theirs", "other", time.Now().Add(time.Hour)
	}
	if _, err := o.EffectOutbox.EffectMaterialize(ctx, tenantID, theirs); err != nil {
		return nil, err
	}
	return o.EffectOutbox.EffectMaterialize(ctx, tenantID, rows)
}

// TestT1_LostAnswerOfABirth: rows that were inserted as claimed, though the
// insert failed, don't wait for the end of their lease.
func TestT1_LostAnswerOfABirth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := make(chan string, 100)
		b := setup(t, 0, quick(keys))
		outbox := &counted{EffectOutbox: b.store}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait()
		b.emit(t, 10)
		outbox.failInserts.Store(1)
		began := time.Now()
		_, err := b.tail(outbox, b.worker).Drain(t.Context(), "acme")
		require.NoError(t, err)
		for range 10 {
			<-b.settles
		}
		require.Less(t, time.Since(began), time.Second)
		require.Len(t, keys, 10)
	})
}

// TestW9_BirthsGiveBackWhatTheyTook: after an insert that failed for good, and
// after claims that found less than they had room for, all slots are free.
func TestW9_BirthsGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0, quick(make(chan string, 1000)))
		outbox := &counted{EffectOutbox: b.store}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait()
		free := func() {
			synctest.Wait()
			busy, queued := b.worker.InUse()
			require.Zero(t, busy)
			require.Zero(t, queued)
		}
		b.emit(t, 500)
		outbox.failInserts.Store(2)
		_, err := b.tail(outbox, b.worker).Drain(t.Context(), "acme")
		require.ErrorContains(t, err, "the answer was lost")
		free()
		// The rows are there. Those that were born claimed are nobody's until
		// their lease runs out.
		_, err = b.tail(outbox, b.worker).Drain(t.Context(), "acme")
		require.NoError(t, err)
		for range 500 {
			<-b.settles
		}
		free()
		ids := []string{"late-1", "late-2"}
		_, err = b.board.ChangeMany(t.Context(), "acme", ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}},
				&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}}, nil
		})
		require.NoError(t, err)
		for _, worker := range []*trigger.EffectWorker{nil, b.worker} { // by a claim, and by birth
			_, err = b.tail(outbox, worker).Drain(t.Context(), "acme")
			require.NoError(t, err)
		}
		for range 2 {
			<-b.settles
		}
		free()
	})
}

// TestW9_BirthsTakeTheRoomThatThereIs: no more rows are born claimed than a
// claim would take of their lane; none of a lane that is paused; none once the
// worker stops.
func TestW9_BirthsTakeTheRoomThatThereIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before func(t *testing.T, b *bundle)
		born   int
	}{
		{"open", func(*testing.T, *bundle) {}, 3}, // 3/8 of 8 slots
		{"paused", func(t *testing.T, b *bundle) {
			require.NoError(t, b.store.PauseSet(t.Context(), trigger.Pause{TenantID: "acme", BotID: "bot", By: "x"}))
			time.Sleep(10 * time.Second) // longer than an old view of the pauses is used
		}, 0},
		{"stopped", func(_ *testing.T, b *bundle) { b.worker.Stop() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				b := setup(t, 0, func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
					select {
					case <-hang:
					case <-ctx.Done():
					}
					return trigger.Launched{}, ctx.Err()
				})
				b.worker.Slots, b.worker.Grace = 8, time.Millisecond
				require.NoError(t, b.worker.Start(t.Context()))
				defer b.worker.Stop()
				synctest.Wait()
				c.before(t, b)
				b.emit(t, 20)
				_, err := b.tail(b.store, b.worker).Drain(t.Context(), "acme")
				require.NoError(t, err)
				claimed := 0
				for _, row := range b.rows(t) {
					if row.State == trigger.StateClaimed {
						claimed++
					}
				}
				require.Equal(t, c.born, claimed)
				close(hang)
			})
		})
	}
}

// TestW10_BornRowsAreHandedBackAtAStop: a worker that stops between the insert
// and the start of a row hands it back, with no attempt.
func TestW10_BornRowsAreHandedBackAtAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0, quick(make(chan string, 100)))
		require.NoError(t, b.worker.Start(t.Context()))
		synctest.Wait()
		b.emit(t, 5)
		outbox := &stopping{EffectOutbox: b.store, worker: b.worker, stopped: make(chan struct{})}
		_, err := b.tail(outbox, b.worker).Drain(t.Context(), "acme")
		require.NoError(t, err)
		<-outbox.stopped
		for _, row := range b.rows(t) {
			require.Equal(t, trigger.StatePending, row.State)
			require.Zero(t, row.Attempts)
		}
	})
}

// stopping has the worker stopped while rows are inserted.
type stopping struct {
	trigger.EffectOutbox
	worker  *trigger.EffectWorker
	stopped chan struct{}
}

func (s *stopping) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	go func() {
		s.worker.Stop()
		close(s.stopped)
	}()
	synctest.Wait()
	return s.EffectOutbox.EffectMaterialize(ctx, tenantID, rows)
}

// TestW9_QueuedRowsAreHandedBackWhenTheirBotSlowsDown: rows are claimed ahead
// of free slots for a bot that answers fast; when it becomes slow they don't
// wait under their lease, and have lost no attempt.
func TestW9_QueuedRowsAreHandedBackWhenTheirBotSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var slow atomic.Bool
		var launches atomic.Int64
		b := setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			launches.Add(1)
			if strings.Contains(r.URL, "fine") && launches.Load() > 300 {
				slow.Store(true)
				select {
				case <-time.After(time.Minute):
				case <-ctx.Done():
				}
			}
			return trigger.Launched{}, nil
		})
		b.worker.Grace = time.Millisecond
		outbox := &counted{EffectOutbox: b.store}
		b.worker.Outbox = outbox
		b.lane(t, "loud", "fine", 900)
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.True(t, slow.Load())
		require.Greater(t, outbox.claimLimit.Load(), int64(64), "claims were larger than the slots")
		rows, err := b.store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "loud", Limit: 2000})
		require.NoError(t, err)
		claimed := 0
		for _, row := range rows {
			switch row.State {
			case trigger.StateClaimed:
				claimed++
			case trigger.StatePending:
				require.Zero(t, row.Attempts, "an attempt that was never made")
			}
		}
		require.LessOrEqual(t, claimed, 24, "no more rows are held than run")
		_, queued := b.worker.InUse()
		require.Zero(t, queued)
	})
}
