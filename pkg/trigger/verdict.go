package trigger

import (
	"fmt"
	"strings"
)

// Verdict is what the evaluation of one subscription against one event comes
// to, for people and for a page.
type Verdict struct {
	EventID        string `json:"event_id"`
	EventSeq       int64  `json:"event_seq"`
	SubscriptionID string `json:"subscription_id,omitempty"`
	Fires          bool   `json:"fires"`
	// Summary is one sentence for a board user: what fired it, or the first
	// condition that did not hold.
	Summary string `json:"summary"`
	// Conditions are all conditions that the subscription sets, and those that
	// hold for every one (the actor, the edge), in the order of evaluation.
	Conditions []Condition `json:"conditions"`
	// Error says why the evaluation failed, if it did.
	Error string `json:"error,omitempty"`
}

// Condition is one condition of a verdict.
type Condition struct {
	// Name is the field that sets it ("if.labels_all", "on.to", "when"), or
	// "edge", "actor", "added", "snapshot".
	Name string `json:"name"`
	// Wanted and Found are texts for people.
	Wanted string `json:"wanted"`
	Found  string `json:"found"`
	Held   bool   `json:"held"`
}

// textMax is the longest text of a verdict's wanted or found.
const textMax = 500

// Verdict says what Match comes to, condition by condition: it fires exactly
// when all of them held. Conditions after the first that did not hold are told
// of too.
func (m *Matcher) Verdict(e *Event) Verdict {
	f := newFacts(e)
	fires, err := m.match(f)
	v := Verdict{EventID: e.ID(), EventSeq: e.Seq, SubscriptionID: m.sub.ID, Fires: fires}
	if err != nil {
		v.Error = clip(err.Error(), textMax)
	}
	m.tellFilters(&v, f)
	m.tellState(&v, f)
	m.tellAdded(&v, f)
	m.tellWhen(&v, f)
	if !m.onEvent {
		m.tellEdge(&v, f)
	}
	v.Summary = v.summary(m.onEvent)
	return v
}

func (v *Verdict) tell(name string, held bool, wanted, found string) {
	v.Conditions = append(v.Conditions, Condition{Name: name, Wanted: clip(wanted, textMax), Found: clip(found, textMax), Held: held})
}

func (v *Verdict) summary(onEvent bool) string {
	switch {
	case v.Error != "":
		return "It could not be decided: " + v.Error + "."
	case v.Fires && onEvent:
		return "It fires: the event is one that is asked for, and every condition holds after it."
	case v.Fires:
		return "It fires: the conditions hold since this event."
	}
	for _, c := range v.Conditions {
		if !c.Held {
			return fmt.Sprintf("It does not fire: wanted was %s, found %s.", c.Wanted, c.Found)
		}
	}
	return "It does not fire."
}

// tellFilters tells of what the subscription asks of the event.
func (m *Matcher) tellFilters(v *Verdict, f *facts) {
	e, on := f.e, &m.sub.On
	if e.Source == SourceVoid {
		v.tell("snapshot", false, "an event", "a number that was given up: no event has it")
	} else if e.After == nil {
		v.tell("snapshot", false, "an event that shows the card", "one that does not")
	}
	if len(on.Kinds) > 0 || !m.acceptsKind(e) {
		kinds := make([]string, len(m.kinds))
		for i, k := range m.kinds {
			kinds[i] = string(k)
		}
		v.tell("on.kinds", m.acceptsKind(e), orNone(eitherOf("", kinds), "a change of the card"), orNone(string(e.Kind), "no kind"))
	}
	if on.From != "" {
		v.tell("on.from", m.acceptsFrom(e), "a move from the column "+quote(on.From), column(e.FromColumn, "no move from a column", "from "))
	}
	if on.To != "" {
		v.tell("on.to", m.acceptsTo(e), "a move to the column "+quote(on.To), column(e.ToColumn, "no move to a column", "to "))
	}
	if on.BoardID != "" {
		v.tell("on.board", m.acceptsBoard(e), "the board "+quote(on.BoardID), column(e.BoardID, "no board", "the board "))
	}
	if len(on.Sources) > 0 {
		sources := make([]string, len(on.Sources))
		for i, s := range on.Sources {
			sources[i] = string(s)
		}
		v.tell("on.sources", m.acceptsSource(e), eitherOf("the source ", sources), string(e.Source))
	}
	name, wanted := "actor", "no bot: a bot's changes fire only subscriptions that name it"
	if len(on.Actors) > 0 {
		name, wanted = "on.actors", "caused by "+eitherOf("", quoted(on.Actors))
	}
	found := orNone(quote(e.Actor.ID), "nobody known")
	if e.Actor.Kind != "" {
		found = string(e.Actor.Kind) + " " + found
	}
	v.tell(name, m.acceptsActor(f), wanted, found)
}

