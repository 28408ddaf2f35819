package trigger

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/triggerd/triggerd/internal/clone"
	"github.com/triggerd/triggerd/pkg/tracker"
)

// MemoryEffectOutbox keeps rows and lanes in memory. It behaves like the
// database where a caller can see it. Safe for concurrent use; what it holds
// is gone with the process.
type MemoryEffectOutbox struct {
	mu   sync.Mutex
	rows map[string]*Effect
	live map[laneKey]map[string]*Effect // by lane, then id
	// announces holds the rows that are to be announced, by id.
	announces map[string]*Effect
	lanes     map[laneKey]*Lane
}

type laneKey struct{ tenant, lane string }

var (
	_ EffectOutbox = (*MemoryEffectOutbox)(nil)
	_ Lanes        = (*MemoryEffectOutbox)(nil)
)

// NewMemoryEffectOutbox returns an empty outbox.
func NewMemoryEffectOutbox() *MemoryEffectOutbox {
	return &MemoryEffectOutbox{
		rows: make(map[string]*Effect), live: make(map[laneKey]map[string]*Effect), lanes: make(map[laneKey]*Lane),
		announces: make(map[string]*Effect),
	}
}

// put stores a row and keeps the index of live ones.
func (m *MemoryEffectOutbox) put(e Effect) {
	row := clone.Of(e)
	m.rows[row.ID] = &row
	if delete(m.announces, row.ID); !row.AnnounceAt.IsZero() {
		m.announces[row.ID] = &row
	}
	key := laneKey{row.TenantID, row.Lane}
	if row.State.Live() && row.Kind.Known() {
		if m.live[key] == nil {
			m.live[key] = make(map[string]*Effect)
		}
		m.live[key][row.ID] = &row
	} else if delete(m.live[key], row.ID); len(m.live[key]) == 0 {
		delete(m.live, key)
	}
}

// EffectMaterialize implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectMaterialize(_ context.Context, tenantID string, rows []Effect) ([]EffectRef, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	refs := make([]EffectRef, 0, len(rows))
	for _, row := range rows {
		if row.TenantID != tenantID {
			return nil, fmt.Errorf("materialize %s: row of another tenant", row.ID)
		}
		if _, there := m.rows[row.ID]; !there {
			m.put(row)
		}
		have := m.rows[row.ID]
		refs = append(refs, EffectRef{ID: have.ID, Lane: have.Lane, State: have.State, NotBefore: have.NotBefore, ClaimID: have.ClaimID})
	}
	return refs, nil
}

// due returns the lane's rows of a state that are due, oldest first.
func (m *MemoryEffectOutbox) due(p ClaimParams, state State) []*Effect {
	var out []*Effect
	for _, row := range m.live[laneKey{p.TenantID, p.Lane}] {
		if row.State == state && !row.NotBefore.After(p.Now) {
			out = append(out, row)
		}
	}
	slices.SortFunc(out, func(a, b *Effect) int {
		return cmp.Or(a.NotBefore.Compare(b.NotBefore), cmp.Compare(a.ID, b.ID))
	})
	return out[:min(len(out), p.Limit)]
}

func claimed(row Effect, p ClaimParams) Effect {
	row.State, row.ClaimID, row.Worker = StateClaimed, p.ClaimID, p.Worker
	row.ClaimedAt, row.NotBefore, row.UpdatedAt = p.Now, p.LeaseEnd, p.Now
	row.Attempts++
	return row
}

// EffectClaim implements EffectOutbox (W1).
func (m *MemoryEffectOutbox) EffectClaim(_ context.Context, p ClaimParams) ([]Effect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Effect
	for _, row := range m.due(p, StatePending) {
		m.put(claimed(*row, p))
		out = append(out, clone.Of(*m.rows[row.ID]))
	}
	return out, nil
}

// EffectReclaim implements EffectOutbox (W4).
func (m *MemoryEffectOutbox) EffectReclaim(_ context.Context, p ClaimParams) (*Effect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.Limit = 1
	expired := m.due(p, StateClaimed)
	if len(expired) == 0 {
		return nil, nil
	}
	row := *expired[0]
	switch {
	case !row.DeliveryStartedAt.IsZero():
		row.State, row.UpdatedAt, row.AnnounceAt = StateReconcile, p.Now, p.Now
		row.Errors = appendError(row.Errors, LeaseLost(row.Attempts, p.Now))
	case row.Attempts >= AttemptsMax:
		row.State, row.Reason, row.ClaimID, row.UpdatedAt = StateFailed, ReasonLeaseExhausted, p.ClaimID, p.Now
		row.AnnounceAt = p.Now
	default:
		row = claimed(row, p)
	}
	m.put(row)
	out := clone.Of(row)
	return &out, nil
}

