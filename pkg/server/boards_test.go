package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const acme = "/v1/tenants/acme"

// send makes a call with an If-Match, unless that is empty.
func (b *bundle) send(t *testing.T, token, method, path, match, body string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, b.url+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if match != "" {
		req.Header.Set("If-Match", match)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return b.do(t, req)
}

// as returns the body of an answer of a status.
func as[T any](t *testing.T, status int, a answer) (v T) {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	return v
}

// refusedField checks that an answer refuses the field.
func refusedField(t *testing.T, a answer, field string) {
	t.Helper()
	require.Equal(t, 422, a.status, a.body)
	p := a.problem(t)
	require.Len(t, p.Errors, 1, a.body)
	require.Equal(t, field, p.Errors[0].Field)
}

func columnsOf(ids ...string) string {
	var out []string
	for _, id := range ids {
		out = append(out, fmt.Sprintf(`{"id":%q,"name":%q}`, id, strings.ToUpper(id)))
	}
	return "[" + strings.Join(out, ",") + "]"
}

func boardJSON(name string, columns ...string) string {
	return fmt.Sprintf(`{"name":%q,"columns":%s}`, name, columnsOf(columns...))
}

func TestBoards(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	a := b.send(t, editor, "POST", acme+"/boards", "", boardJSON("plan", "todo", "doing", "done"))
	board := as[Board](t, 201, a)
	require.Equal(t, `"1"`, a.header.Get("ETag"))
	path := a.header.Get("Location")
	require.Equal(t, acme+"/boards/"+board.ID, path)
	a = b.get(t, editor, path)
	require.Equal(t, `"1"`, a.header.Get("ETag"))
	require.Equal(t, board, as[Board](t, 200, a))
	require.Equal(t, "TODO", board.Columns[0].Name)

	list := as[Page[Board]](t, 200, b.get(t, editor, acme+"/boards?limit=1"))
	require.Equal(t, []Board{board}, list.Items, "by id")
	list = as[Page[Board]](t, 200, b.get(t, editor, acme+"/boards?limit=1&after="+list.Next))
	require.Equal(t, "board-1", list.Items[0].ID)
	require.Empty(t, list.Next)

	require.Equal(t, 409, b.send(t, editor, "POST", acme+"/boards", "", boardJSON("plan", "todo")).status, "the name")
	for body, field := range map[string]string{
		boardJSON("Plan", "todo"): "body.name", boardJSON("p"): "body.columns", boardJSON("p", "a", "a"): "body.columns[1].id",
		boardJSON("p", "A b"): "body.columns[0].id", `{"name":"p","columns":[{"id":"a","name":" x"}]}`: "body.columns[0].name",
		`{"name":"p","columns":null}`: "body.columns",
	} {
		refusedField(t, b.send(t, editor, "POST", acme+"/boards", "", body), field)
		if body != boardJSON("p") {
			refusedField(t, b.send(t, editor, "PUT", path, "*", body), field)
		}
	}
	// An edit says what it saw.
	require.Equal(t, 428, b.send(t, editor, "PUT", path, "", boardJSON("plan2", "todo")).status)
	require.Equal(t, 412, b.send(t, editor, "PUT", path, `"7"`, boardJSON("plan2", "todo")).status)
	a = b.send(t, editor, "PUT", path, `"1"`, boardJSON("plan2", "done", "todo", "new"))
	require.Equal(t, []Column{{ID: "done", Name: "DONE"}, {ID: "todo", Name: "TODO"}, {ID: "new", Name: "NEW"}}, as[Board](t, 200, a).Columns)
	require.Equal(t, `"2"`, a.header.Get("ETag"))
	require.Equal(t, `"2"`, b.send(t, editor, "PUT", path, "*", boardJSON("plan2", "done", "todo", "new")).header.Get("ETag"), "nothing to change")
	require.Equal(t, 409, b.send(t, editor, "PUT", path, "*", boardJSON("issues", "done")).status, "the other board's name")
	// Somebody else's edit in between.
	b.store.on("BoardSave", func(context.Context) error {
		b.store.heal()
		saved, err := b.mem.BoardGet(t.Context(), "acme", board.ID)
		require.NoError(t, err)
		saved.Revision++
		return b.mem.BoardSave(t.Context(), saved)
	})
	require.Equal(t, 412, b.send(t, editor, "PUT", path, `"2"`, boardJSON("plan3", "done")).status)
	b.store.on("BoardSave", func(context.Context) error {
		b.store.heal()
		saved, err := b.mem.BoardGet(t.Context(), "acme", board.ID)
		require.NoError(t, err)
		saved.Revision++
		return b.mem.BoardSave(t.Context(), saved)
	})
	require.Equal(t, `"5"`, b.send(t, editor, "PUT", path, "*", boardJSON("plan3", "done")).header.Get("ETag"), "again, on top of it")

	require.Equal(t, 412, b.send(t, editor, "DELETE", path, `"2"`, "").status)
	require.Empty(t, as[Deleted](t, 200, b.send(t, editor, "DELETE", path, `"5"`, "")).Dangling)
	require.Equal(t, 404, b.get(t, editor, path).status)
	for _, c := range [][2]string{{"GET", ""}, {"PUT", boardJSON("p", "a")}, {"DELETE", ""}} {
		a := b.send(t, editor, c[0], path, "*", c[1])
		require.Equal(t, 404, a.status)
		other := b.send(t, b.role(t, trigger.RoleEditor, "other", "o"), c[0], "/v1/tenants/other/boards/"+board.ID, "*", c[1])
		require.Equal(t, a.body, other.body)
	}
	for i := range tracker.BoardsMax - 1 {
		require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "acme", ID: fmt.Sprint("x", i), Name: fmt.Sprint("x", i), Revision: 1}))
	}
	a = b.send(t, editor, "POST", acme+"/boards", "", boardJSON("plan", "todo"))
	require.Equal(t, 409, a.status)
	require.Contains(t, a.body, "100 boards")
}

