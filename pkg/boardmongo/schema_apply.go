package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

// SchemaNote is one thing that an apply did, or left as it is.
type SchemaNote struct {
	Text string
	// Warn says that somebody should look at it.
	Warn bool
}

// SchemaTell is called with notes as they come up, by one goroutine at a time.
type SchemaTell func(SchemaNote)

// SchemaApply makes the indexes that are missing, and changes those that are
// others than the schema's. A unique index that changes is at no moment
// missing: another one of the same effect stands in for it meanwhile. On the
// schema of a newer version it changes nothing, and says what differs.
//
// It may be called at any time, by any number of replicas of any versions: one
// works, the others wait for it. After a crash the next call goes on. It takes
// as long as the server takes to build the indexes. tell, if given, hears what
// is done.
func (s *Store) SchemaApply(ctx context.Context, tell ...SchemaTell) error {
	err := s.schemaApply(ctx, currentSchema(), func(n SchemaNote) {
		for _, f := range tell {
			f(n)
		}
	})
	if err != nil {
		return fmt.Errorf("apply schema: %w", err)
	}
	return nil
}

func (s *Store) schemaApply(ctx context.Context, sc schema, tell SchemaTell) error {
	state, err := s.schemaState(ctx)
	if err != nil {
		return err
	}
	// All is there nearly always: then nobody has to wait for a lock.
	if state.Version >= sc.version || state.Begun > sc.version {
		done, err := s.schemaStands(ctx, sc, state, tell)
		if done || err != nil {
			return err
		}
	}
	return s.schemaLocked(ctx, tell, func(ctx context.Context, l *schemaLock) error {
		state, err := s.schemaState(ctx)
		if err != nil {
			return err
		}
		if done, err := s.schemaStands(ctx, sc, state, tell); done || err != nil {
			return err
		}
		// First, so that no older version makes again what is changed below.
		if err := s.schemaStore(ctx, "begun", sc.version); err != nil {
			return err
		}
		if err := l.apply(ctx, sc, tell); err != nil {
			return err
		}
		return s.schemaStore(ctx, "version", sc.version)
	})
}

// schemaStands reports whether there is nothing to do: all is as it should be,
// or the schema is a newer version's.
func (s *Store) schemaStands(ctx context.Context, sc schema, state schemaState, tell SchemaTell) (bool, error) {
	newest := max(state.Version, state.Begun)
	if newest < sc.version {
		return false, nil
	}
	have, err := s.indexesOf(ctx, sc.collections())
	if err != nil {
		return false, err
	}
	differ := slices.DeleteFunc(compare(sc, have), func(ix SchemaIndex) bool { return ix.Status == SchemaSame || ix.Status == SchemaExtra })
	if newest == sc.version {
		return state.Version == newest && len(differ) == 0, nil
	}
	for _, ix := range differ {
		text := fmt.Sprintf("index %s of %s is %s; left as it is: the schema is of version %d, this binary's of %d",
			ix.Index, ix.Collection, ix.Status, newest, sc.version)
		tell(SchemaNote{Text: text, Warn: true})
	}
	if len(differ) == 0 {
		tell(SchemaNote{Text: fmt.Sprintf("the schema is of version %d, this binary's of %d; nothing was changed", newest, sc.version)})
	}
	return true, nil
}

