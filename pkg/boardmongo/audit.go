package boardmongo

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// AuditBegin implements trigger.Audit.
func (s *Store) AuditBegin(ctx context.Context, e trigger.AuditEntry) error {
	err := s.insertOne(ctx, collAudit, doc[trigger.AuditEntry]{docKey(e.TenantID, e.ID), e})
	if mongo.IsDuplicateKeyError(err) {
		err = tracker.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("enter %s into the audit log: %w", e.ID, err)
	}
	return nil
}

// AuditComplete implements trigger.Audit.
func (s *Store) AuditComplete(ctx context.Context, tenantID, id string, end trigger.AuditEnd) error {
	set, err := toDoc(end)
	if err != nil {
		return fmt.Errorf("complete %s in the audit log: %w", id, err)
	}
	found, err := s.updateOne(ctx, collAudit, byKey(tenantID, id), bson.D{{Key: "$set", Value: set}})
	if err == nil && !found {
		err = tracker.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("complete %s in the audit log: %w", id, err)
	}
	return nil
}

// AuditList implements trigger.Audit.
func (s *Store) AuditList(ctx context.Context, tenantID, afterID string, limit int) ([]trigger.AuditEntry, error) {
	filter := bson.D{
		{Key: "_id", Value: bson.D{{Key: "$gt", Value: docKey(tenantID, afterID)}, {Key: "$lt", Value: prefixEnd(docKey(tenantID, ""))}}},
		{Key: "tenant_id", Value: tenantID},
	}
	return findAll[trigger.AuditEntry](ctx, s, collAudit, filter, options.Find().SetSort(asc("_id")).SetLimit(int64(limit)).SetHint(indexID))
}
