package boardmongo_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/explain"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestIndexesAreUsed has the server explain what the store really sends on the
// hot paths: each command finds its documents by the index that is meant for
// it, by name, and none by a scan. Not every server explains writes; so each
// is explained as a find by its filter.
func TestIndexesAreUsed(t *testing.T) {
	t.Parallel()
	mon := newCommands()
	store := openStore(t, mon)
	ctx := t.Context()
	now := store.Now()
	seedForIndexes(t, store, now)

	const tenant, lane = "t00007", "bot:b2"
	events, rows, eids := make([]string, 100), make([]string, 100), make([]string, 100)
	for i := range events {
		events[i] = trigger.EventID(tenant, int64(i+1))
		rows[i] = trigger.EffectID(events[i], "s01")
		eids[i] = fmt.Sprintf("board:%s-%d", tenant, i+1)
	}
	claim := trigger.ClaimParams{TenantID: tenant, Lane: lane, ClaimID: "c", Worker: "w", Now: now, LeaseEnd: now.Add(time.Minute), Limit: 8}
	fence := trigger.Fence{TenantID: tenant, EffectID: rows[0], ClaimID: "x"}
	list := func(f trigger.EffectFilter) ([]trigger.Effect, error) {
		return store.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: f, Limit: 100})
	}
	for _, q := range []struct {
		name, coll string
		indexes    []string // of its commands, in their order
		call       func() error
	}{
		{"HeadGet", "tenant_heads", []string{"_id_"}, func() error { _, err := store.HeadGet(ctx, tenant); return err }},
		{"HeadsDirty", "tenant_heads", []string{"dirty_drain_after"}, func() error {
			found, err := store.HeadsDirty(ctx, now, 100)
			require.Len(t, found, 20)
			return err
		}},
		{"SeqAllocate", "tenant_heads", []string{"_id_"}, func() error { _, err := store.SeqAllocate(ctx, tenant, 1, false); return err }},
		{"HeadAdvance", "tenant_heads", []string{"_id_"}, func() error { _, err := store.HeadAdvance(ctx, tenant, 9, 10); return err }},
		{"LanesDue", "lanes", []string{"due_at"}, func() error {
			found, err := store.LanesDue(ctx, now, 64)
			require.Len(t, found, 11)
			return err
		}},
		{"LaneMarkMany", "lanes", []string{"_id_"}, func() error {
			return store.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: lane, Due: now}})
		}},
		{"LaneReschedule", "lanes", []string{"_id_"}, func() error {
			_, err := store.LaneReschedule(ctx, trigger.Lane{TenantID: tenant, Lane: lane, Version: 1}, now)
			return err
		}},
		{"CardsGet", "cards", []string{"_id_"}, func() error { _, err := store.CardsGet(ctx, tenant, []string{"c1", "c2", "c3"}); return err }},
		{"CardsPending", "cards", []string{"pending_at"}, func() error {
			found, err := store.CardsPending(ctx, now, 100)
			require.Len(t, found, 20)
			return err
		}},
		{"CardPendingTouch", "cards", []string{"_id_"}, func() error {
			_, err := store.CardPendingTouch(ctx, tracker.PendingCard{TenantID: "t00000", CardID: "c100", PendingAt: now.Add(-2 * time.Hour)}, now)
			return err
		}},
		{"CardPendingEIDs", "cards", []string{"pending_at"}, func() error { _, err := store.CardPendingEIDs(ctx, tenant, eids); return err }},
		{"TenantsDeleting", "tenants", []string{"deleting_at"}, func() error { _, err := store.TenantsDeleting(ctx, "", 100); return err }},
		{"TenantPurge", "trigger_effects", []string{"_id_"}, func() error { _, err := store.TenantPurge(ctx, "nobody", trigger.PartEffects, 500); return err }},
		{"EffectCount", "trigger_effects", []string{"tenant_state_updated"}, func() error {
			_, err := store.EffectCount(ctx, tenant, trigger.StateDone, 100)
			return err
		}},
		{"AuditList", "audit", []string{"_id_"}, func() error { _, err := store.AuditList(ctx, tenant, "", 100); return err }},
		{"TokenList", "api_tokens", []string{"_id_"}, func() error { _, err := store.TokenList(ctx, "", 100); return err }},
		{"EventList", "board_events", []string{"tenant_seq"}, func() error {
			found, err := store.EventList(ctx, tenant, 100, 600)
			require.Len(t, found, 500)
			return err
		}},
		{"EventListByCard", "board_events", []string{"tenant_card_seq"}, func() error {
			found, err := store.EventListByCard(ctx, tenant, "c7", 1001, 50)
			require.Len(t, found, 10)
			require.EqualValues(t, 908, found[0].Seq)
			return err
		}},
		{"EventListByCard, in spans", "board_events", []string{"tenant_card_seq", "tenant_card_seq", "tenant_card_seq"}, func() error {
			found, err := store.EventListByCard(ctx, tenant, "c7", 20_000, 50)
			require.Len(t, found, 10)
			return err
		}},
		{"EffectListBySubscription", "trigger_effects", []string{"subscription_seq"}, func() error {
			found, err := store.EffectListBySubscription(ctx, tenant, "s01", 600, 50)
			require.Len(t, found, 50)
			require.EqualValues(t, 599, found[0].EventSeq)
			return err
		}},
		{"EventSeqs", "board_events", []string{"tenant_seq"}, func() error { _, err := store.EventSeqs(ctx, tenant, 100, 600); return err }},
		{"EventSeqsByEID", "board_events", []string{"tenant_eid"}, func() error {
			found, err := store.EventSeqsByEID(ctx, tenant, eids)
			require.Len(t, found, len(eids))
			return err
		}},
		{"EventsRemovable", "board_events", []string{"_id_"}, func() error {
			found, err := store.EventsRemovable(ctx, tenant, 600, now, 500)
			require.Len(t, found, 500)
			return err
		}},
		{"SubscriptionRefs", "trigger_subscriptions", []string{"tenant_enabled"}, func() error {
			found, err := store.SubscriptionRefs(ctx, tenant)
			require.Len(t, found, 40)
			return err
		}},
		{"SubscriptionPage", "trigger_subscriptions", []string{"_id_"}, func() error {
			found, err := store.SubscriptionPage(ctx, tenant, "s01", 20)
			require.Len(t, found, 20)
			return err
		}},
		{"EffectMaterialize", "trigger_effects", []string{"_id_"}, func() error {
			known := make([]trigger.Effect, len(rows))
			for i, id := range rows {
				known[i] = trigger.Effect{ID: id, TenantID: tenant}
			}
			found, err := store.EffectMaterialize(ctx, tenant, known)
			require.Len(t, found, len(rows))
			return err
		}},
		{"EffectReclaim", "trigger_effects", []string{"live_tenant_lane", "_id_", "_id_"}, func() error {
			found, err := store.EffectReclaim(ctx, claim)
			require.NotNil(t, found)
			return err
		}},
		{"EffectClaim", "trigger_effects", []string{"live_tenant_lane", "_id_", "_id_"}, func() error {
			found, err := store.EffectClaim(ctx, claim)
			require.Len(t, found, claim.Limit)
			return err
		}},
		{"EffectSettleMany", "trigger_effects", []string{"_id_", "_id_"}, func() error {
			_, err := store.EffectSettleMany(ctx, []trigger.Settle{{Fence: fence, At: now, To: trigger.StateDone}})
			return err
		}},
		{"EffectNextDue", "trigger_effects", []string{"live_tenant_lane"}, func() error {
			_, found, err := store.EffectNextDue(ctx, tenant, lane)
			require.True(t, found)
			return err
		}},
		{"EffectNextDue, none soon", "trigger_effects", []string{"live_tenant_lane", "live_tenant_lane"}, func() error {
			_, found, err := store.EffectNextDue(ctx, tenant, "bot:later")
			require.True(t, found)
			return err
		}},
		{"EffectsOfCards", "trigger_effects", []string{"tenant_card_claimed"}, func() error {
			_, err := store.EffectsOfCards(ctx, trigger.CardEffectsParams{TenantID: tenant, CardIDs: []string{"c1", "c1@b2"}, ClaimedSince: now.Add(-time.Hour), Limit: 200})
			return err
		}},
		{"EffectMatches", "trigger_effects", []string{"tenant_subscription_at"}, func() error {
			_, err := store.EffectMatches(ctx, trigger.MatchesParams{TenantID: tenant, SubscriptionID: "s01", Since: now.Add(-time.Minute), UpToSeq: 1000})
			return err
		}},
		{"EffectsUnannounced", "trigger_effects", []string{"announce_at"}, func() error {
			found, err := store.EffectsUnannounced(ctx, now, 100)
			require.Len(t, found, 20)
			return err
		}},
		{"EffectsAnnounced", "trigger_effects", []string{"_id_"}, func() error {
			return store.EffectsAnnounced(ctx, []trigger.Effect{{ID: rows[2], TenantID: tenant, State: trigger.StateFailed}}, time.Time{})
		}},
		{"EffectsToAnnounce", "trigger_effects", []string{"_id_"}, func() error {
			_, err := store.EffectsToAnnounce(ctx, tenant, rows[:3])
			return err
		}},
		{"SubscriptionsBehind", "trigger_subscriptions", []string{"held_from"}, func() error {
			_, err := store.SubscriptionsBehind(ctx, 100)
			return err
		}},
		{"EffectListByEvent", "trigger_effects", []string{"_id_"}, func() error {
			found, err := store.EffectListByEvent(ctx, tenant, events[0])
			require.Len(t, found, 1)
			return err
		}},
		{"EffectList", "trigger_effects", []string{"_id_"}, func() error {
			_, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, Limit: 100})
			return err
		}},
		{"EffectList, failed", "trigger_effects", []string{"_id_", "parked_tenant_state"}, func() error {
			found, err := list(trigger.EffectFilter{State: trigger.StateFailed})
			require.Len(t, found, 100)
			return err
		}},
		{"EffectList, failed, of a subscription, by reason", "trigger_effects", []string{"_id_", "parked_tenant_state"}, func() error {
			found, err := list(trigger.EffectFilter{State: trigger.StateFailed, SubscriptionID: "s01", Reason: trigger.ReasonExhausted})
			require.Len(t, found, 100)
			return err
		}},
		{"EffectList, reconcile, by age", "trigger_effects", []string{"_id_", "parked_tenant_state", "_id_"}, func() error {
			found, err := list(trigger.EffectFilter{State: trigger.StateReconcile, UpdatedBefore: now})
			require.Empty(t, found)
			return err
		}},
		{"EffectList, held", "trigger_effects", []string{"_id_", "parked_tenant_state"}, func() error {
			found, err := list(trigger.EffectFilter{State: trigger.StateHeld})
			require.Len(t, found, 100)
			return err
		}},
		{"EffectList, done", "trigger_effects", []string{"_id_"}, func() error {
			found, err := list(trigger.EffectFilter{State: trigger.StateDone, SubscriptionID: "s01"})
			require.Len(t, found, 100)
			return err
		}},
		{"EffectsHeld", "trigger_effects", []string{"held"}, func() error {
			found, err := store.EffectsHeld(ctx, trigger.SubscriptionKey{}, 100)
			require.Len(t, found, 10)
			return err
		}},
		{"EffectDecide", "trigger_effects", []string{"_id_", "_id_"}, func() error {
			_, err := store.EffectDecide(ctx, trigger.Decision{TenantID: tenant, EffectID: rows[2], ID: "d", Action: trigger.ActionReplay, At: now})
			return err
		}},
		{"EffectStart", "trigger_effects", []string{"_id_"}, func() error {
			require.ErrorIs(t, store.EffectStart(ctx, fence, now, "body"), trigger.ErrFenceLost)
			return nil
		}},
		{"EffectTouch", "trigger_effects", []string{"_id_"}, func() error {
			require.ErrorIs(t, store.EffectTouch(ctx, fence, now), trigger.ErrFenceLost)
			return nil
		}},
		{"BulkGet", "bulk_decisions", []string{"_id_"}, func() error { _, err := store.BulkGet(ctx, tenant, "bulk-7"); return err }},
		{"BulkAdvance", "bulk_decisions", []string{"_id_"}, func() error {
			_, err := store.BulkAdvance(ctx, tenant, "bulk-7", 0, 1, 1, 0)
			return err
		}},
		{"CardList, by bot", "cards", []string{"tenant_bot"}, func() error {
			page, err := store.CardList(ctx, tracker.CardListParams{TenantID: tenant, BotID: "bot-7", After: &tracker.CardKey{ID: "c1"}, Limit: 99})
			require.Len(t, page.Cards, 5)
			return err
		}},
		{"CardList, all", "cards", []string{"_id_"}, func() error {
			page, err := store.CardList(ctx, tracker.CardListParams{TenantID: tenant, After: &tracker.CardKey{ID: "c1"}, Limit: 50})
			require.Len(t, page.Cards, 50)
			return err
		}},
		{"CardList, of a board", "cards", []string{"tenant_board_column"}, func() error {
			page, err := store.CardList(ctx, tracker.CardListParams{TenantID: tenant, BoardID: "b1", Limit: 10})
			require.Len(t, page.Cards, 10)
			return err
		}},
		{"CardList, of a column", "cards", []string{"tenant_board_column", "tenant_board_column"}, func() error {
			page, err := store.CardList(ctx, tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "k3", After: &tracker.CardKey{ColumnID: "k3", Position: "01", ID: "c"}, Limit: 50})
			require.NotEmpty(t, page.Cards)
			return err
		}},
		{"CardList, up a column", "cards", []string{"tenant_board_column"}, func() error {
			page, err := store.CardList(ctx, tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "k3", Backward: true, Limit: 2})
			require.Len(t, page.Cards, 2)
			return err
		}},
		{"CardCount", "cards", []string{"tenant_board_column"}, func() error {
			n, err := store.CardCount(ctx, tenant, "b1", "k3")
			require.Positive(t, n)
			return err
		}},
		{"CardComments", "cards", []string{"_id_"}, func() error { _, err := store.CardComments(ctx, tenant, "c7"); return err }},
		{"EffectListByCard", "trigger_effects", []string{"tenant_card_seq", "tenant_card_seq"}, func() error {
			found, err := store.EffectListByCard(ctx, tenant, "c7", trigger.EffectKey{EventSeq: 900, ID: "x"}, 50)
			require.Len(t, found, 1)
			return err
		}},
		{"EffectsSettledBefore", "trigger_effects", []string{"tenant_state_updated"}, func() error {
			found, err := store.EffectsSettledBefore(ctx, tenant, now.Add(-time.Hour), "", 500)
			require.Len(t, found, 500)
			return err
		}},
		{"TokenByHash", "api_tokens", []string{"hash"}, func() error { _, err := store.TokenByHash(ctx, "hash-00077"); return err }},
		{"TenantIDs", "tenants", []string{"_id_"}, func() error { _, err := store.TenantIDs(ctx, "t00100", 100); return err }},
	} {
		mon.reset()
		require.NoError(t, q.call(), q.name)
		var used []string
		for _, find := range mon.finds() {
			require.Equal(t, q.coll, find.coll, q.name)
			p := planOf(t, store, find.body)
			t.Logf("%-24s %-13s %s", q.name, find.name, p)
			require.Empty(t, p.Scans, "%s: %s", q.name, find.name)
			require.Len(t, p.Indexes, 1, "%s: %s", q.name, find.name)
			used = append(used, p.Indexes[0])
		}
		assert.Equal(t, q.indexes, used, q.name)
	}

	// The sweep finds lanes from the live rows, of all tenants.
	mon.reset()
	late, err := store.LanesLate(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, late)
	var sweep []string
	for _, find := range mon.finds() {
		p := planOf(t, store, find.body)
		t.Logf("%-24s %-13s %s", "LanesLate", find.name+" "+find.coll, p)
		require.Empty(t, p.Scans)
		require.Len(t, p.Indexes, 1)
		sweep = append(sweep, find.coll+" "+p.Indexes[0])
	}
	require.Equal(t, []string{"trigger_effects live_tenant_lane", "lanes _id_"}, sweep)

	// The fleet's count reads only what it counts.
	mon.reset()
	_, err = store.FleetCount(ctx, now, 1000)
	require.NoError(t, err)
	var counts []string
	for _, find := range mon.finds() {
		p := planOf(t, store, find.body)
		t.Logf("%-24s %-13s %s", "FleetCount", find.name+" "+find.coll, p)
		if find.coll == "pauses" {
			continue // a few, and all of them
		}
		require.Empty(t, p.Scans)
		counts = append(counts, strings.Join(append(p.Indexes, find.coll), " "))
	}
	live, parked := "live_tenant_lane trigger_effects", "parked_tenant_state trigger_effects"
	require.Equal(t, []string{live, live, live, live, parked, parked, parked, "dirty_drain_after tenant_heads", "paused trigger_subscriptions"}, counts)

	// Starting up looks for the ends of each tenant's log and rows (T4).
	mon.reset()
	_, err = store.HeadLift(ctx, tenant)
	require.NoError(t, err)
	for _, find := range mon.finds() {
		p := planOf(t, store, find.body)
		t.Logf("%-24s %-13s %s", "HeadLift", find.name+" "+find.coll, p)
		require.Empty(t, p.Scans)
		if find.coll != "trigger_subscriptions" && find.coll != "projections" {
			require.Equal(t, []string{"_id_"}, p.Indexes)
			require.False(t, p.Sorts, "no log is sorted for its ends")
		}
	}
}

