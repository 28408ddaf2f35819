package startstop_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/startstop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStopWaitsForRun(t *testing.T) {
	t.Parallel()
	var s startstop.Service
	var ended atomic.Bool
	require.NoError(t, s.Start(t.Context(), func(ctx context.Context) { <-ctx.Done(); ended.Store(true) }))
	require.ErrorIs(t, s.Start(t.Context(), func(context.Context) {}), startstop.ErrRunning)
	s.Stop()
	require.True(t, ended.Load())
	s.Stop()
}

func TestStartStopFromManyGoroutines(t *testing.T) {
	t.Parallel()
	var s startstop.Service
	var running atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				_ = s.Start(context.Background(), func(ctx context.Context) {
					if n := running.Add(1); n != 1 {
						t.Errorf("%d running at once", n)
					}
					<-ctx.Done()
					running.Add(-1)
				})
				s.Stop()
			}
		})
	}
	wg.Wait()
	s.Stop()
	require.Zero(t, running.Load())
}
