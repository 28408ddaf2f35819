package trigger_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// hookedLog is a log whose inserts can be met by others.
type hookedLog struct {
	*boardmem.Store
	insert func(ctx context.Context, events []trigger.Event) error
	fill   func(ctx context.Context, seqs []int64) error
}

func (l *hookedLog) EventInsertMany(ctx context.Context, tenantID string, events []trigger.Event) error {
	if l.insert != nil {
		if err := l.insert(ctx, events); err != nil {
			return err
		}
	}
	return l.Store.EventInsertMany(ctx, tenantID, events)
}

func (l *hookedLog) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	if l.fill != nil {
		if err := l.fill(ctx, seqs); err != nil {
			return err
		}
	}
	return l.Store.EventFillVoids(ctx, tenantID, seqs)
}

// pend makes n changes of a card that nobody relays.
func pend(t *testing.T, store *boardmem.Store, n int) {
	t.Helper()
	board := &trigger.Board{Cards: store, Log: store, Clock: store}
	for i := range n {
		_, err := board.Change(t.Context(), "acme", "c", func(c *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			if c == nil {
				c = &tracker.Card{BoardID: "b1", ColumnID: "open"}
			}
			c.Title = fmt.Sprint("title ", i)
			return c, &tracker.BoardEvent{Kind: tracker.KindEdited}, nil
		})
		require.NoError(t, err)
	}
}

// TestE2_AnotherRelayIsNoLoss has another relay bring in one of a card's three
// events while this one inserts them: the two left are relayed, above what was
// given up, and the tenant waits no longer for holes than before. A void that
// takes the place of one does raise the patience (T3).
func TestE2_AnotherRelayIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, void := range map[string]bool{"another relay": false, "a void": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			store := boardmem.New()
			pend(t, store, 3)
			log := &hookedLog{Store: store}
			met := false
			log.insert = func(ctx context.Context, events []trigger.Event) error {
				if met {
					return nil
				}
				met = true
				if void {
					return store.EventFillVoids(ctx, "acme", []int64{events[1].Seq})
				}
				first, err := store.SeqAllocate(ctx, "acme", 1, false)
				if err != nil {
					return err
				}
				other := events[0]
				other.Seq = first
				return store.EventInsertMany(ctx, "acme", []trigger.Event{other})
			}
			relay := &trigger.Relay{Cards: store, Log: log, Heads: store}
			seqs, err := relay.Card(ctx, "acme", "c")
			require.NoError(t, err)
			require.Len(t, seqs, 3)
			head, err := store.HeadGet(ctx, "acme")
			require.NoError(t, err)
			if void {
				require.Equal(t, 2*trigger.HoleWaitDefault.Milliseconds(), head.PatienceMS)
			} else {
				require.Zero(t, head.PatienceMS)
			}
			events, err := store.EventList(ctx, "acme", 0, head.Seq)
			require.NoError(t, err)
			require.Len(t, events, int(head.Seq), "no hole is left")
			var titles []string
			for _, e := range events {
				if e.Source == trigger.SourceBoard {
					titles = append(titles, e.After.Title)
				}
			}
			require.Equal(t, []string{"title 0", "title 1", "title 2"}, titles)
		})
	}
}

// TestE2_NobodyWaitsForAFillThatIsNotAnswered lets the store fall silent in an
// insert: the caller gets its answer a moment after its time is over, although
// giving up the seqs may take much longer.
func TestE2_NobodyWaitsForAFillThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := boardmem.New()
		pend(t, store, 1)
		silent := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		log := &hookedLog{Store: store}
		log.insert = func(ctx context.Context, _ []trigger.Event) error { return silent(ctx) }
		log.fill = func(ctx context.Context, _ []int64) error { return silent(ctx) }
		relay := &trigger.Relay{Cards: store, Log: log, Heads: store, FillTimeout: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := relay.Card(ctx, "acme", "c")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.LessOrEqual(t, time.Since(began), 4*time.Second)

		// A store that answers again in time gets the voids, though the
		// caller's time is over: no hole is left to wait for.
		log.fill = nil
		ctx, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = relay.Card(ctx, "acme", "c")
		require.Error(t, err)
		seqs, err := store.EventSeqs(t.Context(), "acme", 1, 2)
		require.NoError(t, err)
		require.Equal(t, []int64{2}, seqs)
	})
}
