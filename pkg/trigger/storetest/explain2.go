package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// byBot is a bot's labeling.
func byBot(label string) tracker.Changer {
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		next, event, err := addLabel(label)(card, now)
		event.Actor = tracker.Actor{Kind: tracker.ActorBot, ID: "bot9", Name: "hubot"}
		return next, event, err
	}
}

func onKinds(kinds ...tracker.Kind) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) { s.On.Kinds = kinds }
}

// read makes a change, and has the tail read its event.
func (b *bundle) read(t *testing.T, card string, f tracker.Changer) {
	t.Helper()
	b.change(t, card, f)
	b.relayed(t, card)
	b.drain(t)
}

func testExplainCondition(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "bug", onKinds(tracker.KindMoved, tracker.KindEdited))
	b.create(t, "c1", "open", "docs")
	b.read(t, "c1", retitle("Other"))
	got := b.explained(t, "c1", "s1", trigger.AnswerCondition, "Event 2 (card.edited by mona) did not fire it: ")
	require.EqualValues(t, 2, got.Event.Seq, "the newest")
	require.False(t, got.Verdict.Fires)
	require.Nil(t, got.Row)
	// With kinds the newest event of those decides, whatever came after.
	b.read(t, "c1", addLabel("later"))
	got = b.explained(t, "c1", "s2", trigger.AnswerCondition, "Event 2")
	require.EqualValues(t, 3, got.Latest.EventSeq)
	// The failed condition is the first of the verdict's that did not hold.
	if i := slices.IndexFunc(got.Verdict.Conditions, func(c trigger.Condition) bool { return !c.Held }); i >= 0 {
		require.Equal(t, got.Verdict.Conditions[i], *got.Failed)
	}
	// None of these at all: the card's newest.
	b.subscribe(t, "s3", "bug", onKinds(tracker.KindDeleted))
	require.EqualValues(t, 3, b.explained(t, "c1", "s3", trigger.AnswerCondition).Event.Seq)
	// What is not in the log yet is the newest, too.
	b.change(t, "c1", retitle("Third"))
	require.Zero(t, b.explained(t, "c1", "s2", trigger.AnswerCondition, "A change (card.edited by mona)").Event.Seq)
}

func testExplainActor(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", onKinds(tracker.KindLabeled))
	b.subscribe(t, "s2", "bug", onKinds(tracker.KindLabeled), func(s *trigger.Subscription) { s.On.Actors = []string{"bot9"} })
	b.create(t, "c1", "open")
	b.read(t, "c1", byBot("bug"))
	b.explained(t, "c1", "s1", trigger.AnswerActor, "does not accept events of the bot hubot")
	b.explained(t, "c1", "s2", trigger.AnswerPending)
	b.subscribe(t, "s3", "docs", onKinds(tracker.KindLabeled))
	b.explained(t, "c1", "s3", trigger.AnswerCondition)
}

func testExplainEdge(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "bug", func(s *trigger.Subscription) { s.On.Actors = []string{"hubot"} })
	b.subscribe(t, "s3", "bug", func(s *trigger.Subscription) { s.On.BoardID = "b2" })
	b.create(t, "c1", "open")
	b.read(t, "c1", byBot("bug"))
	b.read(t, "c1", retitle("Other"))
	got := b.explained(t, "c1", "s1", trigger.AnswerEdgeSpent, "event 2 (card.labeled by the bot hubot)", "the edge is spent")
	require.EqualValues(t, 2, got.Event.Seq)
	require.EqualValues(t, 3, got.Latest.EventSeq)
	b.explained(t, "c1", "s2", trigger.AnswerEdgeSpent)
	b.explained(t, "c1", "s3", trigger.AnswerEdgeSpent)
}

func testExplainEnabledAfter(t *testing.T, b *bundle) {
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.ActiveFromSeq = 1 })
	// That a number is not after another is no proof (T7), and the answer says so.
	b.explained(t, "c1", "s1", trigger.AnswerEnabledAfter, "after event 1", "under way", "either side")
	b.read(t, "c1", addLabel("docs"))
	b.explained(t, "c1", "s1", trigger.AnswerEnabledAfter)
	// A row is more than any number.
	b.create(t, "c2", "open", "bug")
	b.relayed(t, "c2")
	b.drain(t)
	sub := b.sub(t, "s1")
	sub.ActiveFromSeq, sub.Revision = 9, 2
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	b.explained(t, "c2", "s1", trigger.AnswerPending)
}

