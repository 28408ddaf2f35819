package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// relayTries bounds how often one relay starts over after somebody else took
// a seq or relayed an event before it. Each round is somebody's progress.
const relayTries = 20

// relayBatch is the most events that one allocation takes; one card's are
// never split.
const relayBatch = 500

// Relay moves pending events from cards into the log (E2, E3). Any number of
// relays may work on one card at once.
type Relay struct {
	Cards  tracker.CardStore
	Log    EventLog
	Heads  Heads
	Logger zerolog.Logger
	// Wake, if set, is told of a tenant whose log has grown.
	Wake func(tenantID string)
	// FillTimeout bounds giving up the seqs of an insert that failed; it is
	// the store's timeout for one operation. A caller with a deadline waits
	// for it until then, or for fillGrace if that is later.
	FillTimeout time.Duration
}

// Card relays all pending events that it finds on the card, in order, and
// returns the seq of each. A card that is gone has none. After an error it may
// be called again at any time, by anybody.
func (r *Relay) Card(ctx context.Context, tenantID, cardID string) (map[string]int64, error) {
	return r.CardMany(ctx, tenantID, []string{cardID})
}

// CardMany does the same for several cards of one tenant, in a few commands.
// Events of different cards get seqs in the order of the cards.
func (r *Relay) CardMany(ctx context.Context, tenantID string, cardIDs []string) (map[string]int64, error) {
	p := newProgress()
	for try := range relayTries {
		pause(ctx, try)
		cards, err := r.Cards.CardsGet(ctx, tenantID, cardIDs)
		if err != nil {
			return p.seqs, fmt.Errorf("relay cards of %s: %w", tenantID, err)
		}
		cards = slices.DeleteFunc(cards, func(c *tracker.Card) bool {
			return len(c.Pending) == 0 && !c.Deleted && c.PendingAt.IsZero()
		})
		if len(cards) == 0 {
			return p.seqs, nil
		}
		slices.SortFunc(cards, func(a, b *tracker.Card) int {
			return slices.Index(cardIDs, a.ID) - slices.Index(cardIDs, b.ID)
		})
		again := false
		for batch := range batches(cards) {
			if again, err = r.batch(ctx, tenantID, batch, p); err != nil {
				return p.seqs, fmt.Errorf("relay %d cards of %s: %w", len(batch), tenantID, err)
			}
			if again {
				break
			}
		}
		if !again {
			return p.seqs, nil
		}
	}
	return p.seqs, fmt.Errorf("relay cards of %s: still meeting other relays after %d rounds", tenantID, relayTries)
}

// progress is how far one call of a relay has come.
type progress struct {
	// seqs are those of the events that are in the log, by eid; made are the
	// ones among them that this call inserted.
	seqs map[string]int64
	made map[string]bool
	// tried holds the seqs that the last insert tried in vain.
	tried map[string]int64
}

func newProgress() *progress {
	return &progress{seqs: make(map[string]int64), made: make(map[string]bool), tried: make(map[string]int64)}
}

// batches cuts a list of cards so that each batch holds about relayBatch
// events.
func batches(cards []*tracker.Card) func(yield func([]*tracker.Card) bool) {
	return func(yield func([]*tracker.Card) bool) {
		from, n := 0, 0
		for i, c := range cards {
			if n > 0 && n+len(c.Pending) > relayBatch {
				if !yield(cards[from:i]) {
					return
				}
				from, n = i, 0
			}
			n += len(c.Pending)
		}
		if from < len(cards) {
			yield(cards[from:])
		}
	}
}

// batch relays the events of some cards, takes them off, and buries cards that
// were deleted. It reports true when it met somebody else's event and has to
// look again.
func (r *Relay) batch(ctx context.Context, tenantID string, cards []*tracker.Card, p *progress) (again bool, err error) {
	eids := make(map[string][]string, len(cards))
	var pending []Event
	for _, c := range cards {
		if len(c.Pending) == 0 && !c.Deleted {
			// A card made again over a tombstone, without an event, has the
			// tombstone's mark: taking nothing off removes it.
			eids[c.ID] = []string{}
		}
		for _, e := range c.Pending {
			pending = append(pending, Event{TenantID: tenantID, Source: SourceBoard, BoardEvent: e})
			eids[c.ID] = append(eids[c.ID], e.EID)
		}
	}
	if len(pending) > 0 {
		if again, err = r.events(ctx, tenantID, pending, p); again || err != nil {
			return again, err
		}
	}
	if len(eids) > 0 {
		if err := r.Cards.CardPendingRemove(ctx, tenantID, eids); err != nil {
			return false, fmt.Errorf("take off %d events: %w", len(pending), err)
		}
	}
	for _, c := range cards {
		if !c.Deleted {
			continue
		}
		if _, err := r.Cards.CardBury(ctx, tenantID, c.ID, c.Incarnation); err != nil {
			return false, fmt.Errorf("bury card %s: %w", c.ID, err)
		}
	}
	return false, nil
}

