package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const goodTriggers = `tenants:
  - id: acme
    boards:
      - name: issues
        columns: [{id: open}, {id: done}]
    bots:
      - name: implementer
        url: http://127.0.0.1:9/launch
        secret: {file: secrets/bot}
    hooks:
      - name: github
        provider: github
        board: issues
        columns: {open: open, closed: done}
        secret: {file: ./secrets/../secrets/hook}
    subscriptions:
      - name: greet
        on: {kinds: [card.created], board: issues}
        bot: implementer
`

// The texts of the secrets beside the file.
const (
	fileBotSecret  = "s3cret-of-the-bot-0123456789"
	fileHookSecret = "s3cret-of-the-hook-0123456789"
)

// writeTriggers writes a triggers.yaml, with its secrets beside it, and
// returns its path.
func writeTriggers(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "secrets"), 0o700))
	for name, text := range map[string]string{
		"triggers.yaml": text, "secrets/bot": fileBotSecret + "\n", "secrets/hook": fileHookSecret + "\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "triggers.yaml")
}

func edit(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, from), "%q must stand in the file once", from)
	return strings.Replace(text, from, to, 1)
}

func newSealer(t *testing.T) *seal.Sealer {
	t.Helper()
	key, err := seal.ParseKey(seal.NewKey())
	require.NoError(t, err)
	sealer, err := seal.New(key)
	require.NoError(t, err)
	return sealer
}

// applied applies a file to a store and returns what was shown.
func applied(t *testing.T, path string, store trigger.Store, sealer trigger.Sealer, dryRun bool) (string, error) {
	t.Helper()
	out := newOutput()
	file, err := readTriggers(path)
	if err == nil {
		err = file.apply(t.Context(), store, sealer, dryRun, streams{out, out})
	}
	require.NotContains(t, out.String(), "s3cret")
	if err != nil {
		require.NotContains(t, err.Error(), "s3cret")
	}
	return out.String(), err
}

// What is wrong with the file is said without a database: neither apply nor
// serve asks one first.
func TestAFileWithATypo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ from, to, says string }{
		"a field":            {"provider: github", "provder: github", `:12: tenants[0].hooks[0].provder: unknown field (allowed: `},
		"a missing field":    {"url: http://127.0.0.1:9/launch", "replay: safe", `:7: tenants[0].bots[0].url: is required`},
		"a nested one":       {"kinds: [card.created]", "kind: [card.created]", `:18: tenants[0].subscriptions[0].on.kind: unknown field`},
		"a value":            {"provider: github", "provider: gitlab", `:12: tenants[0].hooks[0].provider: must be github`},
		"a secret's text":    {"{file: secrets/bot}", "s3cret", `:9: tenants[0].bots[0].secret: a secret's text does not belong in this file`},
		"no YAML":            {"tenants:", "tenants: [", `not YAML`},
		"a name taken twice": {"[{id: open}, {id: done}]", "[{id: open}, {id: open}]", `:5: tenants[0].boards[0].columns[1].id: `},
	} {
		file := writeTriggers(t, edit(t, goodTriggers, c.from, c.to))
		for _, args := range [][]string{{"apply", "-f", file}, {"apply", "--dry-run", "--file", file}, {"serve", "--apply", file}} {
			r := command(t, append(args, "--mongo-uri", nobody)...)
			require.Equal(t, 1, r.code, name)
			require.Empty(t, r.out, name)
			require.Contains(t, r.err, file+":", name)
			require.Contains(t, r.err, c.says, name)
			require.NotContains(t, r.err, "MongoDB", name)
		}
	}
}

