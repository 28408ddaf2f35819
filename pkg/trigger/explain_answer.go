package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// question asks about one subscription and one card.
type question struct {
	*Explainer
	// h is what the subscription looks at, of all that is known.
	h, all *cardHistory
	sub    *Subscription
	cardID string
	rows   int // how many of the subscription's rows may be looked through
	asked  asked
	out    *Explanation
}

func (q *question) answer(ctx context.Context) error {
	if err := checkFeatures("the subscription", q.sub.Requires); err != nil {
		q.say(AnswerUnknownFeatures, "%s: ask one that does.", capitalized(err.Error()))
		return nil
	}
	var err error
	if q.asked, err = ask(q.sub); err != nil {
		q.say(AnswerEvaluation, "The subscription can't be evaluated: %s.", err)
		return nil
	}
	if q.sub.Paused {
		q.note("The subscription is paused, by %s: what it owes is held until somebody resumes it.", who(q.sub.PausedBy))
	}
	if q.h.more {
		q.note("Only the card's newest %d events were looked at.", len(q.h.events))
	}
	i := q.deciding()
	if i >= 0 {
		return q.byEvent(ctx, i)
	}
	// Nothing that is kept concerns the subscription. A row may outlive its
	// event (R4).
	row, err := q.newestRow(ctx)
	switch {
	case err != nil:
		return err
	case row != nil:
		if slices.ContainsFunc(q.all.events, func(e Event) bool { return e.Seq == row.EventSeq }) {
			q.note("The subscription was changed since: as it is now, that event would not fire it.")
		} else {
			q.note("The event is no longer kept; its row is.")
		}
		q.out.Event = briefOf(&row.Event)
		q.latest(-1)
		return q.byRow(ctx, row)
	case len(q.h.events) == 0 && q.h.card == nil:
		q.say(AnswerCardUnknown, "There is no such card, and none of its events is kept.")
		return nil
	case len(q.h.events) == 0:
		q.say(AnswerEventNotKept, "None of the card's events is kept any more: what it fired longer ago can't be told.")
		return nil
	case q.before():
		q.say(AnswerEventNotKept, "The conditions have held since before the oldest event that is kept: what fired then can't be told. It fires again once they have stopped holding.")
		q.see(0)
		return nil
	}
	return q.byEvent(ctx, 0)
}

func (q *question) say(a Answer, format string, args ...any) {
	q.out.Answer, q.out.Sentence = a, fmt.Sprintf(format, args...)
}

func (q *question) note(format string, args ...any) {
	q.out.Notes = append(q.out.Notes, fmt.Sprintf(format, args...))
}

// deciding returns the newest event that the subscription's filters or edge
// concern, -1 if there is none: with a kind, from or to filter, an event that
// passes these; else one in which the state conditions become true, whoever
// did it and wherever. Who did it and what the card was like is the verdict's
// to say. An event that can't be judged concerns everybody.
func (q *question) deciding() int {
	for i := range q.h.events {
		e := &q.h.events[i]
		switch {
		case e.Source == SourceVoid:
		case q.h.errs[i] != "":
			return i
		case q.sub.firesOnEvent():
			if q.sub.looksAt(e) {
				return i
			}
		case q.asked.concerns(e), q.asked.byAnybody(e):
			return i
		}
	}
	return -1
}

// looksAt reports whether the event is of a kind and between columns that the
// subscription asks for.
func (s *Subscription) looksAt(e *Event) bool {
	return slices.Contains(s.kinds(), e.Kind) &&
		(s.On.From == "" || s.On.From == e.FromColumn) && (s.On.To == "" || s.On.To == e.ToColumn)
}

// before reports whether the state conditions hold and have done so in every
// event that is kept, the oldest one's before included.
func (q *question) before() bool {
	oldest, newest := q.h.events[len(q.h.events)-1], q.h.events[0]
	if q.sub.firesOnEvent() || oldest.Before == nil {
		return false
	}
	oldest.After = oldest.Before
	return q.asked.holds(&oldest) && q.asked.holds(&newest)
}

