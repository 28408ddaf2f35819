package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// attempt claims the row, whoever held it, evaluates and settles it, as a
// worker does. Cuts may end it at any durable write.
func (b *bundle) attempt(t *testing.T, id string) (trigger.Evaluation, error) {
	t.Helper()
	ctx := t.Context()
	p := b.claimParams(b.row(t, id).Lane, 100, -time.Second) // the lease is over at once: the next attempt takes it over
	rows, err := b.real.EffectClaim(ctx, p)
	require.NoError(t, err)
	i := slices.IndexFunc(rows, func(r trigger.Effect) bool { return r.ID == id })
	if i < 0 {
		// Reclaimed by hand, so that attempts don't run out.
		got, err := b.real.EffectReclaim(ctx, trigger.ClaimParams{
			TenantID: tenant, Lane: p.Lane, Worker: "w2", ClaimID: uuid.NewString(), Now: p.Now, LeaseEnd: p.LeaseEnd, Limit: 1,
		})
		require.NoError(t, err)
		require.NotNil(t, got)
		rows, i = []trigger.Effect{*got}, 0
	}
	row := rows[i]
	ev := b.evaluator().Evaluate(ctx, &row)
	if ev.Err != nil {
		return ev, ev.Err
	}
	s := trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateDone, Outcome: ev.Outcome, RunID: ev.RunID}
	if ev.Wait > 0 {
		s.To, s.NotBefore, s.HandBack = trigger.StatePending, b.real.Now(), true
	}
	stands, err := b.EffectSettleMany(ctx, []trigger.Settle{s})
	if err != nil {
		return ev, err
	}
	require.True(t, stands[0])
	return ev, nil
}

// fired prepares one card whose event owes one one-shot row, and returns it.
func (b *bundle) fired(t *testing.T, card string) trigger.Effect {
	t.Helper()
	b.create(t, card, "open", "ship-it", "bug")
	b.relayed(t, card)
	b.drain(t)
	rows := b.rows(t)
	i := slices.IndexFunc(rows, func(r trigger.Effect) bool { return r.CardID == card })
	require.GreaterOrEqual(t, i, 0)
	return rows[i]
}

// spends counts the card's unlabeled events, in the log or still pending.
func (b *bundle) spends(t *testing.T, card string) (n int) {
	t.Helper()
	b.relayed(t, card)
	for _, e := range b.events(t) {
		if e.CardID == card && e.Kind == tracker.KindUnlabeled && e.Actor.Kind == tracker.ActorBot {
			n++
		}
	}
	return n
}

// bodies returns the distinct bodies and keys launched for the row.
func (b *bundle) launchesOf(id string) (n int, bodies []string) {
	for _, r := range b.launches.all() {
		if r.Key == id {
			n++
			if !slices.Contains(bodies, r.Body) {
				bodies = append(bodies, r.Body)
			}
		}
	}
	return n, bodies
}

// crashEverywhere runs the row of a fresh card for every cut point: cut there,
// meanwhile, then run to rest by a fresh worker; then check.
func crashEverywhere(t *testing.T, b *bundle, meanwhile func(card string), check func(row *trigger.Effect)) {
	t.Helper()
	for n := 0; ; n++ {
		require.Less(t, n, 100)
		card := fmt.Sprint("card", n)
		id := b.fired(t, card).ID
		seen := 0
		b.setCut(dieAt(n, &seen))
		_, err := b.attempt(t, id)
		b.setCut(nil)
		if err != nil {
			require.ErrorIs(t, err, errCut)
		}
		b.closeHoles(t)
		meanwhile(card)
		if b.row(t, id).State != trigger.StateDone {
			_, err := b.attempt(t, id)
			require.NoError(t, err)
		}
		require.Equal(t, trigger.StateDone, b.row(t, id).State, "cut %d", n)
		check(b.row(t, id))
		if seen <= n {
			require.Greater(t, n, 8, "there is something to cut")
			return // the cut was past the last point
		}
	}
}

// closeHoles gives up the seqs that a cut relay left without an event, so that
// the log goes on.
func (b *bundle) closeHoles(t *testing.T) {
	t.Helper()
	head, err := b.real.HeadGet(t.Context(), tenant)
	require.NoError(t, err)
	seqs := make([]int64, head.Seq)
	for i := range seqs {
		seqs[i] = int64(i) + 1
	}
	require.NoError(t, b.real.EventFillVoids(t.Context(), tenant, seqs))
}