// Paths in the file are relative to its folder, wherever the command runs.
func TestPathsOfSecrets(t *testing.T) {
	t.Parallel()
	absolute := filepath.Join(t.TempDir(), "bot")
	require.NoError(t, os.WriteFile(absolute, []byte("s3cret-elsewhere-0123456789"), 0o600))
	cwd, err := os.Getwd()
	require.NoError(t, err)
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"beside the file": {goodTriggers, fileBotSecret},
		"absolute":        {edit(t, goodTriggers, "{file: secrets/bot}", "{file: "+absolute+"}"), "s3cret-elsewhere-0123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := writeTriggers(t, c.text)
			relative, err := filepath.Rel(cwd, file)
			require.NoError(t, err)
			for _, path := range []string{file, relative} {
				store, sealer := boardmem.New(), newSealer(t)
				_, err := applied(t, path, store, sealer, false)
				require.NoError(t, err)
				bots, err := store.BotList(t.Context(), "acme")
				require.NoError(t, err)
				require.Len(t, bots, 1)
				got, err := sealer.Open(trigger.BotOwner("acme", bots[0].ID), bots[0].Secret)
				require.NoError(t, err)
				require.Equal(t, c.want, string(got))
				hooks, err := store.HookList(t.Context(), "acme")
				require.NoError(t, err)
				got, err = sealer.Open(trigger.HookOwner("acme", hooks[0].ID), hooks[0].Secret)
				require.NoError(t, err)
				require.Equal(t, fileHookSecret, string(got))
			}
		})
	}
}

func TestApplyShowsWhatItChanges(t *testing.T) {
	t.Parallel()
	store, sealer := boardmem.New(), newSealer(t)
	file := writeTriggers(t, goodTriggers)
	out, err := applied(t, file, store, sealer, true)
	require.NoError(t, err)
	require.Contains(t, out, "dry run, nothing was written: 5 to create")
	_, err = store.TenantGet(t.Context(), "acme")
	require.Error(t, err)

	out, err = applied(t, file, store, sealer, false)
	require.NoError(t, err)
	for _, line := range []string{"+ tenant acme", "+ board issues", "+ bot implementer", "+ hook github", "+ subscription greet", "5 created, 0 updated, 0 unchanged"} {
		require.Contains(t, out, line)
	}
	hooks, err := store.HookList(t.Context(), "acme")
	require.NoError(t, err)
	require.Contains(t, out, "POST /v1/tenants/acme/hooks/"+hooks[0].ID)

	out, err = applied(t, file, store, sealer, false)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(out, "nothing to change"), "said once:\n%s", out)

	require.NoError(t, os.WriteFile(file, []byte(edit(t, goodTriggers, "9/launch", "9/run")), 0o600))
	out, err = applied(t, file, store, sealer, false)
	require.NoError(t, err)
	require.Contains(t, out, "~ bot implementer")
	require.Contains(t, out, "0 created, 1 updated, 4 unchanged")
}

// A file that is refused has changed nothing, and nothing else is said.
func TestARefusedFile(t *testing.T) {
	t.Parallel()
	store := boardmem.New()
	for name, c := range map[string]struct {
		from, to string
		sealer   trigger.Sealer
		says     []string
	}{
		"no such secret file": {"secrets/bot", "secrets/none", newSealer(t), []string{":9: tenants[0].bots[0].secret.file", "no such file"}},
		"no such variable":    {"{file: secrets/bot}", "{env: TRIGGERD_TEST_UNSET}", newSealer(t), []string{":9: tenants[0].bots[0].secret.env", "not set"}},
		"no such board":       {"board: issues\n        columns", "board: isues\n        columns", newSealer(t), []string{"tenants[0].hooks[0].board"}},
		"no seal key":         {"name: greet", "name: greet2", seal.Missing{}, []string{"TRIGGERD_SEAL_KEY", "openssl rand"}},
	} {
		file := writeTriggers(t, edit(t, goodTriggers, c.from, c.to))
		out, err := applied(t, file, store, c.sealer, false)
		require.Error(t, err, name)
		require.Empty(t, out, name)
		for _, s := range c.says {
			require.ErrorContains(t, err, s, name)
		}
		_, err = store.TenantGet(t.Context(), "acme")
		require.Error(t, err, name)
	}
}
