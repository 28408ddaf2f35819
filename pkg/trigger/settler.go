package trigger

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// settleBatch is the most settles that one command carries.
const settleBatch = 500

// settler settles rows in batches: those that come while one command is under
// way go together with the next. Each caller waits for its own, in a slot of
// its worker's, which bounds what is waiting.
type settler struct {
	outbox  EffectOutbox
	lanes   Lanes
	timeout time.Duration // of one command
	log     zerolog.Logger

	queue chan *settling
	done  sync.WaitGroup
}

// settling is one settle on its way.
type settling struct {
	Settle
	lane string
	// until is when trying again makes no sense any more; urgent, when it is
	// closed, that there is time for one more try only.
	until  time.Time
	urgent <-chan struct{}
	result chan settleResult
}

type settleResult struct {
	stands bool
	err    error
}

func newSettler(w *EffectWorker, slots int) *settler {
	s := &settler{
		outbox: w.Outbox, lanes: w.Lanes, timeout: orDefault(w.StoreTimeout, StoreTimeoutDefault), log: w.Logger,
		queue: make(chan *settling, slots),
	}
	s.done.Go(s.run)
	return s
}

// close ends the settler; all that was given to it is settled before.
func (s *settler) close() {
	close(s.queue)
	s.done.Wait()
}

// settle returns whether the settle stands, once that is known. It repeats
// after errors for as long as the item says, or the grace period of a stop: a
// settle that is sent again is recognized (W2).
func (s *settler) settle(item *settling) (bool, error) {
	item.result = make(chan settleResult, 1)
	s.queue <- item
	r := <-item.result
	return r.stands, r.err
}

func (s *settler) run() {
	for first := range s.queue {
		batch := []*settling{first}
	gather:
		for len(batch) < settleBatch {
			select {
			case item, open := <-s.queue:
				if !open {
					break gather
				}
				batch = append(batch, item)
			default:
				break gather
			}
		}
		if err := s.try(batch); err != nil {
			// Each on its own from here on: a row that the store never takes
			// must not keep the others from being settled.
			for _, item := range batch {
				s.done.Go(func() { s.insist(item, err) })
			}
		}
	}
}

// insist settles one row, with pauses between the tries.
func (s *settler) insist(item *settling, err error) {
	pause := 50 * time.Millisecond
	for {
		last := false
		select {
		case <-item.urgent:
			last = true
		default:
		}
		if time.Now().Add(pause).After(item.until) {
			item.result <- settleResult{err: err}
			return
		}
		if !last {
			select {
			case <-time.After(pause):
			case <-item.urgent:
			}
		}
		if err = s.try([]*settling{item}); err == nil {
			return
		}
		if last {
			item.result <- settleResult{err: err}
			return
		}
		pause = min(2*pause, 2*time.Second)
	}
}

// try settles a batch by one command, marks the lanes of those to be tried
// again, and tells the callers; after an error it tells none.
func (s *settler) try(batch []*settling) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	settles := make([]Settle, len(batch))
	for i, item := range batch {
		settles[i] = item.Settle
	}
	stands, err := s.outbox.EffectSettleMany(ctx, settles)
	if err != nil {
		return err
	}
	s.mark(batch, stands)
	for i, item := range batch {
		item.result <- settleResult{stands: stands[i]}
	}
	return nil
}

// mark marks the lanes of rows that are to be tried again. A lane not marked
// here is found by the sweep.
func (s *settler) mark(batch []*settling, stands []bool) {
	marks := laneMarks{}
	for i, item := range batch {
		if stands[i] && item.To == StatePending {
			marks.at(laneKey{item.TenantID, item.lane}, item.NotBefore)
		}
	}
	if len(marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	if err := s.lanes.LaneMarkMany(ctx, marks.list()); err != nil {
		s.log.Warn().Err(err).Int("lanes", len(marks)).Msg("worker: lanes of rows to be tried again could not be marked, the lane sweeper finds them")
	}
}
