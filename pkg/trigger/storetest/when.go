package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// whenTests are those of conditions in CEL, and of args and vars that hold
// expressions.
func whenTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestT5_EvaluationThatFailsIsPoison":           testT5Evaluation,
		"TestT5_WhenOfAnotherVersionIsNotFalse":        testT5Foreign,
		"TestWhen_FailingSubscriptionIsFlaggedOnce":    testWhenFlagged,
		"TestWhen_FailingSubscriptionIsPaused":         testWhenFailingPauses,
		"TestWhen_FlagLosesToAnEdit":                   testWhenFlagLoses,
		"TestW6_EvaluationThatFailsIsAFailedAttempt":   testW6Fails,
		"TestW6_WhenIsOfTheCurrentSubscription":        testW6Current,
		"TestW12_ArgsAreRenderedFromTheEvent":          testW12Rendered,
		"TestW12_PlanKeepsWhatWasRendered":             testW12Plan,
		"TestW7_ArgsThatCannotBeRenderedSpendNothing":  testW7Unrendered,
		"TestPromote_ArgsAreRendered":                  testPromoteRendered,
		"TestWhen_MatchersAreByRevisionInTheWorkerToo": testWhenRevisions,
	}
}

func when(source string) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) { s.When = source }
}

func onCreated(s *trigger.Subscription) { s.On.Kinds = []tracker.Kind{tracker.KindCreated} }

// fails is a condition that can't be evaluated on a card without labels.
const fails = `card.labels[0] == "bug"`

// edit saves the subscription changed.
func (b *bundle) edit(t *testing.T, id string, f func(*trigger.Subscription)) {
	t.Helper()
	s, err := b.real.SubscriptionGet(t.Context(), tenant, id)
	require.NoError(t, err)
	f(s)
	s.Revision++
	require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
}

// fresh makes a card, whose event goes to the log.
func (b *bundle) fresh(t *testing.T, id string, labels ...string) {
	t.Helper()
	b.create(t, id, "open", labels...)
	b.relayed(t, id)
}

func testT5Evaluation(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "fails", "", func(s *trigger.Subscription) { s.If = trigger.Conditions{} }, onCreated, when(fails))
	b.subscribe(t, "works", "", func(s *trigger.Subscription) { s.If = trigger.Conditions{} }, onCreated, when(`card.title == "Card c1"`))
	b.fresh(t, "c1")
	b.fresh(t, "c2", "bug")
	b.drain(t)
	require.EqualValues(t, 2, b.head(t).Cursor, "a failing evaluation does not hold up the tenant")
	first, second := trigger.EventID(tenant, 1), trigger.EventID(tenant, 2)
	require.Len(t, b.rows(t), 3)
	b.row(t, trigger.EffectID(first, "works"))
	b.row(t, trigger.EffectID(second, "fails"))
	poison := b.row(t, trigger.PoisonID(first))
	require.Equal(t, trigger.StateFailed, poison.State)
	require.Equal(t, "subscription fails: when: index out of bounds: 0", poison.Errors[0].Message)
	require.EqualValues(t, 1, b.tail.EvaluationsFailed())

	// Replayed as it is it fails again; once the condition was mended, it fires.
	require.Equal(t, trigger.StateFailed, b.runs(t, poison.ID).State)
	b.edit(t, "fails", when(`"bug" in card.labels || card.title == "Card c1"`))
	got := b.runs(t, poison.ID)
	require.Equal(t, trigger.OutcomeMatched, got.Outcome)
	b.row(t, trigger.EffectID(first, "fails"))
	require.Len(t, b.rows(t), 4)
}

func testT5Foreign(t *testing.T, b *bundle) {
	s := b.subscribe(t, "s1", "bug")
	s.When, s.Revision = `card.of_a_newer_version == "x"`, 2
	require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
	b.fresh(t, "c1")
	b.fresh(t, "c2", "bug")
	b.drain(t)
	rows := b.rows(t)
	require.Len(t, rows, 1, "only where it would have decided")
	require.Equal(t, trigger.PoisonID(trigger.EventID(tenant, 2)), rows[0].ID)
	require.Contains(t, rows[0].Errors[0].Message, "when: line 1, column 5: undefined field 'of_a_newer_version'")
}

