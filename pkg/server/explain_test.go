package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// goodDraft is one that a dry run takes.
const goodDraft = `{"name":"draft","bot_id":"bot-1","on":{"kinds":["card.labeled","card.created"]},"if":{"labels_all":["Bug"]}}`

func decoded[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	return v
}

// history is a replica that has read an issue's deliveries, and launched.
func history(t *testing.T) *bundle {
	t.Helper()
	b := start(t)
	b.subscribe(t)
	for _, name := range []string{"issues.opened", "issues.labeled", "issues.unlabeled"} {
		require.Equal(t, "accepted", b.deliver(t, delivery{body: payload(t, name)}).hook(t).Status)
	}
	recv(t, b.settled)
	return b
}

func TestDryRunByAPI(t *testing.T) {
	t.Parallel()
	b := history(t)
	viewer := b.token(t, "acme")
	rows := b.state(t).Rows
	dry := decoded[trigger.DryRun](t, b.post(t, viewer, "/v1/tenants/acme/subscriptions/dry-run", goodDraft))
	require.Len(t, dry.Verdicts, len(b.events(t)))
	require.Equal(t, 1, dry.Fired)
	oldest := dry.Verdicts[len(dry.Verdicts)-1]
	require.True(t, oldest.Fires, "the created one, with its label")
	require.Equal(t, tracker.KindCreated, oldest.EventKind)
	require.Equal(t, issueCard(), oldest.CardID)
	require.NotNil(t, oldest.Conditions, "a list, and not null")
	require.NotEmpty(t, dry.Notes)

	dry = decoded[trigger.DryRun](t, b.post(t, viewer, "/v1/tenants/acme/subscriptions/sub-1/dry-run?last=1", ""))
	require.Len(t, dry.Verdicts, 1)
	require.Equal(t, "sub-1", dry.Verdicts[0].SubscriptionID)
	require.False(t, dry.Verdicts[0].Fires)
	require.Positive(t, dry.Next)
	dry = decoded[trigger.DryRun](t, b.post(t, viewer, fmt.Sprintf("/v1/tenants/acme/subscriptions/sub-1/dry-run?before=%d&card=%s", dry.Next, issueCard()), ""))
	require.Equal(t, 1, dry.Fired)
	require.Zero(t, dry.Next)
	require.Empty(t, decoded[trigger.DryRun](t, b.post(t, viewer, "/v1/tenants/acme/subscriptions/sub-1/dry-run?card=nobody", "")).Verdicts)
	require.Equal(t, rows, b.state(t).Rows, "nothing was written")

	require.Equal(t, 404, b.post(t, viewer, "/v1/tenants/acme/subscriptions/sub-9/dry-run", "").status)
	require.Equal(t, 404, b.post(t, b.token(t, "other"), "/v1/tenants/other/subscriptions/sub-1/dry-run", "").status)
	require.Equal(t, 404, b.post(t, b.token(t, "other"), "/v1/tenants/acme/subscriptions/dry-run", goodDraft).status)
	for query, field := range map[string]string{
		"last=0": "query.last", "last=1001": "query.last", "last=s3cret": "query.last", "before=-1": "query.before", "before=s3cret": "query.before",
		"card=s3cret'": "query.card",
	} {
		for path, body := range map[string]string{"dry-run": goodDraft, "sub-1/dry-run": ""} {
			a := b.post(t, viewer, "/v1/tenants/acme/subscriptions/"+path+"?"+query, body)
			require.Equal(t, 422, a.status, query)
			require.Equal(t, field, a.problem(t).Errors[0].Field)
		}
	}
}

