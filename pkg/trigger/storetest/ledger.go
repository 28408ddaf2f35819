package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// ledger is what a run has to be judged by: the card writes that took effect,
// in their order, and what callers were answered.
type ledger struct {
	cards    map[string]*tracker.Card // as last written; tombstones too
	changes  []durable
	buried   map[string]int    // how often a card of this id was
	writes   map[string]bool   // by LastWrite
	eids     map[string]string // names of events, which are the same in each run
	calls    []*call
	givenOut map[int64]time.Time // seqs
	cursor   int64
	// broken is the first thing that must never happen, at rest or not.
	broken string
}

// durable is a change that took effect: its event is owed.
type durable struct {
	card  string
	event tracker.BoardEvent
}

// call is one caller's change of one card.
type call struct {
	name     string
	card     string
	eids     []string // of its attempts
	answered bool
	changed  tracker.Changed
	err      error
}

func newLedger() ledger {
	return ledger{
		cards: make(map[string]*tracker.Card), buried: make(map[string]int), writes: make(map[string]bool),
		eids: make(map[string]string), givenOut: make(map[int64]time.Time),
	}
}

func (l *ledger) breaks(format string, args ...any) {
	if l.broken == "" {
		l.broken = fmt.Sprintf(format, args...)
	}
}

// name is the event's name: its card, and a number that counts the attempts
// at changes.
func (l *ledger) name(eid string) string {
	if name, ok := l.eids[eid]; ok {
		return name
	}
	return "an event that nobody made"
}

func (l *ledger) names(eids []string) string {
	names := make([]string, len(eids))
	for i, eid := range eids {
		names[i] = l.name(eid)
	}
	return strings.Join(names, " ")
}

// call returns the actor's change of a card.
func (l *ledger) call(a *actor, card string) *call {
	c := a.calls[card]
	if c == nil {
		c = &call{name: a.name, card: card}
		a.calls[card] = c
		l.calls = append(l.calls, c)
	}
	return c
}

// attempt enters a card write that is about to be tried.
func (l *ledger) attempt(a *actor, w tracker.CardWrite) string {
	if w.Event == nil {
		return " without event"
	}
	name := fmt.Sprintf("%s#%d", w.Next.ID, len(l.eids)+1)
	l.eids[w.Event.EID] = name
	if a != nil {
		c := l.call(a, w.Next.ID)
		c.eids = append(c.eids, w.Event.EID)
	}
	return fmt.Sprintf(" at rev %d (%s, %s)", w.PrevRev, name, w.Event.Kind)
}

// answered enters what a caller was told. The dead were told nothing.
func (l *ledger) answered(a *actor, card string, changed tracker.Changed, err error) {
	if !a.dead {
		c := l.call(a, card)
		c.answered, c.changed, c.err = true, changed, err
	}
}

// wrote enters a card write that took effect, and holds it to E1.
func (l *ledger) wrote(w tracker.CardWrite) {
	id := w.Next.ID
	have := l.cards[id]
	if have != nil && have.Deleted && w.PrevRev == 0 {
		have = nil // it was buried
	}
	switch {
	case have == nil && w.PrevRev != 0, have != nil && (have.Rev != w.PrevRev || have.Incarnation != w.PrevIncarnation):
		l.breaks("E1: card %s was written over a state that its writer had not read", id)
	case have != nil && have.Incarnation == w.Next.Incarnation && w.Next.Rev != w.PrevRev+1:
		l.breaks("E1: card %s went from rev %d to %d", id, w.PrevRev, w.Next.Rev)
	}
	if w.Event != nil {
		var before *tracker.Snapshot
		if have != nil && have.Incarnation == w.Next.Incarnation {
			before = have.Snapshot()
		}
		if !same(w.Event.Before, before) || !same(w.Event.After, w.Next.Snapshot()) {
			l.breaks("E1: the snapshots of %s are not those of its write", l.name(w.Event.EID))
		}
		l.changes = append(l.changes, durable{id, clone.Of(*w.Event)})
	}
	next := clone.Of(*w.Next)
	next.Pending, next.PendingAt = nil, time.Time{} // the store's and the relay's
	l.cards[id], l.writes[w.Next.LastWrite] = &next, true
}

func same[T any](a, b T) bool { return reflect.DeepEqual(clone.Of(a), clone.Of(b)) }

func (l *ledger) allocated(first int64, n int, now time.Time) {
	for i := range int64(n) {
		if _, again := l.givenOut[first+i]; again {
			l.breaks("T4: seq %d was given out twice", first+i)
		}
		l.givenOut[first+i] = now
	}
}

// advanced enters where the cursor was moved to.
func (l *ledger) advanced(to int64) {
	if to < l.cursor {
		l.breaks("T4: the cursor went back from %d to %d", l.cursor, to)
	}
	l.cursor = to
}

// closing: a tail is about to close a hole, if there still is one (T3).
func (l *ledger) closing(s *stepped, seq int64) {
	taken, err := s.Store.EventSeqs(s.ctx, s.tenant, seq-1, seq)
	if err != nil || len(taken) > 0 {
		return
	}
	at, ok := l.givenOut[seq]
	switch {
	case !ok:
		l.breaks("T3: a tail closed a hole at %d, which was not given out", seq)
	case s.Now().Sub(at) < s.patience:
		l.breaks("T3: a tail closed the hole at %d after %v", seq, s.Now().Sub(at))
	}
}

// judge holds the store, at rest, to what took effect and was answered.
func (s *stepped) judge() error {
	l := &s.ledger
	if l.broken != "" {
		return errors.New(l.broken)
	}
	events, err := s.judgeLog()
	if err != nil {
		return err
	}
	if err := s.judgeRows(events); err != nil {
		return err
	}
	if err := s.judgeCards(); err != nil {
		return err
	}
	for _, c := range l.calls {
		if err := l.judgeCall(c); err != nil {
			return err
		}
	}
	return nil
}

