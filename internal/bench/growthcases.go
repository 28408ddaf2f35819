package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"github.com/triggerd/triggerd/internal/explain"
	"github.com/triggerd/triggerd/pkg/boardmongo"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// One turn: so many events of a tenant, a fifth of which fire a subscription.
const (
	growthEvents = 320
	growthRatio  = 0.2
	growthOwed   = 64
	growthPage   = 100 // of dead letters
	growthBot    = "beside"
	growthBefore = 1000 // rows of history beside a backlog
)

// The operations, in the order of a turn, and the indexes by which their
// commands find events and rows. Whether a command is sent may depend on what
// the tail still knows, so that the last ones of a list may be missing.
const (
	opDrain   = "drain"
	opReclaim = "look for leases that ran out"
	opClaim   = "claim"
	opSettle  = "settle"
	opNextDue = "next due"
	opDead    = "dead letters"
	opDeadMid = "dead letters, a page in the middle"
)

var growthOps = []growthOp{
	{opDrain, []string{"tenant_seq", "tenant_subscription_at"}, 0},
	{opReclaim, []string{"live_tenant_lane"}, 0},
	{opClaim, []string{"live_tenant_lane", "_id_", "_id_"}, 0},
	{opSettle, []string{"_id_"}, 0},
	{opNextDue, []string{"live_tenant_lane", "live_tenant_lane"}, 0},
	{opDead, []string{"parked_tenant_state", "_id_"}, pageSpans},
	{opDeadMid, []string{"parked_tenant_state", "_id_"}, pageSpans},
}

// pageSpans is in how many more spans a page may be found.
const pageSpans = 2

type growthOp struct {
	name    string
	indexes []string
	// spans: in how many more commands may depend on the rows; the first index
	// finds those of each span, the second where they begin and end.
	spans int
}

// by reports whether the operation may go by the indexes.
func (op growthOp) by(used []string) bool {
	if op.spans > 0 {
		return slices.Contains(used, op.indexes[0]) && !slices.ContainsFunc(used, func(name string) bool { return !slices.Contains(op.indexes, name) })
	}
	return len(used) > 0 && len(used) <= len(op.indexes) && slices.Equal(used, op.indexes[:len(used)])
}

// recorder keeps what finds events and rows, of the commands since it was last
// asked.
type recorder struct {
	mu     sync.Mutex
	bodies []bson.D
}

func (r *recorder) started(e *event.CommandStartedEvent) {
	if coll, _ := e.Command.Lookup(e.CommandName).StringValueOK(); coll != "board_events" && coll != "trigger_effects" {
		return
	}
	if body := explain.Body(e); body != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies = append(r.bodies, body)
	}
}

func (r *recorder) take() []bson.D {
	r.mu.Lock()
	defer r.mu.Unlock()
	bodies := r.bodies
	r.bodies = nil
	return bodies
}

// cases measures each operation in each world, in turns.
func (g *growth) cases(ctx context.Context) error {
	for _, n := range g.History {
		w, err := g.probed(ctx, "history", n, 1, func(ctx context.Context, s *boardmongo.Store) error {
			return loadHistory(ctx, s, tenantID(0), n, 0)
		})
		if err != nil {
			return err
		}
		w.history = n
	}
	for _, n := range g.Backlog {
		if _, err := g.probed(ctx, "backlog", n, 2, func(ctx context.Context, s *boardmongo.Store) error {
			for i, beside := range []int{n, 0} {
				if err := loadHistory(ctx, s, tenantID(i), growthBefore, beside); err != nil {
					return err
				}
			}
			return loadBacklog(ctx, s, tenantID(0), growthBot, growthBefore, n)
		}); err != nil {
			return err
		}
	}
	worlds := slices.Clone(g.worlds)
	for round := range g.Rounds + 1 { // the first warms up
		g.Progress("round %d of %d", round, g.Rounds)
		for i := range worlds {
			w := worlds[(i+round)%len(worlds)]
			if err := w.turn(ctx, round > 0, round == 0 || round == g.Rounds); err != nil {
				return fmt.Errorf("%s of %d rows: %w", w.grown, w.rows, err)
			}
		}
	}
	g.compare(worlds)
	for _, w := range worlds {
		if err := w.close(); err != nil {
			return err
		}
	}
	return nil
}