// see tells of an event and of what the subscription makes of it now.
func (q *question) see(i int) Verdict {
	e := &q.h.events[i]
	v := q.asked.verdict(e, q.h.errs[i])
	q.out.Event, q.out.Verdict = briefOf(e), &v
	if j := slices.IndexFunc(v.Conditions, func(c Condition) bool { return !c.Held }); j >= 0 && !v.Fires {
		q.out.Failed = &v.Conditions[j]
	}
	q.latest(i)
	return v
}

// latest tells of the card's newest event, if that is another than the i-th.
func (q *question) latest(i int) {
	if i != 0 && len(q.h.events) > 0 {
		v := q.asked.verdict(&q.h.events[0], q.h.errs[0])
		q.out.Latest = &v
	}
}

// byEvent answers by the i-th event: by its row, if there is one.
func (q *question) byEvent(ctx context.Context, i int) error {
	e := &q.h.events[i]
	v := q.see(i)
	var row *Effect
	var err error
	if e.Seq > 0 {
		row, err = q.row(ctx, EffectID(e.ID(), q.sub.ID))
	}
	switch {
	case err != nil:
		return err
	case row != nil:
		return q.byRow(ctx, row)
	case e.Seq > q.sub.ActiveFromSeq && (v.Fires || v.Error != ""):
		poison, err := q.row(ctx, PoisonID(e.ID()))
		if err != nil {
			return err
		}
		if poison != nil && poison.State != StateDone && (v.Error != "" || !poison.ofOther(q.sub.ID)) {
			q.byPoison(e, poison)
			return nil
		}
	}
	q.withoutRow(e, v)
	return nil
}

// ofOther reports whether the poison row is of another subscription's evaluation
// alone, as far as it tells.
func (e *Effect) ofOther(subscriptionID string) bool {
	if len(e.Errors) == 0 {
		return false
	}
	id, ok := strings.CutPrefix(e.Errors[0].Message, evaluationOf)
	return ok && !strings.HasPrefix(id, subscriptionID+": ")
}

// byPoison answers by the poison row of an event.
func (q *question) byPoison(e *Event, poison *Effect) {
	entry := logEntry(poison, q.sub, q.h.pauses)
	q.out.Row = &entry
	could := fmt.Sprintf("%s could not be handled (%s)", namedCapital(e), entry.LastError)
	switch {
	case poison.State == StateDiscarded && entry.Decided != nil:
		q.say(AnswerDiscarded, "%s, and %s gave it up on %s%s.", could, who(entry.Decided.By), stampText(entry.Decided.At), colon(entry.Decided.Note))
	case poison.State.Live():
		q.say(AnswerPoison, "%s. It was replayed and is being handled again.", could)
	default:
		q.say(AnswerPoison, "%s. Somebody has to mend that and replay it.", could)
	}
}

// row returns nil if there is no such row.
func (q *question) row(ctx context.Context, id string) (*Effect, error) {
	row, err := q.Outbox.EffectGet(ctx, q.sub.TenantID, id)
	if errors.Is(err, tracker.ErrNotFound) {
		return nil, nil
	}
	return row, err
}

// newestRow looks through the subscription's newest rows for one of the card.
func (q *question) newestRow(ctx context.Context) (*Effect, error) {
	before := q.h.head.Seq + 1
	for n := 0; n < q.rows; n += explainPage {
		rows, err := q.Outbox.EffectListBySubscription(ctx, q.sub.TenantID, q.sub.ID, before, explainPage)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if rows[i].CardID == q.cardID {
				return &rows[i], nil
			}
		}
		if len(rows) < explainPage {
			return nil, nil
		}
		before = rows[len(rows)-1].EventSeq
	}
	return nil, nil
}

