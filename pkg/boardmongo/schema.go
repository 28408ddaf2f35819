package boardmongo

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// The collections (docs/architecture.md).
const (
	collTenants       = "tenants"
	collBoards        = "boards"
	collCards         = "cards"
	collEvents        = "board_events"
	collHeads         = "tenant_heads"
	collLanes         = "lanes"
	collEffects       = "trigger_effects"
	collSubscriptions = "trigger_subscriptions"
	collBots          = "bots"
	collHooks         = "hooks"
	collProjections   = "projections"
	collPauses        = "pauses"
	collBulks         = "bulk_decisions"
	collDeliveries    = "hook_deliveries"
	collTokens        = "api_tokens"
	collCreateKeys    = "idempotency"
	collAudit         = "audit"
	collReplicas      = "replicas"
	collFleet         = "fleet"
	collSchema        = "schema"
)

// schemaVersion grows with every change of the indexes below. Changes only
// add, or change an index so that the queries of older versions still work by
// it: an older replica never undoes a newer one's (ADR 27).
const schemaVersion = 6

// schema is the indexes of one version.
type schema struct {
	version int
	indexes []index
}

func currentSchema() schema { return schema{schemaVersion, indexes()} }

// Indexes that a query names as its hint.
const (
	indexID     = "_id_"
	indexLive   = "live_tenant_lane"
	indexParked = "parked_tenant_state"
	indexDirty  = "dirty_drain_after"
	indexPaused = "paused"
	// indexDeleting is asked for again and again, and holds next to nothing.
	indexDeleting = "deleting_at"
)

// index is one index of the schema.
type index struct {
	coll    string
	name    string
	keys    bson.D
	unique  bool
	sparse  bool // of stand-ins alone
	partial bson.D
	ttl     time.Duration
	ttlNow  bool // the field is the time to go itself
}

func asc(fields ...string) bson.D {
	d := make(bson.D, len(fields))
	for i, f := range fields {
		d[i] = bson.E{Key: f, Value: 1}
	}
	return d
}

var exists = bson.D{{Key: "$exists", Value: true}}

// upTo matches a time that is there and at most t. Not every server sees that
// what is at most t must be there, which the partial indexes on times ask for:
// without saying so it would scan the collection.
func upTo(t time.Time) bson.D {
	return bson.D{{Key: "$exists", Value: true}, {Key: "$lte", Value: t}}
}

