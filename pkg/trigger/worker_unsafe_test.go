package trigger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// unsafe makes the bundle's bot one that can't be sent the same twice.
func (b *bundle) unsafe(t *testing.T) {
	t.Helper()
	bot, err := b.store.BotGet(t.Context(), "acme", "bot")
	require.NoError(t, err)
	bot.Replay = trigger.ReplayUnsafe
	bot.Revision++
	require.NoError(t, b.store.BotSave(t.Context(), bot))
}

// TestW8_UnsafeBotsAnswers: a definite answer is trusted, anything else is for
// a person to say, and the row says what was sent before it was.
func TestW8_UnsafeBotsAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer error
		to     trigger.State
		reason trigger.Reason
	}{
		"2xx":                {nil, trigger.StateDone, ""},
		"connection refused": {&trigger.LaunchError{Message: "refused", Definite: true}, trigger.StatePending, ""},
		"429":                {&trigger.LaunchError{Message: "429", Definite: true, Status: 429}, trigger.StatePending, ""},
		"503":                {&trigger.LaunchError{Message: "503", Definite: true, Status: 503}, trigger.StatePending, ""},
		"404":                {&trigger.LaunchError{Message: "404", Definite: true, Status: 404, Permanent: true}, trigger.StateFailed, trigger.ReasonPermanent},
		"408":                {&trigger.LaunchError{Message: "408", Definite: true, Status: 408}, trigger.StateFailed, trigger.ReasonPermanent},
		"500":                {&trigger.LaunchError{Message: "500", Status: 500}, trigger.StateReconcile, ""},
		"redirect":           {&trigger.LaunchError{Message: "307", Status: 307, Permanent: true}, trigger.StateReconcile, ""},
		"timeout":            {&trigger.LaunchError{Message: "no answer"}, trigger.StateReconcile, ""},
		"not a launch error": {errors.New("what"), trigger.StateReconcile, ""},
		"panic":              {errPanic, trigger.StateReconcile, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var b *bundle
				b = setup(t, 1, func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
					row, err := b.store.EffectGet(t.Context(), "acme", r.Key)
					require.NoError(t, err)
					require.False(t, row.DeliveryStartedAt.IsZero(), "marked before it is sent")
					require.Equal(t, r.Body, row.Rendered)
					if errors.Is(c.answer, errPanic) {
						panic("boom")
					}
					return trigger.Launched{RunID: "r"}, c.answer
				})
				b.unsafe(t)
				require.NoError(t, b.worker.Start(t.Context()))
				s := <-b.settles
				b.worker.Stop()
				require.Equal(t, c.to, s.To)
				row := b.rows(t)[0]
				full, err := b.store.EffectGet(t.Context(), "acme", row.ID)
				require.NoError(t, err)
				require.Equal(t, c.to, full.State)
				require.Equal(t, c.reason, full.Reason)
				require.Equal(t, c.to == trigger.StateReconcile, !full.DeliveryStartedAt.IsZero(), "a definite answer takes the mark off")
				require.Equal(t, trigger.ReplayUnsafe, full.Replay)
				if c.to == trigger.StateReconcile {
					require.Contains(t, b.log.String(), "effect to be reconciled")
				}
			})
		})
	}
}

var errPanic = errors.New("panics")

// TestW8_LastAttemptInDoubtIsReconciledToo: not parked as exhausted.
func TestW8_LastAttemptInDoubtIsReconciledToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			if n++; n == trigger.AttemptsMax {
				return trigger.Launched{}, &trigger.LaunchError{Message: "reset"}
			}
			return trigger.Launched{}, &trigger.LaunchError{Message: "503", Definite: true, Status: 503}
		})
		b.unsafe(t)
		require.NoError(t, b.worker.Start(t.Context()))
		var last trigger.Settle
		for range trigger.AttemptsMax {
			last = <-b.settles
		}
		b.worker.Stop()
		require.Equal(t, trigger.StateReconcile, last.To)
		require.Equal(t, trigger.AttemptsMax, n)
	})
}

// TestW8_StopCutsAnUnsafeLaunch: what was sent and not answered by the end of
// the grace period is nobody's to send again.
func TestW8_StopCutsAnUnsafeLaunch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sent := make(chan struct{})
		b := setup(t, 1, func(ctx context.Context, _ trigger.LaunchRequest) (trigger.Launched, error) {
			close(sent)
			<-ctx.Done()
			return trigger.Launched{}, &trigger.LaunchError{Message: "cancelled", Cause: ctx.Err()}
		})
		b.unsafe(t)
		require.NoError(t, b.worker.Start(t.Context()))
		<-sent
		b.worker.Stop()
		require.Equal(t, trigger.StateReconcile, b.rows(t)[0].State)
	})
}

// epochs is a primary that can change.
type epochs struct{ n atomic.Int64 }

func (e *epochs) Epoch() int64 { return e.n.Load() }

