package boardmongo_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/triggerd/triggerd/internal/testdb"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// A card's event that can't be decoded is explained, and does not hide the
// card's others.
func TestExplain_UndecodableEvent(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := testdb.Store(t)
	_, err := store.HeadLift(ctx, "acme")
	require.NoError(t, err)
	_, err = store.SeqAllocate(ctx, "acme", 1, false)
	require.NoError(t, err)
	_, err = store.Database().Collection("board_events").InsertOne(ctx, bson.D{
		{Key: "_id", Value: "acme/000000000001"},
		{Key: "tenant_id", Value: "acme"},
		{Key: "seq", Value: int64(1)},
		{Key: "eid", Value: "board:x"},
		{Key: "card_id", Value: "c1"},
		{Key: "kind", Value: bson.D{{Key: "not", Value: "a text"}}},
	})
	require.NoError(t, err)
	sub := &trigger.Subscription{TenantID: "acme", ID: "s1", Name: "s1", Revision: 1, Enabled: true, BotID: "b", If: trigger.Conditions{LabelsAll: []string{"bug"}}}
	require.NoError(t, store.SubscriptionSave(ctx, sub))
	events, err := store.EventListByCard(ctx, "acme", "c1", 2, 10)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.NotEmpty(t, events[0].Undecodable)
	require.Equal(t, "c1", events[0].CardID)
	x := trigger.NewExplainer(store)
	got, err := x.Explain(ctx, "acme", "c1", "s1")
	require.NoError(t, err)
	require.Equal(t, trigger.AnswerNotRead, got.Answer, got.Sentence)
	tail := &trigger.Tail{Cards: store, Log: store, Heads: store, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store}
	_, err = tail.Drain(ctx, "acme")
	require.NoError(t, err)
	got, err = x.Explain(ctx, "acme", "c1", "s1")
	require.NoError(t, err)
	require.Equal(t, trigger.AnswerPoison, got.Answer, got.Sentence)
	require.Contains(t, got.Sentence, "undecodable")
	dry, err := x.DryRun(ctx, "acme", sub, trigger.DryRunParams{CardID: "c1"})
	require.NoError(t, err)
	require.Contains(t, dry.Verdicts[0].Error, "can't be read")
}