func TestExplainByAPI(t *testing.T) {
	t.Parallel()
	b := history(t)
	viewer := b.token(t, "acme")
	path := "/v1/tenants/acme/cards/" + issueCard() + "/explain"
	page := decoded[Page[trigger.Explanation]](t, b.get(t, viewer, path+"?subscription=sub-1"))
	require.Len(t, page.Items, 1)
	got := page.Items[0]
	require.Equal(t, trigger.AnswerFired, got.Answer)
	require.Contains(t, got.Sentence, "run run-1")
	require.Equal(t, trigger.OutcomeLaunched, got.Row.Outcome)
	require.True(t, got.Verdict.Fires)
	require.NotNil(t, got.Latest)
	require.Equal(t, page, decoded[Page[trigger.Explanation]](t, b.get(t, viewer, path)), "of all subscriptions there is one")
	require.Empty(t, decoded[Page[trigger.Explanation]](t, b.get(t, viewer, path+"?after=greet")).Items)
	require.Equal(t, trigger.AnswerCardUnknown, decoded[Page[trigger.Explanation]](t, b.get(t, viewer, "/v1/tenants/acme/cards/nobody/explain")).Items[0].Answer)
	require.Equal(t, 404, b.get(t, viewer, path+"?subscription=sub-9").status)
	require.Equal(t, 404, b.get(t, b.token(t, "other"), path).status)
	require.Equal(t, 404, b.get(t, b.token(t, "other"), "/v1/tenants/other/cards/"+issueCard()+"/explain?subscription=sub-1").status)
	require.Equal(t, 404, b.get(t, b.token(t, ""), "/v1/tenants/nobody/cards/x/explain").status)
	// A mirror's id holds an @, and a long one a ~.
	for _, mirror := range []string{issueCard() + "@01a22c7d-3f36-762c-b823-8fc801930bf0", "~" + issueCard()} {
		answer := b.get(t, viewer, "/v1/tenants/acme/cards/"+url.PathEscape(mirror)+"/explain")
		require.Equal(t, 200, answer.status, mirror)
		require.Equal(t, mirror, decoded[Page[trigger.Explanation]](t, answer).Items[0].CardID)
		require.Equal(t, 200, b.post(t, viewer, "/v1/tenants/acme/subscriptions/sub-1/dry-run?card="+url.QueryEscape(mirror), "").status, mirror)
	}

	// More than a page of subscriptions.
	for i := range trigger.ExplainSubscriptionsMax {
		id := fmt.Sprintf("s-%03d", i)
		require.NoError(t, b.mem.SubscriptionSave(t.Context(), &trigger.Subscription{
			TenantID: "acme", ID: id, Name: id, Revision: 1, BotID: botID, If: trigger.Conditions{LabelsAll: []string{"x"}},
		}))
	}
	page = decoded[Page[trigger.Explanation]](t, b.get(t, viewer, path))
	require.Len(t, page.Items, trigger.ExplainSubscriptionsMax)
	require.Equal(t, trigger.AnswerDisabled, page.Items[1].Answer)
	page = decoded[Page[trigger.Explanation]](t, b.get(t, viewer, path+"?after="+url.QueryEscape(page.Next)))
	require.Len(t, page.Items, 1)
	require.Empty(t, page.Next)
}

func TestLogByAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.subscribe(t)
	viewer := b.token(t, "acme")
	const path = "/v1/tenants/acme/subscriptions/sub-1/log"
	require.NotNil(t, decoded[Page[trigger.LogEntry]](t, b.get(t, viewer, path)).Items)
	_, err := b.mem.HeadLift(t.Context(), "acme")
	require.NoError(t, err)
	_, err = b.mem.SeqAllocate(t.Context(), "acme", 7, false)
	require.NoError(t, err)
	for i, s := range trigger.States() {
		b.rowIn(t, int64(i+1), s)
	}
	var answers []trigger.Answer
	next, pages := "", 0
	for {
		page := decoded[Page[trigger.LogEntry]](t, b.get(t, viewer, path+"?limit=3&after="+next))
		for _, e := range page.Items {
			answers = append(answers, e.Answer)
			require.NotEmpty(t, e.Sentence)
		}
		pages++
		if next = page.Next; next == "" {
			break
		}
		require.NotContains(t, next, "acme", "it is opaque")
	}
	require.Equal(t, 3, pages)
	require.Equal(t, []trigger.Answer{
		trigger.AnswerDiscarded, trigger.AnswerHeldByPause, trigger.AnswerReconcile, trigger.AnswerFailed, trigger.AnswerFired,
		trigger.AnswerClaimed, trigger.AnswerPending,
	}, answers)
	require.Equal(t, 404, b.get(t, viewer, "/v1/tenants/acme/subscriptions/sub-9/log").status)
	require.Equal(t, 404, b.get(t, b.token(t, "other"), path).status)
	for name, cursor := range map[string]string{
		"another subscription's": encodeCursor("acme/000000000003|sub-2"), "a projection's": encodeCursor("acme/000000000003>sub-1"),
		"another tenant's": encodeCursor("other/000000000003|sub-1"), "a huge one": encodeCursor("acme/99999999999999999999|sub-1"), "garbage": "x",
	} {
		a := b.get(t, viewer, path+"?after="+cursor)
		require.Equal(t, 422, a.status, name)
		require.Equal(t, "query.after", a.problem(t).Errors[0].Field)
	}
}

// The calls of docs/explain.md are ones that a viewer may make.
func TestCallsOfTheExplainDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/explain.md")
	require.NoError(t, err)
	b := history(t)
	viewer, calls := b.token(t, "acme"), 0
	fill := strings.NewReplacer("SUBSCRIPTION", "sub-1", "CARD", issueCard(), "BOT", botID)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "curl ") {
			continue
		}
		m := curlLine.FindStringSubmatch(line)
		require.NotNil(t, m, "this test can't read: %s", line)
		calls++
		a := b.write(t, viewer, call{method: cmp.Or(m[1], http.MethodGet), path: "/v1/tenants/acme" + fill.Replace(m[2]), body: fill.Replace(m[4])})
		require.Equal(t, 200, a.status, "%s\n%s", line, a.body)
	}
	require.Equal(t, 5, calls)
}
