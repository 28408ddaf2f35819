package server

import (
	"context"
	"fmt"
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
	{"PATCH", "", `{"title":"other"}`},
	{"POST", "/move", `{"column_id":"done"}`},
	{"POST", "/reorder", `{"at":"top"}`},
	{"POST", "/labels", `{"add":["new"]}`},
	{"POST", "/assignees", `{"add":["new"]}`},
	{"POST", "/comments", `{"body":"text"}`},
	{"DELETE", "", ""},
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
	ctx := context.WithValue(t.Context(), tokenKey{}, &trigger.Token{Name: "ed", Role: trigger.RoleEditor, TenantID: "acme"})
	api := b.server.api
	top := move("done", func(ctx context.Context, card *tracker.Card, now time.Time) (string, error) {
		return api.Board.Position(ctx, card, "done", trigger.Place{Top: true}, now)
	})
	done := make(chan error, 2*n)
	for i := range n {
		for _, f := range []edit{top, (&NamesBody{Add: []NameText{"x"}}).label} {
			go func() {
				_, err := api.changeCard(ctx, &CardInput{TenantInput{"acme"}, fmt.Sprint("c", i)}, &MatchInput{}, f)
				done <- err
			}()
		}
	}
	for range 2 * n {
		require.NoError(t, <-done)
	}
	require.Len(t, b.order(t, e, "done"), n)
	per := map[tracker.Kind]int{}
	for _, k := range b.kinds(t) {
		per[k]++
	}
	require.Equal(t, map[tracker.Kind]int{tracker.KindCreated: n, tracker.KindMoved: n, tracker.KindLabeled: n}, per)
}
