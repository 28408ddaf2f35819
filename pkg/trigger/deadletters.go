package trigger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// DeadLetters is what people do with rows: decide about one or about many, and
// pause what would make more of them. All methods are safe for concurrent use,
// by any number of replicas and command lines on one database. Errors are
// *tracker.FieldError for what was asked wrongly, tracker.ErrNotFound, or
// tracker.ErrConflict (often a *RefusedError); any other is the store's, and
// leaves open whether the last write was applied.
type DeadLetters struct {
	Outbox EffectOutbox
	Lanes  Lanes
	Bulks  Bulks
	Pauses Pauses
	Config interface {
		TenantGet(ctx context.Context, tenantID string) (*Tenant, error)
		BotGet(ctx context.Context, tenantID, id string) (*Bot, error)
		SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
		SubscriptionSave(ctx context.Context, s *Subscription) error
	}
	Heads interface {
		HeadGet(ctx context.Context, tenantID string) (*Head, error)
		HeadLift(ctx context.Context, tenantID string) (Lifted, error)
	}
	Clock  Clock
	Logger zerolog.Logger
	// Release takes a row's consumption off its card (ConsumptionRelease). What
	// it leaves the janitor takes.
	Release func(ctx context.Context, row *Effect) error
	// Wake, if set, tells the worker of this process that a lane is due.
	Wake func()
	// BulkRate is how many rows a second one BulkRun decides about at most; 0
	// means BulkRateDefault.
	BulkRate int
}

// NewDeadLetters returns the dead letters of a store.
func NewDeadLetters(store Store, board *Board, log zerolog.Logger) *DeadLetters {
	return &DeadLetters{
		Outbox: store, Lanes: store, Bulks: store, Pauses: store, Config: store, Heads: store, Clock: store, Logger: log,
		Release: ConsumptionRelease(board),
	}
}

// ConsumptionRelease returns what takes the consumption of a row that is over
// off its card (W7).
func ConsumptionRelease(board *Board) func(ctx context.Context, row *Effect) error {
	v := &Evaluator{Board: board}
	return func(ctx context.Context, row *Effect) error {
		// A row that is given up may have a write on its way to the card.
		return v.release(ctx, row.TenantID, row.CardID, row.ID, row.Plan != nil && !row.ConsumeMarked)
	}
}

// Limits of what people write onto a row.
const (
	NoteMaxBytes  = 1000
	ByMaxBytes    = 200
	RunIDMaxBytes = 256 // as of a bot's own answer
)

// spoils reports control characters, and those that change the direction of
// what is written around them.
func spoils(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// checkText refuses text that would spoil a log or a terminal.
func checkText(field, text string, maxBytes int) error {
	switch {
	case len(text) > maxBytes:
		return tracker.Fieldf(field, "at most %d bytes", maxBytes)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, spoils):
		return tracker.Fieldf(field, "must be text on one line, without control characters")
	}
	return nil
}

func checkWho(by, note string) error {
	if by == "" {
		return tracker.Fieldf("by", "is required")
	}
	return errors.Join(checkText("by", by, ByMaxBytes), checkText("note", note, NoteMaxBytes))
}

func (d *Decision) check() error {
	if err := checkWho(d.By, d.Note); err != nil {
		return err
	}
	switch {
	case d.EffectID == "":
		return tracker.Fieldf("effect", "is required")
	case d.RunID != "" && d.Action != ActionConfirm:
		return tracker.Fieldf("run_id", "only a confirmation names a run")
	case d.Action == ActionForce && d.StartedAt.IsZero():
		return tracker.Fieldf("delivery_started_at", "is required: as the row shows it")
	}
	return checkText("run_id", d.RunID, RunIDMaxBytes)
}

// newID returns a fresh id that sorts by time.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// Decide applies a person's decision to one row and returns the row. ID,
// ClaimID and At are made if they are empty. The row is written first; if it is
// pending then, its lane is marked; then Decide returns. When the marking
// fails, the row was decided about all the same, and the sweep finds its lane:
// that is a Warn and no error.
func (dl *DeadLetters) Decide(ctx context.Context, d Decision) (*Effect, error) {
	row, err := dl.decide(ctx, d)
	if err != nil {
		return nil, err
	}
	dl.mark(ctx, laneMarks{}.add(row))
	return row, nil
}

// decide is Decide without the lane's mark.
func (dl *DeadLetters) decide(ctx context.Context, d Decision) (*Effect, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	d.ID, d.ClaimID = orMade(d.ID, newID), orMade(d.ClaimID, newID)
	if d.At.IsZero() {
		d.At = dl.Clock.Now()
	}
	row, err := dl.Outbox.EffectDecide(ctx, d)
	if err != nil {
		return nil, err
	}
	if row.State.Over() && (len(row.Consume) > 0 || row.Plan != nil) {
		// The row is decided about, whatever becomes of the caller.
		if err := dl.Release(context.WithoutCancel(ctx), row); err != nil {
			dl.Logger.Warn().Err(err).Str("tenant", row.TenantID).Str("effect", row.ID).Msg("dead letters: a spent label's entry could not be taken off the card")
		}
	}
	return row, nil
}

func orMade(v string, made func() string) string {
	if v == "" {
		return made()
	}
	return v
}

// mark marks lanes and wakes the worker. Rows are the truth: what is not
// marked here is late by one sweep.
func (dl *DeadLetters) mark(ctx context.Context, marks laneMarks) {
	dl.markList(ctx, marks.list())
}

func (dl *DeadLetters) markList(ctx context.Context, list []LaneMark) {
	if len(list) == 0 {
		return
	}
	if err := dl.Lanes.LaneMarkMany(context.WithoutCancel(ctx), list); err != nil {
		dl.Logger.Warn().Err(err).Int("lanes", len(list)).Msg("dead letters: lanes could not be marked, the lane sweeper finds them")
		return
	}
	if dl.Wake != nil {
		dl.Wake()
	}
}

// savedTries bounds how often a subscription that others write to is read and
// written again.
const savedTries = 5

// SubscriptionPause has what the subscription owes held until it is resumed.
// One that is paused already stays as it is.
func (dl *DeadLetters) SubscriptionPause(ctx context.Context, tenantID, id, by, why string) (*Subscription, error) {
	if err := checkWho(by, why); err != nil {
		return nil, err
	}
	return dl.setPaused(ctx, tenantID, id, "pause", func(s *Subscription) bool {
		if s.Paused {
			return false
		}
		s.Paused, s.PausedBy, s.PausedWhy = true, by, why
		return true
	})
}

// setPaused writes the subscription conditional on the revision it read; set
// reports whether there is anything to write.
func (dl *DeadLetters) setPaused(ctx context.Context, tenantID, id string, action Action, set func(*Subscription) bool) (*Subscription, error) {
	for try := range savedTries {
		pause(ctx, try)
		s, err := dl.Config.SubscriptionGet(ctx, tenantID, id)
		if err != nil {
			return nil, fmt.Errorf("%s subscription %s: %w", action, id, err)
		}
		if !set(s) {
			return s, nil
		}
		if s.Foreign() {
			// A save by this version would lose what it does not know of.
			return nil, &RefusedError{Action: action, ID: id, Why: "the subscription has features of a newer version: use that to " + string(action) + " it"}
		}
		s.Edited(dl.Clock.Now())
		err = dl.Config.SubscriptionSave(ctx, s)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, tracker.ErrConflict) {
			return nil, fmt.Errorf("%s subscription %s: %w", action, id, err)
		}
	}
	return nil, &RefusedError{Action: action, ID: id, Why: "others write to the subscription all the time: try again"}
}
