package trigger

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func (v *Evaluator) promotion(row *Effect, s *Subscription) (Promotion, error) {
	r, err := v.render(row, s)
	return Promotion{Args: maps.Clone(r.args), ToColumn: s.ToColumn}, err
}

// promote stamps the bot and its arguments onto the row's card, and moves it if
// the promotion says so, by one write. A card that carries the bot already is
// left as it is, and so is one that this row promoted before, or that a later
// event's row did: what people did since stays. The plan is kept on the row, under
// its claim, after the card was read and before it is written, so that the write
// of a worker whose claim was taken over meanwhile fails on the card's rev.
func (v *Evaluator) promote(ctx context.Context, row *Effect, bot *Bot, p Promotion) Evaluation {
	gone := false
	changed, err := v.Board.Change(ctx, row.TenantID, row.CardID, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		gone = card == nil
		if gone || card.BotID == bot.ID || card.PromotedBy == row.IdempotencyKey() ||
			(row.Generation == 0 && card.PromotedSeq > row.EventSeq) {
			return nil, nil, nil
		}
		event := &tracker.BoardEvent{
			Kind: tracker.KindPromoted, Actor: tracker.Actor{Kind: tracker.ActorBot, ID: bot.ID, Name: bot.Name},
			Cause: row.Event.Cause.Then(row.SubscriptionID, row.CardID),
		}
		if p.ToColumn != "" && p.ToColumn != card.ColumnID {
			if err := v.hasColumn(ctx, row.TenantID, card.BoardID, p.ToColumn); err != nil {
				return nil, nil, err
			}
			event.Kind, event.FromColumn, event.ToColumn = tracker.KindMoved, card.ColumnID, p.ToColumn
			card.ColumnID = p.ToColumn
		}
		card.BotID, card.BotArgs = bot.ID, maps.Clone(p.Args)
		card.PromotedBy, card.PromotedSeq = row.IdempotencyKey(), row.EventSeq
		// The plan says to whoever takes over that a write may be on its way.
		plan := LaunchPlan{BotID: bot.ID, Promote: &p}
		if err := v.Outbox.EffectPlan(ctx, row.Fence(), plan); err != nil {
			return nil, nil, err
		}
		row.Plan = &plan
		return card, event, nil
	})
	var le *LaunchError
	switch {
	case errors.As(err, &le):
		return Evaluation{Err: err}
	case err != nil:
		return Evaluation{Err: lookup(err)}
	case gone:
		return Evaluation{Outcome: OutcomeCardGone}
	}
	if changed.Event != nil {
		v.relay(ctx, row, row.CardID)
	}
	return Evaluation{Outcome: OutcomePromoted}
}

// hasColumn fails for good when the board has no such column.
func (v *Evaluator) hasColumn(ctx context.Context, tenantID, boardID, columnID string) error {
	board, err := v.Config.BoardGet(ctx, tenantID, boardID)
	if errors.Is(err, tracker.ErrNotFound) {
		return permanentError("the card's board %s is gone", boardID)
	}
	if err != nil {
		return err
	}
	if board.Column(columnID) == nil {
		return permanentError("board %s has no column %s", boardID, columnID)
	}
	return nil
}