func testWhenFlagged(t *testing.T, b *bundle) {
	ctx := t.Context()
	var log bytes.Buffer
	b.tail = b.newTail(&log)
	b.subscribe(t, "s1", "", func(s *trigger.Subscription) {
		s.If, s.ActiveFromSeq = trigger.Conditions{Columns: []string{"open"}}, 1
	}, onCreated, when(fails))
	flagged := func() *trigger.Subscription {
		b.drain(t)
		s, err := b.real.SubscriptionGet(ctx, tenant, "s1")
		require.NoError(t, err)
		return s
	}
	for i := range trigger.FailingAfter - 1 {
		b.fresh(t, fmt.Sprint("a", i))
	}
	require.Empty(t, flagged().Failing)
	// One that succeeds starts the count over.
	b.fresh(t, "b", "other")
	for i := range trigger.FailingAfter - 1 {
		b.fresh(t, fmt.Sprint("c", i))
	}
	// A batch that is repeated counts once.
	b.setCut(failOnce("HeadAdvance:before"))
	_, err := b.tail.Drain(ctx, tenant)
	require.ErrorIs(t, err, errCut)
	require.Empty(t, flagged().Failing)
	require.EqualValues(t, 1, flagged().Revision)

	// One that comes between and is decided without it says nothing.
	for i := range trigger.FailingAfter + 5 {
		b.create(t, fmt.Sprint("e", i), "done")
		b.relayed(t, fmt.Sprint("e", i))
		b.fresh(t, fmt.Sprint("d", i))
		flagged()
	}
	s := flagged()
	require.Equal(t, "when: index out of bounds: 0", s.Failing)
	require.WithinDuration(t, b.Now(), s.FailingSince, time.Minute)
	require.EqualValues(t, 2, s.Revision, "once")
	require.True(t, s.Enabled)
	require.EqualValues(t, 1, s.ActiveFromSeq)
	require.Equal(t, 1, strings.Count(log.String(), "keeps failing"), log.String())
}

// Failed rows are kept until somebody deals with them: a subscription that fails
// at every event is paused before they are without number, and nothing is lost.
func testWhenFailingPauses(t *testing.T, b *bundle) {
	const n = 300
	b.bot(t, "bot1")
	b.tail.Batch = 20
	b.subscribe(t, "s1", "bug", when(`card.labels[1] == "x"`), perMinute(1000))
	b.storm(t, n, noon, time.Second)
	b.drain(t)
	require.EqualValues(t, n, b.head(t).Cursor)
	s := b.sub(t, "s1")
	require.True(t, s.Paused)
	require.Equal(t, trigger.StormGuard, s.PausedBy)
	require.Equal(t, "100 evaluations in a row failed, the last one so: when: index out of bounds: 1", s.PausedWhy)
	require.NotEmpty(t, s.Failing)
	require.Equal(t, []string{"when", "held"}, s.Requires)
	poison := len(b.rows(t))
	require.LessOrEqual(t, poison, trigger.FailingAfter+trigger.FailingPauses+2*b.tail.Batch)
	require.EqualValues(t, poison+1, s.Guard.HeldFrom)
	require.EqualValues(t, 1, b.tail.Storms())
	b.explained(t, fmt.Sprint("c", n), "s1", trigger.AnswerEvaluation, "a release looks at this event again")

	// Resumed as it is, it is paused again, further on.
	_, _, err := b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.tail.Batch = 500
	b.laneSweep(t)
	require.Len(t, b.rows(t), poison+trigger.FailingPauses)
	poison += trigger.FailingPauses
	require.True(t, b.sub(t, "s1").Paused)
	require.EqualValues(t, poison+1, b.sub(t, "s1").Guard.HeldFrom)

	// Mended and resumed.
	b.edit(t, "s1", when(`"bug" in card.labels`))
	_, _, err = b.dead().SubscriptionResume(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	b.laneSweep(t)
	require.Equal(t, states{trigger.StatePending: n - poison}, b.statesOf(t, "s1"))
	b.runs(t, trigger.PoisonID(trigger.EventID(tenant, 1)))
	require.Equal(t, states{trigger.StatePending: n - poison + 1}, b.statesOf(t, "s1"))

	// The guard is off: so is this.
	b.subscribe(t, "s2", "bug", when(`card.labels[1] == "x"`), perMinute(0), func(s *trigger.Subscription) { s.ActiveFromSeq = n })
	b.storm(t, 150, noon, time.Second)
	b.drain(t)
	require.False(t, b.sub(t, "s2").Paused)
}

func testWhenFlagLoses(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "", func(s *trigger.Subscription) { s.If = trigger.Conditions{} }, onCreated, when(fails))
	for i := range trigger.FailingAfter {
		b.fresh(t, fmt.Sprint("c", i))
	}
	mend := sync.OnceFunc(func() { b.edit(t, "s1", when(`has(card.title)`)) })
	b.tail.Config = &editing{Config: b.faults, before: mend}
	b.drain(t)
	require.EqualValues(t, trigger.FailingAfter, b.head(t).Cursor)
	s, err := b.real.SubscriptionGet(ctx, tenant, "s1")
	require.NoError(t, err)
	require.Empty(t, s.Failing, "the edit may have mended it")
	require.Equal(t, `has(card.title)`, s.When)
}

func testW6Fails(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.fresh(t, "c1", "bug")
	b.drain(t)
	id := trigger.EffectID(trigger.EventID(tenant, 1), "s1")
	b.edit(t, "s1", when(`card.labels[7] == "x"`))
	row := b.take(t, id)
	ev := b.evaluator().Evaluate(t.Context(), &row)
	require.ErrorContains(t, ev.Err, "evaluate subscription s1: when: index out of bounds: 7")
	require.Empty(t, ev.Outcome, "neither matches nor does not")
	require.False(t, ev.Uncounted)
	require.Empty(t, b.launches.all())
}

