package main

import (
	"context"
	"strings"

	"github.com/triggerd/triggerd/pkg/server"
)

type subsCmd struct {
	Ls      lsCmd[subscriptionKind]                                                  `cmd:"" help:"List a tenant's subscriptions."`
	Show    showCmd[subscriptionKind]                                                `cmd:"" help:"Show one subscription."`
	Create  createCmd[subscriptionKind, newSubscriptionFlags, *newSubscriptionFlags] `cmd:"" help:"Attach a subscription."`
	Edit    editCmd[subscriptionKind, subscriptionFlags, *subscriptionFlags]         `cmd:"" help:"Edit a subscription."`
	Delete  deleteCmd[subscriptionKind]                                              `cmd:"" help:"Delete a subscription."`
	Enable  enableCmd[subscriptionKind]                                              `cmd:"" help:"Let a subscription fire for what happens from now on."`
	Disable disableCmd[subscriptionKind]                                             `cmd:"" help:"Have a subscription fire for nothing."`
	Pause   subsPauseCmd                                                             `cmd:"" help:"Hold what a subscription owes, until it is resumed."`
	Resume  subsResumeCmd                                                            `cmd:"" help:"End a subscription's pause, and release or discard what it held."`

	Explain subsExplainCmd `cmd:"" help:"Say why a card did or did not fire subscriptions."`
	DryRun  subsDryRunCmd  `cmd:"" help:"See what a subscription, or a draft, would make of stored events."`
	Log     subsLogCmd     `cmd:"" help:"List what a subscription made, newest first."`
}

var subColumns = []column{
	{head: "SUBSCRIPTION", path: "id"},
	{head: "NAME", path: "name"},
	{head: "ENABLED", path: "enabled"},
	{head: "BOT", path: "bot_id"},
	{head: "DANGLING", path: "dangling"},
	{head: "PAUSED BY", path: "paused_by"},
	{head: "WHY", show: func(i item) string {
		why := i.str("paused_why")
		if failing := i.str("failing"); failing != "" {
			why = strings.TrimPrefix(why+"; failing since "+cell("_at", i["failing_since"])+": "+failing, "; ")
		}
		return why
	}},
}

type subsPauseCmd struct {
	namedFlags
	noteFlag
	apiFlags
}

// Run pauses a subscription.
func (c *subsPauseCmd) Run(ctx context.Context, std streams) error {
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[subscriptionKind](ctx, a, c.Tenant, c.ID, func(path string) error {
			var p server.SubscriptionPause
			if err := a.Post(ctx, path+"/pause", server.NoteBody{Note: c.Note}, &p); err != nil {
				return err
			}
			return a.say("subscription %s is paused by %s; what it owes is held", p.Name, p.By)
		})
	})
}

type subsResumeCmd struct {
	namedFlags
	Discard bool `env:"-" help:"Give up what is held instead of releasing it."`
	apiFlags
}

// Run resumes a subscription.
func (c *subsResumeCmd) Run(ctx context.Context, std streams) error {
	body, became := server.ResumeBody{Held: "release"}, "released"
	if c.Discard {
		body.Held, became = "discard", "discarded"
	}
	return c.of(ctx, &c.apiFlags, std, func(a *api) error {
		return thing[subscriptionKind](ctx, a, c.Tenant, c.ID, func(path string) error {
			var p server.SubscriptionPause
			if err := a.Post(ctx, path+"/resume", body, &p); err != nil {
				return err
			}
			return a.say("subscription %s is resumed; %d held effects were %s, others follow within seconds", p.Name, p.Released+p.Discarded, became)
		})
	})
}
