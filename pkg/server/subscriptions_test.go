package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const subs = "acme/subscriptions"

func (b *bundle) subscription(t *testing.T, id string) *trigger.Subscription {
	t.Helper()
	s, err := b.mem.SubscriptionGet(t.Context(), "acme", id)
	require.NoError(t, err)
	return s
}

// Each field goes in and comes out, and is what the engine gets.
func TestFieldsOfASubscription(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	const all = `{
		"name":"all","enabled":false,
		"on":{"kinds":["card.moved","card.labeled"],"from":"todo","to":"done","board_id":"board-1","sources":["board"],"actors":["mona","bot-1"]},
		"if":{"columns":["done"],"labels_all":["a"],"labels_any":["b"],"labels_none":["c"],"assignees":["d"]},
		"when":"card.title\n!= \"\"","bot_id":"bot-1","mode":"promote","to_column":"done",
		"consume":["a"],"rank":-3,"max_per_minute":0,"args":{"k":"v\t${card.title}"},"vars":{"x":"y"}}`
	made := body[Subscription](t, b.ask(t, editor, "POST", subs, all, ""), 201)
	zero := 0
	require.Equal(t, &trigger.Subscription{
		TenantID: "acme", ID: made.ID, Name: "all", Revision: 1,
		On: trigger.EventFilter{
			Kinds: []tracker.Kind{tracker.KindMoved, tracker.KindLabeled}, From: "todo", To: "done", BoardID: "board-1",
			Sources: []trigger.Source{trigger.SourceBoard}, Actors: []string{"mona", "bot-1"},
		},
		If:   trigger.Conditions{Columns: []string{"done"}, LabelsAll: []string{"a"}, LabelsAny: []string{"b"}, LabelsNone: []string{"c"}, Assignees: []string{"d"}},
		When: "card.title\n!= \"\"", BotID: botID, Mode: trigger.ModePromote, ToColumn: "done", Consume: []string{"a"}, Rank: -3, MaxPerMinute: &zero,
		Args: map[string]string{"k": "v\t${card.title}"}, Vars: map[string]string{"x": "y"},
		Requires: []string{"when", "expressions"}, UpdatedAt: made.UpdatedAt,
	}, b.subscription(t, made.ID))
	require.Equal(t, made, body[Subscription](t, b.ask(t, editor, "GET", subs+"/"+made.ID, "", ""), 200))
	spec, err := json.Marshal(made.SubscriptionSpec)
	require.NoError(t, err)
	require.JSONEq(t, all, string(spec))
	// Replaced as a whole: what is left out has its default.
	got := body[Subscription](t, b.ask(t, editor, "PUT", subs+"/"+made.ID, `{"name":"all","enabled":false,"bot_id":"bot-1","if":{"labels_all":["x"]}}`, `"1"`), 200)
	perMinute := trigger.MaxPerMinuteDefault
	require.Equal(t, SubscriptionSpec{Name: "all", BotID: botID, If: IfSpec{LabelsAll: []string{"x"}}, Mode: "direct", MaxPerMinute: &perMinute}, got.SubscriptionSpec)
	require.Nil(t, b.subscription(t, made.ID).MaxPerMinute)
	require.Empty(t, b.subscription(t, made.ID).Requires)
}

