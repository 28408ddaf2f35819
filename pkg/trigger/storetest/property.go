package storetest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// PropertyParams says how to run Property.
type PropertyParams struct {
	// Checks is how many random runs there are, where -rapid.checks does not say.
	Checks int
	// InMemory: the store opens in no time and needs no network: each run gets
	// one of its own, in bubbled time, and is the same when it is repeated.
	// Otherwise each gets a tenant of its own in one store.
	InMemory bool
}

// stepsDefault is how many actions a run has on average, where -rapid.steps
// does not say.
const stepsDefault = 60

// Property runs random interleavings of callers, relays, sweepers and replicas
// that die at any step, over a store that fails, loses answers and is late;
// and looks, when all has come to rest, whether each change that took effect
// has been matched exactly once (E1–E5, T1–T4).
func Property(t *testing.T, open func(t *testing.T) trigger.Store, p PropertyParams) {
	t.Helper()
	flagDefault(t, "rapid.checks", p.Checks)
	flagDefault(t, "rapid.steps", stepsDefault)
	var store trigger.Store
	if !p.InMemory {
		store = open(t)
	}
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		var err error
		var trace []string
		if p.InMemory {
			rapid.SyncTest(rt, func(rt *rapid.T) { trace, err = interleave(rt, open(t), tenant, true) })
		} else {
			trace, err = interleave(rt, store, fmt.Sprintf("%s-%d", tenant, runs), false)
		}
		if err != nil {
			rt.Log(strings.Join(trace, "\n"))
			rt.Fatal(err)
		}
	})
}

// flagDefault sets a flag of rapid's that neither the command line nor the
// environment has set.
func flagDefault(t *testing.T, name string, value int) {
	t.Helper()
	_, given := os.LookupEnv(strings.ToUpper(strings.ReplaceAll(name, ".", "_")))
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if !given {
		if err := flag.Set(name, strconv.Itoa(value)); err != nil {
			t.Fatal(err)
		}
	}
}

var cardIDs = []string{"c1", "c2", "c3"}

const shipIt = "ship-it"

// firing says, of each subscription's id, what fires it.
var firing = map[string]func(e *trigger.Event) bool{
	"edge": func(e *trigger.Event) bool { return asked(e.After) && !asked(e.Before) },
	"kind": func(e *trigger.Event) bool {
		return e.Kind == tracker.KindCreated || e.Kind == tracker.KindMoved || e.Kind == tracker.KindDeleted
	},
}

// asked is the edge's condition.
func asked(s *tracker.Snapshot) bool {
	return s != nil && s.ColumnID == "ready" && slices.Contains(s.Labels, shipIt)
}

func subscriptions(tenantID string) []*trigger.Subscription {
	return []*trigger.Subscription{
		{
			TenantID: tenantID, ID: "edge", Name: "edge", Revision: 1, Enabled: true, BotID: "bot1",
			If: trigger.Conditions{Columns: []string{"ready"}, LabelsAll: []string{shipIt}},
		},
		{
			TenantID: tenantID, ID: "kind", Name: "kind", Revision: 1, Enabled: true, BotID: "bot2",
			On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated, tracker.KindMoved, tracker.KindDeleted}},
		},
	}
}

// world is one run: two replicas over one store.
type world struct {
	*stepped
	board   *trigger.Board
	relay   *trigger.Relay
	sweeper *trigger.Sweeper
	tails   [2]*trigger.Tail
	faults  int
	cards   []string // that things are done to, one by one
	kinds   []string // of what is started
}

// patiences are those that a run's tails and sweepers may have. The short one
// is about as long as actors make steps while they meet each other.
var patiences = []time.Duration{15 * tickEvery, time.Minute}

// faultsMax keeps transient errors below the number that makes an event poison
// (T5).
const faultsMax = trigger.PoisonTries - 5

