package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// listOf is one list of the API, and what is in it.
type listOf struct {
	path string
	// key names the field of an item that tells which one it is.
	key string
	// n is how many rows there are; pagesOf if it is 0.
	n int
	// row makes the i-th row, all of one time, and returns its key; those from
	// pagesOf on are made while the list is read.
	row func(i int) string
	// touch changes the row, or takes it away; nil where no row is ever changed.
	touch func(i int)
}

// pagesOf is how many rows a list has when it is first asked.
const pagesOf = 30

// lists has each list operation.
func (b *bundle) lists(t *testing.T) map[string]listOf {
	t.Helper()
	ctx, mem, at := t.Context(), b.mem, b.mem.Now()
	ok := func(err error) { require.NoError(t, err) }
	// The later a row is made, the less does its id tell when.
	name := func(i int) string { return fmt.Sprintf("r-%02d", i*37%100) }
	kind := func(path string, save func(id string) error, remove func(ctx context.Context, tenant, id string, rev int64) error) listOf {
		return listOf{
			path: acme + "/" + path, key: "id",
			row:   func(i int) string { ok(save(name(i))); return name(i) },
			touch: func(i int) { ok(remove(ctx, "acme", name(i), 1)) },
		}
	}
	sub := func(id string) error {
		return mem.SubscriptionSave(ctx, &trigger.Subscription{
			TenantID: "acme", ID: id, Name: "n" + id[2:], Revision: 1, BotID: botID, UpdatedAt: at, On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindMoved}},
		})
	}
	audit := func(tenant string) func(int) string {
		return func(int) string {
			e := trigger.AuditEntry{TenantID: tenant, ID: trigger.AuditID(at), At: at, Operation: "x", AuditEnd: trigger.AuditEnd{Outcome: trigger.AuditBegun}}
			ok(mem.AuditBegin(ctx, e))
			return e.ID
		}
	}
	// A row, up to whose event the log has been written.
	logged := func(seq int64, with func(*trigger.Effect)) string {
		id := b.rowIn(t, seq, trigger.StateFailed, with)
		_, err := mem.HeadLift(ctx, "acme")
		ok(err)
		return id
	}
	// Rows of six events, five of each.
	effect := func(i int) string {
		return logged(int64(1+i%6), func(e *trigger.Effect) {
			e.CardID, e.SubscriptionID, e.CreatedAt, e.UpdatedAt = "of-effects", name(i), at, at
			e.ID = trigger.EffectID(trigger.EventID("acme", e.EventSeq), e.SubscriptionID)
		})
	}
	replayed := func(i int) {
		_, err := b.server.api.Dead.Decide(ctx, trigger.Decision{
			TenantID: "acme", EffectID: trigger.EffectID(trigger.EventID("acme", int64(1+i%6)), name(i)), Action: trigger.ActionReplay, By: "test",
		})
		ok(err)
	}
	card := func(i int) string {
		b.newCard(t, name(i), func(c *tracker.Card) { c.ColumnID, c.Position = "todo", "" })
		return name(i)
	}
	changed := func(id string, f func(c *tracker.Card, e *tracker.BoardEvent)) string {
		out, err := b.server.board.Change(ctx, "acme", id, func(c *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
			e := &tracker.BoardEvent{Kind: tracker.KindEdited}
			f(c, e)
			return c, e, nil
		})
		ok(err)
		seqs, err := b.server.board.Relay.Card(ctx, "acme", id)
		ok(err)
		return strconv.FormatInt(seqs[out.Event.EID], 10)
	}
	edited := func(id string) func(i int) string {
		return func(i int) string {
			return changed(id, func(c *tracker.Card, _ *tracker.BoardEvent) { c.Title = fmt.Sprint("title ", i) })
		}
	}
	moved := func(i int) {
		changed(name(i), func(c *tracker.Card, e *tracker.BoardEvent) {
			e.Kind, e.FromColumn, e.ToColumn = tracker.KindMoved, c.ColumnID, "done"
			c.ColumnID = "done"
		})
	}
	return map[string]listOf{
		"list-boards": kind("boards", func(id string) error {
			return mem.BoardSave(ctx, &tracker.Board{TenantID: "acme", ID: id, Name: id, Revision: 1, UpdatedAt: at, Columns: []tracker.Column{{ID: "a", Name: "a"}}})
		}, mem.BoardDelete),
		"list-bots": kind("bots", func(id string) error {
			return mem.BotSave(ctx, &trigger.Bot{TenantID: "acme", ID: id, Name: id, Revision: 1, URL: "http://h/", UpdatedAt: at})
		}, mem.BotDelete),
		"list-hooks": kind("hooks", func(id string) error {
			return mem.HookSave(ctx, &trigger.Hook{TenantID: "acme", ID: id, Name: id, Revision: 1, Provider: github.Provider, BoardID: "board-1", OpenColumn: "todo", ClosedColumn: "done", UpdatedAt: at})
		}, mem.HookDelete),
		"list-subscriptions": kind("subscriptions", sub, mem.SubscriptionDelete),
		"list-projections": kind("projections", func(id string) error {
			return mem.ProjectionSave(ctx, &trigger.Projection{
				TenantID: "acme", ID: id, Name: id, Revision: 1, FromBoardID: "f-" + id, ToBoardID: "t-" + id, Columns: []trigger.ColumnPair{{From: "a", To: "b"}}, UpdatedAt: at,
			})
		}, mem.ProjectionDelete),
		"list-tokens": {path: "/v1/tokens", key: "id", row: func(i int) string {
			ok(mem.TokenCreate(ctx, &trigger.Token{ID: name(i), Hash: name(i), Name: "x", Role: trigger.RoleViewer, TenantID: "acme", CreatedAt: at}))
			return name(i)
		}, touch: func(i int) { ok(mem.TokenRevoke(ctx, name(i), at)) }},
		"list-all-pauses": {path: "/v1/pauses", key: "bot_id", row: func(i int) string {
			ok(mem.PauseSet(ctx, trigger.Pause{TenantID: "acme", BotID: name(i), At: at}))
			return name(i)
		}, touch: func(i int) {
			_, err := mem.PauseClear(ctx, "acme", name(i))
			ok(err)
		}},
		"list-tenants": {path: "/v1/tenants", key: "tenant_id", row: func(i int) string {
			_, err := mem.HeadLift(ctx, name(i))
			ok(err)
			return name(i)
		}},
		"list-fleet-audit":  {path: "/v1/audit", key: "id", row: audit("")},
		"list-audit":        {path: acme + "/audit", key: "id", row: audit("acme")},
		"list-cards":        {path: acme + "/cards?board=board-1&column=todo", key: "id", row: card, touch: moved},
		"list-events":       {path: acme + "/events", key: "seq", row: edited(issueCard())},
		"list-card-events":  {path: acme + "/cards/" + issueCard() + "/events", key: "seq", row: edited(issueCard())},
		"list-effects":      {path: acme + "/effects", key: "id", row: effect, touch: replayed},
		"list-card-effects": {path: acme + "/cards/of-effects/effects", key: "id", row: effect, touch: replayed},
		"list-comments": {path: acme + "/cards/" + issueCard() + "/comments", key: "id", row: func(i int) string {
			_, err := b.server.board.Comment(ctx, "acme", issueCard(), tracker.Comment{ID: name(i)}, func(c *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
				return c, &tracker.BoardEvent{Kind: tracker.KindCommented}, c.AddComment("x")
			})
			ok(err)
			return name(i)
		}},
		"log-subscription": {path: acme + "/subscriptions/sub-1/log", key: "id", row: func(i int) string {
			return logged(int64(1+i*37%100), func(e *trigger.Effect) { e.CreatedAt, e.UpdatedAt = at, at })
		}},
		"explain-card": {path: acme + "/cards/" + issueCard() + "/explain", key: "subscription_id", n: 220, row: func(i int) string {
			id := fmt.Sprintf("r-%03d", i*37%1000)
			ok(sub(id))
			return id
		}},
	}
}

