package trigger

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// The ports. Every method takes the tenant: an id alone opens nothing. Reads
// see only what a majority holds, writes are acknowledged by a majority. A
// method returns tracker.ErrNotFound and tracker.ErrConflict where it says so;
// any other error is transient and, for a write, leaves open whether it was
// applied (T2). All methods are safe for concurrent use, by any number of
// replicas.

// ErrEventExists says that an insert met an event that is already there: its
// seq or its eid is taken. It is no proof that the other one will stay: look
// again (E2).
var ErrEventExists = errors.New("an event with this seq or eid exists")

// ErrContended says that the store ended a write because it and another one
// waited for each other. What was left out of it can be tried at once.
var ErrContended = errors.New("another writer came in between")

// Clock tells the database's time, to the millisecond: all times that
// replicas compare are of this clock (W11).
type Clock interface{ Now() time.Time }

// EventLog is the log of events, one per tenant.
type EventLog interface {
	// SeqAllocate gives out n consecutive seqs, marks the tenant's head dirty
	// and returns the first; tracker.ErrNotFound if the tenant has no head.
	// With lost set (the emitter lost its seq to a void) it doubles the head's
	// patience, up to PatienceMax (T3).
	SeqAllocate(ctx context.Context, tenantID string, n int, lost bool) (first int64, err error)
	// EventInsertMany inserts the events in their order, in one command, and
	// stops at the first that meets one already there: ErrEventExists, or one
	// that another is inserting at this moment, if the store ends one of the
	// two for it: ErrContended. The ones before it are in.
	EventInsertMany(ctx context.Context, tenantID string, events []Event) error
	// EventFillVoids gives up those of the seqs that are not taken.
	EventFillVoids(ctx context.Context, tenantID string, seqs []int64) error
	// EventSeqs returns the taken seqs with after < seq <= upTo, ascending.
	EventSeqs(ctx context.Context, tenantID string, after, upTo int64) ([]int64, error)
	// EventSeqsByEID returns the seqs of those events that are in the log.
	EventSeqsByEID(ctx context.Context, tenantID string, eids []string) (map[string]int64, error)
	// EventList returns the events with after < seq <= upTo, by seq. One that
	// can't be decoded comes with Undecodable set (T5).
	EventList(ctx context.Context, tenantID string, after, upTo int64) ([]Event, error)
	// EventListByCard returns up to limit events of one card with seq < before,
	// newest first. One that can't be decoded comes as from EventList, with
	// its card. Its cost does not depend on other cards' events.
	EventListByCard(ctx context.Context, tenantID, cardID string, before int64, limit int) ([]Event, error)
}

// Heads keeps each tenant's seq and cursor.
type Heads interface {
	// HeadGet returns the head, or tracker.ErrNotFound.
	HeadGet(ctx context.Context, tenantID string) (*Head, error)
	// HeadsDirty returns up to limit tenants whose log is ahead of their
	// cursor and that are not backing off, longest due first (T6).
	HeadsDirty(ctx context.Context, now time.Time, limit int) ([]DirtyTenant, error)
	// HeadList returns up to limit heads after a tenant id, by tenant id.
	HeadList(ctx context.Context, afterTenantID string, limit int) ([]Head, error)
	// HeadLift lifts the tenant's allocator to the highest seq that its log,
	// cursor, rows or subscriptions know, and with an empty log and nothing
	// under way the cursor with it; it makes a head that is missing (T4).
	HeadLift(ctx context.Context, tenantID string) (Lifted, error)
	// HeadWatchHole begins a watch of holes up to a seq, if the cursor still
	// stands at cursor and no watch is under way (T3). All seqs up to upTo were
	// given out before now, however long the call is on its way.
	HeadWatchHole(ctx context.Context, tenantID string, cursor, upTo int64, now time.Time) error
	// HeadWatchPoison counts one more failed try of the event at seq, the
	// first one after the cursor, and returns how often since when (T5).
	HeadWatchPoison(ctx context.Context, tenantID string, seq int64, now time.Time) (PoisonWatch, error)
	// HeadAdvance moves the cursor from one seq to a later one, if it still
	// stands at from and to was given out; it reports whether it did (T4).
	HeadAdvance(ctx context.Context, tenantID string, from, to int64) (bool, error)
	// HeadDefer keeps a dirty tenant from being drained before until (T6).
	HeadDefer(ctx context.Context, tenantID string, until time.Time) error
}

