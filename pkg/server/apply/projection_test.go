package apply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const projections = `tenants:
  - id: acme
    boards:
      - {name: issues, columns: [{id: open}, {id: ready}, {id: done}]}
      - {name: roadmap, columns: [{id: next}, {id: shipped}]}
      - {name: summary, columns: [{id: all}]}
    projections:
      - name: plan
        enabled: true
        from: issues
        to: roadmap
        columns: {open: next, done: shipped}
      - name: plan-back
        from: roadmap
        to: issues
        columns: {shipped: done}
`

func (b *bundle) projection(t *testing.T, name string) trigger.Projection {
	t.Helper()
	all, err := b.ProjectionList(t.Context(), "acme")
	require.NoError(t, err)
	for _, p := range all {
		if p.Name == name {
			return p
		}
	}
	require.Failf(t, "no such projection", "%s", name)
	return trigger.Projection{}
}

func TestProjections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.mustApply(t, projections)
	boards := make(map[string]string)
	all, err := b.BoardList(t.Context(), "acme")
	require.NoError(t, err)
	for _, board := range all {
		boards[board.Name] = board.ID
	}
	p := b.projection(t, "plan")
	require.Equal(t, []string{boards["issues"], boards["roadmap"]}, []string{p.FromBoardID, p.ToBoardID})
	require.Equal(t, []trigger.ColumnPair{{From: "done", To: "shipped"}, {From: "open", To: "next"}}, p.Columns)
	require.True(t, p.Enabled)
	require.True(t, b.projection(t, "plan-back").Enabled, "the default")
	require.Equal(t, "+ projection plan ("+p.ID+"): active_from_seq: 0", line(t, r, KindProjection, "plan").String())
	require.False(t, b.mustApply(t, projections).Changed())
	require.EqualValues(t, 1, b.projection(t, "plan").Revision)

	r = b.mustApply(t, edit(t, projections, "{open: next, done: shipped}", "{ready: next, done: shipped}"))
	require.Equal(t, []string{`columns.open: next → ""`, `columns.ready: "" → next`}, line(t, r, KindProjection, "plan").Details)
	r = b.mustApply(t, edit(t, edit(t, projections, "to: roadmap\n        columns: {open: next, done: shipped}", "to: summary\n        columns: {open: all}"), "enabled: true", "enabled: false"))
	require.Equal(t, []string{"enabled: true → false", "to: roadmap → summary", `columns.done: shipped → ""`, `columns.open: "" → all`, `columns.ready: next → ""`},
		line(t, r, KindProjection, "plan").Details)
}

