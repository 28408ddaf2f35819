package trigger

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// changeTries bounds how often one change is computed anew because others
// changed the card first, or an answer was lost. Each conflict is somebody
// else's success.
const changeTries = 100

// Board is the tracker.Tracker of this system: cards in a CardStore, their
// events relayed into the log.
type Board struct {
	Cards tracker.CardStore
	Log   EventLog
	Clock Clock
	Relay *Relay
}

var _ tracker.Tracker = (*Board)(nil)

// CardGet returns the card, or tracker.ErrNotFound.
func (b *Board) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	return b.Cards.CardGet(ctx, tenantID, cardID)
}

// Change implements tracker.Tracker (E1). It returns tracker.ErrPendingFull
// when the card has no room for another event even after a relay (E3).
func (b *Board) Change(ctx context.Context, tenantID, cardID string, f tracker.Changer) (tracker.Changed, error) {
	wrap := func(err error) error { return fmt.Errorf("change card %s/%s: %w", tenantID, cardID, err) }
	var lastErr error
	for range changeTries {
		card, err := b.Cards.CardGet(ctx, tenantID, cardID)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return tracker.Changed{}, wrap(err)
		}
		w, err := b.compute(tenantID, cardID, card, f)
		if err != nil {
			return tracker.Changed{}, wrap(err)
		}
		if w == nil {
			return tracker.Changed{Card: card}, nil
		}
		if w.Event != nil && card != nil && len(card.Pending) >= tracker.PendingMax {
			if _, err := b.Relay.Card(ctx, tenantID, cardID); err != nil {
				return tracker.Changed{}, wrap(errors.Join(tracker.ErrPendingFull, err))
			}
			lastErr = tracker.ErrPendingFull
			continue
		}
		done := tracker.Changed{Card: w.Next, Event: w.Event, Written: true}
		switch err := b.Cards.CardWrite(ctx, *w); {
		case err == nil:
			return done, nil
		case errors.Is(err, tracker.ErrConflict):
			lastErr = err
		default:
			// The answer was lost: the card tells whether the write stands.
			// If it does not, and is still on its way, it and the next
			// attempt name the same rev, so that one of them fails.
			stands, rerr := b.stands(ctx, w)
			if rerr != nil {
				return tracker.Changed{}, wrap(errors.Join(err, rerr))
			}
			if stands {
				return done, nil
			}
			if ctx.Err() != nil {
				return tracker.Changed{}, wrap(err)
			}
			lastErr = err
		}
	}
	return tracker.Changed{}, wrap(fmt.Errorf("gave up after %d tries: %w", changeTries, lastErr))
}

// compute asks f for the next state and makes the write of it; nil when
// nothing is to be written.
func (b *Board) compute(tenantID, cardID string, card *tracker.Card, f tracker.Changer) (*tracker.CardWrite, error) {
	now := b.Clock.Now()
	next, event, err := f(card.Clone(), now)
	if err != nil || next == nil {
		return nil, err
	}
	w := &tracker.CardWrite{Next: next, Event: event}
	next.TenantID, next.ID, next.UpdatedAt = tenantID, cardID, now
	next.LastWrite = uuid.NewString()
	if card == nil {
		next.Incarnation, next.Rev, next.CreatedAt = uuid.NewString(), 1, now
	} else {
		w.PrevIncarnation, w.PrevRev = card.Incarnation, card.Rev
		next.Incarnation, next.Rev, next.CreatedAt = card.Incarnation, card.Rev+1, card.CreatedAt
	}
	if err := next.Validate(); err != nil {
		return nil, err
	}
	if event != nil {
		event.EID, event.At = tracker.NewBoardEID(), now
		event.BoardID, event.CardID, event.CardRev = next.BoardID, cardID, next.Rev
		event.After = next.Snapshot()
		if card != nil {
			event.Before = card.Snapshot()
		}
	}
	return w, nil
}

// stands reports whether a write whose answer was lost took effect.
func (b *Board) stands(ctx context.Context, w *tracker.CardWrite) (bool, error) {
	card, err := b.Cards.CardGet(ctx, w.Next.TenantID, w.Next.ID)
	if errors.Is(err, tracker.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if card.LastWrite == w.Next.LastWrite {
		return true, nil
	}
	if w.Event == nil {
		return false, nil
	}
	// Others have written since, and may have relayed the event.
	for _, e := range card.Pending {
		if e.EID == w.Event.EID {
			return true, nil
		}
	}
	seqs, err := b.Log.EventSeqsByEID(ctx, w.Next.TenantID, []string{w.Event.EID})
	return len(seqs) > 0, err
}
