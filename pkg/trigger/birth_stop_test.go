package trigger

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestW10_AStopDoesNotWaitForRoom: rows that wait for room are let go at once
// when the worker stops, before the tail does.
func TestW10_AStopDoesNotWaitForRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lane := quickLane()
		s.queued = queuedMax
		loop, stop := context.WithCancel(t.Context())
		w := &EffectWorker{Name: "w", Clock: wallClock{}, Epochs: noEpochs{}, slots: s}
		run := &workerRun{loop: loop, attempts: t.Context()}
		run.pauses.Store(&pauseSet{read: time.Now()})
		w.running.Store(run)
		rows := rowsOf(lane, 100)
		for i := range rows {
			rows[i].State = StatePending
		}
		time.AfterFunc(time.Millisecond, func() {
			stop()
			run.close()
		})
		began := time.Now()
		b, _ := w.bear(t.Context(), rows)
		require.Equal(t, time.Millisecond, time.Since(began))
		require.NotNil(t, b)
		b.over()
	})
}

type wallClock struct{}

func (wallClock) Now() time.Time { return time.Now() }

type noEpochs struct{}

func (noEpochs) Epoch() int64 { return 0 }
