package trigger_test

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestW1_ClaimIDIsFreshPerClaimNotPerWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The first attempt is paused past its lease, and ends while the same
		// worker is at the second one.
		b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if r.Attempt == 1 {
				time.Sleep(150 * time.Second)
				return trigger.Launched{RunID: "stale"}, nil
			}
			time.Sleep(80 * time.Second)
			return trigger.Launched{RunID: "fresh"}, nil
		})
		require.NoError(t, b.worker.Start(t.Context()))
		s := <-b.settles
		b.worker.Stop()
		require.Equal(t, "fresh", s.RunID)
		require.Equal(t, "fresh", b.rows(t)[0].RunID)
		require.Equal(t, 2, b.rows(t)[0].Attempts)
		require.Empty(t, b.settles)
		require.Equal(t, 1, bytes.Count(b.log.Bytes(), []byte("effect settle refused, claim no longer held")))
	})
}

func TestLanes_RetryIsMadeWhenItIsDueNotWhenTheLeaseWouldHaveEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		down := true
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			time.Sleep(time.Second) // the lane is put off to the lease's end meanwhile
			if down {
				down = false
				return trigger.Launched{}, &trigger.LaunchError{Message: "status 503", RetryAfter: 20 * time.Second}
			}
			return trigger.Launched{}, nil
		})
		require.NoError(t, b.worker.Start(t.Context()))
		retry := <-b.settles
		lanes, err := b.store.LanesDue(t.Context(), retry.NotBefore, 10)
		require.NoError(t, err)
		require.Len(t, lanes, 1, "due no later than the row")
		done := <-b.settles
		b.worker.Stop()
		require.Equal(t, trigger.StateDone, done.To)
		require.WithinDuration(t, retry.NotBefore, done.At, 2*time.Second)
	})
}

func TestW5_RetryAfterIsCapped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			return trigger.Launched{}, &trigger.LaunchError{Message: "status 429", RetryAfter: 10_000 * time.Hour}
		})
		require.NoError(t, b.worker.Start(t.Context()))
		s := <-b.settles
		b.worker.Stop()
		require.Equal(t, 24*time.Hour, s.NotBefore.Sub(s.At))
	})
}