func TestRefusedSubscriptions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	b.board(t, "board-2", "elsewhere")
	made := body[Subscription](t, b.ask(t, editor, "POST", subs, goodSubscription, ""), 201)
	long := strings.Repeat("l", 256)
	for _, c := range []struct {
		spec   string // beside name, enabled and bot_id, if it has none
		fields []string
	}{
		{`"on":{}`, []string{"body.on, if"}},
		{`"on":{"actors":["mona"]}`, []string{"body.on, if"}},
		{`"on":{"kinds":["s3cret","card.moved","card.s3cret"]}`, []string{"body.on.kinds[0]", "body.on.kinds[2]"}},
		{`"on":{"kinds":["card.created"],"board_id":"s3cret"}`, []string{"body.on.board_id"}},
		{`"on":{"to":"todo"}`, []string{"body.on.board_id"}},
		{`"if":{"columns":["todo"]}`, []string{"body.on.board_id"}},
		{`"on":{"to":"s3cret","board_id":"board-1"}`, []string{"body.on.to"}},
		{`"on":{"from":"elsewhere","board_id":"board-1"},"if":{"columns":["todo","elsewhere"]}`, []string{"body.on.from", "body.if.columns[1]"}},
		{`"on":{"kinds":["card.created"],"sources":["s3cret"]}`, []string{"body.on.sources[0]"}},
		{`"on":{"kinds":["card.labeled"],"from":"todo","board_id":"board-1"}`, []string{"body.on.kinds"}},
		{`"if":{"labels_all":["x"," "]}`, []string{"body.if.labels_all[1]"}},
		{`"if":{"labels_any":["` + long + `"]}`, []string{"body.if.labels_any[0]"}},
		{`"if":{"assignees":[{"$ne":""}]}`, []string{"body.if.assignees[0]"}},
		{`"if":{"labels_all":["x"]},"consume":["s3cret"]`, []string{"body.consume[0]"}},
		{`"when":"card.titel"`, []string{"body.when"}},
		{`"if":{"labels_all":["x"]},"when":"1 +"`, []string{"body.when"}},
		{`"if":{"labels_all":["x"]},"to_column":"todo"`, []string{"body.to_column", "body.on.board_id"}},
		{`"if":{"labels_all":["x"]},"mode":"s3cret"`, []string{"body.mode"}},
		{`"if":{"labels_all":["x"]},"max_per_minute":10001`, []string{"body.max_per_minute"}},
		{`"if":{"labels_all":["x"]},"rank":2147483648`, []string{"body.rank"}},
		{`"if":{"labels_all":["x"]},"bot_id":"s3cret"`, []string{"body.bot_id"}},
		{`"if":{"labels_all":["x"]},"args":{"a b s3cret":"x","ok":"${card.titel}"}`, []string{"body.args", "body.args.ok"}},
		{`"if":{"labels_all":["x"]},"args":{"k":"` + strings.Repeat("x", 4097) + `"}`, []string{"body.args.k"}},
		{`"if":{"labels_all":["x"]},"active_from_seq":1`, []string{"body.active_from_seq"}},
		{`"if":{"labels_all":["x"]},"paused":false`, []string{"body.paused"}},
		{`"if":{"labels_all":["x"]},"tenant_id":"acme"`, []string{"body.tenant_id"}},
	} {
		spec := `{"name":"refused","enabled":true,` + c.spec + `}`
		if !strings.Contains(c.spec, "bot_id") {
			spec = `{"bot_id":"bot-1",` + spec[1:]
		}
		a := b.ask(t, editor, "POST", subs, spec, "")
		requireRefused(t, a, 422, c.fields...)
		requireRefused(t, b.ask(t, editor, "PUT", subs+"/"+made.ID, spec, "*"), 422, c.fields...)
	}
	requireRefused(t, b.ask(t, editor, "POST", subs, `{"name":"x","enabled":true,"bot_id":"bot-1","when":"`+strings.Repeat("x", draftMaxBytes)+`"}`, ""), 413)
	// Another tenant's bot and board are none.
	require.NoError(t, b.mem.BotSave(t.Context(), &trigger.Bot{TenantID: "other", ID: "bot-o", Name: "o", Revision: 1, URL: "http://h/"}))
	requireRefused(t, b.ask(t, editor, "POST", subs, strings.Replace(goodSubscription, "bot-1", "bot-o", 1), ""), 422, "body.bot_id")
	requireRefused(t, b.ask(t, editor, "POST", subs, strings.Replace(goodSubscription, "board-1", "board-o", 1), ""), 422, "body.on.board_id")
	require.Equal(t, []trigger.Subscription{*b.subscription(t, made.ID)}, b.state(t).Subs, "nothing was written")
	require.EqualValues(t, 1, b.subscription(t, made.ID).Revision)
}