// EffectSettleMany implements EffectOutbox (W2).
func (m *MemoryEffectOutbox) EffectSettleMany(_ context.Context, settles []Settle) ([]bool, error) {
	if err := CheckSettles(settles); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	stands := make([]bool, len(settles))
	for i, s := range settles {
		row, ok := m.rows[s.EffectID]
		if !ok || row.TenantID != s.TenantID || row.ClaimID != s.ClaimID {
			continue
		}
		switch {
		case row.State == StateClaimed && s.HandBack && !row.DeliveryStartedAt.IsZero():
		case row.State == StateClaimed, row.State == StateReconcile && s.Definite():
			stands[i] = true
			m.put(settled(*row, s))
		case row.State == StateReconcile && s.To != StateReconcile: // it never was
		default:
			stands[i] = true // it was applied before
		}
	}
	return stands, nil
}

// settlesTo are the states that a claim can end in.
var settlesTo = []State{StateDone, StateFailed, StatePending, StateReconcile, StateHeld}

// CheckSettles refuses settles that no store may carry out: one without a
// whole credential, or to a state that a claim can't end in (W2).
func CheckSettles(settles []Settle) error {
	for _, s := range settles {
		if !s.Complete() {
			return fmt.Errorf("settle %q: the credential is not whole", s.EffectID)
		}
		if !slices.Contains(settlesTo, s.To) {
			return fmt.Errorf("settle %q: no claim ends in state %q", s.EffectID, s.To)
		}
	}
	return nil
}

func appendError(errs []AttemptError, e AttemptError) []AttemptError {
	errs = append(slices.Clone(errs), e)
	return errs[max(0, len(errs)-ErrorsKept):]
}

func settled(row Effect, s Settle) Effect {
	row.State, row.UpdatedAt, row.AnnounceAt = s.To, s.At, time.Time{}
	if s.To.Parked() {
		row.AnnounceAt = s.At
	}
	switch s.To {
	case StateDone:
		row.Outcome, row.RunID, row.DoneAt = s.Outcome, s.RunID, s.At
	case StateFailed:
		row.Reason = s.Reason
	case StatePending:
		row.NotBefore = s.NotBefore
		if s.HandBack || s.Uncount {
			row.Attempts--
		}
	}
	if s.Error != nil {
		row.Errors = appendError(row.Errors, *s.Error)
	}
	if s.Rendered != "" {
		row.Rendered = s.Rendered
	}
	if s.Definite() {
		row.DeliveryStartedAt = time.Time{}
	}
	return row
}

// fenced changes a row under a claim that is still held.
func (m *MemoryEffectOutbox) fenced(f Fence, change func(*Effect)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[f.EffectID]
	if !ok || !f.Complete() || row.TenantID != f.TenantID || row.ClaimID != f.ClaimID || row.State != StateClaimed {
		return fmt.Errorf("effect %s: %w", f.EffectID, ErrFenceLost)
	}
	next := *row
	change(&next)
	m.put(next)
	return nil
}

// EffectPlan implements EffectOutbox (W7).
func (m *MemoryEffectOutbox) EffectPlan(_ context.Context, f Fence, plan LaunchPlan) error {
	return m.fenced(f, func(row *Effect) { row.Plan = &plan })
}

// EffectMarkConsumed implements EffectOutbox (W7).
func (m *MemoryEffectOutbox) EffectMarkConsumed(_ context.Context, f Fence) error {
	return m.fenced(f, func(row *Effect) { row.ConsumeMarked = true })
}

// EffectStart implements EffectOutbox (W8).
func (m *MemoryEffectOutbox) EffectStart(_ context.Context, f Fence, at time.Time, rendered string) error {
	return m.fenced(f, func(row *Effect) { row.DeliveryStartedAt, row.Rendered, row.Replay = at, rendered, ReplayUnsafe })
}

// EffectTouch implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectTouch(_ context.Context, f Fence, at time.Time) error {
	return m.fenced(f, func(row *Effect) { row.UpdatedAt = at })
}