// What has cards or a hook stays; what merely refers to it is told of.
func TestColumnsThatAreUsedStay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "acme", ID: "b2", Name: "plan", Revision: 1, Columns: []tracker.Column{{ID: "todo", Name: "To do"}, {ID: "next", Name: "Next"}}}))
	require.NoError(t, b.mem.SubscriptionSave(t.Context(), &trigger.Subscription{TenantID: "acme", ID: "s1", Name: "sub", Revision: 1, BotID: botID, On: trigger.EventFilter{BoardID: "b2", To: "next"}}))
	require.NoError(t, b.mem.ProjectionSave(t.Context(), &trigger.Projection{TenantID: "acme", ID: "p1", Name: "proj", Revision: 1, FromBoardID: "b2", ToBoardID: "board-1", Columns: []trigger.ColumnPair{{From: "next", To: "todo"}}}))
	path := acme + "/boards/b2"

	a := b.send(t, editor, "PUT", acme+"/boards/board-1", "*", boardJSON("issues", "todo"))
	require.Equal(t, 409, a.status, "a hook's")
	require.Contains(t, a.problem(t).Detail, "hook hook-")
	require.Equal(t, 409, b.send(t, editor, "DELETE", acme+"/boards/board-1", "", "").status)

	for i := range 3 {
		b.newCard(t, fmt.Sprint("c", i), func(c *tracker.Card) { c.BoardID, c.ColumnID = "b2", "next" })
	}
	a = b.send(t, editor, "PUT", path, "*", boardJSON("plan", "todo"))
	require.Equal(t, 409, a.status)
	require.Contains(t, a.problem(t).Detail, "the column next has 3 cards")
	a = b.send(t, editor, "DELETE", path, "", "")
	require.Equal(t, 409, a.status)
	require.Contains(t, a.problem(t).Detail, "3 cards")
	got, err := b.mem.BoardGet(t.Context(), "acme", "b2")
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Revision, "nothing was written")
	for i := range 3 {
		_, err := b.server.board.Delete(t.Context(), "acme", fmt.Sprint("c", i), tracker.Actor{})
		require.NoError(t, err)
	}
	require.Equal(t, []Dangling{{"subscription", "s1", "sub", "on.to"}, {"projection", "p1", "proj", "columns.next"}},
		as[Board](t, 200, b.send(t, editor, "PUT", path, "*", boardJSON("plan", "todo"))).Dangling)
	require.Equal(t, []Dangling{{"subscription", "s1", "sub", "on.board_id"}, {"projection", "p1", "proj", "from_board_id"}},
		as[Deleted](t, 200, b.send(t, editor, "DELETE", path, "", "")).Dangling)
}

// A card that comes in while its column or board goes: they are put back, and
// the call is refused. So after an answer that was lost, too.
func TestCardComesInWhileItsColumnGoes(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(t *testing.T, b *bundle, come func()){
		"before the save": func(_ *testing.T, b *bundle, come func()) { b.once("BoardSave", func() error { come(); return nil }) },
		"before a save whose answer fails": func(_ *testing.T, b *bundle, come func()) {
			b.once("BoardSave", func() error { come(); return nil })
			b.loseOnce("BoardSave")
		},
		"before the second count, and the store then fails": func(_ *testing.T, b *bundle, come func()) {
			n := 0
			b.store.on("CardCount", func(context.Context) error {
				if n++; n == 2 {
					come()
					return errFault
				}
				return nil
			})
		},
	} {
		for method, body := range map[string]string{"PUT": boardJSON("plan", "todo"), "DELETE": ""} {
			t.Run(name+", "+method, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				editor := b.role(t, trigger.RoleEditor, "acme", "e")
				columns := []tracker.Column{{ID: "next", Name: "Next"}, {ID: "todo", Name: "TODO"}}
				require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "acme", ID: "b2", Name: "plan", Revision: 1, Columns: columns}))
				came := 0
				way(t, b, func() {
					came++
					b.newCard(t, "late", func(c *tracker.Card) { c.BoardID, c.ColumnID = "b2", "next" })
				})
				a := b.send(t, editor, method, acme+"/boards/b2", "*", body)
				b.store.heal()
				require.Positive(t, came)
				if strings.HasPrefix(name, "before the second") {
					require.Equal(t, 503, a.status, a.body)
				} else {
					require.Equal(t, 409, a.status, a.body)
					require.Contains(t, a.problem(t).Detail, "1 card")
				}
				got, err := b.mem.BoardGet(t.Context(), "acme", "b2")
				require.NoError(t, err)
				require.Equal(t, columns, got.Columns)
				require.Greater(t, got.Revision, int64(1), "no revision comes twice")
				card := as[CardDetail](t, 200, b.get(t, editor, acme+"/cards/late"))
				require.False(t, card.ColumnGone)
			})
		}
	}
}

