// Package explain asks a server how it would find the documents of a command:
// by which indexes, and whether by a scan. It understands the answers of
// MongoDB, and those of DocumentDB, which are PostgreSQL's plans with the
// indexes under their own names.
package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Body is what finds a command's documents: of a read the command itself, of a
// write a find by its filter, since not every server explains writes; nil if it
// finds none. Of a write of several, it is the first: the others are alike.
func Body(e *event.CommandStartedEvent) (body bson.D) {
	find := func(filter bson.RawValue) bson.D {
		return bson.D{
			{Key: "find", Value: e.Command.Lookup(e.CommandName).StringValue()}, {Key: "filter", Value: bson.Raw(slices.Clone(filter.Value))},
		}
	}
	switch e.CommandName {
	case "find", "aggregate":
		_ = bson.Unmarshal(slices.Clone(e.Command), &body)
	case "findAndModify":
		body = find(e.Command.Lookup("query"))
	case "update":
		body = find(e.Command.Lookup("updates", "0", "q"))
	case "delete":
		body = find(e.Command.Lookup("deletes", "0", "q"))
	}
	return body
}

// Plan is how a server would find the documents of a command.
type Plan struct {
	Indexes []string // their names
	Scans   []string
	Sorts   bool // in memory
}

func (p Plan) String() string {
	s := strings.Join(append(slices.Clone(p.Indexes), p.Scans...), ", ")
	if p.Sorts {
		s += ", then sorts"
	}
	return s
}

// Command asks for the plan of a body.
func Command(ctx context.Context, db *mongo.Database, body bson.D) (p Plan, err error) {
	body = slices.DeleteFunc(slices.Clone(body), func(e bson.E) bool {
		// What a session or a client adds to a command is no part of it.
		return strings.HasPrefix(e.Key, "$") || slices.Contains([]string{"lsid", "txnNumber", "readConcern", "writeConcern"}, e.Key)
	})
	var answer bson.D
	err = db.RunCommand(ctx, bson.D{{Key: "explain", Value: body}, {Key: "verbosity", Value: "queryPlanner"}}).Decode(&answer)
	if err != nil {
		return p, fmt.Errorf("explain: %w", err)
	}
	p.read(answer)
	return p, nil
}

func (p *Plan) read(v any) {
	switch v := v.(type) {
	case bson.A:
		for _, e := range v {
			p.read(e)
		}
	case bson.D:
		stage, index, cond, bounds := "", "", "", ""
		for _, e := range v {
			switch text := fmt.Sprint(e.Value); e.Key {
			case "stage", "Node Type":
				stage = text
			case "indexName", "Index Name":
				index = text
			case "Index Cond":
				cond = text
			case "indexBounds":
				bounds = text
			case "rejectedPlans", "IndexCosts", "IndexDetails", "command":
				continue // not how it is done
			}
			p.read(e.Value)
		}
		switch stage {
		case "IDHACK", "EXPRESS_IXSCAN", "EXPRESS_CLUSTERED_IXSCAN", "CLUSTERED_IXSCAN":
			index = "_id_"
		case "COLLSCAN", "Seq Scan":
			p.Scans = append(p.Scans, stage)
		case "SORT", "Sort", "Incremental Sort":
			p.Sorts = true
		}
		if index != "" && !slices.Contains(p.Indexes, index) {
			p.Indexes = append(p.Indexes, index)
		}
		// The whole of an index, from its beginning to its end, is a scan too.
		if strings.Contains(bounds, "[MinKey, MaxKey]") && !strings.Contains(bounds, ",") ||
			index == "_id_" && strings.HasPrefix(stage, "Index") && !strings.Contains(cond, "object_id") {
			p.Scans = append(p.Scans, "all of "+index)
		}
	}
}
