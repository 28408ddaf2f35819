package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// A file may ask to be told of dead letters, beside changes of cards.
func TestEventsThatTellOfRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	told := func(on string) string {
		return fullFile + `
      - name: tell
        on: ` + on + `
        bot: implementer
        args: {what: "${event.effect.id}"}
`
	}
	file := told("{kinds: [effect.failed, card.created], sources: [board, custom]}")
	b.mustApply(t, file)
	s := b.subscription(t, "tell")
	require.Equal(t, []tracker.Kind{trigger.KindEffectFailed, tracker.KindCreated}, s.On.Kinds)
	require.Equal(t, []trigger.Source{trigger.SourceBoard, trigger.SourceCustom}, s.On.Sources)
	require.Contains(t, s.Requires, "effects")
	require.False(t, b.mustApply(t, file).Changed())
	for on, want := range map[string]string{
		"{kinds: [effect.failed], sources: [board]}":               "come from the source custom alone",
		"{kinds: [card.created], sources: [custom]}":               "emits only effect.failed and effect.reconcile",
		"{kinds: [effect.lost]}":                                   "must be one of",
		"{kinds: [effect.failed], sources: [forge]}":               "nothing else emits events",
		"{kinds: [effect.failed], board: issues, from: open}":      "from and to need card.moved",
		"{kinds: [effect.reconcile], board: issues, sources: [x]}": "nothing else emits events",
	} {
		_, err := b.apply(t, told(on))
		require.ErrorContains(t, err, want, on)
	}
}
