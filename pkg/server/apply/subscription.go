package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (t *tenantPlan) planSubscriptions() {
	room := t.room(KindSubscription, SubscriptionsMax, len(t.subscriptions))
	old := byName(t.subscriptions, func(s *trigger.Subscription) string { return s.Name })
	for i := range t.spec.subscriptions {
		spec := &t.spec.subscriptions[i]
		want := t.resolve(spec)
		for _, f := range faults(&want) {
			if strings.Contains(f.Field, ",") { // "on, if": not one field's fault
				t.errorf(spec.path, "%s", f.Error())
			} else {
				t.errorf(spec.path+"."+f.Field, "%s", f.Want)
			}
		}
		was := old[spec.want.Name]
		next := trigger.Subscription{TenantID: t.spec.id, ID: newID()}
		var d diff
		if was != nil {
			next = *was
			d = t.diffSubscription(was, &want)
		} else {
			room.take(spec.path)
		}
		next.Name, next.Enabled, next.On, next.If = want.Name, want.Enabled, want.On, want.If
		next.When, next.Mode, next.ToColumn = want.When, want.Mode, want.ToColumn
		next.BotID, next.Consume, next.Rank, next.Args, next.Vars = want.BotID, want.Consume, want.Rank, want.Args, want.Vars
		next.Failing, next.FailingSince = "", time.Time{} // an edit may mend it
		next.MaxPerMinute = want.MaxPerMinute
		next.Edited(t.now)
		if was != nil && was.Foreign() && len(d) > 0 {
			// A save by this version would lose what it does not know of.
			t.errorf(spec.path, "the stored subscription requires %s of a newer version: apply the file with that", showList(was.Requires))
		}
		c := t.change(KindSubscription, next.Name, next.ID, was == nil, d)
		enabling := next.Enabled && (was == nil || !was.Enabled)
		t.save(c, func(ctx context.Context) error {
			if enabling {
				if err := t.activate(ctx, &next.ActiveFromSeq, c); err != nil {
					return err
				}
			}
			return t.Store.SubscriptionSave(ctx, &next)
		})
	}
}

// activate lets a subscription or a projection look at what comes after the
// tenant's seq of now (T7). The seq is read before the write that enables and
// after what it enables was: the write is conditional on the revision read then, so
// that nobody enabled it in between. It is read right before that write: what
// was in the log already when the file was applied owes nothing.
func (t *tenantPlan) activate(ctx context.Context, from *int64, c *Change) error {
	var seq int64
	switch head, err := t.Store.HeadGet(ctx, t.spec.id); {
	case err == nil:
		seq = head.Seq
	case !errors.Is(err, tracker.ErrNotFound): // no head, no events
		return fmt.Errorf("read the head: %w", err)
	}
	detail := fmt.Sprintf("active_from_seq: %d → %d", *from, seq)
	if c.Action == Created {
		detail = fmt.Sprintf("active_from_seq: %d", seq)
	}
	c.Details = append(c.Details, detail)
	*from = seq
	return nil
}

// unresolved stands where a reference was refused, so that what follows does
// not complain that there is none.
const unresolved = "?"

// resolve returns the subscription that the file wants, with ids for names.
func (t *tenantPlan) resolve(spec *subscriptionSpec) trigger.Subscription {
	want := spec.want
	on := spec.path + ".on"
	if spec.board != "" {
		want.On.BoardID = unresolved
		if b := t.board(on+".board", spec.board); b != nil {
			want.On.BoardID = b.ID
			if want.On.From != "" {
				t.checkColumn(on+".from", b, want.On.From)
			}
			if want.On.To != "" {
				t.checkColumn(on+".to", b, want.On.To)
			}
			for i, c := range want.If.Columns {
				t.checkColumn(fmt.Sprintf("%s.if.columns[%d]", spec.path, i), b, c)
			}
			if want.ToColumn != "" {
				t.checkColumn(spec.path+".to_column", b, want.ToColumn)
			}
		}
	}
	if want.BotID = t.bot(spec.path+".bot", spec.bot); want.BotID == "" {
		want.BotID = unresolved
	}
	for i, a := range spec.actors {
		id := a.login
		if a.bot != "" {
			if id = t.bot(fmt.Sprintf("%s.actors[%d].bot", on, i), a.bot); id == "" {
				id = unresolved
			}
		}
		want.On.Actors = append(want.On.Actors, id)
	}
	return want
}

// diffSubscription tells what the file changes, names for ids.
func (t *tenantPlan) diffSubscription(was, want *trigger.Subscription) diff {
	actors := func(ids []string) (out []string) {
		for _, id := range ids {
			if name, ok := t.names[id]; ok {
				id = "{bot: " + name + "}"
			}
			out = append(out, id)
		}
		return out
	}
	var d diff
	diffValue(&d, "enabled", was.Enabled, want.Enabled)
	diffList(&d, "on.kinds", was.On.Kinds, want.On.Kinds)
	diffValue(&d, "on.board", t.nameOf(was.On.BoardID), t.nameOf(want.On.BoardID))
	diffValue(&d, "on.from", was.On.From, want.On.From)
	diffValue(&d, "on.to", was.On.To, want.On.To)
	diffList(&d, "on.sources", was.On.Sources, want.On.Sources)
	diffList(&d, "on.actors", actors(was.On.Actors), actors(want.On.Actors))
	diffList(&d, "if.columns", was.If.Columns, want.If.Columns)
	diffList(&d, "if.labels_all", was.If.LabelsAll, want.If.LabelsAll)
	diffList(&d, "if.labels_any", was.If.LabelsAny, want.If.LabelsAny)
	diffList(&d, "if.labels_none", was.If.LabelsNone, want.If.LabelsNone)
	diffList(&d, "if.assignees", was.If.Assignees, want.If.Assignees)
	diffValue(&d, "when", was.When, want.When)
	diffValue(&d, "bot", t.nameOf(was.BotID), t.nameOf(want.BotID))
	diffValue(&d, "mode", modeOf(was), modeOf(want))
	diffValue(&d, "to_column", was.ToColumn, want.ToColumn)
	diffList(&d, "consume", was.Consume, want.Consume)
	diffValue(&d, "rank", was.Rank, want.Rank)
	diffValue(&d, "max_per_minute", perMinute(was), perMinute(want))
	diffMap(&d, "args", was.Args, want.Args)
	diffMap(&d, "vars", was.Vars, want.Vars)
	return d
}

func perMinute(s *trigger.Subscription) int {
	if s.MaxPerMinute == nil {
		return trigger.MaxPerMinuteDefault
	}
	return *s.MaxPerMinute
}

func modeOf(s *trigger.Subscription) trigger.Mode { return cmp.Or(s.Mode, trigger.ModeDirect) }

// faults returns what Validate finds wrong. Validate stops at the first fault,
// so each entry is also tried alone, in a subscription that has no other; a
// fault that only shows once another is gone is found then.
func faults(s *trigger.Subscription) []tracker.FieldError {
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
			Name: "probe", BotID: unresolved, On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindCreated}},
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
		note(probe, "args", fieldPath("args", name))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Vars)) {
		probe := alone()
		probe.Vars = map[string]string{name: s.Vars[name]}
		note(probe, "vars", fieldPath("vars", name))
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