// EffectDecide implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectDecide(_ context.Context, d Decision) (*Effect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[d.EffectID]
	if !ok || row.TenantID != d.TenantID {
		return nil, fmt.Errorf("effect %s: %w", d.EffectID, tracker.ErrNotFound)
	}
	if !row.Decided(d.ID) {
		next, err := d.Apply(*row)
		if err != nil {
			return nil, err
		}
		m.put(next)
	}
	out := clone.Of(*m.rows[d.EffectID])
	return &out, nil
}

// EffectGet implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectGet(_ context.Context, tenantID, effectID string) (*Effect, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, ok := m.rows[effectID]
	if !ok || row.TenantID != tenantID {
		return nil, fmt.Errorf("effect %s: %w", effectID, tracker.ErrNotFound)
	}
	out := clone.Of(*row)
	return &out, nil
}

// EffectListByEvent implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectListByEvent(_ context.Context, tenantID, eventID string) ([]Effect, error) {
	return m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && strings.HasPrefix(row.ID, eventID+"|")
	}), nil
}

// EffectList implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectList(_ context.Context, p EffectListParams) ([]Effect, error) {
	rows := m.list(func(row *Effect) bool {
		return row.TenantID == p.TenantID && row.ID > p.AfterID && p.Accepts(row)
	})
	return rows[:min(len(rows), p.Limit)], nil
}

// EffectListBySubscription implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectListBySubscription(_ context.Context, tenantID, subscriptionID string, before int64, limit int) ([]Effect, error) {
	rows := m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && row.SubscriptionID == subscriptionID && row.EventSeq < before
	})
	slices.SortFunc(rows, func(a, b Effect) int { return cmp.Compare(b.EventSeq, a.EventSeq) })
	return rows[:min(len(rows), limit)], nil
}

func (m *MemoryEffectOutbox) list(want func(*Effect) bool) []Effect {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Effect
	for _, row := range m.rows {
		if want(row) {
			bare := *row
			bare.Plan, bare.Rendered = nil, ""
			out = append(out, clone.Of(bare))
		}
	}
	slices.SortFunc(out, func(a, b Effect) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// EffectsHeld implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectsHeld(_ context.Context, after SubscriptionKey, limit int) ([]SubscriptionKey, error) {
	var out []SubscriptionKey
	for _, row := range m.list(func(row *Effect) bool { return row.State == StateHeld }) {
		if k := (SubscriptionKey{row.TenantID, row.SubscriptionID}); k.compare(after) > 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, SubscriptionKey.compare)
	out = slices.Compact(out)
	return out[:min(len(out), limit)], nil
}

// EffectsOfCards implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectsOfCards(_ context.Context, p CardEffectsParams) ([]Effect, error) {
	rows := m.list(func(row *Effect) bool {
		return row.TenantID == p.TenantID && row.Kind.launches() && slices.Contains(p.CardIDs, row.CardID) && !row.ClaimedAt.Before(p.ClaimedSince)
	})
	slices.SortStableFunc(rows, func(a, b Effect) int { return cmp.Compare(b.EventSeq, a.EventSeq) })
	return rows[:min(len(rows), p.Limit)], nil
}

// EffectListByCard implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectListByCard(_ context.Context, tenantID, cardID string, after EffectKey, limit int) ([]Effect, error) {
	rows := m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && row.CardID == cardID &&
			(row.EventSeq < after.EventSeq || (row.EventSeq == after.EventSeq && row.ID < after.ID))
	})
	slices.SortFunc(rows, func(a, b Effect) int {
		return cmp.Or(cmp.Compare(b.EventSeq, a.EventSeq), cmp.Compare(b.ID, a.ID))
	})
	return rows[:min(len(rows), limit)], nil
}

// EffectMatches implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectMatches(_ context.Context, p MatchesParams) (out []Match, err error) {
	for _, row := range m.list(func(row *Effect) bool {
		return row.TenantID == p.TenantID && row.SubscriptionID == p.SubscriptionID && row.Outcome != OutcomeLoopCut &&
			!row.Event.At.Before(p.Since) && row.EventSeq > p.AfterSeq && row.EventSeq <= p.UpToSeq
	}) {
		out = append(out, matchOf(&row))
	}
	return out, nil
}

