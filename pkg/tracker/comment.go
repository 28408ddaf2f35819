package tracker

import (
	"time"
	"unicode/utf8"
)

// Limits of a card's comments (E6): past one a comment is refused.
const (
	CommentMaxBytes  = 4 << 10
	CommentsMax      = 200
	CommentsMaxBytes = 256 << 10 // the texts of one card together
)

// Comment is what somebody wrote about a card. It is never changed.
type Comment struct {
	ID    string    `json:"id"`
	Actor Actor     `json:"actor"`
	At    time.Time `json:"at"` // database time
	Body  string    `json:"body"`
}

// AddComment counts a comment that the card is to be given, or refuses it.
func (c *Card) AddComment(text string) error {
	switch {
	case text == "":
		return Fieldf("body", "must not be empty")
	case len(text) > CommentMaxBytes:
		return Fieldf("body", "at most %d bytes", CommentMaxBytes)
	case !utf8.ValidString(text):
		return Fieldf("body", "must be UTF-8")
	case c.CommentCount >= CommentsMax:
		return Fieldf("body", "the card has %d comments, and may have no more", CommentsMax)
	case c.CommentBytes+len(text) > CommentsMaxBytes:
		return Fieldf("body", "the card's comments may hold %d bytes together", CommentsMaxBytes)
	}
	c.CommentCount++
	c.CommentBytes += len(text)
	return nil
}
