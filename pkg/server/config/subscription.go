package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Unresolved stands where a reference was refused, so that what follows does
// not complain that there is none.
const Unresolved = "?"

// Edit makes s what a person wants it to be, ready to be saved: all that people
// set is taken from want. A pause stays, and so does what the storm guard keeps;
// that it is failing is forgotten, for the edit may mend it. It must not be
// Foreign. What enables it has to set ActiveFromSeq (ActiveFrom).
func Edit(s *trigger.Subscription, want *trigger.Subscription, now time.Time) {
	s.Name, s.Enabled, s.On, s.If = want.Name, want.Enabled, want.On, want.If
	s.When, s.Mode, s.ToColumn = want.When, want.Mode, want.ToColumn
	s.BotID, s.Consume, s.Rank, s.Args, s.Vars = want.BotID, want.Consume, want.Rank, want.Args, want.Vars
	s.MaxPerMinute = want.MaxPerMinute
	s.Failing, s.FailingSince = "", time.Time{}
	s.Edited(now)
}

// NeedsBoard reports whether the subscription names columns, and so has to say
// whose they are.
func NeedsBoard(s *trigger.Subscription) bool {
	return s.On.From != "" || s.On.To != "" || len(s.If.Columns) > 0 || s.ToColumn != ""
}

// BoardNeeded is what is wrong with a subscription that does not say so.
const BoardNeeded = "is required with on.from, on.to, if.columns and to_column: it says whose columns those are"

// Columns returns what is wrong with the columns that the subscription names,
// given its board.
func Columns(s *trigger.Subscription, b *tracker.Board) (found []tracker.FieldError) {
	check := func(field, column string) {
		if want := Column(b, column); column != "" && want != "" {
			found = append(found, tracker.FieldError{Field: field, Want: want})
		}
	}
	check("on.from", s.On.From)
	check("on.to", s.On.To)
	for i, c := range s.If.Columns {
		check(fmt.Sprintf("if.columns[%d]", i), c)
	}
	check("to_column", s.ToColumn)
	return found
}

// Column says what is wrong with a reference to a board's column; "" if nothing
// is.
func Column(b *tracker.Board, column string) string {
	if b.Column(column) != nil {
		return ""
	}
	ids := make([]string, len(b.Columns))
	for i, c := range b.Columns {
		ids[i] = c.ID
	}
	return fmt.Sprintf("the board %s has no such column, only [%s]", b.Name, strings.Join(ids, ", "))
}

// References is what is needed of a trigger.Store to look up what things refer
// to.
type References interface {
	BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error)
	BotGet(ctx context.Context, tenantID, id string) (*trigger.Bot, error)
}

// BoardOf returns the board, or nil if the tenant has none of that id.
func BoardOf(ctx context.Context, refs References, tenantID, id string) (*tracker.Board, error) {
	b, err := refs.BoardGet(ctx, tenantID, id)
	if errors.Is(err, tracker.ErrNotFound) {
		return nil, nil //nolint:nilnil // as it says
	}
	return b, err
}

