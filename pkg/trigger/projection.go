package trigger

import (
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// ProjectionsMax is the most projections that a tenant may have.
const ProjectionsMax = 100

// projectionColumnsMax is the most columns that a projection may map.
const projectionColumnsMax = 100

// Projection mirrors the column of one board's cards onto another board.
type Projection struct {
	TenantID string `json:"tenant_id"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	Enabled  bool   `json:"enabled"`
	// ActiveFromSeq is the tenant's seq as read before the write that enabled
	// the projection: it looks only at later events (T7).
	ActiveFromSeq int64  `json:"active_from_seq"`
	FromBoardID   string `json:"from_board_id"`
	ToBoardID     string `json:"to_board_id"`
	// Columns maps column ids of the one board to column ids of the other,
	// no two to the same.
	Columns   []ColumnPair `json:"columns"`
	UpdatedAt time.Time    `json:"updated_at"`
}

// ColumnPair maps one column.
type ColumnPair struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Validate refuses a projection that can't be served, given its boards (nil:
// there is none); the error is a *tracker.FieldError. CheckProjections says
// whether it fits the tenant's others.
func (p *Projection) Validate(from, to *tracker.Board) error {
	switch {
	case !tracker.ValidTenantID(p.Name):
		return tracker.Fieldf("name", "must match [a-z0-9][a-z0-9-]{0,62}")
	case from == nil:
		return tracker.Fieldf("from", "there is no such board")
	case to == nil:
		return tracker.Fieldf("to", "there is no such board")
	case p.FromBoardID == p.ToBoardID:
		return tracker.Fieldf("to", "must be another board than from")
	case len(p.Columns) == 0 || len(p.Columns) > projectionColumnsMax:
		return tracker.Fieldf("columns", "must map 1 to %d columns", projectionColumnsMax)
	}
	sources := make(map[string]string, len(p.Columns))
	seen := make(map[string]bool, len(p.Columns))
	for _, c := range p.Columns {
		field := "columns." + c.From
		switch {
		case from.Column(c.From) == nil:
			return tracker.Fieldf(field, "the board %s has no such column", from.Name)
		case to.Column(c.To) == nil:
			return tracker.Fieldf(field, "is mapped to a column that the board %s does not have", to.Name)
		case seen[c.From]:
			return tracker.Fieldf(field, "is mapped twice")
		case sources[c.To] != "":
			return tracker.Fieldf("columns", "%s and %s are both mapped to %s: no two may be", sources[c.To], c.From, c.To)
		}
		seen[c.From], sources[c.To] = true, c.From
	}
	return nil
}

// CheckProjections refuses a projection that does not fit the tenant's others,
// enabled or not: one too many, a second one between the same boards, an
// inverse that maps a column back to another one, or one that closes a cycle
// of more than two boards. One among them with p's id is p as it was. The error
// is a *tracker.FieldError.
func CheckProjections(all []Projection, p *Projection) error {
	others := slices.DeleteFunc(slices.Clone(all), func(o Projection) bool { return o.ID == p.ID })
	if len(others) >= ProjectionsMax {
		return tracker.Fieldf("projections", "at most %d in a tenant", ProjectionsMax)
	}
	for i := range others {
		o := &others[i]
		switch {
		case o.FromBoardID == p.FromBoardID && o.ToBoardID == p.ToBoardID:
			return tracker.Fieldf("from, to", "the projection %s is between these boards already", o.Name)
		case o.FromBoardID == p.ToBoardID && o.ToBoardID == p.FromBoardID:
			if err := p.checkInverse(o); err != nil {
				return err
			}
		}
	}
	if path := projectionPath(others, p.ToBoardID, p.FromBoardID); path != nil {
		return tracker.Fieldf("from, to", "closes a cycle of projections: %s", strings.Join(append([]string{p.Name}, path...), " → "))
	}
	return nil
}

// checkInverse refuses two projections between the same boards that disagree:
// a card would go on from column to column with nobody moving it.
func (p *Projection) checkInverse(o *Projection) error {
	for _, there := range p.Columns {
		for _, back := range o.Columns {
			if (there.To == back.From) != (there.From == back.To) {
				return tracker.Fieldf("columns."+there.From, "is mapped to %s, but the projection %s maps %s to %s: a card would not come to rest",
					there.To, o.Name, back.From, back.To)
			}
		}
	}
	return nil
}

// projectionPath returns the names of projections that lead from one board to
// another by way of a third; nil if there are none.
func projectionPath(all []Projection, from, to string) []string {
	paths := map[string][]string{from: {}}
	for boards := []string{from}; len(boards) > 0; boards = boards[1:] {
		for i := range all {
			o := &all[i]
			if o.FromBoardID != boards[0] || (o.FromBoardID == from && o.ToBoardID == to) {
				continue
			}
			path := append(slices.Clone(paths[o.FromBoardID]), o.Name)
			if o.ToBoardID == to {
				return path
			}
			if paths[o.ToBoardID] == nil {
				paths[o.ToBoardID] = path
				boards = append(boards, o.ToBoardID)
			}
		}
	}
	return nil
}

// Cares reports whether the projection owes something for the event: a card
// of its board, after it was enabled, came into a column that it maps, or was
// found there by a later event. Who moved it does not matter. It depends on its
// arguments alone.
func (p *Projection) Cares(e *Event) bool {
	if !p.Enabled || e.Seq <= p.ActiveFromSeq {
		return false
	}
	if _, mapped := p.wants(e); !mapped {
		return false
	}
	before := e.Before
	return e.Kind == tracker.KindProjected || before == nil || before.BoardID != e.After.BoardID || before.ColumnID != e.After.ColumnID
}

// wants returns the column of the other board that stands for the one the
// event's card is in after it; false if the event is none of the projection's.
func (p *Projection) wants(e *Event) (column string, ok bool) {
	if e.Source != SourceBoard || e.After == nil || e.Kind == tracker.KindDeleted || e.After.BoardID != p.FromBoardID {
		return "", false
	}
	return p.column(e.After.ColumnID)
}

func (p *Projection) column(from string) (to string, ok bool) {
	for _, c := range p.Columns {
		if c.From == from {
			return c.To, true
		}
	}
	return "", false
}

// row makes the row that the projection owes for an event, cut like a
// subscription's where the chain of causes comes back to it.
func (p *Projection) row(e *Event, clock Clock) Effect {
	now := clock.Now()
	row := Effect{
		ID: ProjectionEffectID(e.ID(), p.ID), TenantID: e.TenantID, Kind: KindProjection, Lane: LaneProjection(p.ID),
		State: StatePending, NotBefore: now, ProjectionID: p.ID, Replay: ReplaySafe,
		EventSeq: e.Seq, CardID: e.CardID, CardRev: e.CardRev, Event: *e,
		CreatedAt: now, UpdatedAt: now,
	}
	if cut(e.Cause, p.ID, e.CardID) {
		row.State, row.Outcome, row.DoneAt = StateDone, OutcomeLoopCut, now
	}
	return row
}

// Actor is who moves cards for the projection.
func (p *Projection) Actor() tracker.Actor {
	return tracker.Actor{Kind: tracker.ActorSystem, ID: LaneProjection(p.ID), Name: p.Name}
}
