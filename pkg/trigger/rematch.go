package trigger

import (
	"context"
	"fmt"
)

// rematch matches the event of a replayed poison row again (T5).
func (v *Evaluator) rematch(ctx context.Context, row *Effect) Evaluation {
	if v.Matcher == nil {
		return Evaluation{Err: lookup(fmt.Errorf("match event %s: this replica matches no events", row.Event.ID()))}
	}
	return v.Matcher.rematch(ctx, row)
}

// rematch writes those rows of the event that are absent, and marks the lanes
// of all, as a batch does. What is there is not made a second time: rows stay
// while the event's poison row is not over (R4).
func (t *Tail) rematch(ctx context.Context, row *Effect) Evaluation {
	epoch := t.Epochs.Epoch()
	events, err := t.Log.EventList(ctx, row.TenantID, row.EventSeq-1, row.EventSeq)
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if len(events) == 0 {
		switch {
		case row.Event.After == nil:
			return permanent("the event is no longer in the log, and the row has no snapshot of it")
		case row.Generation > 0:
			// Its rows may be gone too: they would be made a second time.
			return permanent("the event is no longer in the log, and was matched before")
		}
		events = []Event{row.Event}
	}
	e := &events[0]
	if err := checkFeatures("event "+e.ID(), e.Requires); err != nil {
		return Evaluation{Err: lookup(err)} // others know it
	}
	n := NormalizeBoardEvents(ctx, t.Cards, row.TenantID, events)[0]
	switch {
	case n.Err != nil:
		return Evaluation{Err: lookup(n.Err)}
	case n.Gone:
		return Evaluation{Outcome: OutcomeCardGone}
	}
	w, err := t.watchers(ctx, row.TenantID)
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if t.Epochs.Epoch() != epoch {
		return Evaluation{Err: lookup(errPrimaryChanged)} // T7
	}
	var out judged
	if e.Source != SourceVoid {
		t.owe(&out, e, w)
	}
	// Its poison row, if it still is poison, is there: writing it changes
	// nothing.
	if err := t.write(ctx, row.TenantID, out.rows); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if len(out.poison) > 0 {
		return permanent("%s", out.poison[0].Errors[0].Message)
	}
	return Evaluation{Outcome: OutcomeMatched}
}
