package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// A healthy replica says at Info that it starts and that it stops, however much
// it does in between.
func TestQuietAtInfo(t *testing.T) {
	t.Parallel()
	b := build(t, func(b *bundle, p *Params) { p.Logger = p.Logger.Level(zerolog.InfoLevel) })
	b.subscribe(t)
	require.NoError(t, b.server.Start(t.Context()))
	b.url = "http://" + b.server.Addr()
	token := b.token(t, "")
	const effects = 60
	for i := range effects {
		a := b.send(t, token, http.MethodPost, "/v1/tenants/acme/cards", "", fmt.Sprintf(`{"board_id":"board-1","column_id":"todo","title":"card %d"}`, i))
		require.Equal(t, http.StatusCreated, a.status, a.body)
	}
	require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	for range effects + 1 {
		recv(t, b.launched)
		recv(t, b.settled)
	}
	for _, path := range []string{"/readyz", "/healthz", "/metrics", "/v1/tenants/acme/cards", "/v1/tenants/acme/effects"} {
		require.Equal(t, http.StatusOK, b.get(t, token, path).status, path)
	}
	b.server.Stop()
	var said []string
	for line := range strings.Lines(b.logs.String()) {
		var l struct{ Level, Message string }
		require.NoError(t, json.Unmarshal([]byte(line), &l), line)
		said = append(said, l.Level+" "+l.Message)
	}
	require.Equal(t, []string{"info ready", "info stopped"}, said)
}
