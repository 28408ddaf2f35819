package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// atServer is a server's API with a store in memory, and the flags that choose
// it, with a token of that role.
func atServer(t *testing.T, role trigger.Role) *ops {
	t.Helper()
	store := boardmem.New()
	require.NoError(t, store.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Name: "acme", Revision: 1}))
	srv := httptest.NewServer(server.NewAPI(server.APIParams{Store: store, Sealer: newSealer(t), Logger: zerolog.Nop()}))
	t.Cleanup(srv.Close)
	p := server.TokenParams{Name: "t", Role: role}
	if role != trigger.RoleAdmin {
		p.TenantID = "acme"
	}
	_, text, err := server.TokenCreate(t.Context(), store, p)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
	return &ops{flags: []string{"--url", srv.URL, "--token-file", file}}
}

// atDatabase is a database, with a seal key.
func atDatabase(t *testing.T) *ops {
	t.Helper()
	store := testdb.Store(t)
	require.NoError(t, store.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Name: "acme", Revision: 1}))
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("ab", 32)), 0o600))
	return &ops{store: store, flags: []string{"--mongo-uri", testdb.URI(t), "--database", store.Database().Name(), "--seal-key-file", key}}
}

// Each kind of thing is made, listed, edited and deleted, by the same commands
// on a server, as an editor, and on a database.
func TestCommandsOfAllKinds(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*ops{"server": atServer(t, trigger.RoleEditor), "database": atDatabase(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			do := func(args ...string) string { t.Helper(); return o.ok(t, append(args, "--tenant", "acme")...) }
			id := func(args ...string) string {
				t.Helper()
				return parsed[struct{ ID string }](t, do(append(args, "-o", "json")...)).ID
			}
			board := id("boards", "create", "issues", "--column", "open:Open", "--column", "ready", "--column", "done:Done:terminal")
			require.Regexp(t, `(?m)^`+board+` +issues +open, ready, done`, do("boards", "ls"))
			require.Regexp(t, `(?m)^columns\[2\]\.terminal +true$`, do("boards", "show", "issues"))
			do("boards", "create", "plan", "--column", "later", "--column", "soon")
			do("boards", "edit", "plan", "--name", "roadmap")
			require.Contains(t, o.missing(t, "boards", "show", "plan", "--tenant", "acme"), "triggerd boards ls --tenant acme")

			r := o.run(t, "bots", "create", "implementer", "--bot-url", "http://127.0.0.1:9/launch", "--tenant", "acme")
			require.Zero(t, r.code, r.err)
			require.Regexp(t, `(?m)^secret +whsec_`, r.out)
			require.Contains(t, r.err, "not shown again")
			require.Contains(t, do("bots", "edit", "implementer", "--replay", "unsafe"), "unsafe")
			require.Contains(t, do("bots", "show", "implementer"), "http://127.0.0.1:9/launch", "what no flag named stays")
			require.Contains(t, do("bots", "rotate", "implementer"), "whsec_")
			require.Contains(t, o.refused(t, "bots", "rotate", "implementer", "--tenant", "acme"), "being rotated")
			require.Contains(t, do("bots", "rotate", "implementer", "--finish"), "the new secret alone")

			do("hooks", "create", "github", "--board", "issues", "--open", "open", "--closed", "done")
			do("hooks", "edit", "github", "--closed", "ready")
			require.Regexp(t, `(?m)^columns\.open +open$`, do("hooks", "show", "github"))
			require.Regexp(t, `(?m)^columns\.closed +ready$`, do("hooks", "show", "github"))
			do("projections", "create", "plan", "--from", "issues", "--to", "roadmap", "--map", "ready=soon")
			do("projections", "disable", "plan")
			require.Regexp(t, `plan +false`, do("projections", "ls"))

			sub := id("subs", "create", "ship", "--bot", "implementer", "--board", "issues", "--to", "ready", "--label", "ship-it", "--consume", "ship-it", "--disabled")
			do("subs", "edit", "ship", "--rank", "7", "--no-label", "a, b")
			require.Regexp(t, `(?m)^if\.labels_none +a, b$`, do("subs", "show", sub))
			require.Regexp(t, `(?m)^on\.to +ready$`, do("subs", "show", sub), "what no flag named stays")
			do("subs", "enable", "ship")
			do("subs", "pause", "ship", "--note", "later")
			require.Regexp(t, `ship +true .*later`, do("subs", "ls"))
			do("subs", "resume", "ship")

			card := id("cards", "create", "Fix it", "--board", "issues", "--column", "open", "--label", "bug", "--body", "a\nb")
			other := id("cards", "create", "Another", "--board", "issues", "--column", "open")
			do("cards", "label", card, "--add", "ship-it", "--remove", "bug")
			do("cards", "assign", card, "--add", "mona")
			do("cards", "comment", card, "--body", "looks good")
			require.Contains(t, do("cards", "comments", card), "looks good")
			do("cards", "edit", card, "--title", "Fixed")
			do("cards", "move", card, "--to", "ready", "--top")
			require.Contains(t, do("cards", "ls", "--board", "issues", "--column", "ready"), "Fixed")
			require.Contains(t, do("cards", "move", card, other, "--to", "done"), "changed")
			require.Contains(t, do("cards", "label", card, other, "--add", "done"), "changed")
			require.Contains(t, do("cards", "events", card), "card.moved")
			require.Contains(t, do("events", "ls"), "card.labeled")
			require.Contains(t, do("events", "show", "1"), "card.created")
			require.Contains(t, do("cards", "effects", card), "EFFECT")
			require.Contains(t, do("subs", "dry-run", "ship"), "events fire it")
			require.Contains(t, do("subs", "explain", "--card", card, "--subscription", "ship"), "ship")

			file := do("export")
			path := filepath.Join(t.TempDir(), "triggers.yaml")
			require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
			require.Contains(t, o.ok(t, "apply", "-f", path, "--check"), "nothing to change")
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(file, "rank: 7", "rank: 8", 1)), 0o600))
			r = o.run(t, "apply", "-f", path, "--check")
			require.Equal(t, exitDiffers, r.code, r.err)
			require.Contains(t, r.out, "rank: 7 → 8")
			require.Empty(t, r.err)
			require.Contains(t, o.ok(t, "apply", "-f", path), "1 updated")
			require.Contains(t, o.ok(t, "apply", "-f", path, "--check"), "nothing to change")
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(file, "bot: implementer", "bot: nobody", 1)), 0o600))
			require.Regexp(t, `triggers\.yaml:\d+: tenants\[0\]\.subscriptions\[0\]\.bot: there is no bot`, o.refused(t, "apply", "-f", path))

			do("cards", "delete", other)
			do("subs", "delete", "ship")
			do("hooks", "delete", "github")
			do("projections", "delete", "plan")
			do("bots", "delete", "implementer")
			require.Contains(t, o.refused(t, "boards", "delete", "issues", "--tenant", "acme"), "1 card")
			do("boards", "delete", "roadmap")
			require.Contains(t, o.missing(t, "subs", "show", "ship", "--tenant", "acme"), "subs ls")
		})
	}
}

