package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// cards makes cards with a label each, c1 first, and has the tail read their
// events against what is subscribed.
func (o *ops) cards(t *testing.T, labels ...string) {
	t.Helper()
	ctx := t.Context()
	relay := &trigger.Relay{Cards: o.store, Log: o.store, Heads: o.store}
	board := &trigger.Board{Cards: o.store, Log: o.store, Clock: o.store, Relay: relay}
	for i, label := range labels {
		id := fmt.Sprint("c", i+1)
		_, err := board.Change(ctx, "acme", id, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			return &tracker.Card{BoardID: "b1", ColumnID: "open", Title: id, Labels: []string{label}},
				&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona\x1b[2J"}, ToColumn: "open"}, nil
		})
		require.NoError(t, err)
		_, err = relay.Card(ctx, "acme", id)
		require.NoError(t, err)
	}
	tail := &trigger.Tail{Cards: o.store, Log: o.store, Heads: o.store, Config: o.store, Outbox: o.store, Lanes: o.store, Clock: o.store, Epochs: o.store}
	_, err := tail.Drain(ctx, "acme")
	require.NoError(t, err)
}

func newExplainOps(t *testing.T) *ops {
	t.Helper()
	o := newOps(t)
	require.NoError(t, o.store.SubscriptionSave(t.Context(), &trigger.Subscription{
		TenantID: "acme", ID: "sub-2", Name: "ship", Revision: 1, Enabled: true, BotID: "bot-1", If: trigger.Conditions{LabelsAll: []string{"ship-it"}},
	}))
	require.NoError(t, o.store.SubscriptionSave(t.Context(), &trigger.Subscription{
		TenantID: "acme", ID: "sub-1", Name: "greet", Revision: 2, Enabled: true, BotID: "bot-1", If: trigger.Conditions{LabelsAll: []string{"hello"}},
	}))
	o.cards(t, "ship-it", "docs", "ship-it")
	return o
}

func parsed[T any](t *testing.T, text string) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	return v
}

func TestSubsExplain(t *testing.T) {
	t.Parallel()
	o := newExplainOps(t)
	table := o.ok(t, "subs", "explain", "--tenant", "acme", "--card", "c1")
	require.Regexp(t, `(?m)^sub-2 +ship +1 +pending +Event 1 \(card.created by mona \[2J\) fired it`, table)
	require.Contains(t, table, "greet", "all subscriptions")
	table = o.ok(t, "subs", "explain", "--tenant", "acme", "--card", "c2", "--subscription", "sub-2")
	require.Contains(t, table, "condition_failed")
	require.NotContains(t, table, "greet")
	all := parsed[[]trigger.Explanation](t, o.ok(t, "subs", "explain", "--tenant", "acme", "--card", "c3", "--subscription", "sub-2", "-o", "json"))
	require.Len(t, all, 1)
	require.Equal(t, trigger.AnswerPending, all[0].Answer)
	require.EqualValues(t, 3, all[0].Event.Seq)
	require.Contains(t, o.ok(t, "subs", "explain", "--tenant", "acme", "--card", "c9", "--subscription", "sub-2"), "card_unknown")
	require.Contains(t, o.missing(t, "subs", "explain", "--tenant", "acme", "--card", "c1", "--subscription", "sub-9"), "subs ls")
	require.NoError(t, o.store.TenantSave(t.Context(), &trigger.Tenant{ID: "empty", Name: "empty", Revision: 1}))
	require.Equal(t, "[]\n", o.ok(t, "subs", "explain", "--tenant", "empty", "--card", "c1", "-o", "json"))
	require.Contains(t, o.missing(t, "subs", "explain", "--tenant", "nobody", "--card", "c1"), "there is no tenant nobody")

	// What an explanation rests on is shown with it.
	var out strings.Builder
	require.NoError(t, printWhy(&out, &trigger.Explanation{
		Verdict: &trigger.Verdict{Conditions: []trigger.Condition{{Name: "if.columns", Wanted: "ready", Found: "to\x07do"}}},
		Latest:  &trigger.Verdict{EventSeq: 9, Summary: "No."}, Notes: []string{"A note."},
	}))
	for _, says := range []string{"CONDITION", "if.columns", "ready", "to do", "false", "A note.", "event, 9, does not fire it. No."} {
		require.Contains(t, out.String(), says)
	}
}

