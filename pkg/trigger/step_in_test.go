package trigger_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// hookedHeads tells what a tail asks of its heads.
type hookedHeads struct {
	*boardmem.Store
	mu      sync.Mutex
	got     []string
	advance func() // before each HeadAdvance
	found   func() // after each HeadsDirty
}

func (h *hookedHeads) HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error) {
	h.mu.Lock()
	h.got = append(h.got, tenantID)
	h.mu.Unlock()
	return h.Store.HeadGet(ctx, tenantID)
}

func (h *hookedHeads) HeadsDirty(ctx context.Context, now time.Time, limit int) ([]trigger.DirtyTenant, error) {
	dirty, err := h.Store.HeadsDirty(ctx, now, limit)
	if h.found != nil {
		h.found()
	}
	return dirty, err
}

func (h *hookedHeads) HeadAdvance(ctx context.Context, tenantID string, from, to int64) (bool, error) {
	if h.advance != nil {
		h.advance()
	}
	return h.Store.HeadAdvance(ctx, tenantID, from, to)
}

func tailOf(store *boardmem.Store, heads trigger.Heads) *trigger.Tail {
	return &trigger.Tail{
		Cards: store, Log: store, Heads: heads, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store,
		Logger: zerolog.Nop(),
	}
}

// logged writes n voids into a tenant's log: they have to be drained like any
// event.
func logged(t *testing.T, store *boardmem.Store, tenant string, n int) {
	t.Helper()
	_, err := store.HeadLift(t.Context(), tenant)
	require.NoError(t, err)
	first, err := store.SeqAllocate(t.Context(), tenant, n, false)
	require.NoError(t, err)
	var seqs []int64
	for i := range n {
		seqs = append(seqs, first+int64(i))
	}
	require.NoError(t, store.EventFillVoids(t.Context(), tenant, seqs))
}

func cursor(t *testing.T, store *boardmem.Store, tenant string) int64 {
	t.Helper()
	head, err := store.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	return head.Cursor
}

// TestT6_WhoLosesTheCursorLeavesTheRest lets another replica do the same batch
// a moment earlier: it goes on with the rest, and this one does not.
func TestT6_WhoLosesTheCursorLeavesTheRest(t *testing.T) {
	t.Parallel()
	store := boardmem.New()
	logged(t, store, "acme", 3)
	heads := &hookedHeads{Store: store}
	tail := tailOf(store, heads)
	tail.Batch = 1
	d, err := tail.Drain(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, trigger.Drained{Moved: true, More: true}, d)
	heads.advance = func() {
		_, err := store.HeadAdvance(t.Context(), "acme", 1, 2)
		require.NoError(t, err)
	}
	d, err = tail.Drain(t.Context(), "acme")
	require.NoError(t, err)
	require.Equal(t, trigger.Drained{Moved: true}, d)
	require.EqualValues(t, 2, cursor(t, store, "acme"))
}

// TestT6_StepsInLastAndOnlyWhereNobodyCame has a tail find tenants that prefer
// it, and such that prefer another replica and have waited long: it drains its
// own first; and of the others, none that the other replica has come to since
// they were found.
func TestT6_StepsInLastAndOnlyWhereNobodyCame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := boardmem.New()
		for _, tenant := range []string{"a-theirs", "b-theirs-served", "c-mine", "d-mine"} {
			logged(t, store, tenant, 2)
		}
		time.Sleep(time.Minute)
		heads := &hookedHeads{Store: store}
		tail := tailOf(store, heads)
		tail.Parallel = 1
		tail.Prefers = func(tenant string) bool { return tenant == "c-mine" || tenant == "d-mine" }
		heads.found = sync.OnceFunc(func() {
			_, err := store.HeadAdvance(t.Context(), "b-theirs-served", 0, 1)
			require.NoError(t, err)
		})
		require.NoError(t, tail.Start(t.Context()))
		time.Sleep(time.Second)
		require.EqualValues(t, 2, cursor(t, store, "a-theirs"), "nobody came")
		require.EqualValues(t, 1, cursor(t, store, "b-theirs-served"), "the other replica goes on by itself")
		heads.mu.Lock()
		require.ElementsMatch(t, []string{"c-mine", "d-mine"}, heads.got[:2], "its own first")
		heads.mu.Unlock()
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 2, cursor(t, store, "b-theirs-served"), "it did not")
		tail.Stop()
	})
}