// Check returns all that is wrong with a subscription that names what it
// refers to by id, with its references resolved in its tenant. Fields are
// called as the subscription's JSON has them.
func Check(ctx context.Context, refs References, s *trigger.Subscription) ([]tracker.FieldError, error) {
	found := Faults(s)
	for i := range found {
		if found[i].Field == "bot" {
			found[i].Field = "bot_id"
		}
	}
	switch {
	case s.On.BoardID != "":
		board, err := BoardOf(ctx, refs, s.TenantID, s.On.BoardID)
		switch {
		case err != nil:
			return nil, err
		case board == nil:
			found = append(found, tracker.FieldError{Field: "on.board_id", Want: "there is no such board"})
		default:
			found = append(found, Columns(s, board)...)
		}
	case NeedsBoard(s):
		found = append(found, tracker.FieldError{Field: "on.board_id", Want: BoardNeeded})
	}
	if s.BotID != "" {
		switch _, err := refs.BotGet(ctx, s.TenantID, s.BotID); {
		case errors.Is(err, tracker.ErrNotFound):
			found = append(found, tracker.FieldError{Field: "bot_id", Want: "there is no such bot"})
		case err != nil:
			return nil, err
		}
	}
	return found, nil
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

// FieldPath is the path of a field: keys that would not read well are quoted
// and cut.
func FieldPath(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return fmt.Sprintf("%s[%.40q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}

// Faults returns what Validate finds wrong. Validate stops at the first fault,
// so each entry is also tried alone, in a subscription that has no other; a
// fault that only shows once another is gone is found then.
func Faults(s *trigger.Subscription) []tracker.FieldError {
	var found []tracker.FieldError
	seen := make(map[string]bool)
	note := func(probe trigger.Subscription, field, at string) {
		err := probe.Validate()
		if err == nil {
			return
		}
		fe, ok := errors.AsType[*tracker.FieldError](err)
		if !ok {
			fe = &tracker.FieldError{Field: "on, if", Want: err.Error()}
		}
		if !strings.HasPrefix(fe.Field, field) {
			return // another field's, which has probes of its own
		}
		if at == "" {
			at = fe.Field
			for have := range seen {
				if strings.HasPrefix(have, at) {
					return // known, more exactly
				}
			}
		}
		if !seen[at] {
			seen[at] = true
			found = append(found, tracker.FieldError{Field: at, Want: fe.Want})
		}
	}
	alone := func() trigger.Subscription {
		return trigger.Subscription{
			Name: "probe", BotID: Unresolved, On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated}},
		}
	}
	entries := func(field string, n int, set func(probe *trigger.Subscription, i int)) {
		for i := range n {
			probe := alone()
			set(&probe, i)
			note(probe, field, fmt.Sprintf("%s[%d]", field, i))
		}
	}
	type sub = trigger.Subscription
	entries("on.kinds", len(s.On.Kinds), func(p *sub, i int) { p.On.Kinds = s.On.Kinds[i : i+1] })
	entries("on.sources", len(s.On.Sources), func(p *sub, i int) { p.On.Sources = s.On.Sources[i : i+1] })
	entries("on.actors", len(s.On.Actors), func(p *sub, i int) { p.On.Actors = s.On.Actors[i : i+1] })
	entries("if.columns", len(s.If.Columns), func(p *sub, i int) { p.If.Columns = s.If.Columns[i : i+1] })
	entries("if.labels_all", len(s.If.LabelsAll), func(p *sub, i int) { p.If.LabelsAll = s.If.LabelsAll[i : i+1] })
	entries("if.labels_any", len(s.If.LabelsAny), func(p *sub, i int) { p.If.LabelsAny = s.If.LabelsAny[i : i+1] })
	entries("if.labels_none", len(s.If.LabelsNone), func(p *sub, i int) { p.If.LabelsNone = s.If.LabelsNone[i : i+1] })
	entries("if.assignees", len(s.If.Assignees), func(p *sub, i int) { p.If.Assignees = s.If.Assignees[i : i+1] })
	entries("consume", len(s.Consume), func(p *sub, i int) {
		p.If.LabelsAll, p.If.LabelsAny, p.Consume = s.If.LabelsAll, s.If.LabelsAny, s.Consume[i:i+1]
	})
	for _, name := range slices.Sorted(maps.Keys(s.Args)) {
		probe := alone()
		probe.Args = map[string]string{name: s.Args[name]}
		note(probe, "args", FieldPath("args", name))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Vars)) {
		probe := alone()
		probe.Vars = map[string]string{name: s.Vars[name]}
		note(probe, "vars", FieldPath("vars", name))
	}
	when := alone()
	if len(s.On.Kinds) == 0 && s.On.From == "" && s.On.To == "" {
		when.On = trigger.EventFilter{}
	}
	when.When = s.When
	if s.When != "" {
		note(when, "when", "")
	}
	mode := alone()
	mode.Mode, mode.ToColumn = s.Mode, s.ToColumn
	note(mode, "mode", "")
	note(mode, "to_column", "")
	limit := alone()
	limit.MaxPerMinute = s.MaxPerMinute
	note(limit, "max_per_minute", "")
	moves := alone()
	moves.On.Kinds, moves.On.From, moves.On.To = s.On.Kinds, s.On.From, s.On.To
	note(moves, "on.kinds", "")
	note(*s, "", "")
	return found
}
