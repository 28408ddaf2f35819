package server

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// echoing is a replica with a bot that GitHub knows as "my-app[bot]".
type echoing struct {
	*bundle
	second int
}

// onLabels has labels that somebody of the actors adds launch the bot.
func (e *echoing) onLabels(t *testing.T, id string, actors ...string) {
	t.Helper()
	require.NoError(t, e.mem.SubscriptionSave(t.Context(), &trigger.Subscription{
		TenantID: "acme", ID: id, Name: id, Revision: 1, Enabled: true, BotID: botID,
		On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindLabeled}, Actors: actors},
	}))
}

// labels has somebody add a label to the issue on GitHub, which delivers it.
func (e *echoing) labels(t *testing.T, login, kind string) {
	t.Helper()
	e.second++
	a := e.deliver(t, delivery{body: changed(t, "issues.labeled", map[string]any{
		"label.name": fmt.Sprint("label-", e.second), "sender.login": login, "sender.type": kind,
		"issue.updated_at": fmt.Sprintf("2026-11-30T09:00:%02dZ", e.second),
	})})
	require.Equal(t, http.StatusAccepted, a.status, a.body)
	require.Equal(t, "card.labeled", a.hook(t).Event, a.body)
}

// rows tells of acme's rows, in the order of their events.
func (e *echoing) rows(t *testing.T) (out []string) {
	t.Helper()
	rows, err := e.mem.EffectList(t.Context(), trigger.EffectListParams{TenantID: "acme", Limit: 100})
	require.NoError(t, err)
	for _, r := range rows {
		out = append(out, r.SubscriptionID+" "+string(r.Outcome))
	}
	return out
}

// comesTo waits for the rows.
func (e *echoing) comesTo(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(e.rows(t)) >= len(want) }, wait, 5*time.Millisecond)
	require.Equal(t, want, e.rows(t))
}

// A bot that was launched by a plain launch labels the issue on GitHub; the
// delivery of that is cut, at its place and for all to see.
func TestLoops_EchoThroughAWebhook(t *testing.T) {
	t.Parallel()
	e := &echoing{bundle: start(t)}
	e.onLabels(t, "a", "mona", "my-app[bot]", "other-app[bot]")
	e.onLabels(t, "b", "my-app[bot]")
	require.Equal(t, http.StatusAccepted, e.deliver(t, delivery{body: payload(t, "issues.opened")}).status)

	e.labels(t, "mona", "User")
	recv(t, e.settled)
	e.comesTo(t, "a launched")
	e.labels(t, "my-app[bot]", "Bot") // a → a, and a → b
	recv(t, e.settled)
	e.comesTo(t, "a launched", "a loop_cut", "b launched")
	e.labels(t, "other-app[bot]", "Bot") // a → b → a
	e.comesTo(t, "a launched", "a loop_cut", "b launched", "a loop_cut")

	events := e.events(t)
	link := func(subs ...string) (c tracker.Cause) {
		for _, s := range subs {
			c = c.Then(s, issueCard())
		}
		return c
	}
	require.Empty(t, events[1].Cause)
	require.Equal(t, link("a"), events[2].Cause)
	require.Equal(t, link("a", "b"), events[3].Cause)

	// A person's label begins anew.
	e.labels(t, "mona", "User")
	recv(t, e.settled)
	e.comesTo(t, "a launched", "a loop_cut", "b launched", "a loop_cut", "a launched")
	require.Empty(t, e.events(t)[4].Cause)

	// A bot that uses a person's token can't be told apart.
	e.labels(t, "mona", "User")
	recv(t, e.settled)
	require.Equal(t, "a launched", e.rows(t)[5])
}

// A bot's delivery whose cause can't be read is not stored without one.
func TestLoops_NoCauseNoDelivery(t *testing.T) {
	t.Parallel()
	e := &echoing{bundle: setup(t)}
	require.Equal(t, http.StatusAccepted, e.deliver(t, delivery{body: payload(t, "issues.opened")}).status)
	body := changed(t, "issues.labeled", map[string]any{
		"label.name": "later", "sender.login": "my-app[bot]", "sender.type": "Bot", "issue.updated_at": "2026-11-30T09:00:00Z",
	})
	e.store.fail("EffectsOfCards")
	require.Equal(t, http.StatusServiceUnavailable, e.deliver(t, delivery{id: "d-1", body: body}).status)
	require.Len(t, e.events(t), 1)
	e.store.heal()
	a := e.deliver(t, delivery{id: "d-1", body: body})
	require.Equal(t, "accepted", a.hook(t).Status)
	require.Len(t, e.events(t), 2)
}
