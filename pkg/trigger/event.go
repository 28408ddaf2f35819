// Package trigger is the engine: it turns board events into the effects that
// subscriptions owe for them, and executes those. It knows no database, no
// HTTP and no broker: it works through the ports declared here and in
// package tracker. The guarantees that its comments cite by number (E1, T3,
// …) are in docs/guarantees.md.
package trigger

import (
	"fmt"
	"slices"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Source says which kind of emitter an event came from. An event's eid begins
// with it, so that no source can take another's id (E5).
type Source string

// The sources. This version emits board events and voids.
const (
	SourceBoard    Source = "board"
	SourceRun      Source = "run"
	SourceForge    Source = "forge"
	SourceSchedule Source = "schedule"
	SourceCustom   Source = "custom"
	// SourceVoid marks a seq that was given up. A void matches nothing.
	SourceVoid Source = "void"
)

// Event is one entry of a tenant's log.
type Event struct {
	TenantID           string `json:"tenant_id"`
	Seq                int64  `json:"seq"`
	Source             Source `json:"source"`
	tracker.BoardEvent `bson:",inline"`
	// Payload is a custom event's payload: the raw JSON as it came (E6).
	Payload string `json:"payload,omitempty"`
	// Requires names features that a replica must know to handle the event.
	// One that does not know them all leaves the tenant to others.
	Requires []string `json:"requires,omitempty"`
}

// ID is the event's id: "<tenant>/<seq, 12 digits>" (E5).
func (e *Event) ID() string { return EventID(e.TenantID, e.Seq) }

// EventID is the id of the event at a seq of a tenant's log (E5).
func EventID(tenantID string, seq int64) string { return fmt.Sprintf("%s/%012d", tenantID, seq) }

// VoidEvent is the event that gives up a seq (E2, T3).
func VoidEvent(tenantID string, seq int64) Event {
	return Event{TenantID: tenantID, Seq: seq, Source: SourceVoid, BoardEvent: tracker.BoardEvent{EID: fmt.Sprintf("void:%d", seq)}}
}

// Head is where a tenant's log stands.
type Head struct {
	TenantID string `json:"tenant_id"`
	// Seq is the highest seq given out; Cursor the highest seq that every
	// effect has been derived from.
	Seq    int64 `json:"seq"`
	Cursor int64 `json:"cursor"`
	// Dirty is Seq > Cursor, kept by the writes that change either (T6).
	Dirty bool `json:"dirty"`
}

// knownFeatures are the event and subscription features of this version.
var knownFeatures = map[string]bool{}

// UnknownFeatureError says that an event or a subscription needs a feature of
// a newer version. It is never poison: the tenant is left to other replicas.
type UnknownFeatureError struct{ What, Feature string }

func (e *UnknownFeatureError) Error() string {
	return fmt.Sprintf("%s requires the feature %q, which this version does not know", e.What, e.Feature)
}

func checkFeatures(what string, requires []string) error {
	for _, f := range requires {
		if !knownFeatures[f] {
			return &UnknownFeatureError{What: what, Feature: f}
		}
	}
	return nil
}

// SeedHead makes the head of a tenant that has none (T4): the allocator is
// lifted to the highest seq that the tenant's log (logged: the seqs in it, or
// just its lowest and highest), rows or subscriptions (known) have seen, so
// that no seq is given out twice; the cursor stands below the oldest event
// kept, or, with an empty log, at the allocator.
func SeedHead(tenantID string, logged []int64, known int64) Head {
	if len(logged) == 0 {
		return Head{TenantID: tenantID, Seq: known, Cursor: known}
	}
	h := Head{TenantID: tenantID, Seq: max(known, slices.Max(logged)), Cursor: slices.Min(logged) - 1}
	h.Dirty = h.Seq > h.Cursor
	return h
}
