package main

import (
	"encoding/json"
	"os/user"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// ops is a database with rows, and what runs commands on it.
type ops struct {
	store *boardmongo.Store
	flags []string
}

func newOps(t *testing.T) *ops {
	t.Helper()
	store := testdb.Store(t)
	ctx := t.Context()
	require.NoError(t, store.TenantSave(ctx, &trigger.Tenant{ID: "acme", Name: "acme", Revision: 1}))
	require.NoError(t, store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: "bot-1", Name: "implementer", URL: "http://bot.invalid", Revision: 1}))
	require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "acme", ID: "sub-1", Name: "greet", Revision: 1, Enabled: true, BotID: "bot-1"}))
	return &ops{store, []string{"--mongo-uri", testdb.URI(t), "--database", store.Database().Name()}}
}

func (o *ops) run(t *testing.T, args ...string) result {
	t.Helper()
	return command(t, append(args, o.flags...)...)
}

// ok runs a command that works, and returns what it printed.
func (o *ops) ok(t *testing.T, args ...string) string {
	t.Helper()
	r := o.run(t, args...)
	require.Zero(t, r.code, "%v: %s%s", args, r.out, r.err)
	return r.out
}

// refused runs a command that fails, and returns why.
func (o *ops) refused(t *testing.T, args ...string) string {
	t.Helper()
	r := o.run(t, args...)
	require.Equal(t, 1, r.code, "%v: %s%s", args, r.out, r.err)
	require.Empty(t, r.out, args)
	return r.err
}

// missing runs a command that names what is not there, and returns what it says.
func (o *ops) missing(t *testing.T, args ...string) string {
	t.Helper()
	r := o.run(t, args...)
	require.Equal(t, exitMissing, r.code, "%v: %s%s", args, r.out, r.err)
	require.Empty(t, r.out, args)
	return r.err
}

// cursorIn is where a list that was cut short goes on.
func cursorIn(t *testing.T, said string) string {
	t.Helper()
	_, cursor, ok := strings.Cut(said, "--after '")
	require.True(t, ok, said)
	cursor, _, _ = strings.Cut(cursor, "'")
	return cursor
}

// rows makes n rows in a state, with seqs from one.
func (o *ops) rows(t *testing.T, from, n int, state trigger.State) (ids []string) {
	t.Helper()
	at := o.store.Now().Add(-time.Hour)
	rows := make([]trigger.Effect, n)
	for i := range rows {
		seq := int64(from + i)
		row := trigger.Effect{
			ID: trigger.EffectID(trigger.EventID("acme", seq), "sub-1"), TenantID: "acme", Kind: trigger.KindLaunch, Lane: trigger.LaneBot("bot-1"),
			State: state, NotBefore: at, SubscriptionID: "sub-1", BotID: "bot-1", EventSeq: seq, CreatedAt: at, UpdatedAt: at,
			Event: trigger.Event{TenantID: "acme", Seq: seq},
		}
		switch state {
		case trigger.StateFailed:
			row.Reason = trigger.ReasonExhausted
		case trigger.StateReconcile:
			row.ClaimID, row.DeliveryStartedAt = "claim", at
		}
		rows[i], ids = row, append(ids, row.ID)
	}
	_, err := o.store.EffectMaterialize(t.Context(), "acme", rows)
	require.NoError(t, err)
	return ids
}

func (o *ops) row(t *testing.T, id string) *trigger.Effect {
	t.Helper()
	row, err := o.store.EffectGet(t.Context(), "acme", id)
	require.NoError(t, err)
	return row
}

func osUser(t *testing.T) string {
	t.Helper()
	u, err := user.Current()
	require.NoError(t, err)
	return "cli:" + u.Username
}

