package boardmongo_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/testdb"
)

func TestSchemaHasTheIndexesThatClaimsAndDeliveriesNeed(t *testing.T) {
	t.Parallel()
	store := testdb.Store(t)
	type index struct {
		Name    string `bson:"name"`
		Key     bson.D `bson:"key"`
		Partial bson.M `bson:"partialFilterExpression"`
		TTL     *int64 `bson:"expireAfterSeconds"`
		Unique  bool   `bson:"unique"`
	}
	list := func(coll string) map[string]index {
		cur, err := store.Database().Collection(coll).Indexes().List(t.Context())
		require.NoError(t, err)
		var all []index
		require.NoError(t, cur.All(t.Context(), &all))
		byName := make(map[string]index)
		for _, ix := range all {
			byName[ix.Name] = ix
		}
		return byName
	}
	fields := func(ix index) (out []string) {
		for _, e := range ix.Key {
			out = append(out, e.Key)
		}
		return out
	}
	// W9: claiming costs nothing for rows that are done.
	live := list("trigger_effects")["live_tenant_lane"]
	require.Equal(t, []string{"tenant_id", "lane", "state", "not_before"}, fields(live))
	raw, err := bson.MarshalExtJSON(live.Partial, false, false)
	require.NoError(t, err)
	require.JSONEq(t, `{"state":{"$in":["pending","claimed"]}}`, string(raw))
	require.False(t, live.Unique)
	require.Nil(t, live.TTL)
	// R4: a row goes when the janitor said so, never by its own time.
	expire := list("trigger_effects")["expire_at_ttl"]
	require.Equal(t, []string{"expire_at"}, fields(expire))
	require.NotNil(t, expire.TTL)
	require.Zero(t, *expire.TTL)
	// Delivery ids are remembered for 30 days.
	at := list("hook_deliveries")["at_ttl"]
	require.Equal(t, []string{"at"}, fields(at))
	require.NotNil(t, at.TTL)
	require.EqualValues(t, 30*24*time.Hour/time.Second, *at.TTL)
	require.Empty(t, at.Partial)
}
