package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// cardListTests hold a store to its lists of cards, comments and effects.
func cardListTests() map[string]func(*testing.T, *bundle) {
	return map[string]func(*testing.T, *bundle){
		"TestCardList_PagesSeeEachUntouchedCardOnce": testCardListPages,
		"TestCardList_Filters":                       testCardListFilters,
		"TestCardList_ReadsABoundedNumber":           testCardListBounded,
		"TestCardList_UpAColumn":                     testCardListBackward,
		"TestCardCount":                              testCardCount,
		"TestCardComments":                           testComments,
		"TestE1_CommentIsOfTheWrite":                 testE1Comment,
		"TestE1_CommentWhoseAnswerWasLost":           testE1CommentLost,
		"TestEffectListByCard":                       testEffectListByCard,
	}
}

// put makes a card at a position, where the board would choose one.
func (b *bundle) put(t *testing.T, card tracker.Card) {
	t.Helper()
	if card.TenantID == "" {
		card.TenantID = tenant
	}
	at := b.real.Now()
	card.Incarnation, card.Rev, card.LastWrite, card.CreatedAt, card.UpdatedAt = "i1", 1, "w1", at, at
	require.NoError(t, b.real.CardWrite(t.Context(), tracker.CardWrite{Next: &card}))
}

// pages reads all pages, doing something between them.
func (b *bundle) pages(t *testing.T, p tracker.CardListParams, between func(page int)) (ids []string) {
	t.Helper()
	for n := 0; ; n++ {
		page, err := b.real.CardList(t.Context(), p)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Cards), p.Limit)
		for _, c := range page.Cards {
			ids = append(ids, c.ID)
		}
		if page.Next == nil {
			return ids
		}
		require.Less(t, n, 200)
		p.After = page.Next
		if between != nil {
			between(n)
		}
	}
}

// Twenty-five cards of one time, most of one position or of none; between the
// pages others come, go, move and are edited.
func testCardListPages(t *testing.T, b *bundle) {
	ctx := t.Context()
	var untouched []string
	seed := func(n int) {
		for i := range 25 {
			id := fmt.Sprintf("%d-%02d", n, i)
			card := tracker.Card{ID: id, BoardID: "b1", ColumnID: "open", Title: "same", Body: "long"}
			if i%5 > 1 {
				card.Position = "V"
			}
			if i == 20 {
				card.Position = "W"
			}
			b.put(t, card)
			untouched = append(untouched, id)
		}
	}
	seed(1)
	moved := func(id string, f func(*tracker.Card)) {
		b.change(t, id, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			f(card)
			return card, nil, nil
		})
	}
	inColumn := tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "open", Limit: 4}
	ofBoard := inColumn
	ofBoard.ColumnID = ""
	for name, p := range map[string]tracker.CardListParams{"of a column": inColumn, "of a board": ofBoard, "of the tenant": {TenantID: tenant, Limit: 4}} {
		for _, id := range []string{"x1", "x2", "x3", "x4", "x5"} {
			b.put(t, tracker.Card{ID: name + id, BoardID: "b1", ColumnID: "open", Title: "same", Position: "V"})
		}
		got := b.pages(t, p, func(page int) {
			switch page {
			case 0:
				moved(name+"x1", func(c *tracker.Card) { c.Position = "1" })
				b.put(t, tracker.Card{ID: name + "y", BoardID: "b1", ColumnID: "open", Title: "same", Position: "V"})
			case 1:
				moved(name+"x2", func(c *tracker.Card) { c.Position = "zz" })
				_, err := b.board.Delete(ctx, tenant, name+"x3", human)
				require.NoError(t, err)
			case 2:
				moved(name+"x4", func(c *tracker.Card) { c.ColumnID = "done" })
				moved(name+"x5", func(c *tracker.Card) { c.Title = "edited" })
			}
		})
		for _, id := range untouched {
			require.Equal(t, 1, count(got, id), "%s: %s in %v", name, id, got)
		}
		require.Equal(t, 1, count(got, name+"x5"), "one that was edited stays where it is")
	}
	// By position and then by id, those without one first.
	all, err := b.real.CardList(ctx, tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "open", Limit: 100})
	require.NoError(t, err)
	require.Nil(t, all.Next)
	require.True(t, slices.IsSortedFunc(all.Cards, func(a, b tracker.Card) int {
		return compare(a.Position, b.Position, a.ID, b.ID)
	}))
	require.Empty(t, all.Cards[0].Position)
	require.NotEmpty(t, all.Cards[30].Position)
}

