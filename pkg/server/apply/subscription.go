package apply

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func (t *tenantPlan) planSubscriptions() {
	room := t.room(KindSubscription, SubscriptionsMax, len(t.subscriptions))
	old := byName(t.subscriptions, func(s *trigger.Subscription) string { return s.Name })
	for i := range t.spec.subscriptions {
		spec := &t.spec.subscriptions[i]
		want := t.resolve(spec)
		for _, f := range config.Faults(&want) {
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
		config.Edit(&next, &want, t.now)
		if was != nil && was.Foreign() && len(d) > 0 {
			// A save by this version would lose what it does not know of.
			t.errorf(spec.path, "the stored subscription requires %s of a newer version: apply the file with that", showList(was.Requires))
		}
		c := t.change(KindSubscription, next.Name, next.ID, was == nil, d)
		note(c, was, &next)
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
// tenant's seq of now (T7). It is read right before the write that enables: what
// was in the log already when the file was applied owes nothing.
func (t *tenantPlan) activate(ctx context.Context, from *int64, c *Change) error {
	seq, err := config.ActiveFrom(ctx, t.Store, t.spec.id)
	if err != nil {
		return err
	}
	detail := fmt.Sprintf("active_from_seq: %d → %d", *from, seq)
	if c.Action == Created {
		detail = fmt.Sprintf("active_from_seq: %d", seq)
	}
	c.Details = append(c.Details, detail)
	*from = seq
	return nil
}

// resolve returns the subscription that the file wants, with ids for names.
func (t *tenantPlan) resolve(spec *subscriptionSpec) trigger.Subscription {
	want := spec.want
	on := spec.path + ".on"
	if spec.board != "" {
		want.On.BoardID = config.Unresolved
		if b := t.board(on+".board", spec.board); b != nil {
			want.On.BoardID = b.ID
			for _, f := range config.Columns(&want, b) {
				t.errorf(spec.path+"."+f.Field, "%s", f.Want)
			}
		}
	}
	if want.BotID = t.bot(spec.path+".bot", spec.bot); want.BotID == "" {
		want.BotID = config.Unresolved
	}
	for i, a := range spec.actors {
		id := a.login
		if a.bot != "" {
			if id = t.bot(fmt.Sprintf("%s.actors[%d].bot", on, i), a.bot); id == "" {
				id = config.Unresolved
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
