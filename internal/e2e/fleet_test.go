package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	fleetEnv     = "TRIGGERD_TEST_FLEET" // "<uri> <database> <lease>": this process is one of the fleet
	fleetRows    = 20_000
	fleetLanes   = 50
	fleetWorkers = 4 // in each process
)

// plain seals nothing.
type plain struct{}

func (plain) Seal(_ string, secret []byte) (trigger.Sealed, error) {
	return trigger.Sealed(secret), nil
}
func (plain) Open(_ string, s trigger.Sealed) ([]byte, error) { return []byte(s), nil }

// fleetProcess runs workers until its standard input ends.
func fleetProcess(spec string) error {
	var uri, database, lease string
	if _, err := fmt.Sscan(spec, &uri, &database, &lease); err != nil {
		return err
	}
	held, err := time.ParseDuration(lease)
	if err != nil {
		return err
	}
	ctx := context.Background()
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: uri, Database: database})
	if err != nil {
		return err
	}
	launcher := launch.NewHTTP(launch.HTTPParams{Timeout: held / 3})
	log := zerolog.New(os.Stderr).Level(zerolog.WarnLevel)
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store, FillTimeout: time.Second, Logger: log}
	board := &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}
	sweeper := &trigger.LaneSweeper{Outbox: store, Lanes: store, Pauses: store, Config: store, Clock: store, Logger: log}
	if err := sweeper.Start(ctx); err != nil {
		return err
	}
	for n := range fleetWorkers {
		w := &trigger.EffectWorker{
			Outbox: store, Lanes: store, Pauses: store, Epochs: store, Clock: store, Logger: log, Name: fmt.Sprintf("%d-%d", os.Getpid(), n),
			Evaluator: &trigger.Evaluator{Board: board, Outbox: store, Config: store, Launcher: launcher, Sealer: plain{}, Logger: log},
			Lease:     held, AttemptDeadline: held / 2,
		}
		if err := w.Start(ctx); err != nil {
			return err
		}
		defer w.Stop()
	}
	fmt.Println("runs")
	_, _ = io.Copy(io.Discard, os.Stdin)
	sweeper.Stop()
	return nil
}

// fleet is a database with rows, the bot that they launch, and processes.
type fleet struct {
	store *boardmongo.Store
	uri   string
	db    string

	mu       sync.Mutex
	launched map[string]int
	n        int
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{uri: testdb.URI(t), db: testdb.Name(t), launched: make(map[string]int)}
	bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.launched[r.Header.Get("Idempotency-Key")]++
		f.n++
	}))
	t.Cleanup(bot.Close)
	ctx := t.Context()
	store, err := boardmongo.Connect(ctx, boardmongo.Params{URI: f.uri, Database: f.db})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close(context.WithoutCancel(ctx)) })
	require.NoError(t, store.SchemaApply(ctx))
	f.store = store
	for lane := range fleetLanes {
		id := fmt.Sprintf("bot%02d", lane)
		require.NoError(t, store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: id, Name: id, URL: bot.URL, Secret: "s", Revision: 1}))
		require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{
			TenantID: "acme", ID: "s" + id, Name: "s" + id, Revision: 1, Enabled: true, BotID: id, If: trigger.Conditions{LabelsAll: []string{"bug"}},
		}))
	}
	board := &trigger.Board{Cards: store, Log: store, Clock: store}
	_, err = board.Change(ctx, "acme", "c", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "c", BoardID: "b", ColumnID: "open"}, nil, nil
	})
	require.NoError(t, err)
	now := store.Now()
	for from := 0; from < fleetRows; from += 1000 {
		rows := make([]trigger.Effect, 1000)
		for i := range rows {
			n := from + i
			bot := fmt.Sprintf("bot%02d", n%fleetLanes)
			e := trigger.Event{TenantID: "acme", Seq: int64(n + 1), Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{
				EID: fmt.Sprint("board:", n), Kind: tracker.KindCreated, CardID: "c", After: &tracker.Snapshot{Labels: []string{"bug"}},
			}}
			rows[i] = trigger.Effect{
				ID: trigger.EffectID(e.ID(), "s"+bot), TenantID: "acme", Kind: trigger.KindLaunch, Lane: trigger.LaneBot(bot), State: trigger.StatePending,
				NotBefore: now, SubscriptionID: "s" + bot, BotID: bot, EventSeq: e.Seq, CardID: "c", Event: e, CreatedAt: now, UpdatedAt: now,
			}
		}
		_, err := store.EffectMaterialize(ctx, "acme", rows)
		require.NoError(t, err)
	}
	return f // the lanes are for the sweep to find
}

// process starts one process of the fleet; it ends with the test, or by kill.
func (f *fleet) process(t *testing.T, lease time.Duration) (kill func()) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s", fleetEnv, f.uri, f.db, lease))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 5)
	_, err = io.ReadFull(stdout, line)
	require.NoError(t, err)
	var once sync.Once
	end := func(kill bool) {
		once.Do(func() {
			if kill {
				_ = cmd.Process.Kill()
			}
			_ = stdin.Close()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(func() { end(false) })
	return func() { end(true) }
}

func (f *fleet) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n
}

// rest waits until every row is done, and returns how often each key launched.
func (f *fleet) rest(t *testing.T) map[string]int {
	t.Helper()
	rows := f.store.Database().Collection("trigger_effects")
	deadline := time.Now().Add(4 * time.Minute)
	for {
		done, err := rows.CountDocuments(t.Context(), bson.D{{Key: "state", Value: trigger.StateDone}, {Key: "outcome", Value: trigger.OutcomeLaunched}})
		require.NoError(t, err)
		if done == fleetRows {
			break
		}
		require.True(t, time.Now().Before(deadline), "%d of %d rows are done, %d launches", done, fleetRows, f.count())
		time.Sleep(200 * time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Len(t, f.launched, fleetRows, "each row, under a key of its own")
	return f.launched
}

// TestW1_FleetExecutesEachRowOnce: 8 workers in 2 processes, 20,000 rows in 50
// lanes.
func TestW1_FleetExecutesEachRowOnce(t *testing.T) {
	f := newFleet(t)
	f.process(t, 2*time.Minute)
	f.process(t, 2*time.Minute)
	began := time.Now()
	launched := f.rest(t)
	t.Logf("%d rows in %s", fleetRows, time.Since(began))
	for key, n := range launched {
		require.Equal(t, 1, n, key)
	}
}

// TestW4_FleetLosesAProcess: the same with one process killed on the way. Its
// rows are taken over when their leases run out.
func TestW4_FleetLosesAProcess(t *testing.T) {
	f := newFleet(t)
	const lease = 20 * time.Second
	f.process(t, lease)
	kill := f.process(t, lease)
	eventually(t, "a quarter of the launches", func() bool { return f.count() > fleetRows/4 })
	kill()
	launched := f.rest(t)
	twice := 0
	for _, n := range launched {
		if n > 1 {
			twice++
		}
	}
	t.Logf("%d of %d rows were launched again", twice, fleetRows)
	// What was in flight when it died, and nothing else.
	require.LessOrEqual(t, twice, fleetWorkers*trigger.SlotsDefault)
}
