package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/triggerd/triggerd/internal/client"
)

var (
	// errSilent fails a command that has said why itself.
	errSilent = errors.New("")
	// errDiffers says that `apply --check` found a difference.
	errDiffers = errors.New("what there is differs from the file")
)

func exitCode(err error) int {
	var gone *missingError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errDiffers):
		return exitDiffers
	case errors.As(err, &gone), isStatus(err, http.StatusNotFound):
		return exitMissing
	}
	return exitFailed
}

// advice is an error with what to do next. No error of the client holds the
// token, or a URL's query.
func advice(err error) string {
	var refused *client.Error
	if gone := (*client.UnreachableError)(nil); errors.As(err, &gone) {
		return err.Error() + ". Is the server running, and --url (TRIGGERD_URL) right? Whether it took the call is open: look before you repeat it"
	}
	if !errors.As(err, &refused) {
		return err.Error()
	}
	var next string
	switch {
	case refused.Location != "":
		next = "it redirects to " + refused.Location + ", where the token is not sent: set --url (TRIGGERD_URL) to where the API is"
	case !refused.Problem:
		next = "that is not how triggerd answers: is --url (TRIGGERD_URL) right, and what is before the server well?"
	case refused.Status == http.StatusUnauthorized:
		next = "set TRIGGERD_TOKEN (or --token-file) to a token that is valid; `triggerd tokens create` makes one"
	case refused.Status == http.StatusForbidden:
		next = "use a token whose role allows it"
	case refused.Status == http.StatusPreconditionFailed:
		next = "look at it again, then repeat the command"
	case refused.Status == http.StatusTooManyRequests, refused.Status == http.StatusServiceUnavailable:
		next = "try again later"
		if refused.RetryAfter > 0 {
			next = fmt.Sprintf("try again in %s", refused.RetryAfter.Round(time.Second))
		}
	default:
		return err.Error()
	}
	return strings.TrimRight(err.Error(), ".") + ". " + strings.ToUpper(next[:1]) + next[1:]
}

// fieldName is the last name of a field's path: body.filter.older_than.
var fieldName = regexp.MustCompile(`^(?:body|query|path)\.(?:.*\.)?([a-z_]+)$`)

// lacking is what the API says of a field that is not there.
var lacking = regexp.MustCompile(`^expected required property ([a-z_]+) to be present$`)

// fieldFlags are the flags of fields that are called otherwise: the first that
// the command has.
var fieldFlags = map[string][]string{
	"url": {"bot-url"}, "bot_id": {"bot"}, "board_id": {"board"}, "tenant_id": {"tenant"}, "column_id": {"to", "column"},
	"from_board_id": {"from"}, "to_board_id": {"to"},
}

// flagged names the flags for the fields of the call that are wrong.
func flagged(err error, flags []*kong.Flag) error {
	var refused *client.Error
	if !errors.As(err, &refused) {
		return err
	}
	for i, f := range refused.Fields {
		if m := lacking.FindStringSubmatch(f.Message); m != nil {
			f.Field, f.Message = f.Field+"."+m[1], "is required"
		}
		name := fieldName.ReplaceAllString(f.Field, "$1")
		f.Field = strings.TrimPrefix(f.Field, "body.")
		for _, named := range append(fieldFlags[name], strings.ReplaceAll(name, "_", "-")) {
			if at := slices.IndexFunc(flags, func(flag *kong.Flag) bool { return flag.Name == named }); at >= 0 {
				f.Field = "--" + named
				// It may come from there, unseen.
				if env := flags[at].Envs; len(env) > 0 && os.Getenv(env[0]) != "" {
					f.Field += " (" + env[0] + ")"
				}
				break
			}
			// --url is the server's, wherever it is not what the field means.
			if name == "url" {
				break
			}
		}
		refused.Fields[i] = f
	}
	return err
}
