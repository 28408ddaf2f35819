package trigger_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// launcher calls a function for each launch.
type launcher func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error)

func (l launcher) Launch(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	return l(ctx, r)
}

type sealer struct{}

func (sealer) Seal(_ string, s []byte) (trigger.Sealed, error) { return trigger.Sealed(s), nil }
func (sealer) Open(_ string, s trigger.Sealed) ([]byte, error) { return []byte(s), nil }

type bundle struct {
	store   *boardmem.Store
	board   *trigger.Board
	worker  *trigger.EffectWorker
	log     *bytes.Buffer
	settles chan trigger.Settle
}

// setup makes a worker over a store with one bot, one subscription and a card
// for each row; the rows are pending and their lane is marked.
func setup(t *testing.T, rows int, launch launcher) *bundle {
	t.Helper()
	ctx := t.Context()
	store := boardmem.New()
	b := &bundle{store: store, log: new(bytes.Buffer), settles: make(chan trigger.Settle, 1000)}
	relay := &trigger.Relay{Cards: store, Log: store, Heads: store, FillTimeout: time.Second}
	b.board = &trigger.Board{Cards: store, Log: store, Clock: store, Relay: relay}
	log := zerolog.New(zerolog.SyncWriter(b.log))
	b.worker = &trigger.EffectWorker{
		Outbox: store, Lanes: store, Pauses: store, Epochs: store, Clock: store, Name: "w1", Logger: log,
		Evaluator: &trigger.Evaluator{Board: b.board, Outbox: store, Config: store, Launcher: launch, Sealer: sealer{}, Logger: log},
		Settled:   func(_ trigger.Effect, s trigger.Settle) { b.settles <- s },
	}
	require.NoError(t, store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: "bot", Name: "bot", URL: "http://bot.invalid", Secret: "s", Revision: 1}))
	require.NoError(t, store.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: "acme", ID: "s1", Name: "s1", Revision: 1, Enabled: true, BotID: "bot", If: trigger.Conditions{LabelsAll: []string{"bug"}},
	}))
	tail := &trigger.Tail{Cards: store, Log: store, Heads: store, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store, Logger: log}
	for i := range rows {
		id := string(rune('a' + i))
		_, err := b.board.Change(ctx, "acme", id, func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			return &tracker.Card{Title: id, Body: "text", BoardID: "b1", ColumnID: "open", Labels: []string{"bug"}},
				&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}}, nil
		})
		require.NoError(t, err)
		_, err = relay.Card(ctx, "acme", id)
		require.NoError(t, err)
	}
	_, err := tail.Drain(ctx, "acme")
	require.NoError(t, err)
	return b
}

func (b *bundle) rows(t *testing.T) []trigger.Effect {
	t.Helper()
	rows, err := b.store.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", Limit: 1000})
	require.NoError(t, err)
	return rows
}

func TestW5_BackOffIsExponentialWithFullJitterAndExhausts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		var attempts []int
		b := setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			bodies, attempts = append(bodies, r.Body), append(attempts, r.Attempt)
			return trigger.Launched{}, &trigger.LaunchError{Message: "status 500"}
		})
		require.NoError(t, b.worker.Start(t.Context()))
		limit := 15 * time.Second
		for i := 1; i < trigger.AttemptsMax; i++ {
			s := <-b.settles
			require.Equal(t, trigger.StatePending, s.To)
			require.LessOrEqual(t, s.NotBefore.Sub(s.At), limit, "attempt %d", i)
			limit *= 2
			// The text changes meanwhile; the bytes that are sent do not (W12).
			_, err := b.board.Change(t.Context(), "acme", "a", func(c *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
				c.Body += "!"
				return c, nil, nil
			})
			require.NoError(t, err)
		}
		s := <-b.settles
		require.Equal(t, trigger.StateFailed, s.To)
		require.Equal(t, trigger.ReasonExhausted, s.Reason)
		b.worker.Stop()
		require.Equal(t, []int{1, 2, 3, 4, 5}, attempts)
		for _, body := range bodies {
			require.Equal(t, bodies[0], body)
		}
		row := b.rows(t)[0]
		require.Len(t, row.Errors, 5)
		require.Equal(t, 1, bytes.Count(b.log.Bytes(), []byte("effect failed")), "an exhausted row is logged once")
	})
}

