package server

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// marked is in all that somebody named: no metric may have it.
const marked = "zzq"

// turns notes the turns that replicas got, and their counts.
type turns struct {
	mu     sync.Mutex
	taken  []time.Time
	counts int
}

func (n *turns) got() (taken []time.Time, counts int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(slices.Values(n.taken), time.Time.Compare), n.counts
}

// turnStore is a database's store that notes them.
type turnStore struct {
	*boardmongo.Store

	turns *turns
}

func (s turnStore) FleetTake(ctx context.Context, by string, at, ifBefore time.Time) (bool, error) {
	ok, err := s.Store.FleetTake(ctx, by, at, ifBefore)
	if ok {
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		s.turns.taken = append(s.turns.taken, at)
	}
	return ok, err
}

func (s turnStore) FleetCount(ctx context.Context, now time.Time, most int) (trigger.FleetNumbers, error) {
	s.turns.mu.Lock()
	s.turns.counts++
	s.turns.mu.Unlock()
	return s.Store.FleetCount(ctx, now, most)
}

// metered are two replicas on one database, with a bot that launches, one that
// refuses for good, and one that can't be asked twice and does not answer.
type metered struct {
	turns    *turns
	replicas []*Server
	client   *http.Client
}

const meteredEvery = time.Second

func newMetered(t *testing.T) *metered {
	t.Helper()
	m := &metered{turns: &turns{}, client: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(m.client.CloseIdleConnections)
	key, err := seal.ParseKey(seal.NewKey())
	require.NoError(t, err)
	sealer, err := seal.New(key)
	require.NoError(t, err)
	first := testdb.Store(t)
	require.NoError(t, first.SchemaApply(t.Context()))
	second, err := boardmongo.Connect(t.Context(), boardmongo.Params{URI: testdb.URI(t), Database: first.Database().Name()})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		assert.NoError(t, second.Close(ctx))
	})
	configureMetered(t, first, sealer)
	launch := launchFunc(func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
		switch {
		case strings.HasSuffix(r.URL, "/refuses"):
			return trigger.Launched{}, &trigger.LaunchError{Message: marked, Permanent: true, Definite: true, Status: http.StatusBadRequest}
		case strings.HasSuffix(r.URL, "/hangs"):
			return trigger.Launched{}, &trigger.LaunchError{Message: marked}
		}
		return trigger.Launched{RunID: marked}, nil
	})
	for i, store := range []*boardmongo.Store{first, second} {
		s, err := New(Params{
			Store: turnStore{store, m.turns}, Sealer: sealer, Launcher: launch, Logger: zerolog.Nop(), Listen: "127.0.0.1:0",
			Name: marked + string(rune('a'+i)), Timing: TimingDefault(), FleetEvery: meteredEvery,
		})
		require.NoError(t, err)
		require.NoError(t, s.Start(t.Context()))
		t.Cleanup(s.Stop)
		m.replicas = append(m.replicas, s)
	}
	return m
}

func configureMetered(t *testing.T, store trigger.Store, sealer trigger.Sealer) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, store.TenantSave(ctx, &trigger.Tenant{ID: marked, Name: marked, Revision: 1}))
	require.NoError(t, store.BoardSave(ctx, &tracker.Board{TenantID: marked, ID: marked + "board", Name: marked, Revision: 1, Columns: []tracker.Column{{ID: marked, Name: marked}}}))
	for _, does := range []string{"launches", "refuses", "hangs"} {
		id := marked + does
		secret, err := sealer.Seal(trigger.BotOwner(marked, id), []byte(marked))
		require.NoError(t, err)
		bot := &trigger.Bot{TenantID: marked, ID: id, Name: id, URL: "http://127.0.0.1:1/" + does, Replay: trigger.ReplaySafe, Secret: secret, Revision: 1}
		if does == "hangs" {
			bot.Replay = trigger.ReplayUnsafe
		}
		require.NoError(t, store.BotSave(ctx, bot))
		require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{
			TenantID: marked, ID: id, Name: id, Revision: 1, Enabled: true, BotID: id,
			On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated}},
		}))
	}
}

// scrape asks each replica, and returns the answers.
func (m *metered) scrape(t *testing.T) (out []scrape, bodies []string) {
	t.Helper()
	for _, s := range m.replicas {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+"/metrics", http.NoBody)
		require.NoError(t, err)
		resp, err := m.client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		out, bodies = append(out, readScrape(t, string(body))), append(bodies, string(body))
	}
	return out, bodies
}

