package server

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

const projections = "acme/projections"

func TestRefusedProjections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	b.board(t, "board-2", "next", "later")
	b.board(t, "board-3", "done")
	spec := func(name, from, to, columns string) string {
		return `{"name":"` + name + `","enabled":true,"from_board_id":"` + from + `","to_board_id":"` + to + `","columns":{` + columns + `}}`
	}
	made := body[Projection](t, b.ask(t, editor, "POST", projections, spec("one", "board-1", "board-2", `"todo":"next"`), ""), 201)
	require.Equal(t, map[string]ColumnID{"todo": "next"}, made.Columns)
	require.Equal(t, 201, b.ask(t, editor, "POST", projections, spec("two", "board-2", "board-3", `"later":"done"`), "").status)
	for _, c := range []struct{ spec, field string }{
		{spec("x", "s3cret", "board-2", `"todo":"next"`), "body.from_board_id"},
		{spec("x", "board-1", "s3cret", `"todo":"next"`), "body.to_board_id"},
		{spec("x", "board-1", "board-1", `"todo":"done"`), "body.to_board_id"},
		{spec("x", "board-1", "board-3", ``), "body.columns"},
		{spec("x", "board-1", "board-3", `"s3cret":"done"`), "body.columns"},
		{spec("x", "board-1", "board-3", `"todo":"s3cret"`), "body.columns"},
		{spec("x", "board-1", "board-3", `"todo":"done","done":"done"`), "body.columns"},
		{spec("x", "board-1", "board-3", `"todo":{"$ne":""}`), "body.columns.todo"},
		{spec("x", "board-1", "board-2", `"done":"next"`), "body.from_board_id"}, // the second one between these
		{spec("x", "board-2", "board-1", `"next":"done"`), "body.columns"},       // a card would not come to rest
		{spec("x", "board-3", "board-1", `"done":"todo"`), "body.from_board_id"}, // a cycle over three boards
		{strings.Replace(spec("x", "board-1", "board-3", `"todo":"done"`), "true", `"s3cret"`, 1), "body.enabled"},
	} {
		requireRefused(t, b.ask(t, editor, "POST", projections, c.spec, ""), 422, c.field)
	}
	all, err := b.mem.ProjectionList(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, all, 2)
	// Its board goes: it says so, and can't be enabled.
	at := projections + "/" + made.ID
	require.Equal(t, 200, b.ask(t, editor, "POST", at+"/disable", "", "").status)
	require.NoError(t, b.mem.BoardDelete(t.Context(), "acme", "board-2", 1))
	require.Equal(t, []string{"to_board_id"}, body[Projection](t, b.ask(t, editor, "GET", at, "", ""), 200).Dangling)
	requireRefused(t, b.ask(t, editor, "POST", at+"/enable", "", ""), 409, "to_board_id")
}

// Two at the same moment that make a circle together: never do both stay.
func TestProjectionsThatMakeACircleTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	for _, id := range []string{"x", "y", "z"} {
		b.board(t, id, "todo")
	}
	save := func(name, from, to string) *trigger.Projection {
		p := &trigger.Projection{TenantID: "acme", ID: name, Name: name, Revision: 1, FromBoardID: from, ToBoardID: to, Columns: []trigger.ColumnPair{{From: "todo", To: "todo"}}}
		require.NoError(t, b.mem.ProjectionSave(ctx, p))
		return p
	}
	save("xy", "x", "y")
	spec := func(name, from, to string) string {
		return `{"name":"` + name + `","enabled":true,"from_board_id":"` + from + `","to_board_id":"` + to + `","columns":{"todo":"todo"}}`
	}
	// Somebody's comes between the look and the save of another.
	var once sync.Once
	b.store.on("ProjectionSave", func(context.Context) error {
		once.Do(func() { save("yz", "y", "z") })
		return nil
	})
	a := b.ask(t, editor, "POST", projections, spec("zx", "z", "x"), "")
	requireRefused(t, a, 409)
	require.Contains(t, a.problem(t).Detail, "at the same moment")
	names := func() (out []string) {
		all, err := b.mem.ProjectionList(ctx, "acme")
		require.NoError(t, err)
		for i := range all {
			out = append(out, all[i].Name)
			others := append(append([]trigger.Projection{}, all[:i]...), all[i+1:]...)
			require.NoError(t, trigger.CheckProjections(others, &all[i]))
		}
		return out
	}
	require.Equal(t, []string{"xy", "yz"}, names())

	// An edit is taken back to what it was.
	b.store.heal()
	require.NoError(t, b.mem.ProjectionDelete(ctx, "acme", "yz", 1))
	b.board(t, "w", "todo")
	was := save("zw", "z", "w")
	b.store.on("ProjectionSave", func(context.Context) error {
		b.store.heal()
		save("yz", "y", "z")
		return nil
	})
	requireRefused(t, b.ask(t, editor, "PUT", projections+"/zw", spec("zx", "z", "x"), `"1"`), 409)
	now, err := b.mem.ProjectionGet(ctx, "acme", "zw")
	require.NoError(t, err)
	was.Revision = 3
	require.Equal(t, was, now)
	require.Equal(t, []string{"xy", "yz", "zw"}, names())

	// Many at once, each of which goes with what was there.
	b.store.heal()
	for _, name := range []string{"xy", "yz"} {
		require.NoError(t, b.mem.ProjectionDelete(ctx, "acme", name, 1))
	}
	var wg sync.WaitGroup
	for _, s := range []string{spec("a", "x", "y"), spec("b", "y", "z"), spec("c", "z", "x")} {
		for range 3 {
			wg.Go(func() { b.ask(t, editor, "POST", projections, s, "") })
		}
	}
	wg.Wait()
	names()
}
