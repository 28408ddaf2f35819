package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// whoFlags say who does it, and why.
type whoFlags struct {
	Note string `env:"-" help:"Why; it stays on what it is about." placeholder:"TEXT"`
	By   string `help:"Who does it; the system's user by default." placeholder:"NAME"`
}

func (f *whoFlags) by() string {
	if f.By != "" {
		return f.By
	}
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return "cli:" + name
}

// deadLetters works on the database itself, as all commands do. Replicas find
// what it leaves due.
func deadLetters(store *boardmongo.Store, std streams) *trigger.DeadLetters {
	log := zerolog.New(zerolog.ConsoleWriter{Out: std.err, TimeFormat: time.TimeOnly, NoColor: true}).Level(zerolog.WarnLevel)
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store, Logger: log}
	return trigger.NewDeadLetters(store, &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}, log)
}

// explain tells what to do about an error.
func explain(id string, err error) error {
	var refused *trigger.RefusedError
	var field *tracker.FieldError
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return fmt.Errorf("%s: %w", id, errNoEffect)
	case errors.As(err, &refused):
		return fmt.Errorf("%s: %s; `triggerd effects show '%s'` shows it", id, refused.Why, id)
	case errors.As(err, &field):
		return flagError(field)
	}
	return err
}

// flagError names the flag for the field.
func flagError(field *tracker.FieldError) error {
	return tracker.Fieldf("--"+strings.ReplaceAll(field.Field, "_", "-"), "%s", field.Want)
}

// actFlags are those of a decision about some rows, by their ids, or about
// many.
type actFlags struct {
	IDs []string `arg:"" optional:"" name:"id" help:"The effects' ids, from effects ls."`

	All    bool   `env:"-" help:"Decide about all rows that meet --tenant, --state and the other filters. Without --digest it says what it would touch, and touches nothing."`
	Tenant string `help:"With --all: the tenant." placeholder:"ID"`
	filterFlags
	Digest string `env:"-" help:"With --all: the digest of the rows, as it was shown." placeholder:"HEX"`
	Bulk   string `env:"-" help:"In place of --all: the bulk decision that was shown, with its --digest." placeholder:"ID"`

	whoFlags
	requiredMongo
}