// TestW11_NothingIsReclaimedForALeaseAfterANewPrimary: its clock may be another.
func TestW11_NothingIsReclaimedForALeaseAfterANewPrimary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e epochs
		b := setup(t, 2, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) { return trigger.Launched{}, nil })
		b.worker.Epochs = &e
		now := b.store.Now()
		lane := trigger.LaneBot("bot")
		rows, err := b.store.EffectClaim(t.Context(), trigger.ClaimParams{
			TenantID: "acme", Lane: lane, Worker: "dead", ClaimID: "dead", Now: now, LeaseEnd: now.Add(10 * time.Second), Limit: 1,
		})
		require.NoError(t, err)
		require.Len(t, rows, 1)
		require.NoError(t, b.worker.Start(t.Context()))
		require.Equal(t, trigger.StateDone, (<-b.settles).To, "the other row is claimed as ever")
		time.Sleep(5 * time.Second)
		e.n.Add(1)
		began := time.Now()
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		b.worker.Stop()
		require.GreaterOrEqual(t, time.Since(began), trigger.LeaseDefault)
		require.Less(t, time.Since(began), trigger.LeaseDefault+5*time.Second)
	})
}

// lane makes due rows of a bot's lane, of one card.
func (b *bundle) lane(t *testing.T, tenant, bot string, n int) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, b.store.BotSave(ctx, &trigger.Bot{TenantID: tenant, ID: bot, Name: bot, URL: "http://" + bot + ".invalid", Secret: "s", Revision: 1}))
	require.NoError(t, b.store.SubscriptionSave(ctx, &trigger.Subscription{
		TenantID: tenant, ID: "s-" + bot, Name: "s-" + bot, Revision: 1, Enabled: true, BotID: bot, If: trigger.Conditions{LabelsAll: []string{"bug"}},
	}))
	_, err := b.board.Change(ctx, tenant, "a", func(*tracker.Card, time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		return &tracker.Card{Title: "a", BoardID: "b1", ColumnID: "open"}, nil, nil
	})
	require.NoError(t, err)
	source, err := b.store.EffectGet(ctx, "acme", b.rows(t)[0].ID)
	require.NoError(t, err)
	rows := make([]trigger.Effect, n)
	for i := range rows {
		row := *source
		row.Event.TenantID, row.Event.Seq = tenant, int64(i+1)
		row.ID = trigger.EffectID(trigger.EventID(tenant, int64(i+1)), "s-"+bot)
		row.TenantID, row.Lane, row.SubscriptionID, row.BotID, row.State = tenant, trigger.LaneBot(bot), "s-"+bot, bot, trigger.StatePending
		row.Outcome, row.ClaimID, row.Attempts, row.NotBefore = "", "", 0, b.store.Now()
		rows[i] = row
	}
	_, err = b.store.EffectMaterialize(ctx, tenant, rows)
	require.NoError(t, err)
	require.NoError(t, b.store.LaneMarkMany(ctx, []trigger.LaneMark{{TenantID: tenant, Lane: trigger.LaneBot(bot), Due: b.store.Now()}}))
}

// TestW9_BotsThatNeverAnswerLeaveRoom: however many rows and lanes of a tenant
// hang, another lane's are done meanwhile; and once the breakers are open, the
// tenant's own other lanes' too.
func TestW9_BotsThatNeverAnswerLeaveRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hanging atomic.Int64
		b := setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if !strings.Contains(r.URL, "hang") {
				return trigger.Launched{}, nil
			}
			hanging.Add(1)
			defer hanging.Add(-1)
			select {
			case <-time.After(30 * time.Second):
			case <-ctx.Done():
			}
			return trigger.Launched{}, &trigger.LaunchError{Message: "no answer"}
		})
		for i := range 4 {
			b.lane(t, "loud", fmt.Sprint("hang", i), 200)
		}
		require.NoError(t, b.worker.Start(t.Context()))
		time.Sleep(time.Second)
		require.EqualValues(t, 48, hanging.Load(), "three quarters of the slots")
		<-b.settles // the row of setup
		began := time.Now()
		b.lane(t, "quiet", "fine", 100)
		quiet := 0
		for s := range b.settles {
			if s.TenantID == "quiet" {
				if quiet++; quiet == 100 {
					break
				}
			}
		}
		require.Less(t, time.Since(began), 10*time.Second)
		// The same tenant's, as soon as the hanging ones had their first timeout.
		began = time.Now()
		b.lane(t, "loud", "fine", 100)
		own := 0
		for s := range b.settles {
			if s.TenantID == "loud" && s.To == trigger.StateDone {
				if own++; own == 100 {
					break
				}
			}
		}
		require.Less(t, time.Since(began), 60*time.Second)
		go func() {
			for range b.settles { // nobody looks at the others
			}
		}()
		time.Sleep(2 * time.Minute)
		require.LessOrEqual(t, hanging.Load(), int64(4), "open breakers let one row through")
		b.worker.Stop()
		close(b.settles)
		require.Contains(t, b.log.String(), "the bot fails again and again")
	})
}

