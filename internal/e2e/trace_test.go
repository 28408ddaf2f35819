package e2e_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/internal/otlptest"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// A delivery's trace goes through the database to the bot, and with a stop at
// the latest to the collector that the environment names.
func TestTraceThroughTheDatabase(t *testing.T) {
	t.Parallel()
	const callers = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
	got := make(chan *http.Request, 10)
	bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r }))
	t.Cleanup(bot.Close)
	collector := otlptest.New(t)
	flags, env, hook, store := configured(t, bot.URL+"/"+secretPath)
	env = append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_SERVICE_NAME=boards",
		"OTEL_BSP_SCHEDULE_DELAY=600000") // nothing is sent before the stop
	r := serve(t, env, "alpha", flags...)
	p := payloads(t)["issues.opened"]
	req := request(t, r.addr, hook, p, uuid.NewString(), bytes.NewReader(p.Body))
	req.Header.Set("Traceparent", "00-"+callers+"-01")
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusAccepted, resp.StatusCode)

	handed := make(map[string]string) // by effect
	for range 2 {
		r := <-got
		handed[r.Header.Get("Idempotency-Key")] = r.Header.Get("Traceparent")
	}
	var rows []trigger.Effect
	eventually(t, "both effects to be done", func() bool {
		rows, err = store.EffectList(t.Context(), trigger.EffectListParams{
			TenantID: "acme", EffectFilter: trigger.EffectFilter{State: trigger.StateDone}, Limit: 10,
		})
		require.NoError(t, err)
		return len(rows) == 2
	})
	require.Empty(t, collector.Spans(""))
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-r.exited:
	case <-time.After(time.Minute):
		require.Fail(t, "SIGTERM does not end the replica")
	}
	calls, launches := collector.Spans("POST /v1/tenants/{tenant}/hooks/{hook}"), collector.Spans("launch")
	require.Len(t, calls, 1)
	require.Equal(t, callers, calls[0].Parent())
	require.Equal(t, "boards", calls[0].Resource["service.name"])
	require.Equal(t, "alpha", calls[0].Resource["service.instance.id"])
	require.Len(t, launches, 2)
	for _, span := range launches {
		require.Equal(t, calls[0].Self(), span.Parent())
		require.Equal(t, []string{calls[0].Self()}, span.Links())
		require.Equal(t, "00-"+span.Self()+"-01", handed[span.Attributes()["triggerd.effect"]])
		require.NotContains(t, span.Text, secretPath)
	}
	// The event and what the one-shot's effect did are in the trace, in the
	// store; and so are the rows.
	events, err := store.EventList(t.Context(), "acme", 0, 100)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(events), 2)
	for _, e := range events {
		if e.Source == trigger.SourceVoid {
			continue
		}
		require.Equal(t, "00-"+calls[0].Self()+"-01", e.TraceParent, e.Kind)
	}
	for _, row := range rows {
		full, err := store.EffectGet(t.Context(), "acme", row.ID)
		require.NoError(t, err)
		require.Equal(t, "00-"+calls[0].Self()+"-01", full.Event.TraceParent)
	}
	require.NotContains(t, r.logged(), secretPath)
}

// secretPath is a part of a bot's URL that nobody is told.
const secretPath = "s3cret-path"
