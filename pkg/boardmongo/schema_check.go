package boardmongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"
)

// SchemaStatus says how an index of the database stands to the binary's schema.
type SchemaStatus string

// The states of an index.
const (
	// SchemaSame is an index that is as the schema has it.
	SchemaSame SchemaStatus = "same"
	// SchemaMissing is one that the schema has and the database lacks.
	SchemaMissing SchemaStatus = "missing"
	// SchemaChanged is one of other keys or other options.
	SchemaChanged SchemaStatus = "changed"
	// SchemaLeftover is a stand-in that an apply which did not end left.
	SchemaLeftover SchemaStatus = "leftover"
	// SchemaExtra is one that the schema does not know: a newer version's, or
	// somebody's own. It is no difference.
	SchemaExtra SchemaStatus = "extra"
)

// SchemaIndex is one index, as the schema wants it and as the database has it.
type SchemaIndex struct {
	Collection string       `json:"collection"`
	Index      string       `json:"index"`
	Status     SchemaStatus `json:"status"`
	Wanted     string       `json:"wanted,omitempty"`
	Found      string       `json:"found,omitempty"`
}

// SchemaReport is what SchemaCheck found.
type SchemaReport struct {
	// Version is the binary's, Stored that of the newest one that was applied
	// whole, 0 if none was, Begun that of the newest one that was begun.
	Version int           `json:"version"`
	Stored  int           `json:"stored"`
	Begun   int           `json:"begun"`
	Indexes []SchemaIndex `json:"indexes"`
}

// Newest returns the version of the newest binary that has applied its schema,
// or begun to.
func (r *SchemaReport) Newest() int { return max(r.Stored, r.Begun) }

// Older reports whether the database has the schema of a newer version. This
// version then changes nothing of it.
func (r *SchemaReport) Older() bool { return r.Newest() > r.Version }

// Differs reports whether something has to be done: an index is missing, is
// another one than the schema's, or an apply did not end. That one is another
// is no difference on the schema of a newer version, whose it is.
func (r *SchemaReport) Differs() bool {
	if r.Begun > r.Stored {
		return true
	}
	return slices.ContainsFunc(r.Indexes, func(ix SchemaIndex) bool {
		switch ix.Status {
		case SchemaMissing, SchemaLeftover:
			return true
		case SchemaChanged:
			return !r.Older()
		}
		return false
	})
}

// SchemaCheck compares the indexes of the database with the schema. It only
// reads. While another replica applies its schema it finds that half done.
func (s *Store) SchemaCheck(ctx context.Context) (*SchemaReport, error) {
	return s.schemaCheck(ctx, currentSchema())
}

func (s *Store) schemaCheck(ctx context.Context, sc schema) (*SchemaReport, error) {
	state, err := s.schemaState(ctx)
	if err != nil {
		return nil, fmt.Errorf("check schema: %w", err)
	}
	nctx, cancel := s.op(ctx)
	defer cancel()
	colls, err := s.db.ListCollectionNames(nctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("check schema: collections: %w", err)
	}
	have, err := s.indexesOf(ctx, colls)
	if err != nil {
		return nil, fmt.Errorf("check schema: %w", err)
	}
	r := &SchemaReport{Version: sc.version, Stored: state.Version, Begun: max(state.Version, state.Begun), Indexes: compare(sc, have)}
	return r, nil
}

// schemaState is what the collection schema keeps about the indexes.
type schemaState struct {
	// Version is of the newest schema that was applied whole, Begun of the
	// newest that was begun. Both only grow.
	Version int `bson:"version"`
	Begun   int `bson:"begun"`
}

const schemaStateKey = "indexes"

func (s *Store) schemaState(ctx context.Context) (state schemaState, err error) {
	ctx, cancel := s.op(ctx)
	defer cancel()
	err = s.db.Collection(collSchema).FindOne(ctx, bson.D{{Key: "_id", Value: schemaStateKey}}).Decode(&state)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return state, fmt.Errorf("the version stored: %w", err)
	}
	return state, nil
}

// foundIndex is an index as the server lists it.
type foundIndex struct {
	Name      string `bson:"name"`
	Key       bson.D `bson:"key"`
	Unique    bool   `bson:"unique"`
	Sparse    bool   `bson:"sparse"`
	Hidden    bool   `bson:"hidden"`
	Partial   bson.D `bson:"partialFilterExpression"`
	Collation bson.D `bson:"collation"`
	TTL       any    `bson:"expireAfterSeconds"`
}

