package boardmongo_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// laneCost counts what a lane's rows cost: the commands that name the lane or
// its rows, the claims among them, and the documents that came back.
type laneCost struct {
	word string // in the lane's name and its rows' ids

	mu                      sync.Mutex
	asked                   map[int64]bool
	commands, claims, found int
}

func (c *laneCost) monitor() *event.CommandMonitor {
	return &event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			text := e.Command.String()
			if !strings.Contains(text, c.word) {
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.commands++
			c.asked[e.RequestID] = true
			if e.CommandName == "update" && strings.Contains(text, "claimed_at") {
				c.claims++
			}
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.asked[e.RequestID] {
				return
			}
			if batch, ok := e.Reply.Lookup("cursor", "firstBatch").ArrayOK(); ok {
				values, _ := batch.Values()
				c.found += len(values)
			}
		},
	}
}

// lanesLauncher never answers for some bots.
type lanesLauncher struct{}

func (lanesLauncher) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	if strings.Contains(r.URL, "hangs") {
		<-ctx.Done()
		return trigger.Launched{}, &trigger.LaunchError{Message: "no answer"}
	}
	return trigger.Launched{}, nil
}

type openSealer struct{}

func (openSealer) Seal(_ string, s []byte) (trigger.Sealed, error) { return trigger.Sealed(s), nil }
func (openSealer) Open(_ string, s trigger.Sealed) ([]byte, error) { return []byte(s), nil }

// seedLane makes n due rows of a bot's lane, of one card.
func seedLane(t *testing.T, store *boardmongo.Store, bot string, n int) {
	t.Helper()
	ctx, now := t.Context(), store.Now()
	require.NoError(t, store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: bot, Name: bot, URL: "http://" + bot + ".invalid", Secret: "s", Revision: 1}))
	require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: "acme", ID: "s-" + bot, Name: "s-" + bot, Revision: 1, Enabled: true, BotID: bot, If: trigger.Conditions{LabelsAll: []string{"bug"}},
	}))
	for from := 0; from < n; from += 1000 {
		rows := make([]trigger.Effect, min(1000, n-from))
		for i := range rows {
			e := trigger.Event{TenantID: "acme", Seq: int64(from + i + 1), Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{
				EID: fmt.Sprint("board:", from+i), Kind: tracker.KindCreated, CardID: "c", After: &tracker.Snapshot{Labels: []string{"bug"}},
			}}
			rows[i] = trigger.Effect{
				ID: trigger.EffectID(e.ID(), "s-"+bot), TenantID: "acme", Kind: trigger.KindLaunch, Lane: trigger.LaneBot(bot), State: trigger.StatePending,
				NotBefore: now, SubscriptionID: "s-" + bot, BotID: bot, EventSeq: e.Seq, CardID: "c", Event: e, CreatedAt: now, UpdatedAt: now,
			}
		}
		_, err := store.EffectMaterialize(ctx, "acme", rows)
		require.NoError(t, err)
	}
	require.NoError(t, store.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: "acme", Lane: trigger.LaneBot(bot), Due: now}}))
}

// drainLane runs a worker until the healthy lane's 100 rows are done, and
// returns what that lane cost.
func drainLane(t *testing.T, hanging int) *laneCost {
	t.Helper()
	database := testdb.Name(t)
	store := openStoreAt(t, testdb.URI(t), database, newCommands())
	seedLane(t, store, "hangs", hanging)
	seedLane(t, store, "healthy", 100)
	cost := &laneCost{word: "healthy", asked: make(map[int64]bool)}
	watched, err := boardmongo.Connect(t.Context(), boardmongo.Params{URI: testdb.URI(t), Database: database, Monitor: cost.monitor()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = watched.Close(context.WithoutCancel(t.Context())) })
	done := make(chan struct{}, 200)
	relay := &trigger.Relay{Cards: watched, Log: watched, Heads: watched, Logger: testLog(t), FillTimeout: time.Second}
	board := &trigger.Board{Cards: watched, Log: watched, Clock: watched, Relay: relay}
	_, err = board.Change(t.Context(), "acme", "c", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "c", BoardID: "b", ColumnID: "open"}, nil, nil
	})
	require.NoError(t, err)
	w := &trigger.EffectWorker{
		Outbox: watched, Lanes: watched, Pauses: watched, Epochs: watched, Clock: watched, Logger: testLog(t), Name: "w", Grace: time.Millisecond,
		Evaluator: &trigger.Evaluator{Board: board, Outbox: watched, Config: watched, Launcher: lanesLauncher{}, Sealer: openSealer{}, Logger: testLog(t)},
		Settled: func(row trigger.Effect, s trigger.Settle) {
			if row.BotID == "healthy" && s.To == trigger.StateDone {
				done <- struct{}{}
			}
		},
	}
	stop := start(t, w)
	for i := range 100 {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%d of 100 healthy rows are done", i)
		}
	}
	stop()
	return cost
}

// TestW9_AHangingLaneCostsItsNeighbourNothing: a lane of 10,000 rows whose bot
// never answers, beside one of 100 whose bot does. What a claim of the healthy
// one sends and reads is what it is when the lane is alone.
func TestW9_AHangingLaneCostsItsNeighbourNothing(t *testing.T) {
	t.Parallel()
	alone, beside := drainLane(t, 0), drainLane(t, 10_000)
	for name, c := range map[string]*laneCost{"alone": alone, "beside 10,000 rows that hang": beside} {
		t.Logf("%s: %d commands, %d claims, %d documents", name, c.commands, c.claims, c.found)
	}
	// Rows are claimed as slots become free, in claims of other sizes each time.
	require.LessOrEqual(t, float64(beside.commands), 1.25*float64(alone.commands))
	require.LessOrEqual(t, float64(beside.found), 1.25*float64(alone.found))
	require.Less(t, alone.commands, 150, "the rows of one claim share what they look up")
}
