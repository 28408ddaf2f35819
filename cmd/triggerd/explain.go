package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type subsExplainCmd struct {
	Tenant       string `help:"The tenant." required:"" placeholder:"ID"`
	Card         string `env:"-" help:"The card's id." required:"" placeholder:"ID"`
	Subscription string `env:"-" help:"Only for the subscription with this id; for each of the tenant's by default." placeholder:"ID"`
	Output       string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run explains a card.
func (c *subsExplainCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	all, err := c.explain(ctx, trigger.NewExplainer(store))
	if err == nil && len(all) == 0 {
		err = tenantThere(ctx, store, c.Tenant)
	}
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(std.out, all)
	}
	table := [][]string{{"SUBSCRIPTION", "NAME", "EVENT", "ANSWER", "WHY"}}
	for i := range all {
		e := &all[i]
		event := "-"
		if e.Event != nil && e.Event.Seq > 0 {
			event = strconv.FormatInt(e.Event.Seq, 10)
		}
		table = append(table, []string{e.SubscriptionID, e.SubscriptionName, event, string(e.Answer), plain(e.Sentence)})
	}
	if err := printTable(std.out, table); err != nil || c.Subscription == "" {
		return err
	}
	return printWhy(std.out, &all[0])
}

func (c *subsExplainCmd) explain(ctx context.Context, x *trigger.Explainer) ([]trigger.Explanation, error) {
	if c.Subscription != "" {
		got, err := x.Explain(ctx, c.Tenant, c.Card, c.Subscription)
		if err != nil {
			return nil, (&subFlags{ID: c.Subscription, Tenant: c.Tenant}).explain(err)
		}
		return []trigger.Explanation{*got}, nil
	}
	all := []trigger.Explanation{}
	for after, more := "", true; more; {
		var page []trigger.Explanation
		var err error
		if page, more, err = x.ExplainAll(ctx, c.Tenant, c.Card, after); err != nil {
			return nil, err
		}
		if all = append(all, page...); more {
			after = page[len(page)-1].SubscriptionName
		}
	}
	return all, nil
}

// printWhy prints what an explanation rests on.
func printWhy(w io.Writer, e *trigger.Explanation) error {
	if e.Verdict != nil && len(e.Verdict.Conditions) > 0 {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		table := [][]string{{"CONDITION", "WANTED", "FOUND", "HELD"}}
		for _, cond := range e.Verdict.Conditions {
			table = append(table, []string{cond.Name, plain(cond.Wanted), plain(cond.Found), strconv.FormatBool(cond.Held)})
		}
		if err := printTable(w, table); err != nil {
			return err
		}
	}
	notes := e.Notes
	if e.Latest != nil {
		what := "does not fire it"
		if e.Latest.Fires {
			what = "fires it"
		}
		notes = append(notes, strings.TrimSpace(fmt.Sprintf("The card's newest event, %d, %s. %s", e.Latest.EventSeq, what, e.Latest.Summary)))
	}
	for _, n := range notes {
		if _, err := fmt.Fprintf(w, "\n%s\n", plain(n)); err != nil {
			return err
		}
	}
	return nil
}

