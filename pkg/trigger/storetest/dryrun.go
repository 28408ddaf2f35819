package storetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// draft is a subscription that nobody saved.
func draft(label string) *trigger.Subscription {
	return &trigger.Subscription{Name: "draft", BotID: "bot1", ActiveFromSeq: 999, If: trigger.Conditions{LabelsAll: []string{label}}}
}

func (b *bundle) dry(t *testing.T, s *trigger.Subscription, p trigger.DryRunParams) (*trigger.DryRun, []int64) {
	t.Helper()
	got, err := b.explainer().DryRun(t.Context(), tenant, s, p)
	require.NoError(t, err)
	seqs := []int64{}
	fired := 0
	for _, v := range got.Verdicts {
		seqs = append(seqs, v.EventSeq)
		if v.Fires {
			fired++
		}
	}
	require.Equal(t, fired, got.Fired)
	require.NotEmpty(t, got.Notes)
	return got, seqs
}

func testDryRunLog(t *testing.T, b *bundle) {
	ctx := t.Context()
	_, seqs := b.dry(t, draft("bug"), trigger.DryRunParams{})
	require.Empty(t, seqs, "a tenant without a log")
	for i := range 6 {
		card := fmt.Sprint("c", i)
		b.create(t, card, "open", []string{"bug", "docs"}[i%2])
		b.relayed(t, card)
	}
	first, err := b.allocate(ctx, tenant, 1)
	require.NoError(t, err)
	require.NoError(t, b.real.EventFillVoids(ctx, tenant, []int64{first}))
	b.create(t, "c7", "open", "bug")
	b.relayed(t, "c7") // 8; no tail has read any
	got, seqs := b.dry(t, draft("bug"), trigger.DryRunParams{})
	require.Equal(t, []int64{8, 6, 5, 4, 3, 2, 1}, seqs, "newest first, no void")
	require.Equal(t, 4, got.Fired, "neither enabled nor active: that is not looked at")
	require.Zero(t, got.Next)
	require.Equal(t, "c7", got.Verdicts[0].CardID)
	require.Equal(t, tracker.KindCreated, got.Verdicts[0].EventKind)
	require.Equal(t, human, got.Verdicts[0].Actor)

	got, seqs = b.dry(t, draft("bug"), trigger.DryRunParams{Last: 3})
	require.Equal(t, []int64{8, 6, 5}, seqs)
	require.EqualValues(t, 5, got.Next)
	got, seqs = b.dry(t, draft("bug"), trigger.DryRunParams{Last: 3, BeforeSeq: got.Next})
	require.Equal(t, []int64{4, 3, 2}, seqs)
	got, seqs = b.dry(t, draft("bug"), trigger.DryRunParams{Last: 3, BeforeSeq: got.Next})
	require.Equal(t, []int64{1}, seqs)
	require.Zero(t, got.Next)
	require.Empty(t, b.rows(t))
}

func testDryRunGaps(t *testing.T, b *bundle) {
	ctx := t.Context()
	_, err := b.allocate(ctx, tenant, 5000)
	require.NoError(t, err)
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, []trigger.Event{b.late(7), {
		TenantID: tenant, Seq: 4990, Source: trigger.SourceBoard, BoardEvent: tracker.BoardEvent{EID: "board:x", Kind: tracker.KindCreated, CardID: "x", After: &tracker.Snapshot{}},
	}}))
	// A dry run looks past so many seqs, and says where to go on.
	p := trigger.DryRunParams{Last: 100}
	var all []int64
	runs := 0
	for range 6 {
		runs++
		got, seqs := b.dry(t, draft("bug"), p)
		all = append(all, seqs...)
		if got.Next == 0 {
			break
		}
		require.GreaterOrEqual(t, got.Next, max(orEnd(p.BeforeSeq)-1100, 1))
		p.BeforeSeq = got.Next
	}
	require.Equal(t, []int64{4990, 7}, all)
	require.Greater(t, runs, 3)
	_, seqs := b.dry(t, draft("bug"), trigger.DryRunParams{CardID: "late"})
	require.Equal(t, []int64{7}, seqs, "a card's are found at once")
}

func orEnd(before int64) int64 {
	if before == 0 {
		return 5001
	}
	return before
}

