package boardmongo_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/trigger"
	"github.com/triggerd/triggerd/pkg/trigger/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) trigger.Store { return testdb.Store(t) })
}

// Each run takes a good second here; boardmem's twin of this test makes many.
func TestProperty(t *testing.T) {
	t.Parallel()
	storetest.Property(t, func(t *testing.T) trigger.Store { return testdb.Store(t) }, storetest.PropertyParams{Checks: 10})
}

func TestSchemaApplyIsIdempotentAndConcurrent(t *testing.T) {
	t.Parallel()
	store := testdb.Store(t)
	errs := make(chan error, 3)
	for range cap(errs) {
		go func() { errs <- store.SchemaApply(t.Context()) }()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	cur, err := store.Database().Collection("board_events").Indexes().List(t.Context())
	require.NoError(t, err)
	var indexes []struct {
		Name   string `bson:"name"`
		Unique bool   `bson:"unique"`
	}
	require.NoError(t, cur.All(t.Context(), &indexes))
	unique := map[string]bool{}
	for _, ix := range indexes {
		unique[ix.Name] = ix.Unique
	}
	require.True(t, unique["tenant_seq"])
	require.True(t, unique["tenant_eid"])
	var version struct {
		Version int `bson:"version"`
	}
	require.NoError(t, store.Database().Collection("schema").FindOne(t.Context(), bson.D{{Key: "_id", Value: "indexes"}}).Decode(&version))
	require.Positive(t, version.Version)
}

// A standalone that has a write in memory alone does not acknowledge it.
func TestWritesAreAcknowledgedFromTheJournal(t *testing.T) {
	t.Parallel()
	var writes int
	store := bare(t, testdb.Name(t), &event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "insert" || e.CommandName == "update" || e.CommandName == "findAndModify" {
			writes++
			concern := e.Command.Lookup("writeConcern")
			assert.Equal(t, "majority", concern.Document().Lookup("w").StringValue(), e.CommandName)
			assert.True(t, concern.Document().Lookup("j").Boolean(), e.CommandName)
		}
	}})
	require.NoError(t, store.SchemaApply(t.Context()))
	require.NoError(t, store.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Name: "Acme", Revision: 1}))
	require.GreaterOrEqual(t, writes, 3, "the schema's and the tenant's")
}

func TestConnectNamesTheHostAndNotThePassword(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		"mongodb://user:s3cr%21et@127.0.0.1:1/?serverSelectionTimeoutMS=100",
		"mongodb://user:s3cr%21et@127.0.0.1:1/?authMechanism=PLAIN",
		"mongodb://user:s3cr%21et@127.0.0.1:1,127.0.0.1:2/?nonsense=1",
		"mongodb://user:s3cr%21et@:1:2:3/",
		"mongodb://user:s3cr!et%zz@127.0.0.1:1/",
		"s3cr%21et@127.0.0.1:1",
	} {
		began := time.Now()
		_, err := boardmongo.Connect(context.Background(), boardmongo.Params{URI: uri, Timeout: 300 * time.Millisecond})
		require.Error(t, err, uri)
		require.Less(t, time.Since(began), 10*time.Second)
		require.NotContains(t, err.Error(), "s3cr", uri)
		if u, perr := url.Parse(uri); perr == nil && strings.HasSuffix(uri, "100") {
			require.Contains(t, err.Error(), u.Host)
		}
	}
}

// A duplicate key alone is no proof that the other replica's row will stay: it
// may have been written under a primary that is gone (T1).
func TestT1_DuplicateThatDoesNotStay(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	other := testdb.Store(t)
	row := trigger.Effect{ID: "acme/000000000001|s1", TenantID: "acme", Kind: trigger.KindLaunch, Lane: "bot:b", State: trigger.StatePending, EventSeq: 1}
	isInsert := func(name string, cmd bson.Raw) bool {
		coll, _ := cmd.Lookup("insert").StringValueOK()
		return name == "insert" && coll == "trigger_effects"
	}
	inserts := make(map[int64]bool)
	store, err := boardmongo.Connect(ctx, boardmongo.Params{
		URI: testdb.URI(t), Database: other.Database().Name(), Monitor: &event.CommandMonitor{
			Started: func(_ context.Context, e *event.CommandStartedEvent) {
				if isInsert(e.CommandName, e.Command) {
					inserts[e.RequestID] = true
					_, err := other.EffectMaterialize(context.WithoutCancel(ctx), "acme", []trigger.Effect{row})
					assert.NoError(t, err)
				}
			},
			Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
				if inserts[e.RequestID] {
					_, err := other.Database().Collection("trigger_effects").DeleteOne(context.WithoutCancel(ctx), bson.D{{Key: "_id", Value: row.ID}})
					assert.NoError(t, err)
				}
			},
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close(context.WithoutCancel(ctx))) }()
	_, err = store.EffectMaterialize(ctx, "acme", []trigger.Effect{row})
	require.Error(t, err, "the cursor must not pass the event")
	require.Len(t, inserts, 1)
}

// An event that can't be decoded is set aside, and its tenant goes on (T5).
func TestT5_UndecodableEventIsSetAside(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := testdb.Store(t)
	_, err := store.HeadLift(ctx, "acme")
	require.NoError(t, err)
	_, err = store.SeqAllocate(ctx, "acme", 2, false)
	require.NoError(t, err)
	_, err = store.Database().Collection("board_events").InsertOne(ctx, bson.D{
		{Key: "_id", Value: "acme/000000000001"},
		{Key: "tenant_id", Value: "acme"},
		{Key: "seq", Value: int64(1)},
		{Key: "eid", Value: "board:x"},
		{Key: "kind", Value: bson.D{{Key: "not", Value: "a text"}}},
	})
	require.NoError(t, err)
	require.NoError(t, store.EventFillVoids(ctx, "acme", []int64{2}))
	tail := &trigger.Tail{
		Cards: store, Log: store, Heads: store, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store,
	}
	_, err = tail.Drain(ctx, "acme")
	require.NoError(t, err)
	head, err := store.HeadGet(ctx, "acme")
	require.NoError(t, err)
	require.EqualValues(t, 2, head.Cursor)
	row, err := store.EffectGet(ctx, "acme", trigger.PoisonID("acme/000000000001"))
	require.NoError(t, err)
	require.Equal(t, trigger.ReasonPoison, row.Reason)
	require.Contains(t, row.Errors[0].Message, "undecodable")
}