// Epochs tells reads by one primary from reads by several (T7).
type Epochs interface {
	// Epoch changes whenever another server begins to answer reads. Two reads
	// within one epoch are ordered: the later one is from no older a snapshot.
	Epoch() int64
}

// EffectRef is what the tail must know of a row that it owes.
type EffectRef struct {
	ID        string    `json:"id"`
	Lane      string    `json:"lane"`
	State     State     `json:"state"`
	NotBefore time.Time `json:"not_before"`
	ClaimID   string    `json:"claim_id"`
}

// Fence is the credential of a claim: a write that carries it reaches the row
// only while the row is claimed under this very claim id (W2).
type Fence struct {
	TenantID string
	EffectID string
	ClaimID  string
}

// Complete reports whether the credential is whole.
func (f Fence) Complete() bool { return f.TenantID != "" && f.EffectID != "" && f.ClaimID != "" }

// ErrFenceLost says that a fenced write found the row no longer claimed under
// its claim id, and wrote nothing (W2).
var ErrFenceLost = errors.New("claim no longer held")

// ClaimParams asks for rows of one lane.
type ClaimParams struct {
	TenantID string
	Lane     string
	Worker   string
	// ClaimID is fresh for each claim (W1).
	ClaimID string
	Now     time.Time
	// LeaseEnd is when the claim runs out, in database time.
	LeaseEnd time.Time
	Limit    int
}

// Settle ends one claim of one row.
type Settle struct {
	Fence
	At time.Time
	// To is the state that the row takes: done, failed, reconcile, held, or
	// pending to be tried again at NotBefore.
	To        State
	Outcome   Outcome
	Reason    Reason
	RunID     string
	NotBefore time.Time
	// Error is appended to the row's errors.
	Error *AttemptError
	// Rendered, when set, is kept on the row for the attempts to come (W12).
	Rendered string
	// HandBack returns a row that was not started: its attempt is taken back
	// (W10). It reaches no row whose delivery was started.
	HandBack bool
	// Uncount, of a row that is to be tried again, takes its attempt back: it
	// may be marked as started, and certainly nothing was sent.
	Uncount bool
}

// Definite reports whether the settle tells what became of the attempt. It
// then also settles a row that went to reconcile under the same claim
// meanwhile (W8), and clears the mark of a started delivery.
func (s *Settle) Definite() bool {
	return !s.HandBack && (s.To == StateDone || s.To == StateFailed || s.To == StatePending)
}

// EffectFilter chooses rows of a tenant; an empty field accepts any.
type EffectFilter struct {
	State          State  `json:"state,omitempty"`
	SubscriptionID string `json:"subscription_id,omitempty"`
	BotID          string `json:"bot_id,omitempty"`
	Reason         Reason `json:"reason,omitempty"`
	// UpdatedBefore accepts rows last written before, UpdatedFrom those last
	// written at or after.
	UpdatedBefore time.Time `json:"updated_before,omitempty,omitzero"`
	UpdatedFrom   time.Time `json:"updated_from,omitempty,omitzero"`
}

// Accepts reports whether the row meets the filter.
func (f *EffectFilter) Accepts(row *Effect) bool {
	return (f.State == "" || f.State == row.State) &&
		(f.SubscriptionID == "" || f.SubscriptionID == row.SubscriptionID) &&
		(f.BotID == "" || f.BotID == row.BotID) &&
		(f.Reason == "" || f.Reason == row.Reason) &&
		(f.UpdatedBefore.IsZero() || row.UpdatedAt.Before(f.UpdatedBefore)) &&
		(f.UpdatedFrom.IsZero() || !row.UpdatedAt.Before(f.UpdatedFrom))
}