func indexes() []index {
	return []index{
		{coll: collTenants, name: indexDeleting, keys: asc("deleting_at"), partial: bson.D{{Key: "deleting_at", Value: exists}}},
		{coll: collBoards, name: "tenant_name", keys: asc("tenant_id", "name"), unique: true},
		{coll: collBots, name: "tenant_name", keys: asc("tenant_id", "name"), unique: true},
		{coll: collHooks, name: "tenant_name", keys: asc("tenant_id", "name"), unique: true},
		{coll: collSubscriptions, name: "tenant_name", keys: asc("tenant_id", "name"), unique: true},
		{coll: collSubscriptions, name: "tenant_enabled", keys: asc("tenant_id", "enabled", "id", "revision", "updated_at")},
		{coll: collSubscriptions, name: "held_from", keys: asc("guard.held_from"), partial: bson.D{{Key: "guard.held_from", Value: exists}}},
		{coll: collSubscriptions, name: indexPaused, keys: asc("paused", "paused_by"), partial: bson.D{{Key: "paused", Value: exists}}},
		{coll: collProjections, name: "tenant_name", keys: asc("tenant_id", "name"), unique: true},
		{coll: collBulks, name: "created_at_ttl", keys: asc("created_at"), ttl: trigger.BulkKept},
		{coll: collCards, name: "tenant_bot", keys: asc("tenant_id", "bot_id"), partial: bson.D{{Key: "bot_id", Value: exists}}},
		// Partial, so that it serves reads of a board alone: a server would add
		// it to the mark's where that is enough.
		{coll: collCards, name: "tenant_board_column", keys: asc("tenant_id", "board_id", "column_id", "position", "id"), partial: bson.D{{Key: "board_id", Value: exists}}},
		{coll: collCards, name: "pending_at", keys: asc("pending_at"), partial: bson.D{{Key: "pending_at", Value: exists}}},
		{coll: collEvents, name: "tenant_seq", keys: asc("tenant_id", "seq"), unique: true},
		{coll: collEvents, name: "tenant_eid", keys: asc("tenant_id", "eid"), unique: true},
		{coll: collEvents, name: "tenant_card_seq", keys: asc("tenant_id", "card_id", "seq")},
		{coll: collHeads, name: indexDirty, keys: asc("drain_after"), partial: bson.D{{Key: "dirty", Value: true}}},
		{coll: collLanes, name: "due_at", keys: asc("due_at"), partial: bson.D{{Key: "due_at", Value: exists}}},
		{
			coll: collEffects, name: indexLive, keys: asc("tenant_id", "lane", "state", "not_before"),
			partial: bson.D{{Key: "state", Value: bson.D{{Key: "$in", Value: bson.A{trigger.StatePending, trigger.StateClaimed}}}}},
		},
		{coll: collEffects, name: "tenant_state_updated", keys: asc("tenant_id", "state", "updated_at")},
		// Rows that wait for a person, or were given up. Not of all states: for
		// the many done rows a server would rather sort all of them than read a
		// page by id.
		{
			coll: collEffects, name: indexParked, keys: asc("tenant_id", "state", "_id"),
			partial: bson.D{{Key: "state", Value: in([]trigger.State{trigger.StateFailed, trigger.StateReconcile, trigger.StateHeld, trigger.StateDiscarded})}},
		},
		{coll: collEffects, name: "held", keys: asc("tenant_id", "subscription_id"), partial: bson.D{{Key: "state", Value: trigger.StateHeld}}},
		// Partial, so that it serves reads of a span of seqs alone: for another
		// read of a subscription's rows a server would rather sort all of them.
		{coll: collEffects, name: "subscription_seq", keys: asc("tenant_id", "subscription_id", "event_seq"), partial: bson.D{{Key: "event_seq", Value: exists}}},
		{coll: collEffects, name: "tenant_card_seq", keys: asc("tenant_id", "card_id", "event_seq"), partial: bson.D{{Key: "event_seq", Value: exists}}},
		// What a bot's change of a card goes back to; what the storm guard counts.
		{coll: collEffects, name: "tenant_card_claimed", keys: asc("tenant_id", "card_id", "claimed_at")},
		{coll: collEffects, name: "tenant_subscription_at", keys: asc("tenant_id", "subscription_id", "event.at")},
		{coll: collEffects, name: "announce_at", keys: asc("announce_at"), partial: bson.D{{Key: "announce_at", Value: exists}}},
		{coll: collEffects, name: "expire_at_ttl", keys: asc("expire_at"), ttlNow: true, partial: bson.D{{Key: "expire_at", Value: exists}}},
		{coll: collDeliveries, name: "at_ttl", keys: asc("at"), ttl: trigger.DeliveriesKept},
		{coll: collCreateKeys, name: "created_at_ttl", keys: asc("created_at"), ttl: trigger.CreateKeyKept},
		{coll: collAudit, name: "at_ttl", keys: asc("at"), ttl: trigger.AuditKept},
		{coll: collTokens, name: "hash", keys: asc("hash"), unique: true},
	}
}

func (ix index) expires() bool { return ix.ttl > 0 || ix.ttlNow }

func (ix index) model() mongo.IndexModel {
	opts := options.Index().SetName(ix.name)
	if ix.unique {
		opts.SetUnique(true)
	}
	if ix.sparse {
		opts.SetSparse(true)
	}
	if ix.partial != nil {
		opts.SetPartialFilterExpression(ix.partial)
	}
	if ix.expires() {
		opts.SetExpireAfterSeconds(int32(ix.ttl.Seconds()))
	}
	return mongo.IndexModel{Keys: ix.keys, Options: opts}
}
