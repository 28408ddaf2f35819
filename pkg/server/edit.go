package server

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// What operations that create, edit and delete have in common: revisions as
// entity tags (RFC 9110), what they changed for the audit log, cursors.

// tagged is an answer with the revision of what it shows.
type tagged[T any] struct {
	ETag string `header:"ETag" doc:"the revision, for If-Match"`
	Body T
}

// made is the answer to a create.
type made[T any] struct {
	Status   int
	ETag     string `header:"ETag" doc:"the revision, for If-Match"`
	Location string `header:"Location" doc:"the path of what was made"`
	Body     T
}

// creates marks an operation that makes something: it takes an
// Idempotency-Key.
func creates(o *huma.Operation) {
	o.DefaultStatus = http.StatusCreated
	mark(o, "creates", true)
	o.Parameters = append(o.Parameters, idempotencyParam())
}

func etag(rev int64) string { return strconv.Quote(strconv.FormatInt(rev, 10)) }

// MatchInput is the condition of an edit.
type MatchInput struct {
	IfMatch string `header:"If-Match" maxLength:"64" doc:"the ETag that was read, or several; * for whatever is there"`
}

// check refuses an edit of something that is at another revision than the
// caller saw: 412. An edit that replaces the whole thing has to say what it
// saw (required): 428.
func (m *MatchInput) check(rev int64, required bool) error {
	switch {
	case m.IfMatch == "" && required:
		return huma.NewError(http.StatusPreconditionRequired, "say what you edit: If-Match with the ETag that was read, or *")
	case m.blind():
		return nil
	}
	// A proxy that compresses answers makes the tags weak; they name the same
	// revision.
	for tag := range strings.SplitSeq(m.IfMatch, ",") {
		if strings.TrimPrefix(strings.TrimSpace(tag), "W/") == etag(rev) {
			return nil
		}
	}
	return errChanged()
}

// errChanged says that a thing is no longer as the caller saw it.
func errChanged() error {
	return huma.NewError(http.StatusPreconditionFailed, "it was changed since you read it: read it again")
}

// blind reports whether the edit goes for whatever is there, so that it may be
// made again on top of somebody else's.
func (m *MatchInput) blind() bool { return m.IfMatch == "" || m.IfMatch == "*" }

// change is one thing that a call changed, as the API shows it, without
// secrets: for the audit log.
type change struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Before any    `json:"before,omitempty"` // nil: there was none
	After  any    `json:"after,omitempty"`  // nil: there is none
}

type trailKey struct{}

// noteChange notes what the call changed. Before and after are what the API shows
// of the thing; nil where there is none.
func noteChange(ctx context.Context, kind, id string, before, after any) {
	if trail, ok := ctx.Value(trailKey{}).(*[]change); ok {
		*trail = append(*trail, change{kind, id, before, after})
	}
}

// actor is the caller as an event names it.
func actor(ctx context.Context) tracker.Actor {
	token := caller(ctx)
	if token.Role == trigger.RoleBot {
		return tracker.Actor{Kind: tracker.ActorBot, ID: token.BotID, Name: token.Name}
	}
	return tracker.Actor{Kind: tracker.ActorHuman, ID: by(ctx), Name: token.Name}
}

// newCursor makes the opaque cursor of a list: where its next page begins.
func newCursor(list, key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + "\x00" + key))
}

// readCursor returns the key of a cursor that the same list made; "" for none.
func readCursor(list, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	key, ok := strings.CutPrefix(string(raw), list+"\x00")
	if err != nil || !ok || newCursor(list, key) != cursor {
		return "", tracker.Fieldf("query.after", "must be a cursor that the page before gave")
	}
	return key, nil
}

// createKey is what the call's Idempotency-Key stands for.
type createKey struct {
	// id is what the thing that the call makes is called.
	id string
	// again says that a call with this key was made before: it may have made
	// the thing.
	again bool
	// used is set once the id is taken: from then on the thing may be there.
	used *atomic.Bool
}

type createKeyKey struct{}

// hasKey reports whether the call carries an Idempotency-Key.
func hasKey(ctx context.Context) bool {
	_, ok := ctx.Value(createKeyKey{}).(createKey)
	return ok
}

// newID returns the id of the thing that the call makes: a fresh one, or with
// an Idempotency-Key the one that every call with this key gets. Again says that
// there was such a call, so that the thing may be there: a create then looks
// first, and answers with what is there.
func newID(ctx context.Context) (id string, again bool) {
	if key, ok := ctx.Value(createKeyKey{}).(createKey); ok {
		key.used.Store(true)
		return key.id, key.again
	}
	return uuid.Must(uuid.NewV7()).String(), false
}
