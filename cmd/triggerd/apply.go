package main

import (
	"context"
	"fmt"
	"os"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type applyCmd struct {
	File   string `short:"f" required:"" help:"The triggers.yaml." placeholder:"FILE"`
	DryRun bool   `help:"Say what would change, and change nothing."`
	requiredMongo
	sealFlags
}

// Run applies a file to a database.
func (c *applyCmd) Run(ctx context.Context, std streams) error {
	sealer, err := c.sealer()
	if err != nil {
		return err
	}
	store, closeFn, err := mongoFlags(c.requiredMongo).open(ctx, zerolog.Nop())
	if err != nil {
		return err
	}
	defer closeFn()
	return applyFile(ctx, c.File, store, sealer, c.DryRun, std)
}

// applyFile applies a file and shows what it changes.
func applyFile(ctx context.Context, path string, store trigger.Store, sealer trigger.Sealer, dryRun bool, std streams) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := apply.Parse(path, data)
	if err != nil {
		return err
	}
	result, err := apply.Apply(ctx, file, apply.Params{
		Store: store, Sealer: sealer, Clock: store, Getenv: os.LookupEnv, ReadFile: os.ReadFile,
		CheckURL: launch.CheckURL, ParseSecret: launch.ParseSecret, DryRun: dryRun,
	})
	if _, werr := result.WriteTo(std.out); err == nil {
		err = werr
	}
	if err == nil && !result.Changed() {
		_, err = fmt.Fprintln(std.out, "nothing to change")
	}
	return err
}
