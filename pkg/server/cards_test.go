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

// lastEvent returns acme's newest event.
func (b *bundle) lastEvent(t *testing.T) trigger.Event {
	t.Helper()
	events := b.events(t)
	require.NotEmpty(t, events)
	return events[len(events)-1]
}

// order returns the ids of a column's cards, from the API.
func (b *bundle) order(t *testing.T, token, column string) (ids []string) {
	t.Helper()
	for _, c := range as[Page[ListedCard]](t, 200, b.get(t, token, acme+"/cards?board=board-1&column="+column+"&limit=100")).Items {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestCardsLife(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	a := b.send(t, e, "POST", acme+"/cards", "", `{"board_id":"board-1","column_id":"todo","title":"Fix","body":"two\nlines","labels":["Bug"," bug ","x"],"assignees":["mona"]}`)
	card := as[Card](t, 201, a)
	path := a.header.Get("Location")
	require.Equal(t, acme+"/cards/"+card.ID, path)
	require.Equal(t, `"1"`, a.header.Get("ETag"))
	require.Equal(t, []string{"Bug", "x"}, card.Labels)
	require.NotEmpty(t, card.Position)
	event := b.lastEvent(t)
	require.Equal(t, tracker.KindCreated, event.Kind)
	require.Equal(t, tracker.Actor{Kind: tracker.ActorHuman, ID: "token:ed", Name: "ed"}, event.Actor)
	require.Equal(t, "todo", event.ToColumn)
	got := b.get(t, e, path)
	require.Equal(t, card, as[CardDetail](t, 200, got).Card)
	require.Equal(t, `"1"`, got.header.Get("ETag"))
	require.Contains(t, got.body, `"effects":[]`)

	for _, c := range []struct {
		method, path, body string
		kind               tracker.Kind
		check              func(c *Card, e *trigger.Event)
	}{
		{"PATCH", "", `{"title":"Fix it"}`, tracker.KindEdited, func(c *Card, _ *trigger.Event) {
			require.Equal(t, []string{"Fix it", "two\nlines"}, []string{c.Title, c.Body})
		}},
		{"PATCH", "", `{"body":""}`, tracker.KindEdited, func(c *Card, _ *trigger.Event) { require.Empty(t, c.Body) }},
		{"POST", "/labels", `{"add":["BUG","new","newer"],"remove":["X","none"]}`, tracker.KindLabeled, func(c *Card, e *trigger.Event) {
			require.Equal(t, []string{"Bug", "new", "newer"}, c.Labels)
			require.Equal(t, [][]string{{"new", "newer"}, {"x"}}, [][]string{e.Added, e.Removed}, "one change, one event")
		}},
		{"POST", "/labels", `{"remove":["bug"]}`, tracker.KindUnlabeled, func(_ *Card, e *trigger.Event) { require.Equal(t, []string{"Bug"}, e.Removed) }},
		{"POST", "/assignees", `{"add":["hubot"],"remove":["MONA"]}`, tracker.KindAssigned, func(c *Card, e *trigger.Event) {
			require.Equal(t, []string{"hubot"}, c.Assignees)
			require.Equal(t, [][]string{{"hubot"}, {"mona"}}, [][]string{e.Added, e.Removed})
		}},
		{"POST", "/assignees", `{"remove":["hubot"]}`, tracker.KindUnassigned, func(c *Card, _ *trigger.Event) { require.Empty(t, c.Assignees) }},
		{"POST", "/move", `{"column_id":"done"}`, tracker.KindMoved, func(c *Card, e *trigger.Event) {
			require.Equal(t, "done", c.ColumnID)
			require.Equal(t, []string{"todo", "done"}, []string{e.FromColumn, e.ToColumn})
		}},
	} {
		a := b.send(t, e, c.method, path+c.path, "", c.body)
		is := as[Card](t, 200, a)
		event := b.lastEvent(t)
		require.Equal(t, c.kind, event.Kind, c.body)
		require.Equal(t, is.Rev, event.CardRev)
		require.Equal(t, etag(is.Rev), a.header.Get("ETag"))
		c.check(&is, &event)
		// The same again changes nothing, and makes no event.
		again := as[Card](t, 200, b.send(t, e, c.method, path+c.path, "", c.body))
		require.Equal(t, is, again, c.body)
		require.Equal(t, event.Seq, b.lastEvent(t).Seq, c.body)
	}
	require.Equal(t, 204, b.send(t, e, "DELETE", path, "", "").status)
	require.Equal(t, tracker.KindDeleted, b.lastEvent(t).Kind)
	require.Equal(t, 404, b.send(t, e, "DELETE", path, "", "").status)
	require.Equal(t, 404, b.get(t, e, path).status)
	require.Equal(t, 404, b.get(t, e, path+"/comments").status)
	require.Len(t, as[Page[trigger.Event]](t, 200, b.get(t, e, path+"/events")).Items, 9, "its events are kept")
}

func TestCardsAreRefusedByField(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	b.newCard(t, "c1")
	b.newCard(t, "c2", func(c *tracker.Card) { c.ColumnID = "done" })
	require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "other", ID: "b-other", Name: "b", Revision: 1, Columns: []tracker.Column{{ID: "todo", Name: "x"}}}))
	long, wide := strings.Repeat("x", 1025), strings.Repeat("é", 513)
	many := `["a` + strings.Join(strings.Split(fmt.Sprint(make([]int, 101)), " "), `","b`) + `"]`
	for _, c := range []struct{ method, path, body, field string }{
		{"POST", "", `{"board_id":"b-other","column_id":"todo","title":"t"}`, "body.board_id"},
		{"POST", "", `{"board_id":"board-1","column_id":"none","title":"t"}`, "body.column_id"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":""}`, "body.title"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"` + long + `"}`, "body.title"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"` + wide + `"}`, "body.title"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"t","labels":` + many + `}`, "body.labels"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"t","labels":["` + long + `"]}`, "body.labels[0]"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"t","labels":[{"$ne":""}]}`, "body.labels[0]"},
		{"POST", "", `{"board_id":{"$ne":""},"column_id":"todo","title":"t"}`, "body.board_id"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"t","rev":7}`, "body.rev"},
		{"POST", "", `{"board_id":"board-1","column_id":"todo","title":"t","body":"` + strings.Repeat("x", 262145) + `"}`, "body.body"},
		{"PATCH", "/c1", `{}`, "body"},
		{"PATCH", "/c1", `{"title":""}`, "body.title"},
		{"PATCH", "/c1", `{"title":"` + wide + `"}`, "body.title"},
		{"POST", "/c1/move", `{"column_id":"none"}`, "body.column_id"},
		{"POST", "/c1/move", `{"column_id":"done","after":"c1"}`, "body.after"},
		{"POST", "/c1/move", `{"column_id":"done","before":"nobody"}`, "body.before"},
		{"POST", "/c1/move", `{"column_id":"todo","after":"c2"}`, "body.after"},
		{"POST", "/c1/move", `{"column_id":"done","after":"c2","at":"top"}`, "body.at"},
		{"POST", "/c1/reorder", `{}`, "body.at"},
		{"POST", "/c1/reorder", `{"at":"middle"}`, "body.at"},
		{"POST", "/c1/reorder", `{"after":"c2"}`, "body.after"},
		{"POST", "/c1/labels", `{}`, "body.add"},
		{"POST", "/c1/labels", `{"add":["a","A"]}`, "body.add"},
		{"POST", "/c1/labels", `{"add":["  "]}`, "body.add"},
		{"POST", "/c1/labels", `{"add":["a"],"remove":["A"]}`, "body.remove"},
		{"POST", "/c1/assignees", `{"remove":[""]}`, "body.remove[0]"},
		{"POST", "/c1/comments", `{"body":""}`, "body.body"},
		{"POST", "/c1/comments", `{"body":"` + strings.Repeat("é", 2049) + `"}`, "body.body"},
	} {
		refusedField(t, b.send(t, e, c.method, acme+"/cards"+c.path, "", c.body), c.field)
	}
	require.Equal(t, 413, b.send(t, e, "POST", acme+"/cards", "", `{"body":"`+strings.Repeat("x", 3<<20)+`"}`).status)
	require.Len(t, b.card2(t, "c1").Pending, 1, "nothing was changed")
	// A hundred labels are there: one more is refused, an exchange is not.
	for i := range 10 {
		var add []string
		for j := range 10 {
			add = append(add, fmt.Sprintf(`"l%d%d"`, i, j))
		}
		require.Equal(t, 200, b.send(t, e, "POST", acme+"/cards/c1/labels", "", `{"add":[`+strings.Join(add, ",")+`]}`).status)
	}
	refusedField(t, b.send(t, e, "POST", acme+"/cards/c1/labels", "", `{"add":["more"]}`), "body.add")
	require.Equal(t, 200, b.send(t, e, "POST", acme+"/cards/c1/labels", "", `{"add":["more"],"remove":["L00"]}`).status)
}

func (b *bundle) card2(t *testing.T, id string) *tracker.Card {
	t.Helper()
	card, err := b.mem.CardGet(t.Context(), "acme", id)
	require.NoError(t, err)
	return card
}

// changesOfCards are a good call of each change of the card c1.
var changesOfCards = []struct{ method, path, body string }{
	{"PATCH", "", `{"title":"other"}`}, {"POST", "/move", `{"column_id":"done"}`}, {"POST", "/reorder", `{"at":"top"}`},
	{"POST", "/labels", `{"add":["new"]}`}, {"POST", "/assignees", `{"add":["new"]}`}, {"POST", "/comments", `{"body":"text"}`}, {"DELETE", "", ""},
}

// Each change can be made conditional on the rev; and the condition is the
// write's own (E1).
func TestE1_IfMatchIsOfTheWrite(t *testing.T) {
	t.Parallel()
	for _, c := range changesOfCards {
		t.Run(c.method+c.path, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			e := b.role(t, trigger.RoleEditor, "acme", "ed")
			b.newCard(t, "c0")
			b.newCard(t, "c1")
			path := acme + "/cards/c1" + c.path
			require.Equal(t, 412, b.send(t, e, c.method, path, `"2"`, c.body).status)
			require.Equal(t, 412, b.send(t, e, c.method, path, `"x"`, c.body).status)
			// Somebody else's change comes between the read and the write.
			retitle := func() error {
				_, err := b.server.board.Change(context.WithoutCancel(t.Context()), "acme", "c1", func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
					card.Title = "meanwhile"
					return card, nil, nil
				})
				return err
			}
			between := func() {
				b.store.on("CardWrite", func(context.Context) error {
					b.store.heal()
					return retitle()
				})
			}
			between()
			require.Equal(t, 412, b.send(t, e, c.method, path, `"1"`, c.body).status)
			require.Equal(t, "meanwhile", b.card2(t, "c1").Title)
			require.EqualValues(t, 2, b.card2(t, "c1").Rev)
			between()
			require.Less(t, b.send(t, e, c.method, path, "", c.body).status, 300, "without a condition it is made on top")
			require.EqualValues(t, 4, b.card2OrGone(t, "c1"))
		})
	}
}

func (b *bundle) card2OrGone(t *testing.T, id string) int64 {
	t.Helper()
	card, err := b.mem.CardGet(t.Context(), "acme", id)
	if err != nil {
		return 4 // relayed and buried
	}
	return card.Rev
}

// An answer of the database that is lost, the conditional write's too, and a
// relay that can't get through, are not the caller's trouble.
func TestChangesOfCardsWhenAnswersAreLost(t *testing.T) {
	t.Parallel()
	for _, c := range changesOfCards {
		t.Run(c.method+c.path, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			e := b.role(t, trigger.RoleEditor, "acme", "ed")
			b.newCard(t, "c0")
			b.newCard(t, "c1")
			b.loseOnce("CardWrite")
			b.store.fail("EventInsertMany")
			a := b.send(t, e, c.method, acme+"/cards/c1"+c.path, `"1"`, c.body)
			require.Less(t, a.status, 300, a.body)
			card := b.card2(t, "c1")
			require.EqualValues(t, 2, card.Rev, "made once")
			require.Len(t, card.Pending, 2, "left for the sweeper")
			b.store.heal()
			_, err := b.server.board.Relay.Card(t.Context(), "acme", "c1")
			require.NoError(t, err)
			require.Len(t, b.events(t), 2)
		})
	}
}

func TestFullCardIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	b.newCard(t, "c1")
	b.store.fail("EventInsertMany", "SeqAllocate")
	for i := range tracker.PendingMax - 1 {
		require.Equal(t, 200, b.send(t, e, "PATCH", acme+"/cards/c1", "", fmt.Sprintf(`{"title":"t%d"}`, i)).status)
	}
	a := b.send(t, e, "PATCH", acme+"/cards/c1", "", `{"title":"one more"}`)
	require.Equal(t, 503, a.status)
	require.Contains(t, a.problem(t).Detail, "64 events")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	a = b.send(t, e, "POST", acme+"/bulk/cards/label", "", `{"cards":["c1"],"add":["x"]}`)
	require.Equal(t, "refused", as[BulkChanged](t, 200, a).Items[0].Result)
	b.store.heal()
	require.Equal(t, 200, b.send(t, e, "PATCH", acme+"/cards/c1", "", `{"title":"one more"}`).status)
}

func TestMoveAndReorder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	for _, id := range []string{"a", "b", "c", "d"} {
		b.newCard(t, id)
	}
	require.Equal(t, []string{"a", "b", "c", "d"}, b.order(t, e, "todo"))
	do := func(id, op, body string) trigger.Event {
		t.Helper()
		require.Equal(t, 200, b.send(t, e, "POST", acme+"/cards/"+id+"/"+op, "", body).status)
		return b.lastEvent(t)
	}
	event := do("d", "reorder", `{"at":"top"}`)
	require.Equal(t, tracker.KindReordered, event.Kind)
	require.Empty(t, event.FromColumn+event.ToColumn, "it is no move")
	require.Equal(t, []string{"d", "a", "b", "c"}, b.order(t, e, "todo"))
	do("d", "reorder", `{"after":"b"}`)
	require.Equal(t, []string{"a", "b", "d", "c"}, b.order(t, e, "todo"))
	do("c", "reorder", `{"before":"b"}`)
	require.Equal(t, []string{"a", "c", "b", "d"}, b.order(t, e, "todo"))
	do("a", "reorder", `{"at":"bottom"}`)
	require.Equal(t, []string{"c", "b", "d", "a"}, b.order(t, e, "todo"))
	seq := b.lastEvent(t).Seq
	do("a", "reorder", `{"at":"bottom"}`)
	do("b", "reorder", `{"after":"c"}`)
	do("b", "move", `{"column_id":"todo","before":"d"}`)
	require.Equal(t, seq, b.lastEvent(t).Seq, "where it stands already nothing is changed")
	require.Equal(t, tracker.KindReordered, do("b", "move", `{"column_id":"todo","at":"top"}`).Kind)
	require.Equal(t, []string{"b", "c", "d", "a"}, b.order(t, e, "todo"))

	require.Equal(t, tracker.KindMoved, do("b", "move", `{"column_id":"done"}`).Kind)
	do("a", "move", `{"column_id":"done","at":"top"}`)
	do("c", "move", `{"column_id":"done","after":"a"}`)
	do("d", "move", `{"column_id":"done"}`)
	require.Equal(t, []string{"a", "c", "b", "d"}, b.order(t, e, "done"))
	require.Empty(t, b.order(t, e, "todo"))
}

// Cards that many move to one place at once are all there, each event once.
func TestMovesAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.role(t, trigger.RoleEditor, "acme", "ed")
	const n = 8
	for i := range n {
		b.newCard(t, fmt.Sprint("c", i))
	}
	done := make(chan int, 2*n)
	for i := range n {
		go func() {
			done <- b.send(t, e, "POST", fmt.Sprintf("%s/cards/c%d/move", acme, i), "", `{"column_id":"done","at":"top"}`).status
		}()
		go func() {
			done <- b.send(t, e, "POST", fmt.Sprintf("%s/cards/c%d/labels", acme, i), "", `{"add":["x"]}`).status
		}()
	}
	for range 2 * n {
		require.Equal(t, 200, <-done)
	}
	require.Len(t, b.order(t, e, "done"), n)
	per := map[tracker.Kind]int{}
	for _, k := range b.kinds(t) {
		per[k]++
	}
	require.Equal(t, map[tracker.Kind]int{tracker.KindCreated: n, tracker.KindMoved: n, tracker.KindLabeled: n}, per)
}

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
	require.EqualValues(t, b.card2(t, "a").Rev, label.Items[0].Rev)
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