func TestEffectsByID(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	for i, c := range []struct {
		what  string
		state trigger.State
		to    trigger.State
	}{
		{"replay", trigger.StateFailed, trigger.StatePending},
		{"rerun", trigger.StateDone, trigger.StatePending},
		{"discard", trigger.StateReconcile, trigger.StateDiscarded},
		{"release", trigger.StateHeld, trigger.StatePending},
	} {
		ids := o.rows(t, 100*i+1, 2, c.state)
		out := o.ok(t, "effects", c.what, ids[0], ids[1], "--note", "as agreed")
		require.Equal(t, ids[0]+": "+string(c.to)+"\n"+ids[1]+": "+string(c.to)+"\n", out)
		for _, id := range ids {
			row := o.row(t, id)
			require.Equal(t, c.to, row.State)
			require.Equal(t, osUser(t), row.History[0].By)
			require.Equal(t, "as agreed", row.History[0].Note)
		}
		// Not again; the others of the list are done all the same.
		more := o.rows(t, 100*i+10, 1, c.state)
		r := o.run(t, "effects", c.what, ids[0], more[0], "--by", "oncall")
		require.Equal(t, 1, r.code)
		require.Contains(t, r.err, ids[0]+": the row is "+string(c.to)+", it must be ")
		require.Contains(t, r.err, "triggerd effects show")
		require.Equal(t, more[0]+": "+string(c.to)+"\n", r.out)
		require.Equal(t, "oncall", o.row(t, more[0]).History[0].By)
	}
	require.Contains(t, o.missing(t, "effects", "replay", "acme/000000009999|sub-1"), "effects ls --tenant")
	require.Contains(t, o.refused(t, "effects", "replay", "acme/000000000001|sub-1", "--note", "a\nb"), "--note")
	lanes, err := o.store.LanesDue(t.Context(), o.store.Now(), 10)
	require.NoError(t, err)
	require.Len(t, lanes, 1, "a worker finds it")

	var shown server.EffectDetail
	require.NoError(t, json.Unmarshal([]byte(o.ok(t, "effects", "show", "acme/000000000001|sub-1")), &shown))
	require.Equal(t, trigger.ActionReplay, shown.History[0].Action)
	require.EqualValues(t, 1, shown.Event.Seq)
}

func TestEffectsResolve(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	ids := o.rows(t, 1, 3, trigger.StateReconcile)
	started := o.row(t, ids[0]).DeliveryStartedAt
	for says, args := range map[string][]string{
		"--confirmed":           {},
		"--send-again":          {"--confirmed", "--send-again"},
		"--yes":                 {"--send-again", "--delivery-started-at", started.Format(time.RFC3339Nano)},
		"effects show":          {"--send-again", "--yes"},
		"2026-11-30T":           {"--send-again", "--yes", "--delivery-started-at", "noon"},
		"go with --send-again":  {"--confirmed", "--yes"},
		"goes with --confirmed": {"--send-again", "--yes", "--run-id", "x"},
		"not the latest":        {"--send-again", "--yes", "--delivery-started-at", started.Add(-time.Minute).Format(time.RFC3339)},
	} {
		require.Contains(t, o.refused(t, append([]string{"effects", "resolve", ids[0]}, args...)...), says)
	}
	require.Empty(t, o.row(t, ids[0]).History)
	var shown server.Effect
	require.NoError(t, json.Unmarshal([]byte(o.ok(t, "effects", "show", ids[0])), &shown))
	at := shown.StartedAt.Format(time.RFC3339Nano)
	require.Equal(t, ids[0]+": pending\n", o.ok(t, "effects", "resolve", ids[0], "--send-again", "--yes", "--delivery-started-at", at))
	require.Contains(t, o.refused(t, "effects", "resolve", ids[0], "--send-again", "--yes", "--delivery-started-at", at), "the row is pending")
	require.Equal(t, ids[1]+": done\n", o.ok(t, "effects", "resolve", ids[1], "--confirmed", "--run-id", "run-7"))
	require.Equal(t, "run-7", o.row(t, ids[1]).RunID)
}

func TestEffectsLsFilters(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	o.rows(t, 1, 2, trigger.StateFailed)
	o.rows(t, 11, 1, trigger.StateHeld)
	o.rows(t, 21, 1, trigger.StateReconcile)
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 4},
		{[]string{"--state", "failed"}, 2},
		{[]string{"--state", "held"}, 1},
		{[]string{"--state", "reconcile"}, 1},
		{[]string{"--reason", "exhausted"}, 2},
		{[]string{"--reason", "poison"}, 0},
		{[]string{"--bot", "bot-1", "--subscription", "sub-1", "--older-than", "30m", "--newer-than", "90m"}, 4},
		{[]string{"--bot", "11111111-1111-4111-8111-111111111111"}, 0},
		{[]string{"--subscription", "11111111-1111-4111-8111-111111111111"}, 0},
		{[]string{"--older-than", "2h"}, 0},
		{[]string{"--newer-than", "30m"}, 0},
	} {
		var rows []server.Effect
		out := o.ok(t, append([]string{"effects", "ls", "--tenant", "acme", "-o", "json"}, c.args...)...)
		require.NoError(t, json.Unmarshal([]byte(out), &rows))
		require.Len(t, rows, c.want, c.args)
	}
}

