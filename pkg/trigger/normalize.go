package trigger

import (
	"context"
	"errors"
	"fmt"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Normalized is what became of one event of a batch (T2).
type Normalized struct {
	// Gone: the event has no snapshot, and its card is not there: it is
	// skipped. That is the only error that skips an event.
	Gone bool
	// Err is any other error: transient, the batch ends before the event.
	Err error
}

func (n Normalized) failed() bool { return n.Err != nil }

// NormalizeBoardEvents gives the events of one tenant that carry no snapshot
// (an older or foreign emitter's) the card as it stands. The others need no
// read. The cards are read in one query, and singly when that fails.
func NormalizeBoardEvents(ctx context.Context, cards cardReader, tenantID string, events []Event) []Normalized {
	out := make([]Normalized, len(events))
	var ids []string
	need := make(map[string]bool)
	for i := range events {
		e := &events[i]
		if needsCard(e) && !need[e.CardID] {
			need[e.CardID] = true
			ids = append(ids, e.CardID)
		}
	}
	if len(ids) == 0 {
		return out
	}
	found := make(map[string]*tracker.Card)
	errs := make(map[string]error)
	if list, err := cards.CardsGet(ctx, tenantID, ids); err == nil {
		for _, c := range list {
			found[c.ID] = c
		}
	} else {
		for _, id := range ids {
			c, err := cards.CardGet(ctx, tenantID, id)
			switch {
			case err == nil:
				found[id] = c
			case !errors.Is(err, tracker.ErrNotFound):
				errs[id] = fmt.Errorf("normalize from card %s: %w", id, err)
			}
		}
	}
	for i := range events {
		e := &events[i]
		if !needsCard(e) {
			continue
		}
		card := found[e.CardID]
		switch {
		case errs[e.CardID] != nil:
			out[i].Err = errs[e.CardID]
		case card == nil || card.Deleted:
			out[i].Gone = true
		default:
			e.After, e.BoardID, e.CardRev = card.Snapshot(), card.BoardID, card.Rev
			e.BeforeUnknown = e.Before == nil && e.Kind != tracker.KindCreated
		}
	}
	return out
}

func needsCard(e *Event) bool {
	return e.Source != SourceVoid && e.Undecodable == "" && e.After == nil && e.CardID != ""
}
