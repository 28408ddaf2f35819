package server

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

var boardLine = regexp.MustCompile(`^curl -H "\$AUTH"(?: -H 'If-Match: "1"')?(?: -X ([A-Z]+))? "\$API(/[^"]*)"(?: -H "\$JSON" -d '([^']*)')?$`)

// The calls of docs/boards.md, in their order but for the deletions, are a
// story that an editor can tell.
func TestCallsOfTheBoardDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/boards.md")
	require.NoError(t, err)
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "ops")
	board, card, other := "", "", ""
	calls, deletes := 0, []string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "curl ") {
			continue
		}
		m := boardLine.FindStringSubmatch(line)
		require.NotNil(t, m, "this test can't read: %s", line)
		calls++
		fill := strings.NewReplacer("BOARD", board, "CARD", card, "OTHER", other)
		method, path, body := m[1], acme+fill.Replace(m[2]), fill.Replace(m[3])
		match := ""
		switch {
		case strings.Contains(line, "If-Match"):
			match = `"1"`
		case method == "":
			method = http.MethodGet
		case method == http.MethodDelete:
			deletes = append(deletes, path)
			continue
		}
		a := b.send(t, editor, method, path, match, body)
		require.Less(t, a.status, 300, "%s\n%s", line, a.body)
		require.NotContains(t, a.body, `"refused"`, line)
		switch {
		case method == http.MethodPost && m[2] == "/boards":
			board = as[Board](t, 201, a).ID
		case method == http.MethodPost && m[2] == "/cards":
			card = as[Card](t, 201, a).ID
			other = as[Card](t, 201, b.send(t, editor, method, path, "", `{"board_id":"`+board+`","column_id":"done","title":"Other"}`)).ID
		}
	}
	for _, path := range append(deletes[1:], acme+"/cards/"+other, deletes[0]) {
		require.Less(t, b.send(t, editor, http.MethodDelete, path, "", "").status, 300, path)
	}
	require.Greater(t, calls, 15)
}

var curlLine = regexp.MustCompile(`^curl -H "\$AUTH"(?: -X ([A-Z]+))? "\$API(/[^"]*)"(?:( -H "\$JSON")? -d '([^']*)')?$`)

// The calls of docs/ops/dead-letters.md are ones that the API answers, as an
// editor makes them.
func TestCallsOfTheOpsDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/ops/dead-letters.md")
	require.NoError(t, err)
	// Alone, curl's -d says that it sends a form.
	require.Regexp(t, `(?m)^JSON='Content-Type: application/json'$`, string(text))
	calls := 0
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "curl ") {
			continue
		}
		m := curlLine.FindStringSubmatch(line)
		require.NotNil(t, m, "this test can't read: %s", line)
		calls++
		require.Equal(t, m[4] != "", m[3] != "", "a body has its type: %s", line)
		b := setup(t)
		b.subscribe(t)
		state := trigger.StateFailed
		if strings.Contains(line, "/resolve") {
			state = trigger.StateReconcile
		}
		b.rowIn(t, 1, state, func(e *trigger.Effect) {
			if state == trigger.StateReconcile {
				e.DeliveryStartedAt = time.Date(2026, 11, 30, 9, 33, 48, 111e6, time.UTC)
			}
		})
		bulk, err := b.server.api.Dead.BulkPrepare(t.Context(), trigger.BulkParams{
			TenantID: "acme", Action: trigger.ActionReplay, Filter: trigger.EffectFilter{State: trigger.StateFailed}, By: "x",
		})
		require.NoError(t, err)
		fill := strings.NewReplacer("SUBSCRIPTION", "sub-1", "BULK", bulk.ID, "DIGEST", bulk.Digest, "BOT", botID)
		c := call{method: m[1], path: "/v1/tenants/acme" + fill.Replace(m[2]), body: fill.Replace(m[4])}
		if c.method == "" {
			c.method = http.MethodGet
		}
		a := b.write(t, b.role(t, trigger.RoleEditor, "acme", "ops"), c)
		require.Less(t, a.status, 300, "%s\n%s", line, a.body)
	}
	require.Greater(t, calls, 10)
}