// TestW9_OneHangingLaneLeavesItsTenantRoom, from the first moment on.
func TestW9_OneHangingLaneLeavesItsTenantRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hanging atomic.Int64
		b := setup(t, 1, func(ctx context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
			if strings.Contains(r.URL, "hang") {
				hanging.Add(1)
				<-ctx.Done()
				return trigger.Launched{}, &trigger.LaunchError{Message: "no answer"}
			}
			return trigger.Launched{}, nil
		})
		b.worker.Grace = time.Millisecond
		b.lane(t, "loud", "hang", 200)
		require.NoError(t, b.worker.Start(t.Context()))
		<-b.settles // the row of setup
		time.Sleep(time.Second)
		require.EqualValues(t, 24, hanging.Load(), "three eighths of the slots")
		began := time.Now()
		b.lane(t, "loud", "fine", 100)
		for range 100 {
			require.Equal(t, trigger.StateDone, (<-b.settles).To)
		}
		require.Less(t, time.Since(began), 10*time.Second)
		b.worker.Stop()
	})
}

// TestW9_BreakerClosesWithTheFirstSuccess, and no row fails for the outage.
func TestW9_BreakerClosesWithTheFirstSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		asked := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			asked++
			if time.Since(began) < 20*time.Minute {
				return trigger.Launched{}, &trigger.LaunchError{Message: "503", Status: 503, Definite: true}
			}
			return trigger.Launched{}, nil
		})
		b.worker.Slots = 1
		b.lane(t, "acme2", "down", 500)
		require.NoError(t, b.worker.Start(t.Context()))
		done := 0
		for s := range b.settles {
			if s.TenantID != "acme2" || s.To == trigger.StatePending {
				continue
			}
			require.Equal(t, trigger.StateDone, s.To)
			if done++; done == 500 {
				break
			}
		}
		b.worker.Stop()
		require.Less(t, asked, 700, "the breaker spares the bot, and the rows their attempts")
	})
}

// away is a store that takes no settles for a while.
type away struct {
	*boardmem.Store
	until time.Time
}

func (s *away) EffectSettleMany(ctx context.Context, settles []trigger.Settle) ([]bool, error) {
	if time.Now().Before(s.until) {
		return nil, errors.New("no connection")
	}
	return s.Store.EffectSettleMany(ctx, settles)
}

// TestW8_AnAnswerIsToldAfterTheLeaseToo: the bot said that it took the launch;
// the store could not be told before the row went to reconcile.
func TestW8_AnAnswerIsToldAfterTheLeaseToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		launched := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			launched++
			return trigger.Launched{RunID: "r1"}, nil
		})
		b.unsafe(t)
		b.worker.Outbox = &away{b.store, time.Now().Add(trigger.LeaseDefault + 20*time.Second)}
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		time.Sleep(trigger.LeaseDefault + 10*time.Second)
		require.Equal(t, trigger.StateReconcile, b.rows(t)[0].State)
		time.Sleep(time.Minute)
		row := b.rows(t)[0]
		require.Equal(t, []any{trigger.StateDone, "r1", 1}, []any{row.State, row.RunID, launched})
		require.EqualValues(t, 1, b.worker.Stats().Late)
	})
}

// unsure is a store that keeps a start and loses the answer, once.
type unsure struct {
	*boardmem.Store
	lost bool
}

func (s *unsure) EffectStart(ctx context.Context, f trigger.Fence, at time.Time, rendered string) error {
	err := s.Store.EffectStart(ctx, f, at, rendered)
	if !s.lost {
		s.lost = true
		return errors.New("connection reset")
	}
	return err
}

// TestW8_AStartWhoseAnswerWasLostIsNoDoubt: nothing was sent, which is as
// definite as can be; the mark goes, and the row is tried again.
func TestW8_AStartWhoseAnswerWasLostIsNoDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		launched := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			launched++
			return trigger.Launched{RunID: "r1"}, nil
		})
		b.unsafe(t)
		store := &unsure{Store: b.store}
		b.worker.Outbox, b.worker.Evaluator.Outbox = store, store
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		require.Equal(t, trigger.StatePending, (<-b.settles).To)
		require.True(t, b.rows(t)[0].DeliveryStartedAt.IsZero())
		require.Zero(t, b.rows(t)[0].Attempts, "the bot was not asked")
		require.Equal(t, trigger.StateDone, (<-b.settles).To)
		require.Equal(t, 1, launched)
	})
}

// TestW8_BotThatBecomesUnsafeIsNotAskedAgain: while it was safe it may have
// had a request whose answer nobody knows.
func TestW8_BotThatBecomesUnsafeIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		launched := 0
		b := setup(t, 1, func(context.Context, trigger.LaunchRequest) (trigger.Launched, error) {
			launched++
			return trigger.Launched{}, &trigger.LaunchError{Message: "no answer"}
		})
		require.NoError(t, b.worker.Start(t.Context()))
		defer b.worker.Stop()
		require.Equal(t, trigger.StatePending, (<-b.settles).To)
		b.unsafe(t)
		require.Equal(t, trigger.StateReconcile, (<-b.settles).To)
		require.Equal(t, 1, launched)
	})
}
