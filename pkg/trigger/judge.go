package trigger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Limits of poison (T5).
const (
	PoisonTries = 20
	PoisonAfter = 10 * time.Minute
	// EventMaxBytes is the largest event that a row can carry, about.
	EventMaxBytes = 1 << 20
)

// evaluationOf begins the message of a poison row that is of one subscription's
// evaluation; its id follows.
const evaluationOf = "subscription "

// judged is what a batch owes.
type judged struct {
	n      int // events judged: the batch ends there
	rows   []Effect
	poison []Effect
	// failing are the subscriptions that have failed too often.
	failing []failing
	// subs are the subscriptions that were matched, by id, and storm is what
	// the storm guard knows once the batch is written.
	subs  map[string]*Matcher
	storm *tenantStorm
}

// log tells of each poison event, once, when the cursor has passed it.
func (j judged) log(log zerolog.Logger) {
	for i := range j.poison {
		row := &j.poison[i]
		log.Error().Str("tenant", row.TenantID).Int64("seq", row.EventSeq).Str("effect", row.ID).
			Str("error", row.Errors[0].Message).Msg("tail: poison event, kept as a failed row")
	}
}

// judge normalizes and matches the events of a batch. An event whose reading
// fails ends the batch before it; if it is the first, that is a try of it.
func (t *Tail) judge(ctx context.Context, tenantID string, events []Event) (judged, error) {
	for i := range events {
		if err := checkFeatures("event "+events[i].ID(), events[i].Requires); err != nil {
			return judged{}, err // never poison: others know it
		}
	}
	normalized := NormalizeBoardEvents(ctx, t.Cards, tenantID, events)
	var out judged
	if cause := normalized[0].Err; cause != nil {
		poisoned, err := t.tried(ctx, &events[0])
		if err != nil || !poisoned {
			return judged{}, errors.Join(fmt.Errorf("event %d: %w", events[0].Seq, cause), err)
		}
		t.poison(&out, &events[0], cause)
		out.n = 1
		return out, nil
	}
	w, err := t.watchers(ctx, tenantID)
	if err != nil {
		return judged{}, err
	}
	out.subs = w.subs.subs
	for i := range events {
		e := &events[i]
		if normalized[i].failed() {
			break // the batch ends before it
		}
		out.n++
		e.timed()
		if e.Source != SourceVoid && !normalized[i].Gone {
			t.owe(&out, e, w)
		}
	}
	return out, nil
}

// watchers are what a tenant's events are matched against.
type watchers struct {
	subs        *compiledSet
	projections []Projection
}

// watchers reads them, after the events: one whose save was answered before an
// event was written is seen by that event's batch (T7).
func (t *Tail) watchers(ctx context.Context, tenantID string) (w watchers, err error) {
	if w.subs, err = t.cache.load(ctx, t.Config, tenantID); err != nil {
		return w, fmt.Errorf("subscriptions: %w", err)
	}
	if w.subs.unknown != nil {
		return w, w.subs.unknown
	}
	if w.projections, err = t.Config.ProjectionList(ctx, tenantID); err != nil {
		return w, fmt.Errorf("projections: %w", err)
	}
	return w, nil
}

// owe adds the rows that a normalized event owes, or its poison row.
func (t *Tail) owe(out *judged, e *Event, w watchers) {
	switch {
	case e.Undecodable != "":
		t.poison(out, e, errors.New("undecodable: "+e.Undecodable))
	case eventSize(e) > EventMaxBytes:
		cut := *e
		cut.Before, cut.After, cut.Payload = nil, nil, ""
		t.poison(out, &cut, fmt.Errorf("the event is larger than %d bytes", EventMaxBytes))
	default:
		t.match(out, e, w)
	}
}

// match adds the rows that an event owes. An evaluation of one subscription
// that fails is poison (T5); the others' rows are owed all the same.
func (t *Tail) match(out *judged, e *Event, w watchers) {
	for i := range w.projections {
		if p := &w.projections[i]; p.Cares(e) {
			out.rows = append(out.rows, p.row(e, t.Clock))
		}
	}
	f := newFacts(e)
	w.subs.caring(e.Kind, func(m *Matcher) {
		s := m.sub
		if e.Seq <= s.ActiveFromSeq {
			return
		}
		t.evals.Add(1)
		asked := f.whens
		fires, err := matchesSafely(m, f)
		if err == nil && (s.When == "" || f.whens > asked) {
			m.health.ok(e.Seq) // what was decided without it tells nothing of a `when`
		}
		switch {
		case err != nil && s.leaves(e):
			t.evalErrs.Add(1)
		case err != nil:
			t.noteFailed(out, m, e, err)
			t.poison(out, e, fmt.Errorf(evaluationOf+"%s: %w", s.ID, err))
		case fires:
			out.rows = append(out.rows, s.row(e, t.Clock))
		}
	})
}

