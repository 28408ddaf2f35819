package server

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestBulkCards(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "acme", ID: "b2", Name: "b2", Revision: 1, Columns: []tracker.Column{{ID: "todo", Name: "x"}}}))
	for _, id := range []string{"a", "b", "c", "d"} {
		b.newCard(t, id)
	}
	b.newCard(t, "there", func(c *tracker.Card) { c.ColumnID = "done" })
	b.newCard(t, "elsewhere", func(c *tracker.Card) { c.BoardID = "b2" })
	move := func(body string) (out []string) {
		t.Helper()
		for _, r := range as[BulkChanged](t, 200, b.send(t, e, "POST", acme+"/bulk/cards/move", "", body)).Items {
			out = append(out, r.ID+" "+r.Result)
		}
		return out
	}
	require.Equal(t, []string{"c changed", "nobody not_found", "a changed", "there unchanged", "elsewhere refused"},
		move(`{"cards":["c","nobody","a","there","elsewhere"],"board_id":"board-1","column_id":"done"}`))
	require.Equal(t, []string{"there", "c", "a"}, b.order(t, e, "done"))
	var bulks []string
	for _, e := range b.events(t) {
		if e.Kind == tracker.KindMoved {
			bulks = append(bulks, e.Bulk)
		}
	}
	require.Len(t, bulks, 2)
	require.NotEmpty(t, bulks[0])
	require.Equal(t, bulks[0], bulks[1], "of one call")
	require.Equal(t, []string{"b changed", "there changed", "d changed"}, move(`{"cards":["b","there","d"],"board_id":"board-1","column_id":"done","at":"top"}`))
	require.Equal(t, []string{"b", "there", "d", "c", "a"}, b.order(t, e, "done"))
	require.Equal(t, "todo", b.card2(t, "elsewhere").ColumnID)

	label := as[BulkChanged](t, 200, b.send(t, e, "POST", acme+"/bulk/cards/label", "", `{"cards":["a","b","nobody"],"add":["x","y"],"remove":["z"]}`))
	require.Equal(t, "changed", label.Items[0].Result)
	require.Equal(t, b.card2(t, "a").Rev, label.Items[0].Rev)
	require.Equal(t, "not_found", label.Items[2].Result)
	require.Equal(t, "unchanged", as[BulkChanged](t, 200, b.send(t, e, "POST", acme+"/bulk/cards/label", "", `{"cards":["a"],"add":["X"]}`)).Items[0].Result)
	require.Equal(t, []string{"x", "y"}, b.card2(t, "b").Labels)

	ids := make([]string, 501)
	for i := range ids {
		ids[i] = fmt.Sprintf("%q", fmt.Sprint("n", i))
	}
	all := strings.Join(ids, ",")
	for body, field := range map[string]string{
		`{"cards":[` + all + `],"board_id":"board-1","column_id":"done"}`: "body.cards", `{"cards":["a","a"],"board_id":"board-1","column_id":"done"}`: "body.cards",
		`{"cards":[],"board_id":"board-1","column_id":"done"}`: "body.cards", `{"cards":["a"],"board_id":"board-9","column_id":"done"}`: "body.board_id",
		`{"cards":["a"],"board_id":"board-1","column_id":"none"}`: "body.column_id", `{"cards":["a b"],"board_id":"board-1","column_id":"done"}`: "body.cards[0]",
		`{"cards":["a"],"board_id":"board-1","column_id":"done","at":"x"}`: "body.at",
	} {
		refusedField(t, b.send(t, e, "POST", acme+"/bulk/cards/move", "", body), field)
	}
	refusedField(t, b.send(t, e, "POST", acme+"/bulk/cards/label", "", `{"cards":["a"]}`), "body.add")
	last := strings.Join(ids[:500], ",")
	require.Len(t, as[BulkChanged](t, 200, b.send(t, e, "POST", acme+"/bulk/cards/move", "", `{"cards":[`+last+`],"board_id":"board-1","column_id":"done"}`)).Items, 500)
}

