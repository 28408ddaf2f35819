package storetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// faults is a store whose durable writes can be cut: before, as a write that
// never reached the store, or after, as one whose answer was lost.
type faults struct {
	trigger.Store
	mu sync.Mutex
	// cut is asked at each point, "op:before" and "op:after"; the error it
	// returns is the call's.
	cut func(point string) error
	// hook, if set, runs before the op's write, outside of any lock.
	hook func(op string)
	// eids are those of the card writes tried, in order.
	eids []string
	// holdCardWrite, if set, gets a card write instead of the store: its
	// answer is the call's, and apply may be called later.
	holdCardWrite func(apply func() error) error
	// hidden seqs are in the log and can't be read yet.
	hidden map[int64]bool
	// dead: the process's view has ended, it reads nothing more either.
	dead bool
	// shift is how far the engine's clock runs ahead of the store's.
	shift time.Duration
}

// Now is the database's time as the engine is told it.
func (f *faults) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Store.Now().Add(f.shift)
}

// pass lets time pass.
func (f *faults) pass(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shift += d
}

func (f *faults) EventList(ctx context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	if err := f.at("EventList:before"); err != nil {
		return nil, err
	}
	events, err := f.Store.EventList(ctx, tenantID, after, upTo)
	return slices.DeleteFunc(events, func(e trigger.Event) bool { return f.hidden[e.Seq] }), err
}

var errCut = errors.New("cut")

func (f *faults) setCut(cut func(point string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut = cut
}

func (f *faults) setHook(hook func(op string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

func (f *faults) at(point string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errCut
	}
	if f.cut == nil {
		return nil
	}
	return f.cut(point)
}

func (f *faults) write(op string, do func() error) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook(op)
	}
	if err := f.at(op + ":before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return f.at(op + ":after")
}

// failOnce fails one point once.
func failOnce(point string) func(string) error {
	done := false
	return func(p string) error {
		if p != point || done {
			return nil
		}
		done = true
		return errCut
	}
}

// dieAt lets n points pass and fails every one from then on: the process's
// view ends, the store's stays. It counts the points in *seen.
func dieAt(n int, seen *int) func(string) error {
	return func(string) error {
		*seen++
		if *seen > n {
			return errCut
		}
		return nil
	}
}

// kill ends the process's view; the store's stays.
func (f *faults) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

// read is a read that a dead process does not make.
func read[T any](f *faults, do func() (T, error)) (T, error) {
	f.mu.Lock()
	dead := f.dead
	f.mu.Unlock()
	if dead {
		return *new(T), errCut
	}
	return do()
}

func (f *faults) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	return read(f, func() (*trigger.Subscription, error) { return f.Store.SubscriptionGet(ctx, tenantID, id) })
}

func (f *faults) EffectsOfCards(ctx context.Context, p trigger.CardEffectsParams) ([]trigger.Effect, error) {
	if err := f.at("EffectsOfCards:before"); err != nil {
		return nil, err
	}
	return f.Store.EffectsOfCards(ctx, p)
}

func (f *faults) SubscriptionSave(ctx context.Context, s *trigger.Subscription) error {
	return f.write("SubscriptionSave", func() error { return f.Store.SubscriptionSave(ctx, s) })
}

func (f *faults) BotGet(ctx context.Context, tenantID, id string) (*trigger.Bot, error) {
	return read(f, func() (*trigger.Bot, error) { return f.Store.BotGet(ctx, tenantID, id) })
}

func (f *faults) LanesDue(ctx context.Context, now time.Time, limit int) ([]trigger.Lane, error) {
	return read(f, func() ([]trigger.Lane, error) { return f.Store.LanesDue(ctx, now, limit) })
}

func (f *faults) EffectListByEvent(ctx context.Context, tenantID, eventID string) ([]trigger.Effect, error) {
	return read(f, func() ([]trigger.Effect, error) { return f.Store.EffectListByEvent(ctx, tenantID, eventID) })
}

func (f *faults) EffectClaim(ctx context.Context, p trigger.ClaimParams) (rows []trigger.Effect, err error) {
	err = f.write("EffectClaim", func() error {
		rows, err = f.Store.EffectClaim(ctx, p)
		return err
	})
	if err != nil {
		rows = nil
	}
	return rows, err
}

func (f *faults) EffectReclaim(ctx context.Context, p trigger.ClaimParams) (row *trigger.Effect, err error) {
	err = f.write("EffectReclaim", func() error {
		row, err = f.Store.EffectReclaim(ctx, p)
		return err
	})
	if err != nil {
		row = nil
	}
	return row, err
}

