package tracker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func anyPosition(t *rapid.T, label string) string {
	p := rapid.StringMatching(`[0-9A-Za-z]{0,12}[1-9A-Za-z]`).Draw(t, label)
	require.True(t, tracker.ValidPosition(p), p)
	return p
}

// Between any two positions there are others, as many as are asked for, in
// order, and short.
func TestPositionsBetween(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyPosition(t, "a"), anyPosition(t, "b")
		n := rapid.IntRange(1, 500).Draw(t, "n")
		if a > b {
			a, b = b, a
		}
		switch rapid.IntRange(0, 3).Draw(t, "ends") {
		case 0:
			a = ""
		case 1:
			b = ""
		}
		got, ok := tracker.PositionsBetween(a, b, n)
		if a == b {
			require.False(t, ok, "there is nothing between equal ones")
			return
		}
		require.True(t, ok)
		require.Len(t, got, n)
		for i, p := range got {
			require.True(t, tracker.ValidPosition(p), p)
			require.Greater(t, p, a)
			require.True(t, b == "" || p < b, "%s is not before %s", p, b)
			require.True(t, i == 0 || got[i-1] < p, "%s before %s", got[max(i-1, 0)], p)
			require.LessOrEqual(t, len(p), max(len(a), len(b), 9)+5)
		}
	})
}

// Any sequence of insertions keeps the order that was asked for, until there
// is no room; and there is room for many at one place.
func TestPositionsInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var column []string
		for range rapid.IntRange(1, 200).Draw(t, "insertions") {
			at := rapid.IntRange(0, len(column)).Draw(t, "at")
			a, b := "", ""
			if at > 0 {
				a = column[at-1]
			}
			if at < len(column) {
				b = column[at]
			}
			got, ok := tracker.PositionsBetween(a, b, 1)
			require.True(t, ok, "%d cards, between %s and %s", len(column), a, b)
			column = slices.Insert(column, at, got[0])
			require.True(t, slices.IsSorted(column))
		}
	})
}

func TestPositionsAtOnePlaceEnd(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(a, b, p string) (string, string){
		"always after the same card":  func(a, _, p string) (string, string) { return a, p },
		"always before the same card": func(_, b, p string) (string, string) { return p, b },
	} {
		now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		a, b := tracker.PositionAt(now), tracker.PositionAt(now.Add(time.Second))
		n := 0
		for {
			got, ok := tracker.PositionsBetween(a, b, 1)
			if !ok {
				break
			}
			require.True(t, tracker.ValidPosition(got[0]), got[0])
			a, b = next(a, b, got[0])
			n++
		}
		require.Greater(t, n, 280, name)
	}
}

// At the ends positions don't grow, however many cards come there, and a later
// card's is below an earlier one's.
func TestPositionsAtTheEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	first := tracker.PositionAt(now)
	top, bottom := first, first
	for range 10_000 {
		up, ok := tracker.PositionsBetween("", top, 1)
		require.True(t, ok)
		down, ok := tracker.PositionsBetween(bottom, "", 1)
		require.True(t, ok)
		require.Less(t, up[0], top)
		require.Greater(t, down[0], bottom)
		top, bottom = up[0], down[0]
		require.Len(t, top, len(first))
		require.Len(t, bottom, len(first))
	}
	require.Equal(t, bottom, tracker.PositionAt(now.Add(10*time.Second)), "they count in milliseconds")
	require.Less(t, tracker.PositionAt(now), tracker.PositionAt(now.Add(time.Millisecond)))
	require.True(t, tracker.ValidPosition(tracker.PositionAt(time.Time{})))
	require.True(t, tracker.ValidPosition(tracker.PositionAt(time.Date(8000, 1, 1, 0, 0, 0, 0, time.UTC))))
	last, ok := tracker.PositionsBetween("zzzzzzzzz", "", 3)
	require.True(t, ok, "even past the last count")
	require.True(t, slices.IsSorted(last))
	for _, bad := range []string{"", "a0", "a-b", "é", string(make([]byte, 65))} {
		require.False(t, tracker.ValidPosition(bad))
		if bad != "" {
			_, ok := tracker.PositionsBetween(bad, "", 1)
			require.False(t, ok)
		}
	}
}
