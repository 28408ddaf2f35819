package trigger_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func projection(id, from, to string, columns ...string) trigger.Projection {
	p := trigger.Projection{TenantID: "acme", ID: id, Name: id, Enabled: true, FromBoardID: from, ToBoardID: to}
	for i := 0; i+1 < len(columns); i += 2 {
		p.Columns = append(p.Columns, trigger.ColumnPair{From: columns[i], To: columns[i+1]})
	}
	return p
}

func requireField(t *testing.T, err error, field, want string) {
	t.Helper()
	if field == "" {
		require.NoError(t, err)
		return
	}
	var fe *tracker.FieldError
	require.ErrorAs(t, err, &fe)
	require.Equal(t, field, fe.Field, "%s", err)
	require.Contains(t, fe.Want, want)
}

func TestProjectionIsChecked(t *testing.T) {
	t.Parallel()
	from := &tracker.Board{ID: "a", Name: "issues", Columns: []tracker.Column{{ID: "open"}, {ID: "done"}}}
	to := &tracker.Board{ID: "b", Name: "roadmap", Columns: []tracker.Column{{ID: "next"}, {ID: "shipped"}}}
	many := projection("p", "a", "b")
	for range 101 {
		many.Columns = append(many.Columns, trigger.ColumnPair{From: "open", To: "next"})
	}
	for name, c := range map[string]struct {
		p           trigger.Projection
		from, to    *tracker.Board
		field, want string
	}{
		"good":           {projection("p", "a", "b", "open", "next", "done", "shipped"), from, to, "", ""},
		"crosswise":      {projection("p", "a", "b", "open", "shipped", "done", "next"), from, to, "", ""},
		"name":           {projection("P!", "a", "b", "open", "next"), from, to, "name", "must match"},
		"no from":        {projection("p", "x", "b", "open", "next"), nil, to, "from", "no such board"},
		"no to":          {projection("p", "a", "x", "open", "next"), from, nil, "to", "no such board"},
		"same board":     {projection("p", "a", "a", "open", "done"), from, from, "to", "another board"},
		"no columns":     {projection("p", "a", "b"), from, to, "columns", "1 to 100"},
		"many columns":   {many, from, to, "columns", "1 to 100"},
		"no such source": {projection("p", "a", "b", "opne", "next"), from, to, "columns.opne", "the board issues has no such column"},
		"no such target": {projection("p", "a", "b", "open", "nxet"), from, to, "columns.open", "is mapped to a column that the board roadmap does not have"},
		"mapped twice":   {projection("p", "a", "b", "open", "next", "open", "shipped"), from, to, "columns.open", "mapped twice"},
		"collision":      {projection("p", "a", "b", "open", "next", "done", "next"), from, to, "columns", "open and done are both mapped to next"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireField(t, c.p.Validate(c.from, c.to), c.field, c.want)
		})
	}
}

