package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func traceTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestTrace_IsKeptOnEventAndRow":  testTraceKept,
		"TestTrace_OfWhatAnEffectCauses": testTraceCaused,
	}
}

const (
	traceOne = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceTwo = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// A change keeps its trace, alone and among others, and its effects hand it on,
// beside the body (W12).
func testTraceKept(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open")
	b.create(t, "c2", "open")
	for _, id := range []string{"c1", "c2"} {
		b.relayed(t, id)
	}
	one, two := tracker.WithTraceParent(t.Context(), traceOne), tracker.WithTraceParent(t.Context(), traceTwo)
	_, err := b.board.Change(one, tenant, "c1", addLabel("bug"))
	require.NoError(t, err)
	require.Equal(t, traceOne, b.card(t, "c1").Pending[0].TraceParent, "a sweeper's relay has it too")
	b.relayed(t, "c1")
	changed, err := b.board.ChangeMany(two, tenant, []string{"c1", "c2"}, addLabel("bug"))
	require.NoError(t, err)
	require.False(t, changed[0].Written)
	require.True(t, changed[1].Written)
	b.drain(t)
	var kept []string
	for _, e := range b.events(t) {
		kept = append(kept, e.TraceParent)
	}
	require.Equal(t, []string{"", "", traceOne, traceTwo}, kept)
	for _, row := range b.rows(t) {
		want := map[string]string{"c1": traceOne, "c2": traceTwo}[row.CardID]
		require.Equal(t, want, b.row(t, row.ID).Event.TraceParent)
		_, err := b.attempt(t, row.ID)
		require.NoError(t, err)
		launches := b.launches.all()
		last := launches[len(launches)-1]
		require.Equal(t, want, last.TraceParent)
		require.Equal(t, []string{row.ID, "s1", "bot1", tenant}, []string{last.EffectID, last.SubscriptionID, last.BotID, last.TenantID})
		require.NotContains(t, last.Body, "traceparent")
	}
}

// What an effect does to cards is in the trace of the change that led to it, and
// so is what tells of it.
func testTraceCaused(t *testing.T, b *bundle) {
	b.projected(t)
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug", oneShot("bug"))
	b.subscribe(t, "s2", "docs", func(s *trigger.Subscription) { s.Mode = trigger.ModePromote })
	b.create(t, "c1", "a1", "idle")
	b.relayed(t, "c1")
	b.drain(t)
	for _, row := range b.rows(t) { // the mirror
		_, err := b.attempt(t, row.ID)
		require.NoError(t, err)
	}
	b.launches.err = &trigger.LaunchError{Message: "no", Permanent: true, Definite: true}
	ctx := tracker.WithTraceParent(t.Context(), traceOne)
	for _, change := range []tracker.Changer{addLabel("bug"), addLabel("docs"), moveTo("a2")} {
		_, err := b.board.Change(ctx, tenant, "c1", change)
		require.NoError(t, err)
	}
	b.relayed(t, "c1")
	before := len(b.events(t))
	b.drain(t)
	b.work(t, 3)
	b.announce(t)
	caused := make(map[string]int)
	for _, e := range b.events(t)[before:] {
		if e.Source == trigger.SourceVoid {
			continue
		}
		require.Equal(t, traceOne, e.TraceParent, e.Kind)
		caused[string(e.Kind)+" "+string(e.Actor.Kind)]++
	}
	require.Equal(t, map[string]int{"card.unlabeled bot": 1, "card.promoted bot": 1, "card.moved system": 1, "effect.failed system": 1}, caused)
}
