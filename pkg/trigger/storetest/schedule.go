package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// verdict is what becomes of one step of an actor.
type verdict int

const (
	made    verdict = iota // it takes effect
	failed                 // it fails, and takes no effect
	lost                   // it takes effect, but its answer is lost
	delayed                // it fails for its caller, and takes effect later
)

func (v verdict) String() string {
	return [...]string{"made", "failed", "answer lost", "failed, still on its way"}[v]
}

// GoString is how a failing run shows a verdict.
func (v verdict) GoString() string { return v.String() }

var (
	errInjected = errors.New("injected: no answer")
	errDead     = errors.New("the process is dead")
)

// step is one command to the store, or a part of one.
type step struct {
	name   string
	writes bool
}

// actor is one process's handling of one thing: a request, a relay, a
// sweeper's pass, a drain. It runs in a goroutine of its own, but never beside
// another: it stops before each step on the store until the schedule says what
// becomes of that step.
type actor struct {
	name string
	// replica is the tail that the actor drains with; -1 for others.
	replica  int
	cancel   context.CancelFunc
	parked   chan step // the step it stops before; closed when it is through
	verdicts chan verdict
	next     step
	dead     bool // every further step fails at once
	calls    map[string]*call
}

type actorKey struct{}

// actorOf returns the actor that a context belongs to; nil at rest, when
// nothing is scheduled.
func actorOf(ctx context.Context) *actor {
	a, _ := ctx.Value(actorKey{}).(*actor)
	return a
}

// step stops before a step and returns what shall become of it. An error
// means that it takes no effect.
func (a *actor) step(ctx context.Context, next step) (verdict, error) {
	if a.dead {
		return failed, errDead
	}
	a.parked <- next
	v := <-a.verdicts
	switch {
	case v == failed && a.dead:
		return v, errDead
	case v == failed:
		return v, errInjected
	case v == made && ctx.Err() != nil:
		return failed, ctx.Err()
	}
	return v, nil
}

// lateWrite is a write whose caller was told that it failed, or has died, and
// which has not reached the store yet, or not with all its parts.
type lateWrite struct {
	name  string
	parts []func() error
	// ordered: a part that fails ends it.
	ordered bool
}

// schedule runs actors one at a time, step by step.
type schedule struct {
	ctx    context.Context
	actors []*actor // under way, oldest first
	late   []*lateWrite
	wait   func(time.Duration)
	tick   func() // waits for the time of the next step
	count  int
	trace  []string
	panics string
}

const actorsMax = 6

// tickEvery is how much time a step takes. It is longer than the random pause
// that the engine makes before it tries again, so that steps begin at the same
// times whenever a run is repeated.
const tickEvery = 128 * time.Millisecond

// start starts an actor; it stops before its first step.
func (s *schedule) start(what string, replica int, run func(ctx context.Context, a *actor)) *actor {
	s.count++
	a := &actor{
		name: fmt.Sprintf("%d %s", s.count, what), replica: replica,
		parked: make(chan step), verdicts: make(chan verdict), calls: make(map[string]*call),
	}
	ctx, cancel := context.WithCancel(context.WithValue(s.ctx, actorKey{}, a))
	a.cancel = cancel
	s.actors = append(s.actors, a)
	s.note(a.name, "starts")
	go func() {
		defer close(a.parked)
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				s.panics = fmt.Sprintf("%s panics: %v\n%s", a.name, p, debug.Stack())
			}
		}()
		run(ctx, a)
	}()
	s.await(a)
	return a
}

func (s *schedule) await(a *actor) {
	var going bool
	if a.next, going = <-a.parked; !going {
		s.actors = slices.DeleteFunc(s.actors, func(b *actor) bool { return a == b })
		s.note(a.name, "is through")
	}
}

func (s *schedule) runs(a *actor) bool { return slices.Contains(s.actors, a) }

// resume lets an actor do its next step, or part of one.
func (s *schedule) resume(a *actor, v verdict) {
	s.tick()
	s.note(a.name, a.next.name+": "+v.String())
	a.verdicts <- v
	s.await(a)
}

// finish lets an actor run on until it is through.
func (s *schedule) finish(a *actor) {
	for s.runs(a) {
		s.resume(a, made)
	}
}

// kill ends the actor's process at its next step, which may still take effect.
func (s *schedule) kill(a *actor, v verdict) {
	s.note(a.name, "dies")
	a.dead = true
	if v == made {
		v = lost // nobody is left to get the answer
	}
	s.resume(a, v)
}

// land lets the next part of a late write reach the store.
func (s *schedule) land(w *lateWrite) {
	s.note("late", w.name)
	err := w.parts[0]()
	w.parts = w.parts[1:]
	if len(w.parts) == 0 || (err != nil && w.ordered) {
		s.late = slices.DeleteFunc(s.late, func(b *lateWrite) bool { return w == b })
	}
}

func (s *schedule) note(who, what string) { s.trace = append(s.trace, who+": "+what) }

// stepRead makes a step that changes nothing.
func stepRead[T any](ctx context.Context, name string, do func() (T, error)) (T, error) {
	if a := actorOf(ctx); a != nil {
		v, err := a.step(ctx, step{name: name})
		if err == nil && v != made {
			err = errInjected
		}
		if err != nil {
			return *new(T), err
		}
	}
	return do()
}

// stepWrite makes a step that changes one thing at once.
func stepWrite[T any](ctx context.Context, s *schedule, name string, do func() (T, error)) (T, error) {
	var out T
	err := s.writeParts(ctx, name, true, func() (err error) {
		out, err = do()
		return err
	})
	if err != nil {
		return *new(T), err
	}
	return out, nil
}

// writeParts makes a write that changes several things one after the other,
// each in a step, so that others may come between them and it may get stuck in
// the middle. An ordered one ends with the first part that fails.
func (s *schedule) writeParts(ctx context.Context, name string, ordered bool, parts ...func() error) error {
	a := actorOf(ctx)
	var errs []error
	for i, part := range parts {
		v := made
		if a != nil {
			var err error
			if v, err = a.step(ctx, step{name, true}); err != nil {
				return err
			}
		}
		if v == delayed {
			s.late = append(s.late, &lateWrite{name: a.name + " " + name, parts: parts[i:], ordered: ordered})
			return errInjected
		}
		err := part()
		if v == lost {
			return errInjected
		}
		errs = append(errs, err)
		if err != nil && ordered {
			break
		}
	}
	return errors.Join(errs...)
}

// unit is the result of a step that has none.
type unit struct{}

func noResult(err error) (unit, error) { return unit{}, err }
