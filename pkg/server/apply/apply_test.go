package apply

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/boardmem"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The secrets of the tests' file: no output may have them.
const (
	botSecret  = "whsec_implementer-Zk3x9"
	hookSecret = "github-webhook-Qp71-secret"
)

const fullFile = `tenants:
  - id: acme
    name: Acme
    boards:
      - name: issues
        columns:
          - {id: open, name: Open}
          - {id: done, name: Done, terminal: true}
    bots:
      - name: implementer
        url: http://127.0.0.1:9000/launch
        replay: safe
        secret: {env: IMPLEMENTER_SECRET}
    hooks:
      - name: github
        provider: github
        board: issues
        columns: {open: open, closed: done}
        secret: {file: /run/secrets/github}
    subscriptions:
      - name: implement
        enabled: true
        on: {kinds: [card.labeled], board: issues, sources: [board], actors: [alice, {bot: implementer}]}
        if: {columns: [open], labels_all: [ship-it], labels_any: [], labels_none: [wip], assignees: [bob]}
        bot: implementer
        consume: [ship-it]
        rank: 10
        args: {model: large}
        vars: {}
      - name: celebrate
        on: {from: open, to: done, board: issues}
        bot: implementer
`

// bundle is what one test works with.
type bundle struct {
	*boardmem.Store
	env    map[string]string
	files  map[string]string
	sealer *fakeSealer
	params Params
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{
		Store:  boardmem.New(),
		env:    map[string]string{"IMPLEMENTER_SECRET": botSecret},
		files:  map[string]string{"/run/secrets/github": hookSecret + "\n"},
		sealer: &fakeSealer{key: "k1"},
	}
	b.params = Params{
		Store: b.Store, Sealer: b.sealer, Clock: b.Store,
		Getenv: func(k string) (string, bool) { v, ok := b.env[k]; return v, ok },
		ReadFile: func(name string) ([]byte, error) {
			text, ok := b.files[name]
			if !ok {
				return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		},
		CheckURL: func(u string) error {
			if !strings.HasPrefix(u, "http") {
				return tracker.Fieldf("url", "must be http or https")
			}
			return nil
		},
		ParseSecret: func(text string) ([]byte, error) {
			key, ok := strings.CutPrefix(text, "whsec_")
			if !ok {
				return nil, fmt.Errorf("%q has no whsec_ before it", text) // a careless one
			}
			return []byte(key), nil
		},
	}
	return b
}

// apply parses and applies.
func (b *bundle) apply(t *testing.T, text string) (Result, error) {
	t.Helper()
	f, err := Parse("triggers.yaml", []byte(text))
	if err != nil {
		return Result{}, err
	}
	return Apply(t.Context(), f, b.params)
}

func (b *bundle) mustApply(t *testing.T, text string) Result {
	t.Helper()
	r, err := b.apply(t, text)
	require.NoError(t, err)
	return r
}

func (b *bundle) subscription(t *testing.T, name string) trigger.Subscription {
	t.Helper()
	subs, err := b.SubscriptionList(t.Context(), "acme")
	require.NoError(t, err)
	for _, s := range subs {
		if s.Name == name {
			return s
		}
	}
	require.Failf(t, "no such subscription", "%s", name)
	return trigger.Subscription{}
}

// edit replaces the one place where the text stands.
func edit(t *testing.T, text, from, to string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(text, from), "%q must stand in the file once", from)
	return strings.Replace(text, from, to, 1)
}

// line returns the result's line of the thing.
func line(t *testing.T, r Result, kind, name string) Change {
	t.Helper()
	for _, c := range r.Changes {
		if c.Kind == kind && c.Name == name {
			return c
		}
	}
	require.Failf(t, "not in the result", "%s %s", kind, name)
	return Change{}
}

// fakeSealer binds to owner and key, and never seals the same way twice.
type fakeSealer struct {
	key string
	err error

	mu   sync.Mutex
	kept map[trigger.Sealed][3]string
}

