package trigger

import (
	"slices"
	"strings"
	"time"
)

// EffectKind says what a row is. An absent kind means launch (R1).
type EffectKind string

const (
	// KindLaunch launches a bot.
	KindLaunch EffectKind = "launch"
	// KindProjection mirrors a card's column onto another board.
	KindProjection EffectKind = "projection"
	// KindEvent is the row of a poison event (T5): it is failed from the
	// start; a replay matches the event again.
	KindEvent EffectKind = "event"
)

// KnownKinds are the kinds that this version may claim (R2); an absent kind
// means launch (R1).
func KnownKinds() []EffectKind { return []EffectKind{KindLaunch, "", KindProjection, KindEvent} }

// Known reports whether this version may claim rows of the kind (R2).
func (k EffectKind) Known() bool { return slices.Contains(KnownKinds(), k) }

func (k EffectKind) launches() bool { return k == KindLaunch || k == "" }

// State is where a row stands (docs/state-machine.md).
type State string

// The states of rows.
const (
	// StatePending rows wait to be claimed, from NotBefore on.
	StatePending State = "pending"
	// StateClaimed rows are being executed, until their lease ends.
	StateClaimed State = "claimed"
	StateDone    State = "done"
	// StateFailed rows wait for somebody to replay or discard them.
	StateFailed State = "failed"
	// StateReconcile rows were sent to a bot that can't be sent the same
	// twice, and nobody knows what became of it: a person has to say (W8).
	StateReconcile State = "reconcile"
	// StateHeld rows wait for their subscription's pause to end.
	StateHeld      State = "held"
	StateDiscarded State = "discarded"
)

// States lists all states.
func States() []State {
	return []State{StatePending, StateClaimed, StateDone, StateFailed, StateReconcile, StateHeld, StateDiscarded}
}

// Over reports whether nothing more will come of the row unless somebody runs
// it again: such rows may go in time (R4).
func (s State) Over() bool { return s == StateDone || s == StateDiscarded }

// Parked reports whether the row waits for a person since it failed, or nobody
// knows what became of it: what an Announcer tells of.
func (s State) Parked() bool { return s == StateFailed || s == StateReconcile }

// Live reports whether a worker still has to do something about the row.
func (s State) Live() bool { return s == StatePending || s == StateClaimed }

// Outcome says how a done row ended.
type Outcome string

// The outcomes that this version gives.
const (
	OutcomeLaunched Outcome = "launched"
	// OutcomePromoted: the card carries the bot now.
	OutcomePromoted Outcome = "promoted"
	// OutcomeProjected: the other board shows the card's column, or a later one.
	OutcomeProjected Outcome = "projected"
	// OutcomeMatched: a poison event that was replayed has the rows it owes.
	OutcomeMatched              Outcome = "matched"
	OutcomeOneShotSpent         Outcome = "one_shot_spent"
	OutcomeSubscriptionGone     Outcome = "subscription_gone"
	OutcomeSubscriptionDisabled Outcome = "subscription_disabled"
	OutcomeNoLongerMatches      Outcome = "no_longer_matches"
	OutcomeCardGone             Outcome = "card_gone"
	OutcomeBotGone              Outcome = "bot_gone"
	OutcomeLoopCut              Outcome = "loop_cut"
)

// Reason says why a failed row failed.
type Reason string

// The reasons that this version gives.
const (
	ReasonExhausted      Reason = "exhausted"
	ReasonPermanent      Reason = "permanent"
	ReasonLeaseExhausted Reason = "lease_exhausted"
	ReasonPoison         Reason = "poison"
)

// AttemptsMax is how many attempts a row gets (W4, W5).
const AttemptsMax = 5

// ErrorsKept is how many of its latest errors a row keeps.
const ErrorsKept = 5

