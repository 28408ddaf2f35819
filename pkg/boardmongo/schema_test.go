package boardmongo_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
)

// Two versions of a schema: the newer one changes each index in another way.
var (
	schemaA = boardmongo.TestSchema{Version: 101, Indexes: []boardmongo.TestIndex{
		{Coll: "things", Name: "unique", Keys: bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}}, Unique: true},
		{Coll: "things", Name: "some", Keys: bson.D{{Key: "b", Value: 1}}, Unique: true, Partial: bson.D{{Key: "c", Value: bson.D{{Key: "$in", Value: bson.A{1, 2}}}}}},
		{Coll: "things", Name: "plain", Keys: bson.D{{Key: "c", Value: 1}}},
		{Coll: "things", Name: "ttl", Keys: bson.D{{Key: "at", Value: 1}}, TTL: time.Hour},
		{Coll: "others", Name: "same", Keys: bson.D{{Key: "b", Value: 1}}},
	}}
	schemaB = boardmongo.TestSchema{Version: 102, Indexes: []boardmongo.TestIndex{
		{Coll: "things", Name: "unique", Keys: bson.D{{Key: "a", Value: 1}}, Unique: true},
		{Coll: "things", Name: "some", Keys: bson.D{{Key: "b", Value: 1}}, Unique: true, Partial: bson.D{{Key: "c", Value: bson.D{{Key: "$in", Value: bson.A{1, 2, 3}}}}}},
		{Coll: "things", Name: "plain", Keys: bson.D{{Key: "c", Value: 1}, {Key: "_id", Value: 1}}, Partial: bson.D{{Key: "c", Value: bson.D{{Key: "$exists", Value: true}}}}},
		{Coll: "things", Name: "ttl", Keys: bson.D{{Key: "at", Value: 1}}, TTL: 2 * time.Hour},
		{Coll: "others", Name: "same", Keys: bson.D{{Key: "b", Value: 1}}},
		{Coll: "others", Name: "new", Keys: bson.D{{Key: "d", Value: 1}}},
	}}
)

// bare is a store on a database of the test's own, without any index.
func bare(t *testing.T, database string, mon *event.CommandMonitor) *boardmongo.Store {
	t.Helper()
	store, err := boardmongo.Connect(t.Context(), boardmongo.Params{URI: testdb.URI(t), Database: database, Monitor: mon})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, store.Close(ctx))
	})
	return store
}

// heard keeps an apply's notes.
type heard struct {
	mu    sync.Mutex
	notes []boardmongo.SchemaNote
	said  chan struct{}
}

func (h *heard) tell(n boardmongo.SchemaNote) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notes = append(h.notes, n)
	if h.said != nil && len(h.notes) == 1 {
		close(h.said)
	}
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprint(h.notes)
}

func silent(boardmongo.SchemaNote) {}

// statuses are those that are not "same", by collection and name.
func statuses(r *boardmongo.SchemaReport) map[string]boardmongo.SchemaStatus {
	out := make(map[string]boardmongo.SchemaStatus)
	for _, ix := range r.Indexes {
		if ix.Status != boardmongo.SchemaSame {
			out[ix.Collection+"."+ix.Index] = ix.Status
		}
	}
	return out
}

func makeIndex(t *testing.T, store *boardmongo.Store, coll, name string, keys bson.D, opts *options.IndexOptionsBuilder) {
	t.Helper()
	_, err := store.Database().Collection(coll).Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: keys, Options: opts.SetName(name)})
	require.NoError(t, err)
}

