package trigger

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/internal/startstop"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// Defaults of the sweeper.
const (
	SweepEveryDefault = 2 * time.Second
	SweepAfterDefault = 5 * time.Second
	sweepPage         = 100
)

// Sweeper relays what a crash left pending on cards (E3). Any number of
// sweepers may run: each moves a card's mark forward by CAS before it works,
// so that they don't pile on one card.
type Sweeper struct {
	Cards  tracker.CardStore
	Relay  *Relay
	Clock  Clock
	Logger zerolog.Logger
	// Every is how often to look; After is how old a mark must be.
	Every, After time.Duration

	service startstop.Service
}

// Start starts the loop; it returns once it runs.
func (s *Sweeper) Start(ctx context.Context) error { return s.service.Start(ctx, s.run) }

// Stop ends the loop and waits for the relay under way.
func (s *Sweeper) Stop() { s.service.Stop() }

func (s *Sweeper) run(ctx context.Context) {
	var wait nudge
	for ctx.Err() == nil {
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn().Err(err).Msg("sweeper: a round failed, the next one goes on")
		}
		wait.Wait(ctx, jitter(orDefault(s.Every, SweepEveryDefault)))
	}
}

// Sweep relays each card whose mark is old enough, in pages, and returns how
// many it took on. A card that fails keeps its moved mark, and is due again.
func (s *Sweeper) Sweep(ctx context.Context) (swept int, err error) {
	for {
		now := s.Clock.Now()
		page, err := s.Cards.CardsPending(ctx, now.Add(-orDefault(s.After, SweepAfterDefault)), sweepPage)
		if err != nil {
			return swept, err
		}
		var errs []error
		for _, p := range page {
			mine, err := s.Cards.CardPendingTouch(ctx, p, now)
			if err == nil && mine {
				swept++
				_, err = s.Relay.Card(ctx, p.TenantID, p.CardID)
			}
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil || len(page) < sweepPage {
			return swept, err
		}
	}
}
