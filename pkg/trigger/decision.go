package trigger

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Action is what a person does with a row.
type Action string

// The actions. docs/state-machine.md shows where they lead.
const (
	// ActionReplay tries a failed row again, under its key.
	ActionReplay Action = "replay"
	// ActionRerun runs a done row again, under a new generation's key.
	ActionRerun Action = "rerun"
	// ActionDiscard gives a failed, reconcile or held row up.
	ActionDiscard Action = "discard"
	// ActionConfirm says of a reconcile row that the bot did get it.
	ActionConfirm Action = "confirm"
	// ActionForce sends a reconcile row once more.
	ActionForce Action = "force"
	// ActionRelease lets a held row go on.
	ActionRelease Action = "release"
)

// Actions lists all actions.
func Actions() []Action {
	return []Action{ActionReplay, ActionRerun, ActionDiscard, ActionConfirm, ActionForce, ActionRelease}
}

// HistoryKept is how many of the latest decisions a row keeps.
const HistoryKept = 50

// Decision is what a person decides about one row.
type Decision struct {
	TenantID string
	EffectID string
	// ID is the decision's own: sent again with it, it decides once.
	ID     string
	Action Action
	By     string
	Note   string
	At     time.Time
	// RunID, of a confirmation, is what the bot called it; may be empty.
	RunID string
	// StartedAt, of ActionForce, is the row's DeliveryStartedAt as the person
	// saw it: a force sent twice decides once (W8).
	StartedAt time.Time
	// ClaimID is fresh. A row that leaves reconcile takes it, so that a late
	// answer to what was decided over is refused and not taken for applied.
	ClaimID string
	// SeenAt, if set, is the row's UpdatedAt as the person saw it: a row that
	// was written since is not touched.
	SeenAt time.Time
}

// HistoryEntry is a decision as its row remembers it.
type HistoryEntry struct {
	ID     string    `json:"id"`
	Action Action    `json:"action"`
	By     string    `json:"by"`
	Note   string    `json:"note,omitempty"`
	At     time.Time `json:"at"`
	// From is the state that the row was in, with what that state said.
	From      State     `json:"from"`
	Outcome   Outcome   `json:"outcome,omitempty"`
	Reason    Reason    `json:"reason,omitempty"`
	RunID     string    `json:"run_id,omitempty"`
	Attempts  int       `json:"attempts"`
	StartedAt time.Time `json:"started_at,omitempty,omitzero"`
}

// Decided reports whether the decision was applied to the row already.
func (e *Effect) Decided(id string) bool {
	return slices.ContainsFunc(e.History, func(h HistoryEntry) bool { return h.ID == id })
}

// RefusedError says why a decision was not carried out; nothing was changed.
// It wraps tracker.ErrConflict.
type RefusedError struct {
	Action Action
	// ID is the row's, or what else the decision was about.
	ID  string
	Why string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s %s: %s: %v", e.Action, e.ID, e.Why, tracker.ErrConflict)
}

// Unwrap returns tracker.ErrConflict.
func (e *RefusedError) Unwrap() error { return tracker.ErrConflict }

// decisionsFrom says which states allow an action.
var decisionsFrom = map[Action][]State{
	ActionReplay:  {StateFailed},
	ActionRerun:   {StateDone},
	ActionDiscard: {StateFailed, StateReconcile, StateHeld},
	ActionConfirm: {StateReconcile},
	ActionForce:   {StateReconcile},
	ActionRelease: {StateHeld},
}

