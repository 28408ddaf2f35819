package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestW8_UnsafeBotIsAskedOnceWhateverDies: both replicas are killed with
// requests under way to a bot that can't be sent the same twice. A third one
// sends nothing again; a person says of one launch that it came about, and has
// the other sent once more.
func TestW8_UnsafeBotIsAskedOnceWhateverDies(t *testing.T) {
	t.Parallel()
	b := newBot(t)
	store := testdb.Store(t)
	flags := []string{"--mongo-uri", testdb.URI(t), "--database", store.Database().Name()}
	env := []string{"TRIGGERD_SEAL_KEY=" + seal.NewKey(), "E2E_SECRET=" + secret}
	file := filepath.Join(t.TempDir(), "triggers.yaml")
	config := strings.Replace(fmt.Sprintf(triggers, b.URL), "secret: {env: E2E_SECRET}}\n    hooks", "replay: unsafe, secret: {env: E2E_SECRET}}\n    hooks", 1)
	require.Contains(t, config, "replay: unsafe")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	out, errOut, code := triggerd(t, env, append([]string{"apply", "-f", file}, flags...)...)
	require.Zero(t, code, errOut)
	_, rest, ok := strings.Cut(out, "POST ")
	require.True(t, ok, out)
	hook := strings.Fields(rest)[0]
	serveFlags := append([]string{"--lease", "3s", "--attempt-deadline", "2500ms", "--http-timeout", "2s"}, flags...)
	first, second := serve(t, env, "alpha", serveFlags...), serve(t, env, "beta", serveFlags...)
	status, _ := deliver(t, first.addr, hook, payloads(t)["issues.opened"], uuid.NewString())
	require.Equal(t, http.StatusAccepted, status)
	keys := []string{<-b.arrived, <-b.arrived}
	for _, r := range []*replica{first, second} {
		require.NoError(t, r.cmd.Process.Kill())
		<-r.exited
	}
	// It waits for as long as the commands below take.
	third := serve(t, env, "gamma", append([]string{"--lease", "2m", "--attempt-deadline", "110s", "--http-timeout", "100s"}, flags...)...)
	rows := func() (out []trigger.Effect) {
		rows, err := store.EffectList(t.Context(), trigger.EffectListParams{
			TenantID: "acme", EffectFilter: trigger.EffectFilter{State: trigger.StateReconcile}, Limit: 10,
		})
		require.NoError(t, err)
		return rows
	}
	eventually(t, "rows to reconcile", func() bool { return len(rows()) == 2 })
	// A row is written before it is told of.
	eventually(t, "both told of", func() bool { return strings.Count(third.logged(), "effect to be reconciled") == 2 })
	for _, key := range keys {
		require.Len(t, b.of(key), 1)
	}
	out, errOut, code = triggerd(t, env, append([]string{"effects", "ls", "--tenant", "acme", "--state", "reconcile"}, flags...)...)
	require.Zero(t, code, errOut)
	require.Contains(t, out, keys[0])

	_, errOut, code = triggerd(t, env, append([]string{"effects", "resolve", keys[0], "--confirmed", "--run-id", "run-seen"}, flags...)...)
	require.Zero(t, code, errOut)
	out, errOut, code = triggerd(t, env, append([]string{"effects", "show", keys[1]}, flags...)...)
	require.Zero(t, code, errOut)
	var shown struct {
		DeliveryStartedAt time.Time `json:"delivery_started_at"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	force := append([]string{"effects", "resolve", keys[1], "--send-again", "--delivery-started-at", shown.DeliveryStartedAt.Format(time.RFC3339Nano), "--yes"}, flags...)
	_, errOut, code = triggerd(t, env, force...)
	require.Zero(t, code, errOut)
	require.Equal(t, keys[1], <-b.arrived)
	_, errOut, code = triggerd(t, env, force...)
	require.Equal(t, 1, code, "a force that is sent twice decides once: %s", errOut)
	close(b.release)
	eventually(t, "both done", func() bool {
		for _, key := range keys {
			row, err := store.EffectGet(t.Context(), "acme", key)
			require.NoError(t, err)
			if row.State != trigger.StateDone || row.Outcome != trigger.OutcomeLaunched {
				return false
			}
		}
		return true
	})
	require.Len(t, b.of(keys[0]), 1)
	bodies := b.of(keys[1])
	require.Len(t, bodies, 2)
	require.Equal(t, bodies[0], bodies[1], "the same bytes under the same key")
}
