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