// EffectListParams asks for a page of a tenant's rows, newest id last. Ids
// never change, so that pages see each row that stays as it is just once.
type EffectListParams struct {
	TenantID string
	EffectFilter
	AfterID string
	Limit   int
}

// EffectKey is a row's place in a list that begins with the newest event. One
// without an id is before all rows of lower seqs: a list begins at the tenant's
// seq and one.
type EffectKey struct {
	EventSeq int64  `json:"s"`
	ID       string `json:"i"`
}

// EffectOutbox keeps the rows.
type EffectOutbox interface {
	// EffectMaterialize inserts those of the rows that are absent and changes
	// none that is there, whatever state it reached (R3). It returns what the
	// store now holds of all of them.
	EffectMaterialize(ctx context.Context, tenantID string, rows []Effect) ([]EffectRef, error)
	// EffectClaim claims up to Limit due pending rows of known kinds, one
	// attempt added to each, and returns the ones that carry the claim id
	// (W1). After an error it returns what the claim id's rows say.
	EffectClaim(ctx context.Context, p ClaimParams) ([]Effect, error)
	// EffectReclaim does the same for at most one claimed row whose lease ran
	// out. One whose delivery was started goes to reconcile instead, under the
	// claim id that it has (W8); else one out of attempts is parked failed,
	// under the new claim id (W4). Both are returned in that state.
	EffectReclaim(ctx context.Context, p ClaimParams) (*Effect, error)
	// EffectSettleMany settles each row whose claim is still held, and reports
	// for each, in order, whether it stands: true also when the very same
	// settle had been applied before (W2). A settle without a whole
	// credential fails the call before anything is written.
	EffectSettleMany(ctx context.Context, settles []Settle) ([]bool, error)
	// EffectPlan keeps the launch plan on the row; ErrFenceLost (W7).
	EffectPlan(ctx context.Context, f Fence, plan LaunchPlan) error
	// EffectMarkConsumed sets ConsumeMarked; ErrFenceLost (W7).
	EffectMarkConsumed(ctx context.Context, f Fence) error
	// EffectStart marks the row's delivery started and the row's class
	// unsafe, and keeps what is sent; ErrFenceLost (W8).
	EffectStart(ctx context.Context, f Fence, at time.Time, rendered string) error
	// EffectTouch makes sure, by a write to the row, that the claim is still
	// held; ErrFenceLost.
	EffectTouch(ctx context.Context, f Fence, at time.Time) error
	// EffectDecide applies a person's decision to a row that is in a state
	// which allows it, and returns the row. It returns tracker.ErrNotFound, or
	// tracker.ErrConflict when the row is in another state or no longer as the
	// decision says it was seen. The same decision again (by its id) is
	// accepted and changes nothing.
	EffectDecide(ctx context.Context, d Decision) (*Effect, error)
	// EffectGet returns the row, or tracker.ErrNotFound.
	EffectGet(ctx context.Context, tenantID, effectID string) (*Effect, error)
	// EffectListByEvent returns the rows of one event, by id, without the
	// bodies (Plan, Rendered), which may be large.
	EffectListByEvent(ctx context.Context, tenantID, eventID string) ([]Effect, error)
	// EffectList returns a page of rows, by id, without the bodies.
	EffectList(ctx context.Context, p EffectListParams) ([]Effect, error)
	// EffectListBySubscription returns up to limit rows of one subscription
	// whose events have seq < before, newest event first, without the bodies.
	// Its cost does not depend on other subscriptions' rows.
	EffectListBySubscription(ctx context.Context, tenantID, subscriptionID string, before int64, limit int) ([]Effect, error)
	// EffectListByCard returns up to limit rows of one card that come after
	// one, newest event first and of one event by id, the last first, without
	// the bodies. Its cost does not depend on other cards' rows.
	EffectListByCard(ctx context.Context, tenantID, cardID string, after EffectKey, limit int) ([]Effect, error)
	// EffectsHeld returns up to limit subscriptions that have held rows, of
	// all tenants, after one, by tenant and id.
	EffectsHeld(ctx context.Context, after SubscriptionKey, limit int) ([]SubscriptionKey, error)
	// EffectsOfCards returns launch rows of the cards, latest event first,
	// without the bodies.
	EffectsOfCards(ctx context.Context, p CardEffectsParams) ([]Effect, error)
	// EffectMatches returns what of a subscription's rows the storm guard
	// counts: those of its events at or after Since, with AfterSeq < seq <=
	// UpToSeq, that were not cut to end a loop.
	EffectMatches(ctx context.Context, p MatchesParams) ([]Match, error)
	// EffectHeldCount counts the subscription's held rows of events with
	// seq <= upTo.
	EffectHeldCount(ctx context.Context, tenantID, subscriptionID string, upTo int64) (int, error)
	// EffectsUnannounced returns up to Limit rows of known kinds, of all
	// tenants, whose AnnounceAt is at or before Due, in no order, without the
	// bodies. Its cost does not depend on how many rows are parked.
	EffectsUnannounced(ctx context.Context, due time.Time, limit int) ([]Effect, error)
	// EffectsAnnounced takes AnnounceAt off the rows, or with until sets it to
	// that time; of those only that are still the ones that were read, by claim
	// id, state and AnnounceAt.
	EffectsAnnounced(ctx context.Context, rows []Effect, until time.Time) error
	// EffectNextDue returns the earliest NotBefore of the lane's live rows of
	// known kinds, read by one command; ok is false when there is none.
	EffectNextDue(ctx context.Context, tenantID, lane string) (due time.Time, ok bool, err error)
}