func compare(ab ...string) int {
	for i := 0; i < len(ab); i += 2 {
		if ab[i] != ab[i+1] {
			return map[bool]int{true: -1, false: 1}[ab[i] < ab[i+1]]
		}
	}
	return 0
}

func count(list []string, s string) (n int) {
	for _, have := range list {
		if have == s {
			n++
		}
	}
	return n
}

func testCardListFilters(t *testing.T, b *bundle) {
	ctx := t.Context()
	full := tracker.Card{
		ID: "a", BoardID: "b1", ColumnID: "open", Position: "V", Title: "Fix the Caf\u00e9 (a.*b)", Body: "the body", Labels: []string{"Ship-It", "caf\u00e9"},
		Assignees: []string{"mona"}, External: &tracker.External{Provider: "github", Repo: "r", Number: 1}, BotID: "bot1", BotArgs: map[string]string{"k": "v"},
		MirrorOf: &tracker.Mirror{BoardID: "b2", CardID: "c2"}, CommentCount: 3, CommentBytes: 9,
		Consumed: []tracker.Consumption{{EffectID: "e"}}, Deliveries: []tracker.Delivery{{HookID: "h", ID: "d"}}, Stamps: tracker.Stamps{Title: tracker.Stamp{Tie: "t"}},
	}
	b.put(t, full)
	b.put(t, tracker.Card{ID: "b", BoardID: "b1", ColumnID: "done", Title: "fix", BotID: "bot1"})
	b.put(t, tracker.Card{ID: "c", BoardID: "b2", ColumnID: "open", Title: "other", Labels: []string{"ship-it-now"}})
	b.put(t, tracker.Card{ID: "gone", BoardID: "b1", ColumnID: "open", Title: "fix", Labels: []string{"ship-it"}, BotID: "bot1"})
	b.put(t, tracker.Card{TenantID: "other", ID: "a", BoardID: "b1", ColumnID: "open", Title: "fix", Labels: []string{"ship-it"}, BotID: "bot1"})
	b.put(t, tracker.Card{TenantID: "acme-2", ID: "z", BoardID: "b1", ColumnID: "open", Title: "fix", Labels: []string{"ship-it"}, BotID: "bot1"})
	b.change(t, "gone", func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Deleted = true
		return card, &tracker.BoardEvent{Kind: tracker.KindDeleted, Actor: human}, nil
	})
	for want, ps := range map[string][]tracker.CardListParams{
		"a b c": {{}},
		"b a":   {{BoardID: "b1"}, {BoardID: "b1", Text: "FIX"}, {BoardID: "b1", BotID: "bot1"}},
		"a b":   {{BotID: "bot1"}, {Text: "fix"}},
		"c":     {{BoardID: "b2"}, {Label: "SHIP-IT-NOW"}, {Text: " Other "}},
		"a": {
			{BoardID: "b1", ColumnID: "open"},
			{Label: "ship-it"},
			{Label: " SHIP-IT"},
			{Label: "cafe\u0301"},
			{BoardID: "b1", Label: "ship-it"},
			{BotID: "bot1", Label: "ship-it"},
			{Text: "CAFE\u0301"},
			{Text: "a.*b"},
			{BoardID: "b1", ColumnID: "open", BotID: "bot1", Label: "ship-it", Text: "the"},
		},
		"": {
			{BoardID: "b9"},
			{BoardID: "b1", ColumnID: "none"},
			{Label: "ship"},
			{Text: "a.b"},
			{Text: "^fix"},
			{Text: "body"},
			{BotID: "bot2"},
			{BotID: "bot"},
			{BoardID: "b2", BotID: "bot1"},
			{Text: "$where"},
			{Label: ".*"},
		},
	} {
		for _, p := range ps {
			p.TenantID, p.Limit = tenant, 10
			require.Equal(t, want, strings.Join(b.pages(t, p, nil), " "), "%+v", p)
		}
	}
	page, err := b.real.CardList(ctx, tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "open", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []tracker.Card{b.card(t, "a").Listed()}, page.Cards)
	require.Empty(t, page.Cards[0].Body)
	require.NotEmpty(t, page.Cards[0].BotArgs)
	require.NotEmpty(t, b.card(t, "a").Body)
}

