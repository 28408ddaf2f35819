package boardmongo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// SchemaVersion is the version of the indexes.
const SchemaVersion = schemaVersion

// TestSchema is a schema of a test's own.
type TestSchema struct {
	Version int
	Indexes []TestIndex
}

// TestIndex is an index of a test's own.
type TestIndex struct {
	Coll, Name string
	Keys       bson.D
	Unique     bool
	Partial    bson.D
	TTL        time.Duration
}

func (sc TestSchema) schema() schema {
	out := schema{version: sc.Version}
	for _, ix := range sc.Indexes {
		out.indexes = append(out.indexes, index{coll: ix.Coll, name: ix.Name, keys: ix.Keys, unique: ix.Unique, partial: ix.Partial, ttl: ix.TTL})
	}
	return out
}

// SchemaApplyTest applies a test's schema.
func (s *Store) SchemaApplyTest(ctx context.Context, sc TestSchema, tell SchemaTell) error {
	return s.schemaApply(ctx, sc.schema(), tell)
}

// SchemaCheckTest checks a test's schema.
func (s *Store) SchemaCheckTest(ctx context.Context, sc TestSchema) (*SchemaReport, error) {
	return s.schemaCheck(ctx, sc.schema())
}

// SchemaFingerprint changes with every change of the indexes.
func SchemaFingerprint() string {
	h := sha256.New()
	for _, ix := range indexes() {
		h.Write([]byte(strings.Join([]string{ix.coll, ix.name, ix.says()}, "\x00") + "\n"))
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// HintedIndexes are those that queries name, in words.
func HintedIndexes() map[string]string {
	out := make(map[string]string)
	for _, ix := range indexes() {
		if slices.Contains([]string{indexLive, indexParked, indexDirty, indexPaused}, ix.name) {
			out[ix.name] = ix.says()
		}
	}
	return out
}

// SchemaLock is the key of the lock's document.
const SchemaLock = schemaLockKey