// events brings those of the events into the log that are not there. It
// reports true when it met somebody else's event and has to look again.
func (r *Relay) events(ctx context.Context, tenantID string, pending []Event, p *progress) (again bool, err error) {
	eids := make([]string, len(pending))
	for i := range pending {
		eids[i] = pending[i].EID
	}
	// Looking comes before allocating: events that are there must not cost
	// seqs, or two relays would chase each other.
	present, err := r.Log.EventSeqsByEID(ctx, tenantID, eids)
	if err != nil {
		return false, err
	}
	var missing []Event
	for i := range pending {
		if seq, ok := present[eids[i]]; ok {
			p.seqs[eids[i]] = seq
		} else {
			missing = append(missing, pending[i])
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	first, err := r.allocate(ctx, tenantID, len(missing), lostToVoid(p.tried, missing, present))
	if err != nil {
		return false, err
	}
	taken := make([]int64, len(missing))
	clear(p.tried)
	for i := range missing {
		missing[i].Seq = first + int64(i)
		taken[i] = missing[i].Seq
		p.tried[missing[i].EID] = missing[i].Seq
	}
	if err := r.Log.EventInsertMany(ctx, tenantID, missing); err != nil {
		// Stop and give up the rest of the allocation at once, the seq that
		// met the duplicate too: what is in is found by looking again. The
		// fill goes on if the caller has left: a hole holds up the tenant.
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.fillTimeout(ctx))
		defer cancel()
		fillErr := r.Log.EventFillVoids(fctx, tenantID, taken)
		r.wake(tenantID)
		switch {
		case fillErr == nil && errors.Is(err, ErrEventExists):
			return true, nil
		case fillErr == nil && errors.Is(err, ErrContended):
			clear(p.tried) // no void took them
			return true, nil
		}
		return false, errors.Join(err, fillErr)
	}
	for i := range missing {
		p.seqs[missing[i].EID], p.made[missing[i].EID] = missing[i].Seq, true
	}
	r.wake(tenantID)
	return false, nil
}

// lostToVoid reports whether a void took the seq of an insert that met a
// duplicate, given what is in the log now. If it was another relay of the same
// cards, its copy is there instead, or its event is off the card: no reason to
// let the tenant wait longer for holes (T3).
func lostToVoid(tried map[string]int64, missing []Event, present map[string]int64) bool {
	still, mine := 0, 0
	for _, e := range missing {
		if _, was := tried[e.EID]; was {
			still++
		}
	}
	for eid, seq := range present {
		if tried[eid] == seq {
			mine++
		}
	}
	return still > 0 && still+mine == len(tried)
}

// fillGrace is what a fill may take although the caller's time is over: enough
// for a store that answers. From one that does not, nobody waits for it longer:
// the tail closes the hole.
const fillGrace = time.Second

func (r *Relay) fillTimeout(ctx context.Context) time.Duration {
	timeout := orDefault(r.FillTimeout, StoreTimeoutDefault)
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline), fillGrace))
	}
	return timeout
}

// allocate takes n seqs, and makes the tenant's head first if there is none.
func (r *Relay) allocate(ctx context.Context, tenantID string, n int, lost bool) (int64, error) {
	first, err := r.Log.SeqAllocate(ctx, tenantID, n, lost)
	if !errors.Is(err, tracker.ErrNotFound) {
		return first, err
	}
	if err := liftHead(ctx, r.Heads, r.Logger, tenantID); err != nil {
		return 0, err
	}
	return r.Log.SeqAllocate(ctx, tenantID, n, lost)
}

// liftHead lifts a tenant's head (T4) and tells of it where it had been lost
// or was behind: something was restored, or removed by hand.
func liftHead(ctx context.Context, heads Heads, log zerolog.Logger, tenantID string) error {
	l, err := heads.HeadLift(ctx, tenantID)
	if err != nil {
		return fmt.Errorf("lift head of %s: %w", tenantID, err)
	}
	switch {
	case l.Created && (l.Log || l.To > 0):
		log.Warn().Str("tenant", tenantID).Int64("seq", l.To).Msg("the tenant's head was missing; made anew from its log, rows and subscriptions")
	case !l.Created && l.From < l.To:
		log.Warn().Str("tenant", tenantID).Int64("from_seq", l.From).Int64("seq", l.To).Msg("the tenant's allocator was behind its log, cursor, rows or subscriptions; lifted")
	}
	return nil
}

func (r *Relay) wake(tenantID string) {
	if r.Wake != nil {
		r.Wake(tenantID)
	}
}