// EffectHeldCount implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectHeldCount(_ context.Context, tenantID, subscriptionID string, upTo int64) (int, error) {
	return len(m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && row.SubscriptionID == subscriptionID && row.State == StateHeld && row.EventSeq <= upTo
	})), nil
}

// EffectNextDue implements EffectOutbox.
func (m *MemoryEffectOutbox) EffectNextDue(_ context.Context, tenantID, lane string) (due time.Time, ok bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, row := range m.live[laneKey{tenantID, lane}] {
		if !ok || row.NotBefore.Before(due) {
			due, ok = row.NotBefore, true
		}
	}
	return due, ok, nil
}

// EffectMaxSeq returns the highest event seq of the tenant's rows; 0 if it has
// none (T4).
func (m *MemoryEffectOutbox) EffectMaxSeq(tenantID string) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var most int64
	for _, row := range m.rows {
		if row.TenantID == tenantID {
			most = max(most, row.EventSeq)
		}
	}
	return most
}

// EffectsSettledBefore implements Retention.
func (m *MemoryEffectOutbox) EffectsSettledBefore(_ context.Context, tenantID string, before time.Time, afterID string, limit int) ([]EffectSeq, error) {
	var out []EffectSeq
	for _, row := range m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && row.Kind.Known() && row.State.Over() && row.UpdatedAt.Before(before) && row.ID > afterID
	}) {
		out = append(out, EffectSeq{ID: row.ID, EventSeq: row.EventSeq, CardID: row.CardID, Consume: row.Consume})
	}
	return out[:min(len(out), limit)], nil
}

// EffectsOpen implements Retention.
func (m *MemoryEffectOutbox) EffectsOpen(_ context.Context, tenantID string, ids []string) (open []string, err error) {
	for _, row := range m.list(func(row *Effect) bool {
		return row.TenantID == tenantID && !row.State.Over() && slices.Contains(ids, row.ID)
	}) {
		open = append(open, row.ID)
	}
	return open, nil
}

// EffectExpireMany implements Retention.
func (m *MemoryEffectOutbox) EffectExpireMany(_ context.Context, tenantID string, ids []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range ids {
		if row, ok := m.rows[id]; ok && row.TenantID == tenantID && row.Kind.Known() && row.State.Over() {
			delete(m.rows, id)
		}
	}
	return nil
}

// LaneMarkMany implements Lanes.
func (m *MemoryEffectOutbox) LaneMarkMany(_ context.Context, marks []LaneMark) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mark := range marks {
		key := laneKey{mark.TenantID, mark.Lane}
		lane := m.lanes[key]
		if lane == nil {
			lane = &Lane{TenantID: mark.TenantID, Lane: mark.Lane}
			m.lanes[key] = lane
		}
		if due := mark.Due.Truncate(time.Millisecond); lane.DueAt.IsZero() || due.Before(lane.DueAt) {
			lane.DueAt = due
		}
		lane.Version++
	}
	return nil
}

// LanesDue implements Lanes.
func (m *MemoryEffectOutbox) LanesDue(_ context.Context, now time.Time, limit int) ([]Lane, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Lane
	for _, lane := range m.lanes {
		if !lane.DueAt.IsZero() && !lane.DueAt.After(now) {
			out = append(out, *lane)
		}
	}
	slices.SortFunc(out, func(a, b Lane) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.TenantID, b.TenantID), cmp.Compare(a.Lane, b.Lane))
	})
	return out[:min(len(out), limit)], nil
}

// LaneReschedule implements Lanes.
func (m *MemoryEffectOutbox) LaneReschedule(_ context.Context, lane Lane, due time.Time) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.lanes[laneKey{lane.TenantID, lane.Lane}]
	if have == nil || have.Version != lane.Version {
		return false, nil
	}
	have.DueAt = due.Truncate(time.Millisecond)
	return true, nil
}

// LanesLate implements Lanes.
func (m *MemoryEffectOutbox) LanesLate(context.Context) ([]LaneMark, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []LaneMark
	for key, rows := range m.live {
		var due time.Time
		for _, row := range rows {
			if due.IsZero() || row.NotBefore.Before(due) {
				due = row.NotBefore
			}
		}
		if lane := m.lanes[key]; lane == nil || lane.DueAt.IsZero() || lane.DueAt.After(due) {
			out = append(out, LaneMark{TenantID: key.tenant, Lane: key.lane, Due: due})
		}
	}
	return out, nil
}