func testDryRunCard(t *testing.T, b *bundle) {
	b.create(t, "c1", "open")
	b.create(t, "c2", "open", "bug")
	b.change(t, "c1", addLabel("bug"))
	for i := range 120 {
		b.change(t, "c1", retitle(fmt.Sprint("Title ", i)))
		b.relayed(t, "c1")
	}
	b.relayed(t, "c2")
	got, seqs := b.dry(t, draft("bug"), trigger.DryRunParams{CardID: "c1", Last: 1000})
	require.Len(t, seqs, 122)
	require.True(t, slices.IsSortedFunc(seqs, func(a, b int64) int { return int(b - a) }))
	require.Equal(t, 1, got.Fired)
	require.Zero(t, got.Next)
	var paged []int64
	for p := (trigger.DryRunParams{CardID: "c1", Last: 50}); ; {
		got, part := b.dry(t, draft("bug"), p)
		paged = append(paged, part...)
		if p.BeforeSeq = got.Next; p.BeforeSeq == 0 {
			break
		}
	}
	require.Equal(t, seqs, paged)
	_, seqs = b.dry(t, draft("bug"), trigger.DryRunParams{CardID: "nobody"})
	require.Empty(t, seqs)
}

func testDryRunRefusals(t *testing.T, b *bundle) {
	for field, c := range map[string]struct {
		change func(*trigger.Subscription)
		p      trigger.DryRunParams
	}{
		"name":      {func(s *trigger.Subscription) { s.Name = "" }, trigger.DryRunParams{}},
		"bot_id":    {func(s *trigger.Subscription) { s.BotID = "" }, trigger.DryRunParams{}},
		"on, if":    {func(s *trigger.Subscription) { s.If = trigger.Conditions{} }, trigger.DryRunParams{}},
		"tenant_id": {func(s *trigger.Subscription) { s.TenantID = "other" }, trigger.DryRunParams{}},
		"requires":  {func(s *trigger.Subscription) { s.Requires = []string{"telepathy"} }, trigger.DryRunParams{}},
		"last":      {func(*trigger.Subscription) {}, trigger.DryRunParams{Last: trigger.DryRunLastMax + 1}},
		"before":    {func(*trigger.Subscription) {}, trigger.DryRunParams{BeforeSeq: -1}},
	} {
		s := draft("bug")
		c.change(s)
		_, err := b.explainer().DryRun(t.Context(), tenant, s, c.p)
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, field)
		require.Equal(t, field, fe.Field)
	}
	_, err := b.explainer().DryRun(t.Context(), tenant, draft("bug"), trigger.DryRunParams{Last: -1})
	require.Error(t, err)
	_, err = b.explainer().SubscriptionLog(t.Context(), tenant, "s1", 0, trigger.LogMax+1)
	require.Error(t, err)
}

// A verdict comes through as the matcher gave it, conditions and all, in a dry
// run and in an explanation.
func testDryRunVerdicts(t *testing.T, b *bundle) {
	sub := b.owing(t)
	b.read(t, "c1", byBot("docs"))
	b.read(t, "c1", retitle("Other"))
	m, err := trigger.NewMatcher(sub)
	require.NoError(t, err)
	got, seqs := b.dry(t, sub, trigger.DryRunParams{})
	require.Equal(t, []int64{3, 2, 1}, seqs)
	events := b.events(t)
	for i, v := range got.Verdicts {
		want := m.Verdict(&events[2-i])
		if want.Conditions == nil {
			want.Conditions = []trigger.Condition{}
		}
		require.Equal(t, want, v.Verdict)
	}
	e := b.explained(t, "c1", "s1", trigger.AnswerPending)
	require.Equal(t, got.Verdicts[2].Verdict, *e.Verdict)
	require.Equal(t, got.Verdicts[0].Verdict, *e.Latest)
}

