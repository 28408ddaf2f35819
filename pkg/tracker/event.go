package tracker

import (
	"time"

	"github.com/google/uuid"
)

// Kind says what a board event reports. One mutation is one event.
type Kind string

// The kinds of board events that this version makes.
const (
	KindCreated    Kind = "card.created"
	KindMoved      Kind = "card.moved"
	KindLabeled    Kind = "card.labeled"
	KindUnlabeled  Kind = "card.unlabeled"
	KindEdited     Kind = "card.edited"
	KindAssigned   Kind = "card.assigned"
	KindUnassigned Kind = "card.unassigned"
	KindDeleted    Kind = "card.deleted"
	// KindReordered: the card was put elsewhere in its column. No condition
	// asks where it stands.
	KindReordered Kind = "card.reordered"
	// KindCommented: somebody wrote a comment, which the event names.
	KindCommented Kind = "card.commented"
	// KindPromoted: a bot was stamped onto the card, which stayed in its
	// column; one that was moved with it is a KindMoved.
	KindPromoted Kind = "card.promoted"
	// KindProjected: a projection found the card in the column that a later
	// event wants it in. Only other projections look at it: it is not among
	// Kinds.
	KindProjected Kind = "card.projected"
)

// Kinds lists the kinds of board events that this version makes and that
// somebody may ask for.
func Kinds() []Kind {
	return []Kind{KindCreated, KindMoved, KindLabeled, KindUnlabeled, KindEdited, KindAssigned, KindUnassigned, KindDeleted, KindReordered, KindCommented, KindPromoted}
}

// ActorKind says what sort of actor caused an event.
type ActorKind string

// The sorts of actors. A person whose token a bot uses is a human.
const (
	ActorHuman  ActorKind = "human"
	ActorBot    ActorKind = "bot"
	ActorSystem ActorKind = "system"
)

// Actor is who caused an event. ID is a bot's id for this system's bots, and
// the login for somebody of a forge; Via names the hook that brought it.
type Actor struct {
	Kind ActorKind `json:"kind"`
	ID   string    `json:"id"`
	Name string    `json:"name,omitempty"`
	Via  string    `json:"via,omitempty"`
}

// Cause is what an event goes back to: the (subscription, card) pairs whose
// effects led to it.
type Cause struct {
	Chain []CauseLink `json:"chain,omitempty"`
	// Depth is how many effects lie one after the other, where that is less
	// than the chain has links: a change that may be any of several bots'
	// answer has a link for each. 0 means one for each link.
	Depth int `json:"depth,omitempty"`
}

// CauseLink is one link of a cause.
type CauseLink struct {
	SubscriptionID string `json:"subscription_id"`
	CardID         string `json:"card_id"`
}

// Has reports whether the pair is already a link of the chain.
func (c Cause) Has(subscriptionID, cardID string) bool {
	for _, l := range c.Chain {
		if l.SubscriptionID == subscriptionID && l.CardID == cardID {
			return true
		}
	}
	return false
}

// Then returns the cause extended by one link.
func (c Cause) Then(subscriptionID, cardID string) Cause {
	next := Cause{Chain: c.plus(subscriptionID, cardID)}
	if c.Depth != 0 {
		next.Depth = c.Depth + 1
	}
	return next
}

// With returns the cause with one more link, no deeper than it was; unchanged
// if it has the link.
func (c Cause) With(subscriptionID, cardID string) Cause {
	if c.Has(subscriptionID, cardID) {
		return c
	}
	return Cause{Chain: c.plus(subscriptionID, cardID), Depth: c.Steps()}
}

func (c Cause) plus(subscriptionID, cardID string) []CauseLink {
	chain := make([]CauseLink, 0, len(c.Chain)+1)
	return append(append(chain, c.Chain...), CauseLink{subscriptionID, cardID})
}

// Steps returns the depth of the chain.
func (c Cause) Steps() int {
	if c.Depth != 0 {
		return c.Depth
	}
	return len(c.Chain)
}

// BoardEvent is one change of one card, with the card before and after it.
type BoardEvent struct {
	// EID is the event's identity from its making on: "board:" and a fresh
	// uuid for each attempt at a change, never derived from the card (E1, E5).
	EID   string    `json:"eid"`
	Kind  Kind      `json:"kind"`
	At    time.Time `json:"at"` // database time, milliseconds
	Actor Actor     `json:"actor"`

	BoardID string `json:"board_id"`
	CardID  string `json:"card_id"`
	CardRev int64  `json:"card_rev"`

	// Before is nil for a card that did not exist, and for one whose state
	// before is not known (BeforeUnknown: first sight through an edit). An
	// event without After carries no snapshot (an older or foreign emitter).
	Before        *Snapshot `json:"before,omitempty"`
	After         *Snapshot `json:"after,omitempty"`
	BeforeUnknown bool      `json:"before_unknown,omitempty"`

	// Added and Removed are the labels or assignees that the change names.
	Added      []string `json:"added,omitempty"`
	Removed    []string `json:"removed,omitempty"`
	FromColumn string   `json:"from_column,omitempty"`
	ToColumn   string   `json:"to_column,omitempty"`
	// CommentID is the comment of a KindCommented; its text stays on the card.
	CommentID string `json:"comment_id,omitempty"`

	Cause Cause `json:"cause,omitempty,omitzero"`
	// Bulk names the call that changed this card and others; empty for a
	// change of one card. The storm guard counts all of one call as one.
	Bulk string `json:"bulk,omitempty"`
	// ProjectedSeq, of a change that a projection made, is the seq of the
	// event that it goes back to.
	ProjectedSeq int64 `json:"projected_seq,omitempty"`
	// TraceParent is the trace that the change was made in (W3C Trace Context,
	// version 00): the caller's, or that of the effect that made the change.
	TraceParent string `json:"traceparent,omitempty"`
}

// NewBoardEID returns a fresh id for a board event.
func NewBoardEID() string { return "board:" + uuid.Must(uuid.NewV7()).String() }
