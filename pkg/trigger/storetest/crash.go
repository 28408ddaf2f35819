package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// runCrashes runs the part of the suite in which processes end: the whole of a
// row's life, cut before and after each of its durable writes and of its
// request, taken over by a fresh process and run to rest.
func runCrashes(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	for _, mode := range []string{"plain", "one-shot", "unsafe", "unsafe one-shot", "promote", "promote one-shot"} {
		for meanwhile, act := range meanwhiles {
			t.Run("TestW7_W8_CrashAtEveryStep/"+mode+"/"+meanwhile, func(t *testing.T) {
				t.Parallel()
				c := &crashing{bundle: newBundle(t, open(t)), mode: mode, meanwhile: meanwhile}
				c.run(t, act)
			})
			t.Run("TestW7_W8_CrashAtEveryStepOfABirth/"+mode+"/"+meanwhile, func(t *testing.T) {
				t.Parallel()
				c := &crashing{bundle: newBundle(t, open(t)), mode: mode, meanwhile: meanwhile, born: true}
				if c.isDatabase() && (meanwhile != "nothing" || mode != "one-shot" && mode != "unsafe") {
					t.Skip("in memory only")
				}
				c.run(t, act)
			})
		}
	}
}

// meanwhiles are what happens between a crash and the take-over.
var meanwhiles = map[string]func(t *testing.T, c *crashing, card string){
	"nothing": func(*testing.T, *crashing, string) {},
	"label added again": func(t *testing.T, c *crashing, card string) {
		c.change(t, card, addLabel("ship-it"))
	},
	"subscription edited": func(t *testing.T, c *crashing, _ string) {
		c.edit(t, func(s *trigger.Subscription) { s.Args = map[string]string{"n": strconv.FormatInt(s.Revision, 10)} })
	},
	"subscription disabled": func(t *testing.T, c *crashing, _ string) {
		c.edit(t, func(s *trigger.Subscription) { s.Enabled = false })
	},
	"subscription deleted": func(_ *testing.T, c *crashing, _ string) { c.subGone = true },
	"card moved on and its bot taken off": func(t *testing.T, c *crashing, card string) {
		c.movedOn = c.card(t, card).BotID != ""
		if c.movedOn {
			c.change(t, card, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
				card.BotID, card.BotArgs, card.ColumnID = "", nil, "done"
				return card, &tracker.BoardEvent{Kind: tracker.KindMoved, Actor: human, FromColumn: "doing", ToColumn: "done"}, nil
			})
		}
	},
	"card deleted": func(t *testing.T, c *crashing, card string) {
		_, err := c.board.Delete(t.Context(), tenant, card, human)
		require.NoError(t, err)
	},
}

// crashing is one scenario.
type crashing struct {
	*bundle
	mode, meanwhile string
	sub             *trigger.Subscription
	subGone         bool
	movedOn         bool
	// born: the row is born claimed, by the tail of the process that dies.
	born bool
}

func (c *crashing) is(mode string) bool { return c.mode == mode || c.mode == mode+" one-shot" }
func (c *crashing) oneShot() bool       { return len(c.sub.Consume) > 0 }

func (c *crashing) edit(t *testing.T, f func(*trigger.Subscription)) {
	t.Helper()
	f(c.sub)
	c.sub.Revision++
	require.NoError(t, c.real.SubscriptionSave(t.Context(), c.sub))
}

