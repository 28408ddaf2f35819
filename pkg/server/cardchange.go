package server

import (
	"context"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// edit changes a card and returns the event that tells of it; nil if there is
// nothing to change. It may be called again, as a tracker.Changer may.
type edit func(ctx context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error)

// changer makes a change by the caller of an edit: of a card that is there, at
// the revision that was asked for (E1).
func (a *API) changer(ctx context.Context, tenantID, cardID string, match *MatchInput, before **tracker.Card, f edit) tracker.Changer {
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return nil, nil, tracker.ErrNotFound
		}
		if err := match.check(card.Rev, false); err != nil {
			return nil, nil, err
		}
		*before = card.Clone()
		event, err := f(ctx, card, now)
		if err != nil || event == nil {
			return nil, nil, err
		}
		event.Actor = actor(ctx)
		if event.Actor.Kind == tracker.ActorBot {
			// It may be the answer to a launch: a loop is told by its cause.
			if event.Cause, err = trigger.InheritedCause(ctx, a.Store, tenantID, card.BoardID, cardID, now); err != nil {
				return nil, nil, err
			}
		}
		return card, event, nil
	}
}

// changeCard makes a change and answers with the card.
func (a *API) changeCard(ctx context.Context, in *CardInput, match *MatchInput, f edit) (*tagged[Card], error) {
	changed, err := a.cardChange(ctx, in, match, f)
	if err != nil {
		return nil, a.fail(inBody(err))
	}
	return &tagged[Card]{etag(changed.Card.Rev), newCard(changed.Card)}, nil
}

// cardChange makes a change, and has it relayed once it is durable.
func (a *API) cardChange(ctx context.Context, in *CardInput, match *MatchInput, f edit) (tracker.Changed, error) {
	wctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	var before *tracker.Card
	changed, err := a.Board.Change(wctx, in.Tenant, in.Card, a.changer(wctx, in.Tenant, in.Card, match, &before, f))
	if err != nil || !changed.Written {
		return changed, err
	}
	noteCard(ctx, before, changed.Card)
	a.relay(ctx, in.Tenant, in.Card)
	return changed, nil
}

// noteCard notes a change of a card: its body, which may be large, only where
// that was changed.
func noteCard(ctx context.Context, before, after *tracker.Card) {
	was, is := newCard(before), newCard(after)
	if was.Body == is.Body {
		was.Body, is.Body = "", ""
	}
	if after.Deleted {
		noteChange(ctx, "card", after.ID, was, nil)
		return
	}
	noteChange(ctx, "card", after.ID, was, is)
}

// CardEditBody is what of a card is to be edited.
type CardEditBody struct {
	Title *string `json:"title,omitempty" minLength:"1" maxLength:"1024" doc:"at most 1024 bytes"`
	Body  *string `json:"body,omitempty" maxLength:"262144" format:"multiline" doc:"at most 256 KiB"`
}

// PlaceBody says where in its column a card is to stand: one of the three.
type PlaceBody struct {
	After  string `json:"after,omitempty" maxLength:"255" pattern:"^[A-Za-z0-9@~-]*$" doc:"right below the card with this id"`
	Before string `json:"before,omitempty" maxLength:"255" pattern:"^[A-Za-z0-9@~-]*$" doc:"right above the card with this id"`
	At     string `json:"at,omitempty" enum:"top,bottom"`
}

// place translates it; none says that nothing was named.
func (p *PlaceBody) place() (place trigger.Place, none bool, err error) {
	named := 0
	for _, s := range []string{p.After, p.Before, p.At} {
		if s != "" {
			named++
		}
	}
	if named > 1 {
		return place, false, tracker.Fieldf("at", "name one of after, before and at")
	}
	return trigger.Place{After: p.After, Before: p.Before, Top: p.At == "top"}, named == 0, nil
}

// MoveBody says where a card is to go.
type MoveBody struct {
	ColumnID string `json:"column_id" minLength:"1" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]*$" doc:"a column of the card's board"`
	PlaceBody
}

