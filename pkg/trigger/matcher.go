package trigger

import (
	"slices"
	"sync"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Matcher is a subscription that is ready to be asked about events: the only
// way to ask. It depends on its subscription and the event alone. Safe for
// concurrent use.
type Matcher struct {
	sub     *Subscription
	onEvent bool
	// kinds are those that are accepted, each once; any if empty.
	kinds []tracker.Kind
	// The conditions' texts, folded.
	actors, labelsAll, labelsAny, labelsNone, assignees []string
	when                                                *expression
	// broken says why the stored `when` does not compile in this version.
	broken error
	// texts compiles args and vars when they are first needed: the tail never
	// does.
	texts func() (*texts, error)
	// health is the tail's; no evaluation depends on it.
	health health
}

// NewMatcher compiles a subscription. The error is a *tracker.FieldError. The
// subscription must not be changed afterwards.
func NewMatcher(s *Subscription) (*Matcher, error) {
	m := storedMatcher(s)
	if m.broken != nil {
		return nil, m.broken
	}
	return m, nil
}

// storedMatcher compiles a subscription that was accepted once. A `when` that
// this version can't compile is not silently false: each event that comes to
// it is an evaluation that fails.
func storedMatcher(s *Subscription) *Matcher {
	m := &Matcher{
		sub: s, onEvent: s.firesOnEvent(), kinds: s.kinds(), actors: foldAll(s.On.Actors),
		labelsAll: foldAll(s.If.LabelsAll), labelsAny: foldAll(s.If.LabelsAny), labelsNone: foldAll(s.If.LabelsNone),
		assignees: foldAll(s.If.Assignees),
		texts:     sync.OnceValues(func() (*texts, error) { return compileTexts(s) }),
	}
	if s.When != "" {
		m.when, m.broken = compileWhen(s.When, m.onEvent)
	}
	return m
}

// Subscription returns what was compiled.
func (m *Matcher) Subscription() *Subscription { return m.sub }

// Match reports whether the event fires the subscription
// (docs/triggers-yaml.md). An error says that the evaluation failed, and why;
// the event then neither fires nor does not.
func (m *Matcher) Match(e *Event) (bool, error) { return m.match(newFacts(e)) }

// match asks what is cheap first: `when` is evaluated only where it decides.
func (m *Matcher) match(f *facts) (bool, error) {
	e := f.e
	if e.Source == SourceVoid || e.After == nil || !m.accepts(f) {
		return false, nil
	}
	if m.onEvent {
		if !m.holds(&f.after) || !m.addedAsked(f) {
			return false, nil
		}
		return m.whenHolds(f, &f.after)
	}
	// The edge: an unknown before counts as "already so".
	if e.BeforeUnknown || !m.holds(&f.after) {
		return false, nil
	}
	was := e.Before != nil && m.holds(&f.before)
	if m.sub.When == "" {
		return !was, nil
	}
	if is, err := m.whenHolds(f, &f.after); err != nil || !is {
		return false, err
	}
	if !was {
		return true, nil
	}
	was, err := m.whenHolds(f, &f.before)
	return err == nil && !was, err
}

// accepts reports whether the event passes the event filters.
func (m *Matcher) accepts(f *facts) bool {
	return m.acceptsKind(f.e) && m.acceptsFrom(f.e) && m.acceptsTo(f.e) && m.acceptsBoard(f.e) &&
		m.acceptsSource(f.e) && m.acceptsActor(f)
}

// acceptsKind: what tells of a row is no change of the card, and concerns only
// who asks for it.
func (m *Matcher) acceptsKind(e *Event) bool {
	if len(m.kinds) == 0 {
		return !tellsOfRow(e)
	}
	return slices.Contains(m.kinds, e.Kind)
}

func (m *Matcher) acceptsFrom(e *Event) bool {
	return m.sub.On.From == "" || m.sub.On.From == e.FromColumn
}

func (m *Matcher) acceptsTo(e *Event) bool {
	return m.sub.On.To == "" || m.sub.On.To == e.ToColumn
}

func (m *Matcher) acceptsBoard(e *Event) bool {
	return m.sub.On.BoardID == "" || m.sub.On.BoardID == e.BoardID
}

func (m *Matcher) acceptsSource(e *Event) bool {
	return len(m.sub.On.Sources) == 0 || slices.Contains(m.sub.On.Sources, e.Source)
}

// acceptsActor: a board event that a bot caused is accepted only where the bot
// is named.
func (m *Matcher) acceptsActor(f *facts) bool {
	if len(m.actors) == 0 {
		return !byBot(f.e)
	}
	return slices.Contains(m.actors, f.foldedActor())
}

// byBot: sources that are never human are exempt.
func byBot(e *Event) bool { return e.Source == SourceBoard && e.Actor.Kind == tracker.ActorBot }

// asksAdded reports whether one of the labels that the event added must be one
// that is asked for.
func (m *Matcher) asksAdded(e *Event) bool {
	return m.onEvent && e.Kind == tracker.KindLabeled && len(m.labelsAll)+len(m.labelsAny) > 0
}

func (m *Matcher) addedAsked(f *facts) bool {
	if !m.asksAdded(f.e) {
		return true
	}
	for _, l := range f.foldedAdded() {
		if slices.Contains(m.labelsAll, l) || slices.Contains(m.labelsAny, l) {
			return true
		}
	}
	return false
}

// holds reports whether the state conditions hold, but for `when`.
func (m *Matcher) holds(c *cardFacts) bool {
	return m.holdsColumns(c) && m.holdsAll(c) && m.holdsNone(c) && m.holdsAny(c) && m.holdsAssignees(c)
}

func (m *Matcher) holdsColumns(c *cardFacts) bool {
	return len(m.sub.If.Columns) == 0 || slices.Contains(m.sub.If.Columns, c.s.ColumnID)
}

func (m *Matcher) holdsAll(c *cardFacts) bool {
	for _, l := range m.labelsAll {
		if !slices.Contains(c.foldedLabels(), l) {
			return false
		}
	}
	return true
}

func (m *Matcher) holdsNone(c *cardFacts) bool {
	return len(m.labelsNone) == 0 || !haveCommon(m.labelsNone, c.foldedLabels())
}

func (m *Matcher) holdsAny(c *cardFacts) bool {
	return len(m.labelsAny) == 0 || haveCommon(m.labelsAny, c.foldedLabels())
}

func (m *Matcher) holdsAssignees(c *cardFacts) bool {
	return len(m.assignees) == 0 || haveCommon(m.assignees, c.foldedAssignees())
}

// haveCommon reports whether the lists have an entry in common.
func haveCommon(a, b []string) bool {
	for _, s := range a {
		if slices.Contains(b, s) {
			return true
		}
	}
	return false
}

// whenHolds evaluates `when` on one side of the event; true if there is none.
func (m *Matcher) whenHolds(f *facts, card *cardFacts) (bool, error) {
	switch {
	case m.sub.When == "":
		return true, nil
	case m.broken != nil:
		return false, m.broken
	}
	f.whens++
	return m.when.holds(f, card)
}