// judgeLog: the log is whole, the cursor at its end; each durable change is in
// it once, in its card's order, and nothing else but voids.
func (s *stepped) judgeLog() ([]trigger.Event, error) {
	l := &s.ledger
	head, err := s.Store.HeadGet(s.ctx, s.tenant)
	if errors.Is(err, tracker.ErrNotFound) {
		if head, err = (&trigger.Head{}), nil; len(l.changes) > 0 {
			err = fmt.Errorf("%d changes took effect, and there is no log", len(l.changes))
		}
	}
	if err != nil {
		return nil, err
	}
	if head.Cursor != head.Seq || head.Dirty {
		return nil, fmt.Errorf("the cursor is at %d of %d (dirty: %v)", head.Cursor, head.Seq, head.Dirty)
	}
	events, err := s.Store.EventList(s.ctx, s.tenant, 0, head.Seq+1000)
	if err != nil {
		return nil, err
	}
	logged := make(map[string][]string)
	kept := make(map[string]trigger.Event)
	for i, e := range events {
		if e.Seq != int64(i)+1 {
			return nil, fmt.Errorf("the log has no event %d", i+1)
		}
		if e.Source != trigger.SourceVoid {
			logged[e.CardID] = append(logged[e.CardID], l.name(e.EID))
			kept[e.EID] = e
		}
	}
	if int64(len(events)) != head.Seq {
		return nil, fmt.Errorf("the log ends at %d, the head at %d", len(events), head.Seq)
	}
	owed := make(map[string][]string)
	for _, c := range l.changes {
		owed[c.card] = append(owed[c.card], l.name(c.event.EID))
	}
	for _, id := range cardIDs {
		if !slices.Equal(owed[id], logged[id]) {
			return nil, fmt.Errorf("of card %s these changes took effect: %v; these are in the log: %v", id, owed[id], logged[id])
		}
	}
	for _, c := range l.changes {
		if e := kept[c.event.EID]; !same(e.BoardEvent, c.event) {
			return nil, fmt.Errorf("%s is in the log with other content", l.name(c.event.EID))
		}
	}
	return events, nil
}

// judgeRows: the rows are those that are owed, and their lanes are due.
func (s *stepped) judgeRows(events []trigger.Event) error {
	var owed, have []string
	for i := range events {
		e := &events[i]
		for id, fires := range firing {
			if e.Source != trigger.SourceVoid && fires(e) {
				owed = append(owed, trigger.EffectID(e.ID(), id))
			}
		}
	}
	slices.Sort(owed)
	rows, err := s.EffectList(s.ctx, trigger.EffectListParams{TenantID: s.tenant, Limit: 100_000})
	if err != nil {
		return err
	}
	lanes, err := s.LanesDue(s.ctx, s.Now(), 100_000)
	if err != nil {
		return err
	}
	for i := range rows {
		have = append(have, rows[i].ID)
		if rows[i].State != trigger.StatePending {
			return fmt.Errorf("row %s is %s", rows[i].ID, rows[i].State)
		}
		if !slices.ContainsFunc(lanes, func(l trigger.Lane) bool { return l.TenantID == s.tenant && l.Lane == rows[i].Lane }) {
			return fmt.Errorf("the lane of row %s is not due", rows[i].ID)
		}
	}
	if !slices.Equal(owed, have) {
		return fmt.Errorf("these rows are owed: %v; these are there: %v", owed, have)
	}
	return nil
}

var errThere = errors.New("it is there")

// judgeCards: the cards are as last written, nothing is pending, and those
// that were deleted are gone.
func (s *stepped) judgeCards() error {
	for _, id := range cardIDs {
		want := s.ledger.cards[id]
		have, err := s.Store.CardGet(s.ctx, s.tenant, id)
		if want == nil || want.Deleted {
			if !errors.Is(err, tracker.ErrNotFound) {
				return fmt.Errorf("card %s is not gone: %w", id, cmp.Or(err, errThere))
			}
			continue
		}
		if err != nil {
			return err
		}
		if len(have.Pending) > 0 || !have.PendingAt.IsZero() {
			return fmt.Errorf("card %s has %d pending events; marked: %v", id, len(have.Pending), !have.PendingAt.IsZero())
		}
		if !same(have, want) {
			return fmt.Errorf("card %s is not as last written", id)
		}
	}
	return nil
}

// judgeCall: what was answered is what happened, once at most.
func (l *ledger) judgeCall(c *call) error {
	var took []string
	for _, d := range l.changes {
		if slices.Contains(c.eids, d.event.EID) {
			took = append(took, d.event.EID)
		}
	}
	told := "nothing"
	switch ok := c.answered && c.err == nil; {
	case len(took) > 1:
	case ok && c.changed.Event != nil:
		if told = "OK with " + l.name(c.changed.Event.EID); len(took) == 1 && took[0] == c.changed.Event.EID {
			return nil
		}
	case ok && c.changed.Written:
		if told = "OK without event"; l.writes[c.changed.Card.LastWrite] {
			return nil
		}
	case ok:
		if told = "that nothing was to be written"; len(took) == 0 {
			return nil
		}
	case errors.Is(c.err, tracker.ErrNotFound):
		if told = "not found"; len(took) == 0 {
			return nil
		}
	default:
		return nil // an error, or no answer: there or not
	}
	return fmt.Errorf("%s of %s was told %s; these of its changes took effect: [%s]", c.name, c.card, told, l.names(took))
}
