package trigger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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

// CardGet returns the card, or tracker.ErrNotFound; a deleted one is not found.
func (b *Board) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	card, err := b.Cards.CardGet(ctx, tenantID, cardID)
	if err == nil && card.Deleted {
		return nil, fmt.Errorf("card %s/%s is deleted: %w", tenantID, cardID, tracker.ErrNotFound)
	}
	return card, err
}

// Change implements tracker.Tracker (E1). It returns tracker.ErrPendingFull
// when the card has no room for another event even after a relay (E3).
func (b *Board) Change(ctx context.Context, tenantID, cardID string, f tracker.Changer) (tracker.Changed, error) {
	return b.change(ctx, tenantID, cardID, f, false)
}

// Comment is Change with a comment: the write of a change that makes an event
// adds it to the card (E1). f counts it (tracker.Card.AddComment).
func (b *Board) Comment(ctx context.Context, tenantID, cardID string, comment tracker.Comment, f tracker.Changer) (tracker.Changed, error) {
	return b.changeWith(ctx, tenantID, cardID, f, func(w *tracker.CardWrite) {
		if w.Event != nil {
			c := comment
			c.At, w.Event.CommentID = w.Event.At, c.ID
			w.Comment = &c
		}
	}, false)
}

// change is Change; with tombs set, f sees a deleted card as it is. In doubt
// are writes of this very change that were tried already.
func (b *Board) change(ctx context.Context, tenantID, cardID string, f tracker.Changer, tombs bool, inDoubt ...*tracker.CardWrite) (tracker.Changed, error) {
	return b.changeWith(ctx, tenantID, cardID, f, func(*tracker.CardWrite) {}, tombs, inDoubt...)
}

// changeWith is change; each write is finished before it is made.
func (b *Board) changeWith(ctx context.Context, tenantID, cardID string, f tracker.Changer, finish func(*tracker.CardWrite), tombs bool, inDoubt ...*tracker.CardWrite) (tracker.Changed, error) {
	wrap := func(err error) error { return fmt.Errorf("change card %s/%s: %w", tenantID, cardID, err) }
	var lastErr error
	for try := range changeTries {
		pause(ctx, try)
		card, err := b.Cards.CardGet(ctx, tenantID, cardID)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return tracker.Changed{}, wrap(errors.Join(lastErr, err))
		}
		stands, left, err := b.decide(ctx, inDoubt, card)
		if err != nil {
			return tracker.Changed{}, wrap(errors.Join(lastErr, err))
		}
		if stands != nil {
			return changedBy(stands), nil
		}
		inDoubt = left
		w, err := b.compute(ctx, tenantID, cardID, card, f, tombs)
		if err != nil {
			return tracker.Changed{}, wrap(err)
		}
		if w == nil {
			return tracker.Changed{Card: card}, nil
		}
		finish(w)
		if w.Event != nil && card != nil && len(card.Pending) >= tracker.PendingMax {
			if _, err := b.Relay.Card(ctx, tenantID, cardID); err != nil {
				return tracker.Changed{}, wrap(errors.Join(tracker.ErrPendingFull, err))
			}
			lastErr = tracker.ErrPendingFull
			continue
		}
		if lastErr = b.Cards.CardWrite(ctx, *w); lastErr == nil {
			return changedBy(w), nil
		}
		if !errors.Is(lastErr, tracker.ErrConflict) {
			inDoubt = append(inDoubt, w) // the answer was lost
		}
	}
	return tracker.Changed{}, wrap(fmt.Errorf("gave up after %d tries: %w", changeTries, lastErr))
}

func changedBy(w *tracker.CardWrite) tracker.Changed {
	return tracker.Changed{Card: w.Next, Event: w.Event, Written: true}
}

// decide says which of the writes in doubt stands, given the card as it is
// now. While the card still is as they name it they may be on their way: they
// are left in doubt, and the next attempt names the same rev, so that one of
// them all succeeds. Once it is another, what does not stand never will.
func (b *Board) decide(ctx context.Context, inDoubt []*tracker.CardWrite, card *tracker.Card) (stands *tracker.CardWrite, left []*tracker.CardWrite, err error) {
	for _, w := range inDoubt {
		if card != nil && card.Rev == w.PrevRev && card.Incarnation == w.PrevIncarnation {
			left = append(left, w)
			continue
		}
		ok, err := b.stands(ctx, w, card)
		if ok || err != nil {
			return w, nil, err
		}
		if card == nil && w.PrevRev == 0 {
			left = append(left, w)
		}
	}
	return nil, left, nil
}

