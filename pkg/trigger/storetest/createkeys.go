package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func accessTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestCreateKeys":                      testCreateKeys,
		"TestCreateKeys_OneOfManyAtOnceIsNew": testCreateKeysAtOnce,
	}
}

func (b *bundle) createKey(tenantID, id, resource string) trigger.CreateKey {
	return trigger.CreateKey{TenantID: tenantID, ID: id, Fingerprint: "f-" + resource, ResourceID: resource, CreatedAt: b.real.Now()}
}

func testCreateKeys(t *testing.T, b *bundle) {
	ctx := t.Context()
	first, again, err := b.real.CreateKeyReserve(ctx, b.createKey(tenant, "k", "r1"))
	require.NoError(t, err)
	require.False(t, again)
	require.Equal(t, "r1", first.ResourceID)

	t.Log("the same key stands for what it stood for")
	have, again, err := b.real.CreateKeyReserve(ctx, b.createKey(tenant, "k", "r2"))
	require.NoError(t, err)
	require.True(t, again)
	require.Equal(t, "r1", have.ResourceID)
	require.Equal(t, "f-r1", have.Fingerprint)
	require.Equal(t, 2, have.Uses)

	t.Log("one that was used again is not released")
	require.NoError(t, b.real.CreateKeyRelease(ctx, *first))
	_, again, err = b.real.CreateKeyReserve(ctx, b.createKey(tenant, "k", "r3"))
	require.NoError(t, err)
	require.True(t, again)

	t.Log("another tenant's is another")
	other, again, err := b.real.CreateKeyReserve(ctx, b.createKey("other", "k", "r4"))
	require.NoError(t, err)
	require.False(t, again)

	t.Log("one that nobody else used is, by who reserved it")
	stale := *other
	stale.ResourceID = "r5"
	require.NoError(t, b.real.CreateKeyRelease(ctx, stale))
	require.NoError(t, b.real.CreateKeyRelease(ctx, b.createKey("third", "k", "r6")), "none is no error")
	require.NoError(t, b.real.CreateKeyRelease(ctx, *other))
	fresh, again, err := b.real.CreateKeyReserve(ctx, b.createKey("other", "k", "r7"))
	require.NoError(t, err)
	require.False(t, again)
	require.Equal(t, "r7", fresh.ResourceID)
}

func testCreateKeysAtOnce(t *testing.T, b *bundle) {
	const n = 8
	got := make([]*trigger.CreateKey, n)
	news := make([]bool, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			have, again, err := b.real.CreateKeyReserve(t.Context(), b.createKey(tenant, "k", fmt.Sprintf("r%d", i)))
			if assert.NoError(t, err) {
				got[i], news[i] = have, !again
			}
		})
	}
	wg.Wait()
	count := 0
	for i := range n {
		require.Equal(t, got[0].ResourceID, got[i].ResourceID)
		if news[i] {
			count++
			require.Equal(t, fmt.Sprintf("r%d", i), got[i].ResourceID)
		}
	}
	require.Equal(t, 1, count)
}
