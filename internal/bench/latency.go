package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// latency measures the time from a change to its launch at a steady rate: once
// by the replica that makes the changes, and once while nobody tells the
// replicas of them, as when another one makes them.
func (r *run) latency(ctx context.Context) error {
	for _, other := range []bool{false, true} {
		r.Progress("%.0f changes a second for %s, %s", r.Rate, r.RateFor, map[bool]string{false: "by the replica itself", true: "by another"}[other])
		l, err := r.steady(ctx, other)
		if err != nil {
			return fmt.Errorf("latency: %w", err)
		}
		if other {
			r.report.LatencyOther = l
		} else {
			r.report.Latency = l
		}
	}
	return nil
}

func (r *run) steady(ctx context.Context, other bool) (*Latency, error) {
	r.launched.forget()
	e, err := r.start(ctx, tailAndWorker)
	if err != nil {
		return nil, err
	}
	defer e.stop()
	board := *r.emitter.board
	if !other {
		relay := &trigger.Relay{Cards: r.store, Log: r.store, Heads: r.store, Logger: zerolog.Nop(), Wake: e.tails[0].Wake}
		board.Relay = relay
	}
	var g errgroup.Group
	g.SetLimit(256)
	began, owed := time.Now(), 0
	for n := 0; ; n++ {
		due := began.Add(time.Duration(float64(n) / r.Rate * float64(time.Second)))
		if due.Sub(began) >= r.RateFor {
			break
		}
		if err := sleepUntil(ctx, due); err != nil {
			return nil, err
		}
		tenant := n % r.Tenants
		card, label, one := r.emitter.next(tenant)
		owed += one
		if one == 1 {
			// From when the change was due, not from when this loop came to it.
			r.launched.await(tenantID(tenant), card, due)
		}
		g.Go(func() error {
			if _, err := board.Change(ctx, tenantID(tenant), card, made(label)); err != nil {
				return err
			}
			_, err := board.Relay.Card(ctx, tenantID(tenant), card)
			return err
		})
		r.emitter.made++
	}
	r.emitter.owed += owed
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := e.settled(ctx, owed); err != nil {
		return nil, err
	}
	took, missing := r.launched.awaited()
	if missing > 0 {
		return nil, fmt.Errorf("%d launches are missing", missing)
	}
	return newLatency(took), nil
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verify sees that each effect that is owed is done, and was launched once.
func (r *run) verify(ctx context.Context) error {
	r.Progress("verify")
	launched, err := r.launched.once()
	if err != nil {
		return err
	}
	if launched != r.emitter.owed {
		return fmt.Errorf("%d effects were launched, %d are owed", launched, r.emitter.owed)
	}
	done := 0
	for tenant := range r.Tenants {
		after := ""
		for {
			rows, err := r.store.EffectList(ctx, trigger.EffectListParams{TenantID: tenantID(tenant), AfterID: after, Limit: 5000})
			if err != nil {
				return fmt.Errorf("verify: %w", err)
			}
			for i := range rows {
				if rows[i].State != trigger.StateDone || rows[i].Outcome != trigger.OutcomeLaunched {
					return fmt.Errorf("effect %s is %s %s", rows[i].ID, rows[i].State, rows[i].Outcome)
				}
			}
			done += len(rows)
			if len(rows) < 5000 {
				break
			}
			after = rows[len(rows)-1].ID
		}
	}
	if done != r.emitter.owed {
		return fmt.Errorf("%d effects are done, %d are owed", done, r.emitter.owed)
	}
	return nil
}