func TestW5_RetryAfterIsHonouredAndPermanentParksAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var answers []error
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			err := answers[0]
			answers = answers[1:]
			return trigger.Launched{}, err
		})
		answers = []error{&trigger.LaunchError{Message: "429", RetryAfter: time.Hour}, &trigger.LaunchError{Message: "410", Permanent: true}}
		require.NoError(t, b.worker.Start(t.Context()))
		s := <-b.settles
		require.GreaterOrEqual(t, s.NotBefore.Sub(s.At), time.Hour)
		began := time.Now()
		s = <-b.settles
		require.Equal(t, trigger.StateFailed, s.To)
		require.Equal(t, trigger.ReasonPermanent, s.Reason)
		require.InDelta(t, time.Hour.Seconds(), time.Since(began).Seconds(), 5, "tried again when it was due")
		b.worker.Stop()
		require.Equal(t, 2, b.rows(t)[0].Attempts)
	})
}

func TestW3_AttemptEndsBeforeItsLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
			deadline, ok := ctx.Deadline()
			require.True(t, ok)
			require.Less(t, time.Until(deadline), trigger.LeaseDefault)
			<-ctx.Done()
			return trigger.Launched{}, ctx.Err()
		})
		began := time.Now()
		require.NoError(t, b.worker.Start(t.Context()))
		s := <-b.settles
		require.Equal(t, trigger.StatePending, s.To)
		require.Less(t, time.Since(began), trigger.LeaseDefault, "settled while the claim is held")
		b.worker.Stop()
	})
}

// slowClaims lets time pass between a claim's beginning and its answer.
type slowClaims struct {
	*boardmem.Store
	delay time.Duration
}

func (s slowClaims) EffectClaim(ctx context.Context, p trigger.ClaimParams) ([]trigger.Effect, error) {
	rows, err := s.Store.EffectClaim(ctx, p)
	time.Sleep(s.delay)
	return rows, err
}

func TestW3_ClaimThatCameBackTooLateIsSkipped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		launched := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			launched++
			return trigger.Launched{}, nil
		})
		b.worker.Outbox = slowClaims{b.store, trigger.LeaseDefault}
		require.NoError(t, b.worker.Start(t.Context()))
		s := <-b.settles // by a reclaim, whose answer is not late
		b.worker.Stop()
		require.Equal(t, trigger.StateDone, s.To)
		require.Equal(t, 1, launched, "the late claim did not launch")
		require.Equal(t, 2, b.rows(t)[0].Attempts)
	})
}

func TestW4_OneReclaimedRowInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		inFlight, most := 0, 0
		b := setup(t, 5, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			mu.Lock()
			inFlight++
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return trigger.Launched{}, nil
		})
		// All were claimed together by a worker that one of them killed.
		now := b.store.Now()
		rows, err := b.store.EffectClaim(t.Context(), trigger.ClaimParams{
			TenantID: "acme", Lane: trigger.LaneBot("bot"), Worker: "dead", ClaimID: "dead", Now: now, LeaseEnd: now.Add(-time.Second), Limit: 5,
		})
		require.NoError(t, err)
		require.Len(t, rows, 5)
		require.NoError(t, b.worker.Start(t.Context()))
		for range 5 {
			require.Equal(t, trigger.StateDone, (<-b.settles).To)
		}
		b.worker.Stop()
		require.Equal(t, 1, most, "one at a time")
	})
}

