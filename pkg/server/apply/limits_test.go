package apply

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// list is n lines of a list at the indent.
func list(indent, n int, item func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", indent) + "- " + item(i) + "\n")
	}
	return b.String()
}

func TestLimits(t *testing.T) {
	t.Parallel()
	named := func(i int) string { return fmt.Sprintf("{name: n%d, columns: [{id: a}]}", i) }
	bot := func(i int) string { return fmt.Sprintf("{name: n%d, url: 'http://x', secret: {env: X}}", i) }
	hook := func(i int) string {
		return fmt.Sprintf("{name: n%d, provider: github, board: b, columns: {open: a, closed: a}, secret: {env: X}}", i)
	}
	sub := func(i int) string { return fmt.Sprintf("{name: n%d, bot: b, on: {kinds: [card.created]}}", i) }
	for _, tc := range []struct {
		name string
		max  int
		text func(n int) string
		line int
		path string
	}{
		{"tenants", TenantsMax, func(n int) string {
			return "tenants:\n" + list(2, n, func(i int) string { return fmt.Sprintf("id: t%d", i) })
		}, 2, "tenants"},
		{"boards", BoardsMax, func(n int) string { return "tenants:\n- id: a\n  boards:\n" + list(2, n, named) }, 4, "tenants[0].boards"},
		{"columns", ColumnsMax, func(n int) string {
			return "tenants:\n- id: a\n  boards:\n  - name: b\n    columns:\n" + list(4, n, func(i int) string { return fmt.Sprintf("id: c%d", i) })
		}, 6, "tenants[0].boards[0].columns"},
		{"bots", BotsMax, func(n int) string { return "tenants:\n- id: a\n  bots:\n" + list(2, n, bot) }, 4, "tenants[0].bots"},
		{"hooks", HooksMax, func(n int) string { return "tenants:\n- id: a\n  hooks:\n" + list(2, n, hook) }, 4, "tenants[0].hooks"},
		{"subscriptions", SubscriptionsMax, func(n int) string { return "tenants:\n- id: a\n  subscriptions:\n" + list(2, n, sub) }, 4, "tenants[0].subscriptions"},
		{"labels_any", listMax, func(n int) string {
			return "tenants:\n- id: a\n  subscriptions:\n  - name: s\n    bot: b\n    if:\n      labels_any:\n" + list(6, n, func(i int) string { return fmt.Sprintf("l%d", i) })
		}, 8, "tenants[0].subscriptions[0].if.labels_any"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse("triggers.yaml", []byte(tc.text(tc.max)))
			require.NoError(t, err)
			_, err = Parse("triggers.yaml", []byte(tc.text(tc.max+2)))
			requireFaults(t, err, fault{
				tc.line + tc.max, fmt.Sprintf("%s[%d]", tc.path, tc.max),
				fmt.Sprintf("at most %d %s are allowed here, the list has %d", tc.max, tc.name, tc.max+2),
			})
		})
	}
}

// What only the store has counts too: else a file could be applied again and
// again with other names.
func TestLimitsCountTheStore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := func(prefix string, n int) string {
		return "tenants:\n- id: acme\n  boards:\n" + list(2, n, func(i int) string { return fmt.Sprintf("{name: %s%d, columns: [{id: a}]}", prefix, i) })
	}
	b.mustApply(t, text("a", BoardsMax))
	require.False(t, b.mustApply(t, text("a", BoardsMax)).Changed())
	_, err := b.apply(t, text("b", 3))
	requireFaults(t, err, fault{4, "tenants[0].boards[0]", "at most 100 boards"})

	b = setup(t)
	b.mustApply(t, text("a", BoardsMax-1))
	_, err = b.apply(t, text("b", 3))
	requireFaults(t, err, fault{5, "tenants[0].boards[1]", "at most 100 boards"})
}

func TestALargeFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := "tenants:\n- id: acme\n  bots: [{name: bot, url: 'http://bot', secret: {env: IMPLEMENTER_SECRET}}]\n  subscriptions:\n" +
		list(2, SubscriptionsMax, func(i int) string {
			return fmt.Sprintf("{name: s%d, bot: bot, if: {labels_all: [l%d]}, consume: [l%d]}", i, i, i)
		})
	require.Contains(t, b.mustApply(t, text).String(), "1002 created")
	require.False(t, b.mustApply(t, text).Changed())
}

