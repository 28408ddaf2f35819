package trigger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// tenantOf is a tenant's 1,000 subscriptions: 900 name one of nine kinds,
// equally many each, 100 watch the state. None fires for busyEvent. Every nth has a
// `when` that has to be evaluated; none if n is 0.
func tenantOf(nth int) []trigger.Subscription {
	kinds := tracker.Kinds()[:9]
	subs := make([]trigger.Subscription, 1000)
	for i := range subs {
		s := &subs[i]
		s.TenantID, s.ID, s.Enabled, s.BotID = "acme", fmt.Sprint("s", i), true, "b"
		if i%10 != 0 {
			s.On.Kinds = []tracker.Kind{kinds[i%len(kinds)]}
		}
		if nth > 0 && i%nth == 0 {
			s.When = `card.title.contains("never") && "bug" in card.labels`
		} else {
			s.If = trigger.Conditions{LabelsAll: []string{"Ship-It"}, LabelsAny: []string{"never", "neither"}}
		}
	}
	return subs
}

func busyEvent() *trigger.Event {
	s := &tracker.Snapshot{BoardID: "b1", ColumnID: "ready", Title: "A title as cards have it"}
	for i := range 10 {
		s.Labels = append(s.Labels, fmt.Sprint("Label-", i))
	}
	s.Labels = append(s.Labels, "ship-it")
	return event(tracker.KindEdited, s, s)
}

func BenchmarkMatch1000(b *testing.B) {
	for name, nth := range map[string]int{"conditions": 0, "when in a tenth": 10, "when in all": 1} {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			match, e := trigger.MatchAll(tenantOf(nth), boardmem.New()), busyEvent()
			evaluated, _ := match(e)
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				match(e)
			}
			b.ReportMetric(float64(evaluated), "evals/op")
		})
	}
}

// What an event allocates does not depend on how many subscriptions look at
// it, and verdicts cost the hot path nothing.
func TestMatchAllocatesPerEventNotPerSubscription(t *testing.T) {
	subs := tenantOf(0)
	one, all := trigger.MatchAll(subs[:1], boardmem.New()), trigger.MatchAll(subs, boardmem.New())
	e := busyEvent()
	evaluated, rows := all(e)
	require.EqualValues(t, 200, evaluated, "those of the event's kind, and those of the state")
	require.Zero(t, rows)
	ofOne, ofAll := testing.AllocsPerRun(100, func() { one(e) }), testing.AllocsPerRun(100, func() { all(e) })
	require.LessOrEqual(t, ofAll, ofOne, "the event's texts are folded once")
	require.LessOrEqual(t, ofAll, 20.0)
}
