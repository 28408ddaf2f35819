package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func appendTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestE5_AppendIsOnceAndRefusesOtherContent": testE5Append,
		"TestE2_TwoAppendsOfTheSameEvents":          testE2TwoAppends,
		"TestE2_InsertThatLetAnotherGoFirst":        testE2Contended,
	}
}

func testE5Append(t *testing.T, b *bundle) {
	ctx := t.Context()
	event := func(n int, payload string) trigger.Event {
		return trigger.Event{TenantID: tenant, Source: trigger.SourceCustom, Payload: payload, BoardEvent: tracker.BoardEvent{
			EID: fmt.Sprint("custom:", n), Kind: "custom.thing", CardID: "c1", BoardID: "b1", At: b.Now(),
		}}
	}
	seqs, err := b.relay.Append(ctx, tenant, []trigger.Event{event(1, "{}"), event(2, "{}")})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"custom:1": 1, "custom:2": 2}, seqs)
	// Again, with one more; when it happened is no part of what it says.
	again := event(2, "{}")
	again.At = again.At.Add(time.Minute)
	seqs, err = b.relay.Append(ctx, tenant, []trigger.Event{again, event(3, "{}")})
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"custom:2": 2, "custom:3": 3}, seqs)
	// The same id with other content is refused, the other event is in.
	seqs, err = b.relay.Append(ctx, tenant, []trigger.Event{event(1, `{"n":1}`), event(4, "{}")})
	require.ErrorIs(t, err, trigger.ErrEventExists)
	require.Equal(t, map[string]int64{"custom:1": 1, "custom:4": 4}, seqs)
	events := b.events(t)
	require.Len(t, events, 4)
	require.Equal(t, "{}", events[0].Payload)
	contiguous(t, b)
	// No source takes another's id, and none the board's.
	for _, spoil := range []func(*trigger.Event){
		func(e *trigger.Event) { e.EID = "board:1" },
		func(e *trigger.Event) { e.EID = "custom:" },
		func(e *trigger.Event) { e.Source, e.EID = trigger.SourceBoard, "board:1" },
		func(e *trigger.Event) { e.Source, e.EID = trigger.SourceVoid, "void:9" },
		func(e *trigger.Event) { e.Source, e.EID = "", ":1" },
		func(e *trigger.Event) { e.TenantID = "other" },
	} {
		e := event(9, "{}")
		spoil(&e)
		_, err := b.relay.Append(ctx, tenant, []trigger.Event{e})
		require.Error(t, err)
		require.NotErrorIs(t, err, trigger.ErrEventExists)
	}
	require.Len(t, b.events(t), 4)
}

// A store may end an insert to let another one of the same events go on, with
// the first of them in.
func testE2Contended(t *testing.T, b *bundle) {
	var events []trigger.Event
	for i := range 3 {
		events = append(events, trigger.Event{TenantID: tenant, Source: trigger.SourceCustom, BoardEvent: tracker.BoardEvent{
			EID: fmt.Sprint("custom:", i), Kind: "custom.thing", CardID: "c1", At: b.Now(),
		}})
	}
	once := sync.Once{}
	b.setHook(func(op string) {
		if op == "EventInsertMany" {
			once.Do(func() {
				first := events[0]
				first.Seq = 1
				assert.NoError(t, b.real.EventInsertMany(t.Context(), tenant, []trigger.Event{first}))
			})
		}
	})
	met := false
	b.setCut(func(point string) error {
		if point != "EventInsertMany:before" || met {
			return nil
		}
		met = true
		return fmt.Errorf("insert: %w", trigger.ErrContended)
	})
	seqs, err := b.relay.Append(t.Context(), tenant, append([]trigger.Event(nil), events...))
	require.NoError(t, err)
	require.Equal(t, map[string]int64{"custom:0": 1, "custom:1": 4, "custom:2": 5}, seqs)
	contiguous(t, b)
	head, err := b.real.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	require.Zero(t, head.PatienceMS, "no void took a seq")
}

func testE2TwoAppends(t *testing.T, b *bundle) {
	var events []trigger.Event
	for i := range 20 {
		events = append(events, trigger.Event{TenantID: tenant, Source: trigger.SourceCustom, BoardEvent: tracker.BoardEvent{
			EID: fmt.Sprint("custom:", i), Kind: "custom.thing", CardID: "c1", At: b.Now(),
		}})
	}
	got := make([]map[string]int64, 4)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			// Each has a list of its own, and they overlap.
			seqs, err := b.relay.Append(t.Context(), tenant, append([]trigger.Event(nil), events[i*3:i*3+11]...))
			assert.NoError(t, err)
			got[i] = seqs
		})
	}
	wg.Wait()
	seqs := make(map[string]int64)
	for _, e := range b.events(t) {
		if e.Source != trigger.SourceVoid {
			require.NotContains(t, seqs, e.EID)
			seqs[e.EID] = e.Seq
		}
	}
	require.Len(t, seqs, 20)
	for i := range got {
		require.Len(t, got[i], 11)
		for eid, seq := range got[i] {
			require.Equal(t, seqs[eid], seq, "all were told the same seq")
		}
	}
	contiguous(t, b)
}