// compute asks f for the next state and makes the write of it; nil when
// nothing is to be written.
func (b *Board) compute(ctx context.Context, tenantID, cardID string, card *tracker.Card, f tracker.Changer, tombs bool) (*tracker.CardWrite, error) {
	now := b.Clock.Now()
	// A tombstone is no card to f; a card made over it is another one, which
	// takes over what is still pending and consumed.
	live := card
	if card != nil && card.Deleted && !tombs {
		live = nil
	}
	next, event, err := f(live.Clone(), now)
	if err != nil || next == nil {
		return nil, err
	}
	w := &tracker.CardWrite{Next: next, Event: event}
	next.TenantID, next.ID, next.UpdatedAt = tenantID, cardID, now
	next.LastWrite = uuid.NewString()
	if card != nil {
		w.PrevIncarnation, w.PrevRev = card.Incarnation, card.Rev
	}
	if live == nil {
		next.Incarnation, next.Rev, next.CreatedAt = uuid.NewString(), 1, now
		if card != nil {
			next.Consumed = card.Consumed
		}
	} else {
		next.Incarnation, next.Rev, next.CreatedAt = card.Incarnation, card.Rev+1, card.CreatedAt
	}
	if next.Position == "" && live == nil || live != nil && live.ColumnID != next.ColumnID && live.Position == next.Position {
		// Whoever says nothing else puts it at the bottom of its column.
		next.Position = tracker.PositionAt(now)
	}
	if err := next.Validate(); err != nil {
		return nil, err
	}
	if event != nil {
		event.EID, event.At, event.TraceParent = tracker.NewBoardEID(), now, tracker.TraceParentOf(ctx)
		if live == nil || live.ColumnID != next.ColumnID {
			next.ColumnBy = tracker.ColumnBy{EID: event.EID, Seq: event.ProjectedSeq, At: now, Cause: event.Cause}
		}
		event.BoardID, event.CardID, event.CardRev = next.BoardID, cardID, next.Rev
		event.After = next.Snapshot()
		if live != nil {
			event.Before = live.Snapshot()
		}
	}
	return w, nil
}

// stands reports whether a write whose answer was lost took effect, given the
// card as it is now; nil if it is gone.
func (b *Board) stands(ctx context.Context, w *tracker.CardWrite, card *tracker.Card) (bool, error) {
	if card != nil && card.LastWrite == w.Next.LastWrite {
		return true, nil
	}
	if w.Event == nil {
		return false, nil
	}
	// Others have written since, and may have relayed the event; a tombstone
	// may have been buried.
	if card != nil && slices.ContainsFunc(card.Pending, func(e tracker.BoardEvent) bool { return e.EID == w.Event.EID }) {
		return true, nil
	}
	seqs, err := b.Log.EventSeqsByEID(ctx, w.Next.TenantID, []string{w.Event.EID})
	return len(seqs) > 0, err
}

// Delete deletes a card: its event becomes pending with the same write that
// makes the card a tombstone, which the relay buries (E4). It returns
// tracker.ErrNotFound if there is no card.
func (b *Board) Delete(ctx context.Context, tenantID, cardID string, actor tracker.Actor) (tracker.Changed, error) {
	return b.Change(ctx, tenantID, cardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return nil, nil, tracker.ErrNotFound
		}
		card.Deleted = true
		return card, &tracker.BoardEvent{Kind: tracker.KindDeleted, Actor: actor, FromColumn: card.ColumnID}, nil
	})
}

// ChangeManyMax is the most cards that one bulk change takes.
const ChangeManyMax = 500

// CardChanged is what became of one card of a bulk change.
type CardChanged struct {
	CardID string
	tracker.Changed
	// Err is set when the card was not changed.
	Err error
}

// inBulk has the events of a change say that they are of one call.
func inBulk(f tracker.Changer) tracker.Changer {
	bulk := uuid.NewString()
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		next, event, err := f(card, now)
		if event != nil {
			event.Bulk = bulk
		}
		return next, event, err
	}
}

// ChangeMany applies one change to many cards of a tenant, each on its own as
// Change does, in a few commands, and relays their events, which are
// contiguous in the log when nothing else writes. The error is of the call as
// a whole: nothing was written.
func (b *Board) ChangeMany(ctx context.Context, tenantID string, cardIDs []string, f tracker.Changer) ([]CardChanged, error) {
	if len(cardIDs) > ChangeManyMax {
		return nil, tracker.Fieldf("cards", "at most %d", ChangeManyMax)
	}
	f = inBulk(f)
	cards, err := b.Cards.CardsGet(ctx, tenantID, cardIDs)
	if err != nil {
		return nil, fmt.Errorf("change %d cards of %s: %w", len(cardIDs), tenantID, err)
	}
	byID := make(map[string]*tracker.Card, len(cards))
	for _, c := range cards {
		byID[c.ID] = c
	}
	out := make([]CardChanged, len(cardIDs))
	index := make(map[string]int, len(cardIDs))
	var ws []tracker.CardWrite
	singly := make(map[int][]*tracker.CardWrite) // with those in doubt
	for i, id := range cardIDs {
		out[i].CardID = id
		if _, again := index[id]; again {
			return nil, tracker.Fieldf("cards", "each card once")
		}
		index[id] = i
		card := byID[id]
		w, err := b.compute(ctx, tenantID, id, card, f, false)
		switch {
		case err != nil:
			out[i].Err = err
		case w == nil:
			out[i].Card = card
		case card != nil && w.Event != nil && len(card.Pending) >= tracker.PendingMax:
			singly[i] = nil
		default:
			ws = append(ws, *w)
		}
	}
	// What is not known to stand is in doubt: change finds out.
	stands, err := b.Cards.CardWriteMany(ctx, tenantID, ws)
	for i := range ws {
		at := index[ws[i].Next.ID]
		if err == nil && stands[i] {
			out[at].Changed = changedBy(&ws[i])
		} else {
			singly[at] = []*tracker.CardWrite{&ws[i]}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(singly)) {
		out[at].Changed, out[at].Err = b.change(ctx, tenantID, cardIDs[at], f, false, singly[at]...)
	}
	// All is durable; the relay's trouble is not the caller's (section 2).
	if _, rerr := b.Relay.CardMany(ctx, tenantID, cardIDs); rerr != nil {
		b.Relay.Logger.Warn().Err(rerr).Str("tenant", tenantID).Msg("board: the relay after a bulk change did not get through, the sweeper goes on with it")
	}
	return out, nil
}
