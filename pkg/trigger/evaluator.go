package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// takerWait is how long a row waits before it looks again whether a
// better-ranked taker of its label is through.
const takerWait = time.Second

// Evaluation says how one attempt at a row ended.
type Evaluation struct {
	// Outcome is set when the row is done.
	Outcome Outcome
	RunID   string
	// Err is set when the attempt failed; a *LaunchError may make it
	// permanent. An error that wraps ErrFenceLost means that the row is no
	// longer this claim's: nothing more may be written.
	Err error
	// Uncounted: the attempt failed before anything was sent, for want of
	// something that is not the row's or the bot's fault (the store, the seal
	// key of this replica): it is tried again and does not use up an attempt.
	Uncounted bool
	// Wait, when positive, returns the row without counting the attempt.
	Wait time.Duration
	// Rendered is the body that was sent, for later attempts (W12).
	Rendered string
}

// Evaluator does what a row says, in the order of W6.
type Evaluator struct {
	Board  *Board
	Outbox EffectOutbox
	Config interface {
		SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
		BotGet(ctx context.Context, tenantID, id string) (*Bot, error)
	}
	Launcher Launcher
	Sealer   Sealer
	Logger   zerolog.Logger
}

// Evaluate makes one attempt at a claimed row. It writes to the row and the
// card only under the row's claim. Everything it did before a crash at any
// point is found again by the next attempt.
func (v *Evaluator) Evaluate(ctx context.Context, row *Effect) Evaluation {
	ev := v.evaluate(ctx, row)
	if lookup := (*lookupError)(nil); errors.As(ev.Err, &lookup) {
		ev.Uncounted = true
	}
	return ev
}

// lookupError marks what an attempt needed and could not read or write.
type lookupError struct{ error }

func (e *lookupError) Unwrap() error { return e.error }

func lookup(err error) error {
	if err == nil {
		return nil
	}
	return &lookupError{err}
}

func (v *Evaluator) evaluate(ctx context.Context, row *Effect) Evaluation {
	if len(row.Consume) > 0 {
		spent, err := v.spent(ctx, row)
		if err != nil {
			return Evaluation{Err: lookup(err)}
		}
		if spent {
			return v.launchPlan(ctx, row)
		}
	}
	// The current subscription against the event's snapshot (W6c).
	sub, err := v.Config.SubscriptionGet(ctx, row.TenantID, row.SubscriptionID)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return v.close(ctx, row, OutcomeSubscriptionGone)
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case !sub.Enabled:
		return v.close(ctx, row, OutcomeSubscriptionDisabled)
	case !sub.Matches(&row.Event):
		return v.close(ctx, row, OutcomeNoLongerMatches)
	}
	bot, err := v.Config.BotGet(ctx, row.TenantID, row.BotID)
	if errors.Is(err, tracker.ErrNotFound) {
		return v.close(ctx, row, OutcomeBotGone)
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if len(row.Consume) > 0 {
		return v.consume(ctx, row, sub, bot)
	}
	body := row.Rendered
	if body == "" {
		card, err := v.Board.CardGet(ctx, row.TenantID, row.CardID)
		if errors.Is(err, tracker.ErrNotFound) {
			return Evaluation{Outcome: OutcomeCardGone}
		}
		if err != nil {
			return Evaluation{Err: lookup(err)}
		}
		if body, err = renderLaunch(row, sub, bot, card); err != nil {
			return Evaluation{Err: err}
		}
	}
	return v.launch(ctx, row, bot, body)
}

// spent reports whether the row's label is spent for it: the mark on the row,
// or its entry on the card, whatever the labels say now (W7).
func (v *Evaluator) spent(ctx context.Context, row *Effect) (bool, error) {
	if row.ConsumeMarked {
		return true, nil
	}
	if row.Plan == nil {
		return false, nil // the plan comes before the spending
	}
	// A tombstone tells as well as the card did.
	card, err := v.Board.Cards.CardGet(ctx, row.TenantID, row.CardID)
	if errors.Is(err, tracker.ErrNotFound) {
		return false, nil
	}
	if err != nil || card.ConsumedBy(row.ID) == nil {
		return false, err
	}
	if err := v.Outbox.EffectMarkConsumed(ctx, row.Fence()); err != nil {
		return true, err
	}
	row.ConsumeMarked = true
	return true, nil
}