// NamesBody are labels or assignees that come and go.
type NamesBody struct {
	Add    []NameText `json:"add,omitempty" maxItems:"100"`
	Remove []NameText `json:"remove,omitempty" maxItems:"100"`
}

// check refuses what says nothing, or two things of one name.
func (b *NamesBody) check() error {
	add, remove := texts[string](b.Add), texts[string](b.Remove)
	if len(add)+len(remove) == 0 {
		return tracker.Fieldf("add", "name something to add or to remove")
	}
	for at, list := range map[string][]string{"add": add, "remove": remove} {
		if len(tracker.UniqueFold(list)) != len(list) {
			return tracker.Fieldf(at, "each once, and none of them blank; upper and lower case are one")
		}
	}
	if both := slices.Concat(add, remove); len(tracker.UniqueFold(both)) != len(both) {
		return tracker.Fieldf("remove", "must not name what is to be added")
	}
	return nil
}

func (a *API) registerCardChanges(api huma.API) {
	huma.Patch(api, "/v1/tenants/{tenant}/cards/{card}", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body CardEditBody
	},
	) (*tagged[Card], error) {
		if in.Body.Title == nil && in.Body.Body == nil {
			return nil, a.fail(tracker.Fieldf("body", "name a title or a body"))
		}
		return a.changeCard(ctx, &in.CardInput, &in.MatchInput, in.Body.edit)
	}, named("edit-card", "Change a card's title or body."), cardBody)

	huma.Post(api, "/v1/tenants/{tenant}/cards/{card}/move", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body MoveBody
	},
	) (*tagged[Card], error) {
		place, none, err := in.Body.place()
		if err != nil {
			return nil, a.fail(inBody(err))
		}
		return a.changeCard(ctx, &in.CardInput, &in.MatchInput, move(in.Body.ColumnID, func(ctx context.Context, card *tracker.Card, now time.Time) (string, error) {
			if err := a.column(ctx, in.Tenant, card.BoardID, in.Body.ColumnID); err != nil {
				return "", err
			}
			if none && card.ColumnID == in.Body.ColumnID {
				return card.Position, nil
			}
			return a.Board.Position(ctx, card, in.Body.ColumnID, place, now)
		}))
	}, named("move-card", "Move a card to a column of its board: to its bottom, unless a place is named."), write)

	huma.Post(api, "/v1/tenants/{tenant}/cards/{card}/reorder", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body PlaceBody
	},
	) (*tagged[Card], error) {
		place, none, err := in.Body.place()
		if none {
			err = tracker.Fieldf("at", "name one of after, before and at")
		}
		if err != nil {
			return nil, a.fail(inBody(err))
		}
		return a.changeCard(ctx, &in.CardInput, &in.MatchInput, func(ctx context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error) {
			position, err := a.Board.Position(ctx, card, card.ColumnID, place, now)
			if err != nil || position == card.Position {
				return nil, err
			}
			card.Position = position
			return &tracker.BoardEvent{Kind: tracker.KindReordered}, nil
		})
	}, named("reorder-card", "Put a card elsewhere in its column."), write)

	huma.Post(api, "/v1/tenants/{tenant}/cards/{card}/labels", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body NamesBody
	},
	) (*tagged[Card], error) {
		if err := in.Body.check(); err != nil {
			return nil, a.fail(inBody(err))
		}
		return a.changeCard(ctx, &in.CardInput, &in.MatchInput, in.Body.label)
	}, named("label-card", "Add labels and take some off, in one change."), labelsBody)

	huma.Post(api, "/v1/tenants/{tenant}/cards/{card}/assignees", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
		Body NamesBody
	},
	) (*tagged[Card], error) {
		if err := in.Body.check(); err != nil {
			return nil, a.fail(inBody(err))
		}
		return a.changeCard(ctx, &in.CardInput, &in.MatchInput, in.Body.assign)
	}, named("assign-card", "Assign a card, and take assignments back, in one change."), labelsBody)

	huma.Delete(api, "/v1/tenants/{tenant}/cards/{card}", func(ctx context.Context, in *struct {
		CardInput
		MatchInput
	},
	) (*none, error) {
		_, err := a.cardChange(ctx, &in.CardInput, &in.MatchInput, func(_ context.Context, card *tracker.Card, _ time.Time) (*tracker.BoardEvent, error) {
			card.Deleted = true
			return &tracker.BoardEvent{Kind: tracker.KindDeleted, FromColumn: card.ColumnID}, nil
		})
		if err != nil {
			return nil, a.fail(err)
		}
		return nil, nil
	}, named("delete-card", "Delete a card. What effects owe for it goes on, or ends with `card_gone`."))
}