func TestProjectionErrors(t *testing.T) {
	t.Parallel()
	const plan, back = "tenants[0].projections[0]", "tenants[0].projections[1]"
	more := func(text string) string { return projections + "      - " + text + "\n" }
	for _, tc := range []struct {
		name, text string
		want       []fault
	}{
		{"unknown field", edit(t, projections, "        from: issues\n", "        from: issues\n        max_per_minute: 1\n"), []fault{{11, plan + ".max_per_minute", "unknown field (allowed: name, enabled,"}}},
		{"missing", more("{name: x}"), []fault{
			{17, "tenants[0].projections[2].from", "is required"}, {17, "tenants[0].projections[2].to", "is required"}, {17, "tenants[0].projections[2].columns", "is required"},
		}},
		{"name taken", strings.Replace(projections, "plan-back", "plan", 1), []fault{{13, back + ".name", "taken, on line 8"}}},
		{"column given twice", edit(t, projections, "done: shipped}", "open: shipped}"), []fault{{12, plan + ".columns.open", "given twice"}}},
		{"board", edit(t, projections, "from: issues", "from: isues"), []fault{{10, plan + ".from", "there is no board of this name"}}},
		{"column of from", edit(t, projections, "{open: next", "{opne: next"), []fault{{12, plan + ".columns.opne", "the board issues has no such column"}}},
		{"column of to", edit(t, projections, "open: next", "open: nxet"), []fault{{12, plan + ".columns.open", "is mapped to a column that the board roadmap does not have"}}},
		{"collision", edit(t, projections, "{open: next", "{ready: next, open: next"), []fault{{12, plan + ".columns", "open and ready are both mapped to next"}}},
		{"no columns", edit(t, projections, "{open: next, done: shipped}", "{}"), []fault{{12, plan + ".columns", "must map 1 to 100 columns"}}},
		{"never at rest", edit(t, projections, "{shipped: done}", "{shipped: open}"), []fault{{16, back + ".columns.shipped", "a card would not come to rest"}}},
		{"same boards", more("{name: x, from: issues, to: roadmap, columns: {ready: next}}"), []fault{{17, "tenants[0].projections[2]", "the projection plan is between these boards already"}}},
		{"same board", edit(t, projections, "to: roadmap", "to: issues"), []fault{{11, plan + ".to", "another board"}}},
		{
			"cycle", more("{name: x, from: roadmap, to: summary, columns: {next: all}}") + "      - {name: y, from: summary, to: issues, columns: {all: open}}\n",
			[]fault{{18, "tenants[0].projections[3]", "closes a cycle of projections: y → plan → x"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			_, err := b.apply(t, tc.text)
			requireFaults(t, err, tc.want...)
			tenant, err := b.TenantIDs(t.Context(), "", 1)
			require.NoError(t, err)
			require.Empty(t, tenant, "nothing is written")
		})
	}
}

// What only the store has counts as well.
func TestProjectionsBesideTheFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, projections)
	only, _, _ := strings.Cut(projections, "    projections:")
	const other = "    projections: [{name: other, from: issues, to: roadmap, columns: {open: next}}]\n"
	_, err := b.apply(t, only+other)
	requireFaults(t, err, fault{7, "tenants[0].projections[0]", "the projection plan is between these boards already"})

	_, err = b.apply(t, edit(t, only, "{id: next}, ", ""))
	requireFaults(t, err, fault{5, "tenants[0].boards[1].columns", "the column next can't be removed: the enabled projection plan still names it"})
	_, err = b.apply(t, edit(t, only, "{id: open}, ", ""))
	requireFaults(t, err, fault{4, "tenants[0].boards[0].columns", "the enabled projection plan"})
	p := b.projection(t, "plan")
	p.Enabled = false
	p.Revision++
	require.NoError(t, b.ProjectionSave(t.Context(), &p))
	b.mustApply(t, edit(t, only, "{id: next}, ", ""))

	var many strings.Builder
	for i := range ProjectionsMax + 1 {
		fmt.Fprintf(&many, "      - {name: p%d, from: issues, to: roadmap, columns: {open: shipped}}\n", i)
	}
	_, err = b.apply(t, only+"    projections:\n"+many.String())
	require.ErrorContains(t, err, "at most 100 projections are allowed")
}

// A file that moves what names a column may remove it.
func TestAColumnIsRemovedAfterTheProjectionThatNamedIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, projections)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	w.after = func(call string) {
		p := b.projection(t, "plan")
		board, err := b.BoardGet(t.Context(), "acme", p.ToBoardID)
		require.NoError(t, err)
		for _, c := range p.Columns {
			require.NotNil(t, board.Column(c.To), "after %s", call)
		}
	}
	b.mustApply(t, edit(t, edit(t, projections, "{id: next}", "{id: later}"), "open: next", "open: later"))
	require.Len(t, w.calls("BoardSave roadmap"), 2)
}

func TestT7_ProjectionsActiveFromSeqIsReadBeforeEnabling(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := emit(t, b.Store)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	failed := false
	w.before = func(call string) error {
		if call == "ProjectionSave plan" {
			emit(t, b.Store)
			if !failed {
				failed, before = true, before+1 // it is read again
				return tracker.ErrConflict
			}
		}
		return nil
	}
	b.mustApply(t, projections)
	require.Equal(t, before, b.projection(t, "plan").ActiveFromSeq)
	w.before = nil
	b.mustApply(t, edit(t, projections, "open: next", "ready: next"))
	require.Equal(t, before, b.projection(t, "plan").ActiveFromSeq, "an edit of what is enabled keeps it")
	off := edit(t, projections, "enabled: true", "enabled: false")
	b.mustApply(t, off)
	require.Equal(t, before, b.projection(t, "plan").ActiveFromSeq)
	latest := emit(t, b.Store)
	b.mustApply(t, projections)
	require.Equal(t, latest, b.projection(t, "plan").ActiveFromSeq, "enabling again moves it")
}

