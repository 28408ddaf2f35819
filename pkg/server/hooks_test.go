package server

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestHookAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opened := payload(t, "issues.opened")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			if r.Header.Set(name, value); value == "" {
				r.Header.Del(name)
			}
		}
	}
	for _, c := range []struct {
		name   string
		d      delivery
		status int
		says   string // of a problem's detail, or of the reason for ignoring
	}{
		{"ping", delivery{event: "ping", body: payload(t, "ping")}, 200, ""},
		{"unused event", delivery{event: "pull_request", body: payload(t, "pull_request.labeled")}, 202, "pull_request"},
		{"another unused event", delivery{event: "issue_comment", body: payload(t, "issue_comment.created")}, 202, "issue_comment"},
		{"unused action", delivery{body: changed(t, "issues.opened", map[string]any{"action": "deleted"})}, 202, "deletion"},
		{"another unused action", delivery{body: changed(t, "issues.opened", map[string]any{"action": "transferred"})}, 202, "transfer"},

		{"no signature", delivery{body: opened, edit: header(github.HeaderSignature, "")}, 401, github.HeaderSignature},
		{"no signature, ping", delivery{event: "ping", body: payload(t, "ping"), edit: header(github.HeaderSignature, "")}, 401, github.HeaderSignature},
		{"bad signature", delivery{body: opened, edit: header(github.HeaderSignature, "sha256="+strings.Repeat("0", 64))}, 401, github.HeaderSignature},
		{"signature without scheme", delivery{body: opened, edit: func(r *http.Request) {
			r.Header.Set(github.HeaderSignature, strings.TrimPrefix(r.Header.Get(github.HeaderSignature), "sha256="))
		}}, 401, github.HeaderSignature},
		{"signature of another body", delivery{body: opened, edit: header(github.HeaderSignature, github.Sign([]byte(hookSecret), opened[:len(opened)-1]))}, 401, github.HeaderSignature},
		{"signature by the tenant's other hook", delivery{body: opened, secret: secondSecret}, 401, github.HeaderSignature},
		{"signature by another tenant's hook", delivery{body: opened, secret: otherSecret}, 401, github.HeaderSignature},
		{"signature by nothing", delivery{body: opened, edit: header(github.HeaderSignature, github.Sign(nil, opened))}, 401, github.HeaderSignature},

		{"empty body", delivery{body: nil}, 400, "not JSON"},
		{"not JSON", delivery{body: []byte("payload=%7B%7D")}, 400, "not JSON"},
		{"half of it", delivery{body: opened[:len(opened)/2]}, 400, "not JSON"},
		{"two values", delivery{body: []byte("{}{}")}, 400, "not JSON"},
		{"an array", delivery{body: []byte("[1]")}, 400, "not a JSON object"},
		{"a text", delivery{body: []byte(`"s3cret"`)}, 400, "not a JSON object"},
		{"null", delivery{body: []byte("null")}, 400, "not a JSON object"},
		{"null, ping", delivery{event: "ping", body: []byte("null")}, 400, "not a JSON object"},
		{"an object of nothing", delivery{body: []byte("{}")}, 400, "action: is missing"},
		{"a field of another type", delivery{body: changed(t, "issues.opened", map[string]any{"issue.title": 7})}, 400, "issue.title"},
		{"no time", delivery{body: changed(t, "issues.opened", map[string]any{"issue.updated_at": nil})}, 400, "issue.updated_at"},
		{"a time that is none", delivery{body: changed(t, "issues.opened", map[string]any{"issue.updated_at": "s3cret"})}, 400, "not a JSON object of the expected form"},
		{"not UTF-8", delivery{body: bytes.Replace(opened, []byte("Spelling"), []byte("Sp\xffelling"), 1)}, 400, "UTF-8"},

		{"form", delivery{body: opened, edit: header("Content-Type", "application/x-www-form-urlencoded")}, 415, "Content-Type"},
		{"text", delivery{body: opened, edit: header("Content-Type", "text/plain; charset=s3cret")}, 415, "Content-Type"},
		{"no content type", delivery{body: opened, edit: header("Content-Type", "")}, 415, "Content-Type"},
		{"malformed content type", delivery{body: opened, edit: header("Content-Type", "application/json; s3cret")}, 415, "Content-Type"},

		{"no delivery id", delivery{body: opened, edit: header(github.HeaderDelivery, "")}, 400, github.HeaderDelivery},
		{"odd delivery id", delivery{body: opened, id: "s3cret'{$ne}"}, 400, github.HeaderDelivery},
		{"long delivery id", delivery{body: opened, id: strings.Repeat("a", 101)}, 400, github.HeaderDelivery},
		{"odd delivery id, ping", delivery{event: "ping", body: payload(t, "ping"), id: "a b"}, 400, github.HeaderDelivery},
		{"no event", delivery{body: opened, edit: header(github.HeaderEvent, "")}, 400, github.HeaderEvent},
		{"odd event", delivery{body: opened, event: "s3cret-x'{$ne}"}, 400, github.HeaderEvent},

		{"long label", delivery{body: changed(t, "issues.opened", map[string]any{
			"issue.labels": []any{map[string]any{"name": "s3cret" + strings.Repeat("l", 294)}},
		})}, 422, "labels"},
		{"long title", delivery{body: changed(t, "issues.opened", map[string]any{"issue.title": "s3cret" + strings.Repeat("t", tracker.TitleMaxBytes)})}, 422, "title"},
		{"no title", delivery{body: changed(t, "issues.opened", map[string]any{"issue.title": ""})}, 422, "title"},
		{"long text", delivery{body: changed(t, "issues.opened", map[string]any{"issue.body": "s3cret" + strings.Repeat("b", tracker.BodyMaxBytes)})}, 422, "body"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := b.deliver(t, c.d)
			require.Equal(t, c.status, a.status, a.body)
			switch {
			case c.status == 200:
				require.Equal(t, HookAnswer{Status: "pong"}, a.hook(t))
			case c.status < 300:
				h := a.hook(t)
				require.Equal(t, HookAnswer{Status: "ignored", Reason: h.Reason}, h)
				require.Contains(t, h.Reason, c.says)
			case c.status == 422:
				p := a.problem(t)
				require.Len(t, p.Errors, 1)
				require.Equal(t, c.says, p.Errors[0].Field)
				require.Regexp(t, "bytes|must not be empty", p.Errors[0].Message, "what is allowed")
			default:
				require.Contains(t, a.problem(t).Detail, c.says)
			}
		})
	}
	t.Cleanup(func() {
		_, err := b.mem.CardGet(context.WithoutCancel(t.Context()), "acme", issueCard())
		assert.ErrorIs(t, err, tracker.ErrNotFound, "none of it made a card") // require would swallow the subtests' reports
	})
}