// What was done to the indexes by hand is found, and mended by an apply.
func TestSchemaCheck(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := bare(t, testdb.Name(t), nil)
	r, err := store.SchemaCheck(ctx)
	require.NoError(t, err)
	require.True(t, r.Differs(), "nothing is there")
	require.Zero(t, r.Newest())
	require.NoError(t, store.SchemaApply(ctx))
	r, err = store.SchemaCheck(ctx)
	require.NoError(t, err)
	require.Empty(t, statuses(r))
	require.False(t, r.Differs())
	require.Equal(t, boardmongo.SchemaVersion, r.Stored)

	drop := func(coll, name string) {
		require.NoError(t, store.Database().Collection(coll).Indexes().DropOne(ctx, name))
	}
	drop("cards", "pending_at")
	drop("board_events", "tenant_eid") // no longer unique
	makeIndex(t, store, "board_events", "tenant_eid", bson.D{{Key: "tenant_id", Value: 1}, {Key: "eid", Value: 1}}, options.Index())
	drop("lanes", "due_at") // another filter
	makeIndex(t, store, "lanes", "due_at", bson.D{{Key: "due_at", Value: 1}}, options.Index())
	drop("hook_deliveries", "at_ttl") // expires too soon
	makeIndex(t, store, "hook_deliveries", "at_ttl", bson.D{{Key: "at", Value: 1}}, options.Index().SetExpireAfterSeconds(60))
	drop("bulk_decisions", "created_at_ttl") // never expires
	makeIndex(t, store, "bulk_decisions", "created_at_ttl", bson.D{{Key: "created_at", Value: 1}}, options.Index())
	drop("api_tokens", "hash") // other keys
	makeIndex(t, store, "api_tokens", "hash", bson.D{{Key: "id", Value: 1}}, options.Index().SetUnique(true))
	drop("boards", "tenant_name") // sparse, like its stand-in
	makeIndex(t, store, "boards", "tenant_name", bson.D{{Key: "tenant_id", Value: 1}, {Key: "name", Value: 1}}, options.Index().SetUnique(true).SetSparse(true))
	require.NoError(t, store.Database().RunCommand(ctx, bson.D{
		{Key: "collMod", Value: "trigger_effects"}, {Key: "index", Value: bson.D{{Key: "name", Value: "held"}, {Key: "hidden", Value: true}}},
	}).Err())
	makeIndex(t, store, "cards", "mine", bson.D{{Key: "title", Value: 1}}, options.Index())

	r, err = store.SchemaCheck(ctx)
	require.NoError(t, err)
	require.True(t, r.Differs())
	require.False(t, r.Older())
	require.Equal(t, map[string]boardmongo.SchemaStatus{
		"cards.pending_at": boardmongo.SchemaMissing, "board_events.tenant_eid": boardmongo.SchemaChanged, "lanes.due_at": boardmongo.SchemaChanged,
		"hook_deliveries.at_ttl": boardmongo.SchemaChanged, "bulk_decisions.created_at_ttl": boardmongo.SchemaChanged,
		"api_tokens.hash": boardmongo.SchemaChanged, "boards.tenant_name": boardmongo.SchemaChanged,
		"trigger_effects.held": boardmongo.SchemaChanged, "cards.mine": boardmongo.SchemaExtra,
	}, statuses(r))

	var said heard
	require.NoError(t, store.SchemaApply(ctx, said.tell))
	require.Contains(t, said.String(), "hook_deliveries: changed at_ttl from (at; expires after 60 s) to (at; expires after 2592000 s)")
	r, err = store.SchemaCheck(ctx)
	require.NoError(t, err)
	require.Equal(t, map[string]boardmongo.SchemaStatus{"cards.mine": boardmongo.SchemaExtra}, statuses(r), "nobody else's index is touched, none is left over")
	require.False(t, r.Differs(), "an index more is no difference")
}

// An index that is changed is dropped and made anew; a unique one refuses
// duplicates all the while.
func TestSchemaChangeKeepsUnique(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	name := testdb.Name(t)
	other := bare(t, name, nil) // writes between the commands
	var mu sync.Mutex
	var drops []string
	store := bare(t, name, &event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
		if e.CommandName == "dropIndexes" || e.CommandName == "createIndexes" {
			mu.Lock()
			defer mu.Unlock()
			drops = append(drops, e.CommandName)
			assertUnique(ctx, t, other)
		}
	}})
	require.NoError(t, store.SchemaApplyTest(ctx, schemaA, silent))
	seedUnique(t, other)
	drops = nil
	var said heard
	require.NoError(t, store.SchemaApplyTest(ctx, schemaB, said.tell))
	require.Contains(t, drops, "dropIndexes")
	r, err := store.SchemaCheckTest(ctx, schemaB)
	require.NoError(t, err)
	require.Empty(t, statuses(r))
	require.Equal(t, 102, r.Stored)
	for _, ix := range []string{"unique", "some", "plain", "ttl"} {
		require.Contains(t, said.String(), "changed "+ix)
	}
	drops = nil
	require.NoError(t, store.SchemaApplyTest(ctx, schemaB, silent))
	require.Empty(t, drops, "there is nothing more to do")
}

func seedUnique(t *testing.T, store *boardmongo.Store) {
	t.Helper()
	_, err := store.Database().Collection("things").InsertOne(t.Context(), bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}, {Key: "c", Value: 1}})
	require.NoError(t, err)
}

// assertUnique inserts what both versions of each unique index refuse.
func assertUnique(ctx context.Context, t *testing.T, store *boardmongo.Store) {
	t.Helper()
	things := store.Database().Collection("things")
	if n, err := things.CountDocuments(ctx, bson.D{}); err != nil || n == 0 {
		return // the first apply, before the seed
	}
	_, err := things.InsertOne(ctx, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}})
	assert.True(t, mongo.IsDuplicateKeyError(err), "unique: %v", err)
	_, err = things.InsertOne(ctx, bson.D{{Key: "a", Value: 9}, {Key: "b", Value: 1}, {Key: "c", Value: 2}})
	assert.True(t, mongo.IsDuplicateKeyError(err), "some: %v", err)
}