// A list that was cut short says so, and how to go on.
func TestEffectsLsCutShort(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	ids := o.rows(t, 1, 3, trigger.StateFailed)
	for _, form := range []string{"table", "json"} {
		r := o.run(t, "effects", "ls", "--tenant", "acme", "-o", form, "--limit", "2")
		require.Zero(t, r.code)
		require.NotContains(t, r.out, ids[2])
		require.Contains(t, r.err, "There are more")
		r = o.run(t, "effects", "ls", "--tenant", "acme", "-o", form, "--limit", "2", "--after", cursorIn(t, r.err))
		require.Contains(t, r.out, ids[2])
		require.Empty(t, r.err)
		require.Empty(t, o.run(t, "effects", "ls", "--tenant", "acme", "-o", form, "--limit", "3").err)
	}
}

// A misspelt tenant must not look like one where all is well.
func TestATenantThatIsNot(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	for _, args := range [][]string{
		{"effects", "ls"}, {"subs", "ls"}, {"effects", "replay", "--all", "--state", "failed"},
	} {
		require.Contains(t, o.missing(t, append(args, "--tenant", "nobody")...), "there is no tenant nobody", args)
		o.ok(t, append(args, "--tenant", "acme")...)
	}
}

var digestLine = regexp.MustCompile(`(?m)^  digest ([0-9a-f]{64})$`)

// again is the command that a preview, or an interrupted one, ends with.
func again(t *testing.T, out string) []string {
	t.Helper()
	_, cmd, ok := strings.Cut(out, "triggerd effects ")
	require.True(t, ok, out)
	cmd, _, _ = strings.Cut(cmd, "\n")
	return append([]string{"effects"}, strings.Fields(cmd)...)
}

func TestEffectsBulk(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	ids := o.rows(t, 1, 5, trigger.StateFailed)
	filter := []string{"effects", "replay", "--tenant", "acme", "--all", "--state", "failed", "--reason", "exhausted", "--note", "the bot is back"}
	out := o.ok(t, filter...)
	require.Contains(t, out, "5 effects of acme to replay, nothing was touched")
	require.Contains(t, out, ids[0])
	digest := digestLine.FindStringSubmatch(out)
	require.NotNil(t, digest, out)
	require.Equal(t, trigger.StateFailed, o.row(t, ids[0]).State)
	// A row changes: it is no longer what was shown.
	o.ok(t, "effects", "discard", ids[2])
	says := o.refused(t, append(filter, "--digest", digest[1])...)
	require.Contains(t, says, "now there are 4")
	require.Equal(t, trigger.StateFailed, o.row(t, ids[0]).State)
	// By the same flags and the new digest.
	now := digestLine.FindStringSubmatch(o.ok(t, filter...))
	r := o.run(t, append(filter, "--digest", now[1])...)
	require.Zero(t, r.code, r.err)
	require.Equal(t, "replay: 4 applied, 0 refused\n", r.out)
	require.Contains(t, r.err, "4 of 4: 4 applied, 0 refused")
	for i, id := range ids {
		row := o.row(t, id)
		if i == 2 {
			require.Equal(t, trigger.StateDiscarded, row.State)
			continue
		}
		require.Equal(t, trigger.StatePending, row.State)
		require.Equal(t, "the bot is back", row.History[0].Note)
		require.Equal(t, osUser(t), row.History[0].By)
	}
	require.Contains(t, o.ok(t, filter...), "No effect of acme to replay")
	// By the command that was printed: just those rows, whatever came since.
	held := o.rows(t, 50, 3, trigger.StateHeld)
	cmd := again(t, o.ok(t, "effects", "release", "--tenant", "acme", "--all", "--state", "held"))
	late := o.rows(t, 60, 1, trigger.StateHeld)
	o.ok(t, "effects", "discard", held[1])
	r = o.run(t, cmd...)
	require.Zero(t, r.code, r.err)
	require.Equal(t, "release: 2 applied, 1 refused\n", r.out)
	require.Contains(t, r.err, "left alone")
	require.Equal(t, trigger.StateHeld, o.row(t, late[0]).State)

	for says, args := range map[string][]string{
		"--state: must be failed to replay": {"replay", "--all", "--tenant", "acme", "--state", "held"},
		"--state: is required with --all":   {"replay", "--all", "--tenant", "acme"},
		"must be done to rerun":             {"rerun", "--all", "--tenant", "acme", "--state", "failed"},
		"--tenant":                          {"replay", "--all", "--state", "failed"},
		"effects ls":                        {"replay"},
		"either ids, or":                    {"replay", "--all", "--tenant", "acme", "--state", "failed", ids[0]},
		"--digest goes with":                {"replay", ids[0], "--digest", "x"},
		"--digest: is required":             {"replay", "--bulk", "x", "--tenant", "acme"},
		"--state goes with --all":           {"discard", ids[0], "--state", "held"},
		"--older-than goes with --all":      {"discard", ids[0], "--older-than", "1h"},
		"--bot goes with --all":             {"discard", "--bulk", "x", "--tenant", "acme", "--digest", "x", "--bot", "11111111-1111-4111-8111-111111111111"},
		"--note goes with --all":            {"discard", "--bulk", "x", "--tenant", "acme", "--digest", "x", "--note", "why"},
		"--older-than":                      {"replay", "--all", "--tenant", "acme", "--state", "failed", "--older-than=-1h"},
		"--bulk: it is one to release":      append([]string{"discard"}, cmd[2:]...),
		"--digest: these are not the rows":  append(append([]string{}, cmd[1:len(cmd)-1]...), "x"),
		"--note: must not have control":     {"replay", "--all", "--tenant", "acme", "--state", "failed", "--note", "\t"},
		"<tenant>/<seq>|<subscription>":     {"replay", "nonsense"},
		"give one of them":                  {"replay", "--all", "--bulk", "x", "--tenant", "acme"},
	} {
		require.Contains(t, o.refused(t, append([]string{"effects"}, args...)...), says)
	}
	require.Contains(t, o.missing(t, "effects", "replay", "--bulk", "x", "--tenant", "acme", "--digest", "x"), "begin again with --all")
	require.Contains(t, o.missing(t, "effects", "replay", "other/000000000001|sub-1"), "there is no effect with this id: `tr")
}

