package boardmongo_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// loop is a part of a replica that runs.
type loop interface {
	Start(ctx context.Context) error
	Stop()
}

// start starts a loop, and stops it when the test ends or before.
func start(t *testing.T, l loop) (stop func()) {
	t.Helper()
	require.NoError(t, l.Start(context.WithoutCancel(t.Context())))
	t.Cleanup(l.Stop)
	return l.Stop
}

// eventually waits for a condition of the database, or of what was counted.
func eventually(t *testing.T, within time.Duration, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, within, 10*time.Millisecond, what)
}

func testLog(t *testing.T) zerolog.Logger {
	t.Helper()
	return zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
}

func tailOn(t *testing.T, s *boardmongo.Store) *trigger.Tail {
	t.Helper()
	return &trigger.Tail{Cards: s, Log: s, Heads: s, Config: s, Outbox: s, Lanes: s, Clock: s, Epochs: s, Logger: testLog(t)}
}

// TestT6_IdleCommandsDoNotGrowWithTenants runs the loops of a replica, at
// their default pace, over 10 and over 10,000 tenants that have nothing to do,
// side by side. A round of a loop sends the same few commands over either, and
// rounds come at the loop's pace. That none of the commands reads more for more
// tenants is TestIndexesAreUsed.
func TestT6_IdleCommandsDoNotGrowWithTenants(t *testing.T) {
	t.Parallel()
	loops := []struct {
		name     string
		pace     time.Duration
		perRound map[string]int
		make     func(s *boardmongo.Store) loop
	}{
		{
			"tail", trigger.PollDefault,
			map[string]int{"find tenant_heads": 1},
			func(s *boardmongo.Store) loop { return tailOn(t, s) },
		},
		{
			"worker", trigger.PollDefault,
			map[string]int{"find lanes": 1, "find pauses": 1},
			func(s *boardmongo.Store) loop {
				return &trigger.EffectWorker{Outbox: s, Lanes: s, Pauses: s, Epochs: s, Clock: s, Logger: testLog(t), Evaluator: &trigger.Evaluator{}, Name: "r1"}
			},
		},
		{
			"sweeper", trigger.SweepEveryDefault,
			map[string]int{"find cards": 1},
			func(s *boardmongo.Store) loop {
				relay := &trigger.Relay{Cards: s, Log: s, Heads: s, Logger: testLog(t)}
				return &trigger.Sweeper{Cards: s, Relay: relay, Clock: s, Logger: testLog(t)}
			},
		},
		{
			"lanes", trigger.LaneSweepDefault,
			map[string]int{"aggregate trigger_effects": 2, "find trigger_subscriptions": 1},
			func(s *boardmongo.Store) loop {
				return &trigger.LaneSweeper{Outbox: s, Lanes: s, Pauses: s, Config: s, Clock: s, Logger: testLog(t), Matcher: tailOn(t, s)}
			},
		},
		{
			"announcer", trigger.AnnounceEveryDefault,
			map[string]int{"find trigger_effects": 1},
			func(s *boardmongo.Store) loop {
				return &trigger.Announcer{Outbox: s, Relay: &trigger.Relay{Cards: s, Log: s, Heads: s, Logger: testLog(t)}, Clock: s, Logger: testLog(t)}
			},
		},
		{
			"fleet", 2 * time.Second,
			map[string]int{
				"find fleet": 2, "insert fleet": 1, "update fleet": 2, "find pauses": 1, "aggregate trigger_effects": 7,
				"aggregate tenant_heads": 1, "aggregate trigger_subscriptions": 1,
			},
			func(s *boardmongo.Store) loop {
				return &trigger.FleetWatch{Counts: s, Clock: s, Logger: testLog(t), Name: "r1", Every: 2 * time.Second}
			},
		},
		{
			"membership", trigger.BeatEveryDefault,
			map[string]int{"update replicas": 1, "find replicas": 1},
			func(s *boardmongo.Store) loop {
				return &trigger.Membership{Replicas: s, Clock: s, Logger: testLog(t), Name: "r1"}
			},
		},
	}
	tenants := []int{10, 10_000}
	counts := make([][]*commands, len(tenants))
	var made []loop
	for i, n := range tenants {
		database := testdb.Name(t)
		seedIdle(t, openStoreAt(t, testdb.URI(t), database, newCommands()), n)
		for _, l := range loops {
			c := newCommands() // a store each, so that each loop's are counted apart
			s := openStoreAt(t, testdb.URI(t), database, c)
			counts[i] = append(counts[i], c)
			made = append(made, l.make(s))
		}
	}
	for i := range counts {
		for _, c := range counts[i] {
			c.reset()
		}
	}
	began := time.Now()
	for _, l := range made {
		start(t, l)
	}
	const rounds = 3
	eventually(t, time.Minute, "rounds of each loop", func() bool {
		for i := range counts {
			for j, l := range loops {
				if counts[i][j].count() < rounds*len(l.perRound) {
					return false
				}
			}
		}
		return true
	})
	elapsed := time.Since(began)
	for i, n := range tenants {
		total := 0.0
		for j, l := range loops {
			// Rounds are at least 3/4 of the pace apart; one may be under way.
			most := 2 + int(elapsed/(l.pace*3/4))
			for kind, got := range counts[i][j].byKind() {
				require.Contains(t, l.perRound, kind, "%s over %d tenants", l.name, n)
				require.LessOrEqual(t, got, l.perRound[kind]*most, "%s over %d tenants: %s", l.name, n, kind)
			}
			perSecond := float64(counts[i][j].count()) / elapsed.Seconds()
			total += perSecond
			t.Logf("%6d tenants: %-10s %5.2f commands per second (%s)", n, l.name, perSecond, counts[i][j])
		}
		t.Logf("%6d tenants: %-10s %5.2f commands per second", n, "all", total)
	}
}

