package trigger_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// emitIn makes n more cards in a tenant that b.lane has made.
func (b *bundle) emitIn(t *testing.T, tenant string, n int) {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("born-%04d", i)
	}
	done, err := b.board.ChangeMany(t.Context(), tenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}}, nil
	})
	require.NoError(t, err)
	for _, c := range done {
		require.NoError(t, c.Err)
	}
}

// TestW9_BirthsLeaveTheOtherLanesTheirTurns: where rows are born claimed in
// eight lanes faster than the slots execute them, all the time, the rows of
// another lane get their turn, and so do those of the same lane that are due.
func TestW9_BirthsLeaveTheOtherLanesTheirTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		at := make(map[string][]time.Time) // when each bot was launched
		b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			mu.Lock()
			for _, bot := range []string{"loud", "fine"} {
				if strings.Contains(r.URL, bot) {
					at[bot] = append(at[bot], time.Now())
				}
			}
			mu.Unlock()
			time.Sleep(15 * time.Millisecond)
			return trigger.Launched{}, nil
		})
		b.worker.Slots, b.worker.Grace, b.worker.Settled = 8, time.Millisecond, nil
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		var tails sync.WaitGroup
		defer tails.Wait()
		defer cancel()
		for i := range 8 {
			tenant := fmt.Sprint("t", i)
			b.lane(t, tenant, "loud", 10) // so that it is known to be fast
			b.emitIn(t, tenant, 500)
			tails.Go(func() {
				tail := b.tail(b.store, b.worker)
				tail.Batch = 100
				for ctx.Err() == nil {
					if d, err := tail.Drain(ctx, tenant); err != nil || !d.More {
						return
					}
				}
			})
		}
		time.Sleep(time.Second)
		mu.Lock()
		before := len(at["loud"])
		mu.Unlock()
		began := time.Now()
		b.lane(t, "quiet", "fine", 10)
		time.Sleep(6 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, at["fine"], 10)
		require.Less(t, at["fine"][9].Sub(began), 4*time.Second)
		require.Greater(t, len(at["loud"]), before+200, "they went on all the while")
	})
}
