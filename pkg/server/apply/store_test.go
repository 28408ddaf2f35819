package apply

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// watchedStore notes the calls that matter here, in order, and lets a test
// act before or after one.
type watchedStore struct {
	*boardmem.Store
	// before may fail the call in the store's stead; after sees that it went
	// well.
	before func(call string) error
	after  func(call string)

	mu   sync.Mutex
	seen []string
}

func watch[T any](w *watchedStore, call string, f func() (T, error)) (T, error) {
	w.mu.Lock()
	w.seen = append(w.seen, call)
	w.mu.Unlock()
	if w.before != nil {
		if err := w.before(call); err != nil {
			return *new(T), err
		}
	}
	v, err := f()
	if err == nil && w.after != nil {
		w.after(call)
	}
	return v, err
}

func watchSave(w *watchedStore, call string, f func() error) error {
	_, err := watch(w, call, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// calls returns the calls whose name contains part.
func (w *watchedStore) calls(part string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.seen), func(c string) bool { return !strings.Contains(c, part) })
}

func (w *watchedStore) HeadGet(ctx context.Context, tenantID string) (*trigger.Head, error) {
	return watch(w, "HeadGet", func() (*trigger.Head, error) { return w.Store.HeadGet(ctx, tenantID) })
}

func (w *watchedStore) SubscriptionList(ctx context.Context, tenantID string) ([]trigger.Subscription, error) {
	return watch(w, "SubscriptionList", func() ([]trigger.Subscription, error) { return w.Store.SubscriptionList(ctx, tenantID) })
}

func (w *watchedStore) TenantSave(ctx context.Context, t *trigger.Tenant) error {
	return watchSave(w, "TenantSave "+t.ID, func() error { return w.Store.TenantSave(ctx, t) })
}

func (w *watchedStore) BoardSave(ctx context.Context, b *tracker.Board) error {
	return watchSave(w, "BoardSave "+b.Name, func() error { return w.Store.BoardSave(ctx, b) })
}

func (w *watchedStore) BotSave(ctx context.Context, b *trigger.Bot) error {
	return watchSave(w, "BotSave "+b.Name, func() error { return w.Store.BotSave(ctx, b) })
}

func (w *watchedStore) HookSave(ctx context.Context, h *trigger.Hook) error {
	return watchSave(w, "HookSave "+h.Name, func() error { return w.Store.HookSave(ctx, h) })
}

func (w *watchedStore) SubscriptionSave(ctx context.Context, s *trigger.Subscription) error {
	return watchSave(w, "SubscriptionSave "+s.Name, func() error { return w.Store.SubscriptionSave(ctx, s) })
}

func (w *watchedStore) ProjectionSave(ctx context.Context, p *trigger.Projection) error {
	return watchSave(w, "ProjectionSave "+p.Name, func() error { return w.Store.ProjectionSave(ctx, p) })
}

// emit puts one event into acme's log and returns its seq.
func emit(t *testing.T, s *boardmem.Store) int64 {
	t.Helper()
	_, err := s.HeadLift(t.Context(), "acme")
	require.NoError(t, err)
	seq, err := s.SeqAllocate(t.Context(), "acme", 1, false)
	require.NoError(t, err)
	e := trigger.Event{TenantID: "acme", Seq: seq, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{EID: tracker.NewBoardEID()}}
	require.NoError(t, s.EventInsertMany(t.Context(), "acme", []trigger.Event{e}))
	return seq
}

const oneSubscription = `tenants:
  - id: acme
    bots: [{name: bot, url: "http://bot/launch", secret: {env: IMPLEMENTER_SECRET}}]
    subscriptions:
      - {name: sub, enabled: true, on: {kinds: [card.created]}, bot: bot}
`

