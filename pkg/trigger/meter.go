package trigger

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Observer takes measurements, of which it keeps a distribution. Safe for
// concurrent use.
type Observer interface{ Observe(value float64) }

// WorkerMeters take a worker's measurements; one that is nil takes none.
type WorkerMeters struct {
	// ScheduleToStart takes the seconds from a row's making to its first
	// attempt. A row that was put off with no attempt counts each time; one
	// that somebody decided about does not.
	ScheduleToStart Observer
	// EmitToDone takes the seconds from the change of the card to the end of a
	// row that did what it is for: launched, promoted or projected. One that
	// somebody decided about does not count.
	EmitToDone Observer
	// ClaimRows takes how many rows a claim got, ClaimSeconds how long it took.
	ClaimRows    Observer
	ClaimSeconds Observer
}

func observe(o Observer, v float64) {
	if o != nil {
		o.Observe(v)
	}
}

// Ending is how an attempt, or a row that was never tried, ended.
type Ending struct {
	Kind  EffectKind
	State State
	// Outcome is a done row's outcome, a failed one's reason; of one that is
	// pending again EndedRetried or EndedPutOff; else the state.
	Outcome string
}

// Endings of attempts whose rows are pending again.
const (
	// EndedRetried: it failed, and is to be tried again.
	EndedRetried = "retried"
	// EndedPutOff: there was no attempt, and none was counted.
	EndedPutOff = "put_off"
)

// Endings lists all that this version counts.
func Endings() (out []Ending) {
	for _, kind := range []EffectKind{KindLaunch, KindProjection, KindEvent} {
		for _, o := range []Outcome{
			OutcomeLaunched, OutcomePromoted, OutcomeProjected, OutcomeMatched, OutcomeOneShotSpent, OutcomeSubscriptionGone,
			OutcomeSubscriptionDisabled, OutcomeNoLongerMatches, OutcomeCardGone, OutcomeBotGone, OutcomeLoopCut,
		} {
			out = append(out, Ending{kind, StateDone, string(o)})
		}
		for _, r := range []Reason{ReasonExhausted, ReasonPermanent, ReasonLeaseExhausted, ReasonPoison} {
			out = append(out, Ending{kind, StateFailed, string(r)})
		}
		out = append(out,
			Ending{kind, StateReconcile, string(StateReconcile)}, Ending{kind, StateHeld, string(StateHeld)},
			Ending{kind, StatePending, EndedRetried}, Ending{kind, StatePending, EndedPutOff})
	}
	return out
}

// endings counts. The zero value is ready.
type endings struct {
	mu sync.Mutex
	n  map[Ending]int64
}

func (e *endings) add(kind EffectKind, state State, outcome string) {
	if state != StateDone && state != StateFailed && state != StatePending {
		outcome = string(state) // whatever an earlier end left on the row
	}
	ending := Ending{cmp.Or(kind, KindLaunch), state, outcome}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n == nil {
		e.n = make(map[Ending]int64)
	}
	e.n[ending]++
}

func (e *endings) counts() map[Ending]int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.n)
}

// workerMeter is what a worker counts besides its stats.
type workerMeter struct {
	rounds, born atomic.Int64
	endings      endings
}

// WorkerGauges is how a worker stands at the moment.
type WorkerGauges struct {
	// Busy and Free slots; Queued rows are claimed and wait for one.
	Busy, Free, Queued int
	// Open breakers hold their lanes up; HalfOpen ones let one row through.
	Open, HalfOpen int
}

// Gauges returns how the worker stands. It may be called at any time.
func (w *EffectWorker) Gauges() WorkerGauges {
	if w.running.Load() == nil {
		return WorkerGauges{}
	}
	return w.slots.gauges(time.Now())
}

// Rounds counts how often the worker has looked for due lanes, and got an
// answer.
func (w *EffectWorker) Rounds() int64 { return w.meter.rounds.Load() }

