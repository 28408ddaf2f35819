package boardmongo_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
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
