package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func (f *faultStore) CreateKeyReserve(ctx context.Context, k trigger.CreateKey) (have *trigger.CreateKey, again bool, err error) {
	err = f.call(ctx, "CreateKeyReserve", func() error {
		have, again, err = f.Store.CreateKeyReserve(ctx, k)
		return err
	})
	return have, again, err
}

const bulkPath = "/v1/tenants/acme/effects/bulk"

func bulkBody(state string) string { return `{"action":"discard","filter":{"state":"` + state + `"}}` }

// keyed sends a create with Idempotency-Keys.
func (b *bundle) keyed(t *testing.T, token, path, body string, keys ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header[idempotencyHeader] = keys
	return b.do(t, req)
}

func (a answer) id(t *testing.T) string {
	t.Helper()
	require.Equal(t, http.StatusCreated, a.status, a.body)
	var made struct {
		ID string `json:"id"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &made))
	require.True(t, strings.HasSuffix(a.header.Get("Location"), "/"+made.ID), a.header)
	return made.ID
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor, second := b.role(t, trigger.RoleEditor, "acme", "one"), b.role(t, trigger.RoleEditor, "acme", "two")
	first := b.keyed(t, editor, bulkPath, bulkBody("held"), "key-1")
	id := first.id(t)

	t.Log("the same call again is the same thing")
	require.Equal(t, first.body, b.keyed(t, editor, bulkPath, bulkBody("held"), "key-1").body)

	t.Log("another key, another caller and none make others")
	ids := map[string]bool{id: true}
	for _, a := range []answer{
		b.keyed(t, editor, bulkPath, bulkBody("held"), "key-2"), b.keyed(t, second, bulkPath, bulkBody("held"), "key-1"),
		b.keyed(t, editor, bulkPath, bulkBody("held")), b.keyed(t, editor, bulkPath, bulkBody("held")),
	} {
		require.False(t, ids[a.id(t)])
		ids[a.id(t)] = true
	}

	t.Log("the same key for another call is refused")
	for _, c := range [][2]string{{bulkPath, bulkBody("failed")}, {bulkPath, bulkBody("held") + " "}} {
		a := b.keyed(t, editor, c[0], c[1], "key-1")
		require.Equal(t, http.StatusUnprocessableEntity, a.status, c)
		require.Equal(t, "header."+idempotencyHeader, a.problem(t).Errors[0].Field)
	}

	t.Log("what was refused may come again under its key, mended")
	for _, bad := range []string{`{"action":"s3cret","filter":{"state":"held"}}`, `{"action":"discard"}`} {
		require.Equal(t, http.StatusUnprocessableEntity, b.keyed(t, editor, bulkPath, bad, "key-3").status)
	}
	mended := b.keyed(t, editor, bulkPath, bulkBody("held"), "key-3").id(t)
	require.Equal(t, mended, b.keyed(t, editor, bulkPath, bulkBody("held"), "key-3").id(t))
}

func TestIdempotencyKeyForm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "one")
	for _, keys := range [][]string{{""}, {"s3cret x"}, {"schlüssel"}, {strings.Repeat("x", 256)}, {"a", "b"}, {"a", "a"}} {
		a := b.keyed(t, editor, bulkPath, bulkBody("held"), keys...)
		require.Equal(t, http.StatusUnprocessableEntity, a.status, "%q", keys)
		require.Equal(t, "header."+idempotencyHeader, a.problem(t).Errors[0].Field)
	}
	b.keyed(t, editor, bulkPath, bulkBody("held"), strings.Repeat("~", 255)).id(t)
}

// However the first call ended, the second makes what the first one did not.
func TestIdempotencyKeyAfterACrash(t *testing.T) {
	t.Parallel()
	for name, break1 := range map[string]func(*bundle){
		"before the reservation":            func(b *bundle) { b.store.fail("CreateKeyReserve") },
		"the reservation's answer was lost": func(b *bundle) { b.store.lose("CreateKeyReserve") },
		"between reserve and create":        func(b *bundle) { b.store.fail("BulkCreate") },
		"the create's answer was lost":      func(b *bundle) { b.store.lose("BulkCreate") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			editor := b.role(t, trigger.RoleEditor, "acme", "one")
			var made []string
			break1(b)
			a := b.keyed(t, editor, bulkPath, bulkBody("held"), "key-1")
			require.Equal(t, http.StatusServiceUnavailable, a.status)
			require.Equal(t, retryAfter, a.header.Get("Retry-After"))
			b.store.heal()
			for range 3 {
				made = append(made, b.keyed(t, editor, bulkPath, bulkBody("held"), "key-1").id(t))
			}
			require.Equal(t, []string{made[0], made[0], made[0]}, made)
			require.EqualValues(t, 1, b.store.bulks.Load(), "one was made in all")
		})
	}
}

func TestIdempotencyKeyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "one")
	const n = 8
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { answers[i] = b.keyed(t, editor, bulkPath, bulkBody("held"), "key-1") })
	}
	wg.Wait()
	for _, a := range answers {
		require.Equal(t, answers[0].id(t), a.id(t))
	}
	require.EqualValues(t, 1, b.store.bulks.Load())
}
