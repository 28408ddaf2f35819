package trigger

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// otherKind returns what evaluates the rows that do not launch; nil for those
// that do.
func (v *Evaluator) otherKind(k EffectKind) func(context.Context, *Effect) Evaluation {
	switch k {
	case KindProjection:
		return v.project
	case KindEvent:
		return v.rematch
	}
	return nil
}

// permanent fails a row at once (W5).
func permanent(format string, args ...any) Evaluation {
	return Evaluation{Err: permanentError(format, args...)}
}

func permanentError(format string, args ...any) error {
	return &LaunchError{Permanent: true, Definite: true, Message: fmt.Sprintf(format, args...)}
}

// project brings the card that mirrors the event's card into the column that
// stands for the event's, unless a later event has brought it elsewhere. It
// writes only a difference, and under the row's claim; done again, by anybody
// and in any order, it comes to the same (docs/projections.md).
func (v *Evaluator) project(ctx context.Context, row *Effect) Evaluation {
	if err := checkFeatures("event "+row.Event.ID(), row.Event.Requires); err != nil {
		return Evaluation{Err: lookup(err)} // others know it
	}
	p, err := v.Config.ProjectionGet(ctx, row.TenantID, row.ProjectionID)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return Evaluation{Outcome: OutcomeSubscriptionGone}
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case !p.Enabled:
		return Evaluation{Outcome: OutcomeSubscriptionDisabled}
	}
	column, mapped := p.wants(&row.Event)
	if !mapped {
		return Evaluation{Outcome: OutcomeNoLongerMatches}
	}
	board, err := v.Config.BoardGet(ctx, row.TenantID, p.ToBoardID)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return permanent("the projection %s mirrors onto the board %s, which is gone", p.Name, p.ToBoardID)
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case board.Column(column) == nil:
		return permanent("the projection %s maps to the column %q, which the board %s does not have", p.Name, column, board.Name)
	}
	source, err := v.Board.CardGet(ctx, row.TenantID, row.CardID)
	if errors.Is(err, tracker.ErrNotFound) {
		return Evaluation{Outcome: OutcomeCardGone}
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	m := mirroring{Evaluator: v, row: row, projection: p, board: board, source: source, column: column, seq: effectiveSeq(&row.Event)}
	return m.write(ctx)
}

// effectiveSeq places a card's column in time: the seq of the event that
// somebody other than a projection caused.
func effectiveSeq(e *Event) int64 {
	if e.ProjectedSeq != 0 {
		return e.ProjectedSeq
	}
	return e.Seq
}

// mirroring is one attempt at one row of a projection.
type mirroring struct {
	*Evaluator
	row        *Effect
	projection *Projection
	board      *tracker.Board // that is mirrored onto
	source     *tracker.Card  // as it is now
	// column and seq are where the event wants the mirror, and since when.
	column string
	seq    int64
}