func testW7Crash(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("Ship-It"))
	crashEverywhere(t, b, func(string) {}, func(row *trigger.Effect) {
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		require.True(t, row.ConsumeMarked)
		require.Equal(t, 1, b.spends(t, row.CardID), "spent once")
		n, bodies := b.launchesOf(row.ID)
		require.GreaterOrEqual(t, n, 1)
		require.Len(t, bodies, 1, "every attempt sends the same bytes")
		require.Equal(t, row.Plan.Body, bodies[0])
		card, err := b.real.CardGet(t.Context(), tenant, row.CardID)
		require.NoError(t, err)
		require.Equal(t, []string{"bug"}, card.Labels)
		require.Equal(t, row.ID, card.Stamps.Label("ship-it").SpentBy)
	})
}

func testW7AddedAgain(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	crashEverywhere(t, b, func(card string) {
		// A person puts the label on again, if it is off: that is a new event.
		b.change(t, card, addLabel("ship-it"))
	}, func(row *trigger.Effect) {
		require.Equal(t, trigger.OutcomeLaunched, row.Outcome)
		require.Equal(t, 1, b.spends(t, row.CardID), "spent once for this effect, whatever the labels say now")
		b.drain(t)
		rows := slices.DeleteFunc(b.rows(t), func(r trigger.Effect) bool { return r.CardID != row.CardID })
		card, err := b.real.CardGet(t.Context(), tenant, row.CardID)
		require.NoError(t, err)
		if card.HasLabel("ship-it") {
			require.Len(t, rows, 2, "the label that was added again owes an effect of its own")
		} else {
			require.Len(t, rows, 1)
		}
		for _, r := range rows {
			if r.State != trigger.StateDone {
				_, err := b.attempt(t, r.ID)
				require.NoError(t, err)
			}
		}
	})
}

func testW7SubGone(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	toggle := func(enabled bool) {
		sub.Enabled = enabled
		sub.Revision++
		require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	}
	crashEverywhere(t, b, func(string) { toggle(false) }, func(row *trigger.Effect) {
		n, bodies := b.launchesOf(row.ID)
		if b.spends(t, row.CardID) == 0 {
			require.Equal(t, trigger.OutcomeSubscriptionDisabled, row.Outcome)
			require.Zero(t, n)
		} else {
			require.Equal(t, trigger.OutcomeLaunched, row.Outcome, "a spent label launches, whatever became of the subscription")
			require.Len(t, bodies, 1)
		}
		toggle(true)
	})
}

func testW7OnItsWay(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.bot(t, "bot1")
	sub := b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	id := b.fired(t, "c1").ID
	// The consume of a first attempt is held up on its way to the store.
	var onItsWay func() error
	b.holdCardWrite = func(apply func() error) error {
		onItsWay = apply
		return errCut
	}
	seen := 0
	b.setCut(func(point string) error {
		if point == "CardGet:before" && onItsWay != nil {
			seen++
			return errCut // the process does not see the card again
		}
		return nil
	})
	_, err := b.attempt(t, id)
	require.ErrorIs(t, err, errCut)
	require.Positive(t, seen)
	b.setCut(nil)
	b.holdCardWrite = nil
	require.NotNil(t, b.row(t, id).Plan)
	// The subscription is disabled; the row closes unlaunched.
	sub.Enabled, sub.Revision = false, 2
	require.NoError(t, b.real.SubscriptionSave(ctx, sub))
	_, err = b.attempt(t, id)
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, b.row(t, id).Outcome)
	// Now the write arrives: it must fail, or the label were spent for nothing.
	require.ErrorIs(t, onItsWay(), tracker.ErrConflict)
	card, err := b.real.CardGet(ctx, tenant, "c1")
	require.NoError(t, err)
	require.True(t, card.HasLabel("ship-it"))
	require.Empty(t, b.launches.all())
}

func testW7Rank(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s-late", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Rank = 2 })
	b.subscribe(t, "s-none", "ship-it")
	b.subscribe(t, "s-first", "ship-it", oneShot("SHIP-IT"), func(s *trigger.Subscription) { s.Rank = 1 })
	event := b.fired(t, "c1").Event
	id := func(sub string) string { return trigger.EffectID(event.ID(), sub) }

	ev, err := b.attemptOnly(t, id("s-late"))
	require.NoError(t, err)
	require.Positive(t, ev.Wait, "waits while the better-ranked row is live")
	require.Equal(t, trigger.StatePending, b.row(t, id("s-late")).State)
	require.Zero(t, b.row(t, id("s-late")).Attempts)

	for _, sub := range []string{"s-none", "s-first", "s-late"} {
		_, err := b.attemptOnly(t, id(sub))
		require.NoError(t, err)
	}
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, id("s-first")).Outcome)
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, id("s-none")).Outcome)
	require.Equal(t, trigger.OutcomeOneShotSpent, b.row(t, id("s-late")).Outcome)
	require.Equal(t, 1, b.spends(t, "c1"))

	// If the better-ranked one ended without the label, the next goes on.
	sub, err := b.real.SubscriptionGet(t.Context(), tenant, "s-first")
	require.NoError(t, err)
	event = b.fired(t, "c2").Event
	sub.Enabled, sub.Revision = false, sub.Revision+1
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	_, err = b.attemptOnly(t, id("s-first"))
	require.NoError(t, err)
	_, err = b.attemptOnly(t, id("s-late"))
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeSubscriptionDisabled, b.row(t, id("s-first")).Outcome)
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, id("s-late")).Outcome)
}

