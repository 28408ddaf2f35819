package trigger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// onEdit fires on each edit for which when holds.
func onEdit(when string) *trigger.Subscription {
	return &trigger.Subscription{Name: "s", BotID: "b", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}}, When: when}
}

// onState fires when it begins to hold.
func onState(when string) *trigger.Subscription {
	return &trigger.Subscription{Name: "s", BotID: "b", When: when}
}

func TestWhen(t *testing.T) {
	t.Parallel()
	before := &tracker.Snapshot{BoardID: "b1", ColumnID: "open", Title: "old"}
	after := &tracker.Snapshot{
		BoardID: "b1", ColumnID: "ready", Title: "Fix: café", Labels: []string{"Ship-It", "area/api"}, Assignees: []string{"Mona"},
		External: &tracker.External{Repo: "acme/app", Number: 7, URL: "https://example.com/7"},
	}
	e := event(tracker.KindEdited, before, after, moved("open", "ready"), added("x"))
	for when, want := range map[string]bool{
		`card.title == "Fix: café"`:                              true,
		`card.title.startsWith("Fix")`:                           true,
		`card.title.contains("caf")`:                             true,
		`size(card.title) == 9`:                                  true,
		`"ship-it" in card.labels`:                               true,
		`"ship" in card.labels`:                                  false,
		`".*" in card.labels`:                                    false,
		`"BUG" in card.labels + ["bug"]`:                         true,
		`"BUG" in event.added + ["ship-it"]`:                     false,
		`"mona" in card.assignees`:                               true,
		`card.labels.exists(l, l.startsWith("area/"))`:           true,
		`card.labels.exists(l, l == "ship-it")`:                  false,
		`card.labels.exists(l, fold(l) == "ship-it")`:            true,
		`card.labels.map(l, fold(l))[0] == "ship-it"`:            true,
		`card.labels.all(l, l in event.before.labels)`:           false,
		`size(card.labels.filter(l, l.contains("/"))) == 1`:      true,
		`card.column == "ready" && card.board == "b1"`:           true,
		`card.external.repo == "acme/app"`:                       true,
		`card.external.number > 6`:                               true,
		`has(card.external.url)`:                                 true,
		`has(event.before)`:                                      true,
		`has(event.before.external)`:                             false,
		`event.before.external.number == 0`:                      true,
		`event.before.title == "old"`:                            true,
		`event.kind == "card.edited" && event.source == "board"`: true,
		`event.from == "open" && event.to == "ready"`:            true,
		`"x" in event.added && size(event.removed) == 0`:         true,
		`actor.kind == "human" && actor.id == "mona"`:            true,
		`has(actor.name)`:                                        false,
		`string(card.external.number) == "7"`:                    true,
		`card.column in ["ready", "done"] ? true : false`:        true,
		`{"a": 1}["a"] == 1 && has(card.title)`:                  true,
	} {
		m, err := trigger.NewMatcher(onEdit(when))
		require.NoError(t, err, when)
		got, err := m.Match(e)
		require.NoError(t, err, when)
		require.Equal(t, want, got, when)
	}
}

func TestWhenIsRefused(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("(", 200) + "true" + strings.Repeat(")", 200)
	for name, c := range map[string]struct {
		sub  *trigger.Subscription
		want string
	}{
		"misspelt":               {onEdit("card.title == \"a\" ||\n  card.titel == \"b\""), "line 2, column 7: undefined field 'titel'"},
		"misspelt, in has":       {onEdit(`has(card.titel)`), "undefined field 'titel'"},
		"not CEL":                {onEdit(`card.title ==`), "line 1, column 14: Syntax error"},
		"another type":           {onEdit(`card.title == 1`), "line 1, column 12: found no matching overload"},
		"not a condition":        {onEdit(`card.title`), "must be true or false: it yields string"},
		"true":                   {onEdit(`true`), "always the same"},
		"a constant":             {onState(`1 + 1 == 2`), "always the same"},
		"event of a state":       {onState(`event.kind == "card.edited"`), "event can be named only with on.kinds, on.from or on.to"},
		"actor of a state":       {onState(`card.title == actor.id`), "line 1, column 15: actor can be named only with"},
		"a whole card":           {onEdit(`card == event.before`), "is an object: name one of its fields"},
		"a whole card in a list": {onEdit(`[card].exists(c, c.title == "x")`), "is an object"},
		"an object made":         {onEdit(`Card{title: "x"}.title == card.title`), "objects can't be made"},
		"a pattern":              {onEdit(`card.title.matches("(a+)+$")`), "undeclared reference to 'matches'"},
		"a clock":                {onEdit(`timestamp("2020-01-01T00:00:00Z") < now`), "undeclared reference to 'timestamp'"},
		"dyn":                    {onEdit(`dyn(card.title) == 1`), "undeclared reference to 'dyn'"},
		"mixed types":            {onEdit(`card.title in ["a", 1]`), "expected type 'string' but found 'int'"},
		"100 kB":                 {onEdit(`card.title == "` + strings.Repeat("x", 100_000) + `"`), "at most 4096 bytes"},
		"blank":                  {onEdit("  "), "line 1, column 1: is empty"},
		"deep":                   {onEdit(deep), "expression recursion limit exceeded"},
		"deep brackets":          {onEdit(strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + ".size() == size(card.labels)"), "expression recursion limit exceeded"},
		"many nodes":             {onEdit(strings.Repeat("1+", 2000) + `1 == size(card.title)`), ""},
		"three loops": {
			onEdit(`card.labels.exists(a, card.labels.exists(b, card.labels.exists(c, a + b == c)))`), "comprehension exceeds nesting limit",
		},
		"two loops over whole lists": {onEdit(`card.labels.exists(a, card.labels.exists(b, a + b == card.title))`), "costs too much"},
		"a bomb of texts":            {onEdit(`card.labels.map(a, card.labels.map(b, card.title + card.title + a + b)).size() == 1`), "costs too much"},
		"a bomb of lists": {
			onEdit(`[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, [a,b,a,b,a,b,a,b,a,b].map(c, c))).size() == size(card.title)`), "comprehension exceeds nesting limit",
		},
	} {
		err := c.sub.Validate()
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, name)
		require.Equal(t, "when", fe.Field, name)
		require.Contains(t, fe.Want, c.want, name)
		require.Less(t, len(fe.Want), 500, name)
		require.NotContains(t, fe.Want, "line -1", name)
	}
}

