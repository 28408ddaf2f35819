package trigger

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
)

// Heartbeats of replicas.
const (
	BeatEveryDefault = 2 * time.Second
	beatLives        = 3 // beats that may be missed
)

// Membership knows the live replicas and which of them a tenant prefers, by
// rendezvous hashing: when a replica comes or goes, only its own tenants move.
// It is preference, never correctness: a replica that knows of no other
// prefers to do everything itself.
type Membership struct {
	Replicas Replicas
	Clock    Clock
	Logger   zerolog.Logger
	Name     string
	Every    time.Duration // BeatEveryDefault if 0

	service startstop.Service
	mu      sync.RWMutex
	live    []string
}

// Start starts the loop; it returns once it runs.
func (m *Membership) Start(ctx context.Context) error { return m.service.Start(ctx, m.run) }

// Stop ends the loop and takes the replica's sign back, so that others step in
// at once.
func (m *Membership) Stop() { m.service.Stop() }

func (m *Membership) run(ctx context.Context) {
	every := orDefault(m.Every, BeatEveryDefault)
	var wait nudge
	for ctx.Err() == nil {
		if err := m.Beat(ctx); err != nil && ctx.Err() == nil {
			m.Logger.Warn().Err(err).Msg("membership: the heartbeat could not be written")
		}
		wait.Wait(ctx, jitter(every))
	}
	lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), every)
	defer cancel()
	if err := m.Replicas.ReplicaLeave(lctx, m.Name); err != nil {
		m.Logger.Warn().Err(err).Msg("membership: could not say that this replica leaves")
	}
}

// Beat gives one sign of life and learns who else gave one. While that fails,
// the replica prefers everything.
func (m *Membership) Beat(ctx context.Context) error {
	now := m.Clock.Now()
	live, err := m.Replicas.ReplicaBeat(ctx, m.Name, now, now.Add(-beatLives*orDefault(m.Every, BeatEveryDefault)))
	if err != nil {
		live = nil
	}
	m.mu.Lock()
	m.live = live
	m.mu.Unlock()
	return err
}

// Prefers reports whether this replica is the one that a key (a tenant, a
// task) prefers.
func (m *Membership) Prefers(key string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	mine := weight(m.Name, key)
	for _, name := range m.live {
		if name == m.Name {
			continue
		}
		if w := weight(name, key); w > mine || (w == mine && name > m.Name) {
			return false
		}
	}
	return true
}

// weight is the rendezvous weight of a replica for a key. FNV's last bytes
// hardly spread, hence the finalizer (that of MurmurHash3, by A. Appleby).
func weight(name, key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name + "\x00" + key))
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