func matchesSafely(m *Matcher, f *facts) (fires bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return m.match(f)
}

// poison keeps an event that can't be matched as a failed row, from which it
// can be matched again, so that it does not hold up its tenant (T5).
func (t *Tail) poison(out *judged, e *Event, why error) {
	id := PoisonID(e.ID())
	for i := range out.poison {
		if out.poison[i].ID == id {
			return
		}
	}
	now := t.Clock.Now()
	row := Effect{
		ID: id, TenantID: e.TenantID, Kind: KindEvent, Lane: LaneEvents, State: StateFailed, Reason: ReasonPoison,
		EventSeq: e.Seq, CardID: e.CardID, CardRev: e.CardRev, Event: *e,
		Errors:    []AttemptError{{At: now, Message: clip(why.Error(), 1024)}},
		CreatedAt: now, UpdatedAt: now, AnnounceAt: now,
	}
	out.rows, out.poison = append(out.rows, row), append(out.poison, row)
}

// tried counts one failed try of the event after the cursor, and reports
// whether it has had enough of them. The count is kept on the head, by a write
// that succeeds only while the store answers.
func (t *Tail) tried(ctx context.Context, e *Event) (poisoned bool, err error) {
	now := t.Clock.Now()
	w, err := t.Heads.HeadWatchPoison(ctx, e.TenantID, e.Seq, now)
	if err != nil {
		return false, err
	}
	return w.Tries >= PoisonTries && now.Sub(w.Since) >= PoisonAfter, nil
}

// unwritten decides what follows when a batch's rows could not be written.
// The next batch of the tenant is one event, so that an event whose rows the
// store never takes shows itself; that one becomes poison like one that can't
// be read.
func (t *Tail) unwritten(ctx context.Context, tenantID string, events []Event, single bool, cause error) error {
	t.setSmall(tenantID, true)
	if !single || len(events) != 1 {
		return cause
	}
	poisoned, err := t.tried(ctx, &events[0])
	if err != nil || !poisoned {
		return errors.Join(cause, err)
	}
	out := judged{n: 1}
	t.poison(&out, &events[0], cause)
	if err := t.write(ctx, tenantID, out.rows); err != nil {
		return errors.Join(cause, err)
	}
	seq := events[0].Seq
	if _, err := t.Heads.HeadAdvance(ctx, tenantID, seq-1, seq); err != nil {
		return errors.Join(cause, err)
	}
	t.passed(&out)
	return cause
}

func (t *Tail) isSmall(tenant string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.small[tenant]
}

func (t *Tail) setSmall(tenant string, small bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !small {
		delete(t.small, tenant)
		return
	}
	if t.small == nil {
		t.small = make(map[string]bool)
	}
	t.small[tenant] = true
}

// eventSize is about how many bytes an event takes in a row.
func eventSize(e *Event) int {
	n := len(e.Payload)
	for _, list := range [][]string{e.Added, e.Removed} {
		for _, s := range list {
			n += len(s)
		}
	}
	for _, s := range []*tracker.Snapshot{e.Before, e.After} {
		if s == nil {
			continue
		}
		n += len(s.Title)
		for _, list := range [][]string{s.Labels, s.Assignees} {
			for _, v := range list {
				n += len(v)
			}
		}
	}
	return n
}

// panicWatch remembers recent panics. The zero value is ready.
type panicWatch struct {
	mu    sync.Mutex
	times []time.Time
}

// panicsTolerated within panicWindow still count as healthy.
const (
	panicsTolerated = 5
	panicWindow     = time.Minute
)

func (p *panicWatch) add(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times = append(p.times, now)
	p.times = p.times[max(0, len(p.times)-panicsTolerated-1):]
}

func (p *panicWatch) healthy(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	recent := 0
	for _, t := range p.times {
		if now.Sub(t) < panicWindow {
			recent++
		}
	}
	return recent <= panicsTolerated
}