func TestWhenFires(t *testing.T) {
	t.Parallel()
	require.NoError(t, onState(`card.title.contains("x")`).Validate(), "a when is a state condition")
	m, err := trigger.NewMatcher(onState(`card.title.contains("x")`))
	require.NoError(t, err)
	titled := func(title string) *tracker.Snapshot { return &tracker.Snapshot{Title: title} }
	for name, c := range map[string]struct {
		e    *trigger.Event
		want bool
	}{
		"created so":       {event(tracker.KindCreated, nil, titled("x")), true},
		"becomes so":       {event(tracker.KindEdited, titled("a"), titled("ax")), true},
		"stays so":         {event(tracker.KindEdited, titled("x"), titled("xx")), false},
		"is no longer so":  {event(tracker.KindEdited, titled("x"), titled("a")), false},
		"unknown before":   {event(tracker.KindEdited, nil, titled("x"), unknownBefore), false},
		"by another's bot": {event(tracker.KindCreated, nil, titled("x"), by(tracker.ActorBot, "b9")), false},
	} {
		got, err := m.Match(c.e)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

// However often a loop asks, a list is folded once.
func TestWhenFoldsAListOnce(t *testing.T) {
	labels := make([]string, tracker.LabelsMax)
	for i := range labels {
		labels[i] = fmt.Sprint("LABEL-", i)
	}
	e := event(tracker.KindUnlabeled, nil, &tracker.Snapshot{Labels: labels}, func(e *trigger.Event) {
		for _, l := range labels {
			e.Removed = append(e.Removed, l+"-x")
		}
	})
	sub := onEdit(`card.labels.exists(l, l in event.removed)`)
	sub.On.Kinds = []tracker.Kind{tracker.KindUnlabeled}
	require.NoError(t, sub.Validate())
	m, err := trigger.NewMatcher(sub)
	require.NoError(t, err)
	allocs := testing.AllocsPerRun(10, func() {
		fires, err := m.Match(e)
		require.NoError(t, err)
		require.False(t, fires)
	})
	require.Less(t, allocs, 2000.0)
}

func TestWhenThatFailsIsNotSilentlyFalse(t *testing.T) {
	t.Parallel()
	labels := make([]string, 50_000)
	for i := range labels {
		labels[i] = "x"
	}
	for when, want := range map[string]string{
		`card.labels[5] == "x"`:                 "when: index out of bounds: 5",
		`1 / size(card.labels) == 1`:            "when: division by zero",
		`int(card.title) == 1`:                  "when: ",
		`event.removed.exists(l, l == "other")`: "when: operation cancelled: actual cost limit exceeded",
	} {
		m, err := trigger.NewMatcher(onEdit(when))
		require.NoError(t, err, when)
		e := event(tracker.KindEdited, nil, &tracker.Snapshot{Title: "x"}, func(e *trigger.Event) { e.Removed = labels })
		fires, err := m.Match(e)
		require.ErrorContains(t, err, want, when)
		require.False(t, fires, when)
		e.Kind = tracker.KindMoved
		_, err = m.Match(e)
		require.NoError(t, err, "when is evaluated only where it decides")
	}
}
