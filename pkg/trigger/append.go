package trigger

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Append brings events into the tenant's log that no card's change made, in
// their order, and returns the seq of each by its eid. The card that an event
// names is not touched. An eid begins with the event's source and is its
// emitter's own to make: an event that is there already is not appended again,
// so that the same call may be made again at any time, by anybody (E2, E5).
//
// It returns ErrEventExists when an eid is taken by an event of other content
// (E5); the other events are in the log then, and their seqs are returned.
// After any other error some may be: make the same call again.
func (r *Relay) Append(ctx context.Context, tenantID string, events []Event) (map[string]int64, error) {
	p := newProgress()
	for i := range events {
		e := &events[i]
		switch {
		case e.TenantID != tenantID:
			return p.seqs, fmt.Errorf("append event %s to %s: it is of another tenant", e.EID, tenantID)
		case e.Source == SourceBoard || e.Source == SourceVoid || e.Source == "":
			return p.seqs, fmt.Errorf("append event %s to %s: the source %q appends nothing", e.EID, tenantID, e.Source)
		case !strings.HasPrefix(e.EID, string(e.Source)+":") || len(e.EID) == len(e.Source)+1:
			return p.seqs, fmt.Errorf("append event %s to %s: an id begins with its source, %s (E5)", e.EID, tenantID, e.Source)
		}
	}
	for chunk := range slices.Chunk(events, relayBatch) {
		if err := r.appendSome(ctx, tenantID, chunk, p); err != nil {
			return p.seqs, fmt.Errorf("append %d events to %s: %w", len(chunk), tenantID, err)
		}
	}
	for i := range events {
		if err := r.isSame(ctx, &events[i], p); err != nil {
			return p.seqs, fmt.Errorf("append event %s to %s: %w", events[i].EID, tenantID, err)
		}
	}
	return p.seqs, nil
}

func (r *Relay) appendSome(ctx context.Context, tenantID string, events []Event, p *progress) error {
	for try := range relayTries {
		pause(ctx, try)
		again, err := r.events(ctx, tenantID, events, p)
		if err != nil || !again {
			return err
		}
	}
	return fmt.Errorf("still meeting others after %d rounds", relayTries)
}

// isSame makes sure that an event which was there already says the same.
func (r *Relay) isSame(ctx context.Context, e *Event, p *progress) error {
	if p.made[e.EID] {
		return nil
	}
	seq := p.seqs[e.EID]
	found, err := r.Log.EventList(ctx, e.TenantID, seq-1, seq)
	if err != nil {
		return err
	}
	// One that went since was there, whatever it said.
	if len(found) > 0 && !found[0].saysSame(e) {
		return fmt.Errorf("the log has another one of this id, at seq %d: %w", seq, ErrEventExists)
	}
	return nil
}

// saysSame reports whether two events of one id are the same one told twice:
// what their emitter says counts, and not what was read or measured when.
func (e *Event) saysSame(o *Event) bool {
	return e.EID == o.EID && e.Source == o.Source && e.Kind == o.Kind && e.Actor == o.Actor &&
		e.BoardID == o.BoardID && e.CardID == o.CardID && e.Payload == o.Payload
}
