package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// emitters is how many callers change cards at once.
const emitters = 4

const quiet = "quiet" // a label that fires nothing

func tenantID(i int) string { return fmt.Sprintf("bench-%05d", i) }

func botID(i int) string { return fmt.Sprint("bot-", i) }

func subID(i int) string { return fmt.Sprint("sub-", i) }

func labelOf(i int) string { return fmt.Sprint("take-", i) }

func (r *run) makeSealer() error {
	r.sealKey = seal.NewKey()
	key, err := seal.ParseKey(r.sealKey)
	if err != nil {
		return err
	}
	r.sealer, err = seal.New(key)
	return err
}

// configure makes the tenants, each with a board, its bots and its
// subscriptions; subscription i wants the label of its own.
func (r *run) configure(ctx context.Context) error {
	if err := r.makeSealer(); err != nil {
		return err
	}
	storm := trigger.MaxPerMinuteMax
	var g errgroup.Group
	g.SetLimit(8)
	for i := range r.Tenants {
		g.Go(func() error {
			id := tenantID(i)
			if err := r.store.TenantSave(ctx, &trigger.Tenant{ID: id, Name: id, Revision: 1}); err != nil {
				return err
			}
			if _, err := r.store.HeadLift(ctx, id); err != nil {
				return err
			}
			if err := r.store.BoardSave(ctx, &tracker.Board{
				TenantID: id, ID: "board", Name: "board", Columns: []tracker.Column{{ID: "ready", Name: "Ready"}}, Revision: 1,
			}); err != nil {
				return err
			}
			for j := range r.Bots {
				sealed, err := r.sealer.Seal(trigger.BotOwner(id, botID(j)), []byte("a secret of the bench's own, 32 b"))
				if err != nil {
					return err
				}
				if err := r.store.BotSave(ctx, &trigger.Bot{
					TenantID: id, ID: botID(j), Name: botID(j), URL: r.botURL(), Replay: trigger.ReplaySafe, Secret: sealed, Revision: 1,
				}); err != nil {
					return err
				}
			}
			for j := range r.Subscriptions {
				name := subID(j)
				if err := r.store.SubscriptionSave(ctx, &trigger.Subscription{
					TenantID: id, ID: name, Name: name, Enabled: true, BotID: botID(j % r.Bots), MaxPerMinute: &storm, Revision: 1,
					If: trigger.Conditions{Columns: []string{"ready"}, LabelsAll: []string{labelOf(j)}},
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	relay := &trigger.Relay{Cards: r.store, Log: r.store, Heads: r.store, Logger: zerolog.Nop()}
	r.emitter = &emitter{
		run: r, board: &trigger.Board{Cards: r.store, Log: r.store, Clock: r.store, Relay: relay}, cards: make([]int, r.Tenants),
	}
	return nil
}

// emitter changes cards through the store, as the API and the webhooks do.
type emitter struct {
	run   *run
	board *trigger.Board
	cards []int // of each tenant, so far
	made  int   // of all
	owed  int
}

// matches reports whether the card of that number fires a subscription: the
// ratio of all do, evenly spread.
func (e *emitter) matches(n int) bool {
	r := e.run.MatchRatio
	return int(float64(n+1)*r) > int(float64(n)*r)
}

// next names a tenant's next card and its label.
func (e *emitter) next(tenant int) (cardID, label string, owed int) {
	n := e.cards[tenant]
	e.cards[tenant]++
	label = quiet
	if e.matches(n) {
		label, owed = labelOf(n%e.run.Subscriptions), 1
	}
	return fmt.Sprintf("card-%07d", n), label, owed
}

func made(label string) tracker.Changer {
	return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card != nil {
			return nil, nil, fmt.Errorf("card %s is there", card.ID)
		}
		return &tracker.Card{BoardID: "board", ColumnID: "ready", Title: "A card of the bench", Labels: []string{label}},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "bench"}}, nil
	}
}

// slice makes n cards, spread over the tenants, and returns how many effects
// their events owe. Cards of one label go in calls of up to ChangeManyMax.
func (e *emitter) slice(ctx context.Context, n int) (owed int, err error) {
	var g errgroup.Group
	g.SetLimit(emitters)
	for tenant := range e.run.Tenants {
		count := n*(tenant+1)/e.run.Tenants - n*tenant/e.run.Tenants
		byLabel := make(map[string][]string)
		for range count {
			card, label, one := e.next(tenant)
			byLabel[label] = append(byLabel[label], card)
			owed += one
		}
		g.Go(func() error {
			for label, cards := range byLabel {
				for len(cards) > 0 {
					call := cards[:min(len(cards), trigger.ChangeManyMax)]
					cards = cards[len(call):]
					done, err := e.board.ChangeMany(ctx, tenantID(tenant), call, made(label))
					if err != nil {
						return err
					}
					for _, c := range done {
						if c.Err != nil {
							return c.Err
						}
					}
				}
			}
			return nil
		})
	}
	e.made += n
	e.owed += owed
	return owed, g.Wait()
}
