package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// actFlags are those of a decision about some rows, by their ids, or about
// many.
type actFlags struct {
	IDs []string `arg:"" optional:"" name:"id" help:"The effects' ids, from effects ls."`

	All    bool   `env:"-" help:"Decide about all rows that meet --tenant, --state and the other filters. Without --digest it says what it would touch, and touches nothing."`
	Tenant string `help:"With --all: the tenant." placeholder:"ID"`
	filterFlags
	Digest string `env:"-" help:"With --all: the digest of the rows, as it was shown." placeholder:"HEX"`
	Bulk   string `env:"-" help:"In place of --all: the bulk decision that was shown, with its --digest." placeholder:"ID"`

	noteFlag
	apiFlags
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
		if c.All && c.State == "any" {
			return tracker.Fieldf("--state", "is required with --all")
		}
		return errors.Join(checkTenant(c.Tenant), c.check())
	case c.Digest != "":
		return errors.New("--digest goes with --all or --bulk")
	case len(c.IDs) == 0:
		return errors.New("give the ids of effects (`triggerd effects ls --tenant TENANT` lists them), or --all with --tenant and --state")
	}
	for _, id := range c.IDs {
		if _, err := effectPath(id); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
	}
	return nil
}

func (c *actFlags) act(ctx context.Context, std streams, action trigger.Action) error {
	if err := c.checkAct(); err != nil {
		return err
	}
	return c.with(ctx, std, func(a *api) error {
		if len(c.IDs) == 0 {
			return c.bulk(ctx, a, action)
		}
		var failed error
		for _, id := range c.IDs {
			path, _ := effectPath(id, string(action)) // checked
			var row server.Effect
			if err := a.Post(ctx, path, server.NoteBody{Note: c.Note}, &row); err != nil {
				if failed = effectError(id, err); ctx.Err() != nil {
					break
				}
				// The others of the list are decided about all the same.
				if len(c.IDs) > 1 {
					a.note("triggerd: %s", advice(failed))
					failed = errSilent
				}
				continue
			}
			if err := a.say("%s: %s", row.ID, row.State); err != nil {
				return err
			}
		}
		return failed
	})
}

// bulkStep is how many seconds the command lets the API work between two lines
// of progress.
const bulkStep = 1

// bulk decides about many rows: first it shows what it would touch, then, told
// the digest of that, it acts on just those.
func (c *actFlags) bulk(ctx context.Context, a *api, action trigger.Action) error {
	path := func(segments ...string) string {
		return tenantPath(c.Tenant, append([]string{"effects", "bulk"}, segments...)...)
	}
	var b server.Bulk
	var err error
	if c.All {
		if err := c.find(ctx, a, c.Tenant); err != nil {
			return err
		}
		err = noTenant(c.Tenant, a.Create(ctx, path(), server.BulkBody{Action: string(action), Filter: c.body(), Note: c.Note}, &b))
	} else {
		_, err = a.Get(ctx, path(c.Bulk), nil, &b)
		err = missing(err, "--bulk: there is no such bulk decision of %s any more: begin again with --all", c.Tenant)
	}
	switch {
	case err != nil:
		return err
	case b.Action != action:
		return fmt.Errorf("--bulk: it is one to %s", b.Action)
	}
	again := fmt.Sprintf("triggerd effects %s --tenant %s --bulk %s --digest %s", action, c.Tenant, b.ID, b.Digest)
	if c.All && b.Count == 0 {
		if err := a.tenantThere(ctx, path()); err != nil {
			return err
		}
	}
	if c.Digest == "" {
		return c.show(a, &b, again)
	}
	if c.Digest != b.Digest {
		return fmt.Errorf("--digest: these are not the rows that were shown: now there are %d, digest %s; look at them again without --digest", b.Count, b.Digest)
	}
	if err := c.runBulk(ctx, a, &b, path); err != nil {
		return fmt.Errorf("%w\nGo on with: %s", err, again)
	}
	switch {
	case b.Stopped:
		return fmt.Errorf("it was stopped after %d of %d; what was decided stays", b.Done, b.Count)
	case !b.Finished:
		return fmt.Errorf("interrupted after %d of %d; what was decided stays. Go on with: %s", b.Done, b.Count, again)
	}
	if err := a.say("%s: %d applied, %d refused", action, b.Applied, b.Refused); err != nil {
		return err
	}
	if b.Refused > 0 {
		a.note("Refused rows had changed since they were shown, and were left alone.")
	}
	if b.More {
		a.note("There are more: begin again.")
	}
	return nil
}

// runBulk goes on with a bulk decision until it is through, or ctx ends: then b
// says how far it is.
func (c *actFlags) runBulk(ctx context.Context, a *api, b *server.Bulk, path func(...string) string) error {
	run := struct {
		Digest  string `json:"digest"`
		Seconds int    `json:"seconds"`
	}{b.Digest, bulkStep}
	for !b.Finished && !b.Stopped {
		err := a.Post(ctx, path(b.ID, "run"), run, b)
		if ctx.Err() != nil {
			lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if _, err := a.Get(lctx, path(b.ID), nil, b); err != nil {
				return fmt.Errorf("interrupted; what was decided stays: %w", err)
			}
			return nil
		}
		if err != nil {
			return err
		}
		a.note("%d of %d: %d applied, %d refused", b.Done, b.Count, b.Applied, b.Refused)
	}
	return nil
}

// show says what a bulk decision would touch.
func (c *actFlags) show(a *api, b *server.Bulk, again string) error {
	if b.Count == 0 {
		return a.say("No effect of %s to %s meets this.", c.Tenant, b.Action)
	}
	more := ""
	if b.More {
		more = fmt.Sprintf(" (the first %d; there are more)", trigger.BulkMax)
	}
	_, err := fmt.Fprintf(a.out, "%d effects of %s to %s%s, nothing was touched\n  first  %s\n  last   %s\n  digest %s\nTo %s just these, within a day:\n  %s\n",
		b.Count, c.Tenant, b.Action, more, b.Sample[0], b.Last, b.Digest, b.Action, again)
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
