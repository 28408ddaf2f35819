package trigger

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// births are rows that a tail is about to write and that the worker beside it
// takes from their birth on: they are inserted as claimed, so that no claim has
// to find them. Into free slots of open lanes only, as any claim.
type births struct {
	worker *EffectWorker
	began  time.Time
	groups []birthGroup
	over   func()
	ended  bool
}

// birthGroup is the claim of one lane's rows.
type birthGroup struct {
	lane         laneKey
	claimID      string
	free, places int // slots and places in the queue that were taken for it
	rows         []*Effect
}

// birthChunk is the most rows that are written at once where rows wait for room:
// while some are written others are executed.
const birthChunk = aheadMax

// bear claims those of the rows that there is room for, and says so on them;
// nil if there is none. It returns how many of the rows, the first ones, to
// write now. The caller inserts them, and then tells begin what the store has of
// them, or gives up.
func (w *EffectWorker) bear(ctx context.Context, rows []Effect) (*births, int) {
	run := w.running.Load()
	if run == nil || !run.enter() {
		return nil, len(rows)
	}
	b := &births{worker: w, over: run.births.Done}
	rows = w.slots.chunk(rows)
	lanes := birthLanes(rows, w.Clock.Now(), run.pauses.Load())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(run.loop, cancel)() // a stop waits for births
	w.slots.admit(ctx, lanes)
	b.began = time.Now()
	now := w.Clock.Now()
	if w.Epochs.Epoch() != run.epoch.Load() {
		w.slots.giveUp(lanes) // now may be another clock's than the leases (W11)
		b.giveUp()
		return nil, len(rows)
	}
	for _, g := range lanes {
		g.rows = g.rows[:g.free+g.places]
		for _, row := range g.rows {
			row.State, row.ClaimID, row.Worker, row.ClaimedAt, row.Attempts = StateClaimed, g.claimID, w.Name, now, 1
			row.NotBefore = now.Add(orDefault(w.Lease, LeaseDefault))
		}
		if len(g.rows) > 0 {
			b.groups = append(b.groups, *g)
		}
	}
	if len(b.groups) == 0 {
		b.giveUp()
		return nil, len(rows)
	}
	return b, len(rows)
}

// birthLanes returns the rows that may be born claimed, by lane.
func birthLanes(rows []Effect, now time.Time, pauses *pauseSet) (lanes []*birthGroup) {
	byLane := make(map[laneKey]*birthGroup)
	for i := range rows {
		row := &rows[i]
		key := laneKey{row.TenantID, row.Lane}
		if row.State != StatePending || !row.Kind.Known() || row.NotBefore.After(now) || pauses == nil || time.Since(pauses.read) > pausesKnown || pauses.holds(key) {
			continue
		}
		g := byLane[key]
		if g == nil {
			g = &birthGroup{lane: key, claimID: uuid.NewString()}
			byLane[key] = g
			lanes = append(lanes, g)
		}
		g.rows = append(g.rows, row)
	}
	return lanes
}

// begin executes the rows that the store holds under this claim. What another
// replica wrote first is its own.
func (b *births) begin(refs []EffectRef) {
	b.ended = true
	defer b.over()
	claims := make(map[string]string, len(refs))
	for _, ref := range refs {
		claims[ref.ID] = ref.ClaimID
	}
	run := b.worker.running.Load()
	for _, g := range b.groups {
		var ours []Effect
		for _, row := range g.rows {
			if claims[row.ID] == g.claimID {
				ours = append(ours, *row)
			}
		}
		b.worker.stats.claimed.Add(int64(len(ours)))
		b.worker.meter.born.Add(int64(len(ours)))
		b.worker.start(run.loop, run.attempts, g.lane, ours, g.free, g.places, b.began)
	}
}

// giveUp gives back what was taken, and hands back those of the rows that are
// there all the same, not started, with no attempt (W10): else they would be
// nobody's until their lease ends. What the store can't take now, or inserts
// later, is reclaimed then. After begin it does nothing.
func (b *births) giveUp() {
	if b.ended {
		return
	}
	b.ended = true
	defer b.over()
	w := b.worker
	now := w.Clock.Now()
	var back []*settling
	for _, g := range b.groups {
		w.slots.unqueue(g.places)
		for range g.free {
			w.freed(g.lane)
		}
		for _, row := range g.rows {
			back = append(back, &settling{
				Settle: Settle{Fence: row.Fence(), At: now, To: StatePending, NotBefore: now, HandBack: true},
				lane:   row.Lane, result: make(chan settleResult, 1),
			})
		}
	}
	if len(back) > 0 {
		w.inflight.Go(func() {
			if err := w.settler.try(back); err != nil {
				w.Logger.Warn().Err(err).Int("rows", len(back)).Msg("worker: rows of an insert that failed could not be handed back, they wait for their leases")
			}
		})
	}
}