// seedIdle makes tenants with nothing to do: clean heads, lanes that are not
// due, or not yet.
func seedIdle(t *testing.T, store *boardmongo.Store, n int) {
	t.Helper()
	now := store.Now()
	var tenants, heads, lanes, cards []any
	for i := range n {
		id := fmt.Sprintf("t%05d", i)
		tenants = append(tenants, keyed(id, trigger.Tenant{ID: id, Name: id, Revision: 1}))
		heads = append(heads, keyed(id, trigger.Head{TenantID: id, Seq: 9, Cursor: 9, DrainAfter: now}))
		lane := trigger.Lane{TenantID: id, Lane: "bot:b", Version: 3}
		if i%3 == 0 {
			lane.DueAt = now.Add(time.Hour)
		}
		lanes = append(lanes, keyed(id+"/"+lane.Lane, lane))
		cards = append(cards, keyed(id+"/c", tracker.Card{TenantID: id, ID: "c", Rev: 1}))
	}
	insertAll(t, store, "tenants", tenants)
	insertAll(t, store, "tenant_heads", heads)
	insertAll(t, store, "lanes", lanes)
	insertAll(t, store, "cards", cards)
}

// seedLog writes a log of events, past any emitter, and subscriptions that
// fire for one in `every` of them: an event's card carries the label "hot".
func seedLog(t *testing.T, store *boardmongo.Store, tenants []string, perTenant, subscriptions, every int, since time.Time) {
	t.Helper()
	var heads, events, subs []any
	for _, tenant := range tenants {
		for i := range perTenant {
			card := fmt.Sprint("c", i)
			e := trigger.Event{TenantID: tenant, Seq: int64(i + 1), Source: trigger.SourceBoard, LoggedAt: since}
			e.BoardEvent = tracker.BoardEvent{
				EID: fmt.Sprintf("board:%s-%d", tenant, i), Kind: tracker.KindCreated, BoardID: "b1", CardID: card, CardRev: 1, At: since,
				Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}, ToColumn: "open",
				After: &tracker.Snapshot{Incarnation: "i", Rev: 1, BoardID: "b1", ColumnID: "open", Title: "Card " + card},
			}
			if i%every == 0 {
				e.After.Labels = []string{"hot"}
			}
			events = append(events, keyed(e.ID(), e))
		}
		heads = append(heads, keyed(tenant, trigger.Head{TenantID: tenant, Seq: int64(perTenant), Dirty: true, DrainAfter: since}))
		for i := range subscriptions {
			id := fmt.Sprintf("s%02d", i)
			sub := trigger.Subscription{
				TenantID: tenant, ID: id, Name: id, Revision: 1, Enabled: true, BotID: fmt.Sprint("b", i%5),
				If: trigger.Conditions{LabelsAll: []string{"hot"}},
			}
			switch {
			case i%5 == 1: // asks of another kind
				sub.On.Kinds = []tracker.Kind{tracker.KindMoved}
			case i > 0: // asks of each event, and never fires
				sub.If.LabelsAll = []string{"cold"}
			}
			subs = append(subs, keyed(tenant+"/"+id, sub))
		}
	}
	insertAll(t, store, "tenant_heads", heads)
	insertAll(t, store, "trigger_subscriptions", subs)
	insertAll(t, store, "board_events", events)
}