// TestT7_ActiveFromSeqIsReadBeforeEnabling: an event that gets into the log
// while the subscription is being enabled is never below its active_from_seq
// after the fact; one that was there before owes nothing.
func TestT7_ActiveFromSeqIsReadBeforeEnabling(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := emit(t, b.Store)
	var between, atSave int64
	w := &watchedStore{Store: b.Store}
	w.after = func(call string) {
		if call == "HeadGet" {
			between = emit(t, b.Store)
		}
	}
	w.before = func(call string) error {
		if strings.HasPrefix(call, "SubscriptionSave") {
			atSave = emit(t, b.Store)
		}
		return nil
	}
	b.params.Store = w

	r := b.mustApply(t, oneSubscription)
	s := b.subscription(t, "sub")
	require.Equal(t, before, s.ActiveFromSeq, "the seq as it was before the enabling write")
	require.Less(t, s.ActiveFromSeq, between)
	require.Less(t, s.ActiveFromSeq, atSave)
	require.Equal(t, []string{"active_from_seq: 1"}, line(t, r, KindSubscription, "sub").Details)
	seen := slices.DeleteFunc(w.calls(""), func(c string) bool { return strings.HasPrefix(c, "TenantSave") || strings.HasPrefix(c, "BotSave") })
	require.Equal(t, []string{"SubscriptionList", "HeadGet", "SubscriptionSave sub"}, seen,
		"one write, conditional on what was read before the head was")

	w.before, w.after = nil, nil
	latest := emit(t, b.Store)

	t.Log("an edit of what is enabled keeps it")
	edited := edit(t, oneSubscription, "bot: bot}", "bot: bot, rank: 3}")
	b.mustApply(t, edited)
	s = b.subscription(t, "sub")
	require.Equal(t, 3, s.Rank)
	require.Equal(t, before, s.ActiveFromSeq)

	t.Log("so does disabling, and an edit of what is disabled")
	off := edit(t, edited, "enabled: true", "enabled: false")
	b.mustApply(t, off)
	b.mustApply(t, edit(t, off, "rank: 3", "rank: 4"))
	s = b.subscription(t, "sub")
	require.False(t, s.Enabled)
	require.Equal(t, before, s.ActiveFromSeq)

	t.Log("enabling again moves it")
	r = b.mustApply(t, edited)
	require.Equal(t, latest, b.subscription(t, "sub").ActiveFromSeq)
	require.Equal(t, []string{"enabled: false → true", "rank: 4 → 3", "active_from_seq: 1 → 4"}, line(t, r, KindSubscription, "sub").Details)

	t.Log("what is created disabled has none")
	b.mustApply(t, strings.ReplaceAll(off, "name: sub,", "name: sub2,"))
	require.Zero(t, b.subscription(t, "sub2").ActiveFromSeq)
}

func TestT7_AfterAConflictTheSeqIsReadAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	failed := false
	w.before = func(call string) error {
		if strings.HasPrefix(call, "SubscriptionSave") && !failed {
			failed = true
			emit(t, b.Store)
			return tracker.ErrConflict
		}
		return nil
	}
	r := b.mustApply(t, oneSubscription)
	require.EqualValues(t, 1, b.subscription(t, "sub").ActiveFromSeq)
	require.Equal(t, "3 created, 0 updated, 0 unchanged", lastLine(r), "what the first try made is not forgotten")
	require.Len(t, w.calls("BotSave"), 1, "and not made again")
}

// Somebody else enables the subscription between our read and our write: theirs
// stands, with their seq.
func TestT7_AnotherOneEnables(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, edit(t, oneSubscription, "enabled: true", "enabled: false"))
	emit(t, b.Store)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	w.after = func(call string) {
		if call != "HeadGet" {
			return
		}
		w.after = nil
		theirs := b.subscription(t, "sub")
		theirs.Enabled, theirs.ActiveFromSeq = true, 1
		theirs.Revision++
		require.NoError(t, b.SubscriptionSave(t.Context(), &theirs))
		emit(t, b.Store)
	}
	r := b.mustApply(t, oneSubscription)
	s := b.subscription(t, "sub")
	require.EqualValues(t, 1, s.ActiveFromSeq)
	require.EqualValues(t, 2, s.Revision)
	require.Equal(t, Unchanged, line(t, r, KindSubscription, "sub").Action)
}

func lastLine(r Result) string {
	lines := strings.Split(strings.TrimSpace(r.String()), "\n")
	return lines[len(lines)-1]
}

func TestConflictsOfEveryKindAreRetried(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TenantSave", "BoardSave", "BotSave", "HookSave", "SubscriptionSave"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w := &watchedStore{Store: b.Store}
			b.params.Store = w
			failures := Tries - 1
			w.before = func(call string) error {
				if strings.HasPrefix(call, kind) && failures > 0 {
					failures--
					return tracker.ErrConflict
				}
				return nil
			}
			r := b.mustApply(t, fullFile)
			require.Equal(t, "6 created, 0 updated, 0 unchanged", lastLine(r))
			require.False(t, b.mustApply(t, fullFile).Changed())
		})
	}
}

func TestConflictsForEverGiveUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	w.before = func(call string) error {
		if strings.HasPrefix(call, "HookSave") {
			return tracker.ErrConflict
		}
		return nil
	}
	r, err := b.apply(t, fullFile)
	require.ErrorIs(t, err, tracker.ErrConflict)
	require.ErrorContains(t, err, "apply triggers.yaml: gave up after 5 tries: save hook acme/github")
	require.Len(t, w.calls("HookSave"), Tries)
	require.Equal(t, "3 created, 0 updated, 0 unchanged", lastLine(r), "what was written until then")
}

func TestAStoreErrorStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := &watchedStore{Store: b.Store}
	b.params.Store = w
	down := errors.New("the database is gone")
	for _, call := range []string{"SubscriptionList", "BotSave", "HeadGet"} {
		w.before = func(c string) error {
			if strings.HasPrefix(c, call) {
				return down
			}
			return nil
		}
		_, err := b.apply(t, fullFile)
		require.ErrorIs(t, err, down, call)
		require.ErrorContains(t, err, "acme", call)
	}
	require.Empty(t, w.calls("SubscriptionSave"))
	w.before = nil
	b.mustApply(t, fullFile) // does the rest
	require.False(t, b.mustApply(t, fullFile).Changed())
}
