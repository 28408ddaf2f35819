package trigger

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// FailingAfter is how many evaluations of a subscription fail in a row before
// it is flagged.
const FailingAfter = 10

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
}

// noteFailed counts a failed evaluation and makes its event poison (T5).
func (t *Tail) noteFailed(out *judged, m *Matcher, e *Event, why error) {
	t.evalErrs.Add(1)
	if m.health.failed(e.Seq) >= FailingAfter && m.sub.Failing == "" &&
		!slices.ContainsFunc(out.failing, func(f failing) bool { return f.m == m }) {
		out.failing = append(out.failing, failing{m, why})
	}
}

// flag says on a subscription that it keeps failing, once: it goes on being
// evaluated. Whoever wrote it meanwhile may have mended it: then nothing is
// said. That it could not be written is no reason to hold up the log.
func (t *Tail) flag(ctx context.Context, list []failing) {
	for _, f := range list {
		next := *f.m.sub
		next.Failing, next.FailingSince = clip(f.why.Error(), whenErrorMax), t.Clock.Now()
		next.Revision++
		warn := func(err error, message string) {
			t.Logger.Warn().AnErr("save", err).Str("tenant", next.TenantID).Str("subscription", next.ID).Str("error", next.Failing).Msg(message)
		}
		if !next.Foreign() { // else a save by this version would lose what it does not know of
			err := t.Config.SubscriptionSave(ctx, &next)
			if errors.Is(err, tracker.ErrConflict) {
				continue
			}
			if err != nil {
				warn(err, "tail: a subscription keeps failing, and could not be flagged")
				continue
			}
		}
		if t.warned.First("failing " + next.TenantID + "/" + next.ID) {
			warn(nil, "tail: a subscription keeps failing: its events are kept as failed rows")
		}
	}
}