func TestW10_StopSettlesWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 3, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			select {
			case <-time.After(10 * time.Second):
				return trigger.Launched{RunID: "r"}, nil
			case <-ctx.Done():
				return trigger.Launched{}, ctx.Err()
			}
		})
		b.worker.Slots = 6 // of which one lane gets 2
		require.NoError(t, b.worker.Start(t.Context()))
		time.Sleep(time.Second)
		b.worker.Stop()
		states := map[trigger.State]int{}
		for _, row := range b.rows(t) {
			states[row.State]++
		}
		require.Equal(t, map[trigger.State]int{trigger.StateDone: 2, trigger.StatePending: 1}, states)
	})
}

func TestW10_StopCutsWhatOutlastsTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
			<-ctx.Done()
			return trigger.Launched{}, &trigger.LaunchError{Message: "cancelled"}
		})
		b.worker.Grace = 5 * time.Second
		require.NoError(t, b.worker.Start(t.Context()))
		time.Sleep(time.Second)
		began := time.Now()
		b.worker.Stop()
		require.Equal(t, 5*time.Second, time.Since(began))
		row := b.rows(t)[0]
		require.Equal(t, trigger.StatePending, row.State, "settled, not left to its lease")
		require.Equal(t, 1, row.Attempts)
	})
}

func TestW9_ABotThatHangsDoesNotHoldUpAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		hang := make(chan struct{})
		b := setup(t, 8, func(lctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if r.URL == "http://bot.invalid" {
				select {
				case <-hang:
				case <-lctx.Done():
				}
			}
			return trigger.Launched{}, nil
		})
		require.NoError(t, b.store.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: "other", Name: "other", URL: "http://other.invalid", Secret: "s", Revision: 1}))
		row := b.rows(t)[0]
		row.ID, row.BotID, row.Lane = "acme/000000000099|s1", "other", trigger.LaneBot("other")
		_, err := b.store.EffectMaterialize(ctx, "acme", []trigger.Effect{row})
		require.NoError(t, err)
		require.NoError(t, b.store.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: "acme", Lane: row.Lane, Due: row.NotBefore}}))
		b.worker.Slots = 4
		require.NoError(t, b.worker.Start(ctx))
		s := <-b.settles
		require.Equal(t, row.ID, s.EffectID, "the healthy bot's row, while the other bot hangs")
		close(hang)
		for range 8 {
			<-b.settles
		}
		b.worker.Stop()
	})
}

// flaky answers the first settles with an error, after or before they applied.
type flaky struct {
	*boardmem.Store
	mu    sync.Mutex
	fails int
	apply bool
}

func (f *flaky) EffectSettleMany(ctx context.Context, s []trigger.Settle) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		if f.apply {
			_, _ = f.Store.EffectSettleMany(ctx, s)
		}
		return nil, errors.New("connection reset")
	}
	return f.Store.EffectSettleMany(ctx, s)
}

func TestW2_LostAnswerOfASettleIsNoRefusal(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			launched := 0
			b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
				launched++
				return trigger.Launched{RunID: "r"}, nil
			})
			b.worker.Outbox = &flaky{Store: b.store, fails: 3, apply: applied}
			require.NoError(t, b.worker.Start(t.Context()))
			s := <-b.settles
			b.worker.Stop()
			require.Equal(t, trigger.StateDone, s.To)
			require.Equal(t, 1, launched)
			require.Equal(t, trigger.StateDone, b.rows(t)[0].State)
			require.NotContains(t, b.log.String(), "refused")
		})
	}
}

func TestW2_RefusedSettleIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b *bundle
		b = setup(t, 1, func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
			// The worker is paused past its lease, and taken over.
			got, err := b.store.EffectReclaim(ctx, trigger.ClaimParams{
				TenantID: "acme", Lane: trigger.LaneBot("bot"), Worker: "w2", ClaimID: "other",
				Now: b.store.Now().Add(time.Hour), LeaseEnd: b.store.Now().Add(2 * time.Hour), Limit: 1,
			})
			require.NoError(t, err)
			require.NotNil(t, got)
			return trigger.Launched{RunID: "stale"}, nil
		})
		require.NoError(t, b.worker.Start(t.Context()))
		synctest.Wait()
		b.worker.Stop()
		require.Empty(t, b.settles)
		require.Equal(t, 1, bytes.Count(b.log.Bytes(), []byte("effect settle refused, claim no longer held")))
		require.Contains(t, b.log.String(), `"worker":"w1"`)
		row := b.rows(t)[0]
		require.Equal(t, trigger.StateClaimed, row.State)
		require.Equal(t, "other", row.ClaimID)
		require.Empty(t, row.RunID)
	})
}

func TestPanicOfAnEvaluationIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := true
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			if first {
				first = false
				panic("boom")
			}
			return trigger.Launched{}, nil
		})
		require.NoError(t, b.worker.Start(t.Context()))
		require.Equal(t, trigger.StatePending, (<-b.settles).To)
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		b.worker.Stop()
		require.Contains(t, b.rows(t)[0].Errors[0].Message, "boom")
	})
}

func TestLoops_ChainIsCutVisibly(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store := boardmem.New()
	sub := &trigger.Subscription{TenantID: "acme", ID: "s1", Name: "s1", Revision: 1, Enabled: true, BotID: "bot", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindEdited}}}
	require.NoError(t, store.SubscriptionSave(ctx, sub))
	tail := &trigger.Tail{Cards: store, Log: store, Heads: store, Config: store, Outbox: store, Lanes: store, Clock: store, Epochs: store}
	var deep tracker.Cause
	for range trigger.ChainDepthMax {
		deep = deep.Then("other", "c")
	}
	for i, cause := range []tracker.Cause{{}, tracker.Cause{}.Then("s1", "c1"), tracker.Cause{}.Then("s1", "c2"), deep} {
		e := event(tracker.KindEdited, snap("x"), snap("x"), func(e *trigger.Event) {
			e.Seq, e.EID, e.Cause = int64(i+1), string(rune('a'+i)), cause
		})
		_, err := store.HeadLift(ctx, "acme")
		require.NoError(t, err)
		_, err = store.SeqAllocate(ctx, "acme", 1, false)
		require.NoError(t, err)
		require.NoError(t, store.EventInsertMany(ctx, "acme", []trigger.Event{*e}))
	}
	_, err := tail.Drain(ctx, "acme")
	require.NoError(t, err)
	rows, err := store.EffectList(ctx, trigger.EffectListParams{TenantID: "acme", Limit: 10})
	require.NoError(t, err)
	var got []string
	for _, row := range rows {
		got = append(got, string(row.State)+" "+string(row.Outcome))
	}
	require.Equal(t, []string{"pending ", "done loop_cut", "pending ", "done loop_cut"}, got)
}

// keyless is a replica without the seal key.
type keyless struct{ sealer }

func (keyless) Open(string, trigger.Sealed) ([]byte, error) { return nil, errors.New("no seal key") }

func TestW5_WhatIsNotTheBotsFaultUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			return trigger.Launched{RunID: "r"}, nil
		})
		b.worker.Evaluator.Sealer = keyless{}
		require.NoError(t, b.worker.Start(t.Context()))
		for range 3 * trigger.AttemptsMax {
			s := <-b.settles
			require.Equal(t, trigger.StatePending, s.To)
			require.True(t, s.NotBefore.After(s.At))
		}
		b.worker.Stop()
		row := b.rows(t)[0]
		require.Zero(t, row.Attempts)
		require.Contains(t, row.Errors[0].Message, "seal key")
		// A replica that has the key launches it.
		b.worker.Evaluator.Sealer = sealer{}
		require.NoError(t, b.worker.Start(t.Context()))
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		b.worker.Stop()
	})
}

func TestW10_StopDoesNotWaitForAStoreThatIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			return trigger.Launched{RunID: "r"}, nil
		})
		b.worker.Outbox = &flaky{Store: b.store, fails: 1 << 30}
		b.worker.Grace = 5 * time.Second
		require.NoError(t, b.worker.Start(t.Context()))
		time.Sleep(time.Second)
		began := time.Now()
		b.worker.Stop()
		require.LessOrEqual(t, time.Since(began), 6*time.Second)
	})
}