// Nothing tells an outsider which tenants and hooks there are.
func TestUnknownHooksLookAlike(t *testing.T) {
	t.Parallel()
	b := setup(t)
	unsigned := func(r *http.Request) { r.Header.Del(github.HeaderSignature) }
	want := b.deliver(t, delivery{hook: "nothing", body: payload(t, "ping"), event: "ping"})
	require.Equal(t, http.StatusNotFound, want.status)
	want.problem(t)
	want.header.Del("Date")
	for _, at := range []delivery{
		{tenant: "acme", hook: "nothing"},
		{tenant: "acme", hook: otherID, secret: otherSecret}, // another tenant's
		{tenant: "other", hook: hookID},
		{tenant: "nobody", hook: "nothing"},
		{tenant: "nobody", hook: hookID},
		{tenant: "ACME", hook: hookID},
		{tenant: "acme", hook: "HOOK-1"},
		{tenant: "acme", hook: "s3cret-x'%7B$ne%7D"},
		{tenant: "-acme", hook: hookID},
		{tenant: "acme%2Fx", hook: hookID},
		{tenant: "acme", hook: "..%2F" + hookID},
		{tenant: "acme", hook: hookID + "%00"},
		{tenant: "acme", hook: "%FF%FE"},
		{tenant: "acme", hook: strings.Repeat("a", 64)},
		{tenant: strings.Repeat("a", 1000), hook: hookID},
	} {
		for _, edit := range []func(*http.Request){nil, unsigned} {
			at.body, at.edit = payload(t, "issues.opened"), edit
			got := b.deliver(t, at)
			got.header.Del("Date")
			require.Equal(t, want, got, "%s/%s", at.tenant, at.hook)
		}
	}
}

// What anybody can send does not get into the log unchecked.
func TestWhatAnOutsiderSendsIsNotLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, id := range []string{"s3cret'{$ne}", strings.Repeat("A", 20<<10)} {
		a := b.deliver(t, delivery{body: payload(t, "issues.opened"), id: id, secret: "guessed"})
		require.Equal(t, http.StatusUnauthorized, a.status)
	}
	require.Contains(t, b.logs.String(), "bad signature")
	require.Less(t, len(b.logs.String()), 1<<10)

	d := delivery{body: payload(t, "issues.opened"), id: uuid.NewString(), secret: "guessed"}
	require.Equal(t, http.StatusUnauthorized, b.deliver(t, d).status)
	require.Contains(t, b.logs.String(), d.id, "of the right form it helps to find the delivery")
}

