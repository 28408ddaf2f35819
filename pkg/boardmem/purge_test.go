package boardmem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// The comments beside a tenant's cards go with them.
func TestPurgeTakesComments(t *testing.T) {
	t.Parallel()
	s := New()
	for _, tenant := range []string{"acme", "acme-2"} {
		require.NoError(t, s.CardWrite(t.Context(), tracker.CardWrite{
			Next: &tracker.Card{TenantID: tenant, ID: "c1", Incarnation: "i", Rev: 1}, Comment: &tracker.Comment{ID: "x", Body: "text"},
		}))
	}
	n, err := s.TenantPurge(t.Context(), "acme", trigger.PartCards, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, s.comments, 1)
	require.Contains(t, s.comments, key{"acme-2", "c1"})
}
