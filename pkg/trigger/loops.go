package trigger

import (
	"context"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// ChainDepthMax is how long a chain of causes may get before it is cut.
const ChainDepthMax = 8

// CauseKept is how long after a launch a bot's change of the card still goes
// back to it. It is longer than bots work, and shorter than a day: what a bot
// does every night by itself is not taken for an answer to the night before.
const CauseKept = 12 * time.Hour

// causeRows bounds how many rows of a card are looked at for the latest launch.
const causeRows = 200

// cut reports whether the chain of causes ends before the pair: it is in the
// chain already, or the chain is as long as one may get.
func cut(c tracker.Cause, id, cardID string) bool {
	return c.Has(id, cardID) || c.Steps() >= ChainDepthMax
}

// CauseReader is what InheritedCause reads.
type CauseReader interface {
	EffectsOfCards(ctx context.Context, p CardEffectsParams) ([]Effect, error)
	EffectListByEvent(ctx context.Context, tenantID, eventID string) ([]Effect, error)
	ProjectionList(ctx context.Context, tenantID string) ([]Projection, error)
}

// CardEffectsParams asks for launches of some cards.
type CardEffectsParams struct {
	TenantID string
	CardIDs  []string
	// ClaimedSince leaves out rows that were not claimed since.
	ClaimedSince time.Time
	Limit        int
}

// InheritedCause is the cause of a change of a card that a bot brings in from
// outside: what the latest event goes back to that launched a bot for the card,
// or for a mirror of it, and the launches of that event themselves; none when
// the latest launch is older than CauseKept. It is read from the rows: a row
// says that it was claimed before its bot hears of it, so that whatever died
// since, no answer comes without its cause.
func InheritedCause(ctx context.Context, store CauseReader, tenantID, boardID, cardID string, now time.Time) (tracker.Cause, error) {
	fail := func(err error) (tracker.Cause, error) {
		return tracker.Cause{}, fmt.Errorf("cause of a bot's change of card %s/%s: %w", tenantID, cardID, err)
	}
	projections, err := store.ProjectionList(ctx, tenantID)
	if err != nil {
		return fail(err)
	}
	rows, err := store.EffectsOfCards(ctx, CardEffectsParams{
		TenantID: tenantID, CardIDs: mirrorsOf(projections, boardID, cardID), ClaimedSince: now.Add(-CauseKept), Limit: causeRows,
	})
	if err != nil {
		return fail(err)
	}
	for i := range rows {
		if !rows[i].mayLaunch() {
			continue
		}
		// Its bot, or the one of another subscription that the event fired:
		// nothing tells which of them the change came from.
		of, err := store.EffectListByEvent(ctx, tenantID, EffectEventID(rows[i].ID))
		if err != nil {
			return fail(err)
		}
		cause := rows[i].Event.Cause
		for j := range of {
			if of[j].mayLaunch() {
				cause = cause.With(of[j].SubscriptionID, of[j].CardID)
			}
		}
		if cause.Depth = rows[i].Event.Cause.Steps() + 1; cause.Depth == len(cause.Chain) {
			cause.Depth = 0
		}
		return cause, nil
	}
	return tracker.Cause{}, nil
}

// mayLaunch reports whether the row has launched, or may yet.
func (e *Effect) mayLaunch() bool {
	switch e.State {
	case StateDone:
		return e.Outcome == OutcomeLaunched || e.Outcome == OutcomePromoted
	case StateDiscarded:
		return !e.ClaimedAt.IsZero()
	}
	return true
}

// mirrorsOf returns the card and its mirrors, by whatever projections lead on
// from its board.
func mirrorsOf(projections []Projection, boardID, cardID string) []string {
	ids := map[string]string{boardID: cardID} // by board
	out := []string{cardID}
	for boards := []string{boardID}; len(boards) > 0; boards = boards[1:] {
		for i := range projections {
			p := &projections[i]
			if _, been := ids[p.ToBoardID]; p.FromBoardID != boards[0] || been {
				continue
			}
			id := mirrorID(ids[boards[0]], p.ToBoardID)
			ids[p.ToBoardID] = id
			boards, out = append(boards, p.ToBoardID), append(out, id)
		}
	}
	return out
}
