package boardmongo_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// documented is one query of a document, and the heading that it stands under.
type documented struct{ heading, text string }

func documentedQueries(t *testing.T, path string) (out []documented) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	heading, block, in := "", "", false
	for line := range strings.Lines(string(text)) {
		switch {
		case in && strings.HasPrefix(line, "```"):
			out, in = append(out, documented{heading, block}), false
		case in:
			block += line
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		case strings.TrimSpace(line) == "```js" || strings.TrimSpace(line) == "```javascript":
			in, block = true, ""
		}
	}
	require.False(t, in, "a block that does not end")
	require.NotContains(t, string(text), "~~~")
	return out
}

const documentedSub = "01a22b8d-8348-7cbf-adcf-c51480b1c1d1"

// seedDeadLetters makes rows of each kind, and the same in another tenant.
func seedDeadLetters(t *testing.T, store *boardmongo.Store) {
	t.Helper()
	ctx := t.Context()
	hour := func(h int) time.Time { return time.Date(2026, 11, 30, h, 0, 0, 0, time.UTC) }
	now := store.Now()
	for _, tenant := range []string{"acme", "other"} {
		var rows []trigger.Effect
		row := func(seq int64, state trigger.State, updated time.Time, with func(*trigger.Effect)) {
			e := trigger.Effect{
				ID: trigger.EffectID(trigger.EventID(tenant, seq), documentedSub), TenantID: tenant, Kind: trigger.KindLaunch, Lane: "bot:b1",
				State: state, NotBefore: updated, SubscriptionID: "s1", BotID: "b1", EventSeq: seq, CreatedAt: updated, UpdatedAt: updated,
			}
			with(&e)
			rows = append(rows, e)
		}
		row(1, trigger.StateFailed, hour(10), func(e *trigger.Effect) {
			e.Reason, e.Errors = trigger.ReasonExhausted, []trigger.AttemptError{{At: hour(10), Attempt: 5, Message: "status 503"}}
			e.History = []trigger.HistoryEntry{{ID: "d1", Action: trigger.ActionReplay, By: "cli:mona", At: hour(9), From: trigger.StateFailed}}
		})
		row(2, trigger.StateFailed, hour(8), func(e *trigger.Effect) { e.Reason = trigger.ReasonExhausted })
		row(3, trigger.StateFailed, hour(11), func(e *trigger.Effect) { e.Reason, e.BotID, e.SubscriptionID = trigger.ReasonPermanent, "b2", "s2" })
		row(4, trigger.StateFailed, hour(7), func(e *trigger.Effect) {
			e.Kind, e.Reason, e.ID = trigger.KindEvent, trigger.ReasonPoison, trigger.PoisonID(trigger.EventID(tenant, 4))
			e.BotID, e.SubscriptionID = "", ""
		})
		row(5, trigger.StateClaimed, now, func(e *trigger.Effect) { e.NotBefore, e.Worker = now.Add(-time.Hour), "w1" })
		row(6, trigger.StateClaimed, now, func(e *trigger.Effect) { e.NotBefore, e.Worker = now.Add(time.Hour), "w1" })
		row(7, trigger.StateReconcile, now, func(e *trigger.Effect) { e.DeliveryStartedAt = hour(10) })
		row(8, trigger.StateReconcile, now, func(e *trigger.Effect) { e.DeliveryStartedAt = hour(9) })
		row(9, trigger.StateHeld, now, func(*trigger.Effect) {})
		row(10, trigger.StateHeld, now, func(*trigger.Effect) {})
		row(11, trigger.StateHeld, now, func(e *trigger.Effect) { e.SubscriptionID = "s2" })
		row(12, trigger.StatePending, hour(6), func(e *trigger.Effect) { e.NotBefore = now.Add(-time.Minute) })
		row(13, trigger.StatePending, hour(6), func(e *trigger.Effect) { e.NotBefore = now.Add(time.Hour) })
		row(14, trigger.StateDone, hour(6), func(e *trigger.Effect) { e.Outcome = trigger.OutcomeLaunched })
		row(15, trigger.StateDiscarded, hour(6), func(*trigger.Effect) {})
		_, err := store.EffectMaterialize(ctx, tenant, rows)
		require.NoError(t, err)
		for _, id := range []string{"b-run", "b-stop", "b-done"} {
			require.NoError(t, store.BulkCreate(ctx, &trigger.Bulk{
				TenantID: tenant, ID: id, Action: trigger.ActionReplay, CreatedAt: now, Items: []trigger.BulkItem{{ID: "x"}, {ID: "y"}},
			}))
		}
		done, err := store.BulkAdvance(ctx, tenant, "b-done", 0, 2, 1, 1)
		require.NoError(t, err)
		require.True(t, done)
		require.NoError(t, store.BulkStop(ctx, tenant, "b-stop"))
	}
	require.NoError(t, store.PauseSet(ctx, trigger.Pause{TenantID: "acme", BotID: "b1", By: "cli:mona", At: now}))
}