// T7: it is active from the seq that was read before the write that enabled it,
// and only a write from disabled to enabled sets that.
func TestT7_ActiveFromSeqOfTheAPI(t *testing.T) {
	t.Parallel()
	for kind, good := range map[string]string{"subscriptions": goodSubscription, "projections": goodProjection} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.board(t, "board-2", "next")
			ctx := t.Context()
			editor := b.role(t, trigger.RoleEditor, "acme", "e")
			save := map[string]string{"subscriptions": "SubscriptionSave", "projections": "ProjectionSave"}[kind]
			seq := int64(0)
			_, err := b.mem.HeadLift(ctx, "acme")
			require.NoError(t, err)
			allocate := func() {
				var err error
				seq, err = b.mem.SeqAllocate(ctx, "acme", 3, false)
				require.NoError(t, err)
				seq += 2 // the last one's
			}
			type view struct {
				ID            string `json:"id"`
				Revision      int64  `json:"revision"`
				Enabled       bool   `json:"enabled"`
				ActiveFromSeq int64  `json:"active_from_seq"`
			}
			allocate()
			made := body[view](t, b.ask(t, editor, "POST", "acme/"+kind, good, ""), 201)
			require.Equal(t, seq, made.ActiveFromSeq)
			was, at := seq, "acme/"+kind+"/"+made.ID
			allocate()
			require.Equal(t, was, body[view](t, b.ask(t, editor, "PUT", at, good, "*"), 200).ActiveFromSeq, "it was enabled")
			require.Equal(t, was, body[view](t, b.ask(t, editor, "POST", at+"/enable", "", ""), 200).ActiveFromSeq, "it was enabled")
			off := body[view](t, b.ask(t, editor, "POST", at+"/disable", "", `"2"`), 200)
			require.False(t, off.Enabled)
			require.Equal(t, was, off.ActiveFromSeq)
			require.Equal(t, off, body[view](t, b.ask(t, editor, "POST", at+"/disable", "", ""), 200), "again changes nothing")
			requireRefused(t, b.ask(t, editor, "POST", at+"/enable", "", `"2"`), 412)
			// What is logged while it is enabled is not lost: the seq is older.
			was = seq
			b.store.on(save, func(context.Context) error { allocate(); return nil })
			on := body[view](t, b.ask(t, editor, "POST", at+"/enable", "", `"3"`), 200)
			b.store.heal()
			require.True(t, on.Enabled)
			require.Equal(t, was, on.ActiveFromSeq)
			// By an edit, and made disabled.
			require.False(t, body[view](t, b.ask(t, editor, "PUT", at, strings.Replace(good, "true", "false", 1), "*"), 200).Enabled)
			require.Equal(t, seq, body[view](t, b.ask(t, editor, "PUT", at, good, "*"), 200).ActiveFromSeq)
			// Somebody else enables it between the read and the write: theirs
			// stands.
			require.False(t, body[view](t, b.ask(t, editor, "POST", at+"/disable", "", ""), 200).Enabled)
			theirs, others := view{}, atomic.Bool{}
			was = seq
			b.store.on("HeadGet", func(context.Context) error {
				if others.CompareAndSwap(false, true) {
					theirs = body[view](t, b.ask(t, editor, "POST", at+"/enable", "", ""), 200)
					allocate()
				}
				return nil
			})
			mine := body[view](t, b.ask(t, editor, "POST", at+"/enable", "", ""), 200)
			require.Equal(t, theirs, mine)
			require.Equal(t, was, mine.ActiveFromSeq)
		})
	}
}

