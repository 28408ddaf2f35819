package boardmongo_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
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

const (
	// downFor is how long the database is away, unless TRIGGERD_TEST_DOWN says
	// another time: 30s, for the whole of what the guarantees were tried with.
	downFor = 8 * time.Second
	// requestTimeout is how long a caller waits, waitMargin how much longer
	// on a busy machine.
	requestTimeout = 3 * time.Second
	waitMargin     = 10 * time.Second // of a machine that does much else

	changers = 50
	cards    = 20
)

// TestTheDatabaseDiesUnderLoad takes the database away while 50 changes of
// cards are under way and 50 more are tried meanwhile, and brings it back.
// Then E1, E2, E3 and T2 hold: each change that was answered is in the log
// exactly once and in its card's order; each other is there or is not, never
// half; nobody waited longer than their timeout; and the tails and sweepers of
// the two replicas, which ran all the time, bring every cursor to its end and
// leave no event pending, by themselves.
//
// The database crashes, as by `pg_ctl stop -m immediate`, on an instance of
// this test's own; where the database under test is not the one of
// scripts/testdb, its connections are cut instead, by a proxy. Connections are
// also cut, and stalled, before a database that stays up.
func TestTheDatabaseDiesUnderLoad(t *testing.T) {
	t.Parallel()
	down := downFor
	if v := os.Getenv("TRIGGERD_TEST_DOWN"); v != "" {
		var err error
		down, err = time.ParseDuration(v)
		require.NoError(t, err)
	}
	t.Run("TestE1_E2_E3_T2_Crash", func(t *testing.T) {
		t.Parallel()
		dieUnderLoad(t, testdb.Crashing(t), 0, down)
	})
	t.Run("TestE1_E2_E3_T2_ConnectionsCut", func(t *testing.T) {
		t.Parallel()
		dieUnderLoad(t, testdb.Cut(t), 10, down/2)
	})
	t.Run("TestE1_E2_E3_T2_ConnectionsStall", func(t *testing.T) {
		t.Parallel()
		dieUnderLoad(t, testdb.Stalled(t), 0, down/2)
	})
}

// load makes changes and keeps what became of them.
type load struct {
	boards []*trigger.Board

	mu       sync.Mutex
	tried    map[string]bool   // by title
	answered map[string]string // eid by title
	failed   map[string]error
	longest  time.Duration
	next     atomic.Int64
}

const chaosTenant = "acme"

func cardOf(i int64) string { return fmt.Sprintf("c%02d", i%cards) }

// change makes one change the way that a request does: the change, and the
// relay, whose trouble is not the caller's.
func (l *load) change(ctx context.Context) error {
	n := l.next.Add(1)
	title := fmt.Sprintf("change %05d", n)
	card := cardOf(n)
	board := l.boards[n%int64(len(l.boards))]
	l.mu.Lock()
	l.tried[title] = true
	l.mu.Unlock()
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	changed, err := board.Change(ctx, chaosTenant, card, func(c *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		c.Title = title
		return c, &tracker.BoardEvent{Kind: tracker.KindEdited, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}}, nil
	})
	if err == nil {
		_, _ = board.Relay.Card(ctx, chaosTenant, card)
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.longest = max(l.longest, took)
	if err != nil {
		l.failed[title] = err
		return err
	}
	l.answered[title] = changed.Event.EID
	return nil
}

func (l *load) answers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.answered)
}

