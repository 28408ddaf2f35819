package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

var errFault = errors.New("the database is gone (u:pw@db.internal)")

// faultStore is a store whose calls can be made to fail: before, as ones that
// never reached the database, or after, as ones whose answer was lost.
type faultStore struct {
	trigger.Store
	mu     sync.Mutex
	before map[string]func(context.Context) error
	after  map[string]func(context.Context) error
	// bulks counts the bulk decisions that were made.
	bulks atomic.Int32
}

// fail fails the calls of the ops before they reach the store, until heal.
func (f *faultStore) fail(ops ...string) {
	for _, op := range ops {
		f.on(op, func(context.Context) error { return errFault })
	}
}

// on sets what a call of the op does before it reaches the store.
func (f *faultStore) on(op string, do func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before == nil {
		f.before = make(map[string]func(context.Context) error)
	}
	f.before[op] = do
}

// lose has the calls of the op applied, and their answers lost.
func (f *faultStore) lose(op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.after == nil {
		f.after = make(map[string]func(context.Context) error)
	}
	f.after[op] = func(context.Context) error { return errFault }
}

func (f *faultStore) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = nil, nil
}

func (f *faultStore) at(ctx context.Context, points *map[string]func(context.Context) error, op string) error {
	f.mu.Lock()
	do := (*points)[op]
	f.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx)
}

func (f *faultStore) call(ctx context.Context, op string, do func() error) error {
	if err := f.at(ctx, &f.before, op); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.at(ctx, &f.after, op)
}

// ask is call for what returns a value; none comes with an error.
func ask[T any](ctx context.Context, f *faultStore, op string, do func() (T, error)) (v T, err error) {
	err = f.call(ctx, op, func() error {
		v, err = do()
		return err
	})
	if err != nil {
		v = *new(T)
	}
	return v, err
}

func (f *faultStore) Ping(ctx context.Context) error {
	return f.call(ctx, "Ping", func() error { return f.Store.Ping(ctx) })
}

func (f *faultStore) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	return ask(ctx, f, "CardGet", func() (*tracker.Card, error) { return f.Store.CardGet(ctx, tenantID, cardID) })
}

func (f *faultStore) CardWrite(ctx context.Context, w tracker.CardWrite) error {
	return f.call(ctx, "CardWrite", func() error { return f.Store.CardWrite(ctx, w) })
}

func (f *faultStore) CardPendingRemove(ctx context.Context, tenantID string, eids map[string][]string) error {
	return f.call(ctx, "CardPendingRemove", func() error { return f.Store.CardPendingRemove(ctx, tenantID, eids) })
}

func (f *faultStore) CardsGet(ctx context.Context, tenantID string, ids []string) ([]*tracker.Card, error) {
	return ask(ctx, f, "CardsGet", func() ([]*tracker.Card, error) { return f.Store.CardsGet(ctx, tenantID, ids) })
}

func (f *faultStore) TenantGet(ctx context.Context, id string) (*trigger.Tenant, error) {
	return ask(ctx, f, "TenantGet", func() (*trigger.Tenant, error) { return f.Store.TenantGet(ctx, id) })
}

func (f *faultStore) HeadList(ctx context.Context, after string, limit int) ([]trigger.Head, error) {
	return ask(ctx, f, "HeadList", func() ([]trigger.Head, error) { return f.Store.HeadList(ctx, after, limit) })
}

func (f *faultStore) SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (int64, error) {
	return ask(ctx, f, "SeqAllocate", func() (int64, error) { return f.Store.SeqAllocate(ctx, tenantID, n, lost) })
}

func (f *faultStore) EventInsertMany(ctx context.Context, tenantID string, events []trigger.Event) error {
	return f.call(ctx, "EventInsertMany", func() error { return f.Store.EventInsertMany(ctx, tenantID, events) })
}

func (f *faultStore) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	return f.call(ctx, "EventFillVoids", func() error { return f.Store.EventFillVoids(ctx, tenantID, seqs) })
}

func (f *faultStore) EventSeqsByEID(ctx context.Context, tenantID string, eids []string) (map[string]int64, error) {
	return ask(ctx, f, "EventSeqsByEID", func() (map[string]int64, error) { return f.Store.EventSeqsByEID(ctx, tenantID, eids) })
}

func (f *faultStore) EventList(ctx context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	return ask(ctx, f, "EventList", func() ([]trigger.Event, error) { return f.Store.EventList(ctx, tenantID, after, upTo) })
}

func (f *faultStore) EffectGet(ctx context.Context, tenantID, effectID string) (*trigger.Effect, error) {
	return ask(ctx, f, "EffectGet", func() (*trigger.Effect, error) { return f.Store.EffectGet(ctx, tenantID, effectID) })
}

func (f *faultStore) EffectList(ctx context.Context, p trigger.EffectListParams) ([]trigger.Effect, error) {
	return ask(ctx, f, "EffectList", func() ([]trigger.Effect, error) { return f.Store.EffectList(ctx, p) })
}

func (f *faultStore) HookGet(ctx context.Context, tenantID, id string) (*trigger.Hook, error) {
	return ask(ctx, f, "HookGet", func() (*trigger.Hook, error) { return f.Store.HookGet(ctx, tenantID, id) })
}

func (f *faultStore) DeliverySeen(ctx context.Context, tenantID, hookID, deliveryID string) (bool, error) {
	return ask(ctx, f, "DeliverySeen", func() (bool, error) { return f.Store.DeliverySeen(ctx, tenantID, hookID, deliveryID) })
}

func (f *faultStore) DeliveryRecord(ctx context.Context, tenantID, hookID, deliveryID string, at time.Time) error {
	return f.call(ctx, "DeliveryRecord", func() error { return f.Store.DeliveryRecord(ctx, tenantID, hookID, deliveryID, at) })
}

func (f *faultStore) TokenByHash(ctx context.Context, hash string) (*trigger.Token, error) {
	return ask(ctx, f, "TokenByHash", func() (*trigger.Token, error) { return f.Store.TokenByHash(ctx, hash) })
}

func (f *faultStore) HeadGet(ctx context.Context, id string) (*trigger.Head, error) {
	return ask(ctx, f, "HeadGet", func() (*trigger.Head, error) { return f.Store.HeadGet(ctx, id) })
}

func (f *faultStore) EffectsOfCards(ctx context.Context, p trigger.CardEffectsParams) ([]trigger.Effect, error) {
	return ask(ctx, f, "EffectsOfCards", func() ([]trigger.Effect, error) { return f.Store.EffectsOfCards(ctx, p) })
}
