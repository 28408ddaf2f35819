package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tour of README.md, by curl and by the command line, against a server.
func TestTour(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	tours := strings.Split(string(readme), "<!-- tour: run by a test -->\n```sh\n")[1:]
	require.Len(t, tours, 2)
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "triggerd"), ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("ab", 32)), 0o600))
	p := begin(t, "serve", "--listen", "127.0.0.1:0", "--seal-key-file", key)
	p.out.await(t, "admin token")
	p.err.await(t, `"ready"`)
	addr := regexp.MustCompile(`"listen":"([^"]+)"`).FindStringSubmatch(p.err.String())
	require.NotNil(t, addr)
	token := regexp.MustCompile(`trg_\S+`).FindString(p.out.String())
	for _, tour := range tours {
		script, _, _ := strings.Cut(tour, "```")
		require.LessOrEqual(t, strings.Count(script, "\n"), 10)
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TRIGGERD_URL=http://"+addr[1], "TRIGGERD_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "card.moved")
	}
	p.interrupt()
	p.end(t)
	require.Zero(t, p.code)
}
