package tracker

import (
	"context"
	"time"
)

// CardWrite is one conditional write to one card: the whole of a change (E1).
type CardWrite struct {
	// PrevIncarnation and PrevRev name the card as it was read. Both are zero
	// when the card is to be made, and must not exist.
	PrevIncarnation string
	PrevRev         int64
	// Next is the card after the write, with Rev = PrevRev+1 and a fresh
	// LastWrite. Its Pending and PendingAt are not written: those belong to
	// the store and the relay.
	Next *Card
	// Event, if any, is appended to the card's pending events by the same
	// atomic write, and the sweeper's mark set.
	Event *BoardEvent
	// Comment, if any, is added to the card's comments by the same write. A
	// card that is made has none but this one, also over a tombstone.
	Comment *Comment
}

// CardStore keeps cards. Every method takes the tenant: an id alone opens
// nothing. All reads see only what a majority holds.
type CardStore interface {
	// CardGet returns the card, or ErrNotFound. A deleted card is there, with
	// Deleted set, until it is buried (E4).
	CardGet(ctx context.Context, tenantID, cardID string) (*Card, error)
	// CardWrite applies w, or returns ErrConflict when the card is not as w
	// names it. Any other error leaves open whether it was applied.
	CardWrite(ctx context.Context, w CardWrite) error
	// CardsGet returns those of the cards that there are, in no order.
	CardsGet(ctx context.Context, tenantID string, cardIDs []string) ([]*Card, error)
	// CardWriteMany applies each of the writes, of different cards of one
	// tenant, on its own, in a few commands, and reports for each whether it
	// is known to stand. One of which it is not may have been applied, and
	// written over since. An error leaves open which were applied.
	CardWriteMany(ctx context.Context, tenantID string, ws []CardWrite) ([]bool, error)
	// CardPendingRemove takes the named events off each card, and its mark if
	// none is left, in one write a card (E3). Cards and events that are not
	// there any more are no error.
	CardPendingRemove(ctx context.Context, tenantID string, eidsByCard map[string][]string) error
	// CardsPending returns up to limit cards whose mark is at most before,
	// longest marked first, of all tenants.
	CardsPending(ctx context.Context, before time.Time, limit int) ([]PendingCard, error)
	// CardPendingTouch moves a card's mark to now, if it still is the one
	// that was read, and reports whether it did (E3).
	CardPendingTouch(ctx context.Context, p PendingCard, now time.Time) (bool, error)
	// CardPendingEIDs returns those of the events that are still pending on a
	// card (R4).
	CardPendingEIDs(ctx context.Context, tenantID string, eids []string) ([]string, error)
	// CardList returns a page of cards; no deleted ones. A call reads a
	// bounded number of cards.
	CardList(ctx context.Context, p CardListParams) (CardPage, error)
	// CardCount counts the cards of a board's column, or of the whole board if
	// none is named, up to CardCountMax; no deleted ones.
	CardCount(ctx context.Context, tenantID, boardID, columnID string) (int, error)
	// CardComments returns the card's comments, oldest first, or ErrNotFound.
	// Those of a deleted card are there until it is buried.
	CardComments(ctx context.Context, tenantID, cardID string) ([]Comment, error)
	// CardBury removes a deleted card of this incarnation, if none of its
	// events is pending and no effect needs its consumptions (E4, W7), and
	// reports whether it is gone.
	CardBury(ctx context.Context, tenantID, cardID, incarnation string) (bool, error)
}

// PendingCard is a card that has pending events, with the sweeper's mark.
type PendingCard struct {
	TenantID  string    `json:"tenant_id"`
	CardID    string    `json:"id"`
	PendingAt time.Time `json:"pending_at"`
}

// Changer computes a card's next state for one change. It gets a copy of the
// card as read, or nil if there is none, and the database's time; it returns
// the card to write and the event that tells of it, a nil event when only
// bookkeeping changes, or a nil card when nothing is to be written. It is called
// again after each conflict, between the read and the write that is conditional
// on it: what else it does must bear repeating.
type Changer func(card *Card, now time.Time) (*Card, *BoardEvent, error)

// Changed is what became of a change.
type Changed struct {
	// Card is the card as written, or as read when nothing was to be written.
	Card *Card
	// Event is the event that the change made, nil if none. It is durable.
	Event *BoardEvent
	// Written is false when nothing was to be written.
	Written bool
}

// Tracker is the board as the engine uses it. A deleted card is not found.
type Tracker interface {
	CardGet(ctx context.Context, tenantID, cardID string) (*Card, error)
	// Change applies a change with one conditional write, and repeats read,
	// compute and write while others get in between (E1). When it returns
	// without error the change and its event are durable, whether or not
	// the event has reached the log.
	Change(ctx context.Context, tenantID, cardID string, f Changer) (Changed, error)
}
