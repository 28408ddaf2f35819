package trigger_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestW3_RowsClaimedAheadBeginSoonOrAreHandedBack: however many rows of a lane
// wait for a slot, and however slow its bot becomes, none begins long after its
// claim: neither with a part of its attempt's time only, nor with its lease gone.
func TestW3_RowsClaimedAheadBeginSoonOrAreHandedBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		lease, deadline time.Duration
		takes, most     time.Duration
	}{
		{"as configured by default", 0, 0, 1500 * time.Millisecond, 2100 * time.Millisecond},
		{"short leases", 3 * time.Second, 2 * time.Second, 700 * time.Millisecond, 1100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var b *bundle
				var launches, late atomic.Int64
				b = setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
					if !strings.Contains(r.URL, "fine") || launches.Add(1) <= 20 {
						return trigger.Launched{}, nil
					}
					row, err := b.store.EffectGet(context.WithoutCancel(ctx), "loud", r.Key)
					if err != nil || time.Since(row.ClaimedAt) > c.most || r.Attempt != 1 {
						late.Add(1)
					}
					time.Sleep(c.takes)
					return trigger.Launched{}, nil
				})
				b.worker.Slots, b.worker.Grace, b.worker.Lease, b.worker.AttemptDeadline = 8, time.Millisecond, c.lease, c.deadline
				b.lane(t, "loud", "fine", 150)
				require.NoError(t, b.worker.Start(t.Context()))
				defer b.worker.Stop()
				for range 151 {
					require.Equal(t, trigger.StateDone, b.ended(t).To)
				}
				require.Zero(t, late.Load(), "begun late after their claims, or once more")
			})
		})
	}
}

// ended returns the next settle that ends its row.
func (b *bundle) ended(t *testing.T) trigger.Settle {
	t.Helper()
	for {
		s := <-b.settles
		if s.To != trigger.StatePending {
			return s
		}
		require.True(t, s.HandBack)
	}
}

// TestW9_OnlyBotsKnownToBeFastHaveRowsClaimedAhead: rows of a bot that takes
// longer, that was not asked often enough, or that fails, never wait under
// their lease.
func TestW9_OnlyBotsKnownToBeFastHaveRowsClaimedAhead(t *testing.T) {
	t.Parallel()
	const share = 3 // 3/8 of 8 slots
	for _, c := range []struct {
		name  string
		takes time.Duration
		fails int64
		rows  int
		ahead bool
	}{
		{"fast", 45 * time.Millisecond, 0, 60, true},
		{"slow", 55 * time.Millisecond, 0, 60, false},
		{"fast, and failed the last time", 10 * time.Millisecond, 1 << 40, 60, false},
		{"not known", 10 * time.Millisecond, 0, 8, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var launches atomic.Int64
				b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
					if !strings.Contains(r.URL, "loud") {
						return trigger.Launched{}, nil
					}
					time.Sleep(c.takes)
					if launches.Add(1) <= c.fails {
						return trigger.Launched{}, &trigger.LaunchError{Message: "status 503"}
					}
					return trigger.Launched{}, nil
				})
				b.worker.Slots, b.worker.Grace = 8, time.Millisecond
				outbox := &counted{EffectOutbox: b.store}
				b.worker.Outbox = outbox
				b.lane(t, "loud", "loud", c.rows)
				require.NoError(t, b.worker.Start(t.Context()))
				defer b.worker.Stop()
				time.Sleep(5 * time.Second)
				if c.ahead {
					require.Greater(t, outbox.claimLimit.Load(), int64(share))
				} else {
					require.LessOrEqual(t, outbox.claimLimit.Load(), int64(share))
				}
			})
		})
	}
}
