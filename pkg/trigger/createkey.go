package trigger

import (
	"context"
	"time"
)

// CreateKeyKept is how long a create key is remembered, at least.
const CreateKeyKept = 24 * time.Hour

// CreateKey is what an Idempotency-Key that came with a create stands for: the
// id that the thing made gets, however often the call comes.
type CreateKey struct {
	TenantID string `json:"tenant_id"`
	// ID names caller, operation and key. It is a hash: the key itself is kept
	// nowhere.
	ID string `json:"id"`
	// Fingerprint is what the call asked for.
	Fingerprint string `json:"fingerprint"`
	ResourceID  string `json:"resource_id"`
	// Uses counts the calls.
	Uses      int       `json:"uses"`
	CreatedAt time.Time `json:"created_at"`
}

// CreateKeys keeps create keys, for CreateKeyKept.
type CreateKeys interface {
	// CreateKeyReserve keeps k if there is none of its tenant and id, counts
	// the use, and returns the one that is kept. Again says that it was there
	// before. Of calls at once, one is not again.
	CreateKeyReserve(ctx context.Context, k CreateKey) (have *CreateKey, again bool, err error)
	// CreateKeyRelease takes k back if it is still the one and nobody else
	// has used it. Not to find it is no error.
	CreateKeyRelease(ctx context.Context, k CreateKey) error
}
