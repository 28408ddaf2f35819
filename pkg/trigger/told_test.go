package trigger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// toldOf is an event that tells of a failed row.
func toldOf(kind tracker.Kind) *trigger.Event {
	card := &tracker.Snapshot{BoardID: "b1", ColumnID: "ready", Labels: []string{"ship-it"}}
	return &trigger.Event{
		TenantID: "acme", Seq: 7, Source: trigger.SourceCustom,
		BoardEvent: tracker.BoardEvent{EID: "custom:" + string(kind) + ":x:y", Kind: kind, CardID: "c1", BoardID: "b1", Before: card, After: card},
		Payload:    `{"effect":"acme/000000000001|s1","kind":"launch","state":"failed","reason":"permanent","subscription":"s1","bot":"bot1","attempts":2,"error":"status 400"}`,
	}
}

func TestEventsThatTellOfRows(t *testing.T) {
	t.Parallel()
	failed, reconcile := toldOf(trigger.KindEffectFailed), toldOf(trigger.KindEffectReconcile)
	moved := &trigger.Event{Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{Kind: tracker.KindMoved, BoardID: "b1", After: failed.After, Actor: tracker.Actor{Kind: tracker.ActorHuman}}}
	kinds := func(k ...tracker.Kind) trigger.EventFilter { return trigger.EventFilter{Kinds: k} }
	unknown := *failed
	unknown.Before, unknown.BeforeUnknown = nil, false
	for name, c := range map[string]struct {
		sub  trigger.Subscription
		e    *trigger.Event
		want bool
	}{
		"by its kind":                 {trigger.Subscription{On: kinds(trigger.KindEffectFailed)}, failed, true},
		"by the other kind":           {trigger.Subscription{On: kinds(trigger.KindEffectFailed)}, reconcile, false},
		"with the source":             {trigger.Subscription{On: trigger.EventFilter{Kinds: []tracker.Kind{trigger.KindEffectReconcile}, Sources: []trigger.Source{trigger.SourceCustom}}}, reconcile, true},
		"the card's state":            {trigger.Subscription{On: kinds(trigger.KindEffectFailed), If: trigger.Conditions{LabelsAll: []string{"Ship-It"}}}, failed, true},
		"not the card's state":        {trigger.Subscription{On: kinds(trigger.KindEffectFailed), If: trigger.Conditions{LabelsNone: []string{"ship-it"}}}, failed, false},
		"conditions alone: no edge":   {trigger.Subscription{If: trigger.Conditions{LabelsAll: []string{"ship-it"}}}, failed, false},
		"nor with an edge in it":      {trigger.Subscription{If: trigger.Conditions{LabelsAll: []string{"ship-it"}}}, &unknown, false},
		"when, of the row":            {trigger.Subscription{On: kinds(trigger.KindEffectFailed), When: `event.effect.reason == "permanent" && event.effect.subscription == "s1"`}, failed, true},
		"when, of another row":        {trigger.Subscription{On: kinds(trigger.KindEffectFailed), When: `event.effect.bot in ["bot2"] || event.effect.attempts > 2`}, failed, false},
		"when, whether there is one":  {trigger.Subscription{On: kinds(trigger.KindEffectFailed), When: `has(event.effect) && !has(event.effect.projection)`}, failed, true},
		"when, on a change of a card": {trigger.Subscription{On: kinds(tracker.KindMoved), When: `has(event.effect) || event.effect.id != ""`}, moved, false},
	} {
		m, err := trigger.NewMatcher(&c.sub)
		require.NoError(t, err, name)
		got, err := m.Match(c.e)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
		require.Equal(t, c.want, m.Verdict(c.e).Fires, name)
	}
	m, err := trigger.NewMatcher(&trigger.Subscription{If: trigger.Conditions{LabelsAll: []string{"ship-it"}}})
	require.NoError(t, err)
	require.Contains(t, m.Verdict(&unknown).Summary, "wanted was a change of the card, found effect.failed")
	broken := *failed
	broken.Payload = "{"
	m, err = trigger.NewMatcher(&trigger.Subscription{On: kinds(trigger.KindEffectFailed), When: `event.effect.id == "" && !has(event.effect)`})
	require.NoError(t, err)
	fires, err := m.Match(&broken)
	require.NoError(t, err)
	require.True(t, fires)
}

func TestSubscriptionToEventsThatTellOfRows(t *testing.T) {
	t.Parallel()
	sub := func(f func(*trigger.Subscription)) *trigger.Subscription {
		s := &trigger.Subscription{Name: "told", BotID: "b"}
		f(s)
		return s
	}
	kinds := func(k ...tracker.Kind) func(*trigger.Subscription) {
		return func(s *trigger.Subscription) { s.On.Kinds = k }
	}
	require.NoError(t, sub(kinds(trigger.KindEffectFailed)).Validate())
	require.NoError(t, sub(kinds(trigger.KindEffectFailed, trigger.KindEffectReconcile, tracker.KindMoved)).Validate())
	for field, spoil := range map[string]func(*trigger.Subscription){
		"on": func(s *trigger.Subscription) {
			s.On.Kinds, s.On.Sources = []tracker.Kind{trigger.KindEffectFailed}, []trigger.Source{trigger.SourceBoard}
		},
		"on.kinds": func(s *trigger.Subscription) {
			s.On.Kinds, s.On.To = []tracker.Kind{trigger.KindEffectFailed}, "done"
		},
	} {
		var fe *tracker.FieldError
		require.ErrorAs(t, sub(spoil).Validate(), &fe)
		require.Equal(t, field, fe.Field)
	}
	// What a replica must know that serves it.
	for name, c := range map[string]struct {
		s    *trigger.Subscription
		want bool
	}{
		"by its kind": {sub(kinds(trigger.KindEffectFailed)), true},
		"by its when": {sub(func(s *trigger.Subscription) {
			s.On.Kinds, s.When = []tracker.Kind{tracker.KindMoved}, `!has(event.effect)`
		}), true},
		"by its args": {sub(func(s *trigger.Subscription) {
			s.On.Kinds, s.Args = []tracker.Kind{tracker.KindMoved}, map[string]string{"a": "${event.effect.id}"}
		}), true},
		"not by texts": {sub(func(s *trigger.Subscription) {
			s.On.Kinds, s.Args = []tracker.Kind{tracker.KindMoved}, map[string]string{"a": "effect"}
		}), false},
	} {
		c.s.Edited(time.Now())
		if c.want {
			require.Contains(t, c.s.Requires, "effects", name)
		} else {
			require.NotContains(t, c.s.Requires, "effects", name)
		}
		require.False(t, c.s.Foreign(), name)
	}
}