func (f *faults) LaneReschedule(ctx context.Context, lane trigger.Lane, due time.Time) (ok bool, err error) {
	err = f.write("LaneReschedule", func() error {
		ok, err = f.Store.LaneReschedule(ctx, lane, due)
		return err
	})
	return ok, err
}

func (f *faults) EffectStart(ctx context.Context, fence trigger.Fence, at time.Time, rendered string) error {
	return f.write("EffectStart", func() error { return f.Store.EffectStart(ctx, fence, at, rendered) })
}

func (f *faults) EffectTouch(ctx context.Context, fence trigger.Fence, at time.Time) error {
	return f.write("EffectTouch", func() error { return f.Store.EffectTouch(ctx, fence, at) })
}

func (f *faults) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	if err := f.at("CardGet:before"); err != nil {
		return nil, err
	}
	return f.Store.CardGet(ctx, tenantID, cardID)
}

func (f *faults) CardWrite(ctx context.Context, w tracker.CardWrite) error {
	if w.Event != nil {
		f.mu.Lock()
		f.eids = append(f.eids, w.Event.EID)
		f.mu.Unlock()
	}
	if hold := f.holdCardWrite; hold != nil {
		next := *w.Next.Clone()
		w.Next = &next
		return hold(func() error { return f.Store.CardWrite(context.WithoutCancel(ctx), w) })
	}
	return f.write("CardWrite", func() error { return f.Store.CardWrite(ctx, w) })
}

func (f *faults) CardsGet(ctx context.Context, tenantID string, ids []string) ([]*tracker.Card, error) {
	if err := f.at("CardsGet:before"); err != nil {
		return nil, err
	}
	return f.Store.CardsGet(ctx, tenantID, ids)
}

func (f *faults) CardWriteMany(ctx context.Context, tenantID string, ws []tracker.CardWrite) (stands []bool, err error) {
	err = f.write("CardWriteMany", func() error {
		stands, err = f.Store.CardWriteMany(ctx, tenantID, ws)
		return err
	})
	return stands, err
}

func (f *faults) CardPendingRemove(ctx context.Context, tenantID string, eids map[string][]string) error {
	return f.write("CardPendingRemove", func() error { return f.Store.CardPendingRemove(ctx, tenantID, eids) })
}

func (f *faults) SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (first int64, err error) {
	err = f.write("SeqAllocate", func() error {
		first, err = f.Store.SeqAllocate(ctx, tenantID, n, lost)
		return err
	})
	return first, err
}

func (f *faults) EventInsertMany(ctx context.Context, tenantID string, events []trigger.Event) error {
	return f.write("EventInsertMany", func() error { return f.Store.EventInsertMany(ctx, tenantID, events) })
}

func (f *faults) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) (refs []trigger.EffectRef, err error) {
	err = f.write("EffectMaterialize", func() error {
		refs, err = f.Store.EffectMaterialize(ctx, tenantID, rows)
		return err
	})
	return refs, err
}

func (f *faults) LaneMarkMany(ctx context.Context, marks []trigger.LaneMark) error {
	return f.write("LaneMarkMany", func() error { return f.Store.LaneMarkMany(ctx, marks) })
}

func (f *faults) HeadAdvance(ctx context.Context, tenantID string, from, to int64) (ok bool, err error) {
	err = f.write("HeadAdvance", func() error {
		ok, err = f.Store.HeadAdvance(ctx, tenantID, from, to)
		return err
	})
	return ok, err
}

func (f *faults) HeadWatchHole(ctx context.Context, tenantID string, cursor, upTo int64, now time.Time) error {
	return f.write("HeadWatchHole", func() error { return f.Store.HeadWatchHole(ctx, tenantID, cursor, upTo, now) })
}

func (f *faults) EffectPlan(ctx context.Context, fence trigger.Fence, plan trigger.LaunchPlan) error {
	return f.write("EffectPlan", func() error { return f.Store.EffectPlan(ctx, fence, plan) })
}

func (f *faults) EffectMarkConsumed(ctx context.Context, fence trigger.Fence) error {
	return f.write("EffectMarkConsumed", func() error { return f.Store.EffectMarkConsumed(ctx, fence) })
}

func (f *faults) EffectSettleMany(ctx context.Context, settles []trigger.Settle) (stands []bool, err error) {
	err = f.write("EffectSettleMany", func() error {
		stands, err = f.Store.EffectSettleMany(ctx, settles)
		return err
	})
	return stands, err
}