func (s *fakeSealer) Seal(owner string, secret []byte) (trigger.Sealed, error) {
	if s.err != nil {
		return "", s.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = make(map[trigger.Sealed][3]string)
	}
	sealed := trigger.Sealed(uuid.NewString())
	s.kept[sealed] = [3]string{s.key, owner, string(secret)}
	return sealed, nil
}

func (s *fakeSealer) Open(owner string, sealed trigger.Sealed) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[sealed]
	if !ok || k[0] != s.key || k[1] != owner {
		return nil, errors.New("message authentication failed")
	}
	return []byte(k[2]), nil
}

func TestFullFile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	r := b.mustApply(t, fullFile)

	tenant, err := b.TenantGet(ctx, "acme")
	require.NoError(t, err)
	require.Equal(t, "Acme", tenant.Name)
	require.EqualValues(t, 1, tenant.Revision)
	require.False(t, tenant.UpdatedAt.IsZero())

	boards, err := b.BoardList(ctx, "acme")
	require.NoError(t, err)
	require.Len(t, boards, 1)
	require.Equal(t, []tracker.Column{{ID: "open", Name: "Open"}, {ID: "done", Name: "Done", Terminal: true}}, boards[0].Columns)

	bots, err := b.BotList(ctx, "acme")
	require.NoError(t, err)
	require.Len(t, bots, 1)
	bot := bots[0]
	require.Equal(t, "http://127.0.0.1:9000/launch", bot.URL)
	require.Equal(t, trigger.ReplaySafe, bot.Replay)
	opened, err := b.sealer.Open("acme/bot/"+bot.ID, bot.Secret)
	require.NoError(t, err)
	require.Equal(t, strings.TrimPrefix(botSecret, "whsec_"), string(opened), "the parsed secret")

	hooks, err := b.HookList(ctx, "acme")
	require.NoError(t, err)
	require.Len(t, hooks, 1)
	hook := hooks[0]
	require.Equal(t, boards[0].ID, hook.BoardID)
	require.Equal(t, []string{"github", "open", "done"}, []string{hook.Provider, hook.OpenColumn, hook.ClosedColumn})
	opened, err = b.sealer.Open("acme/hook/"+hook.ID, hook.Secret)
	require.NoError(t, err)
	require.Equal(t, hookSecret, string(opened), "the text without the file's line end")

	s := b.subscription(t, "implement")
	require.Equal(t, trigger.EventFilter{
		Kinds: []tracker.Kind{tracker.KindLabeled}, BoardID: boards[0].ID,
		Sources: []trigger.Source{trigger.SourceBoard}, Actors: []string{"alice", bot.ID},
	}, s.On)
	require.Equal(t, trigger.Conditions{
		Columns: []string{"open"}, LabelsAll: []string{"ship-it"}, LabelsNone: []string{"wip"}, Assignees: []string{"bob"},
	}, s.If)
	require.True(t, s.Enabled)
	require.Equal(t, bot.ID, s.BotID)
	require.Equal(t, []string{"ship-it"}, s.Consume)
	require.Equal(t, 10, s.Rank)
	require.Equal(t, map[string]string{"model": "large"}, s.Args)
	require.NoError(t, s.Validate())
	celebrate := b.subscription(t, "celebrate")
	require.True(t, celebrate.Enabled, "the default")
	require.Equal(t, []string{"open", "done"}, []string{celebrate.On.From, celebrate.On.To})

	for _, id := range []string{boards[0].ID, bot.ID, hook.ID, s.ID, celebrate.ID} {
		u, err := uuid.Parse(id)
		require.NoError(t, err)
		require.EqualValues(t, 7, u.Version())
	}
	require.Equal(t, "+ tenant acme\n"+
		"+ board issues ("+boards[0].ID+")\n"+
		"+ bot implementer ("+bot.ID+")\n"+
		"+ hook github ("+hook.ID+")  POST /v1/tenants/acme/hooks/"+hook.ID+"\n"+
		"+ subscription implement ("+s.ID+"): active_from_seq: 0\n"+
		"+ subscription celebrate ("+celebrate.ID+"): active_from_seq: 0\n"+
		"6 created, 0 updated, 0 unchanged\n", r.String())
	var w strings.Builder
	n, err := r.WriteTo(&w)
	require.NoError(t, err)
	require.EqualValues(t, len(r.String()), n)
	require.Equal(t, r.String(), w.String())
}

func TestAgainChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.mustApply(t, fullFile)
	require.True(t, first.Changed())
	w := &watchedStore{Store: b.Store}
	b.params.Store = w

	again := b.mustApply(t, fullFile)
	require.False(t, again.Changed())
	require.Empty(t, w.calls("Save"), "no write at all")
	require.Len(t, again.Changes, 6)
	for i, c := range again.Changes {
		require.Equal(t, Unchanged, c.Action, "%s", c)
		require.Empty(t, c.Details)
		require.Equal(t, first.Changes[i].ID, c.ID)
	}
	require.True(t, strings.HasSuffix(again.String(), "\nnothing to change: 6 as the file says\n"), "%s", again)
	require.Contains(t, again.String(), "= hook github ("+again.Changes[3].ID+")  POST /v1/tenants/acme/hooks/"+again.Changes[3].ID)
}

func TestEditsAreShown(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, from, to, kind, thing, details string }{
		{"tenant name", "name: Acme", "name: Acme Inc", KindTenant, "acme", "name: Acme → Acme Inc"},
		{"tenant name left out", "    name: Acme\n", "", KindTenant, "acme", "name: Acme → acme"},
		{
			"column added", "{id: open, name: Open}", "{id: open}\n          - {id: new}", KindBoard, "issues",
			"columns: [open, done] → [open, new, done]; columns.open.name: Open → open",
		},
		{"column terminal", ", terminal: true", "", KindBoard, "issues", "columns.done.terminal: true → false"},
		{"url, value not shown", "9000/launch", "9000/other", KindBot, "implementer", "url: changed"},
		{"hook column", "closed: done", "closed: open", KindHook, "github", "columns.closed: done → open"},
		{
			"labels", "labels_all: [ship-it]", "labels_all: [ship-it, 'a, b']", KindSubscription, "implement",
			`if.labels_all: [ship-it] → [ship-it, "a, b"]`,
		},
		{"labels gone", "labels_none: [wip]", "labels_none: []", KindSubscription, "implement", "if.labels_none: [wip] → []"},
		{"actors", ", {bot: implementer}]", "]", KindSubscription, "implement", "on.actors: [alice, {bot: implementer}] → [alice]"},
		{
			"rank and args", "rank: 10\n        args: {model: large}", "args: {model: small, x: y}", KindSubscription, "implement",
			"rank: 10 → 0; args.model: changed; args.x: added",
		},
		{"disabled", "enabled: true", "enabled: false", KindSubscription, "implement", "enabled: true → false"},
		{"to left out", ", to: done", "", KindSubscription, "celebrate", `on.to: done → ""`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.mustApply(t, fullFile)
			edited := edit(t, fullFile, tc.from, tc.to)
			r := b.mustApply(t, edited)
			c := line(t, r, tc.kind, tc.thing)
			require.Equal(t, Updated, c.Action)
			require.Equal(t, tc.details, strings.Join(c.Details, "; "))
			id := " (" + c.ID + ")"
			if tc.kind == KindTenant {
				id = ""
			}
			require.True(t, strings.HasPrefix(c.String(), "~ "+tc.kind+" "+tc.thing+id+": "+tc.details), "%s", c)
			require.Contains(t, r.String(), "0 created, 1 updated, 5 unchanged")
			require.False(t, b.mustApply(t, edited).Changed(), "the edit is stored")
		})
	}
}