func TestListCards(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleViewer, "acme", "v")
	for i := range 5 {
		b.newCard(t, fmt.Sprint("c", i), func(c *tracker.Card) {
			c.Title, c.Labels = fmt.Sprintf("Title %d", i%2), []string{fmt.Sprint("L", i%3)}
			if i == 4 {
				c.ColumnID = "done"
			}
		})
	}
	pages := func(query string) (ids []string) {
		t.Helper()
		for after := ""; ; {
			page := as[Page[ListedCard]](t, 200, b.get(t, e, acme+"/cards?limit=2&"+query+"&after="+after))
			for _, c := range page.Items {
				ids = append(ids, c.ID)
			}
			if after = page.Next; after == "" {
				return ids
			}
		}
	}
	require.Equal(t, []string{"c0", "c1", "c2", "c3", "c4"}, pages(""))
	require.Equal(t, []string{"c4", "c0", "c1", "c2", "c3"}, pages("board=board-1"), "by column")
	require.Equal(t, []string{"c4"}, pages("board=board-1&column=done"))
	require.Equal(t, []string{"c0", "c3"}, pages("label=l0"))
	require.Equal(t, []string{"c1", "c3"}, pages("text="+url.QueryEscape("TITLE 1")))
	require.Equal(t, []string{"c3"}, pages("board=board-1&column=todo&label=L0&text=1"))
	require.Empty(t, pages("board=none"))
	require.Contains(t, b.get(t, e, acme+"/cards?board=none").body, `"items":[]`)
	require.NotContains(t, b.get(t, e, acme+"/cards").body, `"body"`)
	refusedField(t, b.get(t, e, acme+"/cards?column=todo"), "query.column")
	of := as[Page[ListedCard]](t, 200, b.get(t, e, acme+"/cards?limit=2&board=board-1"))
	refusedField(t, b.get(t, e, acme+"/cards?after="+of.Next), "query.after") // another list's
	require.Empty(t, as[Page[ListedCard]](t, 200, b.get(t, b.role(t, trigger.RoleViewer, "other", "o"), "/v1/tenants/other/cards")).Items)
}

func TestCommentsByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	b.newCard(t, "c1")
	path := acme + "/cards/c1/comments"
	var want []string
	for i := range 5 {
		a := b.send(t, e, "POST", path, "", fmt.Sprintf(`{"body":"comment %d\nof two lines"}`, i))
		c := as[Comment](t, 201, a)
		want = append(want, c.ID)
		require.Equal(t, path+"/"+c.ID, a.header.Get("Location"))
		require.Equal(t, c, as[Comment](t, 200, b.get(t, e, a.header.Get("Location"))))
		event := b.lastEvent(t)
		require.Equal(t, []string{string(tracker.KindCommented), c.ID}, []string{string(event.Kind), event.CommentID})
		require.Equal(t, "ed", c.Actor.Name)
	}
	require.NotContains(t, b.get(t, e, acme+"/events").body, "of two lines")
	require.NotContains(t, b.get(t, e, acme+"/cards/c1").body, "of two lines")
	require.Equal(t, 5, as[CardDetail](t, 200, b.get(t, e, acme+"/cards/c1")).Comments)
	var got []string
	for after := ""; ; {
		page := as[Page[Comment]](t, 200, b.get(t, e, path+"?limit=2&after="+after))
		for _, c := range page.Items {
			got = append(got, c.ID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, want, got)
	refusedField(t, b.get(t, e, path+"?after="+newCursor("comments", "none")), "query.after")
	require.Equal(t, 404, b.get(t, e, path+"/none").status)
	require.Equal(t, 404, b.send(t, e, "POST", acme+"/cards/none/comments", "", `{"body":"x"}`).status)
	for i := range tracker.CommentsMax - 5 {
		_, err := b.server.board.Comment(t.Context(), "acme", "c1", tracker.Comment{ID: fmt.Sprint("k", i)}, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			return card, &tracker.BoardEvent{Kind: tracker.KindCommented}, card.AddComment("x")
		})
		require.NoError(t, err)
	}
	refusedField(t, b.send(t, e, "POST", path, "", `{"body":"one more"}`), "body.body")
}

