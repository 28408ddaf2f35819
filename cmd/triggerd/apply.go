package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server/apply"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type applyCmd struct {
	File   string `short:"f" required:"" help:"The triggers.yaml; paths in it are relative to its folder." placeholder:"FILE"`
	DryRun bool   `help:"Say what would change, and change nothing."`
	requiredMongo
	sealFlags
}

// Run applies a file to a database. What is wrong with the file alone is said
// without one.
func (c *applyCmd) Run(ctx context.Context, std streams) error {
	file, err := readTriggers(c.File)
	if err != nil {
		return err
	}
	sealer, err := c.sealer()
	if err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if !c.DryRun {
		if err := store.SchemaApply(ctx); err != nil {
			return err
		}
	}
	return file.apply(ctx, store, sealer, c.DryRun, std)
}

// triggersFile is a triggers.yaml that is well formed.
type triggersFile struct {
	file *apply.File
	// dir is its folder: paths in it are relative to that.
	dir string
}

func readTriggers(path string) (*triggersFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := apply.Parse(path, data)
	if err != nil {
		return nil, err
	}
	return &triggersFile{file, filepath.Dir(path)}, nil
}

// apply applies the file and shows what that changes.
func (f *triggersFile) apply(ctx context.Context, store trigger.Store, sealer trigger.Sealer, dryRun bool, std streams) error {
	result, err := apply.Apply(ctx, f.file, apply.Params{
		Store: store, Sealer: sealer, Clock: store, Getenv: os.LookupEnv, ReadFile: f.readFile,
		CheckURL: launch.CheckURL, ParseSecret: launch.ParseSecret, DryRun: dryRun,
	})
	if err != nil && !result.Changed() {
		return err
	}
	if _, werr := result.WriteTo(std.out); err == nil {
		err = werr
	}
	return err
}

func (f *triggersFile) readFile(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.dir, path)
	}
	return os.ReadFile(path)
}