// once runs it before the first call of the op, and no more.
func (b *bundle) once(op string, do func() error) {
	done := false
	b.store.on(op, func(context.Context) error {
		if done {
			return nil
		}
		done = true
		return do()
	})
}

// loseOnce loses the answer of the first call of the op.
func (b *bundle) loseOnce(op string) {
	b.store.lose(op)
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	lost := false
	b.store.after[op] = func(context.Context) error {
		if lost {
			return nil
		}
		lost = true
		return errFault
	}
}

// What is left of the race is shown on the card, and can be mended.
func TestColumnGoneIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	b.newCard(t, "c1", func(c *tracker.Card) { c.ColumnID = "gone" })
	b.newCard(t, "c2", func(c *tracker.Card) { c.BoardID = "gone" })
	b.newCard(t, "c3")
	for id, gone := range map[string]bool{"c1": true, "c2": true, "c3": false} {
		require.Equal(t, gone, as[CardDetail](t, 200, b.get(t, editor, acme+"/cards/"+id)).ColumnGone, id)
	}
	for _, c := range as[Page[ListedCard]](t, 200, b.get(t, editor, acme+"/cards")).Items {
		require.Equal(t, c.ID != "c3", c.ColumnGone, c.ID)
	}
	require.Equal(t, 200, b.send(t, editor, "POST", acme+"/cards/c1/move", "", `{"column_id":"todo"}`).status)
	require.False(t, as[CardDetail](t, 200, b.get(t, editor, acme+"/cards/c1")).ColumnGone)
	refusedField(t, b.send(t, editor, "POST", acme+"/cards/c2/move", "", `{"column_id":"todo"}`), "body.board_id")
}

// A create that is sent again with its key makes one thing.
func TestCreatesAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.newCard(t, "c1")
	api := b.server.api
	ctx := context.WithValue(t.Context(), tokenKey{}, &trigger.Token{Name: "e", Role: trigger.RoleEditor, TenantID: "acme"})
	var trail []change
	ctx = context.WithValue(ctx, trailKey{}, &trail)
	keyed := func(id string, again bool) context.Context {
		return context.WithValue(ctx, createKeyKey{}, createKey{id: id, again: again, used: new(atomic.Bool)})
	}
	card := &CardInput{TenantInput{"acme"}, "c1"}
	for name, create := range map[string]func(ctx context.Context) (location string, err error){
		"board": func(ctx context.Context) (string, error) {
			out, err := api.boardCreate(ctx, "acme", &BoardBody{Name: "plan", Columns: []Column{{ID: "todo", Name: "To do"}}})
			if err != nil {
				return "", err
			}
			require.Equal(t, 201, out.Status)
			return out.Location + out.ETag + out.Body.ID, nil
		},
		"card": func(ctx context.Context) (string, error) {
			out, err := api.cardCreate(ctx, "acme", &CardBody{BoardID: "board-1", ColumnID: "todo", Title: "T"})
			if err != nil {
				return "", err
			}
			require.Equal(t, 201, out.Status)
			return out.Location + out.ETag + out.Body.ID, nil
		},
		"comment": func(ctx context.Context) (string, error) {
			out, err := api.commentCreate(ctx, card, &MatchInput{}, "text")
			if err != nil {
				return "", err
			}
			require.Equal(t, 201, out.Status)
			return out.Location + out.Body.ID, nil
		},
	} {
		trail = nil
		first, err := create(keyed(name+"-key", false))
		require.NoError(t, err)
		require.Contains(t, first, name+"-key")
		second, err := create(keyed(name+"-key", true))
		require.NoError(t, err)
		require.Equal(t, first, second)
		require.Len(t, trail, 1, "one change")
		// A call before this one that made nothing.
		third, err := create(keyed("x"+name+"-key", true))
		if name != "board" { // the name is taken
			require.NoError(t, err)
			require.NotEqual(t, first, third)
		}
	}
	comments, err := b.mem.CardComments(t.Context(), "acme", "c1")
	require.NoError(t, err)
	require.Len(t, comments, 2)
}