func testExplainDisabled(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", func(s *trigger.Subscription) { s.Enabled = false })
	b.create(t, "c1", "open", "bug")
	b.create(t, "c2", "open", "docs")
	b.relayed(t, "c1")
	b.relayed(t, "c2")
	b.drain(t)
	b.explained(t, "c1", "s1", trigger.AnswerDisabled, "event 1 (card.created by mona) would have fired it")
	b.explained(t, "c2", "s1", trigger.AnswerDisabled, "would not have fired it anyway")
}

func testExplainNotRead(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	got := b.explained(t, "c1", "s1", trigger.AnswerNotRead, "has not reached the log yet")
	require.Zero(t, got.Event.Seq)
	b.relayed(t, "c1")
	got = b.explained(t, "c1", "s1", trigger.AnswerNotRead, "Event 1", "the log is read up to number 0")
	require.EqualValues(t, 1, got.Event.Seq)
	b.drain(t)
	b.explained(t, "c1", "s1", trigger.AnswerPending)
	// In the log, and still on its card: it is there once, with its seq.
	b.create(t, "c2", "open", "bug")
	b.crashed(t, "c2", "CardPendingRemove:before")
	require.EqualValues(t, 2, b.explained(t, "c2", "s1", trigger.AnswerNotRead).Event.Seq)
}

func testExplainPoison(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug", onKinds(tracker.Kinds()...))
	b.subscribe(t, "s2", "docs", onKinds(tracker.Kinds()...))
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	poison := b.unread(t, "c1")
	got := b.explained(t, "c1", "s1", trigger.AnswerPoison, "Event 2", "could not be handled", "replay it")
	require.Equal(t, poison.ID, got.Row.ID)
	b.explained(t, "c1", "s2", trigger.AnswerCondition)
}

func testExplainReplayed(t *testing.T, b *bundle) {
	testExplainPoison(t, b)
	b.decide(t, *b.row(t, trigger.PoisonID(trigger.EventID(tenant, 2))), trigger.ActionReplay)
	b.explained(t, "c1", "s1", trigger.AnswerPoison)
	b.bot(t, "bot1")
	b.work(t, 3) // the event, and the two rows that are owed
	b.explained(t, "c1", "s1", trigger.AnswerFired, "Event 2")
	// Poison no more, for one that came later neither.
	b.subscribe(t, "s3", "bug", onKinds(tracker.Kinds()...), func(s *trigger.Subscription) { s.UpdatedAt = b.real.Now().Add(time.Minute) })
	b.explained(t, "c1", "s3", trigger.AnswerChangedSince)
}

// A when that fails: its own subscription hears of the poison row and of what
// became of it, another one does not.
func testExplainWhenFails(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	every := func(s *trigger.Subscription) { s.If, s.On.Kinds = trigger.Conditions{}, tracker.Kinds() }
	b.subscribe(t, "s1", "", every, when(fails))
	b.create(t, "c1", "open")
	b.relayed(t, "c1")
	b.drain(t)
	poison := b.row(t, trigger.PoisonID(trigger.EventID(tenant, 1)))
	got := b.explained(t, "c1", "s1", trigger.AnswerPoison, "Event 1", "subscription s1: when: index out of bounds: 0", "replay it")
	require.Equal(t, "when: index out of bounds: 0", got.Verdict.Error)
	require.Equal(t, "when", got.Failed.Name)
	require.Contains(t, got.Failed.Found, "an evaluation that failed")
	b.subscribe(t, "s2", "", every, func(s *trigger.Subscription) { s.ActiveFromSeq = 1 })
	b.explained(t, "c1", "s2", trigger.AnswerEnabledAfter)
	b.subscribe(t, "s3", "", every, when(fails), func(s *trigger.Subscription) { s.ActiveFromSeq = 1 })
	b.explained(t, "c1", "s3", trigger.AnswerEnabledAfter)

	// Replayed, and given up.
	b.decide(t, *poison, trigger.ActionReplay)
	b.explained(t, "c1", "s1", trigger.AnswerPoison, "is being handled again")
	b.work(t, 1)
	b.explained(t, "c1", "s1", trigger.AnswerPoison, "replay it")
	b.decide(t, *b.row(t, poison.ID), trigger.ActionDiscard)
	b.explained(t, "c1", "s1", trigger.AnswerDiscarded, "Event 1 (card.created by mona) could not be handled", "cli:mona gave it up")

	// It fails since an edit alone: there is no row of it.
	b.subscribe(t, "s4", "", every, when(`card.title == "another"`))
	b.create(t, "c2", "open")
	b.relayed(t, "c2")
	b.edit(t, "s1", func(s *trigger.Subscription) { s.Enabled = false })
	b.edit(t, "s3", func(s *trigger.Subscription) { s.Enabled = false })
	b.drain(t)
	b.explained(t, "c2", "s4", trigger.AnswerCondition)
	b.edit(t, "s4", when(fails))
	got = b.explained(t, "c2", "s4", trigger.AnswerEvaluation, "Event 2", "the evaluation fails (when: index out of bounds: 0)")
	require.Nil(t, got.Row)
	// One that this version can't compile.
	b.edit(t, "s4", when(`card.of_a_newer_version == "x"`))
	b.explained(t, "c2", "s4", trigger.AnswerEvaluation, "can't be evaluated: when: line 1, column 5")
}