func TestEventsAndEffectsOfACard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	b.newCard(t, "c1")
	for i := range 4 {
		require.Equal(t, 200, b.send(t, e, "PATCH", acme+"/cards/c1", "", fmt.Sprintf(`{"title":"t%d"}`, i)).status)
	}
	var seqs []int64
	for after := ""; ; {
		page := as[Page[trigger.Event]](t, 200, b.get(t, e, acme+"/cards/c1/events?limit=2&after="+after))
		for _, ev := range page.Items {
			seqs = append(seqs, ev.Seq)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, []int64{5, 4, 3, 2, 1}, seqs)
	require.EqualValues(t, 3, as[trigger.Event](t, 200, b.get(t, e, acme+"/events/3")).Seq)
	require.Equal(t, 404, b.get(t, e, acme+"/events/99").status)
	other := b.role(t, trigger.RoleViewer, "other", "o")
	for _, path := range []string{"/events/3", "/cards/c1/events", "/cards/c1/effects", "/cards/c1/comments", "/cards/c1", "/cards/c1/comments/x"} {
		a := b.get(t, other, "/v1/tenants/other"+path)
		require.Equal(t, 404, a.status, path)
		require.Equal(t, b.get(t, other, acme+path).body, a.body, path)
	}
	require.Empty(t, as[Page[Effect]](t, 200, b.get(t, e, acme+"/cards/c1/effects")).Items)
	require.Equal(t, 404, b.get(t, e, acme+"/cards/none/effects").status)
	require.Equal(t, 404, b.get(t, e, acme+"/cards/none/events").status)

	var want []string
	for i := range 25 {
		id := b.rowIn(t, int64(i%5)+1, trigger.StateFailed, func(row *trigger.Effect) {
			row.CardID, row.SubscriptionID = "c1", fmt.Sprintf("sub-%02d", i)
			row.ID = trigger.EffectID(trigger.EventID("acme", row.EventSeq), row.SubscriptionID)
		})
		want = append(want, id)
	}
	slices.Sort(want)
	slices.Reverse(want)
	var got []string
	for after := ""; ; {
		page := as[Page[Effect]](t, 200, b.get(t, e, acme+"/cards/c1/effects?limit=7&after="+after))
		for i := range page.Items {
			got = append(got, page.Items[i].ID)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	require.Equal(t, want, got)
	shown := as[CardDetail](t, 200, b.get(t, e, acme+"/cards/c1")).Effects
	require.Len(t, shown, 20)
	require.Equal(t, want[0], shown[0].ID)
	require.Equal(t, []any{trigger.StateFailed, trigger.ReasonExhausted, "sub-24", botID}, []any{shown[0].State, shown[0].Reason, shown[0].SubscriptionID, shown[0].BotID})
}

// A bot's change goes back to the launch that it answers.
func TestBotsChangeHasItsCause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.newCard(t, "c1")
	b.rowIn(t, 1, trigger.StateDone, func(row *trigger.Effect) { row.CardID, row.ClaimedAt = "c1", b.mem.Now() })
	ctx := context.WithValue(t.Context(), tokenKey{}, &trigger.Token{Name: "implementer", Role: trigger.RoleBot, TenantID: "acme", BotID: botID})
	names := &NamesBody{Add: []NameText{"done"}}
	_, err := b.server.api.changeCard(ctx, &CardInput{TenantInput{"acme"}, "c1"}, &MatchInput{}, names.label)
	require.NoError(t, err)
	event := b.lastEvent(t)
	require.Equal(t, tracker.Actor{Kind: tracker.ActorBot, ID: botID, Name: "implementer"}, event.Actor)
	require.True(t, event.Cause.Has("sub-1", "c1"))
	b.store.fail("EffectsOfCards")
	_, err = b.server.api.changeCard(ctx, &CardInput{TenantInput{"acme"}, "c1"}, &MatchInput{}, (&NamesBody{Add: []NameText{"more"}}).label)
	require.Error(t, err, "none is made without its cause")
}

// A card whose new position would be the one that it has in the column it comes
// from is put there all the same, and not to the bottom.
func TestBulkMoveToItsOwnPosition(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"top", "bottom"} {
		b := setup(t)
		e := b.role(t, trigger.RoleEditor, "acme", "ed")
		b.newCard(t, "there", func(c *tracker.Card) { c.ColumnID = "done" })
		n := b.card2(t, "there").Position
		near, ok := tracker.PositionsBetween("", n, 3)
		if at == "bottom" {
			near, ok = tracker.PositionsBetween(n, "", 3)
		}
		require.True(t, ok)
		for i, id := range []string{"x", "y", "z"} {
			b.newCard(t, id, func(c *tracker.Card) { c.Position = near[i] })
			require.Equal(t, near[i], b.card2(t, id).Position)
		}
		as[BulkChanged](t, 200, b.send(t, e, "POST", acme+"/bulk/cards/move", "", `{"cards":["x","y","z"],"board_id":"board-1","column_id":"done","at":"`+at+`"}`))
		want := []string{"x", "y", "z", "there"}
		if at == "bottom" {
			want = []string{"there", "x", "y", "z"}
		}
		require.Equal(t, want, b.order(t, e, "done"), at)
	}
}
