package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Board is a board as the API shows it.
type Board struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Columns   []Column   `json:"columns" doc:"left to right"`
	Revision  int64      `json:"revision"`
	UpdatedAt time.Time  `json:"updated_at"`
	Dangling  []Dangling `json:"dangling,omitempty" doc:"of an answer to a change: what refers to something that it took away"`
}

// Column is a column as the API shows it.
type Column struct {
	ID       string `json:"id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"cards, subscriptions and hooks refer to it; a rename leaves it as it is"`
	Name     string `json:"name" minLength:"1" maxLength:"63"`
	Terminal bool   `json:"terminal,omitempty" doc:"finished cards stand here"`
}

func newBoard(b *tracker.Board) Board {
	out := Board{ID: b.ID, Name: b.Name, Columns: []Column{}, Revision: b.Revision, UpdatedAt: b.UpdatedAt}
	for _, c := range b.Columns {
		out.Columns = append(out.Columns, Column(c))
	}
	return out
}

// BoardBody is a board to be made, or what one is to be.
type BoardBody struct {
	Name    string   `json:"name" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"triggers.yaml refers to it"`
	Columns []Column `json:"columns" minItems:"1" maxItems:"100" nullable:"false" doc:"left to right"`
}

func (b *BoardBody) columns() (out []tracker.Column) {
	for _, c := range b.Columns {
		out = append(out, tracker.Column(c))
	}
	return out
}

