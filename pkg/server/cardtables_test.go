package server

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (f *faultStore) BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error) {
	return ask(ctx, f, "BoardGet", func() (*tracker.Board, error) { return f.Store.BoardGet(ctx, tenantID, id) })
}

func (f *faultStore) BoardList(ctx context.Context, tenantID string) ([]tracker.Board, error) {
	return ask(ctx, f, "BoardList", func() ([]tracker.Board, error) { return f.Store.BoardList(ctx, tenantID) })
}

func (f *faultStore) BoardSave(ctx context.Context, b *tracker.Board) error {
	return f.call(ctx, "BoardSave", func() error { return f.Store.BoardSave(ctx, b) })
}

func (f *faultStore) BoardDelete(ctx context.Context, tenantID, id string, revision int64) error {
	return f.call(ctx, "BoardDelete", func() error { return f.Store.BoardDelete(ctx, tenantID, id, revision) })
}

func (f *faultStore) CardCount(ctx context.Context, tenantID, board, column string) (int, error) {
	return ask(ctx, f, "CardCount", func() (int, error) { return f.Store.CardCount(ctx, tenantID, board, column) })
}

func (f *faultStore) CardComments(ctx context.Context, tenantID, card string) ([]tracker.Comment, error) {
	return ask(ctx, f, "CardComments", func() ([]tracker.Comment, error) { return f.Store.CardComments(ctx, tenantID, card) })
}

func (f *faultStore) EventListByCard(ctx context.Context, tenantID, card string, before int64, limit int) ([]trigger.Event, error) {
	return ask(ctx, f, "EventListByCard", func() ([]trigger.Event, error) {
		return f.Store.EventListByCard(ctx, tenantID, card, before, limit)
	})
}

func (f *faultStore) EffectListByCard(ctx context.Context, tenantID, card string, after trigger.EffectKey, limit int) ([]trigger.Effect, error) {
	return ask(ctx, f, "EffectListByCard", func() ([]trigger.Effect, error) {
		return f.Store.EffectListByCard(ctx, tenantID, card, after, limit)
	})
}

// boardReads are good calls of the operations that read boards and what is on
// them, after issues.opened, and what they ask the store for that can fail.
func boardReads() map[string][2]string {
	card := "/v1/tenants/acme/cards/" + issueCard()
	return map[string][2]string{
		"list-boards":       {"/v1/tenants/acme/boards", "BoardList"},
		"get-board":         {"/v1/tenants/acme/boards/board-1", "BoardGet"},
		"get-event":         {"/v1/tenants/acme/events/2", "EventList"},
		"list-card-events":  {card + "/events", "EventListByCard"},
		"list-card-effects": {card + "/effects", "EffectListByCard"},
		"list-comments":     {card + "/comments", "CardComments"},
	}
}

// boardWrites are good calls of the operations that change them; each is of a
// card or a board of its own.
func (b *bundle) boardWrites(t *testing.T) map[string]call {
	t.Helper()
	for _, id := range []string{"replace-board", "delete-board"} {
		if _, err := b.mem.BoardGet(t.Context(), "acme", id); err != nil {
			require.NoError(t, b.mem.BoardSave(t.Context(), &tracker.Board{TenantID: "acme", ID: id, Name: id, Revision: 1, Columns: []tracker.Column{{ID: "todo", Name: "To do"}}}))
		}
	}
	const tenant = "/v1/tenants/acme"
	out := map[string]call{
		"create-board":     {http.MethodPost, tenant + "/boards", `{"name":"new","columns":[{"id":"todo","name":"To do"}]}`, 201, "", "BoardSave"},
		"replace-board":    {http.MethodPut, tenant + "/boards/replace-board", `{"name":"renamed","columns":[{"id":"todo","name":"To do"}]}`, 200, "", "BoardSave"},
		"delete-board":     {http.MethodDelete, tenant + "/boards/delete-board", "", 200, "", "BoardDelete"},
		"create-card":      {http.MethodPost, tenant + "/cards", `{"board_id":"board-1","column_id":"todo","title":"T"}`, 201, "", "BoardGet"},
		"bulk-move-cards":  {http.MethodPost, tenant + "/bulk/cards/move", `{"cards":["bulk-move-cards"],"board_id":"board-1","column_id":"done"}`, 200, "", "CardsGet"},
		"bulk-label-cards": {http.MethodPost, tenant + "/bulk/cards/label", `{"cards":["bulk-label-cards"],"add":["x"]}`, 200, "", "CardsGet"},
	}
	for op, c := range map[string]call{
		"edit-card":      {http.MethodPatch, "", `{"title":"edited"}`, 200, "", "CardGet"},
		"move-card":      {http.MethodPost, "/move", `{"column_id":"done"}`, 200, "", "CardGet"},
		"reorder-card":   {http.MethodPost, "/reorder", `{"at":"top"}`, 200, "", "CardList"},
		"label-card":     {http.MethodPost, "/labels", `{"add":["x"]}`, 200, "", "CardGet"},
		"assign-card":    {http.MethodPost, "/assignees", `{"add":["mona"]}`, 200, "", "CardGet"},
		"create-comment": {http.MethodPost, "/comments", `{"body":"a comment"}`, 201, "", "CardGet"},
		"delete-card":    {http.MethodDelete, "", "", 204, "", "CardGet"},
	} {
		c.path = tenant + "/cards/" + op + c.path
		out[op] = c
	}
	for op := range out {
		b.newCard(t, op)
	}
	return out
}