// Lane is a hint that a queue has rows due. Rows are the truth.
type Lane struct {
	TenantID string    `json:"tenant_id"`
	Lane     string    `json:"lane"`
	DueAt    time.Time `json:"due_at,omitempty,omitzero"` // zero: not due
	// Version changes with every mark, so that a mark is never cleared by
	// somebody who had not seen it.
	Version int64 `json:"version"`
}

// LaneMark asks for a lane to be looked at from Due on.
type LaneMark struct {
	TenantID string
	Lane     string
	Due      time.Time
}

// Lanes keeps the lanes.
type Lanes interface {
	// LaneMarkMany brings each lane's due time forward to the mark's, never
	// back, and gives it a new version.
	LaneMarkMany(ctx context.Context, marks []LaneMark) error
	// LanesDue returns up to limit due lanes, longest due first.
	LanesDue(ctx context.Context, now time.Time, limit int) ([]Lane, error)
	// LaneReschedule sets the lane's due time (zero: not due) if its version
	// is still the one that was read before its rows were; it reports whether
	// it did.
	LaneReschedule(ctx context.Context, lane Lane, due time.Time) (bool, error)
	// LanesLate finds, from the live rows of known kinds themselves, lanes
	// that are due later than their earliest row, or not at all, and returns
	// the marks that they lack. Rows are the truth (docs/architecture.md).
	LanesLate(ctx context.Context) ([]LaneMark, error)
}

// SubscriptionKey names a subscription of a tenant.
type SubscriptionKey struct {
	TenantID       string `json:"tenant_id"`
	SubscriptionID string `json:"subscription_id"`
}

func (k SubscriptionKey) compare(o SubscriptionKey) int {
	return cmp.Or(cmp.Compare(k.TenantID, o.TenantID), cmp.Compare(k.SubscriptionID, o.SubscriptionID))
}

// Pauses keeps what is paused. A pause holds up claims; nothing is lost by it.
type Pauses interface {
	// PauseList returns all pauses, by tenant and bot.
	PauseList(ctx context.Context) ([]Pause, error)
	// PauseSet pauses; a pause of the same scope that is there stays as it is.
	PauseSet(ctx context.Context, p Pause) error
	// PauseClear ends the pause of the scope, and reports whether there was
	// one.
	PauseClear(ctx context.Context, tenantID, botID string) (bool, error)
}

