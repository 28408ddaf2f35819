package trigger_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// failingPauses can't be read for a while.
type failingPauses struct {
	*boardmem.Store
	fails atomic.Bool
}

func (p *failingPauses) PauseList(ctx context.Context) ([]trigger.Pause, error) {
	if p.fails.Load() {
		return nil, errors.New("the store does not answer")
	}
	return p.Store.PauseList(ctx)
}

// TestW9_NoBirthsWithoutAViewOfThePauses: a worker that has not read what is
// paused, or could not for a while, takes no rows from their birth on.
func TestW9_NoBirthsWithoutAViewOfThePauses(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]time.Duration{"never read": 0, "not for a while": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, 0, quick(make(chan string, 100)))
				pauses := &failingPauses{Store: b.store}
				b.worker.Pauses = pauses
				pauses.fails.Store(before == 0)
				require.NoError(t, b.worker.Start(t.Context()))
				defer b.worker.Stop()
				synctest.Wait()
				pauses.fails.Store(true)
				time.Sleep(before)
				require.NoError(t, b.store.PauseSet(t.Context(), trigger.Pause{TenantID: "acme", BotID: "bot", By: "x"}))
				time.Sleep(before)
				b.emit(t, 5)
				_, err := b.tail(b.store, b.worker).Drain(t.Context(), "acme")
				require.NoError(t, err)
				for _, row := range b.rows(t) {
					require.Equal(t, trigger.StatePending, row.State)
				}
			})
		})
	}
}

// TestW11_NoBirthsUnderAPrimaryThatTheWorkerHasNotSeen: its time may be
// another.
func TestW11_NoBirthsUnderAPrimaryThatTheWorkerHasNotSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e epochs
		b := setup(t, 0, quick(make(chan string, 100)))
		b.worker.Epochs = &e
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait()
		e.n.Store(1)
		b.emit(t, 5)
		_, err := b.tail(b.store, b.worker).Drain(t.Context(), "acme")
		require.NoError(t, err)
		for _, row := range b.rows(t) {
			require.Equal(t, trigger.StatePending, row.State)
		}
		busy, _ := b.worker.InUse()
		require.Zero(t, busy)
	})
}

// TestW1_OnlyDueRowsOfKnownKindsAreBornClaimed: as a claim would take them (R2).
func TestW1_OnlyDueRowsOfKnownKindsAreBornClaimed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 0, quick(make(chan string, 100)))
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		synctest.Wait()
		row := func(f func(*trigger.Effect)) trigger.Effect {
			r := trigger.Effect{TenantID: "acme", Lane: trigger.LaneBot("bot"), Kind: trigger.KindLaunch, State: trigger.StatePending, NotBefore: time.Now()}
			f(&r)
			return r
		}
		rows := []trigger.Effect{
			row(func(*trigger.Effect) {}),
			row(func(r *trigger.Effect) { r.NotBefore = r.NotBefore.Add(time.Second) }),
			row(func(r *trigger.Effect) { r.Kind = "later" }),
			row(func(r *trigger.Effect) { r.State = trigger.StateHeld }),
			row(func(r *trigger.Effect) { r.State = trigger.StateDone }),
			row(func(r *trigger.Effect) { r.State, r.Kind = trigger.StateFailed, trigger.KindEvent }),
		}
		was := append([]trigger.Effect(nil), rows...)
		b.worker.Bear(rows)
		require.Equal(t, trigger.StateClaimed, rows[0].State)
		require.Equal(t, was[1:], rows[1:])
	})
}