// TestT6_DrainCost drains 10,000 events of one tenant with 50 subscriptions,
// one of which fires for one event in a hundred.
func TestT6_DrainCost(t *testing.T) {
	t.Parallel()
	const tenant, events, every = "acme", 10_000, 100
	mon := newCommands()
	store := openStore(t, mon)
	seedLog(t, store, []string{tenant}, events, 50, every, store.Now())
	tail := tailOn(t, store)
	mon.reset()
	began := time.Now()
	for {
		d, err := tail.Drain(t.Context(), tenant)
		require.NoError(t, err)
		if !d.More {
			break
		}
	}
	took, sent, what := time.Since(began), mon.count(), mon.String()
	t.Logf("%d events in %s by %d commands, %.4f per event: %s", events, took.Round(time.Millisecond), sent, float64(sent)/events, what)
	require.LessOrEqual(t, float64(sent)/events, 0.02)

	head, err := store.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	require.EqualValues(t, events, head.Cursor)
	require.False(t, head.Dirty)
	require.EqualValues(t, events/every, countRows(t, store))
}

func countRows(t *testing.T, store *boardmongo.Store) int64 {
	t.Helper()
	n, err := store.Database().Collection("trigger_effects").CountDocuments(t.Context(), bson.D{})
	require.NoError(t, err)
	return n
}

// TestT6_TwoReplicasCostLessThanOneAndAHalf has two replicas drain the logs of
// the same 200 tenants: together they send less than one and a half times the
// commands that one replica does. That is so for a backlog that has just come
// up, where each takes the tenants that prefer it; and for one so old that
// either may step in everywhere, and of two batches a tenant.
func TestT6_TwoReplicasCostLessThanOneAndAHalf(t *testing.T) {
	t.Parallel()
	for name, backlog := range map[string]struct {
		age   time.Duration
		batch int
	}{"fresh": {0, 12}, "overdue": {time.Hour, 6}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := drainByReplicas(t, 1, backlog.age, backlog.batch)
			two := drainByReplicas(t, 2, backlog.age, backlog.batch)
			t.Logf("%s: one replica %d commands, two %d: %.2f times as many", name, one, two, float64(two)/float64(one))
			require.Less(t, float64(two), 1.5*float64(one))
		})
	}
}

