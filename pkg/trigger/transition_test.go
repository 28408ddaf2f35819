package trigger_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

var diagramLine = regexp.MustCompile(`^(\S+) --> (\S+): (.+)$`)

// The diagram of docs/state-machine.md and the code have the same transitions.
func TestStateMachineIsAsDrawn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/state-machine.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "```mermaid\nstateDiagram-v2\n")
	require.True(t, ok)
	diagram, _, ok := strings.Cut(rest, "```")
	require.True(t, ok)
	require.NotContains(t, rest[len(diagram)+3:], "```mermaid", "one diagram has it all")
	var drawn []trigger.Transition
	for line := range strings.Lines(diagram) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		m := diagramLine.FindStringSubmatch(line)
		require.NotNil(t, m, "no transition: %q", line)
		if m[1] == "[*]" {
			m[1] = ""
		}
		drawn = append(drawn, trigger.Transition{From: trigger.State(m[1]), To: trigger.State(m[2]), By: m[3]})
	}
	require.ElementsMatch(t, trigger.Transitions(), drawn)

	// States and actions are told of in the tables.
	for _, state := range trigger.States() {
		require.Contains(t, string(text), "\n| `"+string(state)+"` |")
	}
	for _, action := range trigger.Actions() {
		var from, to []string
		for _, tr := range trigger.Transitions() {
			if tr.By == string(action) {
				from = append(from, "`"+string(tr.From)+"`")
				to = append(to, "`"+string(tr.To)+"`")
			}
		}
		require.NotEmpty(t, from, action)
		require.Contains(t, string(text), "\n| `"+string(action)+"` | "+strings.Join(from, ", ")+" | "+strings.Join(slices.Compact(to), ", ")+" |")
	}
}
