package trigger

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// The kinds of events that tell of a row, of SourceCustom: it failed, or
// nobody knows what became of it. They change no card, and concern only
// subscriptions that ask for them by their kind.
const (
	KindEffectFailed    tracker.Kind = "effect.failed"
	KindEffectReconcile tracker.Kind = "effect.reconcile"
)

// EventKinds lists the kinds of events that a subscription may ask for.
func EventKinds() []tracker.Kind {
	return append(tracker.Kinds(), KindEffectFailed, KindEffectReconcile)
}

// announcer is the actor of events that tell of rows.
const announcer = "effects"

// toldErrorMax is the longest error that is told, in bytes.
const toldErrorMax = 1000

func isTold(k tracker.Kind) bool { return k == KindEffectFailed || k == KindEffectReconcile }

// tellsOfRow reports whether the event tells of a row.
func tellsOfRow(e *Event) bool { return isTold(e.Kind) }

// Told is the payload of an event that tells of a row: what the row was when
// it was parked. The error is the row's latest, which holds no secret.
type Told struct {
	Effect       string     `json:"effect"`
	Kind         EffectKind `json:"kind"`
	State        State      `json:"state"`
	Reason       Reason     `json:"reason,omitempty"`
	Subscription string     `json:"subscription,omitempty"`
	Bot          string     `json:"bot,omitempty"`
	Projection   string     `json:"projection,omitempty"`
	EventSeq     int64      `json:"event_seq"`
	Attempts     int        `json:"attempts"`
	Generation   int        `json:"generation"`
	Error        string     `json:"error,omitempty"`
}

// toldEID is the id of the event that tells of one parking of a row: a claim
// parks a row once in each of the states, and a row that is tried again is
// claimed anew. A poison row was not claimed before it is replayed.
func toldEID(row *Effect) string {
	return toldPrefix(toldKind(row.State)) + row.ID + ":" + row.ClaimID
}

func toldPrefix(k tracker.Kind) string { return string(SourceCustom) + ":" + string(k) + ":" }

func toldKind(s State) tracker.Kind {
	if s == StateReconcile {
		return KindEffectReconcile
	}
	return KindEffectFailed
}

// toldRow is the id of the row that an event of the eid tells of; "" if it
// tells of none.
func toldRow(eid string) string {
	for _, k := range []tracker.Kind{KindEffectFailed, KindEffectReconcile} {
		if rest, ok := strings.CutPrefix(eid, toldPrefix(k)); ok {
			return rest[:max(strings.LastIndexByte(rest, ':'), 0)]
		}
	}
	return ""
}

// tell makes the event that tells of a parked row; false if none is to be: the
// row has no card, or it is the poison row of an event that tells of a row
// itself, which could go on for ever.
//
// The card is as the row's event left it, before and after: nothing changed.
// The cause is the row's: what the row's subscription fires in turn ends where
// it would come back to it.
func tell(row *Effect) (e Event, ok bool) {
	if !row.State.Parked() || row.CardID == "" || (row.Kind == KindEvent && tellsOfRow(&row.Event)) {
		return Event{}, false
	}
	told := Told{
		Effect: row.ID, Kind: row.Kind, State: row.State, Reason: row.Reason, EventSeq: row.EventSeq,
		Subscription: row.SubscriptionID, Bot: row.BotID, Projection: row.ProjectionID,
		Attempts: row.Attempts, Generation: row.Generation,
	}
	if row.Kind.launches() {
		told.Kind = KindLaunch
	}
	if n := len(row.Errors); n > 0 {
		told.Error = clip(row.Errors[n-1].Message, toldErrorMax)
	}
	payload, err := json.Marshal(told)
	if err != nil {
		return Event{}, false // it holds nothing but texts and numbers
	}
	cause := row.Event.Cause
	if by := row.SubscriptionID + row.ProjectionID; by != "" {
		cause = cause.Then(by, row.CardID)
	}
	return Event{
		TenantID: row.TenantID, Source: SourceCustom, Payload: string(payload),
		BoardEvent: tracker.BoardEvent{
			EID: toldEID(row), Kind: toldKind(row.State), At: row.UpdatedAt, Actor: tracker.Actor{Kind: tracker.ActorSystem, ID: announcer},
			BoardID: row.Event.BoardID, CardID: row.CardID, CardRev: row.CardRev,
			Before: row.Event.After, After: row.Event.After, Cause: cause, TraceParent: row.Event.TraceParent,
		},
	}, true
}

var noTold = &Told{}

// told is what the event tells of a row; all empty if it tells of none.
func (f *facts) told() *Told {
	if f.row == nil {
		f.row = noTold
		if t := (Told{}); tellsOfRow(f.e) && json.Unmarshal([]byte(f.e.Payload), &t) == nil {
			f.row = &t
		}
	}
	return f.row
}

// checkTold refuses kinds that tell of rows where they, or what else the
// subscription asks for, never come.
func (f *EventFilter) checkTold() error {
	asked := slices.ContainsFunc(f.Kinds, isTold)
	custom := slices.Contains(f.Sources, SourceCustom)
	switch {
	case custom && !asked:
		return tracker.Fieldf("on", "the source %s emits only %s and %s in this version: name one of them among the kinds", SourceCustom, KindEffectFailed, KindEffectReconcile)
	case asked && len(f.Sources) > 0 && !custom:
		return tracker.Fieldf("on", "%s and %s come from the source %s alone: name it too, or no source", KindEffectFailed, KindEffectReconcile, SourceCustom)
	}
	return nil
}

// lookedAt is the history without the events that tell of rows, unless the
// subscription asks for such: they are no changes of the card, and show it as
// it was when the row's event fired.
func (h *cardHistory) lookedAt(s *Subscription) *cardHistory {
	if slices.ContainsFunc(s.On.Kinds, isTold) || !slices.ContainsFunc(h.events, func(e Event) bool { return tellsOfRow(&e) }) {
		return h
	}
	out := *h
	out.events, out.errs = nil, make(map[int]string)
	for i := range h.events {
		if tellsOfRow(&h.events[i]) {
			continue
		}
		if why, ok := h.errs[i]; ok {
			out.errs[len(out.events)] = why
		}
		out.events = append(out.events, h.events[i])
	}
	return &out
}