// withoutRow answers for an event that made no row.
func (q *question) withoutRow(e *Event, v Verdict) {
	unread := e.Seq == 0 || e.Seq > q.h.head.Cursor
	switch {
	case v.Error != "" && e.Seq > 0 && e.Seq <= q.sub.ActiveFromSeq:
		q.owedNone(e, unread)
	case v.Error != "" && q.sub.leaves(e) && !unread:
		q.say(AnswerEvaluation, "%s can't be evaluated (%s). The subscription is paused (%s): a release looks at this event again.",
			namedCapital(e), v.Error, q.sub.PausedWhy)
	case v.Error != "" && unread:
		q.say(AnswerNotRead, "%s has not been looked at yet, and can't be evaluated now: %s.", namedCapital(e), v.Error)
	case v.Error != "":
		q.say(AnswerEvaluation, "%s neither fires it nor does not: the evaluation fails (%s).", namedCapital(e), v.Error)
	case v.Fires:
		q.owedNone(e, unread)
	case !q.sub.Enabled:
		q.say(AnswerDisabled, "The subscription is disabled. %s would not have fired it anyway: %s", namedCapital(e), v.why())
	case q.asked.byAnybody(e) && q.sub.firesOnEvent():
		q.say(AnswerActor, "%s would have fired it, but it does not accept events of %s.", namedCapital(e), actorText(e.Actor))
	case q.asked.byAnybody(e):
		q.say(AnswerEdgeSpent, "The conditions became true with %s, which the subscription does not accept, so that the edge is spent: "+
			"it fires the next time that they become true.", named(e))
	default:
		q.say(AnswerCondition, "%s did not fire it: %s", namedCapital(e), v.why())
		if e.Seq > 0 && q.sub.UpdatedAt.After(e.LoggedAt) {
			q.note("The subscription was changed since, on %s: this is what it makes of the event now.", stampText(q.sub.UpdatedAt))
		}
	}
}

// owedNone answers for an event that fires the subscription as it is now, and
// has no row. What the cursor has passed when it was read has the rows that it
// owed.
func (q *question) owedNone(e *Event, unread bool) {
	s := q.sub
	// More was held than there are rows for.
	beyond := s.Guard.HeldFrom > 0 && e.Seq >= s.Guard.HeldFrom
	switch {
	case !s.Enabled:
		q.say(AnswerDisabled, "The subscription is disabled: %s would have fired it.", named(e))
	case e.Seq > 0 && e.Seq <= s.ActiveFromSeq:
		q.say(AnswerEnabledAfter, "The subscription was enabled after %s: it fires for events after number %d alone. "+
			"A change that was under way just then may fall on either side.", named(e), s.ActiveFromSeq)
	case e.Seq == 0:
		q.say(AnswerNotRead, "%s is kept on the card and will fire it, but has not reached the log yet: that takes seconds.", namedCapital(e))
	case unread:
		q.say(AnswerNotRead, "%s will fire it, but has not been looked at yet: the log is read up to number %d.", namedCapital(e), q.h.head.Cursor)
	case beyond && !s.Paused:
		q.say(AnswerNotRead, "%s fired it while it was paused, and more was held than there are rows for: it is being looked at again.", namedCapital(e))
	case beyond && s.PausedBy == StormGuard:
		q.say(AnswerHeldByGuard, "%s fired it, but it fired too often and the storm guard paused it (%s). More was held than there are rows for: "+
			"a release looks at this event again.", namedCapital(e), s.PausedWhy)
	case beyond:
		q.say(AnswerHeldByPause, "%s fired it, but %s paused it. More was held than there are rows for: a release looks at this event again.",
			namedCapital(e), s.PausedBy)
	case s.Guard.DiscardFrom > 0 && e.Seq >= s.Guard.DiscardFrom && e.Seq <= s.Guard.DiscardTo:
		q.say(AnswerDiscarded, "%s fired it while it was paused, and what was held was discarded.", namedCapital(e))
	case s.UpdatedAt.After(e.LoggedAt):
		q.say(AnswerChangedSince, "As the subscription is now, %s fires it; but it was changed since, on %s, and did not fire as it was then.",
			named(e), stampText(s.UpdatedAt))
	default:
		q.say(AnswerNobodyKnows, "%s should have fired it, and there is no row. Tell whoever runs this server.", namedCapital(e))
	}
}

