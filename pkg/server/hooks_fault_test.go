package server

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func requireUnavailable(t *testing.T, a answer) {
	t.Helper()
	require.Equal(t, http.StatusServiceUnavailable, a.status, a.body)
	require.Contains(t, a.problem(t).Detail, "deliver it again")
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, after)
}

// A delivery that failed before it was stored is accepted when it comes again,
// and makes its event once.
func TestADeliveryThatFailedIsAcceptedAgain(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"HookGet", "DeliverySeen", "CardGet", "CardWrite"} {
		for _, existing := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, card there: %t", op, existing), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
				kinds := []tracker.Kind{tracker.KindCreated}
				if existing {
					require.Equal(t, "accepted", b.deliver(t, d).hook(t).Status)
					d = delivery{id: uuid.NewString(), body: payload(t, "issues.unlabeled")}
					kinds = append(kinds, tracker.KindUnlabeled)
				}
				b.store.fail(op)
				for range 2 {
					requireUnavailable(t, b.deliver(t, d))
				}
				b.store.heal()
				require.Len(t, b.events(t), len(kinds)-1)

				h := b.deliver(t, d).hook(t)
				require.Equal(t, "accepted", h.Status)
				require.Equal(t, string(kinds[len(kinds)-1]), h.Event)
				require.Positive(t, h.Seq)
				require.Equal(t, "duplicate", b.deliver(t, d).hook(t).Status)
				require.Equal(t, kinds, b.kinds(t))
				require.Empty(t, b.card(t).Pending)
			})
		}
	}
}

// TestE1_ALostAnswerIsResolvedByReading: the write took effect and its answer
// was lost. The card tells.
func TestE1_ALostAnswerIsResolvedByReading(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
	b.store.lose("CardWrite")
	a := b.deliver(t, d)
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, HookAnswer{Status: "accepted", CardID: issueCard(), Event: "card.created", Seq: 1}, a.hook(t))
	b.store.heal()
	require.Equal(t, "duplicate", b.deliver(t, d).hook(t).Status)
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
	require.EqualValues(t, 1, b.card(t).Rev)
}

// The write took effect, its answer was lost, and the card can't be read: the
// caller is told to deliver again, and then it is a duplicate whose event goes
// on.
func TestALostAnswerThatCannotBeResolved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
	b.store.lose("CardWrite")
	reads := 0
	b.store.on("CardGet", func(context.Context) error {
		if reads++; reads > 1 {
			return errFault
		}
		return nil
	})
	requireUnavailable(t, b.deliver(t, d))
	b.store.heal()
	require.Empty(t, b.events(t))
	require.Len(t, b.card(t).Pending, 1)

	a := b.deliver(t, d)
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, "duplicate", a.hook(t).Status)
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
	require.Empty(t, b.card(t).Pending)
}

// The card itself remembers a delivery whose record was not written.
func TestADeliveryThatWasNotRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
	b.store.fail("DeliveryRecord")
	a := b.deliver(t, d)
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, "accepted", a.hook(t).Status)
	for range 2 {
		require.Equal(t, "duplicate", b.deliver(t, d).hook(t).Status)
		b.store.heal()
	}
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
}

// The other way round: the record remembers a delivery that the card forgot.
func TestADeliveryThatTheCardForgot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
	require.Equal(t, "accepted", b.deliver(t, d).hook(t).Status)
	for range tracker.DeliveriesMax {
		require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, "issues.opened")}).hook(t).Status)
	}
	require.False(t, b.card(t).HasDelivery(hookID, d.id))
	require.Equal(t, "duplicate", b.deliver(t, d).hook(t).Status)
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
}