// labelsBody bounds a body with two lists of a hundred names.
func labelsBody(o *huma.Operation) { o.MaxBodyBytes = 256 << 10 }

func delta(now time.Time) tracker.Stamp { return tracker.Stamp{At: now, Delta: true} }

func (b *CardEditBody) edit(_ context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error) {
	changed := false
	if b.Title != nil && *b.Title != card.Title {
		card.Title, card.Stamps.Title, changed = *b.Title, delta(now), true
	}
	if b.Body != nil && *b.Body != card.Body {
		card.Body, card.Stamps.Body, changed = *b.Body, delta(now), true
	}
	if !changed {
		return nil, nil
	}
	return &tracker.BoardEvent{Kind: tracker.KindEdited}, nil
}

// position tells where in a column a card is to stand.
type position func(ctx context.Context, card *tracker.Card, now time.Time) (string, error)

// move moves a card to a column that its board has.
func move(columnID string, at position) edit {
	return func(ctx context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error) {
		position, err := at(ctx, card, now)
		if err != nil || (card.ColumnID == columnID && card.Position == position) {
			return nil, err
		}
		card.Position = position
		if card.ColumnID == columnID {
			return &tracker.BoardEvent{Kind: tracker.KindReordered}, nil
		}
		event := &tracker.BoardEvent{Kind: tracker.KindMoved, FromColumn: card.ColumnID, ToColumn: columnID}
		card.ColumnID, card.Stamps.Column = columnID, delta(now)
		return event, nil
	}
}

// label is one change and so one event, which names what came and what went:
// where something came it is a labeling.
func (b *NamesBody) label(_ context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error) {
	event := &tracker.BoardEvent{Kind: tracker.KindUnlabeled}
	event.Removed = card.RemoveLabels(texts[string](b.Remove), func(l string) tracker.LabelStamp { return tracker.LabelStamp{Label: l, Stamp: delta(now)} })
	for _, l := range tracker.UniqueFold(texts[string](b.Add)) {
		if card.HasLabel(l) {
			continue
		}
		card.Labels = append(card.Labels, l)
		card.Stamps.SetLabel(tracker.LabelStamp{Label: l, Present: true, Stamp: delta(now)})
		event.Kind, event.Added = tracker.KindLabeled, append(event.Added, l)
	}
	if len(card.Labels) > tracker.LabelsMax {
		return nil, tracker.Fieldf("add", "a card may have %d labels", tracker.LabelsMax)
	}
	return orNone(event), nil
}

// assign is to assignees what label is to labels.
func (b *NamesBody) assign(_ context.Context, card *tracker.Card, now time.Time) (*tracker.BoardEvent, error) {
	event := &tracker.BoardEvent{Kind: tracker.KindUnassigned}
	event.Removed = card.RemoveAssignees(texts[string](b.Remove))
	event.Added = card.AddAssignees(texts[string](b.Add))
	if len(event.Added) > 0 {
		event.Kind = tracker.KindAssigned
	}
	if len(card.Assignees) > tracker.AssigneesMax {
		return nil, tracker.Fieldf("add", "a card may have %d assignees", tracker.AssigneesMax)
	}
	if event = orNone(event); event != nil {
		card.Stamps.Assignees, card.Stamps.AssigneeTies = delta(now), nil
	}
	return event, nil
}

// orNone returns no event for one that names nothing.
func orNone(event *tracker.BoardEvent) *tracker.BoardEvent {
	if len(event.Added)+len(event.Removed) == 0 {
		return nil
	}
	return event
}