func testExplainEvaluation(t *testing.T, b *bundle) {
	ctx := t.Context()
	b.subscribe(t, "s1", "bug")
	seq, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	bare := b.late(seq)
	bare.After = nil
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{bare}))
	b.explained(t, "late", "s1", trigger.AnswerNotRead, "can't be evaluated now")
	b.drain(t)
	got := b.explained(t, "late", "s1", trigger.AnswerEvaluation, "the card is gone")
	require.NotEmpty(t, got.Verdict.Error)
	// It stays the one that decides while later ones don't concern anybody.
	seq, err = b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	later := b.late(seq)
	later.Kind, later.After = tracker.KindEdited, &tracker.Snapshot{BoardID: "b1", ColumnID: "open"}
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{later}))
	require.EqualValues(t, 1, b.explained(t, "late", "s1", trigger.AnswerEvaluation).Event.Seq)
	dry, err := b.explainer().DryRun(ctx, tenant, b.sub(t, "s1"), trigger.DryRunParams{})
	require.NoError(t, err)
	require.Contains(t, dry.Verdicts[1].Error, "the card is gone")
}

func testExplainChangedSince(t *testing.T, b *bundle) {
	sub := b.subscribe(t, "s1", "docs")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.explained(t, "c1", "s1", trigger.AnswerCondition)
	sub.If.LabelsAll, sub.Revision, sub.UpdatedAt = []string{"bug"}, 2, b.real.Now().Add(time.Second)
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	b.explained(t, "c1", "s1", trigger.AnswerChangedSince, "changed since")
	// A discard is of what was held, not of all that came before it.
	_, _, err := b.dead().SubscriptionDiscard(t.Context(), tenant, "s1", "cli:mona")
	require.NoError(t, err)
	sub = b.sub(t, "s1")
	sub.Revision, sub.UpdatedAt = sub.Revision+1, b.real.Now().Add(time.Second)
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	b.explained(t, "c1", "s1", trigger.AnswerChangedSince)
	// What it was like then is not guessed where the event does not fire it either.
	sub = b.sub(t, "s1")
	sub.If.LabelsAll, sub.Revision, sub.UpdatedAt = []string{"wip"}, sub.Revision+1, b.real.Now().Add(time.Second)
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	got := b.explained(t, "c1", "s1", trigger.AnswerCondition, `Event 1 (card.created by mona) did not fire it: if.labels_all: wanted all of the labels "wip", found "bug".`)
	require.Len(t, got.Notes, 1)
	require.Contains(t, got.Notes[0], "changed since")
}

func testExplainEdited(t *testing.T, b *bundle) {
	sub := b.owing(t)
	b.work(t, 1)
	sub.If.LabelsAll, sub.Revision = []string{"docs"}, 2
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	got := b.explained(t, "c1", "s1", trigger.AnswerFired)
	require.Contains(t, got.Notes, "The subscription was changed since: as it is now, that event would not fire it.")
	require.EqualValues(t, 1, got.Latest.EventSeq)
	require.False(t, got.Latest.Fires)
}

func testExplainNotKept(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "docs")
	b.relayed(t, "c1")
	b.drain(t)
	b.explained(t, "c1", "s1", trigger.AnswerCondition)
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	require.Empty(t, b.events(t))
	got := b.explained(t, "c1", "s1", trigger.AnswerEventNotKept, "None of the card's events is kept")
	require.Nil(t, got.Event)
	require.Nil(t, got.Verdict)
}

