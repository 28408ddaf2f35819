// Package apply makes a store agree with a triggers.yaml: the tenants, boards,
// bots, hooks, subscriptions and projections that the file describes.
//
// Things are known by their names, so a file applied again changes nothing. A
// new name is a new thing: a rename is not detected. What the file does not
// mention is left alone; a field that is left out has its default. No secret
// stands in the file, in the result or in an error.
package apply

import (
	"context"
	"errors"
	"fmt"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Store is what Apply needs of a trigger.Store.
type Store interface {
	trigger.Config
	config.Heads
}

// Params is what Apply works with. All but DryRun are required.
type Params struct {
	Store  Store
	Sealer trigger.Sealer
	Clock  trigger.Clock
	// Getenv and ReadFile get the texts of secrets, as os.LookupEnv and
	// os.ReadFile do. A path is handed over as the file has it.
	Getenv   func(string) (string, bool)
	ReadFile func(string) ([]byte, error)
	// Secrets, if not nil, has the texts in their place: somebody else read
	// them.
	Secrets map[SecretRef]string
	// Tenant, if set, is the one tenant that the file may describe. It must be
	// there, and keeps its name.
	Tenant string
	// CheckURL refuses a bot's URL that can't be served.
	CheckURL func(string) error
	// ParseSecret turns the text of a bot's secret into the bytes that are
	// sealed and sign the launches.
	ParseSecret func(string) ([]byte, error)
	// DryRun checks everything and says what would be changed.
	DryRun bool
}

// Tries is how often one Apply starts anew because somebody else wrote in
// between.
const Tries = 5

// Apply makes the store agree with the file. It first resolves and checks
// everything, and returns an Errors when something is wrong with the file:
// nothing is written then. Every write is conditional on what was read; after
// a conflict all is read and checked again, at most Tries times, after which
// the error is a tracker.ErrConflict. Other errors are the store's.
//
// After an error the result has what was written until then; to apply the file
// again does the rest. Any number of Applies may run at once.
func Apply(ctx context.Context, f *File, p Params) (Result, error) {
	done := make(map[changeKey]Change)
	var conflict error
	for range Tries {
		pl, err := newPlan(ctx, f, p)
		if err != nil {
			return written(done), err
		}
		if !p.DryRun {
			conflict, err = pl.run(ctx, done)
			if err != nil {
				return written(done), err
			}
		}
		if conflict == nil {
			return pl.result(done), nil
		}
	}
	return written(done), fmt.Errorf("apply %s: gave up after %d tries: %w", f.name, Tries, conflict)
}

// run makes the plan's writes, in order, and notes in done what each changed.
// It stops at the first that fails.
func (pl *plan) run(ctx context.Context, done map[changeKey]Change) (conflict, err error) {
	for _, s := range pl.steps {
		err := s.write(ctx)
		switch {
		case errors.Is(err, tracker.ErrConflict):
			return err, nil
		case err != nil:
			return nil, fmt.Errorf("apply %s: %w", pl.file.name, err)
		}
		k := s.change.key()
		done[k] = done[k].then(*s.change)
	}
	return nil, nil
}

// result is what the plan says, and where an earlier try wrote, what that did:
// the last plan saw its own earlier writes as unchanged.
func (pl *plan) result(done map[changeKey]Change) Result {
	r := Result{DryRun: pl.DryRun}
	for _, c := range pl.changes {
		if d, ok := done[c.key()]; ok {
			r.Changes = append(r.Changes, d)
		} else {
			r.Changes = append(r.Changes, *c)
		}
	}
	return r
}