// A delivery makes its event, and no second one however often it comes.
func TestDeliveryIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	d := delivery{id: uuid.NewString(), body: payload(t, "issues.opened")}
	a := b.deliver(t, d)
	require.Equal(t, http.StatusAccepted, a.status)
	require.Equal(t, HookAnswer{Status: "accepted", CardID: issueCard(), Event: "card.created", Seq: 1}, a.hook(t))
	for range 3 {
		a = b.deliver(t, d)
		require.Equal(t, http.StatusAccepted, a.status)
		require.Equal(t, HookAnswer{Status: "duplicate", CardID: issueCard()}, a.hook(t))
	}
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))

	t.Log("ids are remembered by hook: the other hook's is another delivery")
	d.hook, d.secret = secondID, secondSecret
	require.Equal(t, HookAnswer{Status: "accepted", CardID: issueCard()}, b.deliver(t, d).hook(t), "it changes nothing on the card")
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))

	t.Log("and another tenant's hook has a card of its own")
	d.tenant, d.hook, d.secret = "other", otherID, otherSecret
	h := b.deliver(t, d).hook(t)
	require.Equal(t, "accepted", h.Status)
	require.NotEqual(t, issueCard(), h.CardID)
	require.Equal(t, []tracker.Kind{tracker.KindCreated}, b.kinds(t))
}

func TestConcurrentCopiesOfADelivery(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 20 {
		// Each is a new card: making it is the race.
		repo := "acme/" + uuid.NewString()
		d := delivery{id: uuid.NewString(), body: changed(t, "issues.opened", map[string]any{"repository.full_name": repo})}
		before := len(b.events(t))
		const copies = 4
		answers := make([]answer, copies)
		var all sync.WaitGroup
		for i := range copies {
			req := b.request(t, d)
			all.Go(func() { answers[i] = b.do(t, req) })
		}
		all.Wait()
		accepted := 0
		for _, a := range answers {
			require.Equal(t, http.StatusAccepted, a.status)
			if a.hook(t).Status == "accepted" {
				accepted++
			} else {
				require.Equal(t, "duplicate", a.hook(t).Status)
			}
		}
		require.Equal(t, 1, accepted)
		require.Len(t, b.events(t), before+1)
	}
}

// The shipped deliveries end in one card, in the order that they happened and
// the other way round.
func TestShippedPayloads(t *testing.T) {
	t.Parallel()
	order := []string{
		"ping", "issues.opened", "issues.labeled", "issues.assigned", "issues.unlabeled", "issue_comment.created", "pull_request.labeled",
	}
	backwards := slices.Clone(order)
	slices.Reverse(backwards)
	for name, c := range map[string]struct {
		order []string
		kinds []tracker.Kind
	}{
		// The snapshot of `opened` has the label and the assignee already.
		"in order":  {order, []tracker.Kind{tracker.KindCreated, tracker.KindUnlabeled}},
		"backwards": {backwards, []tracker.Kind{tracker.KindUnlabeled}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for _, name := range c.order {
				event, _, _ := strings.Cut(name, ".")
				a := b.deliver(t, delivery{event: event, body: payload(t, name)})
				require.Less(t, a.status, 300, "%s: %s", name, a.body)
			}
			require.Equal(t, c.kinds, b.kinds(t))

			token := b.token(t, "acme")
			a := b.get(t, token, "/v1/tenants/acme/cards/"+issueCard())
			require.Equal(t, http.StatusOK, a.status)
			card := b.card(t)
			require.Empty(t, card.Pending)
			require.Equal(t, "Spelling error in the README file", card.Title)
			require.Equal(t, "It looks like you accidently spelled 'commit' with two 't's.", card.Body)
			require.Equal(t, "todo", card.ColumnID)
			require.Equal(t, "board-1", card.BoardID)
			require.Empty(t, card.Labels, "unlabeled came last, whenever it arrived")
			require.Equal(t, []string{"Codertocat"}, card.Assignees)
			require.Equal(t, &tracker.External{
				Provider: "github", Repo: "Codertocat/Hello-World", Number: 1, URL: "https://github.com/Codertocat/Hello-World/issues/1",
			}, card.External)
		})
	}
}

func TestOtherMethodsOfAHook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// GET, PUT and DELETE are the API's: a delivery's signature is no token.
	for method, status := range map[string]int{
		http.MethodPatch: http.StatusMethodNotAllowed, http.MethodGet: http.StatusUnauthorized,
		http.MethodPut: http.StatusUnauthorized, http.MethodDelete: http.StatusUnauthorized,
	} {
		a := b.deliver(t, delivery{event: "ping", body: payload(t, "ping"), edit: func(r *http.Request) { r.Method = method }})
		require.Equal(t, status, a.status, method)
	}
}
