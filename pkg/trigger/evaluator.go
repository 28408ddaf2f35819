package trigger

import (
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
	// Held: the row's subscription is paused, the row waits for its end.
	Held bool
	// Reconcile: the row's delivery was started before, and nobody knows what
	// became of it (W8).
	Reconcile bool
	// Rendered is the body that was sent, for later attempts (W12).
	Rendered string
}

// Evaluator does what a row says, in the order of W6.
type Evaluator struct {
	Board  *Board
	Outbox EffectOutbox
	Config EvaluatorConfig
	// Matcher matches a poison event again; without it such rows wait.
	Matcher  *Tail
	Launcher Launcher
	Sealer   Sealer
	Logger   zerolog.Logger

	compiled matcherCache
	// claimOf is the evaluator that this one is for a claim of, if any.
	claimOf *Evaluator
	cards   func(ctx context.Context, tenantID, cardID string) (*tracker.Card, error)
}

// matchers keeps subscriptions compiled, over all claims.
func (v *Evaluator) matchers() *matcherCache {
	if v.claimOf != nil {
		return &v.claimOf.compiled
	}
	return &v.compiled
}

// EvaluatorConfig is what an Evaluator looks up, as it is when a row executes.
type EvaluatorConfig interface {
	SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
	BotGet(ctx context.Context, tenantID, id string) (*Bot, error)
	ProjectionGet(ctx context.Context, tenantID, id string) (*Projection, error)
	ProjectionList(ctx context.Context, tenantID string) ([]Projection, error)
	BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error)
}

// forClaim returns the evaluator for the rows of one claim.
func (v *Evaluator) forClaim(rows []Effect) *Evaluator {
	view := newClaimView(v.Config, v.Board, rows)
	return &Evaluator{
		Board: v.Board, Outbox: v.Outbox, Config: view, Matcher: v.Matcher, Launcher: v.Launcher, Sealer: v.Sealer,
		Logger: v.Logger, claimOf: v, cards: view.cardGet,
	}
}

// card returns the row's card, which is only read here.
func (v *Evaluator) card(ctx context.Context, row *Effect) (*tracker.Card, error) {
	if v.cards != nil {
		return v.cards(ctx, row.TenantID, row.CardID)
	}
	return v.Board.CardGet(ctx, row.TenantID, row.CardID)
}

// Evaluate makes one attempt at a claimed row. It writes to the row and the
// card only under the row's claim. Everything it did before a crash at any
// point is found again by the next attempt.
func (v *Evaluator) Evaluate(ctx context.Context, row *Effect) Evaluation {
	ev := v.evaluate(tracker.WithTraceParent(ctx, row.Event.TraceParent), row)
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
	if !row.DeliveryStartedAt.IsZero() {
		return Evaluation{Reconcile: true} // W6a, W8
	}
	if other := v.otherKind(row.Kind); other != nil {
		return other(ctx, row)
	}
	if len(row.Consume) > 0 {
		spent, err := v.spent(ctx, row)
		if err != nil {
			return Evaluation{Err: lookup(err)}
		}
		if spent {
			return v.byPlan(ctx, row) // W6b
		}
	}
	// The current subscription against the event's snapshot (W6c).
	sub, err := v.Config.SubscriptionGet(ctx, row.TenantID, row.SubscriptionID)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return v.close(ctx, row, Evaluation{Outcome: OutcomeSubscriptionGone})
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case sub.TenantID != row.TenantID || row.Event.TenantID != row.TenantID:
		return permanent("the row, its event and its subscription are not of one tenant")
	}
	// What needs a later version is left to replicas of that version.
	if err := errors.Join(checkFeatures("subscription "+sub.ID, sub.Requires), checkFeatures("event "+row.Event.ID(), row.Event.Requires)); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if !sub.Enabled {
		return v.close(ctx, row, Evaluation{Outcome: OutcomeSubscriptionDisabled})
	}
	switch matches, err := v.matchers().of(sub).Match(&row.Event); {
	case err != nil: // neither matches nor does not: a failed attempt
		return Evaluation{Err: fmt.Errorf("evaluate subscription %s: %w", sub.ID, err)}
	case !matches:
		return v.close(ctx, row, Evaluation{Outcome: OutcomeNoLongerMatches})
	case sub.Paused:
		return v.close(ctx, row, Evaluation{Held: true})
	}
	bot, err := v.Config.BotGet(ctx, row.TenantID, row.BotID)
	if errors.Is(err, tracker.ErrNotFound) {
		return v.close(ctx, row, Evaluation{Outcome: OutcomeBotGone})
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	switch {
	case len(row.Consume) > 0:
		return v.consume(ctx, row, sub, bot)
	case sub.Mode == ModePromote:
		p, err := v.promotion(row, sub)
		if err != nil {
			return Evaluation{Err: err}
		}
		return v.promote(ctx, row, bot, p)
	}
	card, err := v.card(ctx, row)
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return Evaluation{Outcome: OutcomeCardGone}
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case row.Rendered != "":
		return v.launch(ctx, row, bot, row.Rendered)
	}
	body, err := v.renderLaunch(row, sub, bot, card)
	if err != nil {
		return Evaluation{Err: err}
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
	better, wait, taken, err := v.betterTakers(ctx, row)
	switch {
	case err != nil || wait > 0:
		return Evaluation{Err: lookup(err), Wait: wait}
	case taken:
		return v.close(ctx, row, Evaluation{Outcome: OutcomeOneShotSpent})
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
		case spentByOther(card, row), slices.ContainsFunc(better, func(id string) bool { return card.ConsumedBy(id) != nil }):
			outcome = OutcomeOneShotSpent
			return nil, nil, nil
		}
		plan, err := v.newPlan(row, sub, bot, card)
		if err != nil {
			return nil, nil, err
		}
		if err := v.Outbox.EffectPlan(ctx, row.Fence(), plan); err != nil {
			return nil, nil, err
		}
		row.Plan = &plan
		event := consumeFrom(card, row, bot, now)
		return card, event, nil
	})
	if le := (*LaunchError)(nil); errors.As(err, &le) {
		return Evaluation{Err: le} // no plan can be made: nothing was spent
	}
	if err != nil {
		return Evaluation{Err: lookup(err)}
	}
	if outcome != "" {
		return v.close(ctx, row, Evaluation{Outcome: outcome})
	}
	if err := v.Outbox.EffectMarkConsumed(ctx, row.Fence()); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	row.ConsumeMarked = true
	if changed.Event != nil {
		v.relay(ctx, row, row.CardID)
	}
	return v.byPlan(ctx, row)
}

