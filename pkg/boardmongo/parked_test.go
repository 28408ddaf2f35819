package boardmongo_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestParkedPages pages through 2,400 failed rows, of seqs that begin late, have
// gaps and others' rows between: each comes once, by id, and no command has the
// server sort many for a page, however many there are.
func TestParkedPages(t *testing.T) {
	t.Parallel()
	const tenant, far = "acme", 40_000_000
	mon := newCommands()
	store := openStore(t, mon)
	ctx, now := t.Context(), store.Now()
	var docs []any
	var failed, poor []string
	add := func(seq int64, sub string, state trigger.State) {
		e := trigger.Event{TenantID: tenant, Seq: seq, Source: trigger.SourceBoard, LoggedAt: now}
		row := trigger.Effect{
			ID: trigger.EffectID(e.ID(), sub), TenantID: tenant, Kind: trigger.KindLaunch, SubscriptionID: sub, Lane: "bot:b", EventSeq: seq, Event: e,
			State: state, NotBefore: now, UpdatedAt: now,
		}
		docs = append(docs, keyed(row.ID, row))
		if state == trigger.StateFailed {
			if failed = append(failed, row.ID); sub == "s2" {
				poor = append(poor, row.ID)
			}
		}
	}
	seq := int64(far)
	for i := range 1200 {
		switch {
		case i == 400:
			seq += 50_000
		case i == 800:
			seq += 2_000_000
		case i%200 == 0:
			for range 300 { // that are through
				seq++
				add(seq, "s1", trigger.StateDone)
			}
		}
		seq++
		add(seq, "s1", trigger.StateFailed)
		add(seq, "s2", trigger.StateFailed)
	}
	insertAll(t, store, "trigger_effects", docs)
	pages := func(f trigger.EffectFilter, limit int) (got []string) {
		f.State = trigger.StateFailed
		for after := ""; ; after = got[len(got)-1] {
			mon.reset()
			page, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: f, AfterID: after, Limit: limit})
			require.NoError(t, err)
			require.LessOrEqual(t, len(page), limit)
			sent := mon.finds()
			require.LessOrEqual(t, len(sent), 2+5, "spans get wider")
			for _, cmd := range sent {
				if where, sorts := sortedParked(cmd.body); sorts {
					n, err := store.Database().Collection("trigger_effects").CountDocuments(ctx, where)
					require.NoError(t, err)
					require.LessOrEqual(t, n, int64(2*1000), "rows that it sorts")
				}
			}
			for _, row := range page {
				got = append(got, row.ID)
			}
			if len(page) < limit {
				return got
			}
		}
	}
	require.Equal(t, failed, pages(trigger.EffectFilter{}, 300))
	require.Equal(t, poor, pages(trigger.EffectFilter{SubscriptionID: "s2"}, 250))
	require.Empty(t, pages(trigger.EffectFilter{SubscriptionID: "s3"}, 10))
	require.Empty(t, pages(trigger.EffectFilter{UpdatedBefore: now.Add(-time.Hour)}, 10))

	// An id that is none, and those before and behind all.
	for after, want := range map[string]int{
		"": 5, "acme": 5, "acme/": 5, "acme/x": 0, "acmf": 0, "zz": 0, failed[len(failed)-3]: 2, fmt.Sprintf("%s/%012d", tenant, far): 5, "acme/4": 0, "acme/0": 5,
	} {
		page, err := store.EffectList(ctx, trigger.EffectListParams{
			TenantID: tenant, EffectFilter: trigger.EffectFilter{State: trigger.StateFailed}, AfterID: after, Limit: 5,
		})
		require.NoError(t, err)
		require.Len(t, page, want, after)
	}
}

// sortedParked returns the filter of a find that sorts what it finds by the
// index of parked rows.
func sortedParked(body bson.D) (filter any, sorts bool) {
	hinted := false
	for _, e := range body {
		switch e.Key {
		case "filter":
			filter = e.Value
		case "sort":
			sorts = true
		case "hint":
			hinted = e.Value == "parked_tenant_state"
		}
	}
	return filter, sorts && hinted
}
