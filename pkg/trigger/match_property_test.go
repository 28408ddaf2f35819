package trigger_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Few texts, so that they meet; hostile ones among them. Each call makes a
// generator of its own: one that tests in parallel share would be a race.

func someLabels() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{
		"ship-it", "SHIP-IT", " ship-it ", "bug", "caf\u00e9", "CAFE\u0301", "stra\u00dfe", "STRASSE", "\u0130", "i\u0307",
		".*", "(a+)+$", "[", "\xff", strings.Repeat("a", 10_000), "\u212a", "k",
	})
}

func someColumns() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "open", "ready", "done"})
}

func someActors() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{"", "mona", "MONA", "bot9"})
}

func someWhens() *rapid.Generator[string] {
	return rapid.SampledFrom([]string{
		"", "", "", `"ship-it" in card.labels`, `card.title.contains("x")`, `card.labels[0] == "bug"`, `1 / size(card.title) > 0`,
		`card.labels.exists(l, fold(l) == "bug")`, `has(card.external.url)`, `event.from == "open"`, `event.before.title != card.title`,
		`actor.id == "mona" && "bug" in event.added`, `this is not CEL`,
	})
}

func genList(t *rapid.T, of *rapid.Generator[string], name string) []string {
	if rapid.Bool().Draw(t, name+" none") {
		return nil
	}
	return rapid.SliceOfN(of, 1, 3).Draw(t, name)
}

func genSnapshot(t *rapid.T, name string) *tracker.Snapshot {
	if rapid.IntRange(0, 5).Draw(t, name+" is nil") == 0 {
		return nil
	}
	s := &tracker.Snapshot{
		BoardID: "b1", ColumnID: someColumns().Draw(t, name+" column"), Title: rapid.SampledFrom([]string{"", "x", "other"}).Draw(t, name+" title"),
		Labels: genList(t, someLabels(), name+" labels"), Assignees: genList(t, someActors(), name+" assignees"),
	}
	if rapid.Bool().Draw(t, name+" external") {
		s.External = &tracker.External{URL: "https://example.com"}
	}
	return s
}

func genEvent(t *rapid.T) *trigger.Event {
	return &trigger.Event{
		TenantID: "acme", Seq: 7,
		Source: rapid.SampledFrom([]trigger.Source{trigger.SourceBoard, trigger.SourceBoard, trigger.SourceBoard, trigger.SourceVoid, trigger.SourceCustom}).Draw(t, "source"),
		BoardEvent: tracker.BoardEvent{
			Kind: rapid.SampledFrom(append(tracker.Kinds(), tracker.KindProjected, "of.a.newer.version")).Draw(t, "kind"), BoardID: rapid.SampledFrom([]string{"b1", "b2"}).Draw(t, "board"), CardID: "c1",
			Actor: tracker.Actor{
				Kind: rapid.SampledFrom([]tracker.ActorKind{tracker.ActorHuman, tracker.ActorBot, tracker.ActorSystem, ""}).Draw(t, "actor kind"),
				ID:   someActors().Draw(t, "actor"),
			},
			Before: genSnapshot(t, "before"), After: genSnapshot(t, "after"), BeforeUnknown: rapid.IntRange(0, 4).Draw(t, "unknown") == 0,
			Added: genList(t, someLabels(), "added"), Removed: genList(t, someLabels(), "removed"),
			FromColumn: someColumns().Draw(t, "from"), ToColumn: someColumns().Draw(t, "to"),
		},
	}
}