// What a flag says is not dropped for another's sake, things go by their names
// wherever they are named, and what is wrong is told by the flag.
func TestFlagsOfCommands(t *testing.T) {
	t.Parallel()
	o := atServer(t, trigger.RoleEditor)
	in := func(args ...string) []string { return append(args, "--tenant", "acme") }
	o.ok(t, in("boards", "create", "work", "--column", "a", "--column", "b")...)
	o.ok(t, in("bots", "create", "fixer", "--bot-url", "http://127.0.0.1:9/")...)
	o.ok(t, in("subs", "create", "ship", "--bot", "fixer", "--board", "work", "--to", "b")...)
	card := parsed[struct{ ID string }](t, o.ok(t, in("cards", "create", "one", "--board", "work", "--column", "a", "-o", "json")...)).ID
	for says, args := range map[string][]string{
		"one of --top, --bottom":            {"cards", "reorder", card, "--top", "--bottom"},
		"one of --top, --bottom, --above":   {"cards", "move", card, "--to", "b", "--top", "--below", card},
		"say where: --top":                  {"cards", "reorder", card},
		"either --body or --body-file":      {"cards", "edit", card, "--body", "x", "--body-file", os.DevNull},
		"--bot-url: must be an absolute":    {"bots", "create", "other", "--bot-url", "ftp://x"},
		"--bot-url: is required":            {"bots", "create", "other"},
		"--bot: is required":                {"subs", "create", "other", "--board", "work", "--to", "b"},
		"--to: the board has no such":       {"cards", "move", card, "--to", "nowhere"},
		"--column: the board has no such":   {"cards", "create", "x", "--board", "work", "--column", "nowhere"},
		"--board: there is no such board":   {"cards", "create", "x", "--board", "11111111-1111-1111-1111-111111111111", "--column", "a"},
		"--name: expected string to match ": {"bots", "edit", "fixer", "--name", "Bad Name"},
	} {
		require.Contains(t, o.refused(t, in(args...)...), says)
	}
	require.Contains(t, o.ok(t, in("pause", "--bot", "fixer")...), "bot fixer of tenant acme is paused")
	o.ok(t, in("cards", "move", card, "--to", "b")...)
	require.Contains(t, o.ok(t, in("resume", "--bot", "fixer")...), "is not paused")
	for _, flag := range []string{"--bot", "--subscription"} {
		require.Contains(t, o.missing(t, in("effects", "ls", flag, "nobody")...), "there is no")
		require.Contains(t, o.missing(t, in("effects", "discard", "--all", "--state", "failed", flag, "nobody")...), "there is no")
	}
	require.Contains(t, o.ok(t, in("effects", "discard", "--all", "--state", "failed", "--bot", "fixer", "--subscription", "ship")...), "No effect of acme")
	o.ok(t, in("bots", "delete", "fixer")...)
	require.Regexp(t, `(?m)^\S+ +ship +true .*bot_id`, o.ok(t, in("subs", "ls")...))
}

