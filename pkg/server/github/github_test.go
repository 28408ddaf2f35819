package github

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	mapping = Mapping{TenantID: "acme", HookID: "h", BoardID: "b", OpenColumn: "open", ClosedColumn: "done"}
	now     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

// content is what a card is, without how it came to be.
func content(c *tracker.Card) string {
	labels := slices.Clone(c.Labels)
	slices.Sort(labels)
	return fmt.Sprintf("%s/%s %q %q labels=%v assignees=%v", c.BoardID, c.ColumnID, c.Title, c.Body, labels, c.Assignees)
}

// apply merges deliveries in order and returns the card and its events.
func apply(t *testing.T, card *tracker.Card, ds ...delivery) (*tracker.Card, []*tracker.BoardEvent) {
	t.Helper()
	var events []*tracker.BoardEvent
	for _, d := range ds {
		next, event, err := Merge(mapping, d.id, d.d)(card.Clone(), now)
		require.NoError(t, err)
		if next != nil {
			require.NoError(t, next.Validate())
			card = next
		}
		if event != nil {
			events = append(events, event)
		}
	}
	return card, events
}

type delivery struct {
	id string
	d  *IssueDelivery
}

// shipped returns the real `issues` deliveries.
func shipped(t *testing.T) (out []delivery) {
	t.Helper()
	payloads, err := Payloads()
	require.NoError(t, err)
	for _, p := range payloads {
		if p.Event == "issues" {
			d, err := ParseIssue(p.Body)
			require.NoError(t, err)
			out = append(out, delivery{p.Name, d})
		}
	}
	require.Len(t, out, 4)
	return out
}

func permutations[T any](list []T) (out [][]T) {
	if len(list) <= 1 {
		return [][]T{slices.Clone(list)}
	}
	for i := range list {
		rest := slices.Delete(slices.Clone(list), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]T{list[i]}, p...))
		}
	}
	return out
}

func TestEveryPermutationOfTheShippedFilesEndsInTheSameCard(t *testing.T) {
	t.Parallel()
	all := permutations(shipped(t))
	require.Len(t, all, 24)
	for _, order := range all {
		var names []string
		for _, d := range order {
			names = append(names, d.id)
		}
		// Each is delivered a second time, too, under another id.
		again := slices.Clone(order)
		for i := range again {
			again[i].id += "-again"
		}
		card, _ := apply(t, nil, append(order, again...)...)
		require.Equal(t, `b/open "Spelling error in the README file" "It looks like you accidently spelled 'commit' with two 't's." labels=[] assignees=[Codertocat]`,
			content(card), "%v", names)
	}
}

func TestShippedFilesMakeTheseEvents(t *testing.T) {
	t.Parallel()
	ds := shipped(t) // assigned, labeled, opened, unlabeled
	assigned, labeled, opened, unlabeled := ds[0], ds[1], ds[2], ds[3]
	_, events := apply(t, nil, opened, labeled, assigned, unlabeled)
	require.Len(t, events, 2, "labeled and assigned change nothing: the issue was opened so")
	require.Equal(t, tracker.KindCreated, events[0].Kind)
	require.False(t, events[0].BeforeUnknown)
	require.Equal(t, "open", events[0].ToColumn)
	require.Equal(t, tracker.Actor{Kind: tracker.ActorHuman, ID: "Codertocat", Via: "hook:h"}, events[0].Actor)
	require.Equal(t, tracker.KindUnlabeled, events[1].Kind)
	require.Equal(t, []string{"bug"}, events[1].Removed)

	card, events := apply(t, nil, unlabeled, opened)
	require.Len(t, events, 1)
	require.True(t, events[0].BeforeUnknown, "first sight through anything but opened")
	require.Empty(t, card.Labels, "the delta wins over the snapshot that it came with")
	require.Equal(t, &tracker.External{Provider: "github", Repo: "Codertocat/Hello-World", Number: 1, URL: "https://github.com/Codertocat/Hello-World/issues/1"}, card.External)

	_, events = apply(t, nil, opened, opened)
	require.Len(t, events, 1, "the same delivery again")
}

