// Package tracker is the board that triggers watch: tenants' cards on boards,
// the events that changes of cards make, and the port through which the engine
// reads and changes them. It does no I/O.
package tracker

import (
	"maps"
	"slices"
	"time"
)

// Limits of what a card may hold (E6). A value past its limit is refused at
// the door, never cut.
const (
	TitleMaxBytes     = 1024
	BodyMaxBytes      = 256 * 1024
	LabelMaxBytes     = 255
	LabelsMax         = 100
	AssigneesMax      = 100
	AssigneeMaxBytes  = 255
	PendingMax        = 64  // E3
	DeliveriesMax     = 64  // recent inbound delivery ids on the card itself
	LabelStampsMax    = 512 // labels whose last change is remembered one by one
	deliveriesKeptFor = 30 * 24 * time.Hour
)

// Card is one card on a board, as stored.
type Card struct {
	TenantID string `json:"tenant_id"`
	ID       string `json:"id"`
	// Incarnation is fresh each time a card is made under an id, so that a
	// write meant for a card that is gone can't land on its successor (E1).
	Incarnation string `json:"incarnation"`
	// Rev counts the writes to this incarnation; every write is conditional
	// on the one it read (E1).
	Rev int64 `json:"rev"`
	// LastWrite names the latest write, so that a writer whose answer was
	// lost can tell whether its write is the one that stands (E1).
	LastWrite string `json:"last_write"`

	BoardID  string `json:"board_id"`
	ColumnID string `json:"column_id"`
	// Position is where the card stands in its column; one that an older
	// version wrote may have none, and stands above all others.
	Position string `json:"position,omitempty"`
	Title    string `json:"title"`
	Body     string `json:"body,omitempty"`
	// Labels and Assignees keep the spelling they came in; they are unique
	// under Fold.
	Labels    []string `json:"labels,omitempty"`
	Assignees []string `json:"assignees,omitempty"`

	External *External `json:"external,omitempty"`
	Stamps   Stamps    `json:"stamps"`
	// BotID and BotArgs are the bot that the card was promoted to, for whoever
	// dispatches from the board, and its arguments.
	BotID   string            `json:"bot_id,omitempty"`
	BotArgs map[string]string `json:"bot_args,omitempty"`
	// PromotedBy is the effect that last promoted the card, PromotedSeq its
	// event's seq: a repeated or an older promotion changes nothing.
	PromotedBy  string `json:"promoted_by,omitempty"`
	PromotedSeq int64  `json:"promoted_seq,omitempty"`
	// MirrorOf is the card that this one mirrors on another board.
	MirrorOf *Mirror `json:"mirror_of,omitempty"`
	// ColumnBy says whose event brought the card into its column.
	ColumnBy ColumnBy `json:"column_by,omitempty,omitzero"`
	// Consumed holds the one-shot labels that effects spent, until their rows
	// are closed (W7).
	Consumed []Consumption `json:"consumed,omitempty"`
	// Deliveries are the latest inbound deliveries that changed this card,
	// newest last: at most DeliveriesMax, none older than 30 days.
	Deliveries []Delivery `json:"deliveries,omitempty"`

	// CommentCount and CommentBytes are how many comments the card has, and how
	// long they are together. The comments are kept beside the card, by the
	// same writes: who reads or writes a card does not carry them along.
	CommentCount int `json:"comment_count,omitempty"`
	CommentBytes int `json:"comment_bytes,omitempty"`

	// Pending are the events of this card that are durable but not yet in
	// the log, in order (E2, E3). PendingAt is the sweeper's mark, in
	// database time; zero when nothing is pending.
	Pending   []BoardEvent `json:"pending,omitempty"`
	PendingAt time.Time    `json:"pending_at,omitempty,omitzero"`

	// Deleted makes the card a tombstone: it is kept until its pending events
	// are in the log and no effect needs its consumptions (E4, W7).
	Deleted bool `json:"deleted,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// External says which record of a forge a card mirrors.
type External struct {
	Provider string `json:"provider"`
	Repo     string `json:"repo"`
	Number   int64  `json:"number"`
	URL      string `json:"url,omitempty"`
}

// Consumption records that one effect spent one-shot labels of the card. An
// entry without labels is a spend that found none left to take off.
type Consumption struct {
	EffectID string    `json:"effect_id"`
	Labels   []string  `json:"labels,omitempty"`
	At       time.Time `json:"at"`
}

// Mirror names the card that another one mirrors.
type Mirror struct {
	BoardID string `json:"board_id"`
	CardID  string `json:"card_id"`
}

// ColumnBy is the event that brought a card into its column: its eid, whose
// seq the log knows; for a projected one, or one that a later event found it in
// already, the seq of the event that it goes back to. Once the log knows it no
// more, the time is left to tell what came first.
type ColumnBy struct {
	EID string    `json:"eid,omitempty"`
	Seq int64     `json:"seq,omitempty"`
	At  time.Time `json:"at,omitempty,omitzero"` // database time
	// Cause is what the event goes back to: a mirror that is made where the
	// card stands, by an effect of an older event, goes back to it too.
	Cause Cause `json:"cause,omitempty,omitzero"`
}

// Delivery is an inbound delivery that the card has absorbed.
type Delivery struct {
	HookID string    `json:"hook_id"`
	ID     string    `json:"id"`
	At     time.Time `json:"at"`
}

// HasLabel reports whether the card carries the label, compared under Fold.
func (c *Card) HasLabel(label string) bool { return containsFold(c.Labels, label) }

// ConsumedBy returns the consumption by the effect, or nil.
func (c *Card) ConsumedBy(effectID string) *Consumption {
	for i := range c.Consumed {
		if c.Consumed[i].EffectID == effectID {
			return &c.Consumed[i]
		}
	}
	return nil
}

// HasDelivery reports whether the card remembers the delivery.
func (c *Card) HasDelivery(hookID, id string) bool {
	return slices.ContainsFunc(c.Deliveries, func(d Delivery) bool { return d.HookID == hookID && d.ID == id })
}

// AddDelivery remembers a delivery and forgets the oldest beyond the limits.
func (c *Card) AddDelivery(hookID, id string, now time.Time) {
	kept := c.Deliveries[:0]
	for _, d := range c.Deliveries {
		if now.Sub(d.At) < deliveriesKeptFor {
			kept = append(kept, d)
		}
	}
	kept = append(kept, Delivery{HookID: hookID, ID: id, At: now})
	if extra := len(kept) - DeliveriesMax; extra > 0 {
		kept = slices.Delete(kept, 0, extra)
	}
	c.Deliveries = kept
}

// Snapshot is the card as an event shows it: everything that conditions can
// ask about, without the text, which may be large.
func (c *Card) Snapshot() *Snapshot {
	return &Snapshot{
		Incarnation: c.Incarnation, Rev: c.Rev,
		BoardID: c.BoardID, ColumnID: c.ColumnID, Title: c.Title,
		Labels: slices.Clone(c.Labels), Assignees: slices.Clone(c.Assignees),
		External: c.External,
	}
}

// Snapshot is a card's state before or after an event.
type Snapshot struct {
	Incarnation string    `json:"incarnation"`
	Rev         int64     `json:"rev"`
	BoardID     string    `json:"board_id"`
	ColumnID    string    `json:"column_id"`
	Title       string    `json:"title"`
	Labels      []string  `json:"labels,omitempty"`
	Assignees   []string  `json:"assignees,omitempty"`
	External    *External `json:"external,omitempty"`
}

// HasLabel reports whether the snapshot carries the label, compared under Fold.
func (s *Snapshot) HasLabel(label string) bool { return containsFold(s.Labels, label) }

// Limits of boards.
const (
	BoardsMax    = 100 // per tenant
	ColumnsMax   = 100 // per board
	NameMaxBytes = 63
)

// Board is a board with its columns, left to right.
type Board struct {
	TenantID  string    `json:"tenant_id"`
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Columns   []Column  `json:"columns"`
	Revision  int64     `json:"revision"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Column is one column of a board. A terminal column holds finished cards.
type Column struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Terminal bool   `json:"terminal,omitempty"`
}