// relay relays a card's events. They are durable on the card: the row does not
// wait for them to reach the log.
func (v *Evaluator) relay(ctx context.Context, row *Effect, cardID string) {
	if _, err := v.Board.Relay.Card(ctx, row.TenantID, cardID); err != nil {
		v.Logger.Warn().Err(err).Str("tenant", row.TenantID).Str("effect", row.ID).Str("card", cardID).Msg("worker: the relay did not get through, the sweeper goes on with it")
	}
}

func (v *Evaluator) newPlan(row *Effect, sub *Subscription, bot *Bot, card *tracker.Card) (LaunchPlan, error) {
	if sub.Mode == ModePromote {
		p, err := v.promotion(row, sub)
		return LaunchPlan{BotID: bot.ID, Promote: &p}, err
	}
	body, err := v.renderLaunch(row, sub, bot, card)
	return LaunchPlan{BotID: bot.ID, Body: body}, err
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

// betterTakers looks at the other rows of the same event that want one of this
// row's labels and rank before it: the row waits while one is live, and goes
// without if one spent the label (W7). It returns their ids: the card may know
// of a spending that ended before its row said so.
func (v *Evaluator) betterTakers(ctx context.Context, row *Effect) (ids []string, wait time.Duration, taken bool, err error) {
	rows, err := v.Outbox.EffectListByEvent(ctx, row.TenantID, EffectEventID(row.ID))
	if err != nil {
		return nil, 0, false, err
	}
	for i := range rows {
		o := &rows[i]
		if !ranksBefore(o, row) || !slices.ContainsFunc(o.Consume, func(l string) bool { return foldContains(row.Consume, l) }) {
			continue
		}
		if o.ConsumeMarked {
			return nil, 0, true, nil
		}
		if o.State.Live() {
			wait = takerWait
		}
		ids = append(ids, o.ID)
	}
	return ids, wait, false, nil
}

// close ends a row that is not launched, or holds it. A row that has a plan may
// have a consume or a promotion still on its way (an earlier attempt's, whose
// answer was lost, or a stale worker's): one more write to the card makes that
// fail. If a consume got there first, the label is spent and the row launches
// after all (W7); a promotion that did is one.
func (v *Evaluator) close(ctx context.Context, row *Effect, ev Evaluation) Evaluation {
	if row.Plan == nil {
		return ev
	}
	spent, promoted := false, false
	_, err := v.Board.change(ctx, row.TenantID, row.CardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		spent = card != nil && card.ConsumedBy(row.ID) != nil
		promoted = card != nil && card.PromotedBy == row.IdempotencyKey()
		if card == nil || spent || promoted {
			return nil, nil, nil
		}
		return card, nil, nil
	}, true)
	switch {
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case promoted && !spent:
		return Evaluation{Outcome: OutcomePromoted}
	case !spent:
		return ev
	}
	if err := v.Outbox.EffectMarkConsumed(ctx, row.Fence()); err != nil {
		return Evaluation{Err: lookup(err)}
	}
	row.ConsumeMarked = true
	return v.byPlan(ctx, row)
}

