package boardmongo_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Of those who take one name at once one has it and the others conflict,
// however the server resolves it.
func TestOneNameAtOnce(t *testing.T) {
	t.Parallel()
	store := openStore(t, &commands{})
	for round := range 20 {
		var wg sync.WaitGroup
		errs := make([]error, 3)
		for i := range errs {
			wg.Go(func() {
				errs[i] = store.BotSave(t.Context(), &trigger.Bot{
					TenantID: "acme", ID: fmt.Sprint(round, "-", i), Name: fmt.Sprint("bot", round), Revision: 1,
				})
			})
		}
		wg.Wait()
		taken := 0
		for _, err := range errs {
			if err == nil {
				taken++
				continue
			}
			require.ErrorIs(t, err, tracker.ErrConflict)
		}
		require.Equal(t, 1, taken)
	}
}

// A save whose caller has left is not told as made.
func TestSaveOfACallerThatLeft(t *testing.T) {
	t.Parallel()
	store := openStore(t, &commands{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: "b", Name: "b", Revision: 1}))
	_, err := store.BotGet(t.Context(), "acme", "b")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}