// A create whose answer is lost is sent again, and makes nothing twice. What was
// in that answer alone is told of.
func TestLostAnswersMakeNothingTwice(t *testing.T) {
	t.Parallel()
	store := boardmem.New()
	require.NoError(t, store.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Name: "acme", Revision: 1}))
	api := server.NewAPI(server.APIParams{Store: store, Sealer: newSealer(t), Logger: zerolog.Nop()})
	var calls atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && calls.Add(1)%2 == 1 {
			api.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	_, text, err := server.TokenCreate(t.Context(), store, server.TokenParams{Name: "t", Role: trigger.RoleAdmin})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	o := &ops{flags: []string{"--url", srv.URL, "--token-file", file}}
	in := []string{"--tenant", "acme"}
	for _, args := range [][]string{
		{"tenants", "create", "fresh"},
		append([]string{"boards", "create", "work", "--column", "a"}, in...),
		append([]string{"cards", "create", "one", "--board", "work", "--column", "a"}, in...),
	} {
		o.ok(t, args...)
	}
	require.Len(t, parsed[[]any](t, o.ok(t, append([]string{"cards", "ls", "-o", "json"}, in...)...)), 1)
	card := parsed[[]struct{ ID string }](t, o.ok(t, append([]string{"cards", "ls", "-o", "json"}, in...)...))[0].ID
	o.ok(t, append([]string{"cards", "comment", card, "--body", "hello"}, in...)...)
	require.Len(t, parsed[[]any](t, o.ok(t, append([]string{"cards", "comments", card, "-o", "json"}, in...)...)), 1)
	r := o.run(t, append([]string{"bots", "create", "fixer", "--bot-url", "http://127.0.0.1:9/"}, in...)...)
	require.Zero(t, r.code, r.err)
	require.Regexp(t, `secret was lost: .triggerd bots rotate [0-9a-f-]{36} --tenant acme`, r.err)
	require.Regexp(t, `revoke`, o.refused(t, "tokens", "create", "x", "--role", "admin"))
}

// What a token does not allow is said, with what to do, and without the token.
func TestErrorsOfAServer(t *testing.T) {
	t.Parallel()
	viewer := atServer(t, trigger.RoleViewer)
	require.Contains(t, viewer.refused(t, "boards", "create", "x", "--column", "a", "--tenant", "acme"), "Use a token whose role allows it")
	require.Contains(t, viewer.missing(t, "boards", "ls", "--tenant", "other"), "there is no tenant other")
	answer := http.NotFound
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	t.Cleanup(srv.Close)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("trg_s3cret"), 0o600))
	o := &ops{flags: []string{"--url", srv.URL, "--token-file", file}}
	for says, f := range map[string]func(http.ResponseWriter, *http.Request){
		"is --url (TRIGGERD_URL) right": http.NotFound,
		"https://elsewhere.example, where the token is not sent": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://elsewhere.example/v1?x=y")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"Set TRIGGERD_TOKEN": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"detail":"the token is not known, expired or revoked"}`))
		},
		"Try again in 1m0s": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"detail":"the store does not answer"}`))
		},
	} {
		answer = f
		require.Contains(t, o.refused(t, "effects", "show", "acme/000000000001|x"), says)
	}
	srv.Close()
	require.Contains(t, o.refused(t, "effects", "ls", "--tenant", "acme"), "Is the server running")
	for _, url := range []string{"https://u:s3cret@h", "https://h?s3cret", "h:80", "ftp://h", "https://h/v1", "https://h/proxied/v1/"} {
		o.flags[1] = url
		require.Contains(t, o.refused(t, "effects", "ls", "--tenant", "acme"), "--url: must")
	}
}
