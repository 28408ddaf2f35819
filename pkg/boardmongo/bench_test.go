package boardmongo_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const benchTenant = "acme"

// benchRows makes n rows of the tenant, of about a kilobyte each.
func benchRows(tb testing.TB, store *boardmongo.Store, n int, set func(i int, row *trigger.Effect)) {
	tb.Helper()
	began := time.Now()
	now := store.Now()
	text := make([]byte, 600)
	for i := range text {
		text[i] = byte('a' + i%26)
	}
	for from := 0; from < n; from += 5000 {
		docs := make([]any, min(5000, n-from))
		for j := range docs {
			i := from + j
			e := trigger.Event{TenantID: benchTenant, Seq: int64(i + 1), Source: trigger.SourceBoard, LoggedAt: now}
			e.EID = fmt.Sprint("board:", i)
			row := trigger.Effect{
				ID: trigger.EffectID(e.ID(), "s1"), TenantID: benchTenant, Kind: trigger.KindLaunch, Lane: "bot:b1", BotID: "b1", SubscriptionID: "s1",
				State: trigger.StateDone, NotBefore: now, UpdatedAt: now, EventSeq: e.Seq, Event: e,
				Errors: []trigger.AttemptError{{At: now, Attempt: 1, Message: string(text)}},
			}
			set(i, &row)
			docs[j] = keyed(row.ID, row)
		}
		_, err := store.Database().Collection("trigger_effects").InsertMany(context.Background(), docs)
		require.NoError(tb, err)
	}
	tb.Logf("%d rows in %s", n, time.Since(began).Round(time.Second))
}

// BenchmarkEffectListPage reads a page of 100 rows of one state among 200,000
// done rows of one tenant: 1,000 failed ones between them, 1,000 reconcile ones
// after them, 50 pending ones at the end; by the range of ids, which is the
// store's, or after an id; without the index for it, with the schema's, which is
// partial, and with one of all states.
func BenchmarkEffectListPage(b *testing.B) {
	store := testdb.Store(b)
	benchRows(b, store, 202_050, func(i int, row *trigger.Effect) {
		switch {
		case i >= 202_000:
			row.State = trigger.StatePending
		case i >= 201_000:
			row.State = trigger.StateReconcile
		case i%201 == 200:
			row.State, row.Reason = trigger.StateFailed, trigger.ReasonExhausted
		}
	})
	coll := store.Database().Collection("trigger_effects")
	pages := func(index string) {
		for _, state := range []trigger.State{trigger.StateFailed, trigger.StateReconcile, trigger.StatePending, trigger.StateDone} {
			b.Run(fmt.Sprintf("%s/%s/range", index, state), func(b *testing.B) {
				for b.Loop() {
					rows, err := store.EffectList(b.Context(), trigger.EffectListParams{
						TenantID: benchTenant, EffectFilter: trigger.EffectFilter{State: state}, Limit: 100,
					})
					require.NoError(b, err)
					require.GreaterOrEqual(b, len(rows), 50)
				}
			})
			b.Run(fmt.Sprintf("%s/%s/after", index, state), func(b *testing.B) {
				filter := bson.D{{Key: "tenant_id", Value: benchTenant}, {Key: "state", Value: state}, {Key: "_id", Value: bson.D{{Key: "$gt", Value: ""}}}}
				for b.Loop() {
					rows := benchAll(b, func() (*mongo.Cursor, error) {
						return coll.Find(b.Context(), filter, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(100))
					})
					require.GreaterOrEqual(b, rows, 50)
				}
			})
		}
	}
	const parked = "parked_tenant_state"
	pages(parked)
	require.NoError(b, coll.Indexes().DropOne(b.Context(), parked))
	pages("none")
	_, err := coll.Indexes().CreateOne(b.Context(), mongo.IndexModel{
		Keys: bson.D{{Key: "tenant_id", Value: 1}, {Key: "state", Value: 1}, {Key: "_id", Value: 1}}, Options: options.Index().SetName("whole"),
	})
	require.NoError(b, err)
	pages("whole")
}

// benchAll returns how many documents a command answers with.
func benchAll(b *testing.B, do func() (*mongo.Cursor, error)) int {
	b.Helper()
	cur, err := do()
	require.NoError(b, err)
	var docs []bson.Raw
	require.NoError(b, cur.All(b.Context(), &docs))
	return len(docs)
}

// BenchmarkLanesLate finds the late ones of 50 lanes with 100,000 live rows,
// among as many that are done; then by what else was thought of.
func BenchmarkLanesLate(b *testing.B) {
	store := testdb.Store(b)
	now := store.Now()
	benchRows(b, store, 200_000, func(i int, row *trigger.Effect) {
		row.Lane = fmt.Sprintf("bot:b%d", i%50)
		row.NotBefore = now.Add(time.Duration(i%100_000) * time.Millisecond)
		switch i / 100 % 4 {
		case 0:
			row.State = trigger.StatePending
		case 1:
			row.State = trigger.StateClaimed
		}
	})
	b.Run("store", func(b *testing.B) {
		for b.Loop() {
			late, err := store.LanesLate(b.Context())
			require.NoError(b, err)
			require.Len(b, late, 50)
		}
	})
	state := bson.E{Key: "state", Value: bson.D{{Key: "$in", Value: []trigger.State{trigger.StatePending, trigger.StateClaimed}}}}
	kind := bson.E{Key: "kind", Value: bson.D{{Key: "$in", Value: append([]trigger.EffectKind{""}, trigger.KnownKinds()...)}}}
	anyTenant := bson.E{Key: "tenant_id", Value: bson.D{{Key: "$gt", Value: ""}}}
	soon := bson.E{Key: "not_before", Value: bson.D{{Key: "$lte", Value: now.Add(10 * time.Second)}}}
	lane := bson.D{{Key: "tenant_id", Value: "$tenant_id"}, {Key: "lane", Value: "$lane"}}
	for name, pipeline := range map[string]mongo.Pipeline{
		"no tenant": {benchMatch(state, kind), benchGroup(lane, "$min")},
		"no kind":   {benchMatch(anyTenant, state), benchGroup(lane, "$min")},
		"due soon":  {benchMatch(anyTenant, state, kind, soon), benchGroup(lane, "$min")},
		"sorted by index": {
			benchMatch(anyTenant, state, kind),
			bson.D{{Key: "$sort", Value: bson.D{{Key: "tenant_id", Value: 1}, {Key: "lane", Value: 1}, {Key: "not_before", Value: 1}}}},
			benchGroup(lane, "$first"),
		},
		"one lane": {
			benchMatch(bson.E{Key: "tenant_id", Value: benchTenant}, bson.E{Key: "lane", Value: "bot:b1"}, state, kind), benchGroup(lane, "$min"),
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				groups := benchAll(b, func() (*mongo.Cursor, error) {
					return store.Database().Collection("trigger_effects").Aggregate(b.Context(), pipeline)
				})
				require.NotZero(b, groups)
			}
		})
	}
}

func benchMatch(conds ...bson.E) bson.D { return bson.D{{Key: "$match", Value: bson.D(conds)}} }

func benchGroup(by bson.D, how string) bson.D {
	return bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: by}, {Key: "due", Value: bson.D{{Key: how, Value: "$not_before"}}}}}}
}
