package server

import (
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Card is a card as the API shows it.
type Card struct {
	ID        string            `json:"id"`
	Rev       int64             `json:"rev"`
	BoardID   string            `json:"board_id"`
	ColumnID  string            `json:"column_id"`
	Position  string            `json:"position,omitempty" doc:"cards of a column stand in the order of their positions, as texts, then of their ids"`
	Title     string            `json:"title"`
	Body      string            `json:"body"`
	Labels    []string          `json:"labels"`
	Assignees []string          `json:"assignees"`
	External  *tracker.External `json:"external,omitempty"`
	// BotID is the bot that the card was promoted to, BotArgs is for it.
	BotID   string            `json:"bot_id,omitempty"`
	BotArgs map[string]string `json:"bot_args,omitempty"`
	// MirrorOf is the card that a projection mirrors with this one.
	MirrorOf  *tracker.Mirror `json:"mirror_of,omitempty"`
	Comments  int             `json:"comments" doc:"how many there are"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
}

func newCard(c *tracker.Card) Card {
	return Card{
		ID: c.ID, Rev: c.Rev, BoardID: c.BoardID, ColumnID: c.ColumnID, Position: c.Position, Title: c.Title, Body: c.Body,
		Labels: append([]string{}, c.Labels...), Assignees: append([]string{}, c.Assignees...), External: c.External,
		BotID: c.BotID, BotArgs: c.BotArgs, MirrorOf: c.MirrorOf, Comments: c.CommentCount,
		CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}