func testW6Current(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug", when(`card.title == "Card c1"`))
	b.fresh(t, "c1", "bug")
	b.drain(t)
	id := trigger.EffectID(trigger.EventID(tenant, 1), "s1")
	b.edit(t, "s1", when(`card.title == "another"`))
	require.Equal(t, trigger.OutcomeNoLongerMatches, b.runs(t, id).Outcome)
	require.Empty(t, b.launches.all())
}

func testWhenRevisions(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.fresh(t, "c1", "bug")
	b.fresh(t, "c2", "bug")
	b.drain(t)
	v := b.evaluator()
	run := func(seq int64) trigger.Outcome {
		row := b.take(t, trigger.EffectID(trigger.EventID(tenant, seq), "s1"))
		return v.Evaluate(t.Context(), &row).Outcome
	}
	require.Equal(t, trigger.OutcomeLaunched, run(1))
	b.edit(t, "s1", when(`card.title == "another"`))
	require.Equal(t, trigger.OutcomeNoLongerMatches, run(2))
}

// body is the last launch's.
func (b *bundle) body(t *testing.T) trigger.LaunchBody {
	t.Helper()
	all := b.launches.all()
	require.NotEmpty(t, all)
	var body trigger.LaunchBody
	require.NoError(t, json.Unmarshal([]byte(all[len(all)-1].Body), &body))
	return body
}

func testW12Rendered(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) {
		s.Args = map[string]string{"title": "Fix ${card.title} now", "plain": "$x {y}", "escaped": "$${card.title}"}
		s.Vars = map[string]string{"who": `${actor.kind}:${actor.id}`, "n": "${size(card.labels)}", "kind": `${event.kind + "}"}`}
	})
	b.fresh(t, "c1", "bug")
	b.drain(t)
	// The text of later edits is the card's in the body, not the event's.
	b.change(t, "c1", retitle("another"))
	require.Equal(t, trigger.OutcomeLaunched, b.runs(t, trigger.EffectID(trigger.EventID(tenant, 1), "s1")).Outcome)
	body := b.body(t)
	require.Equal(t, map[string]string{"title": "Fix Card c1 now", "plain": "$x {y}", "escaped": "${card.title}"}, body.Args)
	require.Equal(t, map[string]string{"who": "human:mona", "n": "1", "kind": "card.created}"}, body.Vars)
	require.Equal(t, "another", body.Card.Title)
}

func testW12Plan(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) { s.Args = map[string]string{"title": "${card.title}"} })
	id := b.fired(t, "c1").ID
	b.launches.down = 1
	_, err := b.attempt(t, id)
	require.Error(t, err)
	require.Contains(t, b.row(t, id).Plan.Body, `"args":{"title":"Card c1"}`)
	b.edit(t, "s1", func(s *trigger.Subscription) { s.Args = map[string]string{"title": "edited"} })
	_, err = b.attempt(t, id)
	require.NoError(t, err)
	_, bodies := b.launchesOf(id)
	require.Len(t, bodies, 1, "what was rendered is kept")
}

func testW7Unrendered(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "ship-it", oneShot("ship-it"), func(s *trigger.Subscription) {
		s.Args = map[string]string{"fine": "${card.title}", "third": "${card.labels[2]}"}
	})
	id := b.fired(t, "c1").ID
	row := b.take(t, id)
	ev := b.evaluator().Evaluate(t.Context(), &row)
	var le *trigger.LaunchError
	require.ErrorAs(t, ev.Err, &le)
	require.True(t, le.Permanent)
	require.False(t, ev.Uncounted)
	require.Equal(t, "args.third: index out of bounds: 2", le.Message)
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.True(t, card.HasLabel("ship-it"), "nothing was spent")
	require.Empty(t, b.launches.all())
}

func testPromoteRendered(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) {
		s.Mode, s.Args = trigger.ModePromote, map[string]string{"title": "${card.title}"}
	})
	b.fresh(t, "c1", "bug")
	b.drain(t)
	id := trigger.EffectID(trigger.EventID(tenant, 1), "s1")
	require.Equal(t, trigger.OutcomePromoted, b.runs(t, id).Outcome)
	card, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"title": "Card c1"}, card.BotArgs)

	b.subscribe(t, "s2", "other", func(s *trigger.Subscription) {
		s.Mode, s.Args = trigger.ModePromote, map[string]string{"n": "${1 / (size(card.labels) - 1)}"}
	})
	b.fresh(t, "c2", "other")
	b.drain(t)
	row := b.take(t, trigger.EffectID(trigger.EventID(tenant, b.head(t).Seq), "s2"))
	ev := b.evaluator().Evaluate(t.Context(), &row)
	require.ErrorContains(t, ev.Err, "args.n: division by zero")
}