// foundIndexes are those of each collection, by name, without that of _id.
type foundIndexes map[string]map[string]foundIndex

func (s *Store) indexesOf(ctx context.Context, colls []string) (foundIndexes, error) {
	lists := make([][]foundIndex, len(colls))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, coll := range colls {
		g.Go(func() error {
			ctx, cancel := s.op(ctx)
			defer cancel()
			cur, err := s.db.Collection(coll).Indexes().List(ctx)
			if err == nil {
				err = cur.All(ctx, &lists[i])
			}
			if err != nil {
				return fmt.Errorf("list the indexes of %s: %w", coll, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := make(foundIndexes, len(colls))
	for i, coll := range colls {
		out[coll] = make(map[string]foundIndex, len(lists[i]))
		for _, f := range lists[i] {
			if f.Name != indexID {
				out[coll][f.Name] = f
			}
		}
	}
	return out, nil
}

// compare returns the schema's indexes in its order, and then the others, by
// collection and name.
func compare(sc schema, have foundIndexes) []SchemaIndex {
	out := make([]SchemaIndex, 0, len(sc.indexes))
	known := make(map[[2]string]bool)
	for _, ix := range sc.indexes {
		known[[2]string{ix.coll, ix.name}] = true
		v := SchemaIndex{Collection: ix.coll, Index: ix.name, Status: SchemaMissing, Wanted: ix.says()}
		if f, ok := have[ix.coll][ix.name]; ok {
			v.Status, v.Found = SchemaChanged, f.says()
			if v.Found == v.Wanted {
				v.Status = SchemaSame
			}
		}
		out = append(out, v)
	}
	others := len(out)
	for coll, list := range have {
		for name, f := range list {
			if known[[2]string{coll, name}] {
				continue
			}
			v := SchemaIndex{Collection: coll, Index: name, Status: SchemaExtra, Found: f.says()}
			if of, ok := strings.CutSuffix(name, standInSuffix); ok && known[[2]string{coll, of}] {
				v.Status = SchemaLeftover
			}
			out = append(out, v)
		}
	}
	slices.SortFunc(out[others:], func(a, b SchemaIndex) int {
		return strings.Compare(a.Collection+"\x00"+a.Index, b.Collection+"\x00"+b.Index)
	})
	return out
}

// signature is by what a server tells indexes apart that have the same keys:
// all but the name and the TTL.
func (ix index) signature() string {
	return signature(ix.keys, ix.unique, ix.sparse, ix.partial, nil)
}

func (f foundIndex) signature() string {
	return signature(f.Key, f.Unique, f.Sparse, f.Partial, f.Collation)
}

func signature(keys bson.D, unique, sparse bool, partial, collation bson.D) string {
	var out strings.Builder
	for i, k := range keys {
		if i > 0 {
			out.WriteString(", ")
		}
		out.WriteString(k.Key)
		if v := canon(k.Value); v != "1" {
			out.WriteString(" " + v)
		}
	}
	if unique {
		out.WriteString("; unique")
	}
	if sparse {
		out.WriteString("; sparse")
	}
	if len(partial) > 0 {
		out.WriteString("; where " + canon(plain(partial)))
	}
	if len(collation) > 0 {
		out.WriteString("; collation " + canon(collation))
	}
	return out.String()
}

// says is all of an index that counts, in one form for what is wanted and what
// was found.
func (ix index) says() string {
	if ix.expires() {
		return ix.signature() + "; expires after " + strconv.Itoa(int(ix.ttl.Seconds())) + " s"
	}
	return ix.signature()
}

func (f foundIndex) says() string {
	out := f.signature()
	if f.TTL != nil {
		out += "; expires after " + canon(f.TTL) + " s"
	}
	if f.Hidden {
		out += "; hidden"
	}
	return out
}

// plain is a document of the schema as a server has it: without this
// package's types.
func plain(d bson.D) bson.D {
	out, err := toDoc(d)
	if err != nil {
		panic(err) // of a constant
	}
	return out
}

// canon writes a value so that equal ones look equal: servers keep numbers in
// types of their own choice.
func canon(v any) string {
	switch v := v.(type) {
	case bson.D:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = e.Key + ": " + canon(e.Value)
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case bson.A:
		parts := make([]string, len(v))
		for i, e := range v {
			parts[i] = canon(e)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		return strconv.Quote(v)
	case int:
		return strconv.Itoa(v)
	case int32:
		return strconv.FormatInt(int64(v), 10)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
