package trigger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// relayTries bounds how often one relay starts over after somebody else took
// a seq or relayed an event before it. Each round is somebody's progress.
const relayTries = 20

// Relay moves pending events from cards into the log (E2, E3). Any number of
// relays may work on one card at once.
type Relay struct {
	Cards tracker.CardStore
	Log   EventLog
	// Wake, if set, is told of a tenant whose log has grown.
	Wake func(tenantID string)
	// FillTimeout bounds giving up the seqs of an insert that failed; it is
	// the store's timeout for one operation.
	FillTimeout time.Duration
}

// Card relays all pending events that it finds on the card, in order, and
// returns the seq of each. A card that is gone has none. After an error it may
// be called again at any time, by anybody.
func (r *Relay) Card(ctx context.Context, tenantID, cardID string) (map[string]int64, error) {
	seqs := make(map[string]int64)
	for range relayTries {
		card, err := r.Cards.CardGet(ctx, tenantID, cardID)
		if errors.Is(err, tracker.ErrNotFound) || (err == nil && len(card.Pending) == 0) {
			return seqs, nil
		}
		if err != nil {
			return seqs, fmt.Errorf("relay card %s/%s: %w", tenantID, cardID, err)
		}
		again, err := r.events(ctx, tenantID, card.Pending, seqs)
		if err != nil {
			return seqs, fmt.Errorf("relay card %s/%s: %w", tenantID, cardID, err)
		}
		if again {
			continue
		}
		eids := make([]string, len(card.Pending))
		for i, e := range card.Pending {
			eids[i] = e.EID
		}
		if err := r.Cards.CardPendingRemove(ctx, tenantID, cardID, eids); err != nil {
			return seqs, fmt.Errorf("relay card %s/%s: take off %d events: %w", tenantID, cardID, len(eids), err)
		}
		return seqs, nil
	}
	return seqs, fmt.Errorf("relay card %s/%s: still meeting other relays after %d rounds", tenantID, cardID, relayTries)
}

// events brings those of the events into the log that are not there. It
// reports true when it met somebody else's event and has to look again.
func (r *Relay) events(ctx context.Context, tenantID string, pending []tracker.BoardEvent, seqs map[string]int64) (again bool, err error) {
	eids := make([]string, len(pending))
	for i, e := range pending {
		eids[i] = e.EID
	}
	// Looking comes before allocating: events that are there must not cost
	// seqs, or two relays would chase each other.
	present, err := r.Log.EventSeqsByEID(ctx, tenantID, eids)
	if err != nil {
		return false, err
	}
	var missing []Event
	for _, e := range pending {
		if seq, ok := present[e.EID]; ok {
			seqs[e.EID] = seq
		} else {
			missing = append(missing, Event{TenantID: tenantID, Source: SourceBoard, BoardEvent: e})
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	first, err := r.Log.SeqAllocate(ctx, tenantID, len(missing))
	if err != nil {
		return false, err
	}
	for i := range missing {
		missing[i].Seq = first + int64(i)
	}
	if err := r.Log.EventInsertMany(ctx, tenantID, missing); err != nil {
		// Stop and give up the rest of the allocation at once, the seq that
		// met the duplicate too: what is in is found by looking again. The
		// fill goes on if the caller has left: a hole holds up the tenant.
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.FillTimeout)
		defer cancel()
		fillErr := r.Log.EventFillVoids(fctx, tenantID, first, first+int64(len(missing))-1)
		r.wake(tenantID)
		if errors.Is(err, ErrEventExists) && fillErr == nil {
			return true, nil
		}
		return false, errors.Join(err, fillErr)
	}
	for _, e := range missing {
		seqs[e.EID] = e.Seq
	}
	r.wake(tenantID)
	return false, nil
}

func (r *Relay) wake(tenantID string) {
	if r.Wake != nil {
		r.Wake(tenantID)
	}
}