// write makes the one card write, conditional on the rev of the card that was
// read before the claim was looked at: whoever took the row over since has
// either written the card or found nothing to write.
func (m *mirroring) write(ctx context.Context) Evaluation {
	target, made := m.target()
	var ev Evaluation
	changed, err := m.Board.Change(ctx, m.row.TenantID, target, func(card *tracker.Card, _ time.Time) (next *tracker.Card, event *tracker.BoardEvent, err error) {
		ev = Evaluation{Outcome: OutcomeProjected}
		switch {
		case card != nil && card.BoardID != m.projection.ToBoardID:
			ev = permanent("the card %s is on the board %s, not on %s", target, card.BoardID, m.projection.ToBoardID)
		case card != nil:
			next, event, err = m.move(ctx, card)
		case made:
			next, event, err = m.create(ctx)
		default: // the original of the mirror that was moved: never made again
			ev.Outcome = OutcomeCardGone
		}
		if err != nil || next == nil {
			return nil, nil, err
		}
		if err := m.Outbox.EffectTouch(ctx, m.row.Fence(), m.Board.Clock.Now()); err != nil {
			return nil, nil, err
		}
		return next, event, nil
	})
	if field := (*tracker.FieldError)(nil); errors.As(err, &field) {
		return permanent("%s", err)
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if changed.Event != nil {
		m.relay(ctx, m.row, target)
	}
	return ev
}

// move brings the mirror into the wanted column. When it stands there already
// and only by an older event, the later one is noted: else an effect of one in
// between, executed late, would move it away. That makes no event, unless the
// card is mirrored further: a mirror of it may have been moved in between.
func (m *mirroring) move(ctx context.Context, card *tracker.Card) (*tracker.Card, *tracker.BoardEvent, error) {
	have, err := m.columnSeq(ctx, card)
	switch {
	case err != nil:
		return nil, nil, err
	case have > m.seq, have == m.seq && card.ColumnID == m.column:
		return nil, nil, nil
	case card.ColumnID == m.column:
		further, err := m.further(ctx)
		if err != nil {
			return nil, nil, err
		}
		card.ColumnBy.Seq = m.seq
		if !further {
			return card, nil, nil
		}
		return card, m.event(tracker.KindProjected, m.column, m.column, m.seq), nil
	}
	from := card.ColumnID
	card.ColumnID = m.column
	return card, m.event(tracker.KindMoved, from, m.column, m.seq), nil
}

// further reports whether a projection mirrors the wanted column onto a third
// board.
func (m *mirroring) further(ctx context.Context) (bool, error) {
	all, err := m.Config.ProjectionList(ctx, m.row.TenantID)
	return slices.ContainsFunc(all, func(p Projection) bool {
		_, mapped := p.column(m.column)
		return mapped && p.Enabled && p.FromBoardID == m.projection.ToBoardID && p.ToBoardID != m.projection.FromBoardID
	}), err
}

// create makes the mirror. One that had been there and was deleted may be made
// by an effect that comes late: it then stands where the card stands now.
func (m *mirroring) create(ctx context.Context) (*tracker.Card, *tracker.BoardEvent, error) {
	column, seq, cause := m.column, m.seq, m.row.Event.Cause
	now, err := m.columnSeq(ctx, m.source)
	if err != nil {
		return nil, nil, err
	}
	if to, mapped := m.projection.column(m.source.ColumnID); mapped && now > seq && now != notLogged &&
		m.source.BoardID == m.projection.FromBoardID && m.board.Column(to) != nil {
		column, seq, cause = to, now, m.source.ColumnBy.Cause
	}
	card := &tracker.Card{
		BoardID: m.projection.ToBoardID, ColumnID: column, Title: m.row.Event.After.Title,
		MirrorOf: &tracker.Mirror{BoardID: m.projection.FromBoardID, CardID: m.row.CardID},
	}
	event := m.event(tracker.KindCreated, "", column, seq)
	event.Cause = cause.Then(m.projection.ID, m.row.CardID)
	return card, event, nil
}

func (m *mirroring) event(kind tracker.Kind, from, to string, seq int64) *tracker.BoardEvent {
	return &tracker.BoardEvent{
		Kind: kind, Actor: m.projection.Actor(), FromColumn: from, ToColumn: to,
		Cause: m.row.Event.Cause.Then(m.projection.ID, m.row.CardID), ProjectedSeq: seq,
	}
}

// target is the id of the card to write: the one that the source mirrors, if
// that is on the board, else the source's own mirror there, which is made if
// there is none.
func (m *mirroring) target() (id string, made bool) {
	if of := m.source.MirrorOf; of != nil && of.BoardID == m.projection.ToBoardID {
		return of.CardID, false
	}
	return mirrorID(m.row.CardID, m.projection.ToBoardID), true
}

// mirrorIDMax is the longest id that a mirror gets, in bytes: mirrors of
// mirrors would get longer and longer.
const mirrorIDMax = 255

// mirrorID is the id of a card's mirror on a board.
func mirrorID(cardID, boardID string) string {
	id := cardID + "@" + boardID
	if len(id) <= mirrorIDMax {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	tail := "~" + hex.EncodeToString(sum[:])
	n := mirrorIDMax - len(tail)
	for n > 0 && id[n]&0xC0 == 0x80 { // not inside a rune
		n--
	}
	return id[:n] + tail
}

// notLogged is the seq of what is later than anything that has led to a row.
const notLogged = math.MaxInt64

// columnSeq is the effective seq of the event that brought the card into its
// column: above the row's if and only if that is later than the row's event.
func (m *mirroring) columnSeq(ctx context.Context, card *tracker.Card) (int64, error) {
	by, e := card.ColumnBy, &m.row.Event
	if by.EID == "" || by.Seq != 0 {
		return by.Seq, nil
	}
	seqs, err := m.Board.Log.EventSeqsByEID(ctx, m.row.TenantID, []string{by.EID, e.EID})
	if err != nil {
		return 0, err
	}
	// The log before the card: what was still pending when the card was read
	// may be in it by now, below the row's event even. What is not gets a seq
	// above: the tail has not passed a hole to come to the row's event (T3).
	if seq, logged := seqs[by.EID]; logged {
		return seq, nil
	}
	if slices.ContainsFunc(card.Pending, func(p tracker.BoardEvent) bool { return p.EID == by.EID }) {
		return notLogged, nil
	}
	// The log has outlived it: it is older than what the log still has. A row
	// may have outlived it too.
	_, kept := seqs[e.EID]
	if e.ProjectedSeq != 0 {
		origin, err := m.Board.Log.EventSeqs(ctx, m.row.TenantID, e.ProjectedSeq-1, e.ProjectedSeq)
		if err != nil {
			return 0, err
		}
		kept = len(origin) > 0
	}
	// Of two that the log knows no more, the time tells. When the one that the
	// row's event goes back to came is not known: somebody's move stays.
	if kept || (e.ProjectedSeq == 0 && by.At.Before(e.At)) {
		return 0, nil
	}
	return notLogged, nil
}