// run returns what the query finds, a line for each document: its id, and the
// fields that tell.
func (q *shellQuery) run(ctx context.Context, store *boardmongo.Store) (lines []string, docs []bson.M, err error) {
	coll := store.Database().Collection(q.coll)
	switch q.method {
	case "countDocuments":
		n, err := coll.CountDocuments(ctx, q.args[0])
		return []string{strconv.FormatInt(n, 10)}, nil, err
	case "find":
		opts := options.Find().SetLimit(q.limit)
		if q.sort != nil {
			opts.SetSort(q.sort)
		}
		if len(q.args) > 1 {
			opts.SetProjection(q.args[1])
		}
		cur, err := coll.Find(ctx, q.args[0], opts)
		if err != nil {
			return nil, nil, err
		}
		if err := cur.All(ctx, &docs); err != nil {
			return nil, nil, err
		}
	case "aggregate":
		cur, err := coll.Aggregate(ctx, q.args[0])
		if err != nil {
			return nil, nil, err
		}
		if err := cur.All(ctx, &docs); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, fmt.Errorf("%s is not known", q.method)
	}
	for _, d := range docs {
		line := fmt.Sprint(d["_id"])
		if id, ok := d["_id"].(bson.D); ok {
			line = fmt.Sprint(id[0].Value, " ", id[1].Value)
		}
		if rows, ok := d["rows"]; ok {
			line += fmt.Sprint(" ", rows)
		}
		lines = append(lines, line)
	}
	return lines, docs, nil
}

// Each query of docs/ops/dead-letters.md, as it stands there, finds what its
// heading says.
func TestQueriesOfTheOpsDocs(t *testing.T) {
	t.Parallel()
	store := testdb.Store(t)
	seedDeadLetters(t, store)
	id := func(tenant string, seq int64) string {
		return trigger.EffectID(trigger.EventID(tenant, seq), documentedSub)
	}
	acme := func(seqs ...int64) (out []string) {
		for _, seq := range seqs {
			out = append(out, id("acme", seq))
		}
		return out
	}
	poison := trigger.PoisonID(trigger.EventID("acme", 4))
	type want struct {
		lines   []string
		ordered bool
		fields  []string // of each document, beside the id
	}
	wants := map[string]want{
		"Failed rows of a tenant":                {append(acme(3, 1, 2), poison), true, []string{"event", "errors"}},
		"Failed rows by reason":                  {[]string{"exhausted 2", "permanent 1", "poison 1"}, false, []string{"oldest"}},
		"Failed rows by bot":                     {[]string{"b1 s1 2", "b2 s2 1", "  1"}, false, nil},
		"Failed rows of one reason since a time": {acme(1), false, []string{"errors"}},
		"The oldest failed rows":                 {append([]string{poison}, acme(2, 1, 3)...), true, nil},
		"Poison events":                          {[]string{poison}, false, nil},
		"Stuck claims":                           {[]string{id("acme", 5), id("other", 5)}, false, []string{"worker", "not_before"}},
		"Rows to reconcile":                      {acme(8, 7), true, []string{"delivery_started_at", "bot_id"}},
		"Held rows":                              {[]string{"3"}, false, nil},
		"Held rows by subscription":              {[]string{"s1 2", "s2 1"}, false, nil},
		"Pending rows that are due":              {[]string{"bot:b1 1"}, false, []string{"due"}},
		"One row with its history":               {acme(1), false, []string{"history", "errors", "state", "reason"}},
		"What is paused":                         {[]string{"acme/b1"}, false, []string{"by", "at"}},
		"Bulk decisions under way":               {[]string{"acme/b-run 2"}, false, []string{"action", "digest", "next", "applied"}},
	}
	queries := documentedQueries(t, "../../docs/ops/dead-letters.md")
	require.Len(t, queries, len(wants))
	for _, d := range queries {
		w, ok := wants[d.heading]
		require.True(t, ok, "%s: this test does not know what it should find", d.heading)
		delete(wants, d.heading)
		q, err := parseShell(d.text, store.Now())
		require.NoError(t, err, d.heading)
		lines, docs, err := q.run(t.Context(), store)
		require.NoError(t, err, d.heading)
		if w.ordered {
			require.Equal(t, w.lines, lines, d.heading)
		} else {
			require.ElementsMatch(t, w.lines, lines, d.heading)
		}
		for _, f := range w.fields {
			if f == "errors" && d.heading != "One row with its history" {
				continue // not every row has some
			}
			for _, doc := range docs {
				require.Contains(t, doc, f, d.heading)
			}
		}
	}
	require.Empty(t, wants, "queries that the document lacks")
}

func TestShellParserLeavesNothingOut(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q, err := parseShell("db.a.find({'x.y': [1, -2, Long('3')], z: {$gt: ISODate('2026-11-30T09:00:00Z'), $lt: new Date()}, b: true, n: null}, {_id: 0}) // all\n.sort({z: -1}).limit(5)\n", now)
	require.NoError(t, err)
	require.Equal(t, shellQuery{"a", "find", []any{
		bson.D{
			{Key: "x.y", Value: bson.A{int32(1), int32(-2), int64(3)}},
			{Key: "z", Value: bson.D{{Key: "$gt", Value: time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)}, {Key: "$lt", Value: now}}},
			{Key: "b", Value: true},
			{Key: "n", Value: nil},
		},
		bson.D{{Key: "_id", Value: int32(0)}},
	}, bson.D{{Key: "z", Value: int32(-1)}}, 5}, q)
	for _, bad := range []string{
		"", "db.a", "db.a.find(", "db.a.find({)", "db.a.find({a: b})", "db.a.find({a: 1}).skip(1)", "db.a.find({}); db.b.find({})",
		"db.a.find({a: new Date(0)})", "db.a.find({a: /x/})", "db.a.find({a: 1 + 1})", "db.a.find().limit('x')", "use acme",
	} {
		_, err := parseShell(bad, now)
		require.Error(t, err, bad)
	}
}