// Born counts the rows that this worker took from their birth on; they are
// claimed ones, too.
func (w *EffectWorker) Born() int64 { return w.meter.born.Load() }

// Ended counts how attempts of this worker ended, and what it parked without
// one.
func (w *EffectWorker) Ended() map[Ending]int64 { return w.meter.endings.counts() }

func (s *slots) gauges(now time.Time) WorkerGauges {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := WorkerGauges{Busy: s.busy, Free: max(0, s.size-s.busy), Queued: s.queued}
	for _, gate := range s.gates {
		switch {
		case gate.failures < breakerAfter:
		case now.Before(gate.until):
			g.Open++
		default:
			g.HalfOpen++
		}
	}
	return g
}

// measureClaim measures a claim that began at a time and got rows.
func (w *EffectWorker) measureClaim(rows int, began time.Time) {
	observe(w.Meters.ClaimRows, float64(rows))
	observe(w.Meters.ClaimSeconds, time.Since(began).Seconds())
}

// measureStart measures the beginning of an attempt.
func (w *EffectWorker) measureStart(row *Effect) {
	if row.Attempts == 1 && row.undecided() && w.Meters.ScheduleToStart != nil {
		w.Meters.ScheduleToStart.Observe(max(0, w.Clock.Now().Sub(row.CreatedAt).Seconds()))
	}
}

// measureEnd counts and measures a settle that stands.
func (w *EffectWorker) measureEnd(row *Effect, s *Settle) {
	outcome := ""
	switch s.To {
	case StateDone:
		outcome = string(s.Outcome)
	case StateFailed:
		outcome = string(s.Reason)
	case StatePending:
		if outcome = EndedRetried; s.HandBack || s.Uncount {
			outcome = EndedPutOff
		}
	}
	w.meter.endings.add(row.Kind, s.To, outcome)
	did := s.Outcome == OutcomeLaunched || s.Outcome == OutcomePromoted || s.Outcome == OutcomeProjected
	if s.To == StateDone && did && row.undecided() && !row.Event.At.IsZero() {
		observe(w.Meters.EmitToDone, max(0, s.At.Sub(row.Event.At).Seconds()))
	}
}

// undecided reports whether nobody has decided about the row: what it waited
// for a person tells nothing of the machine.
func (e *Effect) undecided() bool { return e.Generation == 0 && len(e.History) == 0 }

// tailMeter is what a tail counts besides its evaluations.
type tailMeter struct {
	drained, owed, poison, holes atomic.Int64
	endings                      endings
}

// Drained counts the events that this tail has moved cursors past.
func (t *Tail) Drained() int64 { return t.meter.drained.Load() }

// Owed counts the rows that those events owed.
func (t *Tail) Owed() int64 { return t.meter.owed.Load() }

// Poisoned counts those events that were kept as poison rows (T5).
func (t *Tail) Poisoned() int64 { return t.meter.poison.Load() }

// HolesClosed counts the seqs that this tail gave up (T3).
func (t *Tail) HolesClosed() int64 { return t.meter.holes.Load() }

// Ended counts the rows of those events that were over, held or failed as they
// were made.
func (t *Tail) Ended() map[Ending]int64 { return t.meter.endings.counts() }

// passed counts, and tells in the log, what is so once this tail has moved the
// cursor past the batch.
func (t *Tail) passed(j *judged) {
	j.log(t.Logger)
	t.meter.drained.Add(int64(j.n))
	t.meter.owed.Add(int64(len(j.rows)))
	t.meter.poison.Add(int64(len(j.poison)))
	for i := range j.rows {
		switch row := &j.rows[i]; row.State {
		case StateDone:
			t.meter.endings.add(row.Kind, row.State, string(row.Outcome))
		case StateFailed:
			t.meter.endings.add(row.Kind, row.State, string(row.Reason))
		case StateHeld:
			t.meter.endings.add(row.Kind, row.State, "")
		}
	}
}
