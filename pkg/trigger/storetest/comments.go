package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// commenting counts a comment and makes its event.
func commenting(text string) tracker.Changer {
	return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return nil, nil, tracker.ErrNotFound
		}
		if err := card.AddComment(text); err != nil {
			return nil, nil, err
		}
		return card, &tracker.BoardEvent{Kind: tracker.KindCommented, Actor: human}, nil
	}
}

func (b *bundle) comment(t *testing.T, card, id, text string) tracker.Changed {
	t.Helper()
	changed, err := b.board.Comment(t.Context(), tenant, card, tracker.Comment{ID: id, Actor: human, Body: text}, commenting(text))
	require.NoError(t, err)
	return changed
}

func (b *bundle) comments(t *testing.T, card string) (ids []string) {
	t.Helper()
	list, err := b.real.CardComments(t.Context(), tenant, card)
	require.NoError(t, err)
	for _, c := range list {
		ids = append(ids, c.ID)
	}
	return ids
}

// testComments: comments outlive every other write of their card, and go with
// it, also when another is made over its tombstone.
func testComments(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.create(t, "c1", "open")
	require.Empty(t, b.comments(t, "c1"))
	first := b.comment(t, "c1", "k1", "first\n.*$where")
	b.comment(t, "c1", "k2", "second")
	list, err := b.real.CardComments(ctx, tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, tracker.Comment{ID: "k1", Actor: human, At: first.Event.At, Body: "first\n.*$where"}, list[0])
	require.Equal(t, []string{"k1", "k2"}, b.comments(t, "c1"))
	require.Equal(t, "k1", first.Event.CommentID)
	require.Equal(t, tracker.KindCommented, first.Event.Kind)

	b.change(t, "c1", retitle("another"))
	out, err := b.board.ChangeMany(ctx, tenant, []string{"c1"}, retitle("once more"))
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	b.relayed(t, "c1")
	require.Equal(t, []string{"k1", "k2"}, b.comments(t, "c1"))
	card := b.card(t, "c1")
	require.Equal(t, []int{2, len("first\n.*$where") + len("second")}, []int{card.CommentCount, card.CommentBytes})
	events := b.events(t)
	require.Equal(t, "k2", events[2].CommentID)
	require.NotContains(t, fmt.Sprint(events), "second", "no event holds the text")

	_, err = b.real.CardComments(ctx, "other", "c1")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.real.CardComments(ctx, tenant, "c9")
	require.ErrorIs(t, err, tracker.ErrNotFound)

	// A card made over the tombstone is another one.
	_, err = b.board.Delete(ctx, tenant, "c1", human)
	require.NoError(t, err)
	require.Equal(t, []string{"k1", "k2"}, b.comments(t, "c1"), "a tombstone's")
	b.create(t, "c1", "open")
	require.Empty(t, b.comments(t, "c1"))
	require.Zero(t, b.card(t, "c1").CommentCount)
	b.comment(t, "c1", "k3", "third")
	require.Equal(t, []string{"k3"}, b.comments(t, "c1"))
	// And so is one made after it was buried.
	_, err = b.board.Delete(ctx, tenant, "c1", human)
	require.NoError(t, err)
	b.relayed(t, "c1")
	b.create(t, "c1", "open")
	require.Empty(t, b.comments(t, "c1"))
	// One may come with its card, too.
	at := b.real.Now()
	w := tracker.CardWrite{
		Next:    &tracker.Card{TenantID: tenant, ID: "c2", Incarnation: "i", Rev: 1, LastWrite: "w", BoardID: "b1", ColumnID: "open", Title: "t", CommentCount: 1},
		Comment: &tracker.Comment{ID: "k4", At: at},
	}
	require.NoError(t, b.real.CardWrite(ctx, w))
	require.Equal(t, []string{"k4"}, b.comments(t, "c2"))
	over := *w.Next
	over.Incarnation = "j"
	over.Rev = 2
	require.NoError(t, b.real.CardWrite(ctx, tracker.CardWrite{PrevIncarnation: "i", PrevRev: 1, Next: &over, Comment: &tracker.Comment{ID: "k5", At: at}}))
	require.Equal(t, []string{"k5"}, b.comments(t, "c2"))

	for text, want := range map[string]string{"": "empty", strings.Repeat("x", tracker.CommentMaxBytes+1): "at most", "\xff": "UTF-8"} {
		require.ErrorContains(t, (&tracker.Card{}).AddComment(text), want)
	}
	require.ErrorContains(t, (&tracker.Card{CommentCount: tracker.CommentsMax}).AddComment("x"), "no more")
	require.ErrorContains(t, (&tracker.Card{CommentBytes: tracker.CommentsMaxBytes}).AddComment("x"), "together")
}

