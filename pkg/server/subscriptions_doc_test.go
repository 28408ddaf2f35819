package server

import (
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

var storyLine = regexp.MustCompile(`^curl -H "\$AUTH"(?: -X ([A-Z]+))?(?: -H 'If-Match: ([^']+)')? "\$API(/[^"]*)"(?:( -H "\$JSON")? -d '([^']*)')?$`)

// The calls of docs/subscriptions.md, in their order, are a story that the API
// plays.
func TestCallsOfTheSubscriptionsDoc(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/subscriptions.md")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^JSON='Content-Type: application/json'$`, string(text))
	b := setup(t)
	b.board(t, "board-2", "next")
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	sub, calls := "", 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "curl ") {
			continue
		}
		m := storyLine.FindStringSubmatch(line)
		require.NotNil(t, m, "this test can't read: %s", line)
		require.Equal(t, m[5] != "", m[4] != "", "a body has its type: %s", line)
		calls++
		fill := strings.NewReplacer("SUBSCRIPTION", sub, "BOARD", "board-1", "OTHER", "board-2", "BOT", botID, "HOOK", hookID)
		method := m[1]
		if method == "" {
			method = http.MethodGet
		}
		a := b.ask(t, editor, method, "acme"+fill.Replace(m[3]), fill.Replace(m[5]), m[2])
		require.Less(t, a.status, 300, "%s\n%s", line, a.body)
		if method == http.MethodPost && m[3] == "/subscriptions" {
			var made Subscription
			require.NoError(t, json.Unmarshal([]byte(a.body), &made))
			sub = made.ID
		}
	}
	require.Greater(t, calls, 18)
}
