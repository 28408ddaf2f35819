package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// stepped is a store whose callers are scheduled: an actor stops before each
// step. What a database does in several steps is several here: a read of many
// may be torn, a bulk write stops halfway. Without an actor it is the store
// below. It writes into the ledger what took effect.
type stepped struct {
	trigger.Store
	*schedule
	tenant   string
	patience time.Duration
	offset   time.Duration
	ledger   ledger
}

var _ trigger.Store = (*stepped)(nil)

func (s *stepped) Now() time.Time { return s.Store.Now().Add(s.offset) }

// ---- cards

func (s *stepped) CardGet(ctx context.Context, tenantID, cardID string) (*tracker.Card, error) {
	return stepRead(ctx, "CardGet "+cardID, func() (*tracker.Card, error) { return s.Store.CardGet(s.ctx, tenantID, cardID) })
}

func (s *stepped) CardsGet(ctx context.Context, tenantID string, ids []string) (out []*tracker.Card, err error) {
	for _, id := range ids {
		cards, err := stepRead(ctx, "CardsGet "+id, func() ([]*tracker.Card, error) { return s.Store.CardsGet(s.ctx, tenantID, []string{id}) })
		if err != nil {
			return nil, err
		}
		out = append(out, cards...)
	}
	return out, nil
}

// cardWrite is a card write as a step.
func (s *stepped) cardWrite(ctx context.Context, w tracker.CardWrite) (name string, do func() error) {
	next := w.Next.Clone()
	w.Next = next
	if w.Event != nil {
		event := *w.Event
		w.Event = &event
	}
	name = "CardWrite " + next.ID + s.ledger.attempt(actorOf(ctx), w)
	life := s.ledger.buried[next.ID]
	return name, func() error {
		// That there is no card names no incarnation: a card's making may not
		// be under way for longer than the life of another in its place, or
		// it raises the dead. Nothing but time keeps it from that.
		if w.PrevRev == 0 && life != s.ledger.buried[next.ID] {
			return fmt.Errorf("another card has lived here meanwhile: %w", tracker.ErrConflict)
		}
		err := s.Store.CardWrite(s.ctx, w)
		if err == nil {
			s.ledger.wrote(w)
		}
		s.answer(err)
		return err
	}
}

// answer notes a conflict, which explains what its caller does next.
func (s *stepped) answer(err error) {
	switch {
	case errors.Is(err, tracker.ErrConflict):
		s.note("store", "conflict")
	case errors.Is(err, trigger.ErrEventExists):
		s.note("store", "exists")
	}
}

func (s *stepped) CardWrite(ctx context.Context, w tracker.CardWrite) error {
	name, do := s.cardWrite(ctx, w)
	return s.writeParts(ctx, name, true, do)
}

// CardWriteMany is a bulk write of cards, and a read that tells which stand:
// by then others may have written.
func (s *stepped) CardWriteMany(ctx context.Context, tenantID string, ws []tracker.CardWrite) ([]bool, error) {
	names := make([]string, len(ws))
	parts := make([]func() error, len(ws))
	ids := make([]string, len(ws))
	for i, w := range ws {
		ids[i] = w.Next.ID
		var do func() error
		names[i], do = s.cardWrite(ctx, w)
		parts[i] = func() error {
			if err := do(); !errors.Is(err, tracker.ErrConflict) {
				return err
			}
			return nil
		}
	}
	if err := s.writeParts(ctx, strings.Join(names, ", "), false, parts...); err != nil {
		return nil, err
	}
	cards, err := s.CardsGet(ctx, tenantID, ids)
	if err != nil {
		return nil, err
	}
	stands := make([]bool, len(ws))
	for i, w := range ws {
		stands[i] = slices.ContainsFunc(cards, func(c *tracker.Card) bool { return c.LastWrite == w.Next.LastWrite })
	}
	return stands, nil
}

func (s *stepped) CardPendingRemove(ctx context.Context, tenantID string, eidsByCard map[string][]string) error {
	name := []string{"CardPendingRemove"}
	var parts []func() error
	for _, id := range slices.Sorted(maps.Keys(eidsByCard)) {
		name = append(name, s.ledger.names(eidsByCard[id]))
		one := map[string][]string{id: slices.Clone(eidsByCard[id])}
		parts = append(parts, func() error { return s.Store.CardPendingRemove(s.ctx, tenantID, one) })
	}
	return s.writeParts(ctx, strings.Join(name, " "), false, parts...)
}

