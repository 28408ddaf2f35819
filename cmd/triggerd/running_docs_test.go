package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// The commands of the documents on running it are ones that there are.
func TestCommandsOfTheRunningDocs(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, name := range []string{"docs/ops/upgrade.md", "docs/ops/backup-and-restore.md", "docs/ops/sizing.md"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "triggerd ")
			if !ok {
				continue
			}
			seen++
			var c cli
			parser, err := kong.New(&c, kong.Name("triggerd"), kong.DefaultEnvars("TRIGGERD"))
			require.NoError(t, err)
			_, err = parser.Parse(append(words(args), "--mongo-uri", nobody))
			require.NoError(t, err, "%s: %s", name, line)
		}
	}
	require.Greater(t, seen, 10)
}

// What the documents link to within the repository is there.
func TestLinksOfTheRunningDocs(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md", "docs/configuration.md", "docs/ops/upgrade.md", "docs/ops/backup-and-restore.md", "docs/ops/sizing.md"} {
		text, err := os.ReadFile("../../" + name)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join("../..", filepath.Dir(name), m[1]))
			require.NoError(t, err, name)
		}
	}
}