func testExplainBefore(t *testing.T, b *bundle) {
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	b.pass(-trigger.EventRetentionDefault - time.Hour)
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "docs")
	b.read(t, "c1", retitle("Other"))
	b.explained(t, "c1", "s1", trigger.AnswerEventNotKept, "since before the oldest event")
	b.explained(t, "c1", "s2", trigger.AnswerCondition)
}

func testExplainOutlived(t *testing.T, b *bundle) {
	testExplainFailed(t, b)
	b.pass(trigger.EventRetentionDefault + time.Hour)
	b.clean(t)
	require.Empty(t, b.events(t))
	got := b.explained(t, "c1", "s1", trigger.AnswerFailed, "status 400")
	require.Contains(t, got.Notes, "The event is no longer kept; its row is.")
	require.EqualValues(t, 1, got.Event.Seq)
	require.Nil(t, got.Verdict)
	b.explained(t, "c2", "s1", trigger.AnswerCardUnknown)
}

func testExplainUnknown(t *testing.T, b *bundle) {
	b.owing(t)
	b.explained(t, "c9", "s1", trigger.AnswerCardUnknown)
	// One that is gone is not unknown while its events are there.
	b.remove(t, "c1")
	b.relayed(t, "c1")
	b.drain(t)
	_, err := b.real.CardGet(t.Context(), tenant, "c1")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	b.explained(t, "c1", "s1", trigger.AnswerPending)
}

func testExplainNobodyKnows(t *testing.T, b *bundle) {
	b.subscribe(t, "s1", "bug")
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	moved, err := b.real.HeadAdvance(t.Context(), tenant, 0, 1)
	require.NoError(t, err)
	require.True(t, moved)
	b.explained(t, "c1", "s1", trigger.AnswerNobodyKnows, "there is no row")
}

func testExplainFeatures(t *testing.T, b *bundle) {
	sub := b.owing(t)
	sub.Requires, sub.Revision = []string{"telepathy"}, 2
	require.NoError(t, b.real.SubscriptionSave(t.Context(), sub))
	b.explained(t, "c1", "s1", trigger.AnswerUnknownFeatures, "telepathy")
}

func testExplainLatest(t *testing.T, b *bundle) {
	b.owing(t)
	b.read(t, "c1", retitle("Other"))
	got := b.explained(t, "c1", "s1", trigger.AnswerPending)
	require.EqualValues(t, 1, got.Event.Seq)
	require.EqualValues(t, 2, got.Latest.EventSeq)
	require.False(t, got.Latest.Fires)
}

func testExplainMany(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	const n = trigger.ExplainSubscriptionsMax + 5
	for i := range n {
		b.subscribe(t, fmt.Sprintf("s%03d", i), []string{"bug", "docs"}[i%2])
	}
	b.create(t, "c1", "open", "bug")
	b.relayed(t, "c1")
	b.drain(t)
	all, more, err := b.explainer().ExplainAll(t.Context(), tenant, "c1", "")
	require.NoError(t, err)
	require.True(t, more)
	require.Len(t, all, trigger.ExplainSubscriptionsMax)
	for i, e := range all {
		require.Equal(t, fmt.Sprintf("s%03d", i), e.SubscriptionID)
		require.Equal(t, []trigger.Answer{trigger.AnswerPending, trigger.AnswerCondition}[i%2], e.Answer)
	}
	all, more, err = b.explainer().ExplainAll(t.Context(), tenant, "c1", all[len(all)-1].SubscriptionName)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, all, 5)
}

func testExplainNone(t *testing.T, b *bundle) {
	b.owing(t)
	_, err := b.explainer().Explain(t.Context(), tenant, "c1", "s9")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.explainer().Explain(t.Context(), "other", "c1", "s1")
	require.ErrorIs(t, err, tracker.ErrNotFound)
	_, err = b.explainer().SubscriptionLog(t.Context(), "other", "s1", 0, 10)
	require.ErrorIs(t, err, tracker.ErrNotFound)
	all, more, err := b.explainer().ExplainAll(t.Context(), "other", "c1", "")
	require.NoError(t, err)
	require.Empty(t, all)
	require.False(t, more)
}