// probed makes a world to measure operations in, of so many tenants.
func (g *growth) probed(ctx context.Context, grown string, rows, tenants int, seed func(context.Context, *boardmongo.Store) error) (*world, error) {
	w, err := g.world(ctx, grown, rows, seed)
	if err != nil {
		return nil, err
	}
	w.Tenants = tenants
	if err := w.configure(ctx); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	monitor := w.meter.monitor()
	count := monitor.Started
	monitor.Started = func(ctx context.Context, e *event.CommandStartedEvent) {
		count(ctx, e)
		w.sent.started(e)
	}
	s, err := boardmongo.Connect(ctx, boardmongo.Params{URI: w.MongoURI, Database: w.Database, Timeout: w.Timeout, Monitor: monitor})
	if err != nil {
		return nil, err
	}
	closeDB := w.closeDB
	w.closeDB = func() error { return errors.Join(s.Close(context.WithoutCancel(ctx)), closeDB()) }
	w.measured = s
	w.tail = &trigger.Tail{Cards: s, Log: s, Heads: s, Config: s, Outbox: s, Lanes: s, Clock: s, Epochs: s, Logger: zerolog.Nop()}
	return w, nil
}

// turn emits events of each tenant, and has each operation done once for each.
func (w *world) turn(ctx context.Context, counts, explained bool) error {
	owed, err := w.emitter.slice(ctx, w.Tenants*growthEvents)
	if err == nil && owed != w.Tenants*growthOwed {
		err = fmt.Errorf("%d effects are owed", owed)
	}
	if err != nil {
		return fmt.Errorf("emit: %w", err)
	}
	for i := range w.Tenants {
		if err := w.operations(ctx, i, func(op string, do func() error) error {
			w.sent.take()
			before, began := w.meter.read(), time.Now()
			if err := do(); err != nil {
				return fmt.Errorf("%s: %w", op, err)
			}
			took, cost := time.Since(began), w.meter.read().minus(before)
			key := opKey{i, op}
			s := w.ops[key]
			if s == nil {
				s = &samples{}
				w.ops[key] = s
			}
			if counts {
				s.took = append(s.took, took)
				s.commands, s.documents = max(s.commands, cost.Commands), max(s.documents, cost.Documents)
			}
			if !explained {
				return nil
			}
			return w.explain(ctx, op, s)
		}); err != nil {
			return err
		}
	}
	return nil
}

// explain has the server explain how what was last sent finds its documents.
func (w *world) explain(ctx context.Context, op string, s *samples) error {
	var used []string
	for _, body := range w.sent.take() {
		p, err := explain.Command(ctx, w.database().Database(), body)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		used = append(used, p.Indexes...)
		s.scans = append(s.scans, p.Scans...)
	}
	s.used = append(s.used, used)
	return nil
}

