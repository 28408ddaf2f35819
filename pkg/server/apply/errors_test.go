package apply

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// fault is an expected error: line and path whole, the message in part.
type fault struct {
	line    int
	path    string
	message string
}

func requireFaults(t *testing.T, err error, want ...fault) {
	t.Helper()
	require.Error(t, err)
	var errs Errors
	require.ErrorAs(t, err, &errs)
	got := make([]string, len(errs))
	for i, e := range errs {
		require.Equal(t, "triggers.yaml", e.File)
		got[i] = e.Error()
	}
	require.Len(t, errs, len(want), "%s", err)
	for i, f := range want {
		require.Equal(t, fmt.Sprintf("%d %s", f.line, f.path), fmt.Sprintf("%d %s", errs[i].Line, errs[i].Path), "%s", err)
		require.Contains(t, errs[i].Message, f.message)
	}
	require.Equal(t, strings.Join(got, "\n"), err.Error())
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	const (
		tenant = "tenants[0]"
		bot    = "tenants[0].bots[0]"
		hook   = "tenants[0].hooks[0]"
		sub    = "tenants[0].subscriptions[0]"
	)
	// Each edits the full file.
	for _, tc := range []struct {
		name, from, to string
		want           []fault
	}{
		{"unknown field", "kinds:", "kindz:", []fault{{23, sub + ".on.kindz", "unknown field (allowed: kinds, board, from, to, sources, actors)"}}},
		{"unknown at the top", "tenants:", "version: 1\ntenants:", []fault{{1, "version", "unknown field (allowed: tenants)"}}},
		{"unknown with an odd name", "rank:", `"ra\nnk":`, []fault{{27, sub + `["ra\nnk"]`, "unknown field"}}},
		{"merge key", "rank: 10", "<<: {rank: 10}", []fault{{27, sub + `["<<"]`, "unknown field"}}},
		{"when in the wrong place", "if: {", "if: {when: 'true', ", []fault{{24, sub + ".if.when", "unknown field (allowed: columns,"}}},
		{"max_per_minute", "rank: 10", "max_per_minute: many", []fault{{27, sub + ".max_per_minute", "whole number"}}},
		{"projections outside a tenant", "tenants:", "projections: []\ntenants:", []fault{{1, "projections", "unknown field (allowed: tenants)"}}},
		{"schedules", "    boards:", "    schedules: []\n    boards:", []fault{{4, tenant + ".schedules", notHere}}},
		{"duplicate key", "rank: 10", "rank: 10\n        rank: 11", []fault{{28, sub + ".rank", "given twice, first on line 27"}}},
		{"duplicate argument", "{model: large}", "{model: large, model: x}", []fault{{28, sub + ".args.model", "given twice, first on line 28"}}},
		{"key that is no text", "rank: 10", "[rank]: 10", []fault{{27, sub, "the name of a field must be a text"}}},
		{"number for text", "name: celebrate", "name: 12", []fault{{30, "tenants[0].subscriptions[1].name", "must be a text: quote it"}}},
		{"number among texts", "labels_none: [wip]", "labels_none: [wip, 1]", []fault{{24, sub + ".if.labels_none[1]", "must be a text: quote it"}}},
		{"number as argument", "model: large", "model: 5", []fault{{28, sub + ".args.model", "must be a text: quote it"}}},
		{"text for list", "consume: [ship-it]", "consume: ship-it", []fault{{26, sub + ".consume", "must be a list"}}},
		{"list for mapping", "args: {model: large}", "args: [large]", []fault{{28, sub + ".args", "must be a mapping"}}},
		{"mapping for list", "sources: [board]", "sources: {board: x}", []fault{{23, sub + ".on.sources", "must be a list"}}},
		{"text for bool", "enabled: true", "enabled: 'true'", []fault{{22, sub + ".enabled", "must be true or false"}}},
		{"yes for bool", "enabled: true", "enabled: yes", []fault{{22, sub + ".enabled", "must be true or false"}}},
		{"fraction", "rank: 10", "rank: 1.5", []fault{{27, sub + ".rank", "must be a whole number"}}},
		{"number too large", "rank: 10", "rank: 3000000000", []fault{{27, sub + ".rank", "32 bits"}}},
		{"lying tag", "rank: 10", "rank: !!int ten", []fault{{27, sub + ".rank", "whole number"}}},
		{"own tag", "rank: 10", "rank: !ten 10", []fault{{27, sub + ".rank", "whole number"}}},
		{"no value", "rank: 10", "rank:", []fault{{27, sub + ".rank", "has no value"}}},
		{"alias", "args: {model: large}", "args: &a {model: large}\n        vars: *a", []fault{
			{29, sub + ".vars", "an alias"},
			{30, sub + ".vars", "given twice"},
		}},
		{"empty text", "name: Acme", `name: ""`, []fault{{3, tenant + ".name", "must not be empty"}}},
		{"tenant id", "id: acme", "id: Acme", []fault{{2, tenant + ".id", "must match [a-z0-9][a-z0-9-]{0,62}"}}},
		{"tenant id missing", "  - id: acme\n    name: Acme", "  - name: Acme", []fault{{2, tenant + ".id", "is required"}}},
		{"name too long", "name: Acme", "name: " + strings.Repeat("x", 64), []fault{{3, tenant + ".name", "at most 63 bytes"}}},
		{"name with a control character", "name: Acme", `name: "A\e[31m"`, []fault{{3, tenant + ".name", "printable"}}},
		{"slug too long", "name: celebrate", "name: " + strings.Repeat("x", 64), []fault{{30, "tenants[0].subscriptions[1].name", "must match"}}},
		{"slug form", "name: implementer", "name: The_Bot", []fault{{10, bot + ".name", "must match"}}},
		{"name taken", "name: celebrate", "name: implement", []fault{{30, "tenants[0].subscriptions[1].name", "implement is taken, on line 21"}}},
		{"column taken", "id: done, name: Done", "id: open", []fault{{8, "tenants[0].boards[0].columns[1].id", "open is taken, on line 7"}}},
		{
			"no columns", "columns:\n          - {id: open, name: Open}\n          - {id: done, name: Done, terminal: true}", "columns: []",
			[]fault{{6, "tenants[0].boards[0].columns", "at least one column"}},
		},
		{"url missing", "        url: http://127.0.0.1:9000/launch\n", "", []fault{{10, bot + ".url", "is required"}}},
		{"replay", "replay: safe", "replay: maybe", []fault{{12, bot + ".replay", "must be safe or unsafe"}}},
		{"inline secret", "{env: IMPLEMENTER_SECRET}", "hunter2", []fault{{13, bot + ".secret", "does not belong in this file: must be {env: NAME} or {file: path}"}}},
		{"inline secret, tagged", "{env: IMPLEMENTER_SECRET}", "!!binary aHVudGVyMg==", []fault{{13, bot + ".secret", "does not belong"}}},
		{"secret as a key", "{env: IMPLEMENTER_SECRET}", "{hunter2}", []fault{
			{13, bot + ".secret", "unknown field (allowed: env, file, initial)"}, {13, bot + ".secret", "one of the two"},
		}},
		{"secret as a key, twice", "{env: IMPLEMENTER_SECRET}", "{hunter2: 1, hunter2: 2, env: X}", []fault{
			{13, bot + ".secret", "unknown field"}, {13, bot + ".secret", "given twice"},
		}},
		{"secret as an anchor", "{env: IMPLEMENTER_SECRET}", "*hunter2", []fault{{13, "", "an alias"}}},
		{"secret twofold", "{env: IMPLEMENTER_SECRET}", "{env: X, file: y}", []fault{{13, bot + ".secret", "one of the two"}}},
		{"secret of nothing", "{env: IMPLEMENTER_SECRET}", "{}", []fault{{13, bot + ".secret", "one of the two"}}},
		{"secret without value", "{env: IMPLEMENTER_SECRET}", "", []fault{{13, bot + ".secret", "has no value"}}},
		{"env is no text", "{env: IMPLEMENTER_SECRET}", "{env: 12}", []fault{{13, bot + ".secret.env", "must be a text"}}},
		{"provider", "provider: github", "provider: gitlab", []fault{{16, hook + ".provider", "must be github"}}},
		{"hook without columns", "        columns: {open: open, closed: done}\n", "", []fault{{15, hook + ".columns", "is required"}}},
		{"hook columns", "{open: open, closed: done}", "{open: open, close: done}", []fault{
			{18, hook + ".columns.close", "unknown field (allowed: open, closed)"}, {18, hook + ".columns.closed", "is required"},
		}},
		{"bot missing", "        bot: implementer\n        consume", "        consume", []fault{{21, sub + ".bot", "is required"}}},
		{"board missing for columns", "board: issues, sources", "sources", []fault{{23, sub + ".on.board", "is required with on.from"}}},
		{"board missing for from", ", board: issues}\n", "}\n", []fault{{31, "tenants[0].subscriptions[1].on.board", "is required with on.from"}}},
		{"actor", "{bot: implementer}]", "{name: x}, 5, [a]]", []fault{
			{23, sub + ".on.actors[1].name", "unknown field (allowed: bot)"},
			{23, sub + ".on.actors[1].bot", "is required"},
			{23, sub + ".on.actors[2]", "must be a login, or {bot: name}"},
			{23, sub + ".on.actors[3]", "must be a login, or {bot: name}"},
		}},
		{"two documents", "tenants:", "tenants: []\n---\ntenants:", []fault{{2, "", "a second document"}}},
		{"not YAML", "rank: 10", "rank: [10", []fault{{27, "", "not YAML: did not find expected ',' or ']'"}}},
		{"bad indent", "        rank: 10", "       rank: 10", []fault{{27, "", "not YAML"}}},
		{"tab", "        rank: 10", "\trank: 10", []fault{{27, "", "not YAML"}}},
		{"control character", "rank: 10", "rank: \x01", []fault{{27, "", "not YAML: control characters"}}},
		{"not UTF-8", "rank: 10", "rank: \xff", []fault{{27, "", "not YAML"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f, err := Parse("triggers.yaml", []byte(edit(t, fullFile, tc.from, tc.to)))
			requireFaults(t, err, tc.want...)
			require.Nil(t, f)
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestParseWhole(t *testing.T) {
	t.Parallel()
	for text, message := range map[string]string{
		"":             "the file is empty: tenants is required",
		"# nothing\n":  "the file is empty",
		"---\n":        "has no value",
		"- a\n":        "must be a mapping",
		"tenants:\n":   "has no value: must be a list",
		"{}":           "is required",
		"tenants: [5]": "must be a mapping",
	} {
		_, err := Parse("triggers.yaml", []byte(text))
		require.ErrorContains(t, err, message, "%q", text)
	}
	for _, text := range []string{"tenants: []\n", "\ufefftenants: []\r\n", "---\ntenants: []\n...\n"} {
		_, err := Parse("triggers.yaml", []byte(text))
		require.NoError(t, err, "%q", text)
	}
	_, err := Parse("triggers.yaml", []byte(strings.Repeat("#", FileMaxBytes+1)))
	requireFaults(t, err, fault{1, "", "at most 1048576"})
	_, err = Parse("triggers.yaml", []byte("tenants: []\n"+strings.Repeat("#", FileMaxBytes-len("tenants: []\n"))))
	require.NoError(t, err)
}

func TestResolveErrors(t *testing.T) {
	t.Parallel()
	const (
		bot    = "tenants[0].bots[0]"
		hook   = "tenants[0].hooks[0]"
		sub    = "tenants[0].subscriptions[0]"
		second = "tenants[0].subscriptions[1]"
	)
	for _, tc := range []struct {
		name, from, to string
		change         func(b *bundle)
		want           []fault
	}{
		{
			"hook's board", "provider: github\n        board: issues", "provider: github\n        board: isues", nil,
			[]fault{{17, hook + ".board", "no board of this name"}},
		},
		{"hook's columns", "{open: open, closed: done}", "{open: opn, closed: dne}", nil, []fault{
			{18, hook + ".columns.open", "the board issues has no such column, only [open, done]"}, {18, hook + ".columns.closed", "no such column"},
		}},
		{"subscription's board", "board: issues, sources", "board: isues, sources", nil, []fault{{23, sub + ".on.board", "no board of this name"}}},
		{"from and to", "from: open, to: done", "from: opn, to: dne", nil, []fault{
			{31, second + ".on.from", "no such column"}, {31, second + ".on.to", "no such column"},
		}},
		{"columns", "columns: [open]", "columns: [open, opn]", nil, []fault{{24, sub + ".if.columns[1]", "no such column"}}},
		{"bot", "board: issues}\n        bot: implementer", "board: issues}\n        bot: x", nil, []fault{{32, second + ".bot", "no bot of this name"}}},
		{"actor", "{bot: implementer}]", "{bot: x}]", nil, []fault{{23, sub + ".on.actors[1].bot", "no bot of this name"}}},
		{"url", "http://127.0.0.1:9000/launch", "ftp://x", nil, []fault{{11, bot + ".url", "is refused: must be http or https"}}},
		{"not a url", "http://127.0.0.1:9000/launch", "'http://a b:c/'", nil, []fault{{11, bot + ".url", "is not a URL"}}},
		{"url with a password", "http://127.0.0.1:9000/launch", "http://u:hunter2@x/", nil, []fault{{11, bot + ".url", "must not have a user"}}},
		{"secret missing, of a new hook", "        secret: {file: /run/secrets/github}\n", "", nil, []fault{{15, hook + ".secret", "is required: there is no stored"}}},
		{"env not set", "", "", func(b *bundle) { delete(b.env, "IMPLEMENTER_SECRET") }, []fault{{13, bot + ".secret.env", "is not set"}}},
		{"env empty", "", "", func(b *bundle) { b.env["IMPLEMENTER_SECRET"] = "\n" }, []fault{{13, bot + ".secret.env", "is empty"}}},
		{"env refused", "", "", func(b *bundle) { b.env["IMPLEMENTER_SECRET"] = "hunter2" }, []fault{{13, bot + ".secret.env", "the secret is refused"}}},
		{"secret too long", "", "", func(b *bundle) { b.env["IMPLEMENTER_SECRET"] = strings.Repeat("x", 4097) }, []fault{{13, bot + ".secret.env", "longer than 4096"}}},
		{"no file", "", "", func(b *bundle) { clear(b.files) }, []fault{{19, hook + ".secret.file", "can't be read: file does not exist"}}},
		{
			"hook secret short", "", "", func(b *bundle) { b.files["/run/secrets/github"] = "hunter2hunter2!\n" },
			[]fault{{19, hook + ".secret.file", "at least 16 bytes"}},
		},
		{"sealer", "", "", func(b *bundle) { b.sealer.err = errors.New("no key") }, []fault{
			{13, bot + ".secret", "can't be sealed: no key"}, {19, hook + ".secret", "can't be sealed: no key"},
		}},
		{"kinds", "[card.labeled]", "[card.labelled, card.moved, x]", nil, []fault{
			{23, sub + ".on.kinds[0]", "must be one of"}, {23, sub + ".on.kinds[2]", "must be one of"},
		}},
		{"sources", "[board]", "[forge]", nil, []fault{{23, sub + ".on.sources[0]", `must be "board"`}}},
		{"labels", "labels_none: [wip], assignees: [bob]", "labels_none: [wip, ''], assignees: [' ']", nil, []fault{
			{24, sub + ".if.labels_none[1]", "1 to 255 bytes"}, {24, sub + ".if.assignees[0]", "1 to 255 bytes"},
		}},
		{"consume", "consume: [ship-it]", "consume: [ship-it, x]", nil, []fault{{26, sub + ".consume[1]", "must also stand in if.labels_all"}}},
		{"args", "{model: large}", "{'a b': x, c: 'a ${x}'}", nil, []fault{
			{28, sub + `.args["a b"]`, "names must match"}, {28, sub + ".args.c", "line 1, column 5: undeclared reference to 'x'"},
		}},
		{"vars", "vars: {}", "vars: {c: '${card.labels}'}", nil, []fault{{29, sub + ".vars.c", "must yield a text"}}},
		{"when", "rank: 10", "rank: 10\n        when: |\n          card.title != \"\" &&\n          card.titel != \"x\"", nil, []fault{
			{28, sub + ".when", "line 2, column 5: undefined field 'titel'"},
		}},
		{"when beside another fault", "rank: 10", "rank: 10\n        mode: later\n        when: 'card.labels'", nil, []fault{
			{28, sub + ".mode", "must be direct or promote"}, {29, sub + ".when", "must be true or false"},
		}},
		{"when of an event, of the state alone", "on: {from: open, to: done, board: issues}", "when: event.kind == \"card.moved\"", nil, []fault{
			{31, second + ".when", "event can be named only with on.kinds, on.from or on.to"},
		}},
		{"when that is no condition", "on: {from: open, to: done, board: issues}", "when: 'true'", nil, []fault{{31, second + ".when", "always the same"}}},
		{"from needs moved", "{from: open", "{kinds: [card.edited], from: open", nil, []fault{{31, second + ".on.kinds", "need card.moved"}}},
		{"matches everything", "on: {from: open, to: done, board: issues}", "on: {board: issues}", nil, []fault{{30, second, "on, if: name a kind"}}},
		{"no filter", "        on: {from: open, to: done, board: issues}\n", "", nil, []fault{{30, second, "on, if: at least one"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			text := fullFile
			if tc.from != "" {
				text = edit(t, text, tc.from, tc.to)
			}
			if tc.change != nil {
				tc.change(b)
			}
			w := &watchedStore{Store: b.Store}
			b.params.Store = w
			r, err := b.apply(t, text)
			requireFaults(t, err, tc.want...)
			require.Empty(t, r.Changes)
			require.Empty(t, w.calls("Save"), "nothing is written when one thing is wrong")
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}

func TestAllErrorsAreCollectedByLine(t *testing.T) {
	t.Parallel()
	text := fullFile
	for from, to := range map[string]string{
		"rank: 10": "rank: ten", "id: acme": "id: ACME", "replay: safe": "replay: maybe", "kinds:": "kindz:", "terminal: true": "terminal: 1",
	} {
		text = edit(t, text, from, to)
	}
	_, err := Parse("triggers.yaml", []byte(text))
	requireFaults(t, err,
		fault{2, "tenants[0].id", "must match"},
		fault{8, "tenants[0].boards[0].columns[1].terminal", "true or false"},
		fault{12, "tenants[0].bots[0].replay", "must be safe or unsafe"},
		fault{23, "tenants[0].subscriptions[0].on.kindz", "unknown"},
		fault{27, "tenants[0].subscriptions[0].rank", "whole number"},
	)
	require.True(t, strings.HasPrefix(err.Error(), "triggers.yaml:2: tenants[0].id: must match [a-z0-9][a-z0-9-]{0,62}\n"), "%s", err)

	many := "tenants:\n" + strings.Repeat("  - {id: A}\n", TenantsMax) + "  - {id: a}\n"
	_, err = Parse("triggers.yaml", []byte(many))
	require.Contains(t, err.Error(), "\n… and 1 more")
}

func TestStoredSecretThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	b.sealer.key = "k2"
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	_, err := b.apply(t, edit(t, fullFile, "rank: 10", "rank: 11"))
	requireFaults(t, err,
		fault{13, "tenants[0].bots[0].secret", "the stored secret can't be opened: message authentication failed"},
		fault{19, "tenants[0].hooks[0].secret", "can't be opened"})
	require.Empty(t, w.calls("Save"))
}

func TestSubscriptionOfANewerVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	s := b.subscription(t, "celebrate")
	s.Revision++
	s.Requires = []string{"cel"}
	require.NoError(t, b.SubscriptionSave(t.Context(), &s))
	require.False(t, b.mustApply(t, fullFile).Changed())
	_, err := b.apply(t, edit(t, fullFile, "{from: open, to: done", "{from: open"))
	requireFaults(t, err, fault{30, "tenants[0].subscriptions[1]", "requires [cel] of a newer version"})
}

// faults must not lose an error that is none of a field.
func TestFaultsOfAGoodSubscription(t *testing.T) {
	t.Parallel()
	require.Empty(t, config.Faults(&trigger.Subscription{Name: "x", BotID: "b", If: trigger.Conditions{LabelsAny: []string{"a"}}, Consume: []string{"A"}}))
}
