package server

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Comment is a comment as the API shows it.
type Comment struct {
	ID    string        `json:"id"`
	Actor tracker.Actor `json:"actor"`
	At    time.Time     `json:"at"`
	Body  string        `json:"body"`
}

// CommentBody is a comment to be made.
type CommentBody struct {
	Body string `json:"body" minLength:"1" maxLength:"4096" format:"multiline" doc:"at most 4 KiB; a card may have 200 comments, with 256 KiB together"`
}

// CommentInput is the comment of a call.
type CommentInput struct {
	CardInput
	Comment string `path:"comment" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
}

// madeComment is the answer to a create: a comment is never changed, and has no
// revision.
type madeComment struct {
	Status   int
	Location string `header:"Location" doc:"the path of what was made"`
	Body     Comment
}

func (a *API) registerComments(api huma.API) {
	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}/comments", func(ctx context.Context, in *struct {
		CardInput
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Comment]], error) {
		after, err := readCursor("comments", in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		all, err := a.comments(ctx, &in.CardInput)
		if err != nil {
			return nil, a.fail(err)
		}
		if after != "" {
			at := slices.IndexFunc(all, func(c tracker.Comment) bool { return c.ID == after })
			if at < 0 {
				return nil, a.fail(tracker.Fieldf("query.after", "must be a cursor that the page before gave"))
			}
			all = all[at+1:]
		}
		page := Page[Comment]{Items: []Comment{}}
		for _, c := range all[:min(len(all), in.Limit)] {
			page.Items = append(page.Items, Comment(c))
		}
		if len(all) > in.Limit {
			page.Next = newCursor("comments", page.Items[in.Limit-1].ID)
		}
		return &one[Page[Comment]]{page}, nil
	}, named("list-comments", "A page of the card's comments, oldest first."))

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}/comments/{comment}", func(ctx context.Context, in *struct{ CommentInput }) (*one[Comment], error) {
		all, err := a.comments(ctx, &in.CardInput)
		if err != nil {
			return nil, a.fail(err)
		}
		at := slices.IndexFunc(all, func(c tracker.Comment) bool { return c.ID == in.Comment })
		if at < 0 {
			return nil, a.fail(tracker.ErrNotFound)
		}
		return &one[Comment]{Comment(all[at])}, nil
	}, named("get-comment", "One comment, as an event names it."))

	huma.Post(api, "/v1/tenants/{tenant}/cards/{card}/comments", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body CommentBody
	},
	) (*madeComment, error) {
		return a.commentCreate(ctx, &in.CardInput, &in.MatchInput, in.Body.Body)
	}, named("create-comment", "Comment on a card."), creates, func(o *huma.Operation) { o.MaxBodyBytes = 64 << 10 })
}

// comments returns those of a card that is there.
func (a *API) comments(ctx context.Context, in *CardInput) ([]tracker.Comment, error) {
	if _, err := a.Board.CardGet(ctx, in.Tenant, in.Card); err != nil {
		return nil, err
	}
	return a.Store.CardComments(ctx, in.Tenant, in.Card)
}

func (a *API) commentCreate(ctx context.Context, in *CardInput, match *MatchInput, text string) (*madeComment, error) {
	id, _ := newID(ctx)
	answer := func(c tracker.Comment) *madeComment {
		return &madeComment{http.StatusCreated, cardPath(in.Tenant, in.Card) + "/comments/" + id, Comment(c)}
	}
	wctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	var there *tracker.Comment
	var before *tracker.Card
	// The comment is looked for between the read of the card and the write that
	// is conditional on it; by the first call with a key too, which a later one
	// may have overtaken.
	known := func(card *tracker.Card) error {
		if there = nil; !hasKey(ctx) || card == nil {
			return nil
		}
		all, err := a.Store.CardComments(wctx, in.Tenant, in.Card)
		if err != nil {
			return err
		}
		if at := slices.IndexFunc(all, func(c tracker.Comment) bool { return c.ID == id }); at >= 0 {
			there = &all[at]
		}
		return nil
	}
	change := a.changer(wctx, in.Tenant, in.Card, match, &before, func(_ context.Context, card *tracker.Card, _ time.Time) (*tracker.BoardEvent, error) {
		if err := card.AddComment(text); err != nil {
			return nil, err
		}
		return &tracker.BoardEvent{Kind: tracker.KindCommented}, nil
	})
	comment := tracker.Comment{ID: id, Actor: actor(ctx), Body: text}
	changed, err := a.Board.Comment(wctx, in.Tenant, in.Card, comment, func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if err := known(card); err != nil || there != nil {
			return nil, nil, err
		}
		return change(card, now)
	})
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return nil, a.fail(tracker.ErrNotFound)
	case err != nil:
		return nil, a.fail(inBody(err))
	case there != nil:
		return answer(*there), nil
	}
	comment.At = changed.Event.At
	noteChange(ctx, "comment", in.Card+"/"+id, nil, Comment(comment))
	a.relay(ctx, in.Tenant, in.Card)
	return answer(comment), nil
}