// operations does each operation once, for one tenant that has events to drain.
func (w *world) operations(ctx context.Context, tenant int, measure func(op string, do func() error) error) error {
	id, lane, s := tenantID(tenant), trigger.LaneBot(botID(0)), w.measured
	now := s.Now().Add(time.Minute) // whatever is written meanwhile is due
	claim := trigger.ClaimParams{
		TenantID: id, Lane: lane, Worker: "bench", ClaimID: uuid.NewString(), Now: now, LeaseEnd: now.Add(trigger.LeaseDefault), Limit: growthOwed,
	}
	var rows []trigger.Effect
	list := func(after string) error {
		found, err := s.EffectList(ctx, trigger.EffectListParams{
			TenantID: id, EffectFilter: trigger.EffectFilter{State: trigger.StateFailed}, AfterID: after, Limit: growthPage,
		})
		if err == nil && len(found) == 0 {
			err = errors.New("there are none")
		}
		return err
	}
	middle := trigger.EffectID(trigger.EventID(id, int64(w.history/2)), "")
	do := map[string]func() error{
		opDrain: func() error {
			d, err := w.tail.Drain(ctx, id)
			if err == nil && (!d.Moved || d.More) {
				err = errors.New("it was not one batch")
			}
			return err
		},
		opReclaim: func() error {
			row, err := s.EffectReclaim(ctx, claim)
			if err == nil && row != nil {
				err = fmt.Errorf("effect %s was claimed before", row.ID)
			}
			return err
		},
		opClaim: func() (err error) {
			rows, err = s.EffectClaim(ctx, claim)
			if err == nil && len(rows) != growthOwed {
				err = fmt.Errorf("%d of %d rows were claimed", len(rows), growthOwed)
			}
			return err
		},
		opSettle: func() error {
			settles := make([]trigger.Settle, len(rows))
			for i := range rows {
				settles[i] = trigger.Settle{Fence: rows[i].Fence(), At: now, To: trigger.StateDone, Outcome: trigger.OutcomeLaunched}
			}
			stand, err := s.EffectSettleMany(ctx, settles)
			if err == nil && slices.Contains(stand, false) {
				err = errors.New("a settle was refused")
			}
			return err
		},
		opNextDue: func() error {
			_, found, err := s.EffectNextDue(ctx, id, lane)
			if err == nil && found {
				err = errors.New("a row was left over")
			}
			return err
		},
		opDead:    func() error { return list("") },
		opDeadMid: func() error { return list(middle) },
	}
	for _, op := range growthOps {
		if err := measure(op.name, do[op.name]); err != nil {
			return err
		}
	}
	return nil
}

// compare fills the report's cases, and says which of them are above a bar.
func (g *growth) compare(worlds []*world) {
	least := make(map[string]GrowthCase)
	for _, w := range worlds {
		for tenant := range w.Tenants {
			for _, op := range growthOps {
				s := w.ops[opKey{tenant, op.name}]
				c := GrowthCase{
					Grown: w.grownFor(tenant), Rows: w.rows, Op: op.name,
					MedianMS: quantile(s.took, 0.5), P90MS: quantile(s.took, 0.9), Commands: s.commands, Documents: s.documents, Indexes: s.indexes(),
				}
				key := c.Grown + "/" + c.Op
				if _, ok := least[key]; !ok {
					least[key] = c
				}
				c.Ratio = c.MedianMS / least[key].MedianMS
				g.report.Cases = append(g.report.Cases, c)
				g.judge(c, least[key], s, op)
			}
		}
	}
}

func (g *growth) judge(c, least GrowthCase, s *samples, op growthOp) {
	of := fmt.Sprintf("%s at %s rows of %s", c.Op, size(c.Rows), c.Grown)
	if c.Op == opClaim && c.Ratio > GrowthRatioMax {
		g.failed("%s takes %.2f times as long as at %s, more than %.1f", of, c.Ratio, size(least.Rows), GrowthRatioMax)
	}
	if c.Commands > least.Commands+int64(op.spans) {
		g.failed("%s sends %d commands, %d at %s", of, c.Commands, least.Commands, size(least.Rows))
	}
	for _, used := range s.used {
		if !op.by(used) {
			g.failed("%s goes by the indexes %v instead of %v", of, used, op.indexes)
		}
	}
	if len(s.scans) > 0 {
		g.failed("%s scans: %v", of, s.scans)
	}
}

// grownFor is what has grown for one of the world's tenants: the first has it.
func (w *world) grownFor(tenant int) string {
	switch {
	case w.Tenants == 1:
		return w.grown
	case tenant == 0:
		return w.grown + " in another lane"
	}
	return w.grown + " of another tenant"
}

func (s *samples) indexes() []string {
	names := make(map[string]bool)
	for _, used := range s.used {
		for _, name := range used {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
