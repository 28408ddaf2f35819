package server

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/launch"
	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// BotSpec is what people set of a bot (docs/bots.md).
type BotSpec struct {
	Name   string `json:"name" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"once in the tenant"`
	URL    string `json:"url" maxLength:"2048" doc:"http or https; its query is shown as ?***, which in an edit stands for the stored one"`
	Replay string `json:"replay,omitempty" enum:"safe,unsafe" doc:"safe, if it is missing: it honours the idempotency key; unsafe: it can't be sent the same twice"`
}

// NewBot is a bot to make.
type NewBot struct {
	BotSpec
	SecretBody
}

// Bot is a bot as the API shows it, without its secrets.
type Bot struct {
	ID       string `json:"id"`
	Revision int64  `json:"revision"`
	BotSpec
	RotatingSince time.Time `json:"rotating_since,omitempty,omitzero" doc:"since when two secrets sign its launches"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// BotSecret is a bot with the secret that the call made.
type BotSecret struct {
	Bot
	Secret string `json:"secret,omitempty" doc:"the secret that was made; it is shown this once"`
}

func newBot(b *trigger.Bot) Bot {
	return Bot{
		ID: b.ID, Revision: b.Revision, BotSpec: BotSpec{b.Name, config.ShowURL(b.URL), string(cmp.Or(b.Replay, trigger.ReplaySafe))},
		RotatingSince: b.RotatingSince, UpdatedAt: b.UpdatedAt,
	}
}

// set makes b what the spec asks for.
func (s *BotSpec) set(b *trigger.Bot) error {
	url, err := config.KeepURL(b.URL, s.URL)
	if err == nil {
		err = launch.CheckURL(url)
	}
	b.Name, b.URL, b.Replay = s.Name, url, trigger.ReplayClass(cmp.Or(s.Replay, string(trigger.ReplaySafe)))
	return err
}

func (a *API) bots() *rotating[trigger.Bot, Bot] {
	id := func(b *trigger.Bot) string { return b.ID }
	return &rotating[trigger.Bot, Bot]{
		configured: &configured[trigger.Bot, Bot]{
			API: a, kind: "bot", path: "bots", most: config.BotsMax, count: counts(a.Store.BotList),
			get: a.Store.BotGet, page: pages(a.Store.BotList, id), save: a.Store.BotSave, remove: a.Store.BotDelete,
			key: func(b *trigger.Bot) (string, string, int64) { return b.TenantID, b.ID, b.Revision },
			show: func(context.Context, string) (func(*trigger.Bot) Bot, error) {
				return newBot, nil
			},
		},
		secrets: secrets[trigger.Bot]{
			API: a, owner: trigger.BotOwner, parse: launch.ParseSecret, make: config.NewBotSecret,
			fields: func(b *trigger.Bot) secretFields { return secretFields{&b.Secret, &b.NextSecret, &b.RotatingSince} },
		},
		stamp: func(b *trigger.Bot, now time.Time) { b.Revision, b.UpdatedAt = b.Revision+1, now },
	}
}

func (a *API) registerBots(api huma.API) {
	k := a.bots // there is a store only once somebody calls
	huma.Get(api, "/v1/tenants/{tenant}/bots", func(ctx context.Context, in *ListInput) (*one[Page[Bot]], error) {
		return k().list(ctx, in)
	}, named("list-bots", "A page of the tenant's bots, by id."))
	huma.Post(api, "/v1/tenants/{tenant}/bots", func(ctx context.Context, in *struct {
		TenantInput
		Body NewBot
	},
	) (*made[BotSecret], error) {
		var secret string
		out, mine, err := k().create(ctx, in.Tenant, func(id string) (*trigger.Bot, error) {
			b := &trigger.Bot{TenantID: in.Tenant, ID: id}
			if err := in.Body.set(b); err != nil {
				return nil, err
			}
			var err error
			b.Secret, secret, err = k().secrets.seal(in.Tenant, id, in.Body.Secret)
			k().stamp(b, a.Store.Now())
			return b, err
		})
		if err != nil {
			return nil, err
		}
		if !mine {
			secret = ""
		}
		return &made[BotSecret]{out.Status, out.ETag, out.Location, BotSecret{out.Body, secret}}, nil
	}, named("create-bot", "Make a bot."), creates, write)
	huma.Get(api, "/v1/tenants/{tenant}/bots/{bot}", func(ctx context.Context, in *struct{ BotInput }) (*tagged[Bot], error) {
		return k().one(ctx, in.Tenant, in.Bot)
	}, named("get-bot", "One bot."), botReads(botInPath))
	huma.Put(api, "/v1/tenants/{tenant}/bots/{bot}", func(ctx context.Context, in *struct {
		BotInput
		MatchInput
		Body BotSpec
	},
	) (*tagged[Bot], error) {
		return k().edit(ctx, in.Tenant, in.Bot, &in.MatchInput, true, func(next *trigger.Bot) (bool, error) {
			k().stamp(next, a.Store.Now())
			return true, in.Body.set(next)
		})
	}, named("replace-bot", "Edit the bot. Its secret stays."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/bots/{bot}", func(ctx context.Context, in *struct {
		BotInput
		MatchInput
	},
	) (*one[Deleted], error) {
		l, err := a.links(ctx, in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		if err := k().drop(ctx, in.Tenant, in.Bot, &in.MatchInput); err != nil {
			return nil, err
		}
		// A pause that stayed would hold its rows up for good.
		if _, err := a.Dead.Resume(ctx, in.Tenant, in.Bot); err != nil && !errors.Is(err, tracker.ErrNotFound) {
			a.Logger.Warn().Err(err).Str("tenant", in.Tenant).Str("bot", in.Bot).Msg("API: the pause of a bot that was deleted could not be ended")
		}
		return &one[Deleted]{Deleted{l.danglingAfter(func(l *links) { delete(l.bots, in.Bot) })}}, nil
	}, named("delete-bot", "Delete the bot. What is for it still ends as bot_gone; what refers to it stays, and says so."))

	huma.Post(api, "/v1/tenants/{tenant}/bots/{bot}/secret", func(ctx context.Context, in *struct {
		BotInput
		MatchInput
		Body *SecretBody
	},
	) (*tagged[BotSecret], error) {
		out, secret, err := k().rotate(ctx, in.Tenant, in.Bot, &in.MatchInput, in.Body)
		if err != nil {
			return nil, err
		}
		return &tagged[BotSecret]{out.ETag, BotSecret{out.Body, secret}}, nil
	}, named("rotate-bot-secret", "Begin to rotate the bot's secret: launches are signed with both."), write)
	huma.Delete(api, "/v1/tenants/{tenant}/bots/{bot}/secret/previous", func(ctx context.Context, in *struct {
		BotInput
		MatchInput
	},
	) (*none, error) {
		return k().endRotation(ctx, in.Tenant, in.Bot, &in.MatchInput, true)
	}, named("finish-bot-rotation", "End the rotation: launches are signed with the new secret alone."))
	huma.Delete(api, "/v1/tenants/{tenant}/bots/{bot}/secret/next", func(ctx context.Context, in *struct {
		BotInput
		MatchInput
	},
	) (*none, error) {
		return k().endRotation(ctx, in.Tenant, in.Bot, &in.MatchInput, false)
	}, named("cancel-bot-rotation", "Give the rotation up: launches are signed with the secret that the bot had."))
}
