package boardmongo_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/internal/explain"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
)

// command is one command as it went to the server.
type command struct {
	name string
	coll string
	body bson.D // explain.Body
}

// commands keeps what goes to the server.
type commands struct {
	mu   sync.Mutex
	sent []command
}

func newCommands() *commands { return &commands{} }

func (c *commands) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		cmd := command{name: e.CommandName, body: explain.Body(e)}
		cmd.coll, _ = e.Command.Lookup(e.CommandName).StringValueOK()
		if e.CommandName == "getMore" {
			cmd.coll, _ = e.Command.Lookup("collection").StringValueOK()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent = append(c.sent, cmd)
	}}
}

// reset forgets all.
func (c *commands) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = nil
}

func (c *commands) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent)
}

// finds returns the commands that find documents.
func (c *commands) finds() (out []command) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range c.sent {
		if cmd.body != nil {
			out = append(out, cmd)
		}
	}
	return out
}

// byKind counts what was sent, by command and collection: "find cards".
func (c *commands) byKind() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := map[string]int{}
	for _, cmd := range c.sent {
		n[strings.TrimSpace(cmd.name+" "+cmd.coll)]++
	}
	return n
}

// String lists how many there were of each, "find cards 3".
func (c *commands) String() string {
	var out []string
	for kind, n := range c.byKind() {
		out = append(out, fmt.Sprintf("%s %d", kind, n))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// openStore opens a store that c listens to, on a database of the test's own.
func openStore(t *testing.T, c *commands) *boardmongo.Store {
	t.Helper()
	return openStoreAt(t, testdb.URI(t), testdb.Name(t), c)
}

func openStoreAt(t *testing.T, uri, database string, c *commands) *boardmongo.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: uri, Database: database, Monitor: c.monitor()})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, store.Close(ctx))
	})
	require.NoError(t, store.SchemaApply(ctx))
	return store
}

// stored is a value as the store keeps it.
type stored[T any] struct {
	Key string `bson:"_id"`
	V   T      `bson:",inline"`
}

func keyed[T any](key string, v T) stored[T] { return stored[T]{key, v} }

// insertAll inserts documents past the store, for tests that need many.
func insertAll(t *testing.T, store *boardmongo.Store, coll string, docs []any) {
	t.Helper()
	for part := range slices.Chunk(docs, 5000) {
		_, err := store.Database().Collection(coll).InsertMany(t.Context(), part)
		require.NoError(t, err)
	}
}