func (c *crashing) run(t *testing.T, meanwhile func(t *testing.T, c *crashing, card string)) {
	bot := &trigger.Bot{TenantID: tenant, ID: "bot1", Name: "bot1", URL: "http://bot.invalid/1", Secret: "s", Revision: 1, Replay: trigger.ReplaySafe}
	if c.is("unsafe") {
		bot.Replay = trigger.ReplayUnsafe
	}
	require.NoError(t, c.real.BotSave(t.Context(), bot))
	require.NoError(t, c.real.BoardSave(t.Context(), &tracker.Board{
		TenantID: tenant, ID: "b1", Name: "b1", Revision: 1, Columns: []tracker.Column{{ID: "open"}, {ID: "doing"}},
	}))
	c.sub = c.subscribe(t, "s1", "ship-it", func(s *trigger.Subscription) {
		if c.mode == "one-shot" || c.mode == "unsafe one-shot" || c.mode == "promote one-shot" {
			s.Consume = []string{"ship-it"}
		}
		if c.is("promote") {
			s.Mode, s.ToColumn = trigger.ModePromote, "doing"
		}
	})
	// Everywhere in memory; on a database a few of the points, other ones in
	// each scenario.
	step, n := 1, 0
	if c.isDatabase() {
		step, n = 7, len(c.mode+c.meanwhile)%7
	}
	for ; ; n += step {
		require.Less(t, n, 200)
		card := fmt.Sprint("card", n)
		var id string
		var seen func() int
		first, claims := c.spawn(t, 0), 0
		if c.born {
			first.setHook(func(op string) {
				if op == "EffectClaim" {
					claims++
				}
			})
			c.create(t, card, "open", "ship-it")
			for _, seq := range c.relayed(t, card) {
				id = trigger.EffectID(trigger.EventID(tenant, seq), c.sub.ID)
			}
			first.bear(t, id, func() { seen = first.dieAt(n) })
		} else {
			id = c.fired(t, card).ID
			seen = first.dieAt(n)
			first.run(t, 1)
		}
		c.closeHoles(t)
		meanwhile(t, c, card)
		second := c.spawn(t, takenOver)
		second.worker.Evaluator.Config = lookups{second.faults, func(string) error {
			if c.subGone {
				return tracker.ErrNotFound
			}
			return nil
		}, nil}
		row, err := c.real.EffectGet(t.Context(), tenant, id)
		absent := errors.Is(err, tracker.ErrNotFound)
		switch {
		case absent && !c.sub.Enabled: // it was not owed yet
			c.drain(t)
			require.Empty(t, slices.DeleteFunc(c.rows(t), func(r trigger.Effect) bool { return r.CardID != card }))
			c.atRest(t, card)
			continue
		case absent, c.born && row.State.Live():
			second.bear(t, id, func() { second.sweep(t) })
		case row.State.Live():
			second.sweep(t)
			second.run(t, 1)
		}
		c.check(t, n, c.row(t, id))
		c.atRest(t, card)
		if seen() <= n {
			require.Greater(t, n, 5, "there is something to cut")
			if c.born && c.meanwhile == "nothing" {
				require.Zero(t, claims, "it was born claimed")
			}
			return // the cut was past the last point
		}
	}
}

// atRest undoes what was done meanwhile, and gives up rows that the scenario
// left besides the one that was looked at.
func (c *crashing) atRest(t *testing.T, card string) {
	t.Helper()
	c.subGone, c.movedOn = false, false
	if !c.sub.Enabled {
		c.edit(t, func(s *trigger.Subscription) { s.Enabled = true })
	}
	c.closeHoles(t)
	if _, err := c.real.CardGet(t.Context(), tenant, card); err == nil {
		c.relayed(t, card)
	}
	c.closeHoles(t)
	c.drain(t)
	for _, row := range c.rows(t) {
		if row.State.Live() {
			p := c.claimParams(row.Lane, 1, 0)
			p.Now = p.Now.Add(time.Hour) // it may have been handed back by a process whose clock is later
			rows, err := c.real.EffectClaim(t.Context(), p)
			require.NoError(t, err)
			require.Len(t, rows, 1)
			require.True(t, c.settle(t, c.done(rows[0])))
		}
	}
}