func newWorld(ctx context.Context, store trigger.Store, tenantID string, patience time.Duration, bubbled bool) *world {
	w := &world{stepped: &stepped{Store: store, schedule: &schedule{ctx: ctx}, tenant: tenantID, patience: patience, ledger: newLedger()}}
	w.wait = func(d time.Duration) { w.offset += d }
	w.tick = func() { w.wait(tickEvery) }
	if began := time.Now(); bubbled {
		w.wait = time.Sleep
		w.tick = func() { time.Sleep(tickEvery - time.Since(began)%tickEvery) }
	}
	w.relay = &trigger.Relay{Cards: w, Log: w, Heads: w, FillTimeout: trigger.StoreTimeoutDefault}
	w.board = &trigger.Board{Cards: w, Log: w, Clock: w, Relay: w.relay}
	w.sweeper = &trigger.Sweeper{Cards: w, Relay: w.relay, Clock: w, After: patience}
	for i := range w.tails {
		w.tails[i] = w.newTail()
	}
	return w
}

func (w *world) newTail() *trigger.Tail {
	return &trigger.Tail{Cards: w, Log: w, Heads: w, Config: w, Outbox: w, Lanes: w, Clock: w, Epochs: w, Logger: zerolog.Nop(), HoleWait: w.patience}
}

// interleave makes one run, and returns what happened in it.
func interleave(rt *rapid.T, store trigger.Store, tenantID string, bubbled bool) ([]string, error) {
	patience := rapid.SampledFrom(patiences).Draw(rt, "patience")
	w := newWorld(rt.Context(), store, tenantID, patience, bubbled)
	for _, s := range subscriptions(tenantID) {
		if err := store.SubscriptionSave(w.ctx, s); err != nil {
			return nil, err
		}
	}
	defer w.crash() // whatever happens, no actor is left behind
	rt.Repeat(w.actions(rt))
	if rapid.Bool().Draw(rt, "all die in the end") {
		w.crash()
	}
	for len(w.actors) > 0 {
		w.finish(w.actors[0])
	}
	err := w.rest()
	for err == nil && len(w.late) > 0 {
		for len(w.late) > 0 {
			w.land(w.late[0])
		}
		err = w.rest()
	}
	if err == nil {
		err = w.judge()
	}
	if w.panics != "" {
		err = fmt.Errorf("%s", w.panics)
	}
	return w.trace, err
}

// crash kills whoever is under way.
func (w *world) crash() {
	for len(w.actors) > 0 {
		w.die(w.actors[0], failed)
	}
}

// die kills an actor; one that drains takes its replica's memory along.
func (w *world) die(a *actor, v verdict) {
	w.kill(a, v)
	if a.replica >= 0 {
		w.tails[a.replica] = w.newTail()
	}
}

// rest lets time pass, and the sweeper and the replicas work undisturbed,
// until nothing changes any more.
func (w *world) rest() error {
	const rounds = 20
	last, still := "", 0
	for range rounds {
		w.wait(time.Hour)
		if _, err := w.sweeper.Sweep(w.ctx); err != nil {
			return fmt.Errorf("at rest: %w", err)
		}
		for _, tail := range w.tails {
			if err := drainAll(w.ctx, tail, w.tenant); err != nil {
				return fmt.Errorf("at rest: %w", err)
			}
		}
		now, err := w.look()
		if err != nil {
			return err
		}
		if still++; now != last {
			last, still = now, 0
		}
		if still == 2 {
			return nil
		}
	}
	return fmt.Errorf("it does not come to rest in %d rounds: %s", rounds, last)
}

// look sums up what still could change.
func (w *world) look() (string, error) {
	head, err := w.Store.HeadGet(w.ctx, w.tenant)
	if err != nil {
		head = &trigger.Head{}
	}
	pending := 0
	for _, id := range cardIDs {
		if card, err := w.Store.CardGet(w.ctx, w.tenant, id); err == nil {
			pending += 1 + len(card.Pending)
		}
	}
	return fmt.Sprintf("seq %d, cursor %d, %d cards and pending events", head.Seq, head.Cursor, pending), nil
}

// poll drains while there is more, and waits a little for a hole to be filled
// or to be closed.
func poll(ctx context.Context, tail *trigger.Tail, tenantID string) {
	const looks = 10
	for range looks {
		d, err := tail.Drain(ctx, tenantID)
		if err != nil || (!d.More && d.Retry == 0) {
			return
		}
	}
}

// drainAll drains while there is more.
func drainAll(ctx context.Context, tail *trigger.Tail, tenantID string) error {
	for range 100 {
		d, err := tail.Drain(ctx, tenantID)
		if err != nil || !d.More {
			return err
		}
	}
	return fmt.Errorf("drain of %s never ends", tenantID)
}
