package main

import (
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// words splits a line of a shell that knows single quotes alone.
func words(line string) (out []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

// The commands of docs/ops/dead-letters.md are ones that there are.
func TestCommandsOfTheOpsDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/ops/dead-letters.md")
	require.NoError(t, err)
	seen := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "triggerd ")
		if !ok || strings.Contains(args, "…") {
			continue
		}
		var c cli
		parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
		require.NoError(t, err)
		ctx, err := parser.Parse(append(words(args), "--mongo-uri", nobody))
		require.NoError(t, err, line)
		seen[ctx.Command()] = true
		if check, ok := ctx.Selected().Target.Addr().Interface().(interface{ checkAct() error }); ok {
			require.NoError(t, check.checkAct(), line)
		}
	}
	for _, command := range []string{
		"effects ls", "effects show <id>", "effects replay <id>", "effects rerun <id>", "effects discard <id>", "effects release <id>",
		"effects resolve <id>", "effects replay", "pause", "resume", "pauses", "subs ls", "subs pause <id>", "subs resume <id>",
	} {
		require.True(t, seen[command], "%s is not told of: %v", command, seen)
	}
}

// README.md names each command and docs/configuration.md or docs/cli.md each flag, with its
// variable where it has one.
func TestDocsHaveEachCommandAndFlag(t *testing.T) {
	t.Parallel()
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		require.NoError(t, err)
		return string(text)
	}
	readme, conf := read("README.md"), read("docs/configuration.md")+read("docs/cli.md")
	_, table, _ := strings.Cut(readme, "## Commands\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var c cli
	parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
	require.NoError(t, err)
	for _, leaf := range parser.Model.Leaves(true) {
		row := "`triggerd "
		if leaf.Parent.Type == kong.CommandNode {
			row += leaf.Parent.Name
		}
		row = "(?m)^\\| " + row + "[^|]*\\b" + leaf.Name + "\\b"
		require.Regexp(t, row, table, "README.md does not name %s", leaf.Path())
		for _, flag := range leaf.Flags {
			require.Contains(t, conf, "--"+flag.Name, leaf.Path())
			for _, env := range flag.Envs {
				require.Contains(t, conf, "`"+env+"`", "the variable of --%s, %s", flag.Name, leaf.Path())
			}
		}
	}
	for _, kind := range tracker.Kinds() {
		require.Contains(t, read("docs/triggers-yaml.md"), "`"+string(kind)+"`")
	}
}
