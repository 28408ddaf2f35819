package trigger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func orDefault[T comparable](v, def T) T {
	if v == *new(T) {
		return def
	}
	return v
}

// pause waits a little before a try that follows others, with jitter, so that
// those who got in each other's way do not do so again. It ends with ctx.
func pause(ctx context.Context, tries int) {
	if tries < 2 {
		return
	}
	t := time.NewTimer(rand.N(min(time.Millisecond<<min(tries, 10), 100*time.Millisecond))) //nolint:gosec // jitter is no secret
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// safely turns a panic into an error: on a goroutine of its own it would end the
// process.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// nudge wakes one waiting loop; nudges while it works fold into one. The zero
// value is ready.
type nudge struct {
	once sync.Once
	ch   chan struct{}
}

func (n *nudge) c() chan struct{} {
	n.once.Do(func() { n.ch = make(chan struct{}, 1) })
	return n.ch
}

// Nudge wakes the waiter, now or at its next Wait.
func (n *nudge) Nudge() {
	select {
	case n.c() <- struct{}{}:
	default:
	}
}

// Wait returns after a nudge, after d, or when ctx ends.
func (n *nudge) Wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-n.c():
	case <-t.C:
	}
}

// onceSet says of each key whether it is new. The zero value is ready.
type onceSet struct{ m sync.Map }

// First reports whether the key has not been seen before.
func (o *onceSet) First(key string) bool {
	_, seen := o.m.LoadOrStore(key, struct{}{})
	return !seen
}