// consume spends the row's labels and launches (W7): the plan on the row, then
// one card write conditional on the rev that the plan was made from, then the
// mark on the row, then the launch.
func (v *Evaluator) consume(ctx context.Context, row *Effect, sub *Subscription, bot *Bot) Evaluation {
	if wait, taken, err := v.betterTaker(ctx, row); err != nil || wait > 0 {
		return Evaluation{Err: lookup(err), Wait: wait}
	} else if taken {
		return v.close(ctx, row, OutcomeOneShotSpent)
	}
	var outcome Outcome
	changed, err := v.Board.Change(ctx, row.TenantID, row.CardID, func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		outcome = ""
		switch {
		case card == nil:
			outcome = OutcomeCardGone
			return nil, nil, nil
		case card.ConsumedBy(row.ID) != nil:
			return nil, nil, nil
		case spentByOther(card, row):
			outcome = OutcomeOneShotSpent
			return nil, nil, nil
		}
		body, err := renderLaunch(row, sub, bot, card)
		if err != nil {
			return nil, nil, err
		}
		plan := LaunchPlan{BotID: bot.ID, Body: body}
		if err := v.Outbox.EffectPlan(ctx, row.Fence(), plan); err != nil {
			return nil, nil, err
		}
		row.Plan = &plan
		event := consumeFrom(card, row, bot, now)
		return card, event, nil
	})
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if outcome != "" {
		return v.close(ctx, row, outcome)
	}
	if err := v.Outbox.EffectMarkConsumed(ctx, row.Fence()); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	row.ConsumeMarked = true
	if changed.Event != nil {
		// The event is durable on the card; the launch does not wait for it
		// to reach the log.
		if _, err := v.Board.Relay.Card(ctx, row.TenantID, row.CardID); err != nil {
			v.Logger.Warn().Err(err).Str("effect", row.ID).Msg("worker: relay after consume")
		}
	}
	return v.launchPlan(ctx, row)
}

// consumeFrom takes the row's labels off the card and returns the event of it;
// nil when none of them is on the card any more.
func consumeFrom(card *tracker.Card, row *Effect, bot *Bot, now time.Time) *tracker.BoardEvent {
	removed := card.RemoveLabels(row.Consume, func(label string) tracker.LabelStamp {
		// Never older than the labeling that it spends: else a forge whose
		// clock is ahead would bring the label back by that very labeling.
		at := now
		if last := card.Stamps.Label(label).Stamp.At; last.After(at) {
			at = last
		}
		return tracker.LabelStamp{Label: label, Stamp: tracker.Stamp{At: at, Delta: true, Tie: "~"}, SpentBy: row.ID}
	})
	card.Consumed = append(card.Consumed, tracker.Consumption{EffectID: row.ID, Labels: removed, At: now})
	if len(removed) == 0 {
		return nil
	}
	return &tracker.BoardEvent{
		Kind: tracker.KindUnlabeled, Removed: removed,
		Actor: tracker.Actor{Kind: tracker.ActorBot, ID: bot.ID, Name: bot.Name},
		Cause: row.Event.Cause.Then(row.SubscriptionID, row.CardID),
	}
}

// spentByOther reports whether none of the row's labels is left on the card
// and another effect took one. A label that a person took off meanwhile does
// not count: the event had it, and owes its effect.
func spentByOther(card *tracker.Card, row *Effect) bool {
	other := false
	for _, label := range row.Consume {
		if card.HasLabel(label) {
			return false
		}
		if by := card.Stamps.Label(label).SpentBy; by != "" && by != row.ID {
			other = true
		}
	}
	return other
}

