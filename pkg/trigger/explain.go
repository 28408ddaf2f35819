package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Bounds of what Explainer reads.
const (
	// ExplainEventsMax is how many of a card's newest events are looked at.
	ExplainEventsMax = 500
	// ExplainRowsMax is how many of a subscription's newest rows are looked
	// through for one whose event is no longer kept.
	ExplainRowsMax = 500
	// ExplainSubscriptionsMax is how many subscriptions one call explains.
	ExplainSubscriptionsMax = 100
	explainPage             = 100
)

// cardReader reads cards.
type cardReader interface {
	CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error)
	CardsGet(ctx context.Context, tenantID string, cardIDs []string) ([]*tracker.Card, error)
}

// Explainer tells people what a subscription makes, or would make, of events.
// It reads only: its fields have no way to write. Safe for concurrent use.
type Explainer struct {
	Log interface {
		EventList(ctx context.Context, tenantID string, after, upTo int64) ([]Event, error)
		EventListByCard(ctx context.Context, tenantID, cardID string, before int64, limit int) ([]Event, error)
	}
	Outbox interface {
		EffectGet(ctx context.Context, tenantID, effectID string) (*Effect, error)
		EffectListByEvent(ctx context.Context, tenantID, eventID string) ([]Effect, error)
		EffectListBySubscription(ctx context.Context, tenantID, subscriptionID string, before int64, limit int) ([]Effect, error)
	}
	Config interface {
		SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
		SubscriptionList(ctx context.Context, tenantID string) ([]Subscription, error)
	}
	Cards cardReader
	Heads interface {
		HeadGet(ctx context.Context, tenantID string) (*Head, error)
	}
	Pauses interface {
		PauseList(ctx context.Context) ([]Pause, error)
	}
}

// NewExplainer returns an explainer of what a store holds.
func NewExplainer(store Store) *Explainer {
	return &Explainer{Log: store, Outbox: store, Config: store, Cards: store, Heads: store, Pauses: store}
}

// Answer says what became of a subscription's interest in a card.
type Answer string

// The answers (docs/explain.md). The first ones tell of the row that there is.
const (
	AnswerFired           Answer = "fired"
	AnswerPending         Answer = "pending"
	AnswerRetrying        Answer = "retrying"
	AnswerClaimed         Answer = "claimed"
	AnswerLaunchesPaused  Answer = "launches_paused"
	AnswerHeldByPause     Answer = "held_by_pause"
	AnswerHeldByGuard     Answer = "held_by_storm_guard"
	AnswerFailed          Answer = "failed"
	AnswerReconcile       Answer = "reconcile"
	AnswerDiscarded       Answer = "discarded"
	AnswerOneShotSpent    Answer = "one_shot_spent"
	AnswerLoopCut         Answer = "loop_cut"
	AnswerNotLaunched     Answer = "not_launched"
	AnswerCondition       Answer = "condition_failed"
	AnswerActor           Answer = "actor_not_accepted"
	AnswerEdgeSpent       Answer = "edge_spent"
	AnswerEnabledAfter    Answer = "enabled_after"
	AnswerDisabled        Answer = "disabled"
	AnswerNotRead         Answer = "not_read_yet"
	AnswerPoison          Answer = "poison"
	AnswerEvaluation      Answer = "evaluation_failed"
	AnswerChangedSince    Answer = "changed_since"
	AnswerEventNotKept    Answer = "event_not_kept"
	AnswerCardUnknown     Answer = "card_unknown"
	AnswerNobodyKnows     Answer = "unexplained"
	AnswerUnknownFeatures Answer = "newer_version"
)

// Answers lists all answers.
func Answers() []Answer {
	return []Answer{
		AnswerFired, AnswerPending, AnswerRetrying, AnswerClaimed, AnswerLaunchesPaused, AnswerHeldByPause, AnswerHeldByGuard, AnswerFailed,
		AnswerReconcile, AnswerDiscarded, AnswerOneShotSpent, AnswerLoopCut, AnswerNotLaunched, AnswerCondition, AnswerActor, AnswerEdgeSpent,
		AnswerEnabledAfter, AnswerDisabled, AnswerNotRead, AnswerPoison, AnswerEvaluation, AnswerChangedSince, AnswerEventNotKept, AnswerCardUnknown,
		AnswerNobodyKnows, AnswerUnknownFeatures,
	}
}

