package main

import (
	"os"
	"path/filepath"
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

// A run that can't be made leaves alone the file that its profile would go to.
func TestBenchProfileIsNotEmptiedInVain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "cpu")
	require.NoError(t, os.WriteFile(file, []byte("the one before"), 0o600))
	r := command(t, "bench", "--store", "memory", "--slices", "0", "--cpu-profile", file)
	require.Contains(t, r.err, "--slices")
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "the one before", string(kept))
}
