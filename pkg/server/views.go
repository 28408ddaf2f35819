package server

import (
	"encoding/base64"
	"regexp"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Effect is a row as the API shows it.
type Effect struct {
	ID             string                 `json:"id"`
	State          trigger.State          `json:"state"`
	Outcome        trigger.Outcome        `json:"outcome,omitempty"`
	Reason         trigger.Reason         `json:"reason,omitempty"`
	EventSeq       int64                  `json:"event_seq"`
	EventKind      tracker.Kind           `json:"event_kind"`
	CardID         string                 `json:"card_id"`
	SubscriptionID string                 `json:"subscription_id"`
	BotID          string                 `json:"bot_id"`
	Consume        []string               `json:"consume,omitempty"`
	Consumed       bool                   `json:"consumed,omitempty"`
	Attempts       int                    `json:"attempts"`
	Generation     int                    `json:"generation"`
	RunID          string                 `json:"run_id,omitempty"`
	Worker         string                 `json:"worker,omitempty"`
	NotBefore      *time.Time             `json:"not_before,omitempty" doc:"when a live row is due: its next attempt, or the end of its lease"`
	Errors         []trigger.AttemptError `json:"errors,omitempty"`
	CreatedAt      time.Time              `json:"created_at"`
	UpdatedAt      time.Time              `json:"updated_at"`
}

// NewEffect shows a row.
func NewEffect(row *trigger.Effect) Effect { return newEffect(row) }

func newEffect(row *trigger.Effect) Effect {
	e := Effect{
		ID: row.ID, State: row.State, Outcome: row.Outcome, Reason: row.Reason, EventSeq: row.EventSeq, EventKind: row.Event.Kind,
		CardID: row.CardID, SubscriptionID: row.SubscriptionID, BotID: row.BotID, Consume: row.Consume, Consumed: row.ConsumeMarked,
		Attempts: row.Attempts, Generation: row.Generation, RunID: row.RunID, Worker: row.Worker, Errors: row.Errors,
		CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
	if row.State.Live() {
		e.NotBefore = &row.NotBefore
	}
	return e
}

// Card is a card as the API shows it.
type Card struct {
	ID        string            `json:"id"`
	Rev       int64             `json:"rev"`
	BoardID   string            `json:"board_id"`
	ColumnID  string            `json:"column_id"`
	Title     string            `json:"title"`
	Body      string            `json:"body"`
	Labels    []string          `json:"labels"`
	Assignees []string          `json:"assignees"`
	External  *tracker.External `json:"external,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

func newCard(c *tracker.Card) Card {
	return Card{
		ID: c.ID, Rev: c.Rev, BoardID: c.BoardID, ColumnID: c.ColumnID, Title: c.Title, Body: c.Body,
		Labels: append([]string{}, c.Labels...), Assignees: append([]string{}, c.Assignees...), External: c.External,
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}

// effectIDForm is what an effect's id looks like (R1); get-effect asks for it
// too.
var effectIDForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*/[0-9]{12,}[|>!][A-Za-z0-9-]*$`)

// A cursor is opaque: the key of the last row of a page.
func encodeCursor(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

func decodeCursor(tenantID, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	id, err := base64.RawURLEncoding.DecodeString(cursor)
	// The decoder is lenient about line breaks and the last bits.
	if err != nil || encodeCursor(string(id)) != cursor || !effectIDForm.Match(id) || !strings.HasPrefix(string(id), tenantID+"/") {
		return "", tracker.Fieldf("after", "must be a cursor that the page before gave")
	}
	return string(id), nil
}