// CardsPending leaves out what other checks on the same store have left.
func (s *stepped) CardsPending(ctx context.Context, before time.Time, limit int) ([]tracker.PendingCard, error) {
	return stepRead(ctx, "CardsPending", func() ([]tracker.PendingCard, error) {
		cards, err := s.Store.CardsPending(s.ctx, before, 1_000_000)
		cards = slices.DeleteFunc(cards, func(c tracker.PendingCard) bool { return c.TenantID != s.tenant })
		return cards[:min(len(cards), limit)], err
	})
}

func (s *stepped) CardPendingTouch(ctx context.Context, p tracker.PendingCard, now time.Time) (bool, error) {
	return stepWrite(ctx, s.schedule, "CardPendingTouch "+p.CardID, func() (bool, error) { return s.Store.CardPendingTouch(s.ctx, p, now) })
}

func (s *stepped) CardBury(ctx context.Context, tenantID, cardID, incarnation string) (bool, error) {
	return stepWrite(ctx, s.schedule, "CardBury "+cardID, func() (bool, error) {
		gone, err := s.Store.CardBury(s.ctx, tenantID, cardID, incarnation)
		if card := s.ledger.cards[cardID]; gone && card != nil && card.Incarnation == incarnation {
			s.ledger.buried[cardID]++
		}
		return gone, err
	})
}

// ---- log

func (s *stepped) SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (int64, error) {
	return stepWrite(ctx, s.schedule, fmt.Sprintf("SeqAllocate %d", n), func() (int64, error) {
		first, err := s.Store.SeqAllocate(s.ctx, tenantID, n, lost)
		if err == nil {
			s.ledger.allocated(first, n, s.Now())
			s.note("store", fmt.Sprintf("gives out %d to %d", first, first+int64(n)-1))
		}
		return first, err
	})
}

func (s *stepped) EventInsertMany(ctx context.Context, tenantID string, events []trigger.Event) error {
	parts := make([]func() error, len(events))
	names := make([]string, len(events))
	for i := range events {
		one := slices.Clone(events[i : i+1])
		names[i] = fmt.Sprintf("%s@%d", s.ledger.name(one[0].EID), one[0].Seq)
		parts[i] = func() error {
			err := s.Store.EventInsertMany(s.ctx, tenantID, one)
			s.answer(err)
			return err
		}
	}
	return s.writeParts(ctx, "EventInsertMany "+strings.Join(names, " "), true, parts...)
}

func (s *stepped) EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error {
	parts := make([]func() error, len(seqs))
	for i, seq := range seqs {
		a := actorOf(ctx)
		parts[i] = func() error {
			if a != nil && a.replica >= 0 {
				s.ledger.closing(s, seq)
			}
			return s.Store.EventFillVoids(s.ctx, tenantID, []int64{seq})
		}
	}
	return s.writeParts(ctx, fmt.Sprintf("EventFillVoids %d", seqs), false, parts...)
}

// EventSeqs and EventList scan the log: what comes in behind the scan is not
// seen, what comes in before it is.
func (s *stepped) EventSeqs(ctx context.Context, tenantID string, after, upTo int64) ([]int64, error) {
	return stepScan(ctx, "EventSeqs", after, upTo, func(after, upTo int64) ([]int64, error) { return s.Store.EventSeqs(s.ctx, tenantID, after, upTo) })
}

func (s *stepped) EventList(ctx context.Context, tenantID string, after, upTo int64) ([]trigger.Event, error) {
	return stepScan(ctx, "EventList", after, upTo, func(after, upTo int64) ([]trigger.Event, error) {
		return s.Store.EventList(s.ctx, tenantID, after, upTo)
	})
}

func stepScan[T any](ctx context.Context, name string, after, upTo int64, list func(after, upTo int64) ([]T, error)) ([]T, error) {
	if mid := (after + upTo) / 2; actorOf(ctx) != nil && mid > after {
		head, err := stepRead(ctx, fmt.Sprintf("%s (%d, %d]", name, after, mid), func() ([]T, error) { return list(after, mid) })
		if err != nil {
			return nil, err
		}
		tail, err := stepRead(ctx, fmt.Sprintf("%s (%d, %d]", name, mid, upTo), func() ([]T, error) { return list(mid, upTo) })
		return append(head, tail...), err
	}
	return stepRead(ctx, fmt.Sprintf("%s (%d, %d]", name, after, upTo), func() ([]T, error) { return list(after, upTo) })
}

