package apply

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// planProjections plans the projections, each of which is checked against
// those that only the store has and those before it in the file.
func (t *tenantPlan) planProjections() {
	room := t.room(KindProjection, ProjectionsMax, len(t.projections))
	old := byName(t.projections, func(p *trigger.Projection) string { return p.Name })
	all := slices.DeleteFunc(slices.Clone(t.projections), func(p trigger.Projection) bool {
		return slices.ContainsFunc(t.spec.projections, func(s projectionSpec) bool { return s.name == p.Name })
	})
	for i := range t.spec.projections {
		spec := &t.spec.projections[i]
		was := old[spec.name]
		next := trigger.Projection{TenantID: t.spec.id, ID: newID()}
		if was != nil {
			next = *was
		} else {
			room.take(spec.path)
		}
		next.Name, next.Enabled, next.Columns = spec.name, spec.enabled, nil
		for _, from := range slices.Sorted(maps.Keys(spec.columns)) {
			next.Columns = append(next.Columns, trigger.ColumnPair{From: from, To: spec.columns[from]})
		}
		from, to := t.board(spec.path+".from", spec.from), t.board(spec.path+".to", spec.to)
		if from == nil || to == nil {
			continue // an error was noted
		}
		next.FromBoardID, next.ToBoardID = from.ID, to.ID
		t.refuse(spec.path, next.Validate(from, to))
		// That there are too many was noted by room.
		if err := trigger.CheckProjections(all, &next); len(all) < ProjectionsMax {
			t.refuse(spec.path, err)
		}
		all = append(all, next)
		next.Revision++
		next.UpdatedAt = t.now
		var d diff
		if was != nil {
			d = t.diffProjection(was, &next)
		}
		c := t.change(KindProjection, next.Name, next.ID, was == nil, d)
		note(c, was, &next)
		enabling := next.Enabled && (was == nil || !was.Enabled)
		t.save(c, func(ctx context.Context) error {
			if enabling {
				if err := t.activate(ctx, &next.ActiveFromSeq, c); err != nil {
					return err
				}
			}
			return t.Store.ProjectionSave(ctx, &next)
		})
	}
}

// refuse notes what is wrong with a thing, at the field that it is wrong with.
func (t *tenantPlan) refuse(path string, err error) {
	fe := (*tracker.FieldError)(nil)
	switch {
	case err == nil:
	case !errors.As(err, &fe):
		t.errorf(path, "%s", err)
	case fe.Field == "from, to":
		t.errorf(path, "%s", fe.Error())
	default:
		t.errorf(path+"."+fe.Field, "%s", fe.Want)
	}
}

func (t *tenantPlan) diffProjection(was, want *trigger.Projection) diff {
	var d diff
	diffValue(&d, "enabled", was.Enabled, want.Enabled)
	diffValue(&d, "from", t.nameOf(was.FromBoardID), t.nameOf(want.FromBoardID))
	diffValue(&d, "to", t.nameOf(was.ToBoardID), t.nameOf(want.ToBoardID))
	before, after := make(map[string]string), make(map[string]string)
	for _, c := range was.Columns {
		before[c.From] = c.To
	}
	for _, c := range want.Columns {
		after[c.From] = c.To
	}
	for _, column := range slices.Sorted(maps.Keys(union(before, after))) {
		diffValue(&d, config.FieldPath("columns", column), before[column], after[column])
	}
	return d
}

func union(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
