package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// oddTexts are texts that YAML takes for something else, or writes in a way of
// its own.
var oddTexts = []string{
	"on", "yes", "12", "1e3", "~", "null", "true", "2026-11-30", " a ", "a: b", "- a", "# a", "*a", "&a", "!!a", "'", `"`, "a\nb\n", "\n a\n",
	"a\tb", "\x01", "\u0085", "\u2028", "\ufeff", "%", "@", "`", "{", "[", "ä", "🚀", "a #b", "|", ">", "?", ":", "---", "...", "<<", "=", "",
}

// oddities saves things that people may well have, with odd texts in them.
func (b *bundle) oddities(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	bots, err := b.BotList(ctx, "acme")
	require.NoError(t, err)
	boards, err := b.BoardList(ctx, "acme")
	require.NoError(t, err)
	args := make(map[string]string)
	for i, text := range oddTexts {
		args[fmt.Sprintf("a%d", i)] = text
	}
	none := 0
	var names []string
	for _, text := range oddTexts {
		if tracker.Fold(text) != "" {
			names = append(names, text)
		}
	}
	for i, s := range []trigger.Subscription{
		{Name: "on", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated}}, Args: args, Vars: map[string]string{"on": "on"}, MaxPerMinute: &none, Rank: -7},
		{Name: "12", If: trigger.Conditions{LabelsAny: names, LabelsNone: names, Assignees: names}, Enabled: true},
		{Name: "actors", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}, Sources: []trigger.Source{trigger.SourceBoard}, Actors: append([]string{bots[0].ID}, names...)}, Enabled: true},
		{Name: "when", When: "card.title != \"\" &&\n  !(\"wip\" in card.labels)\n", Enabled: true},
		{Name: "promote", On: trigger.EventFilter{BoardID: boards[0].ID, To: "done"}, Mode: trigger.ModePromote, ToColumn: "open", Paused: true, PausedBy: "x", Enabled: true},
		{Name: "failing", If: trigger.Conditions{LabelsAll: []string{"x"}}, Consume: []string{"X"}, Failing: "when: no", FailingSince: time.Now(), Enabled: true},
	} {
		s.TenantID, s.ID, s.BotID, s.Revision = "acme", fmt.Sprintf("odd-%d", i), bots[0].ID, 1
		require.NoError(t, s.Validate(), s.Name)
		require.NoError(t, b.SubscriptionSave(ctx, &s))
	}
	require.NoError(t, b.BoardSave(ctx, &tracker.Board{TenantID: "acme", ID: "roadmap-1", Name: "roadmap", Revision: 1, Columns: []tracker.Column{{ID: "next", Name: "# Next"}, {ID: "12", Name: "12"}}}))
	require.NoError(t, b.ProjectionSave(ctx, &trigger.Projection{
		TenantID: "acme", ID: "p-1", Name: "plan", Revision: 1, FromBoardID: boards[0].ID, ToBoardID: "roadmap-1", Columns: []trigger.ColumnPair{{From: "open", To: "12"}},
	}))
	bot := bots[0]
	bot.ID, bot.Name, bot.Replay, bot.URL, bot.Revision = "bot-2", "second", trigger.ReplayUnsafe, "http://127.0.0.1:9000/launch?token=hunter2", 1
	require.NoError(t, b.BotSave(ctx, &bot))
}

func (b *bundle) export(t *testing.T) *Exported {
	t.Helper()
	x, err := Export(t.Context(), "acme", b.params)
	require.NoError(t, err)
	for _, s := range []string{"hunter2", botSecret, hookSecret, "whsec"} {
		require.NotContains(t, x.File, s)
	}
	return x
}

// Applied where it comes from, an export changes nothing, whatever the secrets
// are of whoever applies it.
func TestExportIsAFixpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	b.oddities(t)
	x := b.export(t)
	require.Empty(t, x.LeftOut, x.File)
	require.Equal(t, []string{"ACME_BOT_IMPLEMENTER_SECRET", "ACME_BOT_SECOND_SECRET", "ACME_HOOK_GITHUB_SECRET"}, x.Secrets)
	require.Contains(t, x.File, "# yaml-language-server: $schema=")
	require.Contains(t, x.File, "        on: {", "as people write it")
	require.Contains(t, x.File, "launch?***")
	clear(b.env)
	clear(b.files)
	require.False(t, b.mustApply(t, x.File).Changed(), x.File)
	b.env["ACME_BOT_IMPLEMENTER_SECRET"] = "whsec_another-one-4711-of-this-bot"
	r := b.mustApply(t, x.File)
	require.False(t, r.Changed())
	require.Len(t, r.Changes, 15)
	require.Equal(t, x.File, b.export(t).File)
}