// Pages over rows of one time, of which some change or go between pages and to
// which others come: each row that is left alone is seen just once.
func TestPagesOfEachList(t *testing.T) {
	t.Parallel()
	names := setup(t).lists(t)
	for _, item := range setup(t).server.api.openapi.Paths {
		for _, op := range operationsOf(item) {
			for _, p := range op.Parameters {
				if p.Name == "after" {
					require.Contains(t, names, op.OperationID, "a list without a row in the table")
				}
			}
		}
	}
	for op := range names {
		for _, limit := range []int{7, 25} {
			t.Run(fmt.Sprint(op, "/", limit), func(t *testing.T) {
				t.Parallel()
				b := filled(t)
				b.newCard(t, "of-effects")
				list := b.lists(t)[op]
				n := max(list.n, pagesOf)
				keys := make([]string, n)
				for i := range keys {
					keys[i] = list.row(i)
				}
				admin, seen, next, more := b.token(t, ""), make(map[string]int), "", n
				path, query, _ := strings.Cut(list.path, "?")
				given, err := url.ParseQuery(query)
				require.NoError(t, err)
				if list.n == 0 {
					given.Set("limit", strconv.Itoa(limit))
				}
				for page := range 200 {
					var got struct {
						Items []map[string]json.RawMessage `json:"items"`
						Next  json.RawMessage              `json:"next"`
					}
					a := b.get(t, admin, path+"?"+given.Encode())
					require.Equal(t, 200, a.status, a.body)
					require.NoError(t, json.Unmarshal([]byte(a.body), &got))
					if list.n == 0 {
						require.LessOrEqual(t, len(got.Items), limit)
					}
					for _, item := range got.Items {
						seen[strings.Trim(string(item[list.key]), `"`)]++
					}
					if next = strings.Trim(string(got.Next), `"`); next == "" {
						break
					}
					given.Set("after", next)
					if more < n+8 {
						list.row(more)
						more++
					}
					if at := page * 3; list.touch != nil && at < n {
						list.touch(at) // each third row, seen or not
					}
				}
				require.Empty(t, next, "it has no end")
				for i, key := range keys {
					if list.touch != nil && i%3 == 0 {
						continue
					}
					require.Equal(t, 1, seen[key], "row %d, %s", i, key)
				}
			})
		}
	}
}