// A filter that no index serves is looked at a bounded number of cards.
func testCardListBounded(t *testing.T, b *bundle) {
	var ws []tracker.CardWrite
	for i := range tracker.CardScanMax + 20 {
		card := &tracker.Card{TenantID: tenant, ID: fmt.Sprintf("c%04d", i), Incarnation: "i", Rev: 1, LastWrite: strconv.Itoa(i), BoardID: "b1", ColumnID: "open", Title: "t", Position: "V"}
		if i == 0 || i == tracker.CardScanMax+10 {
			card.Labels = []string{"rare"}
		}
		ws = append(ws, tracker.CardWrite{Next: card})
	}
	_, err := b.real.CardWriteMany(t.Context(), tenant, ws)
	require.NoError(t, err)
	for _, p := range []tracker.CardListParams{{Label: "rare"}, {Label: "rare", BoardID: "b1", ColumnID: "open"}, {Label: "rare", BoardID: "b1"}} {
		p.TenantID, p.Limit = tenant, 2
		page, err := b.real.CardList(t.Context(), p)
		require.NoError(t, err)
		require.Len(t, page.Cards, 1, "as far as it read")
		require.NotNil(t, page.Next)
		require.Equal(t, fmt.Sprintf("c%04d", tracker.CardScanMax-1), page.Next.ID)
		p.After = page.Next
		page, err = b.real.CardList(t.Context(), p)
		require.NoError(t, err)
		require.Len(t, page.Cards, 1)
		require.Nil(t, page.Next)
	}
}

func testCardListBackward(t *testing.T, b *bundle) {
	for id, position := range map[string]string{"old1": "", "old2": "", "a": "A", "m1": "M", "m2": "M", "z": "Z"} {
		b.put(t, tracker.Card{ID: id, BoardID: "b1", ColumnID: "open", Title: "t", Position: position})
	}
	b.put(t, tracker.Card{ID: "elsewhere", BoardID: "b1", ColumnID: "done", Title: "t", Position: "B"})
	p := tracker.CardListParams{TenantID: tenant, BoardID: "b1", ColumnID: "open", Limit: 1}
	down := b.pages(t, p, nil)
	require.Equal(t, []string{"old1", "old2", "a", "m1", "m2", "z"}, down)
	p.Backward = true
	up := b.pages(t, p, nil)
	slices.Reverse(up)
	require.Equal(t, down, up)
}

func testCardCount(t *testing.T, b *bundle) {
	count := func(tenantID, board, column string) int {
		n, err := b.real.CardCount(t.Context(), tenantID, board, column)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, count(tenant, "b1", ""))
	for _, id := range []string{"c1", "c2", "c3"} {
		b.create(t, id, "open")
	}
	b.create(t, "c4", "done")
	b.put(t, tracker.Card{TenantID: "other", ID: "c9", BoardID: "b1", ColumnID: "open", Title: "t"})
	_, err := b.board.Delete(t.Context(), tenant, "c1", human)
	require.NoError(t, err)
	require.Equal(t, 3, count(tenant, "b1", ""))
	require.Equal(t, 2, count(tenant, "b1", "open"))
	require.Equal(t, 1, count("other", "b1", "open"))
	require.Zero(t, count(tenant, "b2", "open"))
	require.Zero(t, count(tenant, "b1", "none"))
}
