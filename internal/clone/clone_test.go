package clone_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/clone"
)

type inner struct{ L []string }

type outer struct {
	T time.Time
	P *inner
	S []inner
	M map[string]string
	E []string
	N int64
}

func TestOfSharesNothingAndKeepsMilliseconds(t *testing.T) {
	t.Parallel()
	in := outer{
		T: time.Date(2026, 1, 2, 3, 4, 5, 678_999_999, time.FixedZone("x", 3600)),
		P: &inner{L: []string{"a"}}, S: []inner{{L: []string{"b"}}},
		M: map[string]string{"k": "v"}, E: []string{}, N: 1<<53 + 1,
	}
	out := clone.Of(in)
	in.P.L[0], in.S[0].L[0], in.M["k"] = "x", "x", "x"
	require.Equal(t, outer{
		T: time.Date(2026, 1, 2, 2, 4, 5, 678_000_000, time.UTC),
		P: &inner{L: []string{"a"}}, S: []inner{{L: []string{"b"}}},
		M: map[string]string{"k": "v"}, N: 1<<53 + 1,
	}, out)
	require.Zero(t, clone.Of(outer{}))
}
