package trigger

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// LaunchRequest is one attempt at one launch.
type LaunchRequest struct {
	// Key is the idempotency key: the same in every attempt (W12).
	Key        string
	Attempt    int
	Generation int
	URL        string
	// Secret signs the request; never logged.
	Secret []byte
	// NextSecret, if there is one, signs it too: a receiver may take either.
	NextSecret []byte
	// Body is the JSON to send, byte for byte.
	Body string

	// TenantID, EffectID, SubscriptionID and BotID name what is launched.
	TenantID       string
	EffectID       string
	SubscriptionID string
	BotID          string
	// TraceParent, if there is one, is handed on (W3C Trace Context): that of
	// the change which led to the launch.
	TraceParent string
}

// Launched is a bot's answer to a launch it accepted.
type Launched struct{ RunID string }

// Launcher reaches a bot. Launch returns a *LaunchError for whatever the bot
// or the way to it did; its message holds no secret. Safe for concurrent use.
type Launcher interface {
	Launch(ctx context.Context, r LaunchRequest) (Launched, error)
}

// LaunchError says why a launch did not succeed.
type LaunchError struct {
	Message string
	// Permanent: trying again can't help; the row fails at once (W5).
	Permanent bool
	// RetryAfter is how long the bot asked to be left alone; 0 if it didn't.
	RetryAfter time.Duration
	// Definite: the bot certainly did not take the launch, or certainly
	// refused it; nothing of the request is in doubt (W8). Whether trying
	// again can help is Permanent's to say.
	Definite bool
	// Status is the HTTP status that was answered; 0 if there was none.
	Status int
	// Cause, if set, is what errors.Is and errors.As see. It may hold what
	// Message must not: log Message.
	Cause error
}

// refuses reports whether the answer is one that a bot which can't be sent the
// same twice is not asked again after (W8): any 4xx but 429.
func (e *LaunchError) refuses() bool { return e.Status/100 == 4 && e.Status != 429 }

func (e *LaunchError) Error() string { return e.Message }

func (e *LaunchError) Unwrap() error { return e.Cause }

// LaunchBody is the JSON body of a launch. Nothing in it depends on the
// attempt: that travels in headers (W12).
type LaunchBody struct {
	Type         string             `json:"type"` // "launch"
	EffectID     string             `json:"effect_id"`
	TenantID     string             `json:"tenant_id"`
	Event        LaunchEvent        `json:"event"`
	Card         LaunchCard         `json:"card"`
	Subscription LaunchSubscription `json:"subscription"`
	Bot          LaunchBot          `json:"bot"`
	Args         map[string]string  `json:"args"`
	Vars         map[string]string  `json:"vars"`
}

// LaunchEvent is the event that fired, with its id.
type LaunchEvent struct {
	ID string `json:"id"`
	Event
}

// LaunchCard is the card's text as of the launch. Its state as of the event
// stands in the event's snapshots.
type LaunchCard struct {
	ID       string            `json:"id"`
	Rev      int64             `json:"rev"`
	Title    string            `json:"title"`
	Body     string            `json:"body"`
	External *tracker.External `json:"external,omitempty"`
}

// LaunchSubscription is the subscription that fired.
type LaunchSubscription struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
}

// LaunchBot is the bot that is launched.
type LaunchBot struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// render renders the subscription's args and vars for the row's event.
func (v *Evaluator) render(row *Effect, s *Subscription) (rendered, error) {
	t, err := v.matchers().of(s).texts()
	if err != nil {
		return rendered{}, permanentError("%v", err)
	}
	return t.render(s, &row.Event)
}

func (v *Evaluator) renderLaunch(row *Effect, s *Subscription, b *Bot, card *tracker.Card) (string, error) {
	r, err := v.render(row, s)
	if err != nil {
		return "", err
	}
	event := row.Event
	event.TraceParent = "" // it travels in a header
	body := LaunchBody{
		Type: "launch", EffectID: row.ID, TenantID: row.TenantID,
		Event:        LaunchEvent{ID: row.Event.ID(), Event: event},
		Card:         LaunchCard{ID: card.ID, Rev: card.Rev, Title: card.Title, Body: card.Body, External: card.External},
		Subscription: LaunchSubscription{ID: s.ID, Name: s.Name, Revision: s.Revision},
		Bot:          LaunchBot{ID: b.ID, Name: b.Name},
		Args:         orEmpty(r.args), Vars: orEmpty(r.vars),
	}
	out, err := json.Marshal(body)
	if err != nil {
		return "", fmt.Errorf("render launch %s: %w", row.ID, err)
	}
	return string(out), nil
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
