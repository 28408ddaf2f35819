package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	idempotencyHeader  = "Idempotency-Key"
	idempotencyMax     = 255
	idempotencyPattern = "^[!-~]+$"
)

var idempotencyForm = regexp.MustCompile(idempotencyPattern)

func idempotencyParam() *huma.Param {
	least, most := 1, idempotencyMax
	return &huma.Param{
		Name: idempotencyHeader, In: "header",
		Description: "makes the call safe to repeat for 24 hours: with the same key nothing is made twice",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: &least, MaxLength: &most, Pattern: idempotencyPattern},
	}
}

// idempotent gives each create that carries an Idempotency-Key the id that the
// first call with this key got, so that a call that is repeated, because its
// answer was lost or its replica died, makes nothing twice. No answer is kept:
// it may hold a secret, and what is there now is the better one.
func (a *API) idempotent(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		op := ctx.Operation()
		var keys []string
		ctx.EachHeader(func(name, value string) {
			if name == idempotencyHeader {
				keys = append(keys, value)
			}
		})
		if op.Metadata["creates"] != true || len(keys) == 0 {
			next(ctx)
			return
		}
		refuse := func(status int, detail string, errs ...error) { _ = huma.WriteErr(api, ctx, status, detail, errs...) }
		if len(keys) > 1 || len(keys[0]) > idempotencyMax || !idempotencyForm.MatchString(keys[0]) {
			refuse(http.StatusUnprocessableEntity, "refused",
				tracker.Fieldf("header."+idempotencyHeader, "must be one key of 1 to %d visible ASCII characters", idempotencyMax))
			return
		}
		asked := keyOf(ctx, keys[0])
		asked.CreatedAt = a.Store.Now()
		have, again, err := a.Store.CreateKeyReserve(ctx.Context(), asked)
		switch {
		case err != nil:
			a.Logger.Warn().Err(err).Msg("API: an Idempotency-Key could not be reserved")
			ctx.SetHeader("Retry-After", retryAfter)
			refuse(http.StatusServiceUnavailable, "the store does not answer")
			return
		case have.Fingerprint != asked.Fingerprint:
			refuse(http.StatusUnprocessableEntity, "refused",
				tracker.Fieldf("header."+idempotencyHeader, "was used for another call: take a fresh key"))
			return
		}
		key := createKey{id: have.ResourceID, again: again, used: new(atomic.Bool)}
		next(huma.WithValue(ctx, createKeyKey{}, key))
		// What was refused before it could make anything may come again, mended,
		// under the same key.
		if status := ctx.Status(); !again && !key.used.Load() && status >= 400 && status < 500 {
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx.Context()), afterwards)
			defer cancel()
			if err := a.Store.CreateKeyRelease(release, *have); err != nil {
				a.Logger.Warn().Err(err).Msg("API: an Idempotency-Key could not be released")
			}
		}
	}
}

// afterwards is how long a call works on what is left to do once it was
// answered, also if its caller has gone.
const afterwards = 10 * time.Second

// keyOf is what the call's key stands for if it is the first with it. The key
// is hashed, and the call with it: a body may hold a secret that its hash
// alone would give away to whoever tries the likely ones.
func keyOf(ctx huma.Context, key string) trigger.CreateKey {
	parts := []string{ctx.Param("tenant"), caller(ctx.Context()).ID, ctx.Operation().OperationID, key}
	id := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	u := ctx.URL()
	call := hmac.New(sha256.New, []byte(key))
	_, _ = call.Write([]byte(ctx.Method() + "\x00" + u.EscapedPath() + "?" + u.RawQuery + "\x00"))
	_, _ = call.Write(bodyOf(ctx.Context()))
	return trigger.CreateKey{
		TenantID: ctx.Param("tenant"), ID: hex.EncodeToString(id[:]), Fingerprint: hex.EncodeToString(call.Sum(nil)),
		ResourceID: uuid.Must(uuid.NewV7()).String(),
	}
}
