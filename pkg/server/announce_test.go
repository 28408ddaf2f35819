package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// A bot refuses a launch for good; whoever asked to be told of that is
// launched, within the same replica, and told why.
func TestADeadLetterIsToldOf(t *testing.T) {
	t.Parallel()
	launched := make(chan trigger.LaunchRequest, 10)
	b := start(t, withLaunch(func(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
		if r.URL == "http://127.0.0.1:1/pager" {
			launched <- r
			return trigger.Launched{RunID: "page-1"}, nil
		}
		return trigger.Launched{}, &trigger.LaunchError{Message: "status 422", Status: 422, Permanent: true, Definite: true}
	}))
	ctx := t.Context()
	pager, err := b.mem.BotGet(ctx, "acme", botID)
	require.NoError(t, err)
	sealed, err := b.server.p.Sealer.(interface {
		Seal(owner string, secret []byte) (trigger.Sealed, error)
	}).Seal(trigger.BotOwner("acme", "pager"), []byte(botSecret))
	require.NoError(t, err)
	pager.ID, pager.Name, pager.URL, pager.Secret, pager.Revision = "pager", "pager", "http://127.0.0.1:1/pager", sealed, 1
	b.hidden = append(b.hidden, string(sealed))
	require.NoError(t, b.mem.BotSave(ctx, pager))
	b.subscribe(t)
	told := &trigger.Subscription{
		TenantID: "acme", ID: "sub-2", Name: "tell", Enabled: true, BotID: "pager",
		On:   trigger.EventFilter{Kinds: []tracker.Kind{trigger.KindEffectFailed}, Sources: []trigger.Source{trigger.SourceCustom}},
		When: `event.effect.reason == "permanent" && event.effect.bot == "bot-1"`,
		Args: map[string]string{"what": "${event.effect.id} of ${event.effect.subscription}: ${event.effect.error}"},
	}
	told.Edited(b.mem.Now())
	require.NoError(t, told.Validate())
	require.NoError(t, b.mem.SubscriptionSave(ctx, told))

	require.Equal(t, http.StatusAccepted, b.deliver(t, delivery{body: payload(t, "issues.opened")}).status)
	r := recv(t, launched)
	var body trigger.LaunchBody
	require.NoError(t, json.Unmarshal([]byte(r.Body), &body))
	require.Equal(t, "acme/000000000001|sub-1 of sub-1: status 422", body.Args["what"])
	require.Equal(t, trigger.KindEffectFailed, body.Event.Kind)
	require.Equal(t, issueCard(), body.Card.ID)
	var payload trigger.Told
	require.NoError(t, json.Unmarshal([]byte(body.Event.Payload), &payload))
	require.Equal(t, "bot-1", payload.Bot)

	require.Equal(t, trigger.StateFailed, recv(t, b.settled).To)
	require.Equal(t, trigger.OutcomeLaunched, recv(t, b.settled).Outcome)
	events := b.events(t)
	require.Len(t, events, 2)
	require.Equal(t, tracker.Cause{}.Then("sub-1", issueCard()), events[1].Cause)
	// Who asks sees it, on the card and in the log.
	token := b.token(t, "acme")
	a := b.get(t, token, "/v1/tenants/acme/cards/"+url.PathEscape(issueCard())+"/events")
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, `"effect.failed"`)
	require.Equal(t, http.StatusOK, b.get(t, token, "/v1/tenants/acme/subscriptions/sub-2/log").status)
}