// check holds a row that came to rest to what it promises.
func (c *crashing) check(t *testing.T, n int, row *trigger.Effect) {
	t.Helper()
	at := fmt.Sprintf("cut %d: %s %s %s", n, row.State, row.Outcome, row.Reason)
	require.LessOrEqual(t, row.Attempts, 2, at)
	requests, bodies := c.launchesOf(row.ID)
	for _, r := range c.launches.all() {
		if trigger.EffectEventID(r.Key) == trigger.EffectEventID(row.ID) {
			require.Equal(t, row.ID, r.Key, "%s: one key", at)
		}
	}
	spends := 0
	for _, e := range c.allEvents(t, row.CardID) {
		if e.Kind == tracker.KindUnlabeled && e.Actor.Kind == tracker.ActorBot {
			spends++
		}
	}
	switch {
	case c.is("unsafe") && row.State == trigger.StateReconcile:
		require.LessOrEqual(t, requests, 1, at)
		require.False(t, row.DeliveryStartedAt.IsZero(), at)
	default:
		require.Equal(t, trigger.StateDone, row.State, at)
	}
	if c.is("unsafe") {
		require.LessOrEqual(t, requests, 1, "%s: never two without an operator", at)
	}
	if c.oneShot() {
		// The tail of the second process may have come to the label that was
		// added again: that event's row spends it for itself.
		most := 1
		for _, r := range c.rows(t) {
			if c.born && r.CardID == row.CardID && r.ID != row.ID {
				most++
			}
		}
		require.LessOrEqual(t, spends, most, "%s: spent once", at)
		require.LessOrEqual(t, len(bodies), 1, "%s: the same bytes", at)
	} else {
		require.Zero(t, spends, at)
	}
	if c.is("promote") {
		c.checkPromoted(t, at, row, spends)
		return
	}
	launched := row.Outcome == trigger.OutcomeLaunched || row.State == trigger.StateReconcile
	if spends == 1 {
		require.True(t, launched, "%s: the label is spent, its effect launches", at)
	}
	if row.Outcome == trigger.OutcomeLaunched {
		require.Positive(t, requests, at)
	}
	if !launched && requests > 0 {
		// The bot got a request whose answer was lost; a safe one may get it
		// again or not, as its subscription says by then.
		require.False(t, c.oneShot(), at)
	}
	if c.meanwhile == "nothing" {
		require.True(t, launched, at)
	}
}

func (c *crashing) checkPromoted(t *testing.T, at string, row *trigger.Effect, spends int) {
	t.Helper()
	promoted := 0
	for _, e := range c.allEvents(t, row.CardID) {
		if e.Actor.Kind == tracker.ActorBot && (e.Kind == tracker.KindMoved || e.Kind == tracker.KindPromoted) {
			promoted++
		}
	}
	require.LessOrEqual(t, promoted, 1, at)
	if row.Outcome == trigger.OutcomePromoted {
		require.Equal(t, 1, promoted, at)
		if card, err := c.real.CardGet(context.WithoutCancel(t.Context()), tenant, row.CardID); err == nil && !card.Deleted {
			want := []string{"bot1", "doing"}
			if c.movedOn {
				want = []string{"", "done"}
			}
			require.Equal(t, want, []string{card.BotID, card.ColumnID}, at)
		}
	}
	if c.meanwhile == "nothing" || spends == 1 && c.meanwhile != "card deleted" {
		require.Equal(t, trigger.OutcomePromoted, row.Outcome, at)
	}
}

// allEvents are the card's events, in the log or still pending.
func (c *crashing) allEvents(t *testing.T, card string) (out []tracker.BoardEvent) {
	t.Helper()
	for _, e := range c.events(t) {
		if e.CardID == card && e.Source == trigger.SourceBoard {
			out = append(out, e.BoardEvent)
		}
	}
	if got, err := c.real.CardGet(t.Context(), tenant, card); err == nil {
		for _, e := range got.Pending {
			if !slices.ContainsFunc(out, func(o tracker.BoardEvent) bool { return o.EID == e.EID }) {
				out = append(out, e)
			}
		}
	}
	return out
}