// BoardInput is the board of a call.
type BoardInput struct {
	TenantInput
	Board string `path:"board" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

// boardMaxBytes is the largest body of a board: a hundred columns.
const boardMaxBytes = 64 << 10

func boardBody(o *huma.Operation) { o.MaxBodyBytes = boardMaxBytes }

func (a *API) registerBoards(api huma.API) {
	huma.Get(api, "/v1/tenants/{tenant}/boards", func(ctx context.Context, in *struct {
		TenantInput
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Board]], error) {
		after, err := readCursor("boards", in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		all, err := a.Store.BoardList(ctx, in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		slices.SortFunc(all, func(a, b tracker.Board) int { return cmp.Compare(a.ID, b.ID) })
		page := Page[Board]{Items: []Board{}}
		for i := range all {
			if all[i].ID <= after {
				continue
			}
			if len(page.Items) == in.Limit {
				page.Next = newCursor("boards", page.Items[in.Limit-1].ID)
				break
			}
			page.Items = append(page.Items, newBoard(&all[i]))
		}
		return &one[Page[Board]]{page}, nil
	}, named("list-boards", "A page of the tenant's boards, by id."))

	huma.Post(api, "/v1/tenants/{tenant}/boards", func(ctx context.Context, in *struct {
		TenantInput
		Body BoardBody
	},
	) (*made[Board], error) {
		return a.boardCreate(ctx, in.Tenant, &in.Body)
	}, named("create-board", "Make a board."), creates, boardBody)

	huma.Get(api, "/v1/tenants/{tenant}/boards/{board}", func(ctx context.Context, in *struct{ BoardInput }) (*tagged[Board], error) {
		board, err := a.Store.BoardGet(ctx, in.Tenant, in.Board)
		if err != nil {
			return nil, a.fail(err)
		}
		return &tagged[Board]{etag(board.Revision), newBoard(board)}, nil
	}, named("get-board", "One board."))

	huma.Put(api, "/v1/tenants/{tenant}/boards/{board}", func(ctx context.Context, in *struct {
		BoardInput
		MatchInput
		Body BoardBody
	},
	) (*tagged[Board], error) {
		return a.boardReplace(ctx, in.Tenant, in.Board, &in.MatchInput, &in.Body)
	}, named("replace-board", "Rename a board, or change its columns. A column that has cards, or that a hook names, stays."), boardBody)

	huma.Delete(api, "/v1/tenants/{tenant}/boards/{board}", func(ctx context.Context, in *struct {
		BoardInput
		MatchInput
	},
	) (*one[Deleted], error) {
		return a.boardDelete(ctx, in.Tenant, in.Board, &in.MatchInput)
	}, named("delete-board", "Delete a board that has no cards and that no hook names."), func(o *huma.Operation) { o.DefaultStatus = http.StatusOK })
}

func boardPath(tenantID, id string) string { return "/v1/tenants/" + tenantID + "/boards/" + id }

func (a *API) boardCreate(ctx context.Context, tenantID string, body *BoardBody) (*made[Board], error) {
	id, again := newID(ctx)
	answer := func(b *tracker.Board) *made[Board] {
		return &made[Board]{http.StatusCreated, etag(b.Revision), boardPath(tenantID, b.ID), newBoard(b)}
	}
	if again {
		there, err := a.Store.BoardGet(ctx, tenantID, id)
		if err == nil {
			return answer(there), nil
		}
		if !errors.Is(err, tracker.ErrNotFound) {
			return nil, a.fail(err)
		}
	}
	board := &tracker.Board{TenantID: tenantID, ID: id, Name: body.Name, Columns: body.columns(), Revision: 1, UpdatedAt: a.Store.Now()}
	if err := board.Validate(); err != nil {
		return nil, a.fail(inBody(err))
	}
	all, err := a.Store.BoardList(ctx, tenantID)
	if err != nil {
		return nil, a.fail(err)
	}
	if len(all) >= tracker.BoardsMax {
		return nil, huma.Error409Conflict(fmt.Sprintf("a tenant may have %d boards: delete one first", tracker.BoardsMax))
	}
	err = a.Store.BoardSave(ctx, board)
	if errors.Is(err, tracker.ErrConflict) {
		if there, gerr := a.Store.BoardGet(ctx, tenantID, id); gerr == nil {
			return answer(there), nil
		}
		return nil, nameTaken("board")
	}
	if err != nil {
		return nil, a.fail(err)
	}
	noteChange(ctx, "board", id, nil, newBoard(board))
	return answer(board), nil
}

// nameTaken refuses a name that another thing of the kind has.
func nameTaken(kind string) error {
	return huma.Error409Conflict("another " + kind + " of the tenant has this name: take another one")
}

// blindTries is how often an edit of whatever is there is made again on top of
// somebody else's.
const blindTries = 5

func (a *API) boardReplace(ctx context.Context, tenantID, id string, match *MatchInput, body *BoardBody) (*tagged[Board], error) {
	for try := 0; ; try++ {
		was, err := a.Store.BoardGet(ctx, tenantID, id)
		if err != nil {
			return nil, a.fail(err)
		}
		if err := match.check(was.Revision, true); err != nil {
			return nil, err
		}
		next := *was
		next.Name, next.Columns = body.Name, body.columns()
		if err := next.Validate(); err != nil {
			return nil, a.fail(inBody(err))
		}
		if next.Name == was.Name && slices.Equal(next.Columns, was.Columns) {
			return &tagged[Board]{etag(was.Revision), newBoard(was)}, nil
		}
		next.Revision, next.UpdatedAt = was.Revision+1, a.Store.Now()
		dangling, err := a.boardSave(ctx, was, &next)
		if errors.Is(err, tracker.ErrConflict) && try < blindTries {
			if now, gerr := a.Store.BoardGet(ctx, tenantID, id); gerr == nil && now.Revision == was.Revision {
				return nil, nameTaken("board")
			}
			if match.blind() {
				continue
			}
			return nil, errChanged()
		}
		if err != nil {
			return nil, a.fail(err)
		}
		view := newBoard(&next)
		noteChange(ctx, "board", id, newBoard(was), view)
		view.Dangling = dangling
		return &tagged[Board]{etag(next.Revision), view}, nil
	}
}

// boardSave saves a board that may lack columns that it had, and returns what
// dangles because of it. What has cards, or a hook, is not taken away: it is
// looked at before the save and after it, and put back if somebody got in
// between (docs/adr/0029-deleting-columns-and-boards.md). It returns an error of
// the API where it refuses, and tracker.ErrConflict as the store does.
func (a *API) boardSave(ctx context.Context, was, next *tracker.Board) ([]Dangling, error) {
	gone := slices.DeleteFunc(slices.Clone(was.Columns), func(c tracker.Column) bool { return next.Column(c.ID) != nil })
	if len(gone) == 0 {
		return nil, a.boardWrite(ctx, next)
	}
	l, err := a.mayTake(ctx, was, gone)
	if err != nil {
		return nil, err
	}
	if err := a.boardWrite(ctx, next); err != nil {
		return nil, err
	}
	if _, err := a.mayTake(ctx, was, gone); err != nil {
		return nil, a.putBack(ctx, was, gone, err)
	}
	return l.danglingAfter(func(l *links) { l.boards[next.ID] = next }), nil
}

// boardWrite saves, and finds out what became of a save whose answer was lost:
// what follows on a save must not be left undone.
func (a *API) boardWrite(ctx context.Context, next *tracker.Board) error {
	err := a.Store.BoardSave(ctx, next)
	if err == nil || errors.Is(err, tracker.ErrConflict) {
		return err
	}
	there, gerr := a.Store.BoardGet(ctx, next.TenantID, next.ID)
	if gerr == nil && there.Revision == next.Revision && there.Name == next.Name && there.UpdatedAt.Equal(next.UpdatedAt) &&
		slices.Equal(there.Columns, next.Columns) {
		return nil
	}
	return err
}

// mayTake refuses to take columns off a board that have cards or a hook.
func (a *API) mayTake(ctx context.Context, board *tracker.Board, columns []tracker.Column) (*links, error) {
	l, err := a.links(ctx, board.TenantID)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		for i := range l.hooks {
			if h := &l.hooks[i]; h.BoardID == board.ID && (h.OpenColumn == c.ID || h.ClosedColumn == c.ID) {
				return nil, huma.Error409Conflict(fmt.Sprintf("the hook %s names the column %s: its deliveries would fail; change the hook first", h.Name, c.ID))
			}
		}
		n, err := a.Store.CardCount(ctx, board.TenantID, board.ID, c.ID)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			return nil, huma.Error409Conflict(fmt.Sprintf("the column %s has %s: move them first", c.ID, cards(n)))
		}
	}
	return l, nil
}

func cards(n int) string {
	switch n {
	case 1:
		return "1 card"
	case tracker.CardCountMax:
		return fmt.Sprintf("%d cards or more", n)
	}
	return fmt.Sprintf("%d cards", n)
}

// putBackWait bounds putting columns back, which goes on without its caller.
const putBackWait = 10 * time.Second

// putBack gives a board columns back that it had, where they were, whatever
// else it became meanwhile, and returns why.
func (a *API) putBack(ctx context.Context, was *tracker.Board, columns []tracker.Column, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), putBackWait)
	defer cancel()
	for {
		board, err := a.Store.BoardGet(ctx, was.TenantID, was.ID)
		if err != nil {
			return notPutBack(was, err)
		}
		for _, c := range columns {
			if board.Column(c.ID) == nil {
				at := slices.IndexFunc(was.Columns, func(o tracker.Column) bool { return o.ID == c.ID })
				board.Columns = slices.Insert(board.Columns, min(at, len(board.Columns)), c)
			}
		}
		board.Revision++
		board.UpdatedAt = a.Store.Now()
		switch err := a.boardWrite(ctx, board); {
		case err == nil:
			return why
		case ctx.Err() != nil || !errors.Is(err, tracker.ErrConflict):
			return notPutBack(was, err)
		}
	}
}

// notPutBack is no conflict of the caller's, whatever the store said.
func notPutBack(was *tracker.Board, err error) error {
	return errors.New("put columns back on board " + was.TenantID + "/" + was.ID + ": " + err.Error())
}

// boardDelete takes the columns off the board, as boardReplace does, and then
// the board: once it has none nobody makes a card on it, and what is to be put
// back is put back at a later revision, and not made anew.
func (a *API) boardDelete(ctx context.Context, tenantID, id string, match *MatchInput) (*one[Deleted], error) {
	for try := 0; ; try++ {
		was, err := a.Store.BoardGet(ctx, tenantID, id)
		if err != nil {
			return nil, a.fail(err)
		}
		if err := match.check(was.Revision, false); err != nil {
			return nil, err
		}
		dangling, err := a.boardRemove(ctx, was)
		if errors.Is(err, tracker.ErrConflict) && try < blindTries {
			if match.blind() {
				continue
			}
			return nil, errChanged()
		}
		if err != nil {
			return nil, a.fail(err)
		}
		noteChange(ctx, "board", id, newBoard(was), nil)
		return &one[Deleted]{Deleted{dangling}}, nil
	}
}

func (a *API) boardRemove(ctx context.Context, was *tracker.Board) ([]Dangling, error) {
	l, err := a.boardFree(ctx, was)
	if err != nil {
		return nil, err
	}
	bare := *was
	if len(was.Columns) > 0 {
		bare.Columns, bare.Revision, bare.UpdatedAt = nil, was.Revision+1, a.Store.Now()
		if err := a.boardWrite(ctx, &bare); err != nil {
			return nil, err
		}
		if _, err := a.boardFree(ctx, was); err != nil {
			return nil, a.putBack(ctx, was, was.Columns, err)
		}
	}
	err = a.Store.BoardDelete(ctx, bare.TenantID, bare.ID, bare.Revision)
	if err != nil && !errors.Is(err, tracker.ErrConflict) {
		// Somebody else's deletion, or this one's answer was lost.
		if _, gerr := a.Store.BoardGet(ctx, bare.TenantID, bare.ID); errors.Is(gerr, tracker.ErrNotFound) {
			err = nil
		}
	}
	if err != nil {
		return nil, err
	}
	return l.danglingAfter(func(l *links) { delete(l.boards, bare.ID) }), nil
}

// boardFree refuses to delete a board that has cards or a hook.
func (a *API) boardFree(ctx context.Context, board *tracker.Board) (*links, error) {
	l, err := a.links(ctx, board.TenantID)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(l.hooks, func(h trigger.Hook) bool { return h.BoardID == board.ID }); i >= 0 {
		return nil, huma.Error409Conflict(fmt.Sprintf("the hook %s delivers to the board: its deliveries would fail; delete the hook first", l.hooks[i].Name))
	}
	n, err := a.Store.CardCount(ctx, board.TenantID, board.ID, "")
	if err != nil {
		return nil, err
	}
	if n > 0 {
		return nil, huma.Error409Conflict(fmt.Sprintf("the board has %s: delete them first, or move them", cards(n)))
	}
	return l, nil
}