// A tenant without events, and one whose head was lost: nothing that its log
// had is fired for.
func TestT7_ActiveFromWithoutAHead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	require.Zero(t, body[Subscription](t, b.ask(t, editor, "POST", subs, goodSubscription, ""), 201).ActiveFromSeq)
	b = setup(t)
	editor = b.role(t, trigger.RoleEditor, "acme", "e")
	b.rowIn(t, 7, trigger.StateFailed)
	require.EqualValues(t, 7, body[Subscription](t, b.ask(t, editor, "POST", subs, goodSubscription, ""), 201).ActiveFromSeq)
}

func TestEditsOfASubscription(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	made := body[Subscription](t, b.ask(t, editor, "POST", subs, goodSubscription, ""), 201)
	at := subs + "/" + made.ID
	set := func(change func(*trigger.Subscription)) {
		s := b.subscription(t, made.ID)
		change(s)
		s.Revision++
		require.NoError(t, b.mem.SubscriptionSave(ctx, s))
	}

	t.Log("a pause stays, and what the guard keeps; that it is failing does not")
	require.Equal(t, 200, b.ask(t, editor, "POST", at+"/pause", `{"note":"too much"}`, "").status)
	set(func(s *trigger.Subscription) {
		s.Failing, s.FailingSince, s.Guard = "when: no such key", b.mem.Now(), trigger.Guard{FromSeq: 3, HeldFrom: 9}
	})
	got := body[Subscription](t, b.ask(t, editor, "GET", at, "", ""), 200)
	require.True(t, got.Paused)
	require.Equal(t, "token:e", got.PausedBy)
	require.Equal(t, "too much", got.PausedWhy)
	require.Equal(t, "when: no such key", got.Failing)
	require.NotZero(t, got.FailingSince)
	require.EqualValues(t, 9, got.Guard.HeldFrom)
	got = body[Subscription](t, b.ask(t, editor, "PUT", at, goodSubscription, "*"), 200)
	require.True(t, got.Paused)
	require.Equal(t, "too much", got.PausedWhy)
	require.EqualValues(t, 9, got.Guard.HeldFrom)
	require.Contains(t, got.Requires, "held")
	require.Empty(t, got.Failing)
	require.Zero(t, got.FailingSince)

	t.Log("what it refers to goes: it says so, and can't be enabled or saved so")
	require.Equal(t, 200, b.ask(t, editor, "POST", at+"/disable", "", "").status)
	require.NoError(t, b.mem.BotDelete(ctx, "acme", botID, 1))
	board, err := b.mem.BoardGet(ctx, "acme", "board-1")
	require.NoError(t, err)
	board.Columns, board.Revision = board.Columns[1:], 2
	require.NoError(t, b.mem.BoardSave(ctx, board))
	require.Equal(t, []string{"on.to", "bot_id"}, body[Subscription](t, b.ask(t, editor, "GET", at, "", ""), 200).Dangling)
	require.Equal(t, []string{"on.to", "bot_id"}, body[Page[Subscription]](t, b.ask(t, editor, "GET", subs, "", ""), 200).Items[0].Dangling)
	requireRefused(t, b.ask(t, editor, "POST", at+"/enable", "", ""), 409, "on.to", "bot_id")
	requireRefused(t, b.ask(t, editor, "PUT", at, goodSubscription, "*"), 422, "body.on.to", "body.bot_id")

	t.Log("one that a newer version made is that version's to edit")
	set(func(s *trigger.Subscription) { s.Requires = []string{"teleport"} })
	for _, c := range [][3]string{{"PUT", at, goodSubscription}, {"POST", at + "/enable", ""}} {
		a := b.ask(t, editor, c[0], c[1], c[2], "*")
		requireRefused(t, a, 409)
		require.Contains(t, a.problem(t).Detail, "newer version")
	}
	set(func(s *trigger.Subscription) { s.Enabled = true })
	requireRefused(t, b.ask(t, editor, "POST", at+"/disable", "", ""), 409)
	require.Equal(t, []string{"teleport"}, b.subscription(t, made.ID).Requires)
	require.Equal(t, 204, b.ask(t, editor, "DELETE", at, "", "").status)
}

