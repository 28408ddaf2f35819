// Command start starts the test database where the tests will not find one: it
// chooses by the same order as they do.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/triggerd/triggerd/internal/testdb"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "test database:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if !testdb.NeedsScript(ctx) {
		return nil
	}
	root, err := testdb.Root()
	if err != nil {
		return err
	}
	up := exec.CommandContext(ctx, filepath.Join(root, "scripts", "testdb"), "up")
	up.Stdout, up.Stderr = os.Stderr, os.Stderr
	if err := up.Run(); err != nil {
		return fmt.Errorf("scripts/testdb up: %w", err)
	}
	return nil
}
