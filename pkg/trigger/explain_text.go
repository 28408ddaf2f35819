package trigger

import (
	"fmt"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// asked is a subscription to ask about events.
type asked struct {
	m *Matcher
	// loose accepts events wherever they come from.
	loose *Matcher
}

// ask compiles the subscription; the error is a *tracker.FieldError.
func ask(s *Subscription) (a asked, err error) {
	if a.m, err = NewMatcher(s); err != nil {
		return a, err
	}
	loose := *s
	loose.On.Actors = nil
	if !s.firesOnEvent() {
		loose.On = EventFilter{} // the edge is there, whatever the filters say
	}
	if a.loose, err = NewMatcher(&loose); err != nil {
		a.loose = a.m // nothing looser can be asked
	}
	return a, nil
}

// verdict is what the matcher makes of an event; cannot says why it can't be
// judged, if so. A panic is a failed evaluation, as it is in the tail (T5).
func (a asked) verdict(e *Event, cannot string) (v Verdict) {
	failed := func(why string) Verdict {
		return Verdict{
			EventID: e.ID(), EventSeq: e.Seq, SubscriptionID: a.m.Subscription().ID, Error: why,
			Summary: "It can't be evaluated: " + why + ".", Conditions: []Condition{},
		}
	}
	defer func() {
		if p := recover(); p != nil {
			v = failed(fmt.Sprintf("panic: %v", p))
		}
	}()
	if cannot != "" {
		return failed(cannot)
	}
	v = a.m.Verdict(e)
	if v.Conditions == nil {
		v.Conditions = []Condition{} // a list in every answer
	}
	return v
}

// concerns reports whether the event fires the subscription, or its evaluation
// fails.
func (a asked) concerns(e *Event) bool {
	fires, err := matchRecovered(a.m, e)
	return fires || err != nil
}

// byAnybody reports whether the event would fire the subscription if any
// person had caused it; where its edge fires it, on any board too.
func (a asked) byAnybody(e *Event) bool {
	anybody := *e
	anybody.Actor.Kind = tracker.ActorHuman
	fires, err := matchRecovered(a.loose, &anybody)
	return fires && err == nil
}

// holds reports whether the state conditions hold after the event.
func (a asked) holds(e *Event) bool {
	fresh := *e
	fresh.Before, fresh.BeforeUnknown, fresh.Kind, fresh.Actor.Kind = nil, false, tracker.KindCreated, tracker.ActorHuman
	fires, err := matchRecovered(a.loose, &fresh)
	return fires && err == nil
}

func matchRecovered(m *Matcher, e *Event) (fires bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			fires, err = false, fmt.Errorf("panic: %v", p)
		}
	}()
	return m.Match(e)
}

// why names the first condition that did not hold.
func (v *Verdict) why() string {
	for _, c := range v.Conditions {
		if !c.Held {
			return fmt.Sprintf("%s: wanted %s, found %s.", c.Name, c.Wanted, c.Found)
		}
	}
	return "its conditions do not hold."
}