// newCard makes a card of acme's board, unless there is one.
func (b *bundle) newCard(t *testing.T, id string, with ...func(*tracker.Card)) {
	t.Helper()
	_, err := b.server.board.Change(t.Context(), "acme", id, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card != nil {
			return nil, nil, nil
		}
		card = &tracker.Card{BoardID: "board-1", ColumnID: "todo", Title: "Card " + id, Body: "text"}
		for _, f := range with {
			f(card)
		}
		return card, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}, ToColumn: "todo"}, nil
	})
	require.NoError(t, err)
}

// boardBodyMax are the bounds of bodies other than the usual one.
func boardBodyMax() map[string]int64 {
	return map[string]int64{
		"create-board": boardMaxBytes, "replace-board": boardMaxBytes, "create-card": 2 << 20, "edit-card": 2 << 20, "label-card": 256 << 10,
		"assign-card": 256 << 10, "create-comment": 64 << 10, "bulk-move-cards": 512 << 10, "bulk-label-cards": 512 << 10,
	}
}

func boardBadParameters() (out []badParameter) {
	const bad = "s3cret-x'{$ne}"
	at, in := url.PathEscape(bad), url.QueryEscape(bad)
	const acme = "/v1/tenants/acme"
	for op, path := range map[string]string{
		"list-boards": "/boards", "get-board": "/boards/x", "get-event": "/events/1", "list-card-events": "/cards/x/events",
		"list-card-effects": "/cards/x/effects", "list-comments": "/cards/x/comments", "get-comment": "/cards/x/comments/y",
	} {
		out = append(out, badParameter{op, "tenant", "/v1/tenants/" + at + path, "path.tenant"})
		if op[:4] == "list" {
			out = append(out,
				badParameter{op, "after", acme + path + "?after=" + in, "query.after"},
				badParameter{op, "limit", acme + path + "?limit=" + in, "query.limit"})
		}
	}
	for op, path := range map[string]string{
		"list-card-events": "/events", "list-card-effects": "/effects", "list-comments": "/comments", "get-comment": "/comments/y",
	} {
		out = append(out, badParameter{op, "card", acme + "/cards/" + at + path, "path.card"})
	}
	return append(out,
		badParameter{"get-board", "board", acme + "/boards/" + at, "path.board"},
		badParameter{"get-event", "seq", acme + "/events/" + at, "path.seq"},
		badParameter{"get-comment", "comment", acme + "/cards/x/comments/" + at, "path.comment"},
		badParameter{"list-cards", "board", acme + "/cards?board=" + in, "query.board"},
		badParameter{"list-cards", "column", acme + "/cards?board=x&column=" + in, "query.column"},
		badParameter{"list-cards", "label", acme + "/cards?label=" + in + url.QueryEscape(longText), "query.label"},
		badParameter{"list-cards", "text", acme + "/cards?text=" + in + url.QueryEscape(longText), "query.text"},
	)
}

// longText is longer than any text of one line may be.
var longText = func() string {
	text := make([]byte, 300)
	for i := range text {
		text[i] = 'x'
	}
	return string(text)
}()