func drainByReplicas(t *testing.T, replicas int, age time.Duration, batch int) (sent int) {
	t.Helper()
	const perTenant, every = 12, 3
	database := testdb.Name(t)
	admin := openStoreAt(t, testdb.URI(t), database, newCommands())
	tenants := make([]string, 200)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("t%03d", i)
	}
	var members []*trigger.Membership
	var tails []*trigger.Tail
	var counts []*commands
	for i := range replicas {
		c := newCommands()
		s := openStoreAt(t, testdb.URI(t), database, c)
		m := &trigger.Membership{Replicas: s, Clock: s, Logger: testLog(t), Name: fmt.Sprint("replica-", i)}
		tail := tailOn(t, s)
		tail.Batch, tail.Prefers = batch, m.Prefers
		members, tails, counts = append(members, m), append(tails, tail), append(counts, c)
	}
	// A round of beats before the loops', so that they know each other.
	for range 2 {
		for _, m := range members {
			require.NoError(t, m.Beat(t.Context()))
		}
	}
	seedLog(t, admin, tenants, perTenant, 2, every, admin.Now().Add(-age))
	for i := range replicas {
		counts[i].reset()
	}
	var stops []func()
	for i := range replicas {
		stops = append(stops, start(t, members[i]), start(t, tails[i]))
	}
	began := time.Now()
	eventually(t, 3*time.Minute, "every cursor at its end", func() bool {
		n, err := admin.Database().Collection("tenant_heads").CountDocuments(t.Context(),
			bson.D{{Key: "dirty", Value: false}, {Key: "cursor", Value: perTenant}})
		return err == nil && n == int64(len(tenants))
	})
	took := time.Since(began)
	for _, stop := range stops {
		stop()
	}
	for i, c := range counts {
		sent += c.count()
		t.Logf("replica %d of %d, %s: %d commands: %s", i, replicas, took.Round(time.Millisecond), c.count(), c)
	}
	require.EqualValues(t, len(tenants)*perTenant/every, countRows(t, admin))
	return sent
}

// TestE_BulkChangeOf500 moves 500 cards in one call: 500 events, contiguous in
// the log, in a few commands.
func TestE_BulkChangeOf500(t *testing.T) {
	t.Parallel()
	const tenant = "acme"
	ctx := t.Context()
	mon := newCommands()
	store := openStore(t, mon)
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store, Logger: testLog(t)}
	board := &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}
	ids := make([]string, trigger.ChangeManyMax)
	for i := range ids {
		ids[i] = fmt.Sprintf("c%03d", i)
	}
	actor := tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}
	create := func(_ *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "todo", Title: "A card", Body: strings.Repeat("text ", 200)},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: actor, ToColumn: "todo"}, nil
	}
	move := func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		from := card.ColumnID
		card.ColumnID = "done"
		return card, &tracker.BoardEvent{Kind: tracker.KindMoved, Actor: actor, FromColumn: from, ToColumn: "done"}, nil
	}
	_, err := store.HeadLift(ctx, tenant) // the tenant's first event would make its head
	require.NoError(t, err)
	for i, change := range []tracker.Changer{create, move} {
		mon.reset()
		changed, err := board.ChangeMany(ctx, tenant, ids, change)
		sent, what := mon.count(), mon.String()
		require.NoError(t, err)
		t.Logf("%s %d cards: %d commands: %s", []string{"create", "move"}[i], len(ids), sent, what)
		require.LessOrEqual(t, sent, 9)
		after := int64(i * len(ids))
		events, err := store.EventList(ctx, tenant, after, after+10_000)
		require.NoError(t, err)
		require.Len(t, events, len(ids))
		require.Len(t, changed, len(ids))
		for j, e := range events {
			require.NoError(t, changed[j].Err)
			require.Equal(t, after+int64(j)+1, e.Seq, "contiguous")
			require.Equal(t, ids[j], e.CardID)
			require.Equal(t, changed[j].Event.EID, e.EID)
		}
		pending, err := store.CardsPending(ctx, store.Now().Add(time.Hour), 10)
		require.NoError(t, err)
		require.Empty(t, pending)
	}
}