type subsDryRunCmd struct {
	ID     string `arg:"" optional:"" help:"The subscription's id, from subs ls; or give --file."`
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
	File   string `short:"f" env:"-" help:"A draft, as YAML or JSON, in the form that subscriptions are stored in." placeholder:"FILE"`
	Card   string `env:"-" help:"Only events of the card with this id." placeholder:"ID"`
	Last   int    `env:"-" help:"How many events, from the newest on: 1 to 1000." default:"50"`
	Before int64  `env:"-" help:"Only events before this number: the next of the run before."`
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run makes a dry run.
func (c *subsDryRunCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	switch {
	case (c.ID == "") == (c.File == ""):
		return errors.New("give either a subscription's id, or a draft with --file")
	case c.Last < 1 || c.Last > trigger.DryRunLastMax:
		return tracker.Fieldf("--last", "must be 1 to %d", trigger.DryRunLastMax)
	case c.Before < 0:
		return tracker.Fieldf("--before", "must not be negative")
	}
	var sub *trigger.Subscription
	var err error
	if c.File != "" {
		if sub, err = readDraft(c.File); err != nil {
			return err
		}
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	if sub == nil {
		if sub, err = store.SubscriptionGet(ctx, c.Tenant, c.ID); err != nil {
			return (&subFlags{ID: c.ID, Tenant: c.Tenant}).explain(err)
		}
	}
	dry, err := trigger.NewExplainer(store).DryRun(ctx, c.Tenant, sub, trigger.DryRunParams{CardID: c.Card, Last: c.Last, BeforeSeq: c.Before})
	if err == nil && len(dry.Verdicts) == 0 {
		err = tenantThere(ctx, store, c.Tenant)
	}
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(std.out, dry)
	}
	return printDryRun(std.out, dry)
}

// plain keeps text of others (labels, what a bot answered) from spoiling a
// terminal or a table.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

func printDryRun(w io.Writer, dry *trigger.DryRun) error {
	table := [][]string{{"EVENT", "AT", "KIND", "CARD", "BY", "FIRES", "WHY"}}
	for i := range dry.Verdicts {
		v := &dry.Verdicts[i]
		fires, why := "no", v.Summary
		switch {
		case v.LoopCut:
			fires, why = "cut", "it fires, and is cut to end a loop"
		case v.Fires:
			fires = "yes"
		case v.Error != "":
			fires, why = "error", v.Error
		}
		table = append(table, []string{strconv.FormatInt(v.EventSeq, 10), v.At.Format(time.RFC3339), string(v.EventKind), v.CardID, plain(v.Actor.ID), fires, plain(why)})
	}
	if err := printTable(w, table); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d of %d events fire it. Nothing was written.\n", dry.Fired, len(dry.Verdicts))
	for _, n := range dry.Notes {
		if err == nil {
			_, err = fmt.Fprintln(w, n)
		}
	}
	if err == nil && dry.Next > 0 {
		_, err = fmt.Fprintf(w, "Earlier events: --before %d\n", dry.Next)
	}
	return err
}

// draftMaxBytes is the largest draft that is read.
const draftMaxBytes = 256 << 10

// readDraft reads a draft; JSON is YAML, too.
func readDraft(path string) (*trigger.Subscription, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the draft: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, draftMaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the draft: %w", err)
	}
	if len(text) > draftMaxBytes {
		return nil, fmt.Errorf("%s: at most %d bytes", path, draftMaxBytes)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	asJSON, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	sub, err := trigger.DraftDecode(asJSON)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return sub, nil
}

type subsLogCmd struct {
	ID     string `arg:"" help:"The subscription's id, from subs ls."`
	Tenant string `help:"The tenant." required:"" placeholder:"ID"`
	Limit  int    `help:"At most this many." default:"100"`
	Before int64  `env:"-" help:"Only of events before this number."`
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
	requiredMongo
}

// Run lists what a subscription made.
func (c *subsLogCmd) Run(ctx context.Context, std streams) error {
	if err := checkTenant(c.Tenant); err != nil {
		return err
	}
	switch {
	case c.Limit < 1 || c.Limit > 10_000:
		return tracker.Fieldf("--limit", "must be 1 to 10000")
	case c.Before < 0:
		return tracker.Fieldf("--before", "must not be negative")
	}
	store, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer closeStore(store)
	x, entries := trigger.NewExplainer(store), []trigger.LogEntry{}
	for before := c.Before; len(entries) < c.Limit; {
		page, err := x.SubscriptionLog(ctx, c.Tenant, c.ID, before, min(c.Limit-len(entries), trigger.LogMax))
		if err != nil {
			return (&subFlags{ID: c.ID, Tenant: c.Tenant}).explain(err)
		}
		entries = append(entries, page.Entries...)
		if before = page.Next; before == 0 {
			break
		}
	}
	if c.Output == "json" {
		return printJSON(std.out, entries)
	}
	table := [][]string{{"EVENT", "KIND", "CARD", "ANSWER", "UPDATED", "RUN", "WHAT"}}
	for i := range entries {
		e := &entries[i]
		table = append(table, []string{
			strconv.FormatInt(e.EventSeq, 10), string(e.Kind), e.CardID, string(e.Answer), e.UpdatedAt.Format(time.RFC3339), plain(e.RunID), plain(e.Sentence),
		})
	}
	return printTable(std.out, table)
}
