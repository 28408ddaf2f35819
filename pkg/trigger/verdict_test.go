package trigger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestVerdictSaysWhatWasWantedAndFound(t *testing.T) {
	t.Parallel()
	verdict := func(s *trigger.Subscription, e *trigger.Event) trigger.Verdict {
		m, err := trigger.NewMatcher(s)
		require.NoError(t, err)
		return m.Verdict(e)
	}
	shipIt := &trigger.Subscription{
		ID: "s1", If: trigger.Conditions{Columns: []string{"ready"}, LabelsAll: []string{"ship-it"}}, When: `card.title != ""`,
	}
	titled := snap("ready", "Ship-It", "bug")
	titled.Title = "x"
	actor := trigger.Condition{Name: "actor", Wanted: "no bot: a bot's changes fire only subscriptions that name it", Found: `human "mona"`, Held: true}
	column := trigger.Condition{Name: "if.columns", Wanted: `in the column "ready"`, Found: `in the column "ready"`, Held: true}
	label := trigger.Condition{Name: "if.labels_all", Wanted: `all of the labels "ship-it"`, Found: `"Ship-It", "bug"`, Held: true}
	when := trigger.Condition{Name: "when", Wanted: `card.title != "" to be true`, Found: "true", Held: true}
	edge := trigger.Condition{Name: "edge", Wanted: "conditions that did not all hold before the event", Found: "a card that was not there before", Held: true}
	require.Equal(t, trigger.Verdict{
		EventID: "acme/000000000007", EventSeq: 7, SubscriptionID: "s1", Fires: true,
		Summary:    "It fires: the conditions hold since this event.",
		Conditions: []trigger.Condition{actor, column, label, when, edge},
	}, verdict(shipIt, event(tracker.KindCreated, nil, titled)))

	// Conditions after the first that did not hold are told of too.
	actor.Held, actor.Found = false, `bot "bot9"`
	edge.Held, edge.Found = false, "they all held before already"
	require.Equal(t, trigger.Verdict{
		EventID: "acme/000000000007", EventSeq: 7, SubscriptionID: "s1",
		Summary:    `It does not fire: wanted was no bot: a bot's changes fire only subscriptions that name it, found bot "bot9".`,
		Conditions: []trigger.Condition{actor, column, label, when, edge},
	}, verdict(shipIt, event(tracker.KindEdited, titled, titled, by(tracker.ActorBot, "bot9"))))

	fails := onEdit(`card.labels[5] == "x"`)
	v := verdict(fails, event(tracker.KindEdited, titled, titled))
	require.False(t, v.Fires)
	require.Equal(t, "when: index out of bounds: 5", v.Error)
	require.Equal(t, "It could not be decided: when: index out of bounds: 5.", v.Summary)
	require.Equal(t, trigger.Condition{
		Name: "when", Wanted: `card.labels[5] == "x" to be true`, Found: "an evaluation that failed, when: index out of bounds: 5",
	}, v.Conditions[len(v.Conditions)-1])

	// What fails but does not decide is no error.
	v = verdict(fails, event(tracker.KindMoved, titled, titled))
	require.Empty(t, v.Error)
	require.Equal(t, "It does not fire: wanted was card.edited, found card.moved.", v.Summary)
}