// byRow answers by what became of a row.
func (q *question) byRow(ctx context.Context, row *Effect) error {
	entry := logEntry(row, q.sub, q.h.pauses)
	q.out.Row, q.out.Answer, q.out.Sentence = &entry, entry.Answer, entry.Sentence
	if len(row.Consume) == 0 {
		return nil
	}
	var err error
	switch {
	case entry.Answer == AnswerOneShotSpent:
		q.out.Taker, err = q.taker(ctx, row, func(o *Effect) bool { return o.ConsumeMarked })
		if err == nil && q.out.Taker != nil {
			q.say(AnswerOneShotSpent, "%s fired it, but the label %q went to the subscription %s (%s), which came first.",
				namedCapital(&row.Event), q.out.Taker.Label, q.out.Taker.name(), q.out.Taker.EffectID)
		}
	case row.State == StatePending && !row.ConsumeMarked:
		q.out.Taker, err = q.waitsFor(ctx, row)
		if err == nil && q.out.Taker != nil {
			q.out.Sentence += fmt.Sprintf(" The subscription %s comes first for the label %q.", q.out.Taker.name(), q.out.Taker.Label)
		}
	}
	return err
}

// waitsFor finds a live row of the same event that ranks before (W7).
func (q *question) waitsFor(ctx context.Context, row *Effect) (*Taker, error) {
	return q.takerAmong(ctx, row, func(o *Effect) bool { return o.State.Live() && ranksBefore(o, row) })
}

// taker finds who took a label that the row wanted: another row of the same
// event, or whoever spent it on the card since.
func (q *question) taker(ctx context.Context, row *Effect, took func(*Effect) bool) (*Taker, error) {
	t, err := q.takerAmong(ctx, row, took)
	if err != nil || t != nil || q.h.card == nil {
		return t, err
	}
	for _, label := range row.Consume {
		by := q.h.card.Stamps.Label(label).SpentBy
		for _, c := range q.h.card.Consumed {
			if by == "" && foldContains(c.Labels, label) {
				by = c.EffectID
			}
		}
		if by != "" && by != row.ID {
			return q.takenBy(ctx, by, label)
		}
	}
	return nil, nil
}

// takerAmong looks among the rows of the same event.
func (q *question) takerAmong(ctx context.Context, row *Effect, took func(*Effect) bool) (*Taker, error) {
	rows, err := q.Outbox.EffectListByEvent(ctx, row.TenantID, EffectEventID(row.ID))
	if err != nil {
		return nil, err
	}
	for i := range rows {
		o := &rows[i]
		if o.ID == row.ID || !took(o) {
			continue
		}
		for _, label := range row.Consume {
			if foldContains(o.Consume, label) {
				return q.takenBy(ctx, o.ID, label)
			}
		}
	}
	return nil, nil
}

func (q *question) takenBy(ctx context.Context, effectID, label string) (*Taker, error) {
	_, subscriptionID, _ := strings.Cut(effectID, "|")
	t := &Taker{EffectID: effectID, SubscriptionID: subscriptionID, Label: label}
	sub, err := q.Config.SubscriptionGet(ctx, q.sub.TenantID, subscriptionID)
	switch {
	case err == nil:
		t.SubscriptionName = sub.Name
	case !errors.Is(err, tracker.ErrNotFound):
		return nil, err
	}
	return t, nil
}

// ranksBefore reports whether o comes before row where both want one label.
func ranksBefore(o, row *Effect) bool {
	return cmp.Or(cmp.Compare(o.Rank, row.Rank), cmp.Compare(o.SubscriptionID, row.SubscriptionID)) < 0
}
