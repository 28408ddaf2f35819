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

// authenticate lets a call through that carries an active token for the tenant
// it names, and whose role allows it. Another tenant looks like one that does
// not exist. The token is looked up for every call: a revocation holds at once,
// on every replica.
func (a *API) authenticate(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		refuse := func(status int, detail string) { _ = huma.WriteErr(api, ctx, status, detail) }
		unavailable := func(err error) {
			a.Logger.Warn().Err(err).Msg("API: a token could not be looked up")
			ctx.SetHeader("Retry-After", retryAfter)
			refuse(http.StatusServiceUnavailable, "the store does not answer")
		}
		through := func(token *trigger.Token) {
			if status, why, err := a.authorize(ctx, token); err != nil {
				unavailable(err)
			} else if status != 0 {
				refuse(status, why)
			} else {
				next(huma.WithValue(ctx, tokenKey{}, token))
			}
		}
		if a.As != nil { // who it is needs no proof; whether the tenant is there does
			through(a.As)
			return
		}
		unauthorized := func(detail string) {
			ctx.SetHeader("WWW-Authenticate", "Bearer")
			refuse(http.StatusUnauthorized, detail)
		}
		header, address := ctx.Header("Authorization"), addressOf(ctx.RemoteAddr())
		text, ok := bearer(header)
		hash := tokenHash(text)
		if header != "" {
			if wait := a.failures.blocked(address, hash); wait > 0 {
				ctx.SetHeader("Retry-After", seconds(wait))
				refuse(http.StatusTooManyRequests, "too many calls with bad tokens from this address")
				return
			}
		}
		if !ok {
			if header != "" {
				a.failures.bad(&a.Logger, address, hash, "no token")
			}
			unauthorized("a token is required: Authorization: Bearer trg_…")
			return
		}
		token, err := a.Store.TokenByHash(ctx.Context(), hash)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			unavailable(err)
			return
		}
		if why := badToken(token, err, a.Store.Now()); why != "" {
			a.failures.bad(&a.Logger, address, hash, why)
			unauthorized("the token is not known, expired or revoked")
			return
		}
		a.failures.good(address, hash)
		through(token)
	}
}

// badToken says why a token opens nothing; "" if it does.
func badToken(token *trigger.Token, err error, now time.Time) string {
	switch {
	case err != nil:
		return "unknown"
	case !token.RevokedAt.IsZero():
		return "revoked"
	case !token.Active(now):
		return "expired"
	}
	return ""
}

// authorize returns the status, and why, with which a good token's call is
// refused; 0 if it is let through.
func (a *API) authorize(ctx huma.Context, token *trigger.Token) (status int, why string, err error) {
	op := ctx.Operation()
	switch tenant := ctx.Param("tenant"); {
	case token.Role != trigger.RoleAdmin && token.TenantID != tenant:
		return http.StatusNotFound, notFound, nil
	case token.Role == trigger.RoleAdmin && tracker.ValidTenantID(tenant):
		// A misspelt tenant must not look like one where all is well.
		got, err := a.Store.TenantGet(ctx.Context(), tenant)
		switch {
		case err == nil && !got.DeletingAt.IsZero() && op.Metadata["while_deleting"] != true:
			return http.StatusConflict, "the tenant is being deleted", nil
		case errors.Is(err, tracker.ErrNotFound):
			return http.StatusNotFound, notFound, nil
		case err != nil:
			return 0, "", err
		}
	}
	switch {
	case token.Role == trigger.RoleBot:
		status, why = refuseBot(ctx, token)
		return status, why, nil
	case op.Metadata["admins"] == true && token.Role != trigger.RoleAdmin:
		return http.StatusForbidden, "an admin's token is required", nil
	case !mayRead(op, ctx.Method()) && token.Role != trigger.RoleAdmin && token.Role != trigger.RoleEditor:
		return http.StatusForbidden, "the token may only read: an editor's or an admin's is required", nil
	}
	return 0, "", nil
}

type tokenKey struct{}

// caller returns the token of the call.
func caller(ctx context.Context) *trigger.Token {
	token, _ := ctx.Value(tokenKey{}).(*trigger.Token)
	return token
}

// by is how rows name the caller.
func by(ctx context.Context) string {
	token := caller(ctx)
	if token.ID == "" { // a caller without a token (As) says who it is
		return token.Name
	}
	return "token:" + token.Name
}