// schemaStore moves a version of the schema's state forward.
func (s *Store) schemaStore(ctx context.Context, field string, version int) error {
	ctx, cancel := s.op(ctx)
	defer cancel()
	_, err := s.db.Collection(collSchema).UpdateOne(ctx, bson.D{{Key: "_id", Value: schemaStateKey}},
		bson.D{{Key: "$max", Value: bson.D{{Key: field, Value: version}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("store the version: %w", err)
	}
	return nil
}

func (sc schema) collections() []string {
	seen := make(map[string]bool)
	for _, ix := range sc.indexes {
		seen[ix.coll] = true
	}
	return slices.Sorted(maps.Keys(seen))
}

// apply makes and changes what differs, under the lock.
func (l *schemaLock) apply(ctx context.Context, sc schema, tell SchemaTell) error {
	have, err := l.s.indexesOf(ctx, sc.collections())
	if err != nil {
		return err
	}
	missing := make(map[string][]index)
	var changed, leftover []index
	for i, v := range compare(sc, have) {
		switch v.Status {
		case SchemaMissing:
			missing[v.Collection] = append(missing[v.Collection], sc.indexes[i])
		case SchemaChanged:
			changed = append(changed, sc.indexes[i])
		case SchemaLeftover:
			leftover = append(leftover, index{coll: v.Collection, name: v.Index})
		}
	}
	if err := l.make(ctx, missing, tell); err != nil {
		return err
	}
	for _, ix := range changed {
		if err := l.change(ctx, ix, have[ix.coll], tell); err != nil {
			return fmt.Errorf("change index %s of %s: %w", ix.name, ix.coll, err)
		}
	}
	// Last: a stand-in stands for an index that only now is there again. (One
	// of an index that was changed just now is gone already.)
	for _, ix := range leftover {
		if err := l.drop(ctx, ix); err != nil {
			return err
		}
	}
	return nil
}

// make makes missing indexes, those of one collection by one command: the
// server then reads it once.
func (l *schemaLock) make(ctx context.Context, missing map[string][]index, tell SchemaTell) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for coll, list := range missing {
		g.Go(func() error {
			models := make([]mongo.IndexModel, len(list))
			for i, ix := range list {
				models[i] = ix.model()
			}
			// An index on much data takes longer than an operation may.
			_, err := l.s.db.Collection(coll).Indexes().CreateMany(ctx, models)
			if err != nil && conflicts(err) {
				err = fmt.Errorf("%w; drop that one, and apply again", err)
			}
			if err != nil {
				return fmt.Errorf("make the indexes of %s: %w", coll, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, coll := range slices.Sorted(maps.Keys(missing)) {
		names := make([]string, len(missing[coll]))
		for i, ix := range missing[coll] {
			names[i] = ix.name
		}
		tell(SchemaNote{Text: coll + ": made " + strings.Join(names, ", ")})
	}
	return nil
}

// change brings an index that is there to what the schema has.
func (l *schemaLock) change(ctx context.Context, ix index, have map[string]foundIndex, tell SchemaTell) error {
	was := have[ix.name]
	done := func() error {
		tell(SchemaNote{Text: fmt.Sprintf("%s: changed %s from (%s) to (%s)", ix.coll, ix.name, was.says(), ix.says())})
		return nil
	}
	if was.signature() == ix.signature() && (was.TTL != nil) == ix.expires() {
		if err := l.modify(ctx, ix, was); err != nil {
			return err
		}
		return done()
	}
	// The server is the judge of what differs.
	err := l.create(ctx, ix)
	if err == nil || !conflicts(err) {
		return err
	}
	for name, f := range have {
		if name != ix.name && f.signature() == ix.signature() {
			return fmt.Errorf("index %s is the same; drop it, and apply again", name)
		}
	}
	in, err := l.standIn(ctx, ix, have)
	if err != nil {
		return err
	}
	if err := l.drop(ctx, ix); err != nil {
		return err
	}
	if err := l.create(ctx, ix); err != nil {
		return fmt.Errorf("%w; %s stands in for it until the next apply", err, in.name)
	}
	if err := l.drop(ctx, in); err != nil {
		return err
	}
	return done()
}

// modify changes what can be changed in place.
func (l *schemaLock) modify(ctx context.Context, ix index, was foundIndex) error {
	ctx, cancel := l.s.op(ctx)
	defer cancel()
	to := bson.D{{Key: "name", Value: ix.name}}
	if was.Hidden {
		to = append(to, bson.E{Key: "hidden", Value: false})
	}
	if ix.expires() {
		to = append(to, bson.E{Key: "expireAfterSeconds", Value: int32(ix.ttl.Seconds())})
	}
	return l.s.db.RunCommand(ctx, bson.D{{Key: "collMod", Value: ix.coll}, {Key: "index", Value: to}}).Err()
}

// standInSuffix ends the name of a stand-in.
const standInSuffix = "~standin"

// standIns are indexes that hold what ix holds, and that a server admits beside
// it: it refuses one of the same keys and options under a second name.
func (ix index) standIns() []index {
	in := index{coll: ix.coll, name: ix.name + standInSuffix, keys: ix.keys, unique: ix.unique, partial: ix.partial}
	if !ix.unique {
		// One field more finds the same documents.
		last := bson.E{Key: "_id", Value: 1}
		if slices.ContainsFunc(ix.keys, func(k bson.E) bool { return k.Key == last.Key }) {
			last.Key = "standin"
		}
		in.keys = append(slices.Clone(ix.keys), last)
		return []index{in}
	}
	// All documents have an _id. Reads don't use this one.
	all := in
	all.partial = append(slices.Clone(ix.partial), bson.E{Key: "_id", Value: exists})
	if ix.partial != nil {
		return []index{all}
	}
	// A document without any of the keys is none of the schema's.
	in.sparse = true
	return []index{in, all}
}

// standIn makes one, and returns it.
func (l *schemaLock) standIn(ctx context.Context, ix index, have map[string]foundIndex) (in index, err error) {
	if left, ok := have[ix.name+standInSuffix]; ok {
		for _, in := range ix.standIns() {
			if left.signature() == in.signature() {
				return in, nil
			}
		}
		// Of another version. The index that it stood for is there.
		if err := l.drop(ctx, index{coll: ix.coll, name: left.Name}); err != nil {
			return in, err
		}
	}
	for _, in = range ix.standIns() {
		if err = l.create(ctx, in); err == nil || !conflicts(err) {
			break
		}
	}
	return in, err
}

func (l *schemaLock) create(ctx context.Context, ix index) error {
	if _, err := l.s.db.Collection(ix.coll).Indexes().CreateOne(ctx, ix.model()); err != nil {
		return fmt.Errorf("make %s: %w", ix.name, err)
	}
	return nil
}

// drop drops an index, if it is there.
func (l *schemaLock) drop(ctx context.Context, ix index) error {
	err := l.step(ctx, func(ctx context.Context) error {
		return l.s.db.Collection(ix.coll).Indexes().DropOne(ctx, ix.name)
	})
	if err != nil && !hasCode(err, codeIndexNotFound) {
		return fmt.Errorf("drop %s of %s: %w", ix.name, ix.coll, err)
	}
	return nil
}

// Codes of a server.
const (
	codeIndexNotFound         = 27
	codeIndexOptionsConflict  = 85
	codeIndexKeySpecsConflict = 86
)

func hasCode(err error, code int) bool {
	var se mongo.ServerError
	return errors.As(err, &se) && se.HasErrorCode(code)
}

// conflicts reports whether an index is there under the name, or under another
// one, that the server does not take for the same.
func conflicts(err error) bool {
	return hasCode(err, codeIndexOptionsConflict) || hasCode(err, codeIndexKeySpecsConflict)
}
