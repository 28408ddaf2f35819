package boardmongo_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
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
	// What waits for a person is listed without a look at what is done; an
	// index of done rows too would make their own pages slow.
	parked := list("trigger_effects")["parked_tenant_state"]
	require.Equal(t, []string{"tenant_id", "state", "_id"}, fields(parked))
	raw, err = bson.MarshalExtJSON(parked.Partial, false, false)
	require.NoError(t, err)
	require.JSONEq(t, `{"state":{"$in":["failed","reconcile","held","discarded"]}}`, string(raw))
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

// between opens a store on the other one's database that calls do once, when
// its first update of a row is on its way to the server.
func between(t *testing.T, other *boardmongo.Store, do func(ctx context.Context)) *boardmongo.Store {
	t.Helper()
	var once sync.Once
	store, err := boardmongo.Connect(t.Context(), boardmongo.Params{
		URI: testdb.URI(t), Database: other.Database().Name(), Monitor: &event.CommandMonitor{
			Started: func(ctx context.Context, e *event.CommandStartedEvent) {
				if coll, _ := e.Command.Lookup("update").StringValueOK(); coll == "trigger_effects" {
					once.Do(func() { do(context.WithoutCancel(ctx)) })
				}
			},
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close(context.Background())) })
	return store
}

func oneRow(t *testing.T, s *boardmongo.Store, state trigger.State) trigger.Effect {
	t.Helper()
	now := s.Now()
	row := trigger.Effect{
		ID: "acme/000000000001|s1", TenantID: "acme", Kind: trigger.KindLaunch, Lane: "bot:b", EventSeq: 1, Replay: trigger.ReplayUnsafe,
		State: state, NotBefore: now.Add(-time.Second), ClaimID: "claim-1", Attempts: 1, CreatedAt: now, UpdatedAt: now.Add(-time.Hour),
	}
	_, err := s.EffectMaterialize(t.Context(), "acme", []trigger.Effect{row})
	require.NoError(t, err)
	return row
}

// A worker that is late starts its delivery while its claim is taken over: the
// row is not sent a second time.
func TestW8_StartBetweenAReclaimsReadAndItsWrite(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, trigger.AttemptsMax} {
		other := testdb.Store(t)
		row := oneRow(t, other, trigger.StateClaimed)
		_, err := other.Database().Collection("trigger_effects").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: row.ID}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "attempts", Value: attempts}}}})
		require.NoError(t, err)
		store := between(t, other, func(ctx context.Context) {
			assert.NoError(t, other.EffectStart(ctx, row.Fence(), other.Now(), "sent"))
		})
		p := trigger.ClaimParams{
			TenantID: "acme", Lane: "bot:b", Worker: "w2", ClaimID: "claim-2", Now: other.Now(), LeaseEnd: other.Now().Add(time.Hour), Limit: 1,
		}
		got, err := store.EffectReclaim(t.Context(), p)
		require.NoError(t, err)
		require.Nil(t, got)
		kept, err := other.EffectGet(t.Context(), "acme", row.ID)
		require.NoError(t, err)
		require.Equal(t, "claim-1", kept.ClaimID)
		require.Equal(t, trigger.StateClaimed, kept.State)
		require.NotZero(t, kept.DeliveryStartedAt)

		got, err = store.EffectReclaim(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, trigger.StateReconcile, got.State, "the next one sees it")
		require.Equal(t, "claim-1", got.ClaimID)
	}
}

// A decision is applied to the row that it was computed from: one that was
// replayed and has failed again meanwhile, is another.
func TestDecide_RowWrittenBetweenItsReadAndItsWrite(t *testing.T) {
	t.Parallel()
	for _, seen := range []bool{true, false} {
		other := testdb.Store(t)
		row := oneRow(t, other, trigger.StateFailed)
		decision := func(id string) trigger.Decision {
			return trigger.Decision{TenantID: "acme", EffectID: row.ID, ID: id, Action: trigger.ActionReplay, By: "mona", At: other.Now()}
		}
		store := between(t, other, func(ctx context.Context) {
			_, err := other.EffectDecide(ctx, decision("first"))
			require.NoError(t, err)
			now := other.Now()
			rows, err := other.EffectClaim(ctx, trigger.ClaimParams{
				TenantID: "acme", Lane: "bot:b", Worker: "w", ClaimID: "claim-2", Now: now, LeaseEnd: now.Add(time.Hour), Limit: 1,
			})
			require.NoError(t, err)
			require.Len(t, rows, 1)
			_, err = other.EffectSettleMany(ctx, []trigger.Settle{{Fence: rows[0].Fence(), At: now, To: trigger.StateFailed, Reason: trigger.ReasonPermanent}})
			require.NoError(t, err)
		})
		second := decision("second")
		if seen {
			second.SeenAt = row.UpdatedAt
		}
		got, err := store.EffectDecide(t.Context(), second)
		kept, gerr := other.EffectGet(t.Context(), "acme", row.ID)
		require.NoError(t, gerr)
		if seen {
			require.ErrorIs(t, err, tracker.ErrConflict)
			require.Equal(t, trigger.StateFailed, kept.State)
			require.Len(t, kept.History, 1)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, kept, got)
		require.Equal(t, trigger.StatePending, kept.State)
		require.Equal(t, "claim-2", kept.ClaimID, "computed anew")
		require.Len(t, kept.History, 2)
		require.Equal(t, trigger.ReasonPermanent, kept.History[1].Reason)
	}
}

// A row that was told to go and is run again stays.
func TestR4_RerunTakesBackTheExpiry(t *testing.T) {
	t.Parallel()
	store := testdb.Store(t)
	row := oneRow(t, store, trigger.StateDone)
	expiring := func() int64 {
		n, err := store.Database().Collection("trigger_effects").CountDocuments(t.Context(),
			bson.D{{Key: "_id", Value: row.ID}, {Key: "expire_at", Value: bson.D{{Key: "$exists", Value: true}}}})
		require.NoError(t, err)
		return n
	}
	// A date that the TTL index does not come to during the test.
	_, err := store.Database().Collection("trigger_effects").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: row.ID}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "expire_at", Value: store.Now().Add(time.Hour)}}}})
	require.NoError(t, err)
	require.EqualValues(t, 1, expiring())
	_, err = store.EffectDecide(t.Context(), trigger.Decision{TenantID: "acme", EffectID: row.ID, ID: "d", Action: trigger.ActionRerun, By: "mona", At: store.Now()})
	require.NoError(t, err)
	require.Zero(t, expiring())
}