// tellState tells of the state conditions, but for `when`.
func (m *Matcher) tellState(v *Verdict, f *facts) {
	is, cond := &f.after, &m.sub.If
	known := f.e.After != nil
	tell := func(name string, set []string, held bool, wanted string, found string) {
		switch {
		case len(set) == 0:
		case known:
			v.tell(name, held, wanted, found)
		default:
			v.tell(name, false, wanted, "unknown: the event does not show the card")
		}
	}
	labels := list(is.s.Labels, "no labels")
	tell("if.columns", cond.Columns, m.holdsColumns(is), "in the column "+eitherOf("", quoted(cond.Columns)), column(is.s.ColumnID, "in no column", "in the column "))
	tell("if.labels_all", cond.LabelsAll, m.holdsAll(is), "all of the labels "+list(cond.LabelsAll, ""), labels)
	tell("if.labels_none", cond.LabelsNone, m.holdsNone(is), "none of the labels "+list(cond.LabelsNone, ""), labels)
	tell("if.labels_any", cond.LabelsAny, m.holdsAny(is), "one of the labels "+list(cond.LabelsAny, ""), labels)
	tell("if.assignees", cond.Assignees, m.holdsAssignees(is), "assigned to one of "+list(cond.Assignees, ""), list(is.s.Assignees, "nobody assigned"))
}

func (m *Matcher) tellAdded(v *Verdict, f *facts) {
	if !m.asksAdded(f.e) {
		return
	}
	asked := append(append([]string(nil), m.sub.If.LabelsAll...), m.sub.If.LabelsAny...)
	v.tell("added", m.addedAsked(f), "just labelled with one of "+list(asked, ""), "added: "+list(f.e.Added, "no labels"))
}

func (m *Matcher) tellWhen(v *Verdict, f *facts) {
	if m.sub.When == "" {
		return
	}
	wanted := m.sub.When + " to be true"
	if f.e.After == nil || f.e.Source == SourceVoid {
		v.tell("when", false, wanted, "unknown: the event does not show the card")
		return
	}
	held, err := m.whenHolds(f, &f.after)
	v.tell("when", held && err == nil, wanted, truth(held, err))
}

// tellEdge tells of the state before: some condition must not have held.
func (m *Matcher) tellEdge(v *Verdict, f *facts) {
	const wanted = "conditions that did not all hold before the event"
	switch {
	case f.e.BeforeUnknown:
		v.tell("edge", false, wanted, "a card first seen by this event: what it was before is not known, and counts as already so")
		return
	case f.e.Before == nil:
		v.tell("edge", true, wanted, "a card that was not there before")
		return
	case !m.holds(&f.before):
		v.tell("edge", true, wanted, "they did not")
		return
	}
	switch was, err := m.whenHolds(f, &f.before); {
	case err != nil:
		v.tell("edge", false, wanted, truth(was, err))
	case was:
		v.tell("edge", false, wanted, "they all held before already")
	default:
		v.tell("edge", true, wanted, "they did not")
	}
}

func truth(held bool, err error) string {
	switch {
	case err != nil:
		return "an evaluation that failed, " + err.Error()
	case held:
		return "true"
	}
	return "false"
}

func quote(s string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("%q", s)
}

func quoted(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return out
}

func list(texts []string, none string) string {
	if len(texts) == 0 {
		return none
	}
	return strings.Join(quoted(texts), ", ")
}

func eitherOf(what string, texts []string) string { return what + strings.Join(texts, " or ") }

func orNone(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

func column(id, none, where string) string {
	if id == "" {
		return none
	}
	return where + quote(id)
}