// Interrupted, it says how to go on; what was decided stays, and goes on.
func TestEffectsBulkInterrupted(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	const n = 250
	ids := o.rows(t, 1, n, trigger.StateFailed)
	cmd := again(t, o.ok(t, "effects", "discard", "--tenant", "acme", "--all", "--state", "failed"))
	p := begin(t, append(cmd, o.flags...)...)
	p.err.await(t, "of 250")
	p.interrupt()
	p.end(t)
	r := p.result(t)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "interrupted after")
	require.Empty(t, r.out)
	discarded := 0
	for _, id := range ids {
		if o.row(t, id).State == trigger.StateDiscarded {
			discarded++
		}
	}
	require.Positive(t, discarded)
	require.Less(t, discarded, n)
	_, said, _ := strings.Cut(r.err, "interrupted after")
	require.Equal(t, "discard: 250 applied, 0 refused\n", o.ok(t, again(t, said)...))
	for _, id := range ids {
		require.Len(t, o.row(t, id).History, 1)
	}
}

func TestPauseCommands(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	require.Contains(t, o.ok(t, "pause", "--tenant", "acme", "--bot", "bot-1", "--note", "it floods"), "bot bot-1 of tenant acme is paused, since ")
	require.Contains(t, o.ok(t, "pause", "--tenant", "acme", "--by", "oncall"), "tenant acme is paused, since ")
	require.Contains(t, o.ok(t, "pause", "--fleet"), "the fleet is paused, since ")
	require.Contains(t, o.ok(t, "pause", "--fleet", "--by", "another"), "by "+osUser(t), "the first one stays")
	var pauses []server.Pause
	require.NoError(t, json.Unmarshal([]byte(o.ok(t, "pauses", "-o", "json")), &pauses))
	require.Len(t, pauses, 3)
	table := o.ok(t, "pauses")
	for _, says := range []string{"fleet", "it floods", "oncall", osUser(t)} {
		require.Contains(t, table, says)
	}
	require.Contains(t, o.ok(t, "resume", "--fleet"), "the fleet is not paused")
	require.Contains(t, o.ok(t, "resume", "--fleet"), "the fleet is not paused", "nor was it")
	require.Contains(t, o.ok(t, "resume", "--tenant", "acme"), "tenant acme is not paused")
	require.Contains(t, o.ok(t, "resume", "--tenant", "acme", "--bot", "bot-1"), "is not paused")
	all, err := o.store.PauseList(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
	for _, what := range []string{"pause", "resume"} {
		for says, args := range map[string][]string{
			"--fleet":               {},
			"--tenant: is required": {"--bot", "bot-1"},
			"either --fleet":        {"--fleet", "--tenant", "acme"},
			"--tenant: must match":  {"--tenant", "A B"},
		} {
			require.Contains(t, o.refused(t, append([]string{what}, args...)...), says)
		}
		require.Contains(t, o.missing(t, what, "--tenant", "nobody"), "there is no tenant nobody")
		require.Contains(t, o.missing(t, what, "--tenant", "acme", "--bot", "nobody"), "`triggerd bots ls --tenant acme` lists")
	}
	require.Contains(t, o.refused(t, "pause", "--fleet", "--note", "a\nb"), "--note")
	all, err = o.store.PauseList(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

func TestSubsCommands(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	held := o.rows(t, 1, 2, trigger.StateHeld)
	require.Contains(t, o.ok(t, "subs", "pause", "sub-1", "--tenant", "acme", "--note", "it floods"), "subscription greet is paused by "+osUser(t))
	table := o.ok(t, "subs", "ls", "--tenant", "acme")
	for _, says := range []string{"sub-1", "greet", "bot-1", "it floods"} {
		require.Contains(t, table, says)
	}
	require.NotContains(t, table, "failing")
	require.NotContains(t, o.ok(t, "pauses"), "it floods")
	require.Contains(t, command(t, "pauses", "--help").out, "subs ls", "where it is listed instead")
	require.NoError(t, o.store.SubscriptionSave(t.Context(), &trigger.Subscription{
		TenantID: "acme", ID: "sub-9", Name: "ratio", Revision: 1, Enabled: true, BotID: "bot-1", If: trigger.Conditions{LabelsAll: []string{"x"}},
		Failing: "when: division by \x1bzero", FailingSince: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
	}))
	require.Regexp(t, `(?m)^sub-9 .*failing since 2026-11-30T12:00:00Z: when: division by  zero$`, o.ok(t, "subs", "ls", "--tenant", "acme"))
	require.Contains(t, o.ok(t, "subs", "resume", "sub-1", "--tenant", "acme", "--by", "oncall"), "2 held effects were released")
	for _, id := range held {
		require.Equal(t, "oncall", o.row(t, id).History[0].By)
	}
	for _, what := range []string{"pause", "resume"} {
		require.Contains(t, o.missing(t, "subs", what, "nobody", "--tenant", "acme"), "`triggerd subs ls --tenant acme`")
		require.Contains(t, o.refused(t, "subs", what, "sub-1", "--tenant", "A B"), "--tenant")
	}
}

func TestSubsResumeDiscards(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	held := o.rows(t, 1, 3, trigger.StateHeld)
	require.Contains(t, o.ok(t, "subs", "resume", "sub-1", "--tenant", "acme", "--discard"), "3 held effects were discarded")
	for _, id := range held {
		require.Equal(t, trigger.StateDiscarded, o.row(t, id).State)
	}
}

func TestAnEditorsToken(t *testing.T) {
	t.Parallel()
	o := newOps(t)
	require.Contains(t, o.refused(t, "token", "create", "x", "--role", "editor"), "tenant")
	token := strings.TrimSpace(o.ok(t, "token", "create", "x", "--role", "editor", "--tenant", "acme"))
	require.True(t, strings.HasPrefix(token, server.TokenPrefix))
	require.Contains(t, o.ok(t, "token", "ls"), "editor")
}

// A flag that says what to do to what is none that an environment may set.
func TestNoActionFromTheEnvironment(t *testing.T) {
	for _, name := range []string{"ALL", "YES", "FLEET", "SEND_AGAIN", "CONFIRMED", "DISCARD"} {
		t.Setenv("TRIGGERD_"+name, "true")
	}
	require.NotContains(t, command(t, "subs", "resume", "--help").out, "TRIGGERD_DISCARD")
	o := newOps(t)
	held := o.rows(t, 1, 1, trigger.StateHeld)
	require.Contains(t, o.ok(t, "subs", "resume", "sub-1", "--tenant", "acme"), "1 held effects were released")
	require.Equal(t, trigger.StatePending, o.row(t, held[0]).State)
	for _, args := range [][]string{
		{"pause"}, {"resume"}, {"effects", "replay"}, {"effects", "resolve", "acme/000000000001|sub-1"},
	} {
		r := command(t, append(args, "--mongo-uri", nobody)...)
		require.Equal(t, 1, r.code)
		require.NotContains(t, r.err, "MongoDB")
	}
}