// byPlan ends a spent row by its plan, whatever the subscription and the card
// have become (W6b, W7).
func (v *Evaluator) byPlan(ctx context.Context, row *Effect) Evaluation {
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
	if row.Plan.Promote != nil {
		return v.promote(ctx, row, bot, *row.Plan.Promote)
	}
	return v.launch(ctx, row, bot, row.Plan.Body)
}

// launch makes one request. For a bot that can't be sent the same twice the
// row says so before (W8).
func (v *Evaluator) launch(ctx context.Context, row *Effect, bot *Bot, body string) Evaluation {
	secret, next, err := v.secrets(bot)
	if err != nil {
		return Evaluation{Err: lookup(fmt.Errorf("open the secret of bot %s: %w", bot.ID, err)), Rendered: body}
	}
	if row.Replay == ReplayUnsafe || bot.Replay == ReplayUnsafe {
		// A bot that was safe until now may have had a request already whose
		// answer nobody knows.
		doubt := row.Replay != ReplayUnsafe && row.Attempts > 1
		row.Replay = ReplayUnsafe // from now on, whatever becomes of the bot
		at := v.Board.Clock.Now()
		row.DeliveryStartedAt = at
		err := v.Outbox.EffectStart(ctx, row.Fence(), at, body)
		switch {
		case errors.Is(err, ErrFenceLost):
			return Evaluation{Err: err}
		case err != nil:
			// Nothing was sent, and the mark may be there: the settle takes it off.
			return Evaluation{Err: lookup(fmt.Errorf("keep the start of the delivery: %w", err)), Rendered: body}
		case doubt:
			return Evaluation{Reconcile: true}
		}
	}
	got, err := v.Launcher.Launch(ctx, LaunchRequest{
		Key: row.IdempotencyKey(), Attempt: row.Attempts, Generation: row.Generation,
		URL: bot.URL, Secret: secret, NextSecret: next, Body: body,
		TenantID: row.TenantID, EffectID: row.ID, SubscriptionID: row.SubscriptionID, BotID: bot.ID, TraceParent: row.Event.TraceParent,
	})
	if err != nil {
		return Evaluation{Err: err, Rendered: body}
	}
	return Evaluation{Outcome: OutcomeLaunched, RunID: got.RunID, Rendered: body}
}

// secrets opens what signs the bot's launches; next is nil unless the secret is
// being rotated.
func (v *Evaluator) secrets(bot *Bot) (secret, next []byte, err error) {
	owner := BotOwner(bot.TenantID, bot.ID)
	if secret, err = v.Sealer.Open(owner, bot.Secret); err != nil || bot.NextSecret == "" {
		return secret, nil, err
	}
	next, err = v.Sealer.Open(owner, bot.NextSecret)
	return secret, next, err
}

// Release takes a row's entry off its card's consumptions: called when the row
// is done or discarded (W7), and buries a card that was deleted meanwhile. An
// entry that stays behind is harmless; the janitor takes it off before the row
// goes.
func (v *Evaluator) Release(ctx context.Context, tenantID, cardID, effectID string) error {
	return v.release(ctx, tenantID, cardID, effectID, false)
}

// release is Release; with fence set it writes the card in any case, so that
// whatever an attempt at the row still has on its way to it fails.
func (v *Evaluator) release(ctx context.Context, tenantID, cardID, effectID string, fence bool) error {
	changed, err := v.Board.change(ctx, tenantID, cardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil || (card.ConsumedBy(effectID) == nil && !fence) {
			return nil, nil, nil
		}
		card.Consumed = slices.DeleteFunc(card.Consumed, func(c tracker.Consumption) bool { return c.EffectID == effectID })
		return card, nil, nil
	}, true)
	if err == nil && changed.Card != nil && changed.Card.Deleted {
		_, err = v.Board.Relay.Card(ctx, tenantID, cardID)
	}
	return err
}

// BotOwner is what a bot's secret is sealed for.
func BotOwner(tenantID, id string) string { return tenantID + "/bot/" + id }

// HookOwner is what a hook's secret is sealed for.
func HookOwner(tenantID, id string) string { return tenantID + "/hook/" + id }