func TestSubsDryRun(t *testing.T) {
	t.Parallel()
	o := newExplainOps(t)
	table := o.ok(t, "subs", "dry-run", "sub-2", "--tenant", "acme")
	require.Contains(t, table, "2 of 3 events fire it. Nothing was written.")
	require.Less(t, strings.Index(table, "c3"), strings.Index(table, "c1"), "newest first")
	require.NotContains(t, table, "\x1b")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for name, text := range map[string]string{
		"draft.yaml": "name: draft\nbot_id: bot-1\non: {kinds: [card.created], to: open}\nif:\n  labels_none: [docs]\n",
		"draft.json": `{"name": "draft", "bot_id": "bot-1", "on": {"kinds": ["card.created"], "to": "open"}, "if": {"labels_none": ["docs"]}}`,
	} {
		dry := parsed[trigger.DryRun](t, o.ok(t, "subs", "dry-run", "-f", file(name, text), "--tenant", "acme", "-o", "json"))
		require.Len(t, dry.Verdicts, 3, name)
		require.Equal(t, 2, dry.Fired, name)
	}
	dry := parsed[trigger.DryRun](t, o.ok(t, "subs", "dry-run", "sub-2", "--tenant", "acme", "--card", "c2", "-o", "json"))
	require.Len(t, dry.Verdicts, 1)
	table = o.ok(t, "subs", "dry-run", "sub-2", "--tenant", "acme", "--last", "1")
	require.Contains(t, table, "Earlier events: --before 3")
	require.Contains(t, o.ok(t, "subs", "dry-run", "sub-2", "--tenant", "acme", "--last", "1", "--before", "2"), "c1")

	require.Contains(t, o.ok(t, "subs", "dry-run", "-f", filepath.Join(dir, "draft.yaml"), "--tenant", "acme", "--card", "c9"), "0 of 0")
	require.Contains(t, o.missing(t, "subs", "dry-run", "-f", filepath.Join(dir, "draft.yaml"), "--tenant", "nobody"), "there is no tenant nobody")
	for says, text := range map[string]string{
		"labels_al: is not a field": "name: x\nbot_id: b\nif: {labels_al: [x]}\n",
		"bot_id: is required":       "name: x\nif: {labels_all: [x]}\n",
		"on, if":                    "name: x\nbot_id: b\n",
		"name: must not be a numb":  "name: 7\n",
		"at most 262144 bytes":      "name: " + strings.Repeat("x", bodyMaxBytes) + "\n",
		"bad.yaml":                  "name: [\n",
	} {
		require.Contains(t, o.refused(t, "subs", "dry-run", "-f", file("bad.yaml", text), "--tenant", "acme"), says)
	}
	require.Contains(t, o.missing(t, "subs", "dry-run", "sub-9", "--tenant", "acme"), "subs ls")
}

func TestSubsLog(t *testing.T) {
	t.Parallel()
	o := newExplainOps(t)
	table := o.ok(t, "subs", "log", "sub-2", "--tenant", "acme")
	require.Regexp(t, `(?m)^3 +card.created +c3 +pending `, table)
	require.Less(t, strings.Index(table, "c3"), strings.Index(table, "c1"), "newest first")
	require.NotContains(t, table, "c2")
	entries := parsed[[]trigger.LogEntry](t, o.ok(t, "subs", "log", "sub-2", "--tenant", "acme", "--limit", "1", "-o", "json"))
	require.Len(t, entries, 1)
	require.EqualValues(t, 3, entries[0].EventSeq)
	more := o.run(t, "subs", "log", "sub-2", "--tenant", "acme", "--limit", "1")
	entries = parsed[[]trigger.LogEntry](t, o.ok(t, "subs", "log", "sub-2", "--tenant", "acme", "--after", cursorIn(t, more.err), "-o", "json"))
	require.Len(t, entries, 1)
	require.EqualValues(t, 1, entries[0].EventSeq)
	require.Equal(t, "[]\n", o.ok(t, "subs", "log", "sub-1", "--tenant", "acme", "-o", "json"))
	require.Contains(t, o.missing(t, "subs", "log", "sub-9", "--tenant", "acme"), "subs ls")
	// More than a page of the engine's.
	for i := range 150 {
		o.rows(t, 1000+i, 1, trigger.StateHeld)
	}
	_, err := o.store.SeqAllocate(t.Context(), "acme", 2000, false)
	require.NoError(t, err)
	require.Len(t, parsed[[]trigger.LogEntry](t, o.ok(t, "subs", "log", "sub-1", "--tenant", "acme", "--limit", "120", "-o", "json")), 120)
	require.Len(t, parsed[[]trigger.LogEntry](t, o.ok(t, "subs", "log", "sub-1", "--tenant", "acme", "--limit", "1000", "-o", "json")), 150)
}

// The commands of docs/explain.md are ones that there are, and its draft is one
// that a dry run takes.
func TestCommandsOfTheExplainDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/explain.md")
	require.NoError(t, err)
	seen := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "triggerd ")
		if !ok {
			continue
		}
		var c cli
		parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
		require.NoError(t, err)
		ctx, err := parser.Parse(append(words(args), "--mongo-uri", nobody))
		require.NoError(t, err, line)
		seen[ctx.Command()]++
	}
	require.Equal(t, map[string]int{"subs explain": 2, "subs dry-run <id>": 2, "subs dry-run": 1, "subs log <id>": 1}, seen)
	_, draft, ok := strings.Cut(string(text), "```yaml\n")
	require.True(t, ok)
	draft, _, _ = strings.Cut(draft, "```")
	path := filepath.Join(t.TempDir(), "draft.yaml")
	require.NoError(t, os.WriteFile(path, []byte(draft), 0o600))
	asJSON, err := readDraft(path)
	require.NoError(t, err)
	sub, err := trigger.DraftDecode(asJSON)
	require.NoError(t, err)
	require.NoError(t, sub.Validate())
}
