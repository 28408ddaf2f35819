package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/internal/client"
	"github.com/triggerd/triggerd/pkg/server"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

type subsExplainCmd struct {
	tenantFlag
	Card         string `env:"-" help:"The card's id." required:"" placeholder:"ID"`
	Subscription string `env:"-" help:"Only for the subscription with this id or name; for each of the tenant's by default." placeholder:"ID"`
	outputFlag
	apiFlags
}

// Run explains a card.
func (c *subsExplainCmd) Run(ctx context.Context, std streams) error {
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		all, err := c.explain(ctx, a)
		if err == nil && len(all) == 0 {
			err = a.tenantThere(ctx, c.path("cards"))
		}
		if err != nil {
			return err
		}
		if c.json() {
			return printJSON(a.out, all)
		}
		table := [][]string{{"SUBSCRIPTION", "NAME", "EVENT", "ANSWER", "WHY"}}
		for i := range all {
			e := &all[i]
			event := "-"
			if e.Event != nil && e.Event.Seq > 0 {
				event = strconv.FormatInt(e.Event.Seq, 10)
			}
			table = append(table, []string{e.SubscriptionID, e.SubscriptionName, event, string(e.Answer), e.Sentence})
		}
		if err := printTable(a.out, table); err != nil || c.Subscription == "" {
			return err
		}
		return printWhy(a.out, &all[0])
	})
}

// explain reads page by page: a page has no limit of its own.
func (c *subsExplainCmd) explain(ctx context.Context, a *api) ([]trigger.Explanation, error) {
	all, query := []trigger.Explanation{}, url.Values{}
	if c.Subscription != "" {
		id, err := a.find(ctx, c.Tenant, &subscriptionResource, c.Subscription)
		if err != nil {
			return nil, err
		}
		query.Set("subscription", id)
	}
	for {
		var page server.Page[trigger.Explanation]
		_, err := a.Get(ctx, c.path("cards", c.Card, "explain"), query, &page)
		switch {
		case err != nil && c.Subscription != "":
			return nil, subscriptionResource.missing(err, c.Tenant, c.Subscription)
		case err != nil:
			return nil, noTenant(c.Tenant, err)
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
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
	ID string `arg:"" optional:"" help:"The subscription's id or name; or give --file."`
	tenantFlag
	File   string `short:"f" env:"-" help:"A draft, as YAML or JSON, in the form that subscriptions are stored in." placeholder:"FILE"`
	Card   string `env:"-" help:"Only events of the card with this id." placeholder:"ID"`
	Last   int    `env:"-" help:"How many events, from the newest on: 1 to 1000." default:"50"`
	Before int64  `env:"-" help:"Only events before this number: the next of the run before."`
	outputFlag
	apiFlags
}

// Run makes a dry run.
func (c *subsDryRunCmd) Run(ctx context.Context, std streams) error {
	switch {
	case (c.ID == "") == (c.File == ""):
		return errors.New("give either a subscription's id, or a draft with --file")
	case c.Before < 0:
		return tracker.Fieldf("--before", "must not be negative")
	}
	if err := checkRange("--last", c.Last, 1, trigger.DryRunLastMax); err != nil {
		return err
	}
	call := client.Request{Method: http.MethodPost, Path: c.path("subscriptions", "dry-run"), Reads: true, Query: url.Values{"last": {strconv.Itoa(c.Last)}}}
	if c.File != "" {
		draft, err := readDraft(c.File)
		if err != nil {
			return err
		}
		call.Body = draft
	}
	if c.Card != "" {
		call.Query.Set("card", c.Card)
	}
	if c.Before > 0 {
		call.Query.Set("before", strconv.FormatInt(c.Before, 10))
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		if c.ID != "" {
			id, err := a.find(ctx, c.Tenant, &subscriptionResource, c.ID)
			if err != nil {
				return err
			}
			call.Path = c.path("subscriptions", id, "dry-run")
		}
		var dry trigger.DryRun
		_, err := a.Do(ctx, call, &dry)
		switch {
		case err != nil && c.ID != "":
			return subscriptionResource.missing(err, c.Tenant, c.ID)
		case err != nil:
			return noTenant(c.Tenant, err)
		case len(dry.Verdicts) == 0:
			if err := a.tenantThere(ctx, call.Path); err != nil {
				return err
			}
		}
		if c.json() {
			return printJSON(a.out, dry)
		}
		return printDryRun(a.out, &dry)
	})
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

// readDraft reads a draft as JSON, which is YAML, too.
func readDraft(path string) (json.RawMessage, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	asJSON, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return asJSON, nil
}

type subsLogCmd struct {
	namedFlags
	listFlags
	apiFlags
}

// Run lists what a subscription made.
func (c *subsLogCmd) Run(ctx context.Context, std streams) error {
	if err := c.check(); err != nil {
		return err
	}
	cols := columns("EVENT:event_seq", "KIND:event_kind", "CARD:card_id", "ANSWER:answer", "UPDATED:updated_at", "RUN:run_id", "WHAT:sentence")
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[subscriptionKind](ctx, a, c.Tenant, c.ID, func(path string) error {
			return c.list(ctx, a, path+"/log", nil, cols)
		})
	})
}
