package server

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// A resume releases what is held, or discards it if it is told to; another word
// does neither.
func TestResumeReleasesOrDiscards(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]trigger.State{
		"": trigger.StatePending, "{}": trigger.StatePending, `{"held":"release"}`: trigger.StatePending,
		`{"held":"discard"}`: trigger.StateDiscarded, `{"held":"both"}`: trigger.StateHeld,
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.subscribe(t)
			_, err := b.server.api.Dead.SubscriptionPause(t.Context(), "acme", "sub-1", "x", "")
			require.NoError(t, err)
			row := b.rowIn(t, 1, trigger.StateHeld)
			a := b.write(t, b.role(t, trigger.RoleEditor, "acme", "ops"), call{
				method: http.MethodPost, path: "/v1/tenants/acme/subscriptions/sub-1/resume", body: body,
			})
			got, err := b.mem.EffectGet(t.Context(), "acme", row)
			require.NoError(t, err)
			require.Equal(t, want, got.State)
			if want == trigger.StateHeld {
				require.Equal(t, http.StatusUnprocessableEntity, a.status, a.body)
				return
			}
			require.Equal(t, http.StatusOK, a.status, a.body)
			var out SubscriptionPause
			require.NoError(t, json.Unmarshal([]byte(a.body), &out))
			require.False(t, out.Paused)
			require.Equal(t, want == trigger.StateDiscarded, out.Discarded == 1)
			require.Equal(t, want == trigger.StatePending, out.Released == 1)
		})
	}
}