const renamedColumn = `tenants:
  - id: acme
    name: Acme
    boards:
      - name: issues
        columns: [{id: todo, name: To do}, {id: done, name: Done, terminal: true}]
`

func TestAColumnStillNamedIsNotRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	refused := func(who string) {
		t.Helper()
		_, err := b.apply(t, renamedColumn)
		requireFaults(t, err, fault{6, "tenants[0].boards[0].columns", "the column open can't be removed: " + who + " still names it"})
	}
	ctx := t.Context()
	refused("the hook github")

	hooks, err := b.HookList(ctx, "acme")
	require.NoError(t, err)
	hooks[0].OpenColumn = "done"
	hooks[0].Revision++
	require.NoError(t, b.HookSave(ctx, &hooks[0]))
	refused("the enabled subscription celebrate")

	s := b.subscription(t, "celebrate")
	s.Enabled = false
	s.Revision++
	require.NoError(t, b.SubscriptionSave(ctx, &s))
	refused("the enabled subscription implement")

	t.Log("one of no certain board counts as well")
	s = b.subscription(t, "implement")
	board := s.On.BoardID
	s.On.BoardID = ""
	s.Revision++
	require.NoError(t, b.SubscriptionSave(ctx, &s))
	refused("the enabled subscription implement")

	t.Log("but not where another board has such a column")
	elsewhere := tracker.Board{TenantID: "acme", ID: "other", Name: "other", Columns: []tracker.Column{{ID: "open"}}, Revision: 1}
	require.NoError(t, b.BoardSave(ctx, &elsewhere))
	r := b.mustApply(t, renamedColumn)
	require.Equal(t, []string{"columns: [open, done] → [todo, done]"}, line(t, r, KindBoard, "issues").Details)
	got, err := b.BoardGet(ctx, "acme", board)
	require.NoError(t, err)
	require.Equal(t, "todo", got.Columns[0].ID)
}

// A file that moves what names the column may remove it, and at no instant does
// anything stored name a column that is not there.
func TestAColumnIsRemovedAfterWhatNamedIt(t *testing.T) {
	t.Parallel()
	moved := strings.NewReplacer("{id: open, name: Open}", "{id: todo, name: Todo}", "open: open", "open: todo",
		"columns: [open]", "columns: [todo]", "from: open", "from: todo").Replace(fullFile)
	for _, conflict := range []string{"", "BoardSave", "HookSave", "SubscriptionSave celebrate"} {
		t.Run(conflict, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.mustApply(t, fullFile)
			w := &watchedStore{Store: b.Store}
			b.params.Store = w
			boardSaves := 0
			w.before = func(call string) error {
				if strings.HasPrefix(call, "BoardSave") {
					boardSaves++
				}
				if conflict != "" && strings.HasPrefix(call, conflict) && (conflict != "BoardSave" || boardSaves == 2) {
					conflict = ""
					return tracker.ErrConflict
				}
				return nil
			}
			w.after = func(call string) {
				boards, err := b.BoardList(t.Context(), "acme")
				require.NoError(t, err)
				hooks, err := b.HookList(t.Context(), "acme")
				require.NoError(t, err)
				require.NotNil(t, boards[0].Column(hooks[0].OpenColumn), "after %s", call)
				from := b.subscription(t, "celebrate").On.From
				require.NotNil(t, boards[0].Column(from), "after %s", call)
			}
			r := b.mustApply(t, moved)
			require.Equal(t, Updated, line(t, r, KindBoard, "issues").Action)
			require.Contains(t, line(t, r, KindBoard, "issues").Details, "columns: [open, done] → [todo, done]")
			boards, err := b.BoardList(t.Context(), "acme")
			require.NoError(t, err)
			require.Len(t, boards[0].Columns, 2)
			require.Nil(t, boards[0].Column("open"))
			require.False(t, b.mustApply(t, moved).Changed())
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{fullFile, oneSubscription, renamedColumn, "", "tenants: [", "a: &b [*b]", "tenants:\n- id: !!str 5"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		require.NotEqual(t, file == nil, err == nil)
		if err != nil {
			var errs Errors
			require.ErrorAs(t, err, &errs)
			for _, e := range errs {
				require.Positive(t, e.Line)
				require.NotContains(t, e.Error(), "\x1b")
			}
		}
	})
}
