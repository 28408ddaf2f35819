package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDemo(t *testing.T) {
	t.Parallel()
	r := command(t, "demo")
	require.Zero(t, r.code, r.err)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	require.Equal(t, "demo: 2 effects delivered, 0 failed", lines[len(lines)-1])
	for _, says := range []string{
		"Codertocat/Hello-World#1", `"Spelling error in the README file"`, "labels [bug]",
		"delivery    issues.opened", "card        ", "event       seq 1  card.created", "owes greet-new-issues", "owes fix-bugs-once (one-shot, spends [bug])",
		"launch      implementer", "signature good", "outcome     done: launched", "duplicate", "pong", "card.unlabeled", "-[bug]",
		"EFFECT", "OUTCOME",
	} {
		require.Contains(t, r.out, says)
	}
	require.Equal(t, 2, strings.Count(r.out, "outcome     done: launched"), "each once")
	require.Equal(t, 2, strings.Count(r.out, "launch      implementer"), "none twice")
	require.Contains(t, r.err, "EMBEDDED STORE")
	require.NotContains(t, r.err, "ERR")
}

func TestDemosSideBySide(t *testing.T) {
	t.Parallel()
	for range 3 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := command(t, "demo")
			require.Zero(t, r.code)
			require.Contains(t, r.out, "demo: 2 effects delivered, 0 failed")
		})
	}
}

func TestDemoStays(t *testing.T) {
	t.Parallel()
	p := begin(t, "demo", "--stay")
	p.out.await(t, "webhooks: http://")
	out := p.out.String()
	require.Contains(t, out, "demo: 2 effects delivered, 0 failed")
	token := find(t, out, `(trg_\S+)`)
	effects := find(t, out, `(http://\S+/effects)\n`)
	status, body := ask(t, http.MethodGet, effects, nil, map[string]string{"Authorization": "Bearer " + token})
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 2, strings.Count(body, `"outcome":"launched"`))
	status, _ = ask(t, http.MethodGet, effects, nil, nil)
	require.Equal(t, http.StatusUnauthorized, status)
	p.interrupt()
	p.end(t)
	require.Zero(t, p.result(t).code)
}

func TestADemoThatCannotListen(t *testing.T) {
	t.Parallel()
	r := command(t, "demo", "--listen", "127.0.0.1:99999")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "99999")
	require.NotContains(t, r.out, "demo: ")
}

// An interrupt in the middle ends it, and it claims nothing.
func TestADemoThatIsInterrupted(t *testing.T) {
	t.Parallel()
	p := begin(t, "demo")
	p.out.await(t, "delivery    issues.opened")
	p.interrupt()
	p.end(t)
	if p.code != 0 { // else it was through
		require.Equal(t, 1, p.code)
		require.NotContains(t, p.out.String(), "demo: ")
	}
}
