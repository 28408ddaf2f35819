package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// planBoards plans the boards. A column that goes while the store's hooks,
// subscriptions and projections still name it goes last, by the steps it
// returns: after the file's, which no longer do, are written. So none ever
// names a column that is not there.
func (t *tenantPlan) planBoards() (trims []step) {
	room := t.room(KindBoard, BoardsMax, len(t.boards))
	t.nextBoards = make(map[string]*tracker.Board)
	old := byName(t.boards, func(b *tracker.Board) string { return b.Name })
	for name, b := range old {
		t.nextBoards[name], t.names[b.ID] = b, name
	}
	for i := range t.spec.boards {
		spec := &t.spec.boards[i]
		was := old[spec.name]
		next := &tracker.Board{TenantID: t.spec.id, ID: newID()}
		var d diff
		if was != nil {
			board := *was
			next = &board
			diffColumns(&d, was.Columns, spec.columns)
		} else {
			room.take(spec.path)
		}
		next.Name, next.Columns = spec.name, spec.columns
		next.Revision++
		next.UpdatedAt = t.now
		t.nextBoards[next.Name], t.names[next.ID] = next, next.Name
		c := t.change(KindBoard, next.Name, next.ID, was == nil, d)
		note(c, was, next)

		first := *next
		for _, col := range t.removed(was, next) {
			if t.namedBy(was, col.ID, t.hooks, t.subscriptions, t.projections) != "" {
				first.Columns = append(slices.Clone(first.Columns), col)
			}
		}
		t.save(c, func(ctx context.Context) error { return t.Store.BoardSave(ctx, &first) })
		if len(first.Columns) > len(next.Columns) {
			last := *next
			last.Revision++
			trims = append(trims, step{c, func(ctx context.Context) error {
				if err := t.Store.BoardSave(ctx, &last); err != nil {
					return fmt.Errorf("save board %s/%s: %w", last.TenantID, last.Name, err)
				}
				return nil
			}})
		}
	}
	return trims
}

// removed returns the columns of the stored board that the next one lacks.
func (t *tenantPlan) removed(was, next *tracker.Board) []tracker.Column {
	if was == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(was.Columns), func(c tracker.Column) bool { return next.Column(c.ID) != nil })
}

// namedBy says which of the hooks and of the enabled subscriptions and
// projections names the column of the board; "" if none does. A subscription that names columns of no
// certain board counts when no other board has one of that id.
func (t *tenantPlan) namedBy(b *tracker.Board, column string, hooks []trigger.Hook, subs []trigger.Subscription, projections []trigger.Projection) string {
	for _, h := range hooks {
		if h.BoardID == b.ID && (h.OpenColumn == column || h.ClosedColumn == column) {
			return "the hook " + h.Name
		}
	}
	elsewhere := false
	for _, other := range t.nextBoards {
		elsewhere = elsewhere || (other.ID != b.ID && other.Column(column) != nil)
	}
	for _, s := range subs {
		of := s.On.BoardID == b.ID || (s.On.BoardID == "" && !elsewhere)
		if s.Enabled && of && (s.On.From == column || s.On.To == column || s.ToColumn == column || slices.Contains(s.If.Columns, column)) {
			return "the enabled subscription " + s.Name
		}
	}
	for _, p := range projections {
		if p.Enabled && slices.ContainsFunc(p.Columns, func(c trigger.ColumnPair) bool {
			return (p.FromBoardID == b.ID && c.From == column) || (p.ToBoardID == b.ID && c.To == column)
		}) {
			return "the enabled projection " + p.Name
		}
	}
	return ""
}

// checkRemovedColumns refuses to remove a column that something outside the
// file still names. What the file itself names was checked where it does.
func (t *tenantPlan) checkRemovedColumns() {
	hooks := slices.DeleteFunc(slices.Clone(t.hooks), func(h trigger.Hook) bool {
		return slices.ContainsFunc(t.spec.hooks, func(s hookSpec) bool { return s.name == h.Name })
	})
	subs := slices.DeleteFunc(slices.Clone(t.subscriptions), func(sub trigger.Subscription) bool {
		return slices.ContainsFunc(t.spec.subscriptions, func(s subscriptionSpec) bool { return s.want.Name == sub.Name })
	})
	projections := slices.DeleteFunc(slices.Clone(t.projections), func(p trigger.Projection) bool {
		return slices.ContainsFunc(t.spec.projections, func(s projectionSpec) bool { return s.name == p.Name })
	})
	old := byName(t.boards, func(b *tracker.Board) string { return b.Name })
	for _, spec := range t.spec.boards {
		was := old[spec.name]
		for _, col := range t.removed(was, t.nextBoards[spec.name]) {
			if who := t.namedBy(was, col.ID, hooks, subs, projections); who != "" {
				t.errorf(spec.path+".columns", "the column %s can't be removed: %s still names it", show(col.ID), who)
			}
		}
	}
}

func diffColumns(d *diff, before, after []tracker.Column) {
	ids := func(cols []tracker.Column) (out []string) {
		for _, c := range cols {
			out = append(out, c.ID)
		}
		return out
	}
	diffList(d, "columns", ids(before), ids(after))
	was := &tracker.Board{Columns: before}
	for _, c := range after {
		if old := was.Column(c.ID); old != nil {
			diffValue(d, "columns."+c.ID+".name", old.Name, c.Name)
			diffValue(d, "columns."+c.ID+".terminal", old.Terminal, c.Terminal)
		}
	}
}
