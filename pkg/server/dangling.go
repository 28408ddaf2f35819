package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Dangling is a reference to something that is no more: what has it stays as
// it is until somebody mends it.
type Dangling struct {
	Kind  string `json:"kind" enum:"subscription,projection,hook"`
	ID    string `json:"id"`
	Name  string `json:"name"`
	Field string `json:"field" doc:"the field that refers to nothing"`
}

// Deleted is the answer to the deletion of something that others may refer to.
type Deleted struct {
	Dangling []Dangling `json:"dangling" doc:"what refers to it still"`
}

// referrer is what refers to boards, columns and bots.
type referrer interface {
	*trigger.Subscription | *trigger.Projection | *trigger.Hook
}

// danglingOf returns the fields of a thing that refer to nothing, given all of
// its tenant's boards and bots by their ids; nil when there is none. Columns of
// a board that is gone are not named beside the board. A subscription without
// a board names columns of any.
func danglingOf[T referrer](boards map[string]*tracker.Board, bots map[string]*trigger.Bot, thing T) []string {
	d := dangling{boards: boards}
	switch v := any(thing).(type) {
	case *trigger.Subscription:
		d.subscription(v, bots)
	case *trigger.Projection:
		from, to := d.board("from_board_id", v.FromBoardID), d.board("to_board_id", v.ToBoardID)
		for _, c := range v.Columns {
			d.column("columns."+c.From, from, c.From)
			d.column("columns."+c.From, to, c.To)
		}
	case *trigger.Hook:
		board := d.board("board_id", v.BoardID)
		d.column("columns.open", board, v.OpenColumn)
		d.column("columns.closed", board, v.ClosedColumn)
	}
	return d.fields
}

// dangling collects fields.
type dangling struct {
	boards map[string]*tracker.Board
	fields []string
}

// board returns the board, or notes the field.
func (d *dangling) board(field, id string) *tracker.Board {
	board := d.boards[id]
	if board == nil {
		d.fields = append(d.fields, field)
	}
	return board
}

// column notes the field if the board, which may be gone itself, lacks the
// column.
func (d *dangling) column(field string, board *tracker.Board, id string) {
	if id != "" && board != nil && board.Column(id) == nil && !slices.Contains(d.fields, field) {
		d.fields = append(d.fields, field)
	}
}

func (d *dangling) subscription(s *trigger.Subscription, bots map[string]*trigger.Bot) {
	column := d.columnOfAny
	if s.On.BoardID != "" {
		board := d.board("on.board_id", s.On.BoardID)
		column = func(field, id string) { d.column(field, board, id) }
	}
	column("on.from", s.On.From)
	column("on.to", s.On.To)
	for i, id := range s.If.Columns {
		column(fmt.Sprintf("if.columns[%d]", i), id)
	}
	column("to_column", s.ToColumn)
	if bots[s.BotID] == nil {
		d.fields = append(d.fields, "bot_id")
	}
	for i, id := range s.On.Actors {
		// An actor is a person's login or a bot's id, and only the latter is a
		// UUID.
		if u, err := uuid.Parse(id); err == nil && bots[u.String()] == nil {
			d.fields = append(d.fields, fmt.Sprintf("on.actors[%d]", i))
		}
	}
}

// columnOfAny notes the field if no board has the column.
func (d *dangling) columnOfAny(field, id string) {
	if id == "" {
		return
	}
	for _, board := range d.boards {
		if board.Column(id) != nil {
			return
		}
	}
	d.fields = append(d.fields, field)
}

// byID returns the things of a list by their ids.
func byID[T any](list []T, id func(*T) string) map[string]*T {
	out := make(map[string]*T, len(list))
	for i := range list {
		out[id(&list[i])] = &list[i]
	}
	return out
}

// flagged returns a thing's fields that refer to nothing, as the API shows them.
func flagged(kind, id, name string, fields []string) []Dangling {
	out := make([]Dangling, len(fields))
	for i, f := range fields {
		out[i] = Dangling{kind, id, name, f}
	}
	return out
}

// links are a tenant's things that refer to others, and what they refer to.
type links struct {
	boards        map[string]*tracker.Board
	bots          map[string]*trigger.Bot
	hooks         []trigger.Hook
	subscriptions []trigger.Subscription
	projections   []trigger.Projection
}

// links reads them. What a tenant may have of each is bounded.
func (a *API) links(ctx context.Context, tenantID string) (*links, error) {
	boards, err := a.Store.BoardList(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	bots, err := a.Store.BotList(ctx, tenantID)
	if err != nil {
		return nil, err
	}
	l := &links{
		boards: byID(boards, func(b *tracker.Board) string { return b.ID }),
		bots:   byID(bots, func(b *trigger.Bot) string { return b.ID }),
	}
	if l.hooks, err = a.Store.HookList(ctx, tenantID); err != nil {
		return nil, err
	}
	if l.subscriptions, err = a.Store.SubscriptionList(ctx, tenantID); err != nil {
		return nil, err
	}
	l.projections, err = a.Store.ProjectionList(ctx, tenantID)
	return l, err
}

// dangling lists all that refers to nothing, hooks first.
func (l *links) dangling() []Dangling {
	out := []Dangling{}
	for i := range l.hooks {
		h := &l.hooks[i]
		out = append(out, flagged("hook", h.ID, h.Name, danglingOf(l.boards, l.bots, h))...)
	}
	for i := range l.subscriptions {
		s := &l.subscriptions[i]
		out = append(out, flagged("subscription", s.ID, s.Name, danglingOf(l.boards, l.bots, s))...)
	}
	for i := range l.projections {
		p := &l.projections[i]
		out = append(out, flagged("projection", p.ID, p.Name, danglingOf(l.boards, l.bots, p))...)
	}
	return out
}

// danglingAfter lists what refers to nothing once the change is made, and does
// refer to something now. The change is made to l.
func (l *links) danglingAfter(change func(*links)) []Dangling {
	before := l.dangling()
	change(l)
	return slices.DeleteFunc(l.dangling(), func(d Dangling) bool { return slices.Contains(before, d) })
}
