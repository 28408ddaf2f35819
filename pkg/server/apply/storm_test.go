package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestMaxPerMinute(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	require.Nil(t, b.subscription(t, "implement").MaxPerMinute)
	limited := edit(t, fullFile, "rank: 10", "rank: 10\n        max_per_minute: 7")
	r := b.mustApply(t, limited)
	require.Equal(t, []string{"max_per_minute: 100 → 7"}, line(t, r, KindSubscription, "implement").Details)
	s := b.subscription(t, "implement")
	require.Equal(t, 7, *s.MaxPerMinute)
	require.False(t, b.mustApply(t, limited).Changed())
	_, err := b.apply(t, edit(t, fullFile, "rank: 10", "max_per_minute: -1"))
	requireFaults(t, err, fault{27, "tenants[0].subscriptions[0].max_per_minute", "0 to 10000"})

	// No file ends a pause, nor takes what is behind it.
	s.Paused, s.PausedBy, s.PausedWhy = true, trigger.StormGuard, "too much"
	s.Guard = trigger.Guard{FromSeq: 3, HeldFrom: 9}
	s.Revision++
	require.NoError(t, b.SubscriptionSave(t.Context(), &s))
	b.mustApply(t, edit(t, fullFile, "rank: 10", "rank: 11\n        max_per_minute: 0"))
	got := b.subscription(t, "implement")
	require.Zero(t, *got.MaxPerMinute)
	require.True(t, got.Paused)
	require.Equal(t, "too much", got.PausedWhy)
	require.Equal(t, s.Guard, got.Guard)
}