// Of edits at the same moment of what was seen, one is made; those that go for
// whatever is there are all made, one after the other.
func TestEditsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	made := body[Subscription](t, b.ask(t, editor, "POST", subs, goodSubscription, ""), 201)
	at := subs + "/" + made.ID
	const n = 6
	race := func(ifMatch string, edit func(i int) [3]string) map[int]int {
		statuses := make([]int, n)
		var ready, wg sync.WaitGroup
		ready.Add(n)
		var once [n]sync.Once
		i := 0
		var mu sync.Mutex
		b.store.on("SubscriptionSave", func(context.Context) error { // all have read
			mu.Lock()
			k := i
			i++
			mu.Unlock()
			if k < n {
				once[k].Do(ready.Done)
				ready.Wait()
			}
			return nil
		})
		for i := range n {
			wg.Go(func() {
				c := edit(i)
				statuses[i] = b.ask(t, editor, c[0], c[1], c[2], ifMatch).status
			})
		}
		wg.Wait()
		b.store.heal()
		count := make(map[int]int)
		for _, s := range statuses {
			count[s]++
		}
		return count
	}
	put := func(i int) [3]string {
		return [3]string{"PUT", at, strings.Replace(goodSubscription, "fresh", fmt.Sprintf("fresh-%d", i), 1)}
	}
	require.Equal(t, map[int]int{200: 1, 412: n - 1}, race(`"1"`, put))
	require.EqualValues(t, 2, b.subscription(t, made.ID).Revision)
	require.Equal(t, map[int]int{200: n}, race("*", put))
	require.EqualValues(t, 2+n, b.subscription(t, made.ID).Revision)
	require.Equal(t, map[int]int{200: n}, race("", func(int) [3]string { return [3]string{"POST", at + "/disable", ""} }))
	require.EqualValues(t, 2+n+1, b.subscription(t, made.ID).Revision, "one of them did it")
}

func TestHowManyATenantMayHave(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	editor := b.role(t, trigger.RoleEditor, "acme", "e")
	for i := range config.SubscriptionsMax {
		id := fmt.Sprintf("s-%04d", i)
		require.NoError(t, b.mem.SubscriptionSave(ctx, &trigger.Subscription{TenantID: "acme", ID: id, Name: id, Revision: 1}))
	}
	for i := range config.BotsMax - 1 {
		id := fmt.Sprintf("b-%04d", i)
		require.NoError(t, b.mem.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: id, Name: id, Revision: 1}))
	}
	for kind, good := range map[string]string{"subscriptions": goodSubscription, "bots": goodBot} {
		a := b.ask(t, editor, "POST", "acme/"+kind, good, "")
		requireRefused(t, a, 409)
		require.Contains(t, a.problem(t).Detail, "at most")
	}
	require.Equal(t, 204, b.ask(t, editor, "DELETE", subs+"/s-0001", "", "").status)
	require.Equal(t, 201, b.ask(t, editor, "POST", subs, goodSubscription, "").status)
}

// A dry run of what is stored takes no draft: it would be ignored.
func TestADryRunOfAStoredOneTakesNoBody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t)
	viewer := b.token(t, "acme")
	for _, what := range []string{"", "{}"} {
		require.Equal(t, 200, b.ask(t, viewer, "POST", subs+"/sub-1/dry-run", what, "").status)
	}
	requireRefused(t, b.ask(t, viewer, "POST", subs+"/sub-1/dry-run", `{"name":"draft"}`, ""), 422, "body.name")
	requireRefused(t, b.ask(t, viewer, "POST", subs+"/sub-1/dry-run", `[]`, ""), 422, "body")
}