// history plays an issue's life and returns its deliveries in order.
func history(r *rand.Rand, steps int) []delivery {
	issue := Issue{Number: 7, Title: "t0", Body: "b0", State: stateOpen, UpdatedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	precise := issue.UpdatedAt
	var out []delivery
	emit := func(action string, set func(*IssueDelivery)) {
		issue.UpdatedAt = precise.Truncate(time.Second)
		snap := issue
		snap.Labels, snap.Assignees = slices.Clone(issue.Labels), slices.Clone(issue.Assignees)
		d := &IssueDelivery{Action: action, Issue: &snap, Repository: &Repository{FullName: "o/r"}, Sender: User{Login: "mona", Type: "User"}}
		set(d)
		out = append(out, delivery{v1(precise), d})
		precise = precise.Add(time.Duration(100+r.IntN(600)) * time.Millisecond)
	}
	names := func() (l []string) {
		for _, x := range issue.Labels {
			l = append(l, x.Name)
		}
		return l
	}
	logins := func() (l []string) {
		for _, x := range issue.Assignees {
			l = append(l, x.Login)
		}
		return l
	}
	emit(actionOpened, func(*IssueDelivery) {})
	for n := range steps {
		switch r.IntN(6) {
		case 0, 1:
			name := []string{"bug", "docs", "ship-it"}[r.IntN(3)]
			if slices.Contains(names(), name) {
				issue.Labels = slices.DeleteFunc(issue.Labels, func(l Label) bool { return l.Name == name })
				emit(actionUnlabeled, func(d *IssueDelivery) { d.Label = &Label{name} })
			} else {
				issue.Labels = append(issue.Labels, Label{name})
				emit(actionLabeled, func(d *IssueDelivery) { d.Label = &Label{name} })
			}
		case 2:
			login := []string{"mona", "hubot"}[r.IntN(2)]
			if slices.Contains(logins(), login) {
				issue.Assignees = slices.DeleteFunc(issue.Assignees, func(u User) bool { return u.Login == login })
				emit(actionUnassigned, func(d *IssueDelivery) { d.Assignee = &User{Login: login} })
			} else {
				issue.Assignees = append(issue.Assignees, User{Login: login})
				emit(actionAssigned, func(d *IssueDelivery) { d.Assignee = &User{Login: login} })
			}
		case 3:
			if issue.State == stateOpen {
				issue.State = stateClosed
				emit(actionClosed, func(*IssueDelivery) {})
			} else {
				issue.State = stateOpen
				emit(actionReopened, func(*IssueDelivery) {})
			}
		case 4:
			issue.Title = fmt.Sprint("t", n)
			emit(actionEdited, func(d *IssueDelivery) { d.Changes.Title = &struct{}{} })
		case 5:
			issue.Body = fmt.Sprint("b", n)
			emit(actionEdited, func(d *IssueDelivery) { d.Changes.Body = &struct{}{} })
		}
	}
	return out
}

// v1 is a version 1 UUID of a time, as GitHub's delivery ids are.
func v1(at time.Time) string {
	const epoch = 0x01B21DD213814000 // 1582-10-15 in 100 ns before 1970
	ticks := uint64(at.UnixNano()/100) + epoch
	return fmt.Sprintf("%08x-%04x-1%03x-8000-000000000001", uint32(ticks), uint16(ticks>>32), uint16(ticks>>48)&0xfff)
}

func TestAnyOrderOfAnyHistoryEndsInTheIssueAsItIs(t *testing.T) {
	t.Parallel()
	id, err := uuid.Parse(v1(now))
	require.NoError(t, err)
	sec, _ := id.Time().UnixTime()
	require.Equal(t, now.Unix(), sec)

	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		ds := history(r, 3+r.IntN(10))
		last := ds[len(ds)-1].d.Issue
		want := &tracker.Card{BoardID: "b", ColumnID: "open", Title: last.Title, Body: last.Body}
		if last.State == stateClosed {
			want.ColumnID = "done"
		}
		for _, l := range last.Labels {
			want.Labels = append(want.Labels, l.Name)
		}
		for _, a := range last.Assignees {
			want.Assignees = append(want.Assignees, a.Login)
		}
		sortFold(want.Assignees)
		for range 20 {
			card, _ := apply(t, nil, ds...)
			require.Equal(t, content(want), content(card), "seed %d: %s", seed, dump(ds))
			r.Shuffle(len(ds), func(i, j int) { ds[i], ds[j] = ds[j], ds[i] })
		}
	}
}

