package trigger_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func snap(column string, labels ...string) *tracker.Snapshot {
	return &tracker.Snapshot{BoardID: "b1", ColumnID: column, Labels: labels, Assignees: []string{"Mona"}}
}

func event(kind tracker.Kind, before, after *tracker.Snapshot, with ...func(*trigger.Event)) *trigger.Event {
	e := &trigger.Event{TenantID: "acme", Seq: 7, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{
		EID: "board:x", Kind: kind, BoardID: "b1", CardID: "c1", Before: before, After: after,
		Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"},
	}}
	for _, f := range with {
		f(e)
	}
	return e
}

func moved(from, to string) func(*trigger.Event) {
	return func(e *trigger.Event) { e.FromColumn, e.ToColumn = from, to }
}

func added(labels ...string) func(*trigger.Event) {
	return func(e *trigger.Event) { e.Added = labels }
}

func by(kind tracker.ActorKind, id string) func(*trigger.Event) {
	return func(e *trigger.Event) { e.Actor = tracker.Actor{Kind: kind, ID: id} }
}
func unknownBefore(e *trigger.Event) { e.Before, e.BeforeUnknown = nil, true }

func TestMatches(t *testing.T) {
	t.Parallel()
	ready := trigger.Subscription{Enabled: true, BotID: "b", If: trigger.Conditions{Columns: []string{"ready"}, LabelsAll: []string{"ship-it"}}}
	onLabel := trigger.Subscription{Enabled: true, BotID: "b", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}}, If: trigger.Conditions{LabelsAny: []string{"ship-it", "bug"}}}
	intoReady := trigger.Subscription{Enabled: true, BotID: "b", On: trigger.EventFilter{To: "ready"}, If: trigger.Conditions{LabelsAll: []string{"ship-it"}}}
	fromOpen := trigger.Subscription{Enabled: true, BotID: "b", On: trigger.EventFilter{From: "open", Kinds: []tracker.Kind{tracker.KindMoved}}}
	for name, c := range map[string]struct {
		sub  trigger.Subscription
		e    *trigger.Event
		want bool
	}{
		"created with the label in the column":  {ready, event(tracker.KindCreated, nil, snap("ready", "ship-it")), true},
		"label, then move":                      {ready, event(tracker.KindMoved, snap("open", "ship-it"), snap("ready", "ship-it")), true},
		"move, then label":                      {ready, event(tracker.KindLabeled, snap("ready"), snap("ready", "Ship-It"), added("Ship-It")), true},
		"an unrelated edit":                     {ready, event(tracker.KindEdited, snap("ready", "ship-it"), snap("ready", "ship-it")), false},
		"another label":                         {ready, event(tracker.KindLabeled, snap("ready", "ship-it"), snap("ready", "ship-it", "x"), added("x")), false},
		"the label in another column":           {ready, event(tracker.KindLabeled, snap("open"), snap("open", "ship-it"), added("ship-it")), false},
		"leaving":                               {ready, event(tracker.KindMoved, snap("ready", "ship-it"), snap("open", "ship-it")), false},
		"first sight counts as already so":      {ready, event(tracker.KindEdited, nil, snap("ready", "ship-it"), unknownBefore), false},
		"a bot that is not named":               {ready, event(tracker.KindCreated, nil, snap("ready", "ship-it"), by(tracker.ActorBot, "bot9")), false},
		"a void":                                {ready, &trigger.Event{Source: trigger.SourceVoid}, false},
		"no snapshot":                           {ready, event(tracker.KindEdited, nil, nil), false},
		"labeled: one of the asked was added":   {onLabel, event(tracker.KindLabeled, snap("x"), snap("x", "bug"), added("other", "BUG")), true},
		"labeled: another was added":            {onLabel, event(tracker.KindLabeled, snap("x", "bug"), snap("x", "bug", "docs"), added("docs")), false},
		"labeled: first sight":                  {onLabel, event(tracker.KindLabeled, nil, snap("x", "bug"), added("bug"), unknownBefore), true},
		"labeled: another kind":                 {onLabel, event(tracker.KindEdited, snap("x"), snap("x", "bug")), false},
		"each move into the column":             {intoReady, event(tracker.KindMoved, snap("open", "ship-it"), snap("ready", "ship-it"), moved("open", "ready")), true},
		"a move into another":                   {intoReady, event(tracker.KindMoved, snap("open", "ship-it"), snap("done", "ship-it"), moved("open", "done")), false},
		"a move without the label":              {intoReady, event(tracker.KindMoved, snap("open"), snap("ready"), moved("open", "ready")), false},
		"created in the column counts as to":    {intoReady, event(tracker.KindCreated, nil, snap("ready", "ship-it"), moved("", "ready")), true},
		"a move from the column":                {fromOpen, event(tracker.KindMoved, snap("open"), snap("x"), moved("open", "x")), true},
		"a move from another":                   {fromOpen, event(tracker.KindMoved, snap("y"), snap("x"), moved("y", "x")), false},
		"composed and decomposed are one label": {trigger.Subscription{If: trigger.Conditions{LabelsAny: []string{"caf\u00e9"}}}, event(tracker.KindLabeled, snap("x"), snap("x", "CAFE\u0301"), added("CAFE\u0301")), true},
		"a pattern is only text":                {trigger.Subscription{If: trigger.Conditions{LabelsAny: []string{".*"}}}, event(tracker.KindLabeled, snap("x"), snap("x", "bug"), added("bug")), false},
		"none of the labels":                    {trigger.Subscription{If: trigger.Conditions{LabelsNone: []string{"wip"}}}, event(tracker.KindUnlabeled, snap("x", "WIP"), snap("x")), true},
		"still one of them":                     {trigger.Subscription{If: trigger.Conditions{LabelsNone: []string{"wip"}}}, event(tracker.KindCreated, nil, snap("x", "wip")), false},
		"assigned to":                           {trigger.Subscription{If: trigger.Conditions{Assignees: []string{"mona"}}}, event(tracker.KindCreated, nil, snap("x")), true},
		"assigned to another":                   {trigger.Subscription{If: trigger.Conditions{Assignees: []string{"hubot"}}}, event(tracker.KindCreated, nil, snap("x")), false},
		"on another board":                      {trigger.Subscription{On: trigger.EventFilter{BoardID: "b2"}, If: ready.If}, event(tracker.KindCreated, nil, snap("ready", "ship-it")), false},
		"by a named person":                     {trigger.Subscription{On: trigger.EventFilter{Actors: []string{"MONA"}}, If: ready.If}, event(tracker.KindCreated, nil, snap("ready", "ship-it")), true},
		"by another person":                     {trigger.Subscription{On: trigger.EventFilter{Actors: []string{"hubot"}}, If: ready.If}, event(tracker.KindCreated, nil, snap("ready", "ship-it")), false},
		"by a named bot":                        {trigger.Subscription{On: trigger.EventFilter{Actors: []string{"bot9"}}, If: ready.If}, event(tracker.KindCreated, nil, snap("ready", "ship-it"), by(tracker.ActorBot, "bot9")), true},
		"sources that are never human are exempt": {trigger.Subscription{On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}}}, event(tracker.KindEdited, nil, snap("x"), by(tracker.ActorBot, "bot9"), func(e *trigger.Event) {
			e.Source = trigger.SourceCustom
		}), true},
	} {
		m, err := trigger.NewMatcher(&c.sub)
		require.NoError(t, err, name)
		got, err := m.Match(c.e)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestSubscriptionValidate(t *testing.T) {
	t.Parallel()
	good := func() *trigger.Subscription {
		return &trigger.Subscription{Name: "ship", BotID: "b", If: trigger.Conditions{LabelsAll: []string{"Ship-It"}}, Consume: []string{"ship-it"}, Args: map[string]string{"a": "b"}}
	}
	require.NoError(t, good().Validate())
	for field, spoil := range map[string]func(*trigger.Subscription){
		"name":          func(s *trigger.Subscription) { s.Name = "Ship It" },
		"bot":           func(s *trigger.Subscription) { s.BotID = "" },
		"on, if":        func(s *trigger.Subscription) { s.If, s.Consume = trigger.Conditions{}, nil },
		"on.kinds[0]":   func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{"card.exploded"} },
		"on.kinds":      func(s *trigger.Subscription) { s.On.Kinds, s.On.From = []tracker.Kind{tracker.KindEdited}, "open" },
		"on.sources[0]": func(s *trigger.Subscription) { s.On.Sources = []trigger.Source{trigger.SourceForge} },
		"on":            func(s *trigger.Subscription) { s.On.Sources = []trigger.Source{trigger.SourceCustom} },
		"if.labels_any": func(s *trigger.Subscription) { s.If.LabelsAny = make([]string, 101) },
		"if.labels_all[0]": func(s *trigger.Subscription) {
			s.If.LabelsAll = []string{strings.Repeat("x", 256)}
		},
		"if.assignees[0]": func(s *trigger.Subscription) { s.If.Assignees = []string{" "} },
		"consume[0]":      func(s *trigger.Subscription) { s.Consume = []string{"another"} },
		"args":            func(s *trigger.Subscription) { s.Args = map[string]string{"a.b": ""} },
		"vars.v":          func(s *trigger.Subscription) { s.Vars = map[string]string{"v": "${card.titel}"} },
		"args.v":          func(s *trigger.Subscription) { s.Args = map[string]string{"v": strings.Repeat("x", 4097)} },
	} {
		s := good()
		spoil(s)
		var fe *tracker.FieldError
		require.ErrorAs(t, s.Validate(), &fe, field)
		require.Equal(t, field, fe.Field)
	}
	everything := good()
	everything.If, everything.Consume, everything.On.Sources = trigger.Conditions{}, nil, []trigger.Source{trigger.SourceBoard}
	require.Error(t, everything.Validate(), "a source alone matches everything")
}
