// Package trigger is the engine: it turns board events into the effects that
// subscriptions owe for them, and executes those. It knows no database, no
// HTTP and no broker: it works through the ports declared here and in
// package tracker. The guarantees that its comments cite by number (E1, T3,
// …) are in docs/guarantees.md.
package trigger

import (
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Source says which kind of emitter an event came from. An event's eid begins
// with it, so that no source can take another's id (E5).
type Source string

// The sources. This version emits board events, custom ones that tell of rows
// (KindEffectFailed), and voids.
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
	// LoggedAt is when the event entered the log, in database time; it is the
	// store's to set, and what its retention counts from.
	LoggedAt time.Time `json:"logged_at,omitempty,omitzero"`
	// Payload is a custom event's payload: the raw JSON as it came (E6).
	Payload string `json:"payload,omitempty"`
	// Undecodable says why the stored event can't be read; only its tenant
	// and seq are set then.
	Undecodable string `json:"-"`
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

// timed gives an event that its emitter gave no time the one that it entered
// the log at.
func (e *Event) timed() {
	if e.At.IsZero() {
		e.At = e.LoggedAt
	}
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
	// DrainAfter is since when the head is dirty, or until when its tenant
	// backs off.
	DrainAfter time.Time `json:"drain_after,omitempty,omitzero"`
	// HoleUpTo and HoleSince are the watch of holes: those up to HoleUpTo are
	// closed together once Patience has passed since HoleSince. A watch is
	// over when the cursor has reached HoleUpTo (T3).
	HoleUpTo  int64     `json:"hole_up_to,omitempty"`
	HoleSince time.Time `json:"hole_since,omitempty,omitzero"`
	// PatienceMS, in milliseconds, is the hole wait that slow emitters have
	// asked for; 0 if none has.
	PatienceMS int64 `json:"patience_ms,omitempty"`
	// Poison watches the event after the cursor (T5).
	Poison PoisonWatch `json:"poison,omitempty,omitzero"`
}

// PoisonWatch counts the failed tries of one event.
type PoisonWatch struct {
	Seq   int64     `json:"seq"`
	Tries int       `json:"tries"`
	Since time.Time `json:"since"`
}

// DirtyTenant is a tenant whose log is ahead of its cursor, and since when.
type DirtyTenant struct {
	TenantID string
	Since    time.Time
}

// Lifted is what HeadLift did.
type Lifted struct {
	// Created: there was no head. Log: there is a log all the same.
	Created, Log bool
	// From and To are the allocator's seq before and after.
	From, To int64
}

// Patience of the hole watch (T3).
const (
	HoleWaitDefault = 3 * time.Second
	// PatienceMax is the database operation's timeout: no insert is under
	// way for longer.
	PatienceMax = StoreTimeoutDefault
)

// Doubled is the patience after one more emitter lost to a void.
func Doubled(patienceMS int64) int64 {
	return min(2*max(patienceMS, HoleWaitDefault.Milliseconds()), PatienceMax.Milliseconds())
}

// LiftHead is the head that a tenant should have (T4), given the one it has
// (nil if none), the lowest and highest seq in its log (0 if it is empty), and
// the highest seq that its rows or subscriptions know.
//
// The allocator is lifted to the highest of all, so that no seq is given out
// twice. A new head's cursor stands below the oldest event kept. With an empty
// log and no insert under way, the cursor goes along with the allocator: there
// is nothing to wait for. Else it stays: what is missing between is a hole.
func LiftHead(have *Head, tenantID string, lowest, highest, known int64) Head {
	var h Head
	if have == nil {
		h = Head{TenantID: tenantID, Seq: max(known, highest), Cursor: max(lowest-1, 0)}
		if highest == 0 {
			h.Cursor = h.Seq
		}
	} else {
		h = *have
		h.Seq = max(h.Seq, h.Cursor, highest, known)
		if highest == 0 && have.Seq <= have.Cursor {
			h.Cursor = h.Seq
		}
	}
	h.Dirty = h.Seq > h.Cursor
	return h
}