func TestOnlyWhatTheFileMentions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.mustApply(t, fullFile)
	// References may go to what only the store has.
	r := b.mustApply(t, `tenants:
  - id: acme
    name: Acme
    hooks:
      - {name: second, provider: github, board: issues, columns: {open: open, closed: done}, secret: {file: /run/secrets/github}}
    subscriptions:
      - {name: other, on: {kinds: [card.created], board: issues, actors: [{bot: implementer}]}, bot: implementer}
`)
	require.Contains(t, r.String(), "2 created, 0 updated, 1 unchanged")
	require.Equal(t, b.subscription(t, "implement").BotID, b.subscription(t, "other").BotID)
	require.False(t, b.mustApply(t, fullFile).Changed(), "the rest was left alone")
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := &watchedStore{Store: b.Store}
	b.params.Store, b.params.DryRun = w, true
	r := b.mustApply(t, fullFile)
	require.Empty(t, w.calls("Save"))
	require.Empty(t, line(t, r, KindHook, "github").ID)
	require.Empty(t, line(t, r, KindHook, "github").HookPath())
	require.Equal(t, "+ tenant acme\n+ board issues\n+ bot implementer\n+ hook github\n+ subscription implement\n+ subscription celebrate\n"+
		"dry run, nothing was written: 6 to create, 0 to update, 0 unchanged\n", r.String())
	_, err := b.TenantGet(t.Context(), "acme")
	require.ErrorIs(t, err, tracker.ErrNotFound)

	b.params.DryRun = false
	b.mustApply(t, fullFile)
	b.params.DryRun = true
	r = b.mustApply(t, edit(t, fullFile, "rank: 10", "rank: 11"))
	require.Equal(t, []string{"rank: 10 → 11"}, line(t, r, KindSubscription, "implement").Details)
	require.Equal(t, 10, b.subscription(t, "implement").Rank)
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, err := Parse("triggers.yaml", []byte(fullFile))
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { _, errs[i] = Apply(context.WithoutCancel(t.Context()), f, b.params) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil { // many conflicts in a row are allowed to give up, nothing else
			require.ErrorIs(t, err, tracker.ErrConflict)
		}
	}
	b.mustApply(t, fullFile)
	require.False(t, b.mustApply(t, fullFile).Changed())
}

func TestApplyWhenAndExpressions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := edit(t, fullFile, "args: {model: large}", "when: event.kind == \"card.labeled\" && actor.id != \"carol\"\n        args: {model: large, title: 'Fix ${card.title}', price: '$${x}'}")
	b.mustApply(t, text)
	get := func() *trigger.Subscription {
		subs, err := b.SubscriptionList(t.Context(), "acme")
		require.NoError(t, err)
		i := slices.IndexFunc(subs, func(s trigger.Subscription) bool { return s.Name == "implement" })
		return &subs[i]
	}
	s := get()
	require.Equal(t, `event.kind == "card.labeled" && actor.id != "carol"`, s.When)
	require.Equal(t, map[string]string{"model": "large", "title": "Fix ${card.title}", "price": "$${x}"}, s.Args)
	require.False(t, b.mustApply(t, text).Changed())
	require.Equal(t, []string{"when", "expressions"}, s.Requires, "a replica of a version without them must not serve it")

	// Flagged as failing: a file that says the same changes nothing, an edit
	// takes the flag off.
	s.Failing, s.FailingSince, s.Revision = "when: division by zero", b.Now(), s.Revision+1
	require.NoError(t, b.SubscriptionSave(t.Context(), s))
	require.False(t, b.mustApply(t, text).Changed())
	require.NotEmpty(t, get().Failing)
	r := b.mustApply(t, edit(t, text, "carol", "dave"))
	require.Contains(t, line(t, r, KindSubscription, "implement").Details[0], "when: ")
	require.Empty(t, get().Failing)
	require.Zero(t, get().FailingSince)

	b.mustApply(t, fullFile)
	require.Empty(t, get().Requires)
	b.mustApply(t, edit(t, fullFile, "args: {model: large}", "args: {title: '${card.title}'}"))
	require.Equal(t, []string{"expressions"}, get().Requires)
}