// logEntry tells of a row. The subscription may be another revision than the
// one that made it.
func logEntry(row *Effect, sub *Subscription, pauses []Pause) LogEntry {
	e := LogEntry{
		ID: row.ID, EventSeq: row.EventSeq, Kind: row.Event.Kind, CardID: row.CardID, State: row.State, Outcome: row.Outcome, Reason: row.Reason,
		RunID: row.RunID, Attempts: row.Attempts, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
	if n := len(row.Errors); n > 0 {
		e.LastError = row.Errors[n-1].Message
	}
	if n := len(row.History); n > 0 {
		h := row.History[n-1]
		e.Decided = &Decided{h.Action, h.By, h.Note, h.At}
	}
	e.Answer, e.Sentence = e.tell(row, sub, pauses)
	return e
}

// tell says what became of the row.
func (e *LogEntry) tell(row *Effect, sub *Subscription, pauses []Pause) (Answer, string) {
	fired := namedCapital(&row.Event) + " fired it"
	say := func(a Answer, format string, args ...any) (Answer, string) {
		return a, fired + fmt.Sprintf(format, args...)
	}
	switch row.State {
	case StateDone:
		return e.done(row, fired)
	case StateClaimed:
		return say(AnswerClaimed, ", and %s is at it, attempt %d.", row.Worker, row.Attempts)
	case StateFailed:
		return say(AnswerFailed, ", but it failed after %s (%s)%s. Somebody can replay it.", attempts(row.Attempts), row.Reason, colon(e.LastError))
	case StateReconcile:
		return say(AnswerReconcile, " and was sent to a bot that can't be sent the same twice, and no definite answer came: a person has to say what became of it.")
	case StateDiscarded:
		if e.Decided == nil {
			return say(AnswerDiscarded, ", and it was given up.")
		}
		return say(AnswerDiscarded, ", and %s gave it up on %s%s.", who(e.Decided.By), stampText(e.Decided.At), colon(e.Decided.Note))
	case StateHeld:
		switch {
		case !sub.Paused:
			return say(AnswerHeldByPause, ", and it was held; the subscription is no longer paused, so that it goes on within seconds.")
		case sub.PausedBy == StormGuard:
			return say(AnswerHeldByGuard, ", and it is held: the subscription fired too often and the storm guard paused it%s. A person has to release or discard what is held.", colon(sub.PausedWhy))
		}
		return say(AnswerHeldByPause, ", and it is held: %s paused the subscription%s. It goes on when somebody resumes it.", who(sub.PausedBy), colon(sub.PausedWhy))
	}
	for i := range pauses {
		if p := &pauses[i]; p.Covers(row.TenantID, row.Lane) {
			return say(AnswerLaunchesPaused, ", and it waits: %s.", pauseText(p))
		}
	}
	if len(row.Errors) > 0 && row.Attempts > 0 {
		return say(AnswerRetrying, ", but attempt %d failed%s. The next one is due on %s.", row.Attempts, colon(e.LastError), stampText(row.NotBefore))
	}
	return say(AnswerPending, ", and it waits for a worker, due on %s.", stampText(row.NotBefore))
}

func (e *LogEntry) done(row *Effect, fired string) (Answer, string) {
	by := ""
	if e.Decided != nil && e.Decided.Action == ActionConfirm {
		by = ", as " + who(e.Decided.By) + " confirmed"
	}
	run := ""
	if row.RunID != "" {
		run = ", run " + row.RunID
	}
	switch row.Outcome {
	case OutcomeLaunched:
		return AnswerFired, fmt.Sprintf("%s and launched the bot%s%s.", fired, run, by)
	case OutcomePromoted:
		return AnswerFired, fired + ": the card carries the bot now."
	case OutcomeOneShotSpent:
		return AnswerOneShotSpent, fmt.Sprintf("%s, but the label %s went to another effect, which came first.", fired, quotedLabels(row.Consume))
	case OutcomeLoopCut:
		if row.Event.Cause.Has(row.SubscriptionID, row.CardID) {
			return AnswerLoopCut, fired + ", but it was cut to end a loop: the event goes back to this very subscription on this card."
		}
		return AnswerLoopCut, fmt.Sprintf("%s, but it was cut to end a loop: %d effects led to the event, one after the other.", fired, len(row.Event.Cause.Chain))
	}
	why := map[Outcome]string{
		OutcomeSubscriptionGone:     "the subscription was gone",
		OutcomeSubscriptionDisabled: "the subscription was disabled",
		OutcomeNoLongerMatches:      "the subscription had been changed and no longer fired for it",
		OutcomeCardGone:             "the card was gone",
		OutcomeBotGone:              "the bot was gone",
	}[row.Outcome]
	if why == "" {
		why = string(row.Outcome)
	}
	return AnswerNotLaunched, fmt.Sprintf("%s, but when its turn came %s.", fired, why)
}

// pauseText tells of a pause. Who paused the fleet is not a tenant's affair.
func pauseText(p *Pause) string {
	switch {
	case p.TenantID == "":
		return "all launches are paused"
	case p.BotID == "":
		return fmt.Sprintf("%s paused the tenant's launches%s", who(p.By), colon(p.Note))
	}
	return fmt.Sprintf("%s paused the bot's launches%s", who(p.By), colon(p.Note))
}

func (t *Taker) name() string {
	if t.SubscriptionName != "" {
		return t.SubscriptionName
	}
	return t.SubscriptionID
}

// named is an event for people: "event 7 (card.labeled by mona)".
func named(e *Event) string {
	what := "a change"
	if e.Seq > 0 {
		what = fmt.Sprintf("event %d", e.Seq)
	}
	if e.Kind == "" {
		return what
	}
	return fmt.Sprintf("%s (%s by %s)", what, e.Kind, actorText(e.Actor))
}

// namedCapital is named at the beginning of a sentence.
func namedCapital(e *Event) string { return capitalized(named(e)) }

func capitalized(s string) string {
	return strings.ToUpper(s[:1]) + s[1:]
}

func actorText(a tracker.Actor) string {
	name := a.Name
	if name == "" {
		name = a.ID
	}
	switch {
	case a.Kind == tracker.ActorBot:
		return "the bot " + name
	case name == "":
		return "nobody known"
	}
	return name
}

func who(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

// colon adds what may be empty to a sentence.
func colon(text string) string {
	if text == "" {
		return ""
	}
	return ": " + strings.TrimRight(text, ".")
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

func quotedLabels(labels []string) string {
	out := make([]string, len(labels))
	for i, l := range labels {
		out[i] = fmt.Sprintf("%q", l)
	}
	return strings.Join(out, ", ")
}

func stampText(t time.Time) string { return t.UTC().Format(time.RFC3339) }
