package server

import (
	"math"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// failuresMaxDefault is how many calls with bad tokens an address may make
	// in failuresWindow.
	failuresMaxDefault = 20
	failuresWindow     = time.Minute
	// knownFor is how long a token that was good from an address gets through
	// although the address is held up.
	knownFor = time.Hour
	// failuresRoom bounds how many addresses, and how many tokens, are
	// remembered. An attacker who has more addresses than that has as many
	// tries; a token is of 256 bits.
	failuresRoom = 4096
	// failuresLogEvery is how often a failure is logged, at most.
	failuresLogEvery = time.Second
)

// failures holds up addresses that come with bad tokens again and again. It is
// of one replica and forgets with it. Safe for concurrent use.
type failures struct {
	max int
	now func() time.Time

	mu    sync.Mutex
	tries map[string]*tries
	known map[knownToken]time.Time
	// logged is when the last failure was, unlogged how many came since.
	logged   time.Time
	unlogged int
}

// tries are an address's failures since the beginning of its window.
type tries struct {
	since time.Time
	count int
}

type knownToken struct{ address, hash string }

func newFailures() *failures {
	return &failures{max: failuresMaxDefault, now: time.Now, tries: make(map[string]*tries), known: make(map[knownToken]time.Time)}
}

// addressOf is what counts as one address: an IPv4 address, or the /64 of an
// IPv6 one, which a single host has to itself. No forwarded header has a say:
// anybody can send one.
func addressOf(remote string) string {
	addr, err := netip.ParseAddr(hostOf(remote))
	if err != nil {
		return remote
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // never fails: the address has no zone
		return prefix.String()
	}
	return addr.String()
}

// blocked returns how many seconds the address has to wait; 0 if it may try,
// or if the token was good from there lately: what others do from behind the
// same address must not lock it out.
func (f *failures) blocked(address, hash string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	t := f.tries[address]
	if t == nil || t.count < f.max {
		return 0
	}
	left := failuresWindow - now.Sub(t.since)
	if left <= 0 {
		delete(f.tries, address)
		return 0
	}
	if at, ok := f.known[knownToken{address, hash}]; ok && now.Sub(at) < knownFor {
		return 0
	}
	return int(math.Ceil(left.Seconds()))
}

// good remembers that the token was good from the address.
func (f *failures) good(address, hash string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	k := knownToken{address, hash}
	if _, ok := f.known[k]; !ok {
		makeRoom(f.known, func(at time.Time) time.Time { return at }, now.Add(-knownFor))
	}
	f.known[k] = now
}

// bad counts a bad token from the address, and forgets that it was good.
func (f *failures) bad(log *zerolog.Logger, address, hash, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	delete(f.known, knownToken{address, hash})
	t := f.tries[address]
	if t == nil || now.Sub(t.since) >= failuresWindow {
		if t == nil {
			makeRoom(f.tries, func(t *tries) time.Time { return t.since }, now.Add(-failuresWindow))
		}
		t = &tries{since: now}
		f.tries[address] = t
	}
	t.count++
	if now.Sub(f.logged) < failuresLogEvery && t.count != f.max {
		f.unlogged++
		return
	}
	log.Info().Str("address", address).Str("why", why).Int("failures", t.count).Bool("held_up", t.count >= f.max).
		Int("unlogged", f.unlogged).Msg("a call with a bad token")
	f.logged, f.unlogged = now, 0
}

// makeRoom takes what is older than before out of a full map, or else the
// oldest.
func makeRoom[K comparable, V any](m map[K]V, at func(V) time.Time, before time.Time) {
	if len(m) < failuresRoom {
		return
	}
	var oldest K
	var when time.Time
	for k, v := range m {
		switch t := at(v); {
		case t.Before(before):
			delete(m, k)
		case when.IsZero() || t.Before(when):
			oldest, when = k, t
		}
	}
	if len(m) >= failuresRoom {
		delete(m, oldest)
	}
}

func seconds(n int) string { return strconv.Itoa(n) }
