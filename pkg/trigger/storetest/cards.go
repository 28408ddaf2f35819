package storetest

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// cardTests hold a store to what promotion and projections ask of it.
func cardTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestE1_WriteIsOfTheWholeCard":      testE1Whole,
		"TestCardList_ByBot":                testCardListByBot,
		"TestProjections_RevisionsAndNames": testProjections,
	}
}

// What a card no longer has is gone from the store too, whatever it was.
func testE1Whole(t *testing.T, b *bundle) {
	at := b.real.Now()
	full := tracker.Card{
		TenantID: tenant, ID: "c1", Incarnation: "i1", Rev: 1, LastWrite: "w1", BoardID: "b1", ColumnID: "open", Title: "title", Body: "body",
		Labels: []string{"bug"}, Assignees: []string{"mona"}, External: &tracker.External{Provider: "github", Repo: "r", Number: 1},
		Stamps: tracker.Stamps{Title: tracker.Stamp{At: at}}, BotID: "bot1", BotArgs: map[string]string{"k": "v"}, PromotedBy: "e", PromotedSeq: 7,
		MirrorOf: &tracker.Mirror{BoardID: "b2", CardID: "c2"}, ColumnBy: tracker.ColumnBy{EID: "e", Seq: 7},
		Position: "V", CommentCount: 1, CommentBytes: 2,
		Consumed: []tracker.Consumption{{EffectID: "e", At: at}}, Deliveries: []tracker.Delivery{{HookID: "h", ID: "d", At: at}}, Deleted: true,
		CreatedAt: at, UpdatedAt: at,
	}
	v := reflect.ValueOf(full)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "Pending" && name != "PendingAt" {
			require.False(t, v.Field(i).IsZero(), "set %s, so that its removal is seen", name)
		}
	}
	require.NoError(t, b.real.CardWrite(t.Context(), tracker.CardWrite{Next: full.Clone()}))
	require.Equal(t, &full, b.card(t, "c1"))
	bare := tracker.Card{TenantID: tenant, ID: "c1", Incarnation: "i1", Rev: 2, LastWrite: "w2", BoardID: "b1", ColumnID: "open", Title: "title", CreatedAt: at, UpdatedAt: at}
	w := tracker.CardWrite{PrevIncarnation: "i1", PrevRev: 1, Next: bare.Clone()}
	require.NoError(t, b.real.CardWrite(t.Context(), w))
	require.Equal(t, &bare, b.card(t, "c1"))

	full.Rev, bare.Rev = 3, 4
	for _, w := range []tracker.CardWrite{{PrevIncarnation: "i1", PrevRev: 2, Next: full.Clone()}, {PrevIncarnation: "i1", PrevRev: 3, Next: bare.Clone()}} {
		stands, err := b.real.CardWriteMany(t.Context(), tenant, []tracker.CardWrite{w})
		require.NoError(t, err)
		require.Equal(t, []bool{true}, stands)
	}
	require.Equal(t, &bare, b.card(t, "c1"))
}

func testCardListByBot(t *testing.T, b *bundle) {
	ctx := t.Context()
	promote := func(id, bot string) {
		b.change(t, id, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			card.BotID = bot
			return card, nil, nil
		})
	}
	list := func(tenantID, bot, after string, limit int) (ids []string) {
		t.Helper()
		p := tracker.CardListParams{TenantID: tenantID, BotID: bot, Limit: limit}
		if after != "" {
			p.After = &tracker.CardKey{ID: after}
		}
		page, err := b.real.CardList(ctx, p)
		require.NoError(t, err)
		for _, card := range page.Cards {
			require.Equal(t, bot, card.BotID)
			require.Equal(t, tenantID, card.TenantID)
			ids = append(ids, card.ID)
		}
		return ids
	}
	for _, id := range []string{"c9", "c1", "c3", "c2", "c5", "c4", "c6", "plain"} {
		b.create(t, id, "open")
	}
	for _, id := range []string{"c9", "c1", "c3", "c2", "c5"} {
		promote(id, "bot1")
	}
	promote("c4", "bot2")
	promote("c6", "bot1")
	promote("c6", "")
	_, err := b.board.Change(ctx, "other", "c1", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "t", BoardID: "b1", ColumnID: "open", BotID: "bot1"}, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	require.NoError(t, err)
	_, err = b.board.Delete(ctx, tenant, "c3", human)
	require.NoError(t, err)
	require.True(t, b.card(t, "c3").Deleted, "a tombstone, since its events are not relayed")
	require.Equal(t, "bot1", b.card(t, "c3").BotID)

	require.Equal(t, []string{"c1", "c2", "c5", "c9"}, list(tenant, "bot1", "", 10))
	require.Equal(t, []string{"c1", "c2"}, list(tenant, "bot1", "", 2))
	require.Equal(t, []string{"c5", "c9"}, list(tenant, "bot1", "c2", 2))
	require.Empty(t, list(tenant, "bot1", "c9", 2))
	require.Equal(t, []string{"c4"}, list(tenant, "bot2", "", 10))
	require.Equal(t, []string{"c1"}, list("other", "bot1", "", 10))
	require.Empty(t, list("acm", "bot1", "", 10))
}

func testProjections(t *testing.T, b *bundle) {
	ctx := t.Context()
	p := &trigger.Projection{
		TenantID: tenant, ID: "p1", Name: "roadmap", Revision: 1, Enabled: true, ActiveFromSeq: 7, FromBoardID: "b1", ToBoardID: "b2",
		Columns: []trigger.ColumnPair{{From: "open", To: "next"}, {From: "a.b$c", To: "done"}}, UpdatedAt: b.real.Now(),
	}
	require.NoError(t, b.real.ProjectionSave(ctx, p))
	requireConflict(t, b.real.ProjectionSave(ctx, p))
	taken, foreign := *p, *p
	taken.ID, foreign.TenantID = "p2", "other"
	requireConflict(t, b.real.ProjectionSave(ctx, &taken))
	require.NoError(t, b.real.ProjectionSave(ctx, &foreign), "another tenant's is another")
	got, err := b.real.ProjectionGet(ctx, tenant, "p1")
	require.NoError(t, err)
	require.Equal(t, p, got)
	next := *p
	next.Revision, next.Enabled, next.Columns = 2, false, p.Columns[:1]
	skipped := next
	skipped.Revision = 3
	requireConflict(t, b.real.ProjectionSave(ctx, &skipped))
	require.NoError(t, b.real.ProjectionSave(ctx, &next))
	requireConflict(t, b.real.ProjectionSave(ctx, &next))
	second := *p
	second.ID, second.Name = "p0", "another"
	require.NoError(t, b.real.ProjectionSave(ctx, &second))
	list, err := b.real.ProjectionList(ctx, tenant)
	require.NoError(t, err)
	require.Equal(t, []trigger.Projection{second, next}, list, "by name")
	_, err = b.real.ProjectionGet(ctx, "other", "p0")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.real.ProjectionGet(ctx, tenant, "nobody")
	require.ErrorIs(t, err, tracker.ErrNotFound)
}
