package trigger_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

//go:generate go test -run TestMatchingDoc . -update-docs

var updateDocs = flag.Bool("update-docs", false, "write the table of cases into docs/matching.md")

const matchingDoc = "../../docs/matching.md"

// The table, through the board and the tail.
func TestMatchingCases(t *testing.T) {
	t.Parallel()
	for i, c := range matchingCases {
		t.Run(fmt.Sprintf("%02d %s: %s", i, c.sub, c.says()), func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.fires, c.run(t))
		})
	}
}

// run does what happens and returns the steps that fired.
func (c matchingCase) run(t *testing.T) (fires []int) {
	t.Helper()
	ctx := t.Context()
	store := boardmem.New()
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store}
	board := &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}
	tail := tailOf(store, store)
	columns := &tracker.Board{TenantID: "acme", ID: "b1", Name: "b1", Revision: 1, Columns: []tracker.Column{{ID: "open", Name: "Open"}, {ID: "ready", Name: "Ready"}, {ID: "done", Name: "Done"}}}
	require.NoError(t, store.BoardSave(ctx, columns))
	sub := *subOf(t, c.sub)
	sub.TenantID, sub.ID, sub.Name, sub.BotID, sub.Revision, sub.Enabled = "acme", "s1", "s1", "bot1", 1, true
	require.NoError(t, sub.Validate())
	require.NoError(t, store.SubscriptionSave(ctx, &sub))
	stepOf := make(map[int64]int) // by seq
	for i, s := range c.when {
		switch {
		case s.rename:
			columns.Revision++
			columns.Columns[1].Name = "Next"
			require.NoError(t, store.BoardSave(ctx, columns))
			continue
		case s.bulk:
			out, err := board.ChangeMany(ctx, "acme", []string{"c1"}, s.do)
			require.NoError(t, err)
			require.NoError(t, out[0].Err)
		default:
			_, err := board.Change(ctx, "acme", "c1", s.do)
			require.NoError(t, err)
		}
		_, err := relay.Card(ctx, "acme", "c1")
		require.NoError(t, err)
		head, err := store.HeadGet(ctx, "acme")
		require.NoError(t, err)
		require.NotContains(t, stepOf, head.Seq, "one event a step")
		stepOf[head.Seq] = i + 1
	}
	for more := true; more; {
		d, err := tail.Drain(ctx, "acme")
		require.NoError(t, err)
		more = d.More || d.Moved
	}
	rows, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: "acme", Limit: 100})
	require.NoError(t, err)
	for _, row := range rows {
		require.Equal(t, trigger.KindLaunch, row.Kind)
		fires = append(fires, stepOf[row.EventSeq])
	}
	slices.Sort(fires)
	return fires
}

func subOf(t *testing.T, name string) *trigger.Subscription {
	t.Helper()
	i := slices.IndexFunc(matchingSubs, func(s matchingSub) bool { return s.name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return &matchingSubs[i].sub
}

func (c matchingCase) says() string {
	var out []string
	for _, s := range c.when {
		out = append(out, s.says)
	}
	return strings.Join(out, ", ")
}

func inColumn(id string) string { return "*" + strings.ToUpper(id[:1]) + id[1:] + "*" }

func withLabels(labels []string) string {
	if len(labels) == 0 {
		return ""
	}
	return " with " + texts(labels)
}

// texts are quoted so that what looks the same can be told apart.
func texts(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, "`"+strings.Trim(fmt.Sprintf("%+q", s), `"`)+"`")
	}
	return strings.Join(out, " and ")
}

// table is the table of cases in Markdown.
func table() string {
	var out strings.Builder
	for _, sub := range matchingSubs {
		fmt.Fprintf(&out, "\n### %s\n\n| what happens | fires | |\n|---|---|---|\n", sub.says)
		for _, c := range matchingCases {
			if c.sub != sub.name {
				continue
			}
			var happens []string
			for i, s := range c.when {
				happens = append(happens, fmt.Sprintf("%d. %s", i+1, s.says))
			}
			fires := "no"
			if len(c.fires) > 0 {
				fires = "at " + strings.ReplaceAll(strings.Trim(fmt.Sprint(c.fires), "[]"), " ", " and ")
			}
			fmt.Fprintf(&out, "| %s | %s | %s |\n", strings.Join(happens, "; "), fires, c.why)
		}
	}
	return out.String() + "\n"
}

func TestMatchingDoc(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- cases: written by make docs -->\n", "<!-- end of cases -->\n"
	text, err := os.ReadFile(matchingDoc)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + table() + end + after
	if *updateDocs {
		require.NoError(t, os.WriteFile(matchingDoc, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "docs/matching.md is not what the cases say: run `make docs`")
}