func (c *actFlags) checkAct() error {
	switch {
	case c.All && c.Bulk != "":
		return errors.New("--all finds rows, --bulk goes on with rows that were found: give one of them")
	case (c.All || c.Bulk != "") && len(c.IDs) > 0:
		return errors.New("give either ids, or --all or --bulk")
	case c.Bulk != "" && c.Digest == "":
		return errors.New("--digest: is required with --bulk, as it was shown")
	case !c.All && len(c.given()) > 0: // which would be ignored
		return fmt.Errorf("%s goes with --all", c.given()[0])
	case c.Bulk != "" && c.Note != "":
		return errors.New("--note goes with --all: a bulk decision keeps the note that it was made with")
	case c.All || c.Bulk != "":
		if c.Tenant == "" {
			return tracker.Fieldf("--tenant", "is required with --all and --bulk")
		}
		return errors.Join(checkTenant(c.Tenant), c.check())
	case c.Digest != "":
		return errors.New("--digest goes with --all or --bulk")
	case len(c.IDs) == 0:
		return errors.New("give the ids of effects (`triggerd effects ls --tenant TENANT` lists them), or --all with --tenant and --state")
	}
	for _, id := range c.IDs {
		if _, err := effectTenant(id); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

func (c *actFlags) act(ctx context.Context, std streams, action trigger.Action) error {
	if err := c.checkAct(); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	dead := deadLetters(store, std)
	if len(c.IDs) == 0 {
		return c.bulk(ctx, std, store, dead, action)
	}
	failed := 0
	for _, id := range c.IDs {
		tenantID, _ := effectTenant(id) // checked
		row, err := dead.Decide(ctx, trigger.Decision{TenantID: tenantID, EffectID: id, Action: action, By: c.by(), Note: c.Note})
		if err != nil {
			failed++
			fmt.Fprintln(std.err, "triggerd:", explain(id, err))
			if ctx.Err() != nil {
				break
			}
			continue
		}
		if _, err := fmt.Fprintf(std.out, "%s: %s\n", row.ID, row.State); err != nil {
			return err
		}
	}
	if failed > 0 {
		return errSilent
	}
	return nil
}

// bulkStep is how long the command works between two lines of progress.
const bulkStep = time.Second

// bulk decides about many rows: first it shows what it would touch, then, told
// the digest of that, it acts on just those.
func (c *actFlags) bulk(ctx context.Context, std streams, store *boardmongo.Store, dead *trigger.DeadLetters, action trigger.Action) error {
	var b *trigger.Bulk
	var err error
	if c.All {
		b, err = dead.BulkPrepare(ctx, trigger.BulkParams{
			TenantID: c.Tenant, Action: action, Filter: c.filter(store.Now()), By: c.by(), Note: c.Note,
		})
	} else {
		b, err = dead.BulkGet(ctx, c.Tenant, c.Bulk)
	}
	var field *tracker.FieldError
	switch {
	case errors.As(err, &field):
		return flagError(field)
	case errors.Is(err, tracker.ErrNotFound):
		return fmt.Errorf("--bulk: there is no such bulk decision of %s any more: begin again with --all", c.Tenant)
	case err != nil:
		return err
	case b.Action != action:
		return fmt.Errorf("--bulk: it is one to %s", b.Action)
	}
	again := fmt.Sprintf("triggerd effects %s --tenant %s --bulk %s --digest %s", action, c.Tenant, b.ID, b.Digest)
	if c.All && len(b.Items) == 0 {
		if err := tenantThere(ctx, store, c.Tenant); err != nil {
			return err
		}
	}
	if c.Digest == "" {
		return c.show(std, b, again)
	}
	if c.Digest != b.Digest {
		return fmt.Errorf("--digest: these are not the rows that were shown: now there are %d, digest %s; look at them again without --digest", len(b.Items), b.Digest)
	}
	for !b.Finished() && !b.Stopped && ctx.Err() == nil {
		next, err := dead.BulkRun(ctx, c.Tenant, b.ID, b.Digest, bulkStep)
		if ctx.Err() != nil && next == nil {
			break // before it had begun
		}
		if err != nil {
			return fmt.Errorf("%w\nGo on with: %s", err, again)
		}
		b = next
		fmt.Fprintf(std.err, "%d of %d: %d applied, %d refused\n", b.Next, len(b.Items), b.Applied, b.Refused)
	}
	switch {
	case b.Stopped:
		return fmt.Errorf("it was stopped after %d of %d; what was decided stays", b.Next, len(b.Items))
	case !b.Finished():
		return fmt.Errorf("interrupted after %d of %d; what was decided stays. Go on with: %s", b.Next, len(b.Items), again)
	}
	if _, err := fmt.Fprintf(std.out, "%s: %d applied, %d refused\n", action, b.Applied, b.Refused); err != nil {
		return err
	}
	if b.Refused > 0 {
		fmt.Fprintln(std.err, "Refused rows had changed since they were shown, and were left alone.")
	}
	if b.More {
		fmt.Fprintln(std.err, "There are more: begin again.")
	}
	return nil
}

// show says what a bulk decision would touch.
func (c *actFlags) show(std streams, b *trigger.Bulk, again string) error {
	if len(b.Items) == 0 {
		_, err := fmt.Fprintf(std.out, "No effect of %s to %s meets this.\n", c.Tenant, b.Action)
		return err
	}
	more := ""
	if b.More {
		more = fmt.Sprintf(" (the first %d; there are more)", trigger.BulkMax)
	}
	_, err := fmt.Fprintf(std.out, "%d effects of %s to %s%s, nothing was touched\n  first  %s\n  last   %s\n  digest %s\nTo %s just these, within a day:\n  %s\n",
		len(b.Items), c.Tenant, b.Action, more, b.Items[0].ID, b.Items[len(b.Items)-1].ID, b.Digest, b.Action, again)
	return err
}

type effectsReplayCmd struct{ actFlags }

// Run replays effects.
func (c *effectsReplayCmd) Run(ctx context.Context, std streams) error {
	return c.act(ctx, std, trigger.ActionReplay)
}

type effectsRerunCmd struct{ actFlags }

// Run runs effects again.
func (c *effectsRerunCmd) Run(ctx context.Context, std streams) error {
	return c.act(ctx, std, trigger.ActionRerun)
}

type effectsDiscardCmd struct{ actFlags }

// Run discards effects.
func (c *effectsDiscardCmd) Run(ctx context.Context, std streams) error {
	return c.act(ctx, std, trigger.ActionDiscard)
}

type effectsReleaseCmd struct{ actFlags }

// Run releases effects.
func (c *effectsReleaseCmd) Run(ctx context.Context, std streams) error {
	return c.act(ctx, std, trigger.ActionRelease)
}
