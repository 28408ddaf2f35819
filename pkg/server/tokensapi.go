package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Token is a token as the API shows it, without the token itself.
type Token struct {
	ID        string       `json:"id"`
	Name      string       `json:"name"`
	Role      trigger.Role `json:"role" enum:"admin,editor,viewer,bot"`
	TenantID  string       `json:"tenant_id,omitempty"`
	BotID     string       `json:"bot_id,omitempty"`
	Status    string       `json:"status" enum:"active,expired,revoked"`
	CreatedAt time.Time    `json:"created_at"`
	ExpiresAt *time.Time   `json:"expires_at,omitempty"`
	RevokedAt *time.Time   `json:"revoked_at,omitempty"`
}

// NewToken shows a token.
func NewToken(t *trigger.Token, now time.Time) Token {
	out := Token{ID: t.ID, Name: t.Name, Role: t.Role, TenantID: t.TenantID, BotID: t.BotID, Status: "active", CreatedAt: t.CreatedAt}
	switch {
	case !t.RevokedAt.IsZero():
		out.Status, out.RevokedAt = "revoked", &t.RevokedAt
	case !t.Active(now):
		out.Status = "expired"
	}
	if !t.ExpiresAt.IsZero() {
		out.ExpiresAt = &t.ExpiresAt
	}
	return out
}

// NewTokenBody asks for a token.
type NewTokenBody struct {
	Name     string `json:"name" minLength:"1" maxLength:"100" doc:"what it is for"`
	Role     string `json:"role" enum:"admin,editor,viewer,bot"`
	TenantID string `json:"tenant_id,omitempty" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]{0,62}$" doc:"the tenant that it is bound to; not of an admin"`
	BotID    string `json:"bot_id,omitempty" maxLength:"64" pattern:"^[A-Za-z0-9-]+$" doc:"of the role bot: which one"`
	TTL      string `json:"ttl,omitempty" maxLength:"20" doc:"how long it is valid: 720h; for ever if it is missing"`
}

// MadeToken is a token that was made.
type MadeToken struct {
	Token
	Text string `json:"token" doc:"the token itself; it is shown this once"`
}

// TokenInput is the token that a call is about.
type TokenInput struct {
	Token string `path:"token" maxLength:"64" pattern:"^[A-Za-z0-9-]+$" doc:"its id"`
}

func (a *API) registerTokens(api huma.API) {
	huma.Get(api, "/v1/tokens", func(ctx context.Context, in *struct{ PageInput }) (*one[Page[Token]], error) {
		after, err := readCursor("tokens", in.After)
		if err != nil {
			return nil, a.fail(err)
		}
		tokens, err := a.Store.TokenList(ctx, after, in.Limit+1)
		if err != nil {
			return nil, a.fail(err)
		}
		page := Page[Token]{Items: []Token{}}
		for i := range tokens {
			if i == in.Limit {
				page.Next = newCursor("tokens", tokens[i-1].ID)
				break
			}
			page.Items = append(page.Items, NewToken(&tokens[i], a.Store.Now()))
		}
		return &one[Page[Token]]{page}, nil
	}, named("list-tokens", "A page of the tokens, without the tokens themselves. For admins."), forAdmins)

	huma.Get(api, "/v1/tokens/{token}", func(ctx context.Context, in *TokenInput) (*one[Token], error) {
		token, err := a.Store.TokenGet(ctx, in.Token)
		if err != nil {
			return nil, a.fail(err)
		}
		return &one[Token]{NewToken(token, a.Store.Now())}, nil
	}, named("get-token", "One token, without the token itself. For admins."), forAdmins)

	huma.Post(api, "/v1/tokens", func(ctx context.Context, in *struct{ Body NewTokenBody }) (*made[MadeToken], error) {
		return a.tokenCreate(ctx, &in.Body)
	}, named("create-token", "Make a token; it is shown this once. For admins."), write, creates, forAdmins)

	huma.Post(api, "/v1/tokens/{token}/revoke", func(ctx context.Context, in *TokenInput) (*one[Token], error) {
		before, err := a.Store.TokenGet(ctx, in.Token)
		if err != nil {
			return nil, a.fail(err)
		}
		if err := a.Store.TokenRevoke(ctx, in.Token, a.Store.Now()); err != nil {
			return nil, a.fail(err)
		}
		after, err := a.Store.TokenGet(ctx, in.Token)
		if err != nil {
			return nil, a.fail(err)
		}
		out := NewToken(after, a.Store.Now())
		noteChange(ctx, "token", in.Token, NewToken(before, a.Store.Now()), out)
		return &one[Token]{out}, nil
	}, named("revoke-token", "Revoke a token: it opens nothing from now on, anywhere. For admins."), forAdmins)
}

func (a *API) tokenCreate(ctx context.Context, body *NewTokenBody) (*made[MadeToken], error) {
	p := TokenParams{Name: body.Name, Role: trigger.Role(body.Role), TenantID: body.TenantID, BotID: body.BotID}
	if body.TTL != "" {
		d, err := time.ParseDuration(body.TTL)
		if err != nil || d <= 0 {
			return nil, a.fail(tracker.Fieldf("body.ttl", "must be a positive duration, such as 720h"))
		}
		p.TTL = d
	}
	id, again := newID(ctx)
	if again {
		switch _, err := a.Store.TokenGet(ctx, id); {
		case err == nil:
			return nil, huma.Error409Conflict("this key made token " + id + ", and what it is was shown then: if it was lost, revoke it and make another, with a fresh key")
		case !errors.Is(err, tracker.ErrNotFound):
			return nil, a.fail(err)
		}
	}
	p.ID = id
	token, text, err := TokenCreate(ctx, a.Store, p)
	switch field, ok := errors.AsType[*tracker.FieldError](err); {
	case errors.Is(err, tracker.ErrNotFound):
		return nil, a.fail(tracker.Fieldf("body.tenant_id", "there is no such tenant"))
	case ok && (field.Field == "tenant" || field.Field == "bot"):
		return nil, a.fail(tracker.Fieldf("body."+field.Field+"_id", "%s", field.Want))
	case err != nil:
		return nil, a.fail(inBody(err))
	}
	out := NewToken(token, a.Store.Now())
	noteChange(ctx, "token", token.ID, nil, out)
	return &made[MadeToken]{Status: http.StatusCreated, Location: "/v1/tokens/" + token.ID, Body: MadeToken{out, text}}, nil
}