// Column returns the column with the id, or nil.
func (b *Board) Column(id string) *Column {
	for i := range b.Columns {
		if b.Columns[i].ID == id {
			return &b.Columns[i]
		}
	}
	return nil
}

// Clone returns a deep copy; nil of nil.
func (c *Card) Clone() *Card {
	if c == nil {
		return nil
	}
	out := *c
	out.Labels, out.Assignees = slices.Clone(c.Labels), slices.Clone(c.Assignees)
	out.Stamps.Labels = slices.Clone(c.Stamps.Labels)
	out.Stamps.AssigneeTies = slices.Clone(c.Stamps.AssigneeTies)
	out.Consumed = slices.Clone(c.Consumed)
	for i := range out.Consumed {
		out.Consumed[i].Labels = slices.Clone(out.Consumed[i].Labels)
	}
	out.Deliveries = slices.Clone(c.Deliveries)
	out.Pending = slices.Clone(c.Pending)
	out.BotArgs = maps.Clone(c.BotArgs)
	if c.MirrorOf != nil {
		of := *c.MirrorOf
		out.MirrorOf = &of
	}
	if c.External != nil {
		ext := *c.External
		out.External = &ext
	}
	return &out
}

// RemoveLabels takes those of the labels that it carries off the card,
// records the stamp of each one taken, and returns those taken as they
// were spelled.
func (c *Card) RemoveLabels(labels []string, stamp func(label string) LabelStamp) (removed []string) {
	for _, label := range labels {
		i := indexFold(c.Labels, label)
		if i < 0 {
			continue
		}
		removed = append(removed, c.Labels[i])
		c.Labels = slices.Delete(c.Labels, i, i+1)
		c.Stamps.SetLabel(stamp(label))
	}
	return removed
}

// AddAssignees adds those that it lacks and returns them, without space around
// them.
func (c *Card) AddAssignees(who []string) (added []string) {
	for _, w := range UniqueFold(who) {
		if !containsFold(c.Assignees, w) {
			c.Assignees, added = append(c.Assignees, w), append(added, w)
		}
	}
	return added
}

// RemoveAssignees takes those off that it has, and returns them as they were
// spelled.
func (c *Card) RemoveAssignees(who []string) (removed []string) {
	for _, w := range who {
		if i := indexFold(c.Assignees, w); i >= 0 {
			removed = append(removed, c.Assignees[i])
			c.Assignees = slices.Delete(c.Assignees, i, i+1)
		}
	}
	return removed
}