// Two replicas on a database: an effect that launches, one that fails and one
// that nobody knows about move the metrics, those of the fleet on both
// replicas, though one counts in a period; and nothing of it names anybody.
func TestMetrics_OfAFleet(t *testing.T) {
	t.Parallel()
	m := newMetered(t)
	_, err := m.replicas[0].board.Change(t.Context(), marked, marked+"card", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{BoardID: marked + "board", ColumnID: marked, Title: marked},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: marked}, ToColumn: marked}, nil
	})
	require.NoError(t, err)

	// Both count for themselves: together they have it.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got, _ := m.scrape(t)
		for name, want := range map[string]float64{
			`triggerd_effects_total{kind="launch",outcome="launched",state="done"}`:       1,
			`triggerd_effects_total{kind="launch",outcome="permanent",state="failed"}`:    1,
			`triggerd_effects_total{kind="launch",outcome="reconcile",state="reconcile"}`: 1,
			"triggerd_settles_total":                   3,
			"triggerd_effects_owed_total":              3,
			"triggerd_schedule_to_start_seconds_count": 3,
			"triggerd_emit_to_done_seconds_count":      1,
			"triggerd_events_drained_total":            3, // with those that tell of the parked rows
			"triggerd_effects_announced_total":         2,
		} {
			assert.InDelta(c, want, got[0].samples[name]+got[1].samples[name], 0, name)
		}
		for i := range got {
			for name, want := range map[string]float64{
				`triggerd_fleet_effects{state="failed"}`:    1,
				`triggerd_fleet_effects{state="reconcile"}`: 1,
				`triggerd_fleet_effects{state="ready"}`:     0,
				`triggerd_fleet_effects{state="in_flight"}`: 0,
				"triggerd_fleet_event_lag":                  0,
				"triggerd_fleet_oldest_ready_seconds":       0,
			} {
				assert.Contains(c, got[i].samples, name)
				assert.InDelta(c, want, got[i].samples[name], 0, "replica %d: %s", i, name)
			}
			assert.Contains(c, got[i].samples, "triggerd_fleet_age_seconds")
			assert.Positive(c, got[i].samples[`triggerd_store_command_seconds_count{command="find"}`])
			assert.Positive(c, got[i].samples["triggerd_worker_rounds_total"])
			assert.Positive(c, got[i].samples[`triggerd_worker_slots{state="free"}`])
		}
		taken, _ := m.turns.got()
		assert.GreaterOrEqual(c, len(taken), 2)
	}, wait, 50*time.Millisecond)

	got, bodies := m.scrape(t)
	families, _ := declared(t)
	for i, s := range got {
		assert.NotContains(t, bodies[i], marked, "a metric names somebody")
		for name, kind := range s.kinds {
			assert.Equal(t, families[name].kind, kind, name)
			var labels []string
			for l := range s.labels[name] {
				labels = append(labels, l)
			}
			assert.ElementsMatch(t, families[name].labels, labels, name)
		}
		for name := range families {
			if name != "triggerd_fleet_capped" { // nothing is
				assert.Contains(t, s.kinds, name)
			}
		}
	}
	for _, s := range m.replicas {
		s.Stop()
	}
	taken, counts := m.turns.got()
	require.Equal(t, len(taken), counts, "who counts has the turn")
	for i := 1; i < len(taken); i++ {
		require.GreaterOrEqual(t, taken[i].Sub(taken[i-1]), meteredEvery*3/4, "two counts in one period")
	}
}

type setClock struct{ now time.Time }

func (c *setClock) Now() time.Time { return c.now }

// A replica that can't read the fleet's numbers any more does not go on telling
// them: the others' are right, and what asks for the max would believe the old.
func TestMetrics_FleetNumbersThatAreOld(t *testing.T) {
	t.Parallel()
	clock := &setClock{now: time.Now()}
	s := &Server{fleet: &trigger.FleetWatch{Counts: boardmem.New(), Clock: clock, Name: "replica-1"}}
	require.NoError(t, s.fleet.Look(t.Context()))
	told := func() (names []string) {
		for _, f := range s.fleetFamilies() {
			n := 0
			f.values(func(float64, ...string) { n++ })
			if n > 0 {
				names = append(names, f.name)
			}
		}
		return names
	}
	clock.now = clock.now.Add(fleetToldFor)
	require.Greater(t, len(told()), 5)
	clock.now = clock.now.Add(time.Second)
	require.Equal(t, []string{"triggerd_fleet_age_seconds", "triggerd_fleet_counts_total"}, told())
}
