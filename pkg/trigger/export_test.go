package trigger

import "context"

// StoredMatcher compiles a subscription as the tail does one that it reads.
var StoredMatcher = storedMatcher

// Render renders a subscription's args and vars for an event.
func Render(s *Subscription, e *Event) (args, vars map[string]string, err error) {
	t, err := compileTexts(s)
	if err != nil {
		return nil, nil, err
	}
	r, err := t.render(s, e)
	return r.args, r.vars, err
}

// MatchAll matches events against subscriptions as the tail does; the function
// returns how many evaluations an event took and how many rows it owes.
func MatchAll(subs []Subscription, clock Clock) func(e *Event) (evaluated int64, rows int) {
	set := make(map[string]*Matcher, len(subs))
	for i := range subs {
		set[subs[i].ID] = storedMatcher(&subs[i])
	}
	t := &Tail{Clock: clock}
	w := watchers{subs: compile(set)}
	return func(e *Event) (int64, int) {
		var out judged
		before := t.evals.Load()
		t.match(&out, e, w)
		return t.evals.Load() - before, len(out.rows)
	}
}

// InUse returns how many slots are taken, and how many rows wait for one.
func (w *EffectWorker) InUse() (busy, queued int) {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	return w.slots.busy, w.slots.queued
}

// Bear has the worker claim rows that are about to be inserted, and gives them
// up.
func (w *EffectWorker) Bear(rows []Effect) {
	if b, _ := w.bear(context.Background(), rows); b != nil {
		b.giveUp()
	}
}
