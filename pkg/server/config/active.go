package config

import (
	"context"
	"errors"
	"fmt"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Heads is what ActiveFrom needs of a trigger.Store.
type Heads interface {
	HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error)
	HeadLift(ctx context.Context, tenantID string) (trigger.Lifted, error)
}

// ActiveFrom returns the seq from which on something that is enabled now looks
// at events (T7): the tenant's seq. It is to be read after the disabled thing
// was and before the write that enables it; that write is conditional on the
// revision read, so that nobody enabled it in between.
func ActiveFrom(ctx context.Context, heads Heads, tenantID string) (int64, error) {
	head, err := heads.HeadGet(ctx, tenantID)
	if err == nil {
		return head.Seq, nil
	}
	if !errors.Is(err, tracker.ErrNotFound) {
		return 0, fmt.Errorf("read the head: %w", err)
	}
	// No events, or a log whose head was lost (T4).
	lifted, err := heads.HeadLift(ctx, tenantID)
	if err != nil {
		return 0, fmt.Errorf("make the head: %w", err)
	}
	return lifted.To, nil
}
