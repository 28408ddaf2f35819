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
}

// CardStore keeps cards. Every method takes the tenant: an id alone opens
// nothing. All reads see only what a majority holds.
type CardStore interface {
	// CardGet returns the card, or ErrNotFound.
	CardGet(ctx context.Context, tenantID, cardID string) (*Card, error)
	// CardWrite applies w, or returns ErrConflict when the card is not as w
	// names it. Any other error leaves open whether it was applied.
	CardWrite(ctx context.Context, w CardWrite) error
	// CardPendingRemove takes the named events off the card, and its mark if
	// none is left, in one write (E3). Events that are not there any more are
	// no error.
	CardPendingRemove(ctx context.Context, tenantID, cardID string, eids []string) error
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

// Tracker is the board as the engine uses it.
type Tracker interface {
	CardGet(ctx context.Context, tenantID, cardID string) (*Card, error)
	// Change applies a change with one conditional write, and repeats read,
	// compute and write while others get in between (E1). When it returns
	// without error the change and its event are durable, whether or not
	// the event has reached the log.
	Change(ctx context.Context, tenantID, cardID string, f Changer) (Changed, error)
}
