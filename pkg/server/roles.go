package server

import (
	"context"
	"fmt"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// forAdmins marks an operation that is for admins alone.
func forAdmins(o *huma.Operation) { mark(o, "admins", true) }

// Where an operation says which bot it is about, for botReads.
const (
	botInPath  = "path"
	botInQuery = "query"
	// botInThing: the handler finds out, by ownThing.
	botInThing = "thing"
)

// botReads marks an operation that a bot's own token may call, for what is the
// bot's. All others refuse such a token.
func botReads(where string) func(*huma.Operation) {
	return func(o *huma.Operation) { mark(o, "bot", where) }
}

// refuseBot returns the status, and why, with which a bot's token is refused;
// 0 if it is let in. What is another bot's is not there for it.
func refuseBot(ctx huma.Context, token *trigger.Token) (status int, why string) {
	const alone = "a bot's token reads what is the bot's, and nothing else"
	var of string
	switch ctx.Operation().Metadata["bot"] {
	case botInPath:
		of = ctx.Param("bot")
	case botInQuery:
		if of = ctx.Query("bot"); of == "" {
			return 403, alone + ": say bot= and its id"
		}
	case botInThing:
		of = token.BotID
	default:
		return 403, alone
	}
	if of != token.BotID || of == "" {
		return 404, notFound
	}
	return 0, ""
}

// ownThing refuses a thing of another bot to a bot's token: for it there is no
// such thing.
func ownThing(ctx context.Context, botID string) error {
	if token := caller(ctx); token.Role == trigger.RoleBot && token.BotID != botID {
		return fmt.Errorf("of another bot: %w", tracker.ErrNotFound)
	}
	return nil
}