// Once the event is on the card the delivery is accepted, whatever becomes of
// the relay; the same delivery again relays it.
func TestARelayThatFails(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*faultStore){
		"look up the events":    func(s *faultStore) { s.fail("EventSeqsByEID") },
		"allocate":              func(s *faultStore) { s.fail("SeqAllocate") },
		"allocate, lost":        func(s *faultStore) { s.lose("SeqAllocate") },
		"insert":                func(s *faultStore) { s.fail("EventInsertMany") },
		"insert, lost":          func(s *faultStore) { s.lose("EventInsertMany") },
		"insert and fill":       func(s *faultStore) { s.fail("EventInsertMany", "EventFillVoids") },
		"take off the card":     func(s *faultStore) { s.fail("CardPendingRemove") },
		"take off, lost":        func(s *faultStore) { s.lose("CardPendingRemove") },
		"everything of the log": func(s *faultStore) { s.fail("EventSeqsByEID", "SeqAllocate", "EventInsertMany", "EventFillVoids") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
			breakIt(b.store)
			for _, status := range []string{"accepted", "duplicate", "duplicate"} {
				a := b.deliver(t, d)
				require.Equal(t, http.StatusAccepted, a.status)
				h := a.hook(t)
				require.Equal(t, status, h.Status)
				if status == "duplicate" {
					continue
				}
				require.Equal(t, "card.created", h.Event)
				if name != "take off, lost" { // that one took effect
					require.Len(t, b.card(t).Pending, 1)
					require.Equal(t, tracker.KindCreated, b.card(t).Pending[0].Kind)
				}
			}
			b.store.heal()
			require.Equal(t, "duplicate", b.deliver(t, d).hook(t).Status)
			require.Empty(t, b.card(t).Pending)
			require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
		})
	}
}

// TestE3_AFullCardRefuses: a card with 64 pending events and a dead relay takes
// no more; what was refused is accepted once the relay is back, and the log has
// all of it in order.
func TestE3_AFullCardRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	at := time.Date(2019, 5, 15, 15, 20, 18, 0, time.UTC)
	edited := func(i int) []byte {
		return changed(t, "issues.opened", map[string]any{
			"action": "edited", "issue.title": fmt.Sprintf("title %d", i), "issue.updated_at": at.Add(time.Duration(i) * time.Second),
		})
	}
	b.store.fail("SeqAllocate")
	for i := range tracker.PendingMax {
		require.Equal(t, "accepted", b.deliver(t, delivery{body: edited(i)}).hook(t).Status)
	}
	require.Len(t, b.card(t).Pending, tracker.PendingMax)
	late := delivery{id: uuid.NewString(), body: edited(tracker.PendingMax)}
	for range 2 {
		requireUnavailable(t, b.deliver(t, late))
	}
	require.Len(t, b.card(t).Pending, tracker.PendingMax)
	// What makes no event still has room.
	require.Equal(t, "accepted", b.deliver(t, delivery{body: edited(0)}).hook(t).Status)

	b.store.heal()
	require.Equal(t, "accepted", b.deliver(t, late).hook(t).Status)
	events := b.events(t)
	require.Len(t, events, tracker.PendingMax+1)
	for i, e := range events {
		require.Equal(t, fmt.Sprintf("title %d", i), e.After.Title)
	}
	require.Empty(t, b.card(t).Pending)
}

// A hook whose secret can't be opened is the operator's affair: nothing is
// accepted unverified.
func TestAHookWhoseSecretCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, sealed := range []trigger.Sealed{"", "v1:00000000:AAAA", "nonsense"} {
		hook, err := b.mem.HookGet(t.Context(), "acme", hookID)
		require.NoError(t, err)
		hook.Secret = sealed
		hook.Revision++
		require.NoError(t, b.mem.HookSave(t.Context(), hook))
		for _, secret := range []string{hookSecret, string(sealed)} {
			if secret != "" {
				requireUnavailable(t, b.deliver(t, delivery{body: payload(t, "issues.opened"), secret: secret}))
			}
		}
		requireUnavailable(t, b.deliver(t, delivery{body: payload(t, "ping"), event: "ping", edit: func(r *http.Request) {
			r.Header.Set(github.HeaderSignature, github.Sign(nil, payload(t, "ping")))
		}}))
		require.Empty(t, b.events(t), i)
	}
}

// A store that hangs until each operation's timeout: the caller has an answer
// before GitHub gives up on it, which is after 10 s.
func TestAHangingStoreIsAnswered(t *testing.T) {
	t.Parallel()
	const githubTimeout = 10 * time.Second
	for op, status := range map[string]int{
		"HookGet": 503, "DeliverySeen": 503, "CardGet": 503, "CardWrite": 503, "DeliveryRecord": 202, "SeqAllocate": 202,
	} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := build(t)
				b.store.on(op, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, trigger.StoreTimeoutDefault)
					defer cancel()
					<-ctx.Done()
					return ctx.Err()
				})
				req := b.request(t, delivery{body: payload(t, "issues.opened")})
				w := httptest.NewRecorder()
				began := time.Now()
				b.server.http.Handler.ServeHTTP(w, req)
				require.Equal(t, status, w.Code, w.Body)
				require.Less(t, time.Since(began), githubTimeout)
			})
		})
	}
}
