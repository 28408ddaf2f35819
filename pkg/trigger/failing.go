package trigger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// FailingAfter is how many evaluations of a subscription fail in a row before
// it is flagged.
const FailingAfter = 10

// FailingPauses is how many evaluations fail in a row before the storm guard
// pauses the subscription, unless it is off: failed rows never go by themselves.
const FailingPauses = 100

// health counts the failed evaluations in a row of one revision of a
// subscription, as one replica's tail sees them. The zero value is ready.
type health struct {
	n, seq atomic.Int64
}

// ok ends the row, by an event of that seq.
func (h *health) ok(seq int64) {
	if h.n.Load() != 0 && seq > h.seq.Load() {
		h.n.Store(0)
	}
}

// failed counts a failure on the event of that seq. A batch that is repeated
// counts once.
func (h *health) failed(seq int64) (inARow int64) {
	for {
		last := h.seq.Load()
		if seq <= last {
			return h.n.Load()
		}
		if h.seq.CompareAndSwap(last, seq) {
			return h.n.Add(1)
		}
	}
}

// failing is a subscription that is to be flagged, and why.
type failing struct {
	m   *Matcher
	why error
	// pause: it is to be paused, too.
	pause bool
}

// noteFailed counts a failed evaluation and makes its event poison (T5).
func (t *Tail) noteFailed(out *judged, m *Matcher, e *Event, why error) {
	t.evalErrs.Add(1)
	n := m.health.failed(e.Seq)
	f := failing{m, why, n >= FailingPauses && m.sub.perMinute() > 0}
	if !f.pause && (n < FailingAfter || m.sub.Failing != "") {
		return
	}
	if i := slices.IndexFunc(out.failing, func(have failing) bool { return have.m == m }); i >= 0 {
		out.failing[i] = f
		return
	}
	out.failing = append(out.failing, f)
}

// leaves reports whether what the event owes is left for the subscription's
// resume, which matches it again.
func (s *Subscription) leaves(e *Event) bool {
	return s.Paused && s.Guard.HeldFrom > 0 && e.Seq >= s.Guard.HeldFrom
}

// pauseFailing pauses a subscription and leaves events after a seq to be matched
// again. Those that others have matched meanwhile have their rows (R3).
func (t *Tail) pauseFailing(s *Subscription, upTo int64) {
	if !s.Paused {
		s.Paused, s.PausedBy = true, StormGuard
		s.PausedWhy = fmt.Sprintf("%d evaluations in a row failed, the last one so: %s", FailingPauses, s.Failing)
	}
	if s.Guard.HeldFrom == 0 {
		s.Guard.HeldFrom = upTo + 1
	}
	s.Requires = s.features()
}

// flag says on a subscription that it keeps failing, once: it goes on being
// evaluated, until it is paused. All that a batch up to a seq owes is written.
// Whoever wrote it meanwhile may have mended it: then nothing is said. That it
// could not be written is no reason to hold up the log.
func (t *Tail) flag(ctx context.Context, list []failing, upTo int64) {
	for _, f := range list {
		next := *f.m.sub
		if next.Failing == "" {
			next.Failing, next.FailingSince = clip(f.why.Error(), whenErrorMax), t.Clock.Now()
		}
		if f.pause {
			t.pauseFailing(&next, upTo)
		}
		next.Revision++
		warn := func(err error, message string) {
			t.Logger.Warn().Err(err).Str("tenant", next.TenantID).Str("subscription", next.ID).Str("why", next.Failing).Msg(message)
		}
		saved := !next.Foreign()
		if saved { // else a save by this version would lose what it does not know of
			err := t.Config.SubscriptionSave(ctx, &next)
			if errors.Is(err, tracker.ErrConflict) {
				continue
			}
			if err != nil {
				warn(err, "tail: a subscription keeps failing, and could not be flagged")
				continue
			}
		}
		if saved && f.pause && !f.m.sub.Paused {
			t.paused.Add(1)
			warn(nil, "storm guard: a subscription that keeps failing is paused, what comes is matched when somebody resumes it")
		}
		if t.warned.First("failing " + next.TenantID + "/" + next.ID) {
			warn(nil, "tail: a subscription keeps failing: its events are kept as failed rows")
		}
	}
}