// betterTaker looks at the other rows of the same event that want one of this
// row's labels and rank before it: the row waits while one is live, and goes
// without if one spent the label (W7).
func (v *Evaluator) betterTaker(ctx context.Context, row *Effect) (wait time.Duration, taken bool, err error) {
	rows, err := v.Outbox.EffectListByEvent(ctx, row.TenantID, EffectEventID(row.ID))
	if err != nil {
		return 0, false, err
	}
	for i := range rows {
		o := &rows[i]
		before := cmp.Or(cmp.Compare(o.Rank, row.Rank), cmp.Compare(o.SubscriptionID, row.SubscriptionID)) < 0
		if !before || !slices.ContainsFunc(o.Consume, func(l string) bool { return foldContains(row.Consume, l) }) {
			continue
		}
		if o.ConsumeMarked {
			return 0, true, nil
		}
		if o.State.Live() {
			wait = takerWait
		}
	}
	return wait, false, nil
}

// close ends a row that is not launched. A row that has a plan may have a
// consume still on its way (an earlier attempt's, whose answer was lost): one
// more write to the card makes that fail, and if it got there first, the label
// is spent and the row launches after all (W7).
func (v *Evaluator) close(ctx context.Context, row *Effect, outcome Outcome) Evaluation {
	if row.Plan == nil {
		return Evaluation{Outcome: outcome}
	}
	spent := false
	_, err := v.Board.change(ctx, row.TenantID, row.CardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		spent = card != nil && card.ConsumedBy(row.ID) != nil
		if card == nil || spent {
			return nil, nil, nil
		}
		return card, nil, nil
	}, true)
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if !spent {
		return Evaluation{Outcome: outcome}
	}
	if err := v.Outbox.EffectMarkConsumed(ctx, row.Fence()); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	row.ConsumeMarked = true
	return v.launchPlan(ctx, row)
}

// launchPlan launches a spent row by its plan, whatever the subscription and
// the card have become (W6b, W7).
func (v *Evaluator) launchPlan(ctx context.Context, row *Effect) Evaluation {
	if row.Plan == nil {
		return Evaluation{Err: fmt.Errorf("effect %s is spent and has no plan", row.ID)}
	}
	bot, err := v.Config.BotGet(ctx, row.TenantID, row.Plan.BotID)
	if errors.Is(err, tracker.ErrNotFound) {
		return Evaluation{Outcome: OutcomeBotGone}
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	return v.launch(ctx, row, bot, row.Plan.Body)
}

func (v *Evaluator) launch(ctx context.Context, row *Effect, bot *Bot, body string) Evaluation {
	secret, err := v.Sealer.Open(BotOwner(bot.TenantID, bot.ID), bot.Secret)
	if err != nil {
		return Evaluation{Err: lookup(fmt.Errorf("open the secret of bot %s: %w", bot.ID, err)), Rendered: body}
	}
	got, err := v.Launcher.Launch(ctx, LaunchRequest{
		Key: row.IdempotencyKey(), Attempt: row.Attempts, Generation: row.Generation,
		URL: bot.URL, Secret: secret, Body: body,
	})
	if err != nil {
		return Evaluation{Err: err, Rendered: body}
	}
	return Evaluation{Outcome: OutcomeLaunched, RunID: got.RunID, Rendered: body}
}

// release takes the row's entry off its card's consumptions: called when the
// row is done (W7), and buries a card that was deleted meanwhile. An entry
// that stays behind is harmless.
func (v *Evaluator) release(ctx context.Context, row *Effect) error {
	changed, err := v.Board.change(ctx, row.TenantID, row.CardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil || card.ConsumedBy(row.ID) == nil {
			return nil, nil, nil
		}
		card.Consumed = slices.DeleteFunc(card.Consumed, func(c tracker.Consumption) bool { return c.EffectID == row.ID })
		return card, nil, nil
	}, true)
	if err == nil && changed.Card != nil && changed.Card.Deleted {
		_, err = v.Board.Relay.Card(ctx, row.TenantID, row.CardID)
	}
	return err
}

// BotOwner is what a bot's secret is sealed for.
func BotOwner(tenantID, id string) string { return tenantID + "/bot/" + id }

// HookOwner is what a hook's secret is sealed for.
func HookOwner(tenantID, id string) string { return tenantID + "/hook/" + id }