// Explanation is why a card did or did not fire a subscription.
type Explanation struct {
	CardID           string `json:"card_id"`
	SubscriptionID   string `json:"subscription_id"`
	SubscriptionName string `json:"subscription_name"`
	Answer           Answer `json:"answer"`
	// Sentence says it to a board user.
	Sentence string `json:"sentence"`
	// Event is the deciding event: the newest one of the card that the
	// subscription's filters, or its edge, concern; the card's newest if none
	// does; nil if none is kept.
	Event *EventBrief `json:"event,omitempty"`
	// Verdict is what the subscription, as it is now, makes of that event.
	Verdict *Verdict `json:"verdict,omitempty"`
	// Failed is the first condition of it that did not hold.
	Failed *Condition `json:"failed,omitempty"`
	// Row is the row that the event made.
	Row *LogEntry `json:"row,omitempty"`
	// Taker is who took, or comes first for, a one-shot label (W7).
	Taker *Taker `json:"taker,omitempty"`
	// Latest is the verdict of the card's newest event, if that is another.
	Latest *Verdict `json:"latest,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// EventBrief is an event without its snapshots.
type EventBrief struct {
	// Seq is 0 while the event is not in the log yet.
	Seq   int64         `json:"seq"`
	Kind  tracker.Kind  `json:"kind"`
	At    time.Time     `json:"at"`
	Actor tracker.Actor `json:"actor"`
}

func briefOf(e *Event) *EventBrief {
	return &EventBrief{Seq: e.Seq, Kind: e.Kind, At: e.At, Actor: e.Actor}
}

// Taker is the effect that a one-shot label went to.
type Taker struct {
	EffectID         string `json:"effect_id"`
	SubscriptionID   string `json:"subscription_id"`
	SubscriptionName string `json:"subscription_name,omitempty"`
	Label            string `json:"label"`
}

// cardHistory is what is known of a card.
type cardHistory struct {
	card *tracker.Card // nil if there is none
	head Head          // as read before the events and rows
	// events are the card's, newest first; those not in the log yet have no
	// seq.
	events []Event
	errs   map[int]string // why an event can't be judged
	more   bool           // there are older ones
	pauses []Pause
}

// Explain says why the card did or did not fire the subscription, or returns
// tracker.ErrNotFound if the tenant has no such subscription.
func (x *Explainer) Explain(ctx context.Context, tenantID, cardID, subscriptionID string) (*Explanation, error) {
	sub, err := x.Config.SubscriptionGet(ctx, tenantID, subscriptionID)
	if err != nil {
		return nil, fmt.Errorf("explain card %s/%s: %w", tenantID, cardID, err)
	}
	out, err := x.explain(ctx, tenantID, cardID, []Subscription{*sub}, ExplainRowsMax)
	if err != nil {
		return nil, err
	}
	return &out[0], nil
}

// ExplainAll explains the card for the tenant's subscriptions, by name: the
// first ExplainSubscriptionsMax with names after one. It reports whether there
// are more.
func (x *Explainer) ExplainAll(ctx context.Context, tenantID, cardID, afterName string) (out []Explanation, more bool, err error) {
	subs, err := x.Config.SubscriptionList(ctx, tenantID)
	if err != nil {
		return nil, false, fmt.Errorf("explain card %s/%s: %w", tenantID, cardID, err)
	}
	subs = slices.DeleteFunc(subs, func(s Subscription) bool { return s.Name <= afterName })
	more = len(subs) > ExplainSubscriptionsMax
	out, err = x.explain(ctx, tenantID, cardID, subs[:min(len(subs), ExplainSubscriptionsMax)], explainPage)
	return out, more, err
}

func (x *Explainer) explain(ctx context.Context, tenantID, cardID string, subs []Subscription, rows int) ([]Explanation, error) {
	h, err := x.history(ctx, tenantID, cardID)
	if err != nil {
		return nil, fmt.Errorf("explain card %s/%s: %w", tenantID, cardID, err)
	}
	out := make([]Explanation, len(subs))
	for i := range subs {
		s := &subs[i]
		out[i] = Explanation{CardID: cardID, SubscriptionID: s.ID, SubscriptionName: s.Name}
		q := question{Explainer: x, h: h.lookedAt(s), all: h, sub: s, cardID: cardID, rows: rows, out: &out[i]}
		if err := q.answer(ctx); err != nil {
			return nil, fmt.Errorf("explain card %s/%s for subscription %s: %w", tenantID, cardID, s.ID, err)
		}
	}
	return out, nil
}

// history reads what there is of a card. The head comes before the rows: what
// its cursor has passed has the rows that it owes (T1).
func (x *Explainer) history(ctx context.Context, tenantID, cardID string) (*cardHistory, error) {
	h := &cardHistory{head: Head{TenantID: tenantID}}
	card, err := x.Cards.CardGet(ctx, tenantID, cardID)
	if err != nil && !errors.Is(err, tracker.ErrNotFound) {
		return nil, err
	}
	h.card = card
	head, err := x.Heads.HeadGet(ctx, tenantID)
	switch {
	case err == nil:
		h.head = *head
	case !errors.Is(err, tracker.ErrNotFound):
		return nil, err
	}
	if h.pauses, err = x.Pauses.PauseList(ctx); err != nil {
		return nil, err
	}
	var logged []Event
	for before := h.head.Seq + 1; ; before = logged[len(logged)-1].Seq {
		page, err := x.Log.EventListByCard(ctx, tenantID, cardID, before, explainPage)
		if err != nil {
			return nil, err
		}
		logged = append(logged, page...)
		if len(page) < explainPage {
			break
		}
		if len(logged) >= ExplainEventsMax {
			h.more = true
			break
		}
	}
	if card != nil {
		for i := range slices.Backward(card.Pending) {
			e := Event{TenantID: tenantID, Source: SourceBoard, BoardEvent: card.Pending[i]}
			if !slices.ContainsFunc(logged, func(l Event) bool { return l.EID == e.EID }) {
				h.events = append(h.events, e)
			}
		}
	}
	h.events = append(h.events, logged...)
	h.errs, err = x.normalize(ctx, tenantID, h.events)
	return h, err
}

// normalize prepares events as the tail does, and says of which it can't be
// judged why.
func (x *Explainer) normalize(ctx context.Context, tenantID string, events []Event) (map[int]string, error) {
	errs := make(map[int]string)
	for i, n := range NormalizeBoardEvents(ctx, x.Cards, tenantID, events) {
		e := &events[i]
		unknown := checkFeatures("the event", e.Requires)
		switch {
		case n.Err != nil:
			return nil, n.Err
		case e.Undecodable != "":
			errs[i] = "the event can't be read: " + e.Undecodable
		case unknown != nil:
			errs[i] = unknown.Error()
		case n.Gone:
			errs[i] = "the event came without the card's state, and the card is gone"
		}
	}
	return errs, nil
}

// LogEntry is one row of a subscription, and what became of it.
type LogEntry struct {
	ID       string       `json:"id"`
	EventSeq int64        `json:"event_seq"`
	Kind     tracker.Kind `json:"event_kind"`
	CardID   string       `json:"card_id"`
	// Answer is the typed outcome, Sentence says it to a board user.
	Answer   Answer  `json:"answer"`
	Sentence string  `json:"sentence"`
	State    State   `json:"state"`
	Outcome  Outcome `json:"outcome,omitempty"`
	Reason   Reason  `json:"reason,omitempty"`
	RunID    string  `json:"run_id,omitempty"`
	Attempts int     `json:"attempts"`
	// LastError is the latest attempt's that failed.
	LastError string `json:"last_error,omitempty"`
	// Decided is the latest decision of a person about the row.
	Decided   *Decided  `json:"decided,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Decided is what a person did with a row.
type Decided struct {
	Action Action    `json:"action"`
	By     string    `json:"by"`
	Note   string    `json:"note,omitempty"`
	At     time.Time `json:"at"`
}

// LogMax is the most that one page of a subscription's log holds.
const LogMax = 100

// LogPage is a page of a subscription's rows, newest event first.
type LogPage struct {
	Entries []LogEntry `json:"entries"`
	// Next is the seq that the next page is before; 0 on the last.
	Next int64 `json:"next,omitempty"`
}

// SubscriptionLog returns a page of the subscription's rows whose events have
// seq < before (0: from the newest on), or tracker.ErrNotFound. Rows that are
// done go with their events (R4).
func (x *Explainer) SubscriptionLog(ctx context.Context, tenantID, subscriptionID string, before int64, limit int) (*LogPage, error) {
	if limit < 1 || limit > LogMax {
		return nil, tracker.Fieldf("limit", "must be 1 to %d", LogMax)
	}
	wrap := func(err error) error {
		return fmt.Errorf("log of subscription %s/%s: %w", tenantID, subscriptionID, err)
	}
	sub, err := x.Config.SubscriptionGet(ctx, tenantID, subscriptionID)
	if err != nil {
		return nil, wrap(err)
	}
	if before == 0 {
		if before, err = x.end(ctx, tenantID); err != nil {
			return nil, wrap(err)
		}
	}
	pauses, err := x.Pauses.PauseList(ctx)
	if err != nil {
		return nil, wrap(err)
	}
	rows, err := x.Outbox.EffectListBySubscription(ctx, tenantID, subscriptionID, before, limit+1)
	if err != nil {
		return nil, wrap(err)
	}
	page := &LogPage{Entries: []LogEntry{}}
	for i := range rows {
		if i == limit {
			page.Next = rows[i-1].EventSeq
			break
		}
		page.Entries = append(page.Entries, logEntry(&rows[i], sub, pauses))
	}
	return page, nil
}

// end is the first seq that was not given out.
func (x *Explainer) end(ctx context.Context, tenantID string) (int64, error) {
	head, err := x.Heads.HeadGet(ctx, tenantID)
	if errors.Is(err, tracker.ErrNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return head.Seq + 1, nil
}
