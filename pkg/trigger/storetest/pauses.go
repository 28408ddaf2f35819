package storetest

import (
	"bytes"
	"context"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func testSubscriptionPause(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	s, err := b.dead().SubscriptionPause(ctx, tenant, "s1", "cli:mona", "the bot misbehaves")
	require.NoError(t, err)
	got, err := b.real.SubscriptionGet(ctx, tenant, "s1")
	require.NoError(t, err)
	require.Equal(t, s, got)
	require.True(t, got.Paused)
	require.True(t, got.Enabled, "it goes on firing")
	require.Equal(t, "cli:mona", got.PausedBy)
	require.Equal(t, "the bot misbehaves", got.PausedWhy)
	require.EqualValues(t, 2, got.Revision)
	again, err := b.dead().SubscriptionPause(ctx, tenant, "s1", "cli:hubot", "")
	require.NoError(t, err)
	require.Equal(t, got, again, "the first one stays")

	_, err = b.dead().SubscriptionPause(ctx, tenant, "s9", "cli:mona", "")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.dead().SubscriptionPause(ctx, "other", "s1", "cli:mona", "")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, _, err = b.dead().SubscriptionResume(ctx, "other", "s1", "cli:mona")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.dead().SubscriptionPause(ctx, tenant, "s1", "cli:mona", "a\nb")
	var fe *tracker.FieldError
	require.ErrorAs(t, err, &fe)

	// Somebody edits it between the read and the write: neither is lost.
	edited := false
	dead := b.dead()
	dead.Config = &editing{b.faults, func() {
		if edited {
			return
		}
		edited = true
		s, err := b.real.SubscriptionGet(ctx, tenant, "s1")
		require.NoError(t, err)
		s.Rank, s.Revision = 7, s.Revision+1
		require.NoError(t, b.real.SubscriptionSave(ctx, s))
	}}
	_, _, err = dead.SubscriptionResume(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	got, err = b.real.SubscriptionGet(ctx, tenant, "s1")
	require.NoError(t, err)
	require.True(t, edited)
	require.False(t, got.Paused)
	require.Empty(t, got.PausedBy+got.PausedWhy)
	require.Equal(t, 7, got.Rank)

	// One that this version does not understand is left as it is.
	b.subscribe(t, "s2", "docs", func(s *trigger.Subscription) { s.Requires = []string{"telepathy"} })
	_, err = b.dead().SubscriptionPause(ctx, tenant, "s2", "cli:mona", "")
	require.ErrorIs(t, err, tracker.ErrConflict)
}

// editing has somebody else write before each save.
type editing struct {
	trigger.Config
	before func()
}

func (e *editing) SubscriptionSave(ctx context.Context, s *trigger.Subscription) error {
	e.before()
	return e.Config.SubscriptionSave(ctx, s)
}

func testSubscriptionResume(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	_, err := b.dead().SubscriptionPause(ctx, tenant, "s1", "cli:mona", "")
	require.NoError(t, err)
	const n = 205 // more than a page
	var rows []trigger.Effect
	for i := range n {
		row := effect(i+1, lane, b.real.Now())
		row.State = trigger.StateHeld
		rows = append(rows, row)
	}
	b.materialize(t, rows...)
	other := b.in(t, 900, trigger.StateHeld, func(e *trigger.Effect) { e.SubscriptionID = "s2" })
	discarded := b.decide(t, rows[3], trigger.ActionDiscard)
	_, released, err := b.dead().SubscriptionResume(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, n-1, released)
	pending, err := b.real.EffectList(ctx, trigger.EffectListParams{TenantID: tenant, EffectFilter: trigger.EffectFilter{State: trigger.StatePending}, Limit: 1000})
	require.NoError(t, err)
	require.Len(t, pending, n-1)
	for i := range pending {
		require.Equal(t, "cli:mona", pending[i].History[0].By)
		require.Equal(t, trigger.ActionRelease, pending[i].History[0].Action)
	}
	require.Equal(t, &discarded, b.row(t, discarded.ID))
	require.Equal(t, &other, b.row(t, other.ID), "another subscription's stays")
	require.Equal(t, []string{tenant + " " + lane}, b.dueLanes(t))

	// Trouble on the way leaves the others to the sweep, and is said.
	held := b.in(t, 901, trigger.StateHeld)
	var log bytes.Buffer
	dead := b.dead()
	dead.Logger = zerolog.New(&log)
	b.setCut(failOnce("EffectDecide:before"))
	_, released, err = dead.SubscriptionResume(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Zero(t, released)
	require.Contains(t, log.String(), `"level":"warn"`)
	keys, err := b.real.EffectsHeld(ctx, trigger.SubscriptionKey{}, 10)
	require.NoError(t, err)
	require.Contains(t, keys, trigger.SubscriptionKey{TenantID: tenant, SubscriptionID: "s1"})
	// Resuming again goes on.
	_, released, err = b.dead().SubscriptionResume(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Equal(t, 1, released)
	require.Equal(t, trigger.StatePending, b.row(t, held.ID).State)

	// Paused again meanwhile: what is held stays so.
	held = b.in(t, 902, trigger.StateHeld)
	dead = b.dead()
	dead.Outbox = &listing{b.faults, func() {
		_, err := b.dead().SubscriptionPause(ctx, tenant, "s1", "cli:hubot", "")
		require.NoError(t, err)
	}}
	_, released, err = dead.SubscriptionResume(ctx, tenant, "s1", "cli:mona")
	require.NoError(t, err)
	require.Zero(t, released)
	require.Equal(t, &held, b.row(t, held.ID))
}

// listing has something happen after each list of rows.
type listing struct {
	trigger.EffectOutbox
	after func()
}

func (l *listing) EffectList(ctx context.Context, p trigger.EffectListParams) ([]trigger.Effect, error) {
	rows, err := l.EffectOutbox.EffectList(ctx, p)
	l.after()
	return rows, err
}

func testPauses(t *testing.T, b *bundle) {
	ctx := t.Context()
	dead := b.dead()
	for _, id := range []string{tenant, "other"} {
		require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: id, Revision: 1}))
	}
	b.bot(t, "bot1")
	pause := func(tenantID, botID string) error {
		_, err := dead.Pause(ctx, trigger.Pause{TenantID: tenantID, BotID: botID, By: "cli:mona", Note: "why"})
		return err
	}
	for name, c := range map[string][2]string{
		"no such tenant": {"nobody", ""}, "no such bot": {tenant, "bot9"}, "another tenant's": {"other", "bot1"}, "of nobody": {"nobody", "bot1"},
	} {
		require.ErrorIs(t, pause(c[0], c[1]), tracker.ErrNotFound, name)
		_, err := dead.Resume(ctx, c[0], c[1])
		require.ErrorIs(t, err, tracker.ErrNotFound, name)
	}
	var fe *tracker.FieldError
	require.ErrorAs(t, pause("", "bot1"), &fe)
	_, err := dead.Resume(ctx, "", "bot1")
	require.ErrorAs(t, err, &fe)
	_, err = dead.Pause(ctx, trigger.Pause{TenantID: tenant})
	require.ErrorAs(t, err, &fe, "by is required")
	all, err := b.real.PauseList(ctx)
	require.NoError(t, err)
	require.Empty(t, all)

	scopes := [][2]string{{"", ""}, {tenant, ""}, {tenant, "bot1"}}
	for _, c := range scopes {
		require.NoError(t, pause(c[0], c[1]))
	}
	first, err := b.real.PauseList(ctx)
	require.NoError(t, err)
	require.Len(t, first, 3)
	got, err := dead.Pause(ctx, trigger.Pause{TenantID: tenant, BotID: "bot1", By: "cli:hubot"})
	require.NoError(t, err)
	require.Equal(t, "cli:mona", got.By, "the first one stays")
	require.Equal(t, "why", got.Note)
	all, err = b.real.PauseList(ctx)
	require.NoError(t, err)
	require.Equal(t, first, all)
	for i, c := range scopes {
		was, err := dead.Resume(ctx, c[0], c[1])
		require.NoError(t, err)
		require.True(t, was)
		was, err = dead.Resume(ctx, c[0], c[1])
		require.NoError(t, err)
		require.False(t, was)
		all, err = b.real.PauseList(ctx)
		require.NoError(t, err)
		require.Len(t, all, 2-i, "the others stay")
	}
}

func testResumeLanes(t *testing.T, b *bundle) {
	ctx := t.Context()
	for _, id := range []string{tenant, "other"} {
		require.NoError(t, b.real.TenantSave(ctx, &trigger.Tenant{ID: id, Revision: 1}))
	}
	b.bot(t, "bot1")
	// Rows of four lanes, none marked.
	for i, l := range []string{lane, trigger.LaneBot("bot2"), trigger.LaneProjection("p1")} {
		b.in(t, i+1, trigger.StatePending, func(e *trigger.Effect) { e.Lane = l })
	}
	foreign := effect(1, lane, b.real.Now())
	foreign.ID, foreign.TenantID = trigger.EffectID(trigger.EventID("other", 1), "s1"), "other"
	_, err := b.real.EffectMaterialize(ctx, "other", []trigger.Effect{foreign})
	require.NoError(t, err)
	dead := b.dead()
	want := []string{}
	for _, c := range []struct {
		tenant, bot string
		more        []string
	}{
		{tenant, "bot1", []string{"acme bot:bot1"}},
		{tenant, "", []string{"acme bot:bot2"}},
		{"", "", []string{"other bot:bot1"}},
	} {
		_, err := dead.Pause(ctx, trigger.Pause{TenantID: c.tenant, BotID: c.bot, By: "cli:mona"})
		require.NoError(t, err)
		require.ElementsMatch(t, want, b.dueLanes(t))
		_, err = dead.Resume(ctx, c.tenant, c.bot)
		require.NoError(t, err)
		want = append(want, c.more...)
		require.ElementsMatch(t, want, b.dueLanes(t))
	}
	require.Len(t, b.lateLanes(t), 1, "a pause holds up launches, not projections")
	// Trouble with the lanes does not undo the resume.
	b.in(t, 9, trigger.StatePending, func(e *trigger.Effect) { e.Lane = "bot:late" })
	b.setCut(failOnce("LaneMarkMany:before"))
	var log bytes.Buffer
	dead.Logger = zerolog.New(&log)
	_, err = dead.Resume(ctx, tenant, "")
	require.NoError(t, err)
	require.Contains(t, log.String(), `"level":"warn"`)
	require.ElementsMatch(t, []string{"acme bot:late", "acme projection:p1"}, b.lateLanes(t))
}

// dueLanes returns the lanes that are due now.
func (b *bundle) dueLanes(t *testing.T) (names []string) {
	t.Helper()
	lanes, err := b.real.LanesDue(t.Context(), b.real.Now(), 100)
	require.NoError(t, err)
	for _, l := range lanes {
		names = append(names, l.TenantID+" "+l.Lane)
	}
	return names
}

// lateLanes returns the lanes that the rows say are due, and that are not.
func (b *bundle) lateLanes(t *testing.T) (names []string) {
	t.Helper()
	marks, err := b.real.LanesLate(t.Context())
	require.NoError(t, err)
	for _, m := range marks {
		names = append(names, m.TenantID+" "+m.Lane)
	}
	return names
}
