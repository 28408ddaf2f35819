package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/triggerd/triggerd/pkg/boardmongo"
)

type schemaCmd struct {
	Check schemaCheckCmd `cmd:"" help:"Compare the indexes of the database with this version's; ends with 1 if they differ."`
	Apply schemaApplyCmd `cmd:"" help:"Make the indexes that are missing, and change those that are others."`
}

type schemaCheckCmd struct {
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run compares, and writes nothing to the database.
func (c *schemaCheckCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	r, err := store.SchemaCheck(ctx)
	if err != nil {
		return err
	}
	if err := c.print(std, r); err != nil {
		return err
	}
	if r.Older() {
		fmt.Fprintf(std.err, "note: the database has the schema of version %d, of a newer triggerd; this one has version %d and changes nothing of it\n", r.Newest(), r.Version)
	}
	switch {
	case !r.Differs():
		return nil
	case r.Older():
		return fmt.Errorf("the indexes differ: run `triggerd schema apply` of the newer triggerd, whose schema has version %d", r.Newest())
	}
	return errors.New("the indexes differ: run `triggerd schema apply`")
}

func (c *schemaCheckCmd) print(std streams, r *boardmongo.SchemaReport) error {
	if c.Output == "json" {
		return printJSON(std.out, struct {
			*boardmongo.SchemaReport
			Older   bool `json:"older"`
			Differs bool `json:"differs"`
		}{r, r.Older(), r.Differs()})
	}
	rows := [][]string{{"COLLECTION", "INDEX", "STATUS", "WANTED", "FOUND"}}
	same := 0
	for _, ix := range r.Indexes {
		if ix.Status == boardmongo.SchemaSame {
			same++
			continue
		}
		rows = append(rows, []string{ix.Collection, ix.Index, string(ix.Status), ix.Wanted, ix.Found})
	}
	if len(rows) > 1 {
		if err := printTable(std.out, rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(std.out, "schema version %d of database %s: %d indexes are as they should be, others: %d\n", r.Version, c.Database, same, len(rows)-1)
	return err
}

type schemaApplyCmd struct{ requiredMongo }

// Run applies the schema.
func (c *schemaApplyCmd) Run(ctx context.Context, std streams) error {
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	older := false
	err = store.SchemaApply(ctx, func(n boardmongo.SchemaNote) {
		to := std.out
		if n.Warn {
			to, older = std.err, true
		}
		fmt.Fprintln(to, n.Text)
	})
	if err != nil {
		return err
	}
	if older {
		return nil // what was left is said
	}
	_, err = fmt.Fprintf(std.out, "schema of database %s is applied\n", c.Database)
	return err
}
