package storetest

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testConfig(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: tenant, Name: "Acme", Revision: 1, UpdatedAt: now}))
	require.ErrorIs(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: tenant, Revision: 1}), tracker.ErrConflict)
	got, err := b.real.TenantGet(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, &trigger.Tenant{ID: tenant, Name: "Acme", Revision: 1, UpdatedAt: now}, got)
	_, err = b.real.TenantGet(ctx, "nobody")
	require.ErrorIs(t, err, tracker.ErrNotFound)

	board := &tracker.Board{TenantID: tenant, ID: "b1", Name: "issues", Columns: []tracker.Column{{ID: "open", Name: "Open"}, {ID: "done", Name: "Done", Terminal: true}}, Revision: 1, UpdatedAt: now}
	require.NoError(t, b.real.BoardSave(ctx, board))
	gotBoard, err := b.real.BoardGet(ctx, tenant, "b1")
	require.NoError(t, err)
	require.Equal(t, board, gotBoard)
	require.ErrorIs(t, b.real.BoardSave(ctx, &tracker.Board{TenantID: tenant, ID: "b2", Name: "issues", Revision: 1}), tracker.ErrConflict, "the name is taken")
	require.NoError(t, b.real.BoardSave(ctx, &tracker.Board{TenantID: "other", ID: "b1", Name: "issues", Revision: 1}), "another tenant's is another")
	board.Revision, board.Columns = 2, board.Columns[:1]
	require.NoError(t, b.real.BoardSave(ctx, board))
	require.ErrorIs(t, b.real.BoardSave(ctx, board), tracker.ErrConflict, "a save is conditional on the revision before it")
	boards, err := b.real.BoardList(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, []tracker.Board{*board}, boards)

	bot := &trigger.Bot{TenantID: tenant, ID: "x", Name: "x", URL: "http://h", Replay: trigger.ReplaySafe, Secret: "sealed", Revision: 1, UpdatedAt: now}
	require.NoError(t, b.real.BotSave(ctx, bot))
	gotBot, err := b.real.BotGet(ctx, tenant, "x")
	require.NoError(t, err)
	require.Equal(t, bot, gotBot)
	bots, err := b.real.BotList(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, []trigger.Bot{*bot}, bots)

	hook := &trigger.Hook{TenantID: tenant, ID: "h", Name: "github", Provider: "github", BoardID: "b1", OpenColumn: "open", ClosedColumn: "done", Secret: "sealed", Revision: 1, UpdatedAt: now}
	require.NoError(t, b.real.HookSave(ctx, hook))
	gotHook, err := b.real.HookGet(ctx, tenant, "h")
	require.NoError(t, err)
	require.Equal(t, hook, gotHook)
	hooks, err := b.real.HookList(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, []trigger.Hook{*hook}, hooks)
	_, err = b.real.HookGet(ctx, "other", "h")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}

func testRefs(t *testing.T, b *bundle) {
	ctx := t.Context()
	full := &trigger.Subscription{
		TenantID: tenant, ID: "s1", Name: "one", Revision: 1, Enabled: true, ActiveFromSeq: 7, BotID: "bot1", Rank: -3,
		On:      trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}, BoardID: "b1", Actors: []string{"mona"}},
		If:      trigger.Conditions{Columns: []string{"open"}, LabelsAll: []string{"a"}, LabelsAny: []string{"b"}, LabelsNone: []string{"c"}, Assignees: []string{"d"}},
		Consume: []string{"a"}, Args: map[string]string{"k": "v"}, Vars: map[string]string{"x": "y"}, UpdatedAt: b.real.Now(),
		When: `card.title != ""`, Failing: "when: division by zero", FailingSince: b.real.Now(),
	}
	require.NoError(t, b.real.SubscriptionSave(ctx, full))
	require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{TenantID: tenant, ID: "s2", Name: "two", Revision: 1}))
	require.NoError(t, b.real.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "other", ID: "s3", Name: "one", Revision: 1, Enabled: true}))
	got, err := b.real.SubscriptionGet(ctx, tenant, "s1")
	require.NoError(t, err)
	require.Equal(t, full, got)
	refs, err := b.real.SubscriptionRefs(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, []trigger.SubscriptionRef{{ID: "s1", Revision: 1, UpdatedAt: b.sub(t, "s1").UpdatedAt}}, refs)
	list, err := b.real.SubscriptionList(ctx, tenant)
	require.NoError(t, err)
	require.Len(t, list, 2)
}

// testMadeAgain: a subscription that was deleted and made again under its id (a
// create sent again with its key) is another one at each revision.
func testMadeAgain(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	at := b.real.Now().Add(-time.Hour)
	b.subscribe(t, "s1", "old", func(s *trigger.Subscription) { s.UpdatedAt = at })
	b.create(t, "c1", "open", "old")
	b.relayed(t, "c1")
	b.drain(t)
	require.Len(t, b.rows(t), 1)
	require.NoError(t, b.real.SubscriptionDelete(ctx, tenant, "s1", 1))
	b.subscribe(t, "s1", "new", func(s *trigger.Subscription) { s.UpdatedAt = at.Add(time.Minute) })
	b.create(t, "c2", "open", "old")
	b.create(t, "c3", "open", "new")
	b.relayed(t, "c2")
	b.relayed(t, "c3")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 2)
	require.ElementsMatch(t, []string{"c1", "c3"}, []string{rows[0].CardID, rows[1].CardID})
}