// attemptOnly attempts one row of a lane that holds several: the others are
// handed back untouched.
func (b *bundle) attemptOnly(t *testing.T, id string) (trigger.Evaluation, error) {
	t.Helper()
	ctx := t.Context()
	rows, err := b.real.EffectClaim(ctx, b.claimParams(b.row(t, id).Lane, 100, time.Hour))
	require.NoError(t, err)
	for _, row := range rows {
		if row.ID != id {
			require.True(t, b.settle(t, trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, NotBefore: b.real.Now(), HandBack: true}))
		}
	}
	i := slices.IndexFunc(rows, func(r trigger.Effect) bool { return r.ID == id })
	require.GreaterOrEqual(t, i, 0)
	row := rows[i]
	ev := b.evaluator().Evaluate(ctx, &row)
	if ev.Err != nil {
		return ev, ev.Err
	}
	s := trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateDone, Outcome: ev.Outcome, RunID: ev.RunID}
	if ev.Wait > 0 {
		s.To, s.NotBefore, s.HandBack = trigger.StatePending, b.real.Now(), true
	}
	require.True(t, b.settle(t, s))
	return ev, nil
}

func testW7Other(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	b.subscribe(t, "s2", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindEdited} })
	// Two events, each of which owes an effect that wants the one label.
	first := b.fired(t, "c1")
	b.change(t, "c1", retitle("new"))
	b.relayed(t, "c1")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 2)
	_, err := b.attemptOnly(t, first.ID)
	require.NoError(t, err)
	_, err = b.attemptOnly(t, rows[1].ID)
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, rows[0].ID).Outcome)
	require.Equal(t, trigger.OutcomeOneShotSpent, b.row(t, rows[1].ID).Outcome)

	// A label that a person took off is no reason not to launch.
	row := b.fired(t, "c2")
	b.change(t, "c2", func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		removed := card.RemoveLabels([]string{"ship-it"}, func(l string) tracker.LabelStamp {
			return tracker.LabelStamp{Label: l, Stamp: tracker.Stamp{At: now, Delta: true}}
		})
		return card, &tracker.BoardEvent{Kind: tracker.KindUnlabeled, Removed: removed, Actor: human}, nil
	})
	_, err = b.attemptOnly(t, row.ID)
	require.NoError(t, err)
	require.Equal(t, trigger.OutcomeLaunched, b.row(t, row.ID).Outcome)
	require.Zero(t, b.spends(t, "c2"))
	// Trouble on the way to the bot keeps the row and the plan.
	row = b.fired(t, "c3")
	b.launches.err = &trigger.LaunchError{Message: "status 503"}
	_, err = b.attempt(t, row.ID)
	var le *trigger.LaunchError
	require.ErrorAs(t, err, &le)
	require.True(t, b.row(t, row.ID).ConsumeMarked)
	b.launches.err = nil
	_, err = b.attempt(t, row.ID)
	require.NoError(t, err)
	require.Equal(t, 1, b.spends(t, "c3"))
}

func testW7Skew(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"))
	// The forge's clock is ahead: the labeling is of a time that the database
	// has not reached.
	at := b.real.Now().Add(5 * time.Second).Truncate(time.Second)
	labeled := tracker.LabelStamp{Label: "ship-it", Present: true, Stamp: tracker.Stamp{At: at, Delta: true, Tie: "1"}}
	b.change(t, "c1", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card := &tracker.Card{BoardID: "b1", ColumnID: "open", Title: "t", Labels: []string{"ship-it"}}
		card.Stamps.SetLabel(labeled)
		return card, &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human}, nil
	})
	b.relayed(t, "c1")
	b.drain(t)
	_, err := b.attempt(t, b.rows(t)[0].ID)
	require.NoError(t, err)
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.False(t, labeled.Stamp.Newer(card.Stamps.Label("ship-it").Stamp), "the labeling that was spent does not bring the label back")
}