func TestProjectionsOfATenantAreChecked(t *testing.T) {
	t.Parallel()
	there := projection("there", "a", "b", "open", "next", "done", "shipped")
	var full []trigger.Projection
	for i := range trigger.ProjectionsMax {
		full = append(full, projection(fmt.Sprint("p", i), fmt.Sprint("x", i), fmt.Sprint("y", i)))
	}
	disabled := there
	disabled.Enabled = false
	for name, c := range map[string]struct {
		all         []trigger.Projection
		p           trigger.Projection
		field, want string
	}{
		"alone":             {nil, there, "", ""},
		"itself":            {[]trigger.Projection{there}, there, "", ""},
		"one too many":      {full, there, "projections", "at most 100"},
		"one of them":       {full, projection("p7", "a", "b"), "", ""},
		"same boards":       {[]trigger.Projection{there}, projection("p", "a", "b", "open", "next"), "from, to", "the projection there is between"},
		"inverse":           {[]trigger.Projection{there}, projection("back", "b", "a", "next", "open", "shipped", "done"), "", ""},
		"inverse of a part": {[]trigger.Projection{there}, projection("back", "b", "a", "next", "open"), "", ""},
		"inverse elsewhere": {[]trigger.Projection{there}, projection("back", "b", "a", "later", "icebox"), "", ""},
		"inverse that goes on": {
			[]trigger.Projection{there},
			projection("back", "b", "a", "next", "icebox"), "columns.next",
			"is mapped to icebox, but the projection there maps open to next",
		},
		"inverse that comes from elsewhere": {
			[]trigger.Projection{there},
			projection("back", "b", "a", "later", "open"), "columns.later",
			"is mapped to open, but the projection there maps open to next",
		},
		"inverse of a disabled one": {[]trigger.Projection{disabled}, projection("back", "b", "a", "next", "icebox"), "columns.next", "icebox"},
		"chain":                     {[]trigger.Projection{there}, projection("on", "b", "c"), "", ""},
		"diamond":                   {[]trigger.Projection{there, projection("q", "a", "c"), projection("r", "b", "d")}, projection("s", "c", "d"), "", ""},
		"two pairs":                 {[]trigger.Projection{there, projection("q", "b", "a"), projection("r", "b", "c")}, projection("s", "c", "b"), "", ""},
		"cycle of three": {
			[]trigger.Projection{there, projection("on", "b", "c")}, projection("home", "c", "a"), "from, to", "closes a cycle of projections: home → there → on",
		},
		"cycle beside an inverse": {
			[]trigger.Projection{there, projection("q", "b", "a"), projection("r", "b", "c"), projection("s", "c", "b")},
			projection("t", "c", "a"), "from, to", "cycle of projections: t → there → r",
		},
		"cycle of four": {
			[]trigger.Projection{there, projection("q", "b", "c"), projection("r", "c", "d"), projection("x", "b", "e")},
			projection("s", "d", "a"), "from, to", "s → there → q → r",
		},
		"cycle through an inverse": {
			[]trigger.Projection{there, projection("q", "b", "a"), projection("r", "a", "c")}, projection("s", "c", "b"), "from, to", "s → q → r",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireField(t, trigger.CheckProjections(c.all, &c.p), c.field, c.want)
		})
	}
}

func TestProjectionCares(t *testing.T) {
	t.Parallel()
	p := projection("p", "b1", "b2", "open", "next", "done", "shipped")
	p.ActiveFromSeq = 6
	with := func(change func(*trigger.Projection)) trigger.Projection {
		q := p
		change(&q)
		return q
	}
	elsewhere := snap("open")
	elsewhere.BoardID = "b9"
	for name, c := range map[string]struct {
		p    trigger.Projection
		e    *trigger.Event
		want bool
	}{
		"created":                 {p, event(tracker.KindCreated, nil, snap("open")), true},
		"moved":                   {p, event(tracker.KindMoved, snap("open"), snap("done")), true},
		"from an unmapped column": {p, event(tracker.KindMoved, snap("idea"), snap("done")), true},
		"from another board":      {p, event(tracker.KindMoved, elsewhere, snap("open")), true},
		"first seen":              {p, event(tracker.KindEdited, nil, snap("open"), unknownBefore), true},
		"by a bot":                {p, event(tracker.KindMoved, snap("open"), snap("done"), by(tracker.ActorBot, "x")), true},
		"found there":             {p, event(tracker.KindProjected, snap("open"), snap("open")), true},
		"to an unmapped column":   {p, event(tracker.KindMoved, snap("open"), snap("idea")), false},
		"stayed":                  {p, event(tracker.KindEdited, snap("open"), snap("open")), false},
		"deleted":                 {p, event(tracker.KindDeleted, nil, snap("open")), false},
		"on another board":        {p, event(tracker.KindCreated, nil, elsewhere), false},
		"without a snapshot":      {p, event(tracker.KindCreated, nil, nil), false},
		"of another source":       {p, event(tracker.KindCreated, nil, snap("open"), func(e *trigger.Event) { e.Source = trigger.SourceRun }), false},
		"before it was enabled":   {with(func(q *trigger.Projection) { q.ActiveFromSeq = 7 }), event(tracker.KindCreated, nil, snap("open")), false},
		"disabled":                {with(func(q *trigger.Projection) { q.Enabled = false }), event(tracker.KindCreated, nil, snap("open")), false},
	} {
		require.Equal(t, c.want, c.p.Cares(c.e), name)
	}
}