// Effect is one row of the effect outbox: what one subscription owes for one
// event.
type Effect struct {
	// ID is the row's key and the launch's idempotency key:
	// "<event id>|<subscription id>" (R1, W12).
	ID       string     `json:"id"`
	TenantID string     `json:"tenant_id"`
	Kind     EffectKind `json:"kind"`
	// Lane is the queue that the row waits in: LaneBot, LaneProjection or
	// LaneEvents.
	Lane  string `json:"lane"`
	State State  `json:"state"`
	// NotBefore is when a live row is due, in database time: for a pending
	// row its next attempt, for a claimed one the end of its lease. One field
	// serves both, so that one command reads a lane's next due time.
	NotBefore time.Time `json:"not_before"`

	SubscriptionID       string `json:"subscription_id"`
	SubscriptionRevision int64  `json:"subscription_revision"`
	BotID                string `json:"bot_id"`
	// ProjectionID, of a row of KindProjection, in a subscription's stead.
	ProjectionID string      `json:"projection_id,omitempty"`
	Replay       ReplayClass `json:"replay"`
	Rank         int         `json:"rank"`
	// Consume are the one-shot labels that the effect spends (W7).
	Consume []string `json:"consume,omitempty"`

	EventSeq int64  `json:"event_seq"`
	CardID   string `json:"card_id"`
	CardRev  int64  `json:"card_rev"`
	// Event is the whole event with its snapshots: the row outlives the log
	// entry (R4).
	Event Event `json:"event"`

	// ClaimID is fresh for each claim and stays on the row afterwards, so that
	// a settle that is sent again is recognized (W2).
	ClaimID   string    `json:"claim_id,omitempty"`
	Worker    string    `json:"worker,omitempty"`
	ClaimedAt time.Time `json:"claimed_at,omitempty,omitzero"`
	// Attempts counts the claims that could have executed; it travels in a
	// header. Generation counts the times that a done row was run again.
	Attempts   int `json:"attempts"`
	Generation int `json:"generation"`

	// Plan is what the row launches, fixed before its label is spent (W7).
	Plan *LaunchPlan `json:"plan,omitempty"`
	// ConsumeMarked: the label is known to be spent for this row (W7).
	ConsumeMarked bool `json:"consume_marked,omitempty"`
	// Rendered is the launch's body as first sent: every attempt sends the
	// same bytes (W12).
	Rendered string `json:"rendered,omitempty"`
	// DeliveryStartedAt: a request to a bot that can't be sent the same twice
	// may have been sent since, and no definite answer came yet (W8).
	DeliveryStartedAt time.Time `json:"delivery_started_at,omitempty,omitzero"`

	Outcome Outcome        `json:"outcome,omitempty"`
	Reason  Reason         `json:"reason,omitempty"`
	RunID   string         `json:"run_id,omitempty"`
	Errors  []AttemptError `json:"errors,omitempty"`
	// History tells what people did with the row, the latest HistoryKept.
	History []HistoryEntry `json:"history,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	DoneAt    time.Time `json:"done_at,omitempty,omitzero"`
	// AnnounceAt is there while a row that was parked is to be announced by
	// an event (Announcer): since when, or when to try again.
	AnnounceAt time.Time `json:"announce_at,omitempty,omitzero"`
}

// LaunchPlan is all that a launch needs, kept on the row before the one-shot
// label is taken off the card: whatever becomes of the subscription or the
// card afterwards, this is what launches (W7). The bot's address and secret
// are not in it: they are looked up when it launches.
type LaunchPlan struct {
	BotID string `json:"bot_id"`
	// Body is the rendered request body; empty if the plan is to promote.
	Body string `json:"body,omitempty"`
	// Promote, if set, is what the card is stamped with instead.
	Promote *Promotion `json:"promote,omitempty"`
}

// Promotion stamps a bot onto a card, for whoever dispatches from the board.
type Promotion struct {
	Args map[string]string `json:"args,omitempty"`
	// ToColumn is where the card moves; it stays if empty.
	ToColumn string `json:"to_column,omitempty"`
}

// AttemptError is one failed attempt.
type AttemptError struct {
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"`
	Message string    `json:"message"`
}

// LeaseLost is the error of an attempt whose lease ran out after its delivery
// was started (W8).
func LeaseLost(attempt int, now time.Time) AttemptError {
	return AttemptError{At: now, Attempt: attempt, Message: "the lease ran out after the request may have been sent: its worker died or was cut off, no answer is known"}
}

// EffectID is the key of what a subscription owes for an event (R1).
func EffectID(eventID, subscriptionID string) string { return eventID + "|" + subscriptionID }

// PoisonID is the key of the row that a poison event leaves (R1).
func PoisonID(eventID string) string { return eventID + "!" }

// ProjectionEffectID is the key of what a projection owes for an event (R1).
func ProjectionEffectID(eventID, projectionID string) string { return eventID + ">" + projectionID }

// EffectEventID returns the event's part of a launch row's key.
func EffectEventID(effectID string) string {
	event, _, _ := strings.Cut(effectID, "|")
	return event
}

// IdempotencyKey is the key under which the row launches: its id, and for a
// later generation "<id>#<generation>" (W12).
func (e *Effect) IdempotencyKey() string {
	if e.Generation == 0 {
		return e.ID
	}
	return e.ID + "#" + itoa(e.Generation)
}

// Fence returns the credential of the claim that the row was read under.
func (e *Effect) Fence() Fence {
	return Fence{TenantID: e.TenantID, EffectID: e.ID, ClaimID: e.ClaimID}
}

// LaneEvents is the lane of a tenant's poison events that are replayed.
const LaneEvents = "events"

const (
	laneBot        = "bot:"
	laneProjection = "projection:"
)

// LaneBot is the lane of a bot's rows.
func LaneBot(botID string) string { return laneBot + botID }

// LaneProjection is the lane of a projection's rows.
func LaneProjection(projectionID string) string { return laneProjection + projectionID }
