package main

import (
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
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