func dump(ds []delivery) string {
	var out []string
	for _, d := range ds {
		raw, _ := json.Marshal(d.d)
		out = append(out, d.id+" "+string(raw))
	}
	return strings.Join(out, "\n")
}

// labelDelivery is labeled or unlabeled, with a second and a tie.
func labelDelivery(action, label string, second, tie int) delivery {
	at := now.Add(time.Duration(second) * time.Second)
	issue := &Issue{Number: 7, Title: "t", State: stateOpen, UpdatedAt: at}
	if action != actionUnlabeled {
		issue.Labels = []Label{{label}}
	}
	return delivery{v1(at.Add(time.Duration(tie) * time.Millisecond)), &IssueDelivery{
		Action: action, Issue: issue, Label: &Label{label}, Repository: &Repository{FullName: "o/r"}, Sender: User{Login: "mona", Type: "User"},
	}}
}

func TestConsumedLabelComesBackOnlyThroughALaterLabeling(t *testing.T) {
	t.Parallel()
	open, _ := apply(t, nil, labelDelivery(actionOpened, "ship-it", 0, 0))
	require.Equal(t, []string{"ship-it"}, open.Labels)
	consumed := now.Add(10*time.Second + 300*time.Millisecond)
	open.RemoveLabels([]string{"Ship-It"}, func(l string) tracker.LabelStamp {
		return tracker.LabelStamp{Label: l, Stamp: tracker.Stamp{At: consumed, Delta: true, Tie: "~"}, SpentBy: "e1"}
	})

	for _, d := range []delivery{
		labelDelivery(actionLabeled, "ship-it", 0, 1), labelDelivery(actionLabeled, "ship-it", 10, 900),
		labelDelivery(actionOpened, "ship-it", 0, 2), labelDelivery(actionEdited, "ship-it", 20, 0),
	} {
		card, events := apply(t, open, d)
		require.Empty(t, card.Labels, d.d.Action)
		require.Empty(t, events)
		require.Equal(t, "e1", card.Stamps.Label("ship-it").SpentBy)
	}
	card, events := apply(t, open, labelDelivery(actionUnlabeled, "ship-it", 11, 0))
	require.Empty(t, events, "it was off")
	require.Equal(t, "e1", card.Stamps.Label("ship-it").SpentBy)
	card, events = apply(t, card, labelDelivery(actionLabeled, "ship-it", 12, 0))
	require.Equal(t, []string{"ship-it"}, card.Labels)
	require.Len(t, events, 1)
	require.Equal(t, []string{"ship-it"}, events[0].Added)
	require.Empty(t, card.Stamps.Label("ship-it").SpentBy)
}

func TestOnlyItsOwnActionsTouchAField(t *testing.T) {
	t.Parallel()
	base, _ := apply(t, nil, labelDelivery(actionOpened, "bug", 0, 0))
	d := labelDelivery(actionEdited, "other", 5, 0)
	d.d.Issue.Title, d.d.Issue.State, d.d.Changes.Title = "new", stateClosed, &struct{}{}
	card, events := apply(t, base, d)
	require.Len(t, events, 1)
	require.Equal(t, tracker.KindEdited, events[0].Kind)
	require.Equal(t, "new", card.Title)
	require.Equal(t, []string{"bug"}, card.Labels, "an edit's snapshot does not touch labels")
	require.Equal(t, "open", card.ColumnID, "nor the column")

	d = labelDelivery(actionClosed, "other", 6, 0)
	d.d.Issue.Title, d.d.Issue.State = "newest", stateClosed
	card, events = apply(t, card, d)
	require.Equal(t, "new", card.Title, "a closing does not touch the title")
	require.Equal(t, "done", card.ColumnID)
	require.Equal(t, []string{"open", "done"}, []string{events[0].FromColumn, events[0].ToColumn})

	d = labelDelivery("pinned", "bug", 7, 0)
	d.d.Sender.Type = "Bot"
	d.d.Issue.Title = "seven"
	card, events = apply(t, card, d)
	require.Equal(t, "seven", card.Title, "other actions bring a newer text")
	require.Equal(t, tracker.ActorBot, events[0].Actor.Kind)
	_, events = apply(t, card, labelDelivery("locked", "bug", 3, 0))
	require.Empty(t, events, "an older text")
}

