package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
)

func TestSchemaCommands(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	name := testdb.Name(t)
	schema := func(args ...string) result {
		return command(t, append(append([]string{"schema"}, args...), "--mongo-uri", testdb.URI(t), "--database", name)...)
	}
	r := schema("check")
	require.Equal(t, 1, r.code)
	require.Regexp(t, `board_events +tenant_seq +missing +tenant_id, seq; unique`, r.out)
	require.Contains(t, r.err, "run `triggerd schema apply`")

	r = schema("apply")
	require.Zero(t, r.code)
	require.Contains(t, r.out, "api_tokens: made hash\n")
	require.Contains(t, r.out, "is applied")
	r = schema("check")
	require.Zero(t, r.code)
	require.Regexp(t, `: \d+ indexes are as they should be, others: 0\n$`, r.out)
	require.Empty(t, r.err)

	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: testdb.URI(t), Database: name})
	require.NoError(t, err)
	t.Cleanup(func() { closeStore(store) })
	require.NoError(t, store.Database().Collection("board_events").Indexes().DropOne(ctx, "tenant_seq"))
	r = schema("check", "-o", "json")
	require.Equal(t, 1, r.code)
	var report struct {
		boardmongo.SchemaReport
		Older   bool `json:"older"`
		Differs bool `json:"differs"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &report))
	require.True(t, report.Differs)
	require.False(t, report.Older)
	require.Contains(t, report.Indexes, boardmongo.SchemaIndex{
		Collection: "board_events", Index: "tenant_seq", Status: boardmongo.SchemaMissing, Wanted: "tenant_id, seq; unique",
	})

	t.Log("a newer version was here")
	_, err = store.Database().Collection("schema").UpdateOne(ctx, bson.D{{Key: "_id", Value: "indexes"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: 1000}}}})
	require.NoError(t, err)
	r = schema("check")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "note: the database has the schema of version 1000")
	require.Contains(t, r.err, "of the newer triggerd")
	r = schema("apply")
	require.Zero(t, r.code)
	require.Contains(t, r.err, "index tenant_seq of board_events is missing; left as it is")
	require.NotContains(t, r.out, "is applied")
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--mongo-uri", testdb.URI(t), "--database", name)
	p.err.await(t, `"message":"ready"`)
	p.interrupt()
	p.end(t)
	require.Regexp(t, `"level":"warn".*schema: index tenant_seq of board_events is missing; left as it is`, p.result(t).err)

	_, err = store.Database().Collection("schema").DeleteOne(ctx, bson.D{{Key: "_id", Value: "indexes"}})
	require.NoError(t, err)
	require.Zero(t, schema("apply").code)
	require.Zero(t, schema("check").code)
}