// Wherever a process dies, what is unique stays so, an older version undoes
// nothing, and the next apply ends what was begun.
func TestSchemaChangeCrashes(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		name := testdb.Name(t)
		other := bare(t, name, nil)
		require.NoError(t, other.SchemaApplyTest(t.Context(), schemaA, silent))
		seedUnique(t, other)
		ctx, crash := context.WithCancel(t.Context())
		var mu sync.Mutex
		sent, last := 0, ""
		store := bare(t, name, &event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			mu.Lock()
			defer mu.Unlock()
			if e.CommandName == "hello" || e.CommandName == "delete" {
				return
			}
			if sent++; sent == n+1 { // the first one was of Connect
				last = e.CommandName
				crash()
			}
		}})
		err := store.SchemaApplyTest(ctx, schemaB, silent)
		crash()
		if err == nil {
			require.Greater(t, n, 12, "there are more steps than that")
			return
		}
		require.ErrorIs(t, err, context.Canceled, "after command %d, %s", n, last)
		assertUnique(t.Context(), t, other)
		before, err := other.SchemaCheckTest(t.Context(), schemaB)
		require.NoError(t, err)
		require.True(t, before.Differs(), "after command %d, %s: an apply that did not end is a difference", n, last)
		if before.Begun == schemaB.Version {
			require.NoError(t, other.SchemaApplyTest(t.Context(), schemaA, silent))
			after, err := other.SchemaCheckTest(t.Context(), schemaB)
			require.NoError(t, err)
			require.Equal(t, before, after, "the older version changed something after command %d, %s", n, last)
		}
		require.NoError(t, other.SchemaApplyTest(t.Context(), schemaB, silent), "after command %d, %s", n, last)
		assertUnique(t.Context(), t, other)
		after, err := other.SchemaCheckTest(t.Context(), schemaB)
		require.NoError(t, err)
		require.Empty(t, statuses(after), "after command %d, %s", n, last)
		require.False(t, after.Differs())
	}
}

// An older version leaves all of a newer one's schema as it is, and says so.
func TestSchemaOlderVersionUndoesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := bare(t, testdb.Name(t), nil)
	require.NoError(t, store.SchemaApplyTest(ctx, schemaA, silent))
	require.NoError(t, store.SchemaApplyTest(ctx, schemaB, silent))
	var said heard
	require.NoError(t, store.SchemaApplyTest(ctx, schemaA, said.tell))
	require.Len(t, said.notes, 4)
	for i, name := range []string{"unique", "some", "plain", "ttl"} {
		require.True(t, said.notes[i].Warn)
		require.Contains(t, said.notes[i].Text, "index "+name+" of things is changed; left as it is: the schema is of version 102, this binary's of 101")
	}
	r, err := store.SchemaCheckTest(ctx, schemaB)
	require.NoError(t, err)
	require.Empty(t, statuses(r))
	require.Equal(t, 102, r.Stored)

	r, err = store.SchemaCheckTest(ctx, schemaA)
	require.NoError(t, err)
	require.True(t, r.Older())
	require.False(t, r.Differs(), "what a newer version changed is no difference")
	require.NoError(t, store.Database().Collection("others").Indexes().DropOne(ctx, "same"))
	r, err = store.SchemaCheckTest(ctx, schemaA)
	require.NoError(t, err)
	require.True(t, r.Differs(), "what is missing is")
	require.NoError(t, store.SchemaApplyTest(ctx, schemaA, silent))
	r, err = store.SchemaCheckTest(ctx, schemaB)
	require.NoError(t, err)
	require.Equal(t, map[string]boardmongo.SchemaStatus{"others.same": boardmongo.SchemaMissing}, statuses(r), "that is the newer version's to make")
}