func TestPromotion(t *testing.T) {
	t.Parallel()
	promote := edit(t, fullFile, "        bot: implementer\n        consume", "        bot: implementer\n        mode: promote\n        to_column: done\n        consume")
	b := setup(t)
	b.mustApply(t, promote)
	s := b.subscription(t, "implement")
	require.Equal(t, trigger.ModePromote, s.Mode)
	require.Equal(t, "done", s.ToColumn)
	require.False(t, b.mustApply(t, promote).Changed())
	r := b.mustApply(t, edit(t, promote, "        to_column: done\n", ""))
	require.Equal(t, []string{`to_column: done → ""`}, line(t, r, KindSubscription, "implement").Details)
	// A column that an outsider moves cards to is not removed.
	s = b.subscription(t, "celebrate")
	s.On = trigger.EventFilter{BoardID: s.On.BoardID, Kinds: []tracker.Kind{tracker.KindCreated}}
	s.Mode, s.ToColumn = trigger.ModePromote, "done"
	s.Revision++
	require.NoError(t, b.SubscriptionSave(t.Context(), &s))
	const boards = `tenants: [{id: acme, boards: [{name: issues, columns: [{id: open}]}]}]`
	_, err := b.apply(t, boards)
	requireFaults(t, err, fault{1, "tenants[0].boards[0].columns", "the column done can't be removed: the hook github"})
	hooks, err := b.HookList(t.Context(), "acme")
	require.NoError(t, err)
	hooks[0].ClosedColumn = "open"
	hooks[0].Revision++
	require.NoError(t, b.HookSave(t.Context(), &hooks[0]))
	_, err = b.apply(t, boards)
	requireFaults(t, err, fault{1, "tenants[0].boards[0].columns", "the enabled subscription celebrate"})
}

func TestPromotionErrors(t *testing.T) {
	t.Parallel()
	const sub = "tenants[0].subscriptions[0]"
	const boardless = "on: {kinds: [card.created]}, bot: bot"
	for _, tc := range []struct {
		name, text string
		want       []fault
	}{
		{"mode", edit(t, fullFile, "rank: 10", "mode: later"), []fault{{27, sub + ".mode", "must be direct or promote"}}},
		{"to_column without promote", edit(t, fullFile, "rank: 10", "to_column: done"), []fault{{27, sub + ".to_column", "only a subscription of mode promote"}}},
		{"to_column of the board", edit(t, fullFile, "rank: 10", "mode: promote\n        to_column: dnoe"), []fault{{28, sub + ".to_column", "the board issues has no such column"}}},
		{
			"to_column of no certain board", edit(t, oneSubscription, boardless, boardless+", mode: promote, to_column: done"),
			[]fault{{5, sub + ".on.board", "is required with on.from, on.to, if.columns and to_column"}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := setup(t).apply(t, tc.text)
			requireFaults(t, err, tc.want...)
		})
	}
	// Without to_column no board is needed.
	setup(t).mustApply(t, edit(t, oneSubscription, boardless, boardless+", mode: promote"))
}

func TestModeDirectIsTheDefault(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	require.False(t, b.mustApply(t, edit(t, fullFile, "rank: 10", "rank: 10\n        mode: direct")).Changed())
	r := b.mustApply(t, edit(t, fullFile, "rank: 10", "rank: 10\n        mode: promote"))
	require.Equal(t, []string{"mode: direct → promote"}, line(t, r, KindSubscription, "implement").Details)
}

func TestReplayUnsafe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	r := b.mustApply(t, edit(t, fullFile, "replay: safe", "replay: unsafe"))
	require.Equal(t, []string{"replay: safe → unsafe"}, line(t, r, KindBot, "implementer").Details)
	bots, err := b.BotList(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, trigger.ReplayUnsafe, bots[0].Replay)
	r = b.mustApply(t, edit(t, fullFile, "        replay: safe\n", ""))
	require.Equal(t, []string{"replay: unsafe → safe"}, line(t, r, KindBot, "implementer").Details, "the default")
}
