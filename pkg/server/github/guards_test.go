package github

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestLabelThatAFirstSightDidNotHaveWasAbsentThen(t *testing.T) {
	t.Parallel()
	for _, action := range []string{actionOpened, actionEdited, actionClosed, "pinned"} {
		// The issue is seen at second 10 without the label.
		seen := labelDelivery(action, "other", 10, 0)
		card, events := apply(t, nil, seen)
		require.Len(t, events, 1)
		late, events := apply(t, card, labelDelivery(actionLabeled, "bug", 5, 0))
		require.Equal(t, []string{"other"}, late.Labels, "%s: it was labeled before, and unlabeled since", action)
		require.Empty(t, events)
		newer, events := apply(t, late, labelDelivery(actionLabeled, "bug", 11, 0))
		require.Equal(t, []string{"other", "bug"}, newer.Labels, action)
		require.Len(t, events, 1)
	}
}

func TestE1_OneDeliveryIsMergedOnce(t *testing.T) {
	t.Parallel()
	base, _ := apply(t, nil, labelDelivery(actionOpened, "other", 0, 0))
	labeled := labelDelivery(actionLabeled, "ship-it", 10, 0)
	card, events := apply(t, base, labeled)
	require.Len(t, events, 1)
	// An effect spends the label, by a clock that is behind GitHub's: by its
	// time alone the labeling is the later one.
	card.RemoveLabels([]string{"ship-it"}, func(l string) tracker.LabelStamp {
		return tracker.LabelStamp{Label: l, Stamp: tracker.Stamp{At: now.Add(9 * time.Second), Delta: true, Tie: "~"}, SpentBy: "e1"}
	})
	next, event, err := Merge(mapping, labeled.id, labeled.d)(card.Clone(), now)
	require.NoError(t, err)
	require.Nil(t, next, "the delivery comes again: nothing is written")
	require.Nil(t, event)

	// One that changed nothing is remembered too.
	edited := labelDelivery("locked", "other", 0, 0)
	card, events = apply(t, card, edited)
	require.Empty(t, events)
	next, _, err = Merge(mapping, edited.id, edited.d)(card.Clone(), now)
	require.NoError(t, err)
	require.Nil(t, next)
	// Another hook's delivery of the same id is another one.
	other := mapping
	other.HookID = "h2"
	next, _, err = Merge(other, edited.id, edited.d)(card.Clone(), now)
	require.NoError(t, err)
	require.NotNil(t, next)
}