// Many replicas of both versions begin at once: each index is changed once.
func TestSchemaChangeByManyAtOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	name := testdb.Name(t)
	other := bare(t, name, nil)
	require.NoError(t, other.SchemaApplyTest(ctx, schemaA, silent))
	seedUnique(t, other)
	var mu sync.Mutex
	drops := make(map[string]int)
	mon := &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "dropIndexes" {
			mu.Lock()
			defer mu.Unlock()
			drops[e.Command.Lookup("index").StringValue()]++
		}
	}, Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
		if e.CommandName == "dropIndexes" {
			assertUnique(ctx, t, other)
		}
	}}
	errs := make(chan error, 6)
	for i := range cap(errs) {
		store, sc := bare(t, name, mon), schemaB
		if i%3 == 2 {
			sc = schemaA
		}
		go func() { errs <- store.SchemaApplyTest(ctx, sc, silent) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	r, err := other.SchemaCheckTest(ctx, schemaB)
	require.NoError(t, err)
	require.Empty(t, statuses(r))
	for name, n := range drops {
		require.Equal(t, 1, n, "%s was dropped", name)
	}
	require.Len(t, drops, 6, "three indexes, and what stood in for them: %v", drops)
}

// The lock of a process that died is waited for until its lease is over.
func TestSchemaLockOfADeadProcess(t *testing.T) {
	t.Parallel()
	store := bare(t, testdb.Name(t), nil)
	locks := store.Database().Collection("schema")
	lock := bson.D{{Key: "_id", Value: boardmongo.SchemaLock}}
	until := store.Now().Add(1500 * time.Millisecond)
	_, err := locks.InsertOne(t.Context(), append(lock, bson.E{Key: "holder", Value: "dead"}, bson.E{Key: "until", Value: until}))
	require.NoError(t, err)
	said := heard{said: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- store.SchemaApplyTest(t.Context(), schemaA, said.tell) }()
	<-said.said
	require.Contains(t, said.String(), "waiting")
	require.NoError(t, <-done)
	require.False(t, store.Now().Before(until))
	n, err := locks.CountDocuments(t.Context(), lock)
	require.NoError(t, err)
	require.Zero(t, n, "the lock is given back")
}

// Who has lost the lock drops nothing.
func TestSchemaLostLockDropsNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	name := testdb.Name(t)
	other := bare(t, name, nil)
	require.NoError(t, other.SchemaApplyTest(ctx, schemaA, silent))
	var once sync.Once
	var dropped []string
	store := bare(t, name, &event.CommandMonitor{Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
		switch e.CommandName {
		case "createIndexes":
			once.Do(func() {
				_, err := other.Database().Collection("schema").UpdateOne(ctx, bson.D{{Key: "_id", Value: boardmongo.SchemaLock}},
					bson.D{{Key: "$set", Value: bson.D{{Key: "holder", Value: "another"}}}})
				assert.NoError(t, err)
			})
		case "dropIndexes":
			dropped = append(dropped, e.CommandName)
		}
	}})
	err := store.SchemaApplyTest(ctx, schemaB, silent)
	require.ErrorContains(t, err, "lock was lost")
	require.Empty(t, dropped)
	n, err := other.Database().Collection("schema").CountDocuments(ctx, bson.D{{Key: "holder", Value: "another"}})
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the lock stays its holder's")
}

// What the new index refuses leaves the old one in its place, and is named.
func TestSchemaChangeThatIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := bare(t, testdb.Name(t), nil)
	require.NoError(t, store.SchemaApplyTest(ctx, schemaA, silent))
	for b := range 2 { // the newer version's index is unique by a alone
		_, err := store.Database().Collection("things").InsertOne(ctx, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: b}})
		require.NoError(t, err)
	}
	require.ErrorContains(t, store.SchemaApplyTest(ctx, schemaB, silent), "change index unique of things")
	r, err := store.SchemaCheckTest(ctx, schemaA)
	require.NoError(t, err)
	require.NotContains(t, statuses(r), "things.unique")

	t.Log("neither is it dropped if the new one is there under another name")
	_, err = store.Database().Collection("things").DeleteMany(ctx, bson.D{})
	require.NoError(t, err)
	makeIndex(t, store, "things", "a_1", bson.D{{Key: "a", Value: 1}}, options.Index().SetUnique(true))
	require.ErrorContains(t, store.SchemaApplyTest(ctx, schemaB, silent), "index a_1 is the same; drop it")
	r, err = store.SchemaCheckTest(ctx, schemaA)
	require.NoError(t, err)
	require.NotContains(t, statuses(r), "things.unique")
}

// The indexes of each version. An index that is changed, added or taken away
// needs a version of its own, or replicas would undo each other's changes:
// count schemaVersion up, and add a line here. Never change one.
var schemaFingerprints = map[int]string{
	4: "5975e90d2071647a",
	5: "1ef22c22fbdb8937",
	6: "fec5f9107eb33a8e",
}

func TestSchemaVersionGrowsWithTheIndexes(t *testing.T) {
	t.Parallel()
	require.Equal(t, schemaFingerprints[boardmongo.SchemaVersion], boardmongo.SchemaFingerprint(),
		"the indexes changed: count schemaVersion up if a version with the old ones was in use, and add the fingerprint")
}

// Queries name these indexes, also those of the older version beside. While an
// index is changed there is a moment without it, in which such queries fail:
// one that is to change needs another name.
func TestSchemaHintedIndexesStay(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]string{
		"dirty_drain_after":   `drain_after; where {dirty: true}`,
		"paused":              `paused, paused_by; where {paused: {$exists: true}}`,
		"live_tenant_lane":    `tenant_id, lane, state, not_before; where {state: {$in: ["pending", "claimed"]}}`,
		"parked_tenant_state": `tenant_id, state, _id; where {state: {$in: ["failed", "reconcile", "held", "discarded"]}}`,
	}, boardmongo.HintedIndexes())
}