// All creates of the API take an Idempotency-Key: a call that is made again
// makes nothing twice, and another caller's key is another one.
func TestEachCreateIsMadeOnce(t *testing.T) {
	t.Parallel()
	b := filled(t)
	admin, second := b.token(t, ""), b.token(t, "")
	calls := b.writes(t)
	creates := 0
	for _, item := range b.server.api.openapi.Paths {
		for _, op := range operationsOf(item) {
			made := op.Responses["201"] != nil
			require.Equal(t, made, op.Metadata["creates"] == true, op.OperationID)
			takes := slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == idempotencyHeader })
			require.Equal(t, made, takes, op.OperationID)
			if !made {
				continue
			}
			creates++
			c := calls[op.OperationID]
			first := b.keyed(t, admin, c.path, c.body, "one")
			require.Equal(t, 201, first.status, "%s: %s", op.OperationID, first.body)
			again := b.keyed(t, admin, c.path, c.body, "one")
			if op.OperationID == "create-token" {
				require.Equal(t, 409, again.status, "what it is can't be shown again")
			} else {
				require.Equal(t, first.id(t), again.id(t), op.OperationID)
			}
			require.Equal(t, 422, b.keyed(t, admin, c.path, c.body+" ", "one").status, op.OperationID)
			other := b.keyed(t, second, c.path, c.body, "one")
			require.Contains(t, []int{201, 409, 422}, other.status, "%s: %s", op.OperationID, other.body) // else the name is taken, or the boards
			require.NotContains(t, other.body, idempotencyHeader, op.OperationID)
			if other.status == 201 {
				require.NotEqual(t, first.id(t), other.id(t), op.OperationID)
			}
		}
	}
	require.Greater(t, creates, 8)
}