// seedForIndexes fills the collections so far that no planner would rather
// scan them.
func seedForIndexes(t *testing.T, store *boardmongo.Store, now time.Time) {
	t.Helper()
	old := now.Add(-2 * time.Hour)
	tn := func(i int) string { return fmt.Sprintf("t%05d", i) }
	docs := map[string][]any{}
	add := func(coll string, doc any) { docs[coll] = append(docs[coll], doc) }
	for i := range 2000 {
		add("tenants", keyed(tn(i), trigger.Tenant{ID: tn(i), Name: tn(i), Revision: 1}))
		head := trigger.Head{TenantID: tn(i), Seq: 9, Cursor: 9, DrainAfter: old}
		if i%100 == 99 {
			head.Cursor, head.Dirty = 8, true
		}
		add("tenant_heads", keyed(tn(i), head))
		lane := trigger.Lane{TenantID: tn(i), Lane: "bot:b1", Version: 1}
		if i%10 == 0 {
			lane.DueAt = now.Add(time.Duration(i-100) * time.Minute)
		}
		add("lanes", keyed(tn(i)+"/bot:b1", lane))
		token := fmt.Sprintf("%05d", i)
		add("api_tokens", keyed(token, trigger.Token{ID: token, Hash: "hash-" + token}))
		card := tracker.Card{TenantID: tn(i % 20), ID: fmt.Sprint("c", i), Rev: 1, Title: "A card", BoardID: fmt.Sprint("b", i%3), ColumnID: fmt.Sprint("k", i%4)}
		card.Position = tracker.PositionAt(now.Add(time.Duration(i) * time.Second))
		if i%100 == 0 {
			card.PendingAt, card.Pending = old, []tracker.BoardEvent{{EID: fmt.Sprint("board:pending-", i)}}
		}
		if i%20 == 7 && i%5 == 2 {
			card.BotID = fmt.Sprint("bot-", i%400)
		}
		add("cards", keyed(card.TenantID+"/"+card.ID, card))
	}
	for i := range 10 {
		for j := range 100 {
			id := fmt.Sprint("bulk-", j)
			add("bulk_decisions", keyed(tn(i)+"/"+id, trigger.Bulk{TenantID: tn(i), ID: id, CreatedAt: now}))
		}
		for j := range 50 {
			id := fmt.Sprintf("s%02d", j)
			add("trigger_subscriptions", keyed(tn(i)+"/"+id, trigger.Subscription{TenantID: tn(i), ID: id, Name: id, Revision: 1, Enabled: j < 40}))
		}
		for j := range 1000 {
			e := trigger.Event{TenantID: tn(i), Seq: int64(j + 1), Source: trigger.SourceBoard, LoggedAt: old}
			e.EID, e.CardID = fmt.Sprintf("board:%s-%d", tn(i), e.Seq), fmt.Sprint("c", j%100)
			add("board_events", keyed(e.ID(), e))
			row := trigger.Effect{
				ID: trigger.EffectID(e.ID(), "s01"), TenantID: tn(i), Kind: trigger.KindLaunch, SubscriptionID: "s01", Lane: fmt.Sprint("bot:b", j%3), EventSeq: e.Seq,
				State: trigger.StateDone, NotBefore: old, UpdatedAt: old, CardID: fmt.Sprint("c", j), ClaimedAt: now,
			}
			row.Event.At, row.Event.EID = now.Add(-time.Duration(j)*time.Second), fmt.Sprint("board:", j)
			switch j % 10 {
			case 0:
				row.State = trigger.StatePending
			case 1:
				row.State, row.ClaimID = trigger.StateClaimed, "claim"
			case 2:
				row.State, row.Reason = trigger.StateFailed, trigger.ReasonExhausted
				if j%500 == 2 {
					row.AnnounceAt = old
				}
			case 3:
				row.State, row.Lane, row.NotBefore = trigger.StatePending, "bot:later", now.Add(time.Hour)
			case 4:
				row.State = trigger.StateHeld
			case 5:
				row.State = trigger.StateDiscarded
			}
			add("trigger_effects", keyed(row.ID, row))
		}
	}
	for coll, docs := range docs {
		insertAll(t, store, coll, docs)
	}
}

// planOf asks the server for its plan.
func planOf(t *testing.T, store *boardmongo.Store, body bson.D) explain.Plan {
	t.Helper()
	p, err := explain.Command(context.WithoutCancel(t.Context()), store.Database(), body)
	require.NoError(t, err)
	return p
}
