package trigger_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// TestW10_RowsOfAFailedInsertAreHandedBack: an insert fails for good, and some
// of its rows are there, as claimed: they don't wait for their lease to run out,
// nor lose an attempt; and nothing of what was taken for them is kept, also when
// the store panics.
func TestW10_RowsOfAFailedInsertAreHandedBack(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(){
		"an error": func() {},
		"a panic":  func() { panic("the store") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const before = 10 // so that its bot is known to be fast
				b := setup(t, before, quick(make(chan string, 1000)))
				b.worker.Slots = 8
				require.NoError(t, b.worker.Start(t.Context()))
				for range before {
					require.Equal(t, trigger.StateDone, b.ended(t).To)
				}
				synctest.Wait()
				b.emit(t, 10)
				b.tail(&halfInserts{b.store, fail}, b.worker).Serve(t.Context(), "acme")
				synctest.Wait()
				busy, queued := b.worker.InUse()
				require.Zero(t, busy)
				require.Zero(t, queued)
				rows := b.rows(t)
				require.Len(t, rows, before+5)
				began := time.Now()
				_, err := b.tail(b.store, b.worker).Drain(t.Context(), "acme")
				require.NoError(t, err)
				for range 10 {
					require.Equal(t, trigger.StateDone, b.ended(t).To)
				}
				require.Less(t, time.Since(began), 10*time.Second)
				for _, row := range b.rows(t) {
					require.Equal(t, 1, row.Attempts)
				}
				b.worker.Stop()
			})
		})
	}
}

// halfInserts inserts the first half of the rows, and then fails.
type halfInserts struct {
	trigger.EffectOutbox
	fail func()
}

// EffectMaterialize implements trigger.EffectOutbox.
func (o *halfInserts) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	if _, err := o.EffectOutbox.EffectMaterialize(ctx, tenantID, rows[:len(rows)/2]); err != nil {
		return nil, err
	}
	o.fail()
	return nil, errors.New("too large")
}
