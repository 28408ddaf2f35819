package trigger

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Subscription is a trigger that a board user attached: which events fire it,
// and which bot it launches.
type Subscription struct {
	TenantID string `json:"tenant_id"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	// Revision grows with every write.
	Revision int64 `json:"revision"`
	Enabled  bool  `json:"enabled"`
	// ActiveFromSeq is the tenant's seq as read before the write that enabled
	// the subscription: it fires only for later events (T7).
	ActiveFromSeq int64 `json:"active_from_seq"`

	On EventFilter `json:"on"`
	If Conditions  `json:"if"`
	// When is a condition on the card's state in CEL, and with a kind, a from
	// or a to column on the event and its actor too; empty: none
	// (docs/triggers-yaml.md).
	When string `json:"when,omitempty"`

	BotID string `json:"bot_id"`
	// Mode says what becomes of the bot: direct launches it, promote stamps
	// it onto the card. Empty means direct.
	Mode Mode `json:"mode,omitempty"`
	// ToColumn, of a promoting subscription, is the column that the card moves
	// to; empty: it stays where it is.
	ToColumn string `json:"to_column,omitempty"`
	// Paused: what it owes is held until somebody resumes it. Not disabled:
	// events go on firing it.
	Paused bool `json:"paused,omitempty"`
	// PausedBy and PausedWhy say who paused it and why.
	PausedBy  string `json:"paused_by,omitempty"`
	PausedWhy string `json:"paused_why,omitempty"`
	// MaxPerMinute is how many matches within a minute the storm guard lets
	// pass: one more pauses the subscription. Nil means MaxPerMinuteDefault, 0
	// turns the guard off.
	MaxPerMinute *int `json:"max_per_minute,omitempty"`
	// Guard is what pauses and their ends leave behind.
	Guard Guard `json:"guard,omitempty,omitzero"`
	// Consume makes it one-shot: these labels are taken off the card, once
	// for each effect (W7).
	Consume []string `json:"consume,omitempty"`
	// Rank decides which of several takers of one label gets it: the lowest.
	Rank int `json:"rank"`
	// Args and Vars are handed to the bot, with what stands in ${…} evaluated
	// on the event.
	Args map[string]string `json:"args,omitempty"`
	Vars map[string]string `json:"vars,omitempty"`

	// Failing says why evaluations of the subscription keep failing, and
	// FailingSince when that was noticed; the next edit clears both.
	Failing      string    `json:"failing,omitempty"`
	FailingSince time.Time `json:"failing_since,omitempty,omitzero"`

	Requires  []string  `json:"requires,omitempty"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Mode says what a subscription does with its bot.
type Mode string

const (
	// ModeDirect launches the bot.
	ModeDirect Mode = "direct"
	// ModePromote stamps the bot and its arguments onto the card.
	ModePromote Mode = "promote"
)

// EventFilter says which events a subscription looks at. An empty field
// accepts any.
type EventFilter struct {
	Kinds []tracker.Kind `json:"kinds,omitempty"`
	// From and To are column ids.
	From    string   `json:"from,omitempty"`
	To      string   `json:"to,omitempty"`
	BoardID string   `json:"board_id,omitempty"`
	Sources []Source `json:"sources,omitempty"`
	// Actors are ids of people or bots, compared under tracker.Fold. A board
	// event caused by a bot fires only a subscription that names the bot.
	Actors []string `json:"actors,omitempty"`
}

// Conditions are conditions on the card's state.
type Conditions struct {
	Columns   []string `json:"columns,omitempty"`
	LabelsAll []string `json:"labels_all,omitempty"`
	LabelsAny []string `json:"labels_any,omitempty"`
	// LabelsNone must all be absent.
	LabelsNone []string `json:"labels_none,omitempty"`
	// Assignees: at least one of them.
	Assignees []string `json:"assignees,omitempty"`
}

func (c *Conditions) empty() bool {
	return len(c.Columns)+len(c.LabelsAll)+len(c.LabelsAny)+len(c.LabelsNone)+len(c.Assignees) == 0
}

func (f *EventFilter) empty() bool {
	return len(f.Kinds)+len(f.Sources)+len(f.Actors) == 0 && f.From == "" && f.To == "" && f.BoardID == ""
}

// firesOnEvent reports whether each accepted event fires the subscription,
// instead of the edge of its state conditions (docs/triggers-yaml.md).
func (s *Subscription) firesOnEvent() bool {
	return len(s.On.Kinds) > 0 || s.On.From != "" || s.On.To != ""
}

// kinds returns the kinds that the subscription accepts, each once; none if it
// accepts any. A from or to column alone asks for what makes, moves or takes
// away a card: an event of another kind may name columns too and is no move.
func (s *Subscription) kinds() []tracker.Kind {
	if len(s.On.Kinds) == 0 && s.firesOnEvent() {
		return []tracker.Kind{tracker.KindMoved, tracker.KindCreated, tracker.KindDeleted}
	}
	var kinds []tracker.Kind
	for _, k := range s.On.Kinds {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Limits of what a subscription may hold.
const (
	subscriptionListMax = 100
	argsMax             = 50
	argMaxBytes         = 4096
)

var argName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Validate refuses a subscription that can't be served; the error is a
// *tracker.FieldError.
func (s *Subscription) Validate() error {
	if !tracker.ValidTenantID(s.Name) {
		return tracker.Fieldf("name", "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	if s.BotID == "" {
		return tracker.Fieldf("bot", "is required")
	}
	if s.Mode != "" && s.Mode != ModeDirect && s.Mode != ModePromote {
		return tracker.Fieldf("mode", "must be %s or %s", ModeDirect, ModePromote)
	}
	if s.ToColumn != "" && s.Mode != ModePromote {
		return tracker.Fieldf("to_column", "only a subscription of mode %s moves the card", ModePromote)
	}
	stateless := s.If.empty() && s.When == ""
	if s.On.empty() && stateless {
		return tracker.Fieldf("on, if", "at least one event filter or state condition is required: a subscription that matches everything is refused")
	}
	if stateless && !s.firesOnEvent() {
		return tracker.Fieldf("on, if", "name a kind, a from or to column, or a state condition: sources, boards and actors alone would match everything they do")
	}
	for i, k := range s.On.Kinds {
		if !slices.Contains(EventKinds(), k) {
			return tracker.Fieldf(fmt.Sprintf("on.kinds[%d]", i), "must be one of %v", EventKinds())
		}
	}
	if (s.On.From != "" || s.On.To != "") && len(s.On.Kinds) > 0 && !slices.Contains(s.On.Kinds, tracker.KindMoved) &&
		(s.On.From != "" || !slices.Contains(s.On.Kinds, tracker.KindCreated)) {
		return tracker.Fieldf("on.kinds", "from and to need %s among the kinds", tracker.KindMoved)
	}
	for i, src := range s.On.Sources {
		if src != SourceBoard && src != SourceCustom {
			return tracker.Fieldf(fmt.Sprintf("on.sources[%d]", i), "must be %q or %q: nothing else emits events in this version", SourceBoard, SourceCustom)
		}
	}
	if err := s.On.checkTold(); err != nil {
		return err
	}
	for _, l := range []struct {
		field string
		list  []string
		max   int
	}{
		{"on.actors", s.On.Actors, tracker.AssigneeMaxBytes},
		{"if.columns", s.If.Columns, tracker.LabelMaxBytes},
		{"if.labels_all", s.If.LabelsAll, tracker.LabelMaxBytes},
		{"if.labels_any", s.If.LabelsAny, tracker.LabelMaxBytes},
		{"if.labels_none", s.If.LabelsNone, tracker.LabelMaxBytes},
		{"if.assignees", s.If.Assignees, tracker.AssigneeMaxBytes},
		{"consume", s.Consume, tracker.LabelMaxBytes},
	} {
		if err := validateList(l.field, l.list, l.max); err != nil {
			return err
		}
	}
	for i, c := range s.Consume {
		if !slices.ContainsFunc(append(slices.Clone(s.If.LabelsAll), s.If.LabelsAny...), func(l string) bool {
			return tracker.Fold(l) == tracker.Fold(c)
		}) {
			return tracker.Fieldf(fmt.Sprintf("consume[%d]", i), "must also stand in if.labels_all or if.labels_any: only a label that was asked for can be spent")
		}
	}
	if m := s.MaxPerMinute; m != nil && (*m < 0 || *m > MaxPerMinuteMax) {
		return tracker.Fieldf("max_per_minute", "must be 0 to %d; 0 turns the storm guard off", MaxPerMinuteMax)
	}
	if _, err := NewMatcher(s); err != nil {
		return err
	}
	if err := validateArgs("args", s.Args); err != nil {
		return err
	}
	if err := validateArgs("vars", s.Vars); err != nil {
		return err
	}
	_, err := compileTexts(s)
	return err
}

func validateList(field string, list []string, maxBytes int) error {
	if len(list) > subscriptionListMax {
		return tracker.Fieldf(field, "at most %d entries", subscriptionListMax)
	}
	for i, v := range list {
		if tracker.Fold(v) == "" || len(v) > maxBytes {
			return tracker.Fieldf(fmt.Sprintf("%s[%d]", field, i), "1 to %d bytes", maxBytes)
		}
	}
	return nil
}

func validateArgs(field string, args map[string]string) error {
	if len(args) > argsMax {
		return tracker.Fieldf(field, "at most %d entries", argsMax)
	}
	for name, v := range args {
		switch {
		case !argName.MatchString(name):
			return tracker.Fieldf(field, "names must match %s", argName)
		case len(v) > argMaxBytes:
			return tracker.Fieldf(field+"."+name, "at most %d bytes", argMaxBytes)
		}
	}
	return nil
}
