package trigger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// AuditKept is how long entries of the audit log are kept.
const AuditKept = 400 * 24 * time.Hour

// AuditOutcome is what became of a call.
type AuditOutcome string

const (
	// AuditBegun is the outcome of a call that has not ended, or whose replica
	// died before it could say so: whether it changed anything is open.
	AuditBegun AuditOutcome = "begun"
	// AuditDone is a call that was answered with success.
	AuditDone AuditOutcome = "done"
	// AuditRefused is one that was answered with an error of the caller's.
	AuditRefused AuditOutcome = "refused"
	// AuditFailed is one that was answered with an error of the server's; it may
	// have changed something.
	AuditFailed AuditOutcome = "failed"
)

// AuditOutcomes lists them.
func AuditOutcomes() []AuditOutcome {
	return []AuditOutcome{AuditBegun, AuditDone, AuditRefused, AuditFailed}
}

// AuditEntry is one call of a person that changes something.
type AuditEntry struct {
	// TenantID is the tenant that the call is about; empty for what is about
	// none, or about a tenant as a whole.
	TenantID string `json:"tenant_id"`
	// ID orders a tenant's entries, newest first.
	ID string    `json:"id"`
	At time.Time `json:"at"`

	TokenID   string `json:"token_id,omitempty"`
	TokenName string `json:"token_name"`
	Role      Role   `json:"role"`
	Address   string `json:"address,omitempty"`

	Operation string `json:"operation"`
	Method    string `json:"method"`
	Path      string `json:"path"`

	AuditEnd `bson:",inline"`
}

// AuditEnd is how a call ended.
type AuditEnd struct {
	Outcome AuditOutcome `json:"outcome"`
	Status  int          `json:"status,omitempty"`
	EndedAt time.Time    `json:"ended_at,omitempty,omitzero"`
	Changes []Change     `json:"changes,omitempty"`
	// Truncated says that Changes lacks some, or what they were before and
	// after.
	Truncated bool `json:"truncated,omitempty"`
}

// Change is one thing that a call changed. Before and After are JSON, empty
// where there was or is none.
type Change struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Audit keeps the audit log, for AuditKept.
type Audit interface {
	// AuditBegin enters a call before it runs.
	AuditBegin(ctx context.Context, e AuditEntry) error
	// AuditComplete says how the call of an entry ended; tracker.ErrNotFound
	// if there is no such entry.
	AuditComplete(ctx context.Context, tenantID, id string, end AuditEnd) error
	// AuditList returns up to limit entries of a tenant, or of none, with ids
	// after one, newest first.
	AuditList(ctx context.Context, tenantID, afterID string, limit int) ([]AuditEntry, error)
}

// auditLast is the latest time that an id was made of, in 1/4096 ms: those of
// one process keep their order within a millisecond, too.
var auditLast atomic.Int64

// AuditID makes the id of an entry: ids ascend as time goes back, so that a
// page, newest first, is read in the order of keys. Safe for concurrent use.
func AuditID(at time.Time) string {
	var v int64
	for {
		last := auditLast.Load()
		if v = at.UnixMilli() << 12; v <= last && v > last-1<<12 {
			v = last + 1
		}
		if v < last || auditLast.CompareAndSwap(last, v) {
			break
		}
	}
	var tail [8]byte
	_, _ = rand.Read(tail[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%016x-%s", math.MaxInt64-v, hex.EncodeToString(tail[:]))
}
