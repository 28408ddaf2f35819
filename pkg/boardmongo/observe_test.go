package boardmongo_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/internal/testdb"
)

// The store tells of each command, by name, and how it went; and so does the
// monitor that it was given, of the same ones.
func TestObserveCommands(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	own, given, started := map[string]int{}, map[string]int{}, 0
	count := func(into map[string]int, name string, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if !ok {
			name += " failed"
		}
		into[name]++
	}
	store := bare(t, testdb.Name(t), &event.CommandMonitor{
		Started: func(context.Context, *event.CommandStartedEvent) {
			mu.Lock()
			defer mu.Unlock()
			started++
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) { count(given, e.CommandName, true) },
		Failed:    func(_ context.Context, e *event.CommandFailedEvent) { count(given, e.CommandName, false) },
	})
	run := func() {
		_, err := store.TenantIDs(t.Context(), "", 10)
		require.NoError(t, err)
		require.NoError(t, store.HeadDefer(t.Context(), "nobody", time.Now()))
		require.Error(t, store.Database().RunCommand(t.Context(), bson.D{{Key: "noSuchCommand", Value: 1}}).Err())
	}
	run() // nobody has asked to be told
	mu.Lock()
	clear(given)
	started = 0
	mu.Unlock()
	store.ObserveCommands(func(name string, took time.Duration, ok bool) {
		if took > 0 {
			count(own, name, ok)
		}
	})
	run()
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]int{"find": 1, "update": 1, "noSuchCommand failed": 1}, own)
	require.Equal(t, own, given)
	require.Equal(t, 3, started)
}
