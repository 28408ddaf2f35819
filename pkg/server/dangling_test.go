package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestDanglingOf(t *testing.T) {
	t.Parallel()
	const bot, gone = "0197c0de-0000-7000-8000-000000000001", "0197c0de-0000-7000-8000-000000000002"
	column := func(ids ...string) (out []tracker.Column) {
		for _, id := range ids {
			out = append(out, tracker.Column{ID: id})
		}
		return out
	}
	boards := byID([]tracker.Board{{ID: "b1", Columns: column("todo", "done")}, {ID: "b2", Columns: column("next")}}, func(b *tracker.Board) string { return b.ID })
	bots := byID([]trigger.Bot{{ID: bot}}, func(b *trigger.Bot) string { return b.ID })
	sub := func(s trigger.Subscription) []string {
		if s.BotID == "" {
			s.BotID = bot
		}
		return danglingOf(boards, bots, &s)
	}
	for name, c := range map[string]struct{ want, got []string }{
		"all there": {nil, sub(trigger.Subscription{
			On: trigger.EventFilter{BoardID: "b1", From: "todo", To: "done", Actors: []string{"mona", "token:ci", bot}},
			If: trigger.Conditions{Columns: []string{"todo", "done"}}, ToColumn: "done",
		})},
		"each column, of its board": {[]string{"on.from", "on.to", "if.columns[1]", "to_column"}, sub(trigger.Subscription{
			On: trigger.EventFilter{BoardID: "b1", From: "next", To: "next"}, If: trigger.Conditions{Columns: []string{"todo", "next"}}, ToColumn: "next",
		})},
		"a column of any board":       {nil, sub(trigger.Subscription{On: trigger.EventFilter{To: "next"}})},
		"a column of no board":        {[]string{"on.to"}, sub(trigger.Subscription{On: trigger.EventFilter{From: "todo", To: "gone"}})},
		"a board that is gone":        {[]string{"on.board_id"}, sub(trigger.Subscription{On: trigger.EventFilter{BoardID: "b9", To: "done"}})},
		"a bot that is gone":          {[]string{"bot_id", "on.actors[1]"}, sub(trigger.Subscription{BotID: "bot-9", On: trigger.EventFilter{Actors: []string{"mona", gone}}})},
		"a bot, spelt in upper case":  {nil, sub(trigger.Subscription{On: trigger.EventFilter{Actors: []string{"0197C0DE-0000-7000-8000-000000000001"}}})},
		"a projection that is whole":  {nil, danglingOf(boards, bots, &trigger.Projection{FromBoardID: "b1", ToBoardID: "b2", Columns: []trigger.ColumnPair{{From: "todo", To: "next"}}})},
		"a projection without ends":   {[]string{"from_board_id", "to_board_id"}, danglingOf(boards, bots, &trigger.Projection{FromBoardID: "b8", ToBoardID: "b9", Columns: []trigger.ColumnPair{{From: "a", To: "b"}}})},
		"a projection, columns gone":  {[]string{"columns.todo", "columns.y"}, danglingOf(boards, bots, &trigger.Projection{FromBoardID: "b1", ToBoardID: "b2", Columns: []trigger.ColumnPair{{From: "todo", To: "x"}, {From: "y", To: "next"}}})},
		"a hook that is whole":        {nil, danglingOf(boards, bots, &trigger.Hook{BoardID: "b1", OpenColumn: "todo", ClosedColumn: "done"})},
		"a hook without its columns":  {[]string{"columns.open", "columns.closed"}, danglingOf(boards, bots, &trigger.Hook{BoardID: "b2", OpenColumn: "todo", ClosedColumn: "done"})},
		"a hook of a board that went": {[]string{"board_id"}, danglingOf(boards, bots, &trigger.Hook{BoardID: "b9", OpenColumn: "todo", ClosedColumn: "done"})},
	} {
		require.Equal(t, c.want, c.got, name)
	}
	require.Equal(t, []Dangling{{"hook", "h1", "github", "board_id"}}, flagged("hook", "h1", "github", []string{"board_id"}))

	l := &links{
		boards: boards, bots: bots,
		hooks:         []trigger.Hook{{ID: "h1", Name: "h", BoardID: "b1", OpenColumn: "todo", ClosedColumn: "gone"}},
		subscriptions: []trigger.Subscription{{ID: "s1", Name: "s", BotID: bot, On: trigger.EventFilter{BoardID: "b2"}}},
		projections:   []trigger.Projection{{ID: "p1", Name: "p", FromBoardID: "b1", ToBoardID: "b2"}},
	}
	require.Equal(t, []Dangling{{"hook", "h1", "h", "columns.closed"}}, l.dangling())
	require.Equal(t, []Dangling{{"subscription", "s1", "s", "on.board_id"}, {"projection", "p1", "p", "to_board_id"}},
		l.danglingAfter(func(l *links) { delete(l.boards, "b2") }), "what dangled before is not the change's")
}
