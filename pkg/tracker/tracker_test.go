package tracker_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFold(t *testing.T) {
	t.Parallel()
	for _, same := range [][]string{
		{"ship-it", "Ship-It", " SHIP-IT\t"},
		{"caf\u00e9", "cafe\u0301", "CAFÉ"},
		{"straße", "STRASSE", "Strasse"},
		{"ΣΊΣΥΦΟΣ", "σίσυφος", "σίσυφοσ"},
		{"\u1e9e", "ss"},
	} {
		for _, s := range same {
			require.Equal(t, tracker.Fold(same[0]), tracker.Fold(s), "%q", s)
			require.Equal(t, tracker.Fold(s), tracker.Fold(tracker.Fold(s)), "folding again changes nothing")
		}
	}
	require.NotEqual(t, tracker.Fold("bug"), tracker.Fold("bugs"))
	require.NotEqual(t, tracker.Fold(".*"), tracker.Fold("bug"))
	require.Equal(t, []string{"Bug", "docs"}, tracker.UniqueFold([]string{"Bug", " bug", "", "docs", "BUG"}))
}

func FuzzFold(f *testing.F) {
	f.Add("Ship-It")
	f.Add("e\u0301\u0345\u1e9e")
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, tracker.Fold(s), tracker.Fold(tracker.Fold(s)))
	})
}

func TestStampOrder(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ascending := []tracker.Stamp{
		{}, {At: at, Tie: "9"}, {At: at, Delta: true, Tie: "1"}, {At: at, Delta: true, Tie: "2"}, {At: at.Add(time.Second)},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			require.Equal(t, i > j, a.Newer(b), "%d %d", i, j)
		}
	}
	// Version 1 UUIDs sort by their time, below none of the others.
	u := uuid.Must(uuid.NewUUID())
	later := uuid.Must(uuid.NewUUID())
	require.Less(t, tracker.DeliveryTie(u.String()), tracker.DeliveryTie(later.String()))
	require.Less(t, tracker.DeliveryTie(uuid.NewString()), tracker.DeliveryTie(u.String()))
	require.Less(t, tracker.DeliveryTie("zzz"), tracker.DeliveryTie(u.String()))
}

func TestLabelStampsAreBoundedAndForgetOnlyWhatIsAbsent(t *testing.T) {
	t.Parallel()
	var s tracker.Stamps
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	set := func(i int, present bool) {
		s.SetLabel(tracker.LabelStamp{Label: fmt.Sprint("L", i), Present: present, Stamp: tracker.Stamp{At: at.Add(time.Duration(i) * time.Second), Delta: true}})
	}
	set(0, true)
	for i := 1; i <= tracker.LabelStampsMax; i++ {
		set(i, false)
	}
	require.Len(t, s.Labels, tracker.LabelStampsMax)
	require.True(t, s.Label("l0").Present, "a label that is there is remembered")
	require.Equal(t, at.Add(time.Second), s.Label("l1").Stamp.At, "the forgotten one's time is the floor")
	require.Equal(t, s.LabelFloor, s.Label("never seen").Stamp)
	set(2, true)
	require.Len(t, s.Labels, tracker.LabelStampsMax)
	require.True(t, s.Label("L2").Present)
}

func TestDeliveriesAreBounded(t *testing.T) {
	t.Parallel()
	var c tracker.Card
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range tracker.DeliveriesMax + 5 {
		c.AddDelivery("h", strconv.Itoa(i), now)
	}
	require.Len(t, c.Deliveries, tracker.DeliveriesMax)
	require.False(t, c.HasDelivery("h", "4"))
	require.True(t, c.HasDelivery("h", "5"))
	require.False(t, c.HasDelivery("other", "5"))
	c.AddDelivery("h", "new", now.Add(31*24*time.Hour))
	require.Len(t, c.Deliveries, 1)
}

func TestE6_CardIsBounded(t *testing.T) {
	t.Parallel()
	good := func() *tracker.Card {
		return &tracker.Card{Title: strings.Repeat("t", tracker.TitleMaxBytes), Body: strings.Repeat("b", tracker.BodyMaxBytes), Labels: []string{"a"}, Assignees: []string{"m"}}
	}
	require.NoError(t, good().Validate())
	for field, spoil := range map[string]func(*tracker.Card){
		"title":       func(c *tracker.Card) { c.Title += "t" },
		"body":        func(c *tracker.Card) { c.Body += "b" },
		"title, body": func(c *tracker.Card) { c.Title = "\xff" },
		"labels":      func(c *tracker.Card) { c.Labels = []string{strings.Repeat("l", tracker.LabelMaxBytes+1)} },
		"assignees":   func(c *tracker.Card) { c.Assignees = make([]string, tracker.AssigneesMax+1) },
	} {
		c := good()
		spoil(c)
		var fe *tracker.FieldError
		require.ErrorAs(t, c.Validate(), &fe, field)
		require.Equal(t, field, fe.Field)
	}
	c := good()
	c.Title = ""
	require.Error(t, c.Validate())
}

func TestE5_TenantIDs(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"a", "0", "acme-2", strings.Repeat("a", 63)} {
		require.True(t, tracker.ValidTenantID(ok), ok)
	}
	for _, bad := range []string{"", "-a", "A", "a_b", "a/b", "a|b", "a.b", "é", strings.Repeat("a", 64), "a\n"} {
		require.False(t, tracker.ValidTenantID(bad), "%q", bad)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	t.Parallel()
	c := &tracker.Card{Labels: []string{"a"}, Assignees: []string{"m"}, Consumed: []tracker.Consumption{{EffectID: "e", Labels: []string{"a"}}}, External: &tracker.External{Repo: "r"}}
	c.Stamps.SetLabel(tracker.LabelStamp{Label: "a", Present: true})
	d := c.Clone()
	require.Equal(t, c, d)
	d.RemoveLabels([]string{"A"}, func(l string) tracker.LabelStamp { return tracker.LabelStamp{Label: l} })
	d.Assignees[0], d.Consumed[0].Labels[0], d.External.Repo = "x", "x", "x"
	require.Equal(t, []string{"a"}, c.Labels)
	require.True(t, c.Stamps.Label("a").Present)
	require.Equal(t, "m", c.Assignees[0])
	require.Equal(t, "a", c.Consumed[0].Labels[0])
	require.Equal(t, "r", c.External.Repo)
	require.Nil(t, (*tracker.Card)(nil).Clone())
}
