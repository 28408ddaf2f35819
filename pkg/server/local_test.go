package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestAPIWithoutAServer: a command that has the database needs neither a
// replica nor a token.
func TestAPIWithoutAServer(t *testing.T) {
	t.Parallel()
	store := boardmem.New()
	require.NoError(t, store.TenantSave(t.Context(), &trigger.Tenant{ID: "acme", Revision: 1}))
	get := func(api *API) int {
		w := httptest.NewRecorder()
		api.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/tenants/acme", nil))
		return w.Code
	}
	p := APIParams{Store: store, Logger: zerolog.Nop()}
	require.Equal(t, http.StatusUnauthorized, get(NewAPI(p)))
	p.As = &trigger.Token{Name: "cli", Role: trigger.RoleAdmin}
	require.Equal(t, http.StatusOK, get(NewAPI(p)))
}