func testDeliveries(t *testing.T, b *bundle) {
	ctx := t.Context()
	seen, err := b.real.DeliverySeen(ctx, tenant, "h", "d1")
	require.NoError(t, err)
	require.False(t, seen)
	for range 2 {
		require.NoError(t, b.real.DeliveryRecord(ctx, tenant, "h", "d1", b.real.Now()))
	}
	for _, c := range []struct {
		tenant, hook, id string
		want             bool
	}{{tenant, "h", "d1", true}, {tenant, "h2", "d1", false}, {"other", "h", "d1", false}, {tenant, "h", "d2", false}} {
		seen, err := b.real.DeliverySeen(ctx, c.tenant, c.hook, c.id)
		require.NoError(t, err)
		require.Equal(t, c.want, seen, c)
	}
}

func testTokens(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	token := &trigger.Token{ID: "t1", Hash: "aa", Name: "ci", Role: trigger.RoleViewer, TenantID: tenant, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
	require.NoError(t, b.real.TokenCreate(ctx, token))
	require.ErrorIs(t, b.real.TokenCreate(ctx, &trigger.Token{ID: "t2", Hash: "aa"}), tracker.ErrConflict)
	got, err := b.real.TokenByHash(ctx, "aa")
	require.NoError(t, err)
	require.Equal(t, token, got)
	require.True(t, got.Active(now))
	require.False(t, got.Active(now.Add(time.Hour)))
	_, err = b.real.TokenByHash(ctx, "bb")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	require.NoError(t, b.real.TokenRevoke(ctx, "t1", now))
	require.NoError(t, b.real.TokenRevoke(ctx, "t1", now.Add(time.Minute)))
	got, err = b.real.TokenByHash(ctx, "aa")
	require.NoError(t, err)
	require.Equal(t, now, got.RevokedAt)
	require.False(t, got.Active(now))
	require.ErrorIs(t, b.real.TokenRevoke(ctx, "nobody", now), tracker.ErrNotFound)
	byID, err := b.real.TokenGet(ctx, "t1")
	require.NoError(t, err)
	require.Equal(t, got, byID)
	_, err = b.real.TokenGet(ctx, "aa")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	for i := range 4 {
		require.NoError(t, b.real.TokenCreate(ctx, &trigger.Token{ID: fmt.Sprintf("u%d", i), Hash: strconv.Itoa(i), CreatedAt: now}))
	}
	var ids []string
	for after := ""; ; {
		list, err := b.real.TokenList(ctx, after, 2)
		require.NoError(t, err)
		for _, tok := range list {
			ids, after = append(ids, tok.ID), tok.ID
		}
		if len(list) < 2 {
			break
		}
	}
	require.Equal(t, []string{"t1", "u0", "u1", "u2", "u3"}, ids)
}

func testTenants(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.materialize(t, effect(1, lane, b.real.Now()))
	for name, do := range map[string]func(tn string) error{
		"card": func(tn string) error { _, err := b.real.CardGet(ctx, tn, "c1"); return err },
		"effect": func(tn string) error {
			_, err := b.real.EffectGet(ctx, tn, effect(1, lane, b.real.Now()).ID)
			return err
		},
		"head": func(tn string) error { _, err := b.real.HeadGet(ctx, tn); return err },
	} {
		require.NoError(t, do(tenant), name)
		require.ErrorIs(t, do("other"), tracker.ErrNotFound, name)
	}
	events, err := b.real.EventList(ctx, "other", 0, 10)
	require.NoError(t, err)
	require.Empty(t, events)
}

func testTimes(t *testing.T, b *bundle) {
	ctx := t.Context()
	at := time.Date(2026, 5, 4, 3, 2, 1, 987_654_321, time.FixedZone("x", 7200))
	want := time.Date(2026, 5, 4, 1, 2, 1, 987_000_000, time.UTC)
	require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: tenant, Revision: 1, UpdatedAt: at}))
	got, err := b.real.TenantGet(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, want, got.UpdatedAt.UTC())
	now := b.real.Now()
	require.Equal(t, now, now.UTC().Truncate(time.Millisecond))
	require.WithinDuration(t, time.Now(), now, 5*time.Second)
}

func testWorkerRuns(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	b.bot(t, "bot2")
	b.subscribe(t, "s1", "bug", oneShot("bug"))
	b.subscribe(t, "s2", "bug", func(s *trigger.Subscription) { s.BotID = "bot2" })
	const cards = 10
	settled := make(chan trigger.Settle, 100)
	worker := &trigger.EffectWorker{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.real, Name: "w", Slots: 4,
		Logger: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
		Poll:   10 * time.Millisecond, RetryBase: time.Millisecond, RetryCap: 5 * time.Millisecond,
		Settled: func(_ trigger.Effect, s trigger.Settle) { settled <- s },
	}
	// The bot is down for the first launches; those are tried again.
	b.launches.down = 3
	b.relay.Wake = b.tail.Wake
	b.tail.WakeWorker = worker.Wake
	b.tail.Poll = 10 * time.Millisecond
	require.NoError(t, b.tail.Start(ctx))
	require.NoError(t, worker.Start(ctx))
	for i := range cards {
		id := string(rune('a' + i))
		b.create(t, id, "open", "bug")
		b.relayed(t, id)
	}
	done := 0
	for done < 2*cards {
		select {
		case s := <-settled:
			if s.To == trigger.StateDone {
				done++
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d rows done", done, 2*cards)
		}
	}
	worker.Stop()
	b.tail.Stop()
	for _, row := range b.rows(t) {
		require.Equal(t, trigger.StateDone, row.State)
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		require.Equal(t, "run-"+row.ID, row.RunID)
		card, err := b.real.CardGet(context.WithoutCancel(ctx), tenant, row.CardID)
		require.NoError(t, err)
		require.Empty(t, card.Labels)
		require.Empty(t, card.Consumed, "released when the row was done")
	}
	require.Len(t, b.rows(t), 2*cards)
}