// Apply returns the row as it is after the decision, or a *RefusedError that
// says why the row does not allow it. It depends on
// its arguments alone; a store applies its result under a condition that the
// row is still the one that was given.
func (d *Decision) Apply(row Effect) (Effect, error) {
	refuse := func(format string, args ...any) (Effect, error) {
		return row, &RefusedError{Action: d.Action, ID: row.ID, Why: fmt.Sprintf(format, args...)}
	}
	from, ok := decisionsFrom[d.Action]
	switch {
	case !ok:
		return row, tracker.Fieldf("action", "must be one of %v", Actions())
	case !row.Kind.Known():
		return refuse("the row is of kind %q, which this version does not know", row.Kind)
	case !slices.Contains(from, row.State):
		return refuse("the row is %s, it must be %s", row.State, oneOf(from))
	case !d.SeenAt.IsZero() && !d.SeenAt.Equal(row.UpdatedAt):
		return refuse("the row was written since it was looked at")
	case d.Action == ActionForce && !d.StartedAt.Equal(row.DeliveryStartedAt):
		return refuse("the delivery that was looked at is not the latest, which began at %s", row.DeliveryStartedAt.Format(time.RFC3339Nano))
	case d.Action == ActionRerun && row.Outcome == OutcomeLoopCut:
		return refuse("it was cut to end a loop")
	}
	row.History = append(slices.Clone(row.History), HistoryEntry{
		ID: d.ID, Action: d.Action, By: d.By, Note: d.Note, At: d.At, From: row.State,
		Outcome: row.Outcome, Reason: row.Reason, RunID: row.RunID, Attempts: row.Attempts, StartedAt: row.DeliveryStartedAt,
	})
	row.History = row.History[max(0, len(row.History)-HistoryKept):]
	row.UpdatedAt, row.AnnounceAt = d.At, time.Time{} // somebody knows of it
	if row.State == StateReconcile {
		row.ClaimID = d.ClaimID
	}
	switch d.Action {
	case ActionReplay, ActionRelease, ActionForce, ActionRerun:
		row.State, row.NotBefore, row.Reason, row.Outcome = StatePending, d.At, "", ""
		row.Attempts, row.RunID = 0, ""
		row.DeliveryStartedAt, row.DoneAt = time.Time{}, time.Time{}
		if row.Lane == "" && row.Kind == KindEvent {
			row.Lane = LaneEvents
		}
		if d.Action == ActionRerun {
			row.Generation++
			row.Rendered = "" // another request, unlike another attempt
		}
	case ActionConfirm:
		row.State, row.Outcome, row.RunID, row.DoneAt = StateDone, OutcomeLaunched, d.RunID, d.At
		row.DeliveryStartedAt = time.Time{}
	case ActionDiscard:
		row.State, row.DoneAt = StateDiscarded, d.At
	}
	return row, nil
}

func oneOf(states []State) string {
	words := make([]string, len(states))
	for i, state := range states {
		words[i] = string(state)
	}
	return strings.Join(words, " or ")
}

// BulkKept is how long a bulk decision can be gone on with.
const BulkKept = 24 * time.Hour

// BulkMax is the most rows that one bulk decision takes.
const BulkMax = 10_000

// Bulk is a decision about all rows that met a filter when it was made, to be
// applied to just those, as they were then, step by step.
type Bulk struct {
	TenantID string       `json:"tenant_id"`
	ID       string       `json:"id"`
	Action   Action       `json:"action"`
	Filter   EffectFilter `json:"filter"`
	By       string       `json:"by"`
	Note     string       `json:"note,omitempty"`
	// Digest names the rows and their versions.
	Digest string     `json:"digest"`
	Items  []BulkItem `json:"items"`
	// More rows than BulkMax met the filter; these are the first ones, by id.
	More bool `json:"more,omitempty"`
	// Next is the first item that was not dealt with yet.
	Next    int `json:"next"`
	Applied int `json:"applied"`
	// Refused counts rows that had changed since.
	Refused   int       `json:"refused"`
	Stopped   bool      `json:"stopped,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// Finished reports whether every item was dealt with.
func (b *Bulk) Finished() bool { return b.Next >= len(b.Items) }

// BulkItem is one row of a bulk decision, and its version.
type BulkItem struct {
	ID        string    `json:"id"`
	UpdatedAt time.Time `json:"updated_at"`
}

// BulkDigest is a digest over rows, their versions and the action.
func BulkDigest(action Action, items []BulkItem) string {
	h := sha256.New()
	fmt.Fprintln(h, action)
	for _, item := range items {
		fmt.Fprintln(h, item.ID, item.UpdatedAt.UnixMilli())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Pause holds up the claims of a bot, of a tenant (BotID empty), or of the
// fleet (both empty).
type Pause struct {
	TenantID string    `json:"tenant_id,omitempty"`
	BotID    string    `json:"bot_id,omitempty"`
	By       string    `json:"by"`
	Note     string    `json:"note,omitempty"`
	At       time.Time `json:"at"`
}
