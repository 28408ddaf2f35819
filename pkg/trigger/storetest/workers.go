package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// launchFunc answers a launch after it was recorded.
type launchFunc struct {
	*launches
	answer func(r trigger.LaunchRequest) error
}

func (l launchFunc) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	got, err := l.launches.Launch(ctx, r)
	if err == nil {
		err = l.answer(r)
	}
	return got, err
}

func launching(answer func(r trigger.LaunchRequest) error) func(*bundle, *trigger.EffectWorker) {
	return func(b *bundle, w *trigger.EffectWorker) { w.Evaluator.Launcher = launchFunc{b.launches, answer} }
}

// lookups is a configuration whose look-ups can be made to answer with an
// error: what is configured can't be deleted yet.
type lookups struct {
	trigger.Store
	sub, bot func(id string) error
}

func (l lookups) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	if l.sub != nil {
		if err := l.sub(id); err != nil {
			return nil, err
		}
	}
	return l.Store.SubscriptionGet(ctx, tenantID, id)
}

func (l lookups) BotGet(ctx context.Context, tenantID, id string) (*trigger.Bot, error) {
	if l.bot != nil {
		if err := l.bot(id); err != nil {
			return nil, err
		}
	}
	return l.Store.BotGet(ctx, tenantID, id)
}

func looking(sub, bot func(id string) error) func(*bundle, *trigger.EffectWorker) {
	return func(b *bundle, w *trigger.EffectWorker) { w.Evaluator.Config = lookups{b.faults, sub, bot} }
}

func settling(f func(row trigger.Effect, s trigger.Settle)) func(*bundle, *trigger.EffectWorker) {
	return func(_ *bundle, w *trigger.EffectWorker) { w.Settled = f }
}

// worker makes a real worker over the bundle.
func (b *bundle) worker(with ...func(*bundle, *trigger.EffectWorker)) *trigger.EffectWorker {
	w := &trigger.EffectWorker{
		Outbox: b.faults, Lanes: b.faults, Pauses: b.faults, Epochs: b.faults, Evaluator: b.evaluator(), Clock: b.faults, Logger: zerolog.Nop(), Name: "w", Slots: 8,
		Poll: 5 * time.Millisecond, RetryBase: time.Millisecond, RetryCap: time.Millisecond,
	}
	for _, f := range with {
		f(b, w)
	}
	return w
}

// work runs a worker until n rows have ended, done or failed.
func (b *bundle) work(t *testing.T, n int, with ...func(*bundle, *trigger.EffectWorker)) {
	t.Helper()
	w := b.worker(with...)
	ended, told := make(chan struct{}, 1000), w.Settled
	w.Settled = func(row trigger.Effect, s trigger.Settle) {
		if told != nil {
			told(row, s)
		}
		if s.To != trigger.StatePending {
			ended <- struct{}{}
		}
	}
	require.NoError(t, w.Start(t.Context()))
	defer w.Stop()
	for i := range n {
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of %d rows ended", i, n)
		}
	}
}

func (b *bundle) card(t *testing.T, id string) *tracker.Card {
	t.Helper()
	card, err := b.real.CardGet(t.Context(), tenant, id)
	require.NoError(t, err)
	return card
}

func (b *bundle) disable(sub *trigger.Subscription) error {
	sub.Enabled = false
	sub.Revision++
	return b.real.SubscriptionSave(context.Background(), sub)
}