func testSubscriptionLog(t *testing.T, b *bundle) {
	b.bot(t, "bot1")
	b.subscribe(t, "s1", "bug")
	b.subscribe(t, "s2", "bug")
	for i := range 7 {
		card := fmt.Sprint("c", i)
		b.create(t, card, "open", "bug")
		b.relayed(t, card)
	}
	b.drain(t)
	b.decide(t, *b.row(t, b.failedRow(t, 3)), trigger.ActionDiscard)
	x := b.explainer()
	var seqs []int64
	answers := map[int64]trigger.Answer{}
	for before := int64(0); ; {
		page, err := x.SubscriptionLog(t.Context(), tenant, "s1", before, 3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Entries), 3)
		for _, e := range page.Entries {
			seqs = append(seqs, e.EventSeq)
			answers[e.EventSeq] = e.Answer
			require.Equal(t, trigger.EffectID(trigger.EventID(tenant, e.EventSeq), "s1"), e.ID)
			require.Equal(t, fmt.Sprint("c", e.EventSeq-1), e.CardID)
			require.NotEmpty(t, e.Sentence)
		}
		if before = page.Next; before == 0 {
			break
		}
	}
	require.Equal(t, []int64{7, 6, 5, 4, 3, 2, 1}, seqs)
	require.Equal(t, trigger.AnswerDiscarded, answers[3])
	require.Equal(t, trigger.AnswerPending, answers[4])
	_, err := x.SubscriptionLog(t.Context(), tenant, "s9", 0, 3)
	require.ErrorIs(t, err, tracker.ErrNotFound)
}

// failedRow claims s1's rows, has that of the seq fail, and hands the others
// back; it returns the id.
func (b *bundle) failedRow(t *testing.T, seq int64) string {
	t.Helper()
	id := trigger.EffectID(trigger.EventID(tenant, seq), "s1")
	rows, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 100, 1e12))
	require.NoError(t, err)
	for _, row := range rows {
		s := trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StatePending, HandBack: true, NotBefore: b.real.Now()}
		if row.ID == id {
			s.To, s.HandBack, s.Reason = trigger.StateFailed, false, trigger.ReasonPermanent
		}
		require.True(t, b.settle(t, s))
	}
	return id
}

func testEventListByCard(t *testing.T, b *bundle) {
	ctx := t.Context()
	var events []trigger.Event
	// Far apart, in the window, and at its ends.
	seqs := []int64{1, 2, 3, 900, 4000, 4001, 5000, 9000, 9999, 10_000}
	for _, seq := range seqs {
		e := b.late(seq)
		e.CardID = "c1"
		events = append(events, e)
	}
	other := b.late(9998)
	other.CardID = "c2"
	require.NoError(t, b.real.EventInsertMany(ctx, tenant, append(events, other)))
	foreign := b.late(9997)
	foreign.TenantID, foreign.CardID = "other", "c1"
	require.NoError(t, b.real.EventInsertMany(ctx, "other", []trigger.Event{foreign}))
	slices.Reverse(seqs)
	for _, before := range []int64{0, 1, 2, 3, 901, 4001, 9000, 10_000, 10_001, 1 << 40} {
		for _, limit := range []int{1, 3, 100} {
			got, err := b.real.EventListByCard(ctx, tenant, "c1", before, limit)
			require.NoError(t, err)
			var want, have []int64
			for _, seq := range seqs {
				if seq < before && len(want) < limit {
					want = append(want, seq)
				}
			}
			for _, e := range got {
				have = append(have, e.Seq)
				require.Equal(t, "c1", e.CardID)
				require.NotNil(t, e.After)
			}
			require.Equal(t, want, have, "before %d, %d", before, limit)
		}
	}
}

func testEffectListBySubscription(t *testing.T, b *bundle) {
	ctx := t.Context()
	seqs := []int{1, 2, 900, 5000, 9000, 9999, 10_000}
	for _, n := range seqs {
		b.materialize(t, inState(n, []trigger.State{trigger.StateDone, trigger.StateFailed, trigger.StatePending}[n%3], b.real.Now()))
	}
	other := effect(9998, lane, b.real.Now())
	other.ID, other.SubscriptionID = trigger.EffectID(trigger.EventID(tenant, 9998), "s2"), "s2"
	b.materialize(t, other)
	slices.Reverse(seqs)
	for _, before := range []int64{0, 1, 2, 901, 9000, 10_001, 1 << 40} {
		for _, limit := range []int{1, 3, 100} {
			got, err := b.real.EffectListBySubscription(ctx, tenant, "s1", before, limit)
			require.NoError(t, err)
			var want []string
			have := []string(nil)
			for _, n := range seqs {
				if int64(n) < before && len(want) < limit {
					want = append(want, effect(n, lane, startedAt).ID)
				}
			}
			for _, row := range got {
				have = append(have, row.ID)
			}
			require.Equal(t, want, have, "before %d, %d", before, limit)
		}
	}
	none, err := b.real.EffectListBySubscription(ctx, "other", "s1", 1<<40, 10)
	require.NoError(t, err)
	require.Empty(t, none)
}