func (s *stepped) EventSeqsByEID(ctx context.Context, tenantID string, eids []string) (map[string]int64, error) {
	out := make(map[string]int64)
	for _, eid := range eids {
		seqs, err := stepRead(ctx, "EventSeqsByEID "+s.ledger.name(eid), func() (map[string]int64, error) {
			return s.Store.EventSeqsByEID(s.ctx, tenantID, []string{eid})
		})
		if err != nil {
			return nil, err
		}
		maps.Copy(out, seqs)
	}
	return out, nil
}

// ---- heads

func (s *stepped) HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error) {
	return stepRead(ctx, "HeadGet", func() (*trigger.Head, error) { return s.Store.HeadGet(s.ctx, tenantID) })
}

func (s *stepped) HeadLift(ctx context.Context, tenantID string) (trigger.Lifted, error) {
	return stepWrite(ctx, s.schedule, "HeadLift", func() (trigger.Lifted, error) { return s.Store.HeadLift(s.ctx, tenantID) })
}

func (s *stepped) HeadWatchHole(ctx context.Context, tenantID string, cursor, upTo int64, now time.Time) error {
	_, err := stepWrite(ctx, s.schedule, fmt.Sprintf("HeadWatchHole (%d, %d]", cursor, upTo), func() (unit, error) {
		return noResult(s.Store.HeadWatchHole(s.ctx, tenantID, cursor, upTo, now))
	})
	return err
}

func (s *stepped) HeadWatchPoison(ctx context.Context, tenantID string, seq int64, now time.Time) (trigger.PoisonWatch, error) {
	return stepWrite(ctx, s.schedule, fmt.Sprintf("HeadWatchPoison %d", seq), func() (trigger.PoisonWatch, error) {
		return s.Store.HeadWatchPoison(s.ctx, tenantID, seq, now)
	})
}

func (s *stepped) HeadAdvance(ctx context.Context, tenantID string, from, to int64) (bool, error) {
	return stepWrite(ctx, s.schedule, fmt.Sprintf("HeadAdvance %d to %d", from, to), func() (bool, error) {
		ok, err := s.Store.HeadAdvance(s.ctx, tenantID, from, to)
		if ok {
			s.ledger.advanced(to)
		}
		return ok, err
	})
}

// ---- rows, lanes, subscriptions

func (s *stepped) EffectMaterialize(ctx context.Context, tenantID string, rows []trigger.Effect) ([]trigger.EffectRef, error) {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b trigger.Effect) int { return strings.Compare(a.ID, b.ID) })
	var refs []trigger.EffectRef
	parts := make([]func() error, len(rows))
	for i := range rows {
		parts[i] = func() error {
			ref, err := s.Store.EffectMaterialize(s.ctx, tenantID, rows[i:i+1])
			refs = append(refs, ref...)
			return err
		}
	}
	err := s.writeParts(ctx, fmt.Sprintf("EffectMaterialize %d to %d", rows[0].EventSeq, rows[len(rows)-1].EventSeq), false, parts...)
	if err != nil {
		return nil, err
	}
	return refs, nil
}

func (s *stepped) LaneMarkMany(ctx context.Context, marks []trigger.LaneMark) error {
	_, err := stepWrite(ctx, s.schedule, "LaneMarkMany", func() (unit, error) { return noResult(s.Store.LaneMarkMany(s.ctx, marks)) })
	return err
}

func (s *stepped) SubscriptionRefs(ctx context.Context, tenantID string) ([]trigger.SubscriptionRef, error) {
	return stepRead(ctx, "SubscriptionRefs", func() ([]trigger.SubscriptionRef, error) { return s.Store.SubscriptionRefs(s.ctx, tenantID) })
}

func (s *stepped) ProjectionList(ctx context.Context, tenantID string) ([]trigger.Projection, error) {
	return stepRead(ctx, "ProjectionList", func() ([]trigger.Projection, error) { return s.Store.ProjectionList(s.ctx, tenantID) })
}

func (s *stepped) SubscriptionGet(ctx context.Context, tenantID, id string) (*trigger.Subscription, error) {
	return stepRead(ctx, "SubscriptionGet "+id, func() (*trigger.Subscription, error) { return s.Store.SubscriptionGet(s.ctx, tenantID, id) })
}