// dieUnderLoad takes the database away for some time, and a number of times for
// no time before: answers are lost, and can be asked for again.
func dieUnderLoad(t *testing.T, db *testdb.Breakable, blinks int, down time.Duration) {
	t.Helper()
	ctx := t.Context()
	database := fmt.Sprintf("t_chaos_%d", time.Now().UnixNano())
	stores := []*boardmongo.Store{openStoreAt(t, db.URI, database, newCommands()), openStoreAt(t, db.URI, database, newCommands())}
	store := stores[0]
	t.Cleanup(func() { // when the loops have ended
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, db.Start())
		require.NoError(t, store.Database().Drop(ctx))
	})
	log := testLog(t).Level(zerolog.ErrorLevel) // what fails meanwhile is no news
	l := &load{tried: map[string]bool{}, answered: map[string]string{}, failed: map[string]error{}}
	for i, s := range stores {
		member := &trigger.Membership{Replicas: s, Clock: s, Logger: log, Name: fmt.Sprint("replica-", i)}
		tail := tailOn(t, s)
		tail.HoleWait, tail.Prefers, tail.Logger = time.Second, member.Prefers, log
		relay := &trigger.Relay{Cards: s, Log: s, Heads: s, Logger: log, Wake: tail.Wake}
		l.boards = append(l.boards, &trigger.Board{Cards: s, Log: s, Clock: s, Relay: relay})
		start(t, member)
		start(t, tail)
		start(t, &trigger.Sweeper{Cards: s, Relay: relay, Clock: s, Logger: log, Every: 300 * time.Millisecond, After: time.Second})
	}
	require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: chaosTenant, ID: "s1", Name: "s1", Revision: 1, Enabled: true, BotID: "b1",
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}},
	}))
	ids := make([]string, cards)
	for i := range ids {
		ids[i] = cardOf(int64(i))
	}
	created, err := l.boards[0].ChangeMany(ctx, chaosTenant, ids, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: "b1", ColumnID: "todo", Title: "new"}, &tracker.BoardEvent{Kind: tracker.KindCreated, ToColumn: "todo"}, nil
	})
	require.NoError(t, err)
	for _, c := range created {
		require.NoError(t, c.Err)
	}

	// 50 changes at any time until the database is gone; then one more by
	// each of the changers, spread over the time until a moment after the
	// database begins to come back.
	gone := make(chan struct{})
	var working sync.WaitGroup
	ctx, stopWorking := context.WithCancel(ctx)
	defer working.Wait()
	defer stopWorking()
	for i := range changers {
		working.Go(func() {
			for {
				select {
				case <-gone:
					wait(ctx, time.Duration(i)*(down+time.Second)/changers)
					_ = l.change(ctx)
					return
				case <-ctx.Done():
					return
				default:
					_ = l.change(ctx)
				}
			}
		})
	}
	eventually(t, time.Minute, "changes under way", func() bool { return l.answers() >= 2*changers })
	for range blinks {
		before := l.answers()
		require.NoError(t, db.Stop())
		require.NoError(t, db.Start())
		eventually(t, time.Minute, "changes under way", func() bool { return l.answers() >= before+changers/2 })
	}
	stopped := time.Now()
	require.NoError(t, db.Stop())
	close(gone)
	wait(ctx, time.Until(stopped.Add(down)))
	require.NoError(t, db.Start())
	started := time.Now()
	working.Wait()

	rest := func() bool { return atRest(ctx, store) }
	eventually(t, time.Minute, "cursor at its end, no event pending", rest)
	t.Logf("down for %s; at rest %s after it was back; %d changes tried, %d answered, %d failed; longest wait %s",
		started.Sub(stopped).Round(time.Millisecond), time.Since(started).Round(time.Millisecond),
		len(l.tried), len(l.answered), len(l.failed), l.longest.Round(time.Millisecond))
	require.LessOrEqual(t, l.longest, requestTimeout+waitMargin)
	l.check(t, store)

	// It all goes on.
	for range cards {
		require.NoError(t, l.change(ctx))
	}
	eventually(t, time.Minute, "cursor at its end, no event pending", rest)
	l.check(t, store)
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// atRest reports whether nothing is left to do: an error is not yet.
func atRest(ctx context.Context, store *boardmongo.Store) bool {
	dirty, err := store.Database().Collection("tenant_heads").CountDocuments(ctx, bson.D{{Key: "dirty", Value: true}})
	if err != nil || dirty > 0 {
		return false
	}
	pending, err := store.Database().Collection("cards").CountDocuments(ctx, bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "pending_at", Value: bson.D{{Key: "$exists", Value: true}}}},
		bson.D{{Key: "pending.0", Value: bson.D{{Key: "$exists", Value: true}}}},
	}}})
	return err == nil && pending == 0
}

// check holds the log against the cards, and what callers were told.
func (l *load) check(t *testing.T, store *boardmongo.Store) {
	t.Helper()
	ctx := t.Context()
	events, err := store.EventList(ctx, chaosTenant, 0, 1_000_000)
	require.NoError(t, err)
	byCard := map[string][]trigger.Event{}
	eids := map[string]string{} // by title
	voids, edits := 0, 0
	for i, e := range events {
		require.EqualValues(t, i+1, e.Seq, "the log has no hole")
		if e.Source == trigger.SourceVoid {
			voids++
			continue
		}
		byCard[e.CardID] = append(byCard[e.CardID], e)
		if e.Kind != tracker.KindEdited {
			continue
		}
		edits++
		title := e.After.Title
		require.True(t, l.tried[title], title)
		require.Empty(t, eids[title], "%s is in the log twice", title)
		eids[title] = e.EID
	}
	for title, eid := range l.answered {
		require.Equal(t, eid, eids[title], "%s was answered", title)
	}
	there := 0
	for title := range l.failed {
		if eids[title] != "" {
			there++
		}
	}
	t.Logf("%d events, %d voids; of %d changes that failed, %d are there", len(events)-voids, voids, len(l.failed), there)

	for i := range int64(cards) {
		card, err := store.CardGet(ctx, chaosTenant, cardOf(i))
		require.NoError(t, err)
		log := byCard[card.ID]
		require.Len(t, log, int(card.Rev), "a change is the card and its event, or neither")
		require.Equal(t, card.Title, log[len(log)-1].After.Title)
		for j, e := range log {
			require.EqualValues(t, j+1, e.CardRev, "%s in its order", card.ID)
			if j > 0 {
				require.Equal(t, log[j-1].After, e.Before, "%s: before is what the one before left", card.ID)
			}
		}
	}

	// Each edit fired once.
	require.EqualValues(t, edits, countRows(t, store))
	cur, err := store.Database().Collection("trigger_effects").Find(ctx, bson.D{})
	require.NoError(t, err)
	var rows []stored[trigger.Effect]
	require.NoError(t, cur.All(ctx, &rows))
	for _, row := range rows {
		require.Equal(t, eids[row.V.Event.After.Title], row.V.Event.EID)
	}
	head, err := store.HeadGet(ctx, chaosTenant)
	require.NoError(t, err)
	require.Equal(t, head.Seq, head.Cursor)
	require.EqualValues(t, len(events), head.Seq)
}