// Bulks keeps bulk decisions: what they would touch, and how far they are.
type Bulks interface {
	BulkCreate(ctx context.Context, b *Bulk) error
	// BulkGet returns the bulk decision, or tracker.ErrNotFound.
	BulkGet(ctx context.Context, tenantID, id string) (*Bulk, error)
	// BulkAdvance moves a bulk decision from one item to a later one and adds
	// to its counts, also of one that was stopped meanwhile: what was decided
	// is counted. It reports whether it did.
	BulkAdvance(ctx context.Context, tenantID, id string, from, to, applied, refused int) (bool, error)
	// BulkStop stops the bulk decision for good, or returns
	// tracker.ErrNotFound.
	BulkStop(ctx context.Context, tenantID, id string) error
}

// SubscriptionRef names one state of one subscription. One that was deleted and
// made again under its id has the same revisions at other times.
type SubscriptionRef struct {
	ID        string    `json:"id"`
	Revision  int64     `json:"revision"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Config keeps what people configure. A Save is conditional on the revision
// before the one that the value carries (a new thing carries 1): ErrConflict
// when it is another, or when the tenant already has one of that name. A Delete
// is conditional on the revision that the value has: ErrConflict when it is
// another, ErrNotFound when there is none.
type Config interface {
	TenantGet(ctx context.Context, tenantID string) (*Tenant, error)
	// TenantIDs returns up to limit ids after one, ascending, without tenants
	// that are being deleted.
	TenantIDs(ctx context.Context, afterID string, limit int) ([]string, error)
	TenantSave(ctx context.Context, t *Tenant) error
	BoardGet(ctx context.Context, tenantID, id string) (*tracker.Board, error)
	BoardList(ctx context.Context, tenantID string) ([]tracker.Board, error)
	BoardSave(ctx context.Context, b *tracker.Board) error
	BoardDelete(ctx context.Context, tenantID, id string, revision int64) error
	BotGet(ctx context.Context, tenantID, id string) (*Bot, error)
	BotList(ctx context.Context, tenantID string) ([]Bot, error)
	BotSave(ctx context.Context, b *Bot) error
	BotDelete(ctx context.Context, tenantID, id string, revision int64) error
	HookGet(ctx context.Context, tenantID, id string) (*Hook, error)
	HookList(ctx context.Context, tenantID string) ([]Hook, error)
	HookSave(ctx context.Context, h *Hook) error
	HookDelete(ctx context.Context, tenantID, id string, revision int64) error
	SubscriptionGet(ctx context.Context, tenantID, id string) (*Subscription, error)
	SubscriptionList(ctx context.Context, tenantID string) ([]Subscription, error)
	// SubscriptionPage returns up to limit of the tenant's subscriptions with
	// ids after one, by id.
	SubscriptionPage(ctx context.Context, tenantID, afterID string, limit int) ([]Subscription, error)
	// SubscriptionRefs returns the enabled subscriptions' ids and revisions,
	// from an index.
	SubscriptionRefs(ctx context.Context, tenantID string) ([]SubscriptionRef, error)
	SubscriptionSave(ctx context.Context, s *Subscription) error
	SubscriptionDelete(ctx context.Context, tenantID, id string, revision int64) error
	// SubscriptionsBehind returns up to limit subscriptions, of all tenants,
	// that are not paused and have a range of events that was not matched
	// (Guard.HeldFrom).
	SubscriptionsBehind(ctx context.Context, limit int) ([]SubscriptionKey, error)
	ProjectionGet(ctx context.Context, tenantID, id string) (*Projection, error)
	// ProjectionList returns the tenant's projections, at most ProjectionsMax.
	ProjectionList(ctx context.Context, tenantID string) ([]Projection, error)
	ProjectionSave(ctx context.Context, p *Projection) error
	ProjectionDelete(ctx context.Context, tenantID, id string, revision int64) error
}

// Deliveries remembers inbound deliveries by hook, for 30 days.
type Deliveries interface {
	// DeliverySeen reports whether the delivery was recorded.
	DeliverySeen(ctx context.Context, tenantID, hookID, deliveryID string) (bool, error)
	// DeliveryRecord records a delivery that is stored. Again is no error.
	DeliveryRecord(ctx context.Context, tenantID, hookID, deliveryID string, at time.Time) error
}

// Tokens keeps API tokens, as hashes.
type Tokens interface {
	TokenCreate(ctx context.Context, t *Token) error
	// TokenByHash returns the token, active or not, or tracker.ErrNotFound.
	TokenByHash(ctx context.Context, hash string) (*Token, error)
	// TokenGet returns the token, active or not, or tracker.ErrNotFound.
	TokenGet(ctx context.Context, id string) (*Token, error)
	// TokenList returns up to limit tokens with ids after one, by id.
	TokenList(ctx context.Context, afterID string, limit int) ([]Token, error)
	// TokenRevoke revokes a token, or returns tracker.ErrNotFound.
	TokenRevoke(ctx context.Context, id string, at time.Time) error
}

// Retention is what the janitor does (R4).
type Retention interface {
	// EventsRemovable returns the log's oldest events, up to limit of them and
	// up to the seq, lowest seq first; it ends at the first that is not older
	// than before.
	EventsRemovable(ctx context.Context, tenantID string, upTo int64, before time.Time, limit int) ([]EventRef, error)
	// EventRemoveMany removes the events at the seqs.
	EventRemoveMany(ctx context.Context, tenantID string, seqs []int64) error
	// EffectsSettledBefore returns up to limit done or discarded rows of known
	// kinds (R2) last written before, and not yet told to go, with ids after
	// one, by id.
	EffectsSettledBefore(ctx context.Context, tenantID string, before time.Time, afterID string, limit int) ([]EffectSeq, error)
	// EffectsOpen returns those of the ids whose rows are there and not over.
	EffectsOpen(ctx context.Context, tenantID string, ids []string) ([]string, error)
	// EffectsToAnnounce returns those of the ids whose rows are still to be
	// announced.
	EffectsToAnnounce(ctx context.Context, tenantID string, ids []string) ([]string, error)
	// EffectExpireMany lets done and discarded rows of known kinds go, at once
	// or soon.
	EffectExpireMany(ctx context.Context, tenantID string, ids []string) error
}

// EventRef names one event.
type EventRef struct {
	Seq int64  `json:"seq"`
	EID string `json:"eid"`
}

// EffectSeq names a row and its event's seq.
type EffectSeq struct {
	ID       string `json:"id"`
	EventSeq int64  `json:"event_seq"`
	CardID   string `json:"card_id"`
	// Consume are the row's one-shot labels: if it has any, its card may still
	// keep the consumption (W7).
	Consume []string `json:"consume,omitempty"`
}

// Replicas keeps the replicas' heartbeats. What they say is preference, never
// correctness.
type Replicas interface {
	// ReplicaBeat records that the replica lives, and returns the names of
	// all that gave a sign since.
	ReplicaBeat(ctx context.Context, name string, now, since time.Time) ([]string, error)
	// ReplicaLeave takes the replica's sign back.
	ReplicaLeave(ctx context.Context, name string) error
}

// Store is all that one replica keeps.
type Store interface {
	Clock
	tracker.CardStore
	EventLog
	Heads
	EffectOutbox
	Lanes
	Pauses
	Bulks
	Config
	Deliveries
	Tokens
	CreateKeys
	Audit
	Tenancy
	Retention
	Replicas
	FleetCounts
	Epochs
	// Ping reports whether the store answers.
	Ping(ctx context.Context) error
}

// DeliveriesKept is how long delivery ids are remembered.
const DeliveriesKept = 30 * 24 * time.Hour