// Applied to an empty store, with the secrets, the same things come to be.
func TestExportMakesTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	b.oddities(t)
	x := b.export(t)
	text := strings.Replace(x.File, "launch?***", "launch?token=hunter2", 1)

	other := setup(t)
	_, err := other.apply(t, text)
	require.ErrorContains(t, err, "is not set")
	clear(other.files)
	other.env = map[string]string{"ACME_BOT_IMPLEMENTER_SECRET": botSecret, "ACME_BOT_SECOND_SECRET": botSecret, "ACME_HOOK_GITHUB_SECRET": hookSecret}
	other.mustApply(t, text)
	require.Equal(t, x.File, other.export(t).File)
	for _, name := range []string{"on", "12", "actors", "when", "promote", "failing", "implement", "celebrate"} {
		was, is := b.subscription(t, name), other.subscription(t, name)
		was.On.BoardID, is.On.BoardID = "", "" // other ids
		was.On.Actors, is.On.Actors = slices.DeleteFunc(was.On.Actors, isID), slices.DeleteFunc(is.On.Actors, isID)
		require.Equal(t, was.Args, is.Args, name)
		require.Equal(t, was.If, is.If, name)
		require.Equal(t, was.On, is.On, name)
		require.Equal(t, was.When, is.When, name)
		require.Equal(t, was.MaxPerMinute, is.MaxPerMinute, name)
		require.Equal(t, was.Enabled, is.Enabled, name)
	}
	bots, err := other.BotList(t.Context(), "acme")
	require.NoError(t, err)
	for _, bot := range bots {
		opened, err := other.sealer.Open(trigger.BotOwner("acme", bot.ID), bot.Secret)
		require.NoError(t, err)
		require.Equal(t, strings.TrimPrefix(botSecret, "whsec_"), string(opened))
	}
}

func isID(s string) bool { return len(s) == 36 && strings.Count(s, "-") == 4 }

// What a file can't describe is left out, and said; the rest stays a fixpoint.
func TestExportLeavesOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	b.oddities(t)
	ctx := t.Context()
	bots, err := b.BotList(ctx, "acme")
	require.NoError(t, err)
	cond := trigger.Conditions{LabelsAll: []string{"x"}}
	for _, s := range []trigger.Subscription{
		{ID: "x1", Name: "no-bot", BotID: "gone", If: cond},
		{ID: "x2", Name: "no-board", BotID: bots[0].ID, On: trigger.EventFilter{BoardID: "gone", To: "done"}},
		{ID: "x3", Name: "newer", BotID: bots[0].ID, If: cond, Requires: []string{"telepathy"}},
		{ID: "x4", Name: "Not A Slug", BotID: bots[0].ID, If: cond},
		{ID: "x5", Name: "boardless", BotID: bots[0].ID, On: trigger.EventFilter{To: "done"}},
		{ID: "x6", Name: "bytes", BotID: bots[0].ID, If: cond, Args: map[string]string{"a": "\xff"}},
	} {
		s.TenantID, s.Revision = "acme", 1
		require.NoError(t, b.SubscriptionSave(ctx, &s))
	}
	require.NoError(t, b.BoardSave(ctx, &tracker.Board{TenantID: "acme", ID: "x7", Name: "Not\nA Slug", Revision: 1, Columns: []tracker.Column{{ID: "a", Name: "a"}}}))
	bare := bots[0]
	bare.ID, bare.Name, bare.Secret, bare.Revision = "x8", "bare", "", 1
	require.NoError(t, b.BotSave(ctx, &bare))
	require.NoError(t, b.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "acme", ID: "y1", Name: "of-bare", BotID: "x8", If: cond, Revision: 1}))

	x := b.export(t)
	left := make(map[string]string)
	for _, l := range x.LeftOut {
		left[l.ID] = l.Why
	}
	require.Len(t, left, 8, x.LeftOut)
	for id, why := range map[string]string{
		"x1": "its bot is gone", "x2": "its board is gone", "x3": "newer version: telepathy", "x4": "must match", "x5": "on.board: is required",
		"x6": "must be a text", "x7": "must match", "x8": "secret",
	} {
		require.Contains(t, left[id], why)
		require.Regexp(t, "(?m)^# left out: .*\\("+id+"\\): ", x.File)
	}
	require.False(t, b.mustApply(t, x.File).Changed(), x.File)
	require.Contains(t, x.File, "bot: bare", "what the store alone has can be referred to")
}

func TestExportOfNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := Export(t.Context(), "acme", b.params)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	require.NoError(t, b.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Name: "acme", Revision: 1}))
	x := b.export(t)
	require.Contains(t, x.File, "tenants:\n  - id: acme\n")
	require.False(t, b.mustApply(t, x.File).Changed())
}

// A file that is too large is refused, and nothing loops for ever.
func TestExportTooLarge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	bots, err := b.BotList(t.Context(), "acme")
	require.NoError(t, err)
	args := make(map[string]string)
	for i := range 50 {
		args[fmt.Sprint("a", i)] = strings.Repeat("x", 4096)
	}
	for i := range 6 {
		require.NoError(t, b.SubscriptionSave(t.Context(), &trigger.Subscription{
			TenantID: "acme", ID: fmt.Sprint("s", i), Name: fmt.Sprint("s", i), Revision: 1, BotID: bots[0].ID, Args: args, If: trigger.Conditions{LabelsAll: []string{"x"}},
		}))
	}
	_, err = Export(t.Context(), "acme", b.params)
	var refused *trigger.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Contains(t, refused.Why, "bytes")
}