// Comments made at once are all there, each with its event, and counted.
func testE1Comment(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	const n = 8
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := b.board.Comment(t.Context(), tenant, "c1", tracker.Comment{ID: fmt.Sprint("k", i), Actor: human, Body: "text"}, commenting("text"))
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	b.relayed(t, "c1")
	var told []string
	for _, e := range b.events(t) {
		if e.Kind == tracker.KindCommented {
			told = append(told, e.CommentID)
		}
	}
	require.Equal(t, told, b.comments(t, "c1"), "in the order of the log")
	require.Len(t, told, n)
	require.Equal(t, n, b.card(t, "c1").CommentCount)
}

// A comment whose write's answer was lost is there once.
func testE1CommentLost(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	lost := false
	b.setCut(func(point string) error {
		if point == "CardWrite:after" && !lost {
			lost = true
			return errCut
		}
		return nil
	})
	changed := b.comment(t, "c1", "k1", "text")
	b.setCut(nil)
	require.True(t, lost)
	require.Equal(t, "k1", changed.Event.CommentID)
	require.Equal(t, []string{"k1"}, b.comments(t, "c1"))
	require.Equal(t, 1, b.card(t, "c1").CommentCount)
}

// testEffectListByCard: newest first, several rows of an event too, of no
// other card and tenant, each untouched one once.
func testEffectListByCard(t *testing.T, b *bundle) {
	ctx := t.Context()
	now := b.real.Now()
	row := func(tenantID, card, sub string, seq int64) trigger.Effect {
		return trigger.Effect{
			ID: trigger.EffectID(trigger.EventID(tenantID, seq), sub), TenantID: tenantID, Kind: trigger.KindLaunch, Lane: "bot:b", State: trigger.StatePending,
			NotBefore: now, SubscriptionID: sub, BotID: "b", EventSeq: seq, CardID: card, CreatedAt: now, UpdatedAt: now, Rendered: "body",
		}
	}
	var want []string
	for seq := int64(1); seq <= 9; seq++ {
		for _, sub := range []string{"s1", "s2", "s3"} {
			r := row(tenant, "c1", sub, seq*400) // beyond the first span
			want = append(want, r.ID)
			b.materialize(t, r, row(tenant, "c2", sub, seq*400+1))
		}
	}
	slices.Reverse(want)
	_, err := b.real.EffectMaterialize(ctx, "other", []trigger.Effect{row("other", "c1", "s1", 5)})
	require.NoError(t, err)
	var got []string
	key := trigger.EffectKey{EventSeq: 9*400 + 100}
	for page := 0; ; page++ {
		rows, err := b.real.EffectListByCard(ctx, tenant, "c1", key, 4)
		require.NoError(t, err)
		for i := range rows {
			require.Empty(t, rows[i].Rendered, "no bodies")
			got = append(got, rows[i].ID)
			key = trigger.EffectKey{EventSeq: rows[i].EventSeq, ID: rows[i].ID}
		}
		if page == 1 { // new ones come before the page
			newer := row(tenant, "c1", "s9", 9*400)
			b.materialize(t, newer)
			b.settleFirst(t)
		}
		if len(rows) < 4 {
			break
		}
		require.Less(t, page, 20)
	}
	require.Equal(t, want, got)
	rows, err := b.real.EffectListByCard(ctx, tenant, "nobody", key, 4)
	require.NoError(t, err)
	require.Empty(t, rows)
}

// settleFirst settles some row.
func (b *bundle) settleFirst(t *testing.T) {
	t.Helper()
	require.True(t, b.settle(t, b.done(b.claimOne(t, "bot:b", time.Minute))))
}