func TestVerifyInConstantTimeForm(t *testing.T) {
	t.Parallel()
	// The example of GitHub's documentation.
	secret, body := []byte("It's a Secret to Everybody"), []byte("Hello, World!")
	good := "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	require.NoError(t, Verify(secret, body, good))
	for _, bad := range []string{"", "sha256=", strings.ToUpper(good), good[7:], good + "0", "sha1=" + good[7:]} {
		require.ErrorIs(t, Verify(secret, body, bad), ErrSignature, bad)
	}
	require.ErrorIs(t, Verify(secret, append(body, ' '), good), ErrSignature)
	require.ErrorIs(t, Verify([]byte("other"), body, good), ErrSignature)
}

func TestParseIssueNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	ok := `"issue":{"number":1,"title":"t","state":"open","updated_at":"2019-05-15T15:20:18Z"},"repository":{"full_name":"o/r"},"sender":{"login":"m","type":"User"}`
	for body, want := range map[string]string{
		`{`:                       "byte",
		`[]`:                      "JSON object",
		`{"action":7,` + ok + `}`: "action",
		`{` + ok + `}`:            "action: is missing",
		`{"action":"opened"}`:     "issue.number",
		`{"action":"opened","issue":{"number":"secret-x"}}`:                                           "issue.number",
		`{"action":"labeled",` + ok + `}`:                                                             "label.name",
		`{"action":"opened","issue":{"number":1,"state":"open","updated_at":"2019-05-15T15:20:18Z"}}`: "repository.full_name",
		`{"action":"opened",` + strings.Replace(ok, `"state":"open"`, `"state":"secret-x"`, 1) + `}`:  "issue.state",
		`{"action":"opened",` + strings.Replace(ok, `2019-05-15T15:20:18Z`, `secret-x`, 1) + `}`:      "body",
		"{\"action\":\"\xff\"}": "UTF-8",
	} {
		_, err := ParseIssue([]byte(body))
		var in *InputError
		require.ErrorAs(t, err, &in, body)
		require.Contains(t, err.Error(), want, body)
		require.NotContains(t, err.Error(), "secret-x")
	}
}

func TestCardIDIsStable(t *testing.T) {
	t.Parallel()
	id := CardID("acme", "Codertocat/Hello-World", 1)
	require.Equal(t, uuid.Version(5), uuid.MustParse(id).Version())
	require.Equal(t, id, CardID("acme", "codertocat/hello-world", 1))
	for _, other := range []string{CardID("acm", "Codertocat/Hello-World", 1), CardID("acme", "Codertocat/Hello-World", 11), CardID("acme", "Codertocat/Hello-World1", 1)} {
		require.NotEqual(t, id, other)
	}
}

func FuzzParseAndMerge(f *testing.F) {
	payloads, err := Payloads()
	require.NoError(f, err)
	for _, p := range payloads {
		f.Add(p.Body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := ParseIssue(body)
		if err != nil {
			return
		}
		card, _, err := Merge(mapping, "x", d)(nil, now)
		require.NoError(t, err)
		require.NotNil(t, card)
	})
}

func TestACardStaysOnItsBoard(t *testing.T) {
	t.Parallel()
	card, _ := apply(t, nil, labelDelivery(actionOpened, "bug", 0, 0))
	d := labelDelivery(actionClosed, "bug", 5, 0)
	d.d.Issue.State = stateClosed
	other := mapping
	other.HookID, other.BoardID, other.OpenColumn, other.ClosedColumn = "h2", "b2", "todo", "gone"
	next, event, err := Merge(other, d.id, d.d)(card.Clone(), now)
	require.NoError(t, err)
	require.Nil(t, event)
	require.Equal(t, "b", next.BoardID)
	require.Equal(t, "open", next.ColumnID, "the other board's column is none of this one's")
	card, events := apply(t, next, d)
	require.Len(t, events, 1, "its own hook moves it")
	require.Equal(t, "done", card.ColumnID)
}
