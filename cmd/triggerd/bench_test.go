package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A timeout that serve would refuse is refused by what measures it: by name, and
// before a database is looked for.
func TestBenchStoreTimeout(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bench", "bench-growth"} {
		for _, timeout := range []string{"0s", "-5s"} {
			r := command(t, name, "--mongo-uri", nobody, "--store-timeout="+timeout)
			require.Equal(t, exitFailed, r.code)
			require.Equal(t, "triggerd: --store-timeout: must be positive\n", r.err, name)
		}
	}
}
