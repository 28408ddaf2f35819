package storetest

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func auditTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){"TestAudit": testAudit, "TestAudit_Pages": testAuditPages}
}

func auditEntry(tenantID string, at time.Time) trigger.AuditEntry {
	return trigger.AuditEntry{
		TenantID: tenantID, ID: trigger.AuditID(at), At: at, TokenID: "t1", TokenName: "mona", Role: trigger.RoleEditor, Address: "192.0.2.1",
		Operation: "replay-effect", Method: "POST", Path: "/x", AuditEnd: trigger.AuditEnd{Outcome: trigger.AuditBegun},
	}
}

// testAudit: an entry is there as it was made, and as it was completed; of its
// own tenant alone.
func testAudit(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	e := auditEntry(tenant, now)
	require.NoError(t, b.real.AuditBegin(ctx, e))
	require.ErrorIs(t, b.real.AuditBegin(ctx, e), tracker.ErrConflict)
	got, err := b.real.AuditList(ctx, tenant, "", 10)
	require.NoError(t, err)
	require.Equal(t, []trigger.AuditEntry{e}, got)

	end := trigger.AuditEnd{
		Outcome: trigger.AuditDone, Status: 200, EndedAt: now.Add(time.Second), Truncated: true,
		Changes: []trigger.Change{{Kind: "card", ID: "c1", Before: `{"$a.b":9007199254740993}`, After: `{}`}, {Kind: "card", ID: "c2"}},
	}
	require.ErrorIs(t, b.real.AuditComplete(ctx, "other", e.ID, end), tracker.ErrNotFound)
	require.ErrorIs(t, b.real.AuditComplete(ctx, "", e.ID, end), tracker.ErrNotFound)
	require.NoError(t, b.real.AuditComplete(ctx, tenant, e.ID, end))
	e.AuditEnd = end
	got, err = b.real.AuditList(ctx, tenant, "", 10)
	require.NoError(t, err)
	require.Equal(t, []trigger.AuditEntry{e}, got)
	for _, of := range []string{"", "other", "acm"} {
		got, err = b.real.AuditList(ctx, of, "", 10)
		require.NoError(t, err)
		require.Empty(t, got)
	}
}

// testAuditPages: newest first, and each that was there once, whatever is
// entered between pages.
func testAuditPages(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	var want []string
	for i := range 25 {
		e := auditEntry("", now.Add(time.Duration(i/5)*time.Minute)) // several at one time
		e.Path = strconv.Itoa(i / 5)
		require.NoError(t, b.real.AuditBegin(ctx, e))
		require.NoError(t, b.real.AuditBegin(ctx, auditEntry(tenant, now)))
		want = append(want, e.ID)
	}
	var seen, times []string
	for after := ""; ; {
		page, err := b.real.AuditList(ctx, "", after, 4)
		require.NoError(t, err)
		require.NoError(t, b.real.AuditBegin(ctx, auditEntry("", now.Add(time.Hour))))
		for _, e := range page {
			seen, times = append(seen, e.ID), append(times, e.Path)
		}
		if len(page) < 4 {
			break
		}
		after = page[3].ID
	}
	require.ElementsMatch(t, want, seen)
	require.IsDecreasing(t, dedup(times))
}

// dedup leaves one of several in a row.
func dedup(in []string) (out []string) {
	for i, s := range in {
		if i == 0 || s != in[i-1] {
			out = append(out, s)
		}
	}
	return out
}
