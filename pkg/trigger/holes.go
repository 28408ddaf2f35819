package trigger

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// closePage is the most seqs that are given up in one command.
const closePage = 1000

// hole handles a seq after the cursor that is not in the log (T3). It begins a
// watch, kept on the head so that it survives a change of replica; once the
// watch has lasted the head's patience it closes all holes up to the highest
// seq that was given out when it began, by voids. If a void wins, a late
// original meets a duplicate key and its emitter takes a new seq; if it loses,
// the original is there and is used. What is there is read again by the next
// Drain, so that nothing is concluded from an insert's answer.
func (t *Tail) hole(ctx context.Context, head *Head) (Drained, error) {
	wait := max(orDefault(t.HoleWait, HoleWaitDefault), time.Duration(head.PatienceMS)*time.Millisecond)
	now := t.Clock.Now()
	if head.HoleUpTo <= head.Cursor {
		if err := t.Heads.HeadWatchHole(ctx, head.TenantID, head.Cursor, head.Seq, now); err != nil {
			return Drained{}, fmt.Errorf("watch hole of %s after %d: %w", head.TenantID, head.Cursor, err)
		}
		return Drained{Retry: wait}, nil
	}
	if left := wait - now.Sub(head.HoleSince); left > 0 {
		return Drained{Retry: left}, nil
	}
	for after := head.Cursor; after < head.HoleUpTo; after += closePage {
		upTo := min(after+closePage, head.HoleUpTo)
		if err := t.closeHoles(ctx, head.TenantID, after, upTo); err != nil {
			return Drained{}, fmt.Errorf("close holes of %s after %d: %w", head.TenantID, after, err)
		}
	}
	// A void that can't be read yet is looked for again, not in a spin.
	there, err := t.Log.EventSeqs(ctx, head.TenantID, head.Cursor, head.Cursor+1)
	if err != nil {
		return Drained{}, fmt.Errorf("close holes of %s after %d: %w", head.TenantID, head.Cursor, err)
	}
	if len(there) == 0 {
		return Drained{Retry: orDefault(t.Poll, PollDefault)}, nil
	}
	return Drained{More: true}, nil
}

func (t *Tail) closeHoles(ctx context.Context, tenantID string, after, upTo int64) error {
	taken, err := t.Log.EventSeqs(ctx, tenantID, after, upTo)
	if err != nil {
		return err
	}
	var missing []int64
	for seq := after + 1; seq <= upTo; seq++ {
		if _, there := slices.BinarySearch(taken, seq); !there {
			missing = append(missing, seq)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := t.Log.EventFillVoids(ctx, tenantID, missing); err != nil {
		return err
	}
	for _, seq := range missing {
		if !t.firstClosed(tenantID, seq) {
			continue // closed before, and not readable yet
		}
		t.meter.holes.Add(1)
		t.Logger.Warn().Str("tenant", tenantID).Int64("seq", seq).Msg("tail: closed a hole: no event came at this seq")
	}
	return nil
}

// firstClosed reports whether this tail has not closed the hole before. All of
// a tenant's holes are closed in order, so that the highest tells of the others.
func (t *Tail) firstClosed(tenantID string, seq int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq <= t.closed[tenantID] {
		return false
	}
	if t.closed == nil {
		t.closed = make(map[string]int64)
	}
	t.closed[tenantID] = seq
	return true
}