func genSubscription(t *rapid.T) *trigger.Subscription {
	s := &trigger.Subscription{TenantID: "acme", ID: "s", Name: "s", BotID: "b", When: someWhens().Draw(t, "when")}
	switch rapid.IntRange(0, 4).Draw(t, "labels") {
	case 0:
		s.If.LabelsAll = genList(t, someLabels(), "all")
	case 1:
		s.If.LabelsAny = genList(t, someLabels(), "any")
	case 2:
		s.If.LabelsNone = genList(t, someLabels(), "none")
	case 3:
		s.If = trigger.Conditions{
			LabelsAll: genList(t, someLabels(), "all"), LabelsAny: genList(t, someLabels(), "any"), LabelsNone: genList(t, someLabels(), "none"),
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "more") == 0 {
		s.If.Columns, s.If.Assignees = genList(t, someColumns(), "columns"), genList(t, someActors(), "assigned")
		s.On.Actors = genList(t, someActors(), "actors")
		s.On.BoardID = rapid.SampledFrom([]string{"", "b1"}).Draw(t, "on board")
	}
	if rapid.Bool().Draw(t, "on event") {
		s.On.Kinds = rapid.SliceOfN(rapid.SampledFrom(tracker.Kinds()), 0, 3).Draw(t, "kinds")
		if rapid.Bool().Draw(t, "columns") {
			s.On.From, s.On.To = someColumns().Draw(t, "on from"), someColumns().Draw(t, "on to")
		}
	}
	return s
}

// A verdict and the hot path agree, neither panics, and both depend on nothing
// but their arguments, which they leave as they are.
func TestVerdictAgreesWithMatch(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	check := func(t *rapid.T, s *trigger.Subscription, e *trigger.Event) {
		was := asJSON(t, s) + asJSON(t, e)
		m := trigger.StoredMatcher(s)
		fires, err := m.Match(e)
		v := m.Verdict(e)
		require.Equal(t, fires, v.Fires)
		require.Equal(t, err != nil, v.Error != "")
		all := !slices.ContainsFunc(v.Conditions, func(c trigger.Condition) bool { return !c.Held })
		require.Equal(t, fires, all, "it fires exactly when all conditions held: %+v", v)
		require.NotEmpty(t, v.Summary)
		for _, c := range v.Conditions {
			require.NotEmpty(t, c.Wanted, c.Name)
			require.NotEmpty(t, c.Found, c.Name)
			require.Less(t, len(c.Wanted)+len(c.Found), 1100)
			require.True(t, utf8.ValidString(c.Wanted+c.Found), c.Name)
		}
		evaluated, rows := trigger.MatchAll([]trigger.Subscription{*s}, boardmem.New())(e)
		require.Equal(t, fires || err != nil, rows > 0, "the tail's index leaves none out")
		require.LessOrEqual(t, evaluated, int64(1))
		again, errAgain := m.Match(e)
		require.Equal(t, fires, again)
		require.Equal(t, fmt.Sprint(err), fmt.Sprint(errAgain))
		require.Equal(t, v, trigger.StoredMatcher(s).Verdict(e))
		require.Equal(t, was, asJSON(t, s)+asJSON(t, e), "the arguments are left alone")
		switch {
		case err != nil:
			seen["failed"]++
		case fires:
			seen["fired"]++
		default:
			seen["not"]++
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := genSubscription(t)
		for range 10 {
			check(t, s, genEvent(t))
		}
	})
	require.Len(t, seen, 3, "the generator reaches all ends: %v", seen)
}

// What is one label to the uniqueness of a card's labels is one label to
// matching, to `in`, to fold and to consuming.
func TestFoldingIsTheSameEverywhere(t *testing.T) {
	t.Parallel()
	texts := rapid.OneOf(someLabels(), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		a, b := texts.Draw(t, "a"), texts.Draw(t, "b")
		if tracker.Fold(a) == "" || tracker.Fold(b) == "" {
			t.Skip("no label")
		}
		one := len(tracker.UniqueFold([]string{a, b})) == 1
		snapshot := &tracker.Snapshot{Labels: []string{a}, Title: b, ColumnID: a, Assignees: []string{a}}
		require.Equal(t, one, snapshot.HasLabel(b))
		e := event(tracker.KindLabeled, nil, snapshot, added(a), by(tracker.ActorBot, a))
		for what, s := range map[string]*trigger.Subscription{
			"all":      {On: trigger.EventFilter{Actors: []string{a}}, If: trigger.Conditions{LabelsAll: []string{b}}},
			"any":      {On: trigger.EventFilter{Actors: []string{a}}, If: trigger.Conditions{LabelsAny: []string{b}}},
			"assignee": {On: trigger.EventFilter{Actors: []string{a}}, If: trigger.Conditions{Assignees: []string{b}}},
			"actor":    {On: trigger.EventFilter{Actors: []string{b}}, If: trigger.Conditions{LabelsAll: []string{a}}},
			"added":    {On: trigger.EventFilter{Actors: []string{a}, Kinds: []tracker.Kind{tracker.KindLabeled}}, If: trigger.Conditions{LabelsAny: []string{b}}},
			"in":       {On: trigger.EventFilter{Actors: []string{a}}, When: `card.title in card.labels`},
			"in added": {On: trigger.EventFilter{Actors: []string{a}, Kinds: []tracker.Kind{tracker.KindLabeled}}, When: `card.title in event.added`},
			"in sum":   {On: trigger.EventFilter{Actors: []string{a}, Kinds: []tracker.Kind{tracker.KindLabeled}}, When: `card.title in card.labels + event.removed`},
			"fold":     {On: trigger.EventFilter{Actors: []string{a}}, When: `fold(card.title) == fold(card.column)`},
		} {
			fires, err := trigger.StoredMatcher(s).Match(e)
			require.NoError(t, err, what)
			require.Equal(t, one, fires, what)
		}
		card := &tracker.Card{Labels: []string{a}}
		removed := card.RemoveLabels([]string{b}, func(l string) tracker.LabelStamp { return tracker.LabelStamp{Label: l} })
		require.Equal(t, one, len(removed) == 1, "consuming")
	})
}

func asJSON(t require.TestingT, v any) string {
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}
