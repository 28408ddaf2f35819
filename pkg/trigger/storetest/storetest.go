// Package storetest is the conformance suite that every store passes: each
// test is named after the guarantee that it holds the store, or the engine on
// the store, to.
package storetest

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Run runs the suite. open returns an empty store, closed by the test's
// clean-up; each test gets its own.
func Run(t *testing.T, open func(t *testing.T) trigger.Store) {
	t.Helper()
	runGuards(t, open)
	runCrashes(t, open)
	runTakeovers(t, open)
	runAll(t, open, unsafeTests())
	runAll(t, open, closingTests())
	runAll(t, open, decisionTests())
	runAll(t, open, lanesTests())
	runAll(t, open, cardTests())
	runAll(t, open, deleteTests())
	runAll(t, open, cardListTests())
	runAll(t, open, placingTests())
	runAll(t, open, configuredTests())
	runProjections(t, open)
	runDeadLetters(t, open)
	runAll(t, open, whenTests())
	runAll(t, open, explainTests())
	runAll(t, open, loopTests())
	runAll(t, open, stormTests())
	runAll(t, open, appendTests())
	runAll(t, open, announceTests())
	runAll(t, open, accessTests())
	runAll(t, open, auditTests())
	runAll(t, open, reaperTests())
	runAll(t, open, birthTests())
	runAll(t, open, fleetTests())
	runAll(t, open, traceTests())
	for name, test := range map[string]func(*testing.T, *bundle){
		"TestE1_WriteIsConditionalOnRevAndIncarnation": testE1Conditional,
		"TestE1_ConcurrentChangesChain":                testE1Chain,
		"TestE1_MoveAndLabelAtOnceFireOnce":            testE1Both,
		"TestE3_ChangeBetweenARelaysReadAndItsCleanUp": testE3Between,
		"TestE1_LostAnswerIsResolvedByReading":         testE1LostAnswer,
		"TestE1_LateWriteIsNotMadeAgain":               testE1LateWrite,
		"TestE1_LostAnswerOfADeletionThatIsBuried":     testE1Buried,
		"TestE1_BulkWriteWrittenOverIsNotMadeAgain":    testE1BulkWrittenOver,
		"TestE2_TwoRelaysOfOneCardKeepItsOrder":        testE2TwoRelays,
		"TestE2_LoserFillsItsAllocationWithVoids":      testE2Voids,
		"TestE2_FailedInsertLeavesNoHole":              testE2FailedInsert,
		"TestE3_PendingIsTakenOffByEID":                testE3Remove,
		"TestE3_FullCardRefusesAChange":                testE3Full,
		"TestE2_LosingToAVoidRaisesThePatience":        testE2Patience,
		"TestE3_SweeperRelaysWhatACrashLeft":           testE3Sweeper,
		"TestE3_SweepersDoNotPileOnOneCard":            testE3Touch,
		"TestE3_CardMadeOverATombstoneLosesItsMark":    testE3MarkOfATombstone,
		"TestE4_TombstoneStaysUntilRelayed":            testE4Tombstone,
		"TestE4_CrashAtEveryStepOfADeletion":           testE4Crash,
		"TestE4_CardMadeAgainIsAnother":                testE4Again,
		"TestBulkChange":                               testBulk,
		"TestBulkChange_LostAnswersAndConflicts":       testBulkFaults,
		"TestT3_HoleIsClosedAfterItsPatience":          testT3Close,
		"TestT3_AllHolesOfAWatchAreClosedTogether":     testT3Several,
		"TestT3_HoleAtTheHeadOfAnEmptyLog":             testT3EmptyLog,
		"TestT3_LateInsertAfterClosedHole":             testT3Late,
		"TestT3_VoidThatLosesLeavesTheOriginal":        testT3VoidLoses,
		"TestT3_VoidThatCannotBeReadYetEndsTheBatch":   testT3Unreadable,
		"TestT3_WatchSurvivesAChangeOfReplica":         testT3Replica,
		"TestT3_SlowWatchClosesNoYoungHole":            testT3SlowWatch,
		"TestT4_AllocatorBehindWhatIsKnown":            testT4Behind,
		"TestT4_RestoredBackupGoesOn":                  testT4Restored,
		"TestT5_PoisonEventDoesNotFreezeItsTenant":     testT5Poison,
		"TestT5_OtherFailuresOnlyAfterManyTries":       testT5Tries,
		"TestT6_AFailingTenantBacksOffAlone":           testT6Alone,
		"TestT6_APanicStaysWithItsTenant":              testT6Panic,
		"TestT6_PreferredReplicaFirstOthersStepIn":     testT6Prefers,
		"TestT6_TheJanitorLetsTenantsRest":             testT6Resting,
		"TestT6_TheJanitorLetsTenantsRestRows":         testT6RestingRows,
		"TestT7_PrimaryChangeAbortsTheBatch":           testT7Primary,
		"TestT7_OnlyCaringSubscriptionsAreEvaluated":   testT7Index,
		"TestT8_RowsAreServedWithoutSubscriptions":     testT8,
		"TestR4_EventsGoOnlyBelowTheCursor":            testR4Janitor,
		"TestR4_EventStillPendingStays":                testR4Pending,
		"TestR4_RowOutlivesItsEvent":                   testR4Rows,
		"TestReplicas":                                 testReplicas,
		"TestE5_SeqAndEIDAreUnique":                    testE5Unique,
		"TestE6_PayloadComesBackAsItCame":              testE6Payload,
		"TestT1_EveryCrashPointRepeats":                testT1Crash,
		"TestT1_LanesOfRowsAlreadyThereAreMarked":      testT1LanesAgain,
		"TestT2_TransientErrorAbortsTheBatch":          testT2Transient,
		"TestT2_EventWithoutSnapshot":                  testT2NoSnapshot,
		"TestT3_CursorDoesNotPassAHole":                testT3Hole,
		"TestT4_CursorMovesByCASAndNeverBack":          testT4CAS,
		"TestT4_MissingHeadIsLifted":                   testT4Lifted,
		"TestT6_DirtyFollowsSeqAndCursor":              testT6Dirty,
		"TestT7_OnlyEventsAfterActiveFromSeq":          testT7Active,
		"TestT7_NewRevisionIsSeen":                     testT7Revision,
		"TestUnknownFeatureLeavesTheTenant":            testUnknownFeature,
		"TestR1_KeysAddressOneRow":                     testR1Keys,
		"TestR2_UnknownKindIsNeverClaimed":             testR2Kind,
		"TestR3_MaterializingAgainChangesNothing":      testR3Again,
		"TestR4_RowCarriesItsEvent":                    testR4Event,
		"TestW1_TwoWorkersNeverHoldOneRow":             testW1Claims,
		"TestW1_ClaimTakesOnlyDueRowsOfItsLane":        testW1Due,
		"TestW2_StaleClaimIsRefused":                   testW2Stale,
		"TestW2_SameSettleAgainIsAccepted":             testW2Again,
		"TestW2_SettleWithoutCredential":               testW2Credential,
		"TestW2_OneRefusedSettleLetsTheOthersThrough":  testW2Batch,
		"TestW2_SettlesThatEndAlike":                   testW2Alike,
		"TestW4_ReclaimAddsAnAttemptAndParks":          testW4Reclaim,
		"TestW5_ErrorsAreKeptFive":                     testW5Errors,
		"TestW7_CrashAtEveryStep":                      testW7Crash,
		"TestW7_LabelAddedAgainMeanwhile":              testW7AddedAgain,
		"TestW7_SubscriptionGoneMeanwhile":             testW7SubGone,
		"TestW7_ConsumeOnItsWayIsFencedOff":            testW7OnItsWay,
		"TestW7_DatabaseClockBehindTheForges":          testW7Skew,
		"TestW9_FullLaneGoesBehindTheOthers":           testW9Fair,
		"TestW10_ClaimUnderWayIsHandedBack":            testW10Claim,
		"TestT1_MoreRowsThanOneCommandTakes":           testT1Many,
		"TestListsHoldNoBodies":                        testNoBodies,
		"TestW7_RankDecidesBetweenTakers":              testW7Rank,
		"TestW7_LabelTakenByAnotherEventsEffect":       testW7Other,
		"TestLanes_DueTimeAndVersion":                  testLanes,
		"TestConfig_RevisionsAndNames":                 testConfig,
		"TestConfig_SubscriptionRefs":                  testRefs,
		"TestT7_ASubscriptionMadeAgain":                testMadeAgain,
		"TestDeliveries":                               testDeliveries,
		"TestTokens":                                   testTokens,
		"TestEffectList_PagesSeeEachRowOnce":           testEffectList,
		"TestTenantsAreApart":                          testTenants,
		"TestTimesKeepMilliseconds":                    testTimes,
		"TestWorker_RunsToRest":                        testWorkerRuns,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBundle(t, open(t)))
		})
	}
}

const tenant = "acme"

// bundle is one store with an engine on it.
type bundle struct {
	*faults
	real     trigger.Store
	board    *trigger.Board
	relay    *trigger.Relay
	tail     *trigger.Tail
	launches *launches
}

func newBundle(t *testing.T, store trigger.Store) *bundle {
	t.Helper()
	b := &bundle{faults: &faults{Store: store}, real: store, launches: &launches{}}
	b.relay = &trigger.Relay{Cards: b.faults, Log: b.faults, Heads: b.faults, FillTimeout: 10 * time.Second}
	b.board = &trigger.Board{Cards: b.faults, Log: b.faults, Clock: b.faults, Relay: b.relay}
	b.tail = b.newTail(io.Discard)
	return b
}

func (b *bundle) newTail(log io.Writer) *trigger.Tail {
	return &trigger.Tail{
		Cards: b.faults, Log: b.faults, Heads: b.faults, Config: b.faults, Outbox: b.faults, Lanes: b.faults, Clock: b.faults, Epochs: b.faults,
		Logger: zerolog.New(zerolog.SyncWriter(log)),
	}
}

func (b *bundle) evaluator() *trigger.Evaluator {
	return &trigger.Evaluator{
		Board: b.board, Outbox: b.faults, Config: b.faults, Launcher: b.launches, Sealer: plainSealer{}, Logger: zerolog.Nop(), Matcher: b.tail,
	}
}

// launches records what was launched and answers with err, if set; the first
// `down` launches meet a bot that is down.
type launches struct {
	mu   sync.Mutex
	reqs []trigger.LaunchRequest
	err  error
	down int
}

func (l *launches) Launch(_ context.Context, r trigger.LaunchRequest) (trigger.Launched, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reqs = append(l.reqs, r)
	if l.down > 0 {
		l.down--
		return trigger.Launched{}, &trigger.LaunchError{Message: "status 503"}
	}
	return trigger.Launched{RunID: "run-" + r.Key}, l.err
}

func (l *launches) all() []trigger.LaunchRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]trigger.LaunchRequest(nil), l.reqs...)
}

// plainSealer seals nothing; what secrets are kept as is not this suite's.
type plainSealer struct{}

func (plainSealer) Seal(_ string, secret []byte) (trigger.Sealed, error) {
	return trigger.Sealed(secret), nil
}
func (plainSealer) Open(_ string, s trigger.Sealed) ([]byte, error) { return []byte(s), nil }

var human = tracker.Actor{Kind: tracker.ActorHuman, ID: "mona"}

// create makes a card with labels in a column.
func (b *bundle) create(t *testing.T, id, column string, labels ...string) tracker.Changed {
	t.Helper()
	return b.change(t, id, func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card != nil {
			return nil, nil, nil
		}
		return &tracker.Card{BoardID: "b1", ColumnID: column, Title: "Card " + id, Body: "text", Labels: labels},
			&tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human, ToColumn: column}, nil
	})
}

func (b *bundle) change(t *testing.T, id string, f tracker.Changer) tracker.Changed {
	t.Helper()
	changed, err := b.board.Change(t.Context(), tenant, id, f)
	require.NoError(t, err)
	return changed
}

// retitle is the smallest change.
func retitle(title string) tracker.Changer {
	return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		card.Title = title
		return card, &tracker.BoardEvent{Kind: tracker.KindEdited, Actor: human}, nil
	}
}

func addLabel(label string) tracker.Changer {
	return func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card.HasLabel(label) {
			return nil, nil, nil
		}
		card.Labels = append(card.Labels, label)
		card.Stamps.SetLabel(tracker.LabelStamp{Label: label, Present: true, Stamp: tracker.Stamp{At: now, Delta: true}})
		return card, &tracker.BoardEvent{Kind: tracker.KindLabeled, Actor: human, Added: []string{label}}, nil
	}
}

// relayed relays the card's pending events.
func (b *bundle) relayed(t *testing.T, id string) map[string]int64 {
	t.Helper()
	seqs, err := b.relay.Card(t.Context(), tenant, id)
	require.NoError(t, err)
	return seqs
}

// drain drains until the cursor is at the end.
func (b *bundle) drain(t *testing.T) {
	t.Helper()
	for {
		d, err := b.tail.Drain(t.Context(), tenant)
		require.NoError(t, err)
		if !d.More && !d.Moved {
			return
		}
	}
}

func (b *bundle) events(t *testing.T) []trigger.Event {
	t.Helper()
	events, err := b.real.EventList(t.Context(), tenant, 0, 1_000_000)
	require.NoError(t, err)
	return events
}

// board events without voids, as "kind card" lines.
func lines(events []trigger.Event) (out []string) {
	for _, e := range events {
		if e.Source != trigger.SourceVoid {
			out = append(out, string(e.Kind)+" "+e.CardID)
		}
	}
	return out
}

func (b *bundle) row(t *testing.T, id string) *trigger.Effect {
	t.Helper()
	row, err := b.real.EffectGet(t.Context(), tenant, id)
	require.NoError(t, err)
	return row
}

func (b *bundle) rows(t *testing.T) []trigger.Effect {
	t.Helper()
	rows, err := b.real.EffectList(t.Context(), trigger.EffectListParams{TenantID: tenant, Limit: 1000})
	require.NoError(t, err)
	return rows
}

// bot makes a bot.
func (b *bundle) bot(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, b.real.BotSave(t.Context(), &trigger.Bot{
		TenantID: tenant, ID: id, Name: id, URL: "http://bot.invalid/" + id, Replay: trigger.ReplaySafe, Secret: "s", Revision: 1,
	}))
}

// subscribe makes an enabled subscription that fires when a card comes to
// carry the label.
func (b *bundle) subscribe(t *testing.T, id, label string, with ...func(*trigger.Subscription)) *trigger.Subscription {
	t.Helper()
	s := &trigger.Subscription{
		TenantID: tenant, ID: id, Name: id, Revision: 1, Enabled: true, BotID: "bot1",
		If: trigger.Conditions{LabelsAll: []string{label}},
	}
	for _, f := range with {
		f(s)
	}
	require.NoError(t, s.Validate())
	require.NoError(t, b.real.SubscriptionSave(t.Context(), s))
	return s
}

func oneShot(label string) func(*trigger.Subscription) {
	return func(s *trigger.Subscription) { s.Consume = []string{label} }
}

// effect makes a row without an event behind it.
func effect(n int, lane string, notBefore time.Time) trigger.Effect {
	return trigger.Effect{
		ID: trigger.EffectID(trigger.EventID(tenant, int64(n)), "s1"), TenantID: tenant, Kind: trigger.KindLaunch,
		Lane: lane, State: trigger.StatePending, NotBefore: notBefore, SubscriptionID: "s1", BotID: "bot1",
		EventSeq: int64(n), CreatedAt: notBefore, UpdatedAt: notBefore,
	}
}

func (b *bundle) materialize(t *testing.T, rows ...trigger.Effect) {
	t.Helper()
	_, err := b.real.EffectMaterialize(t.Context(), tenant, rows)
	require.NoError(t, err)
}

// claimParams claims under a fresh claim id, with a lease from now.
func (b *bundle) claimParams(lane string, limit int, lease time.Duration) trigger.ClaimParams {
	now := b.real.Now()
	return trigger.ClaimParams{
		TenantID: tenant, Lane: lane, Worker: "w1", ClaimID: uuid.NewString(), Now: now, LeaseEnd: now.Add(lease), Limit: limit,
	}
}

func (b *bundle) claimOne(t *testing.T, lane string, lease time.Duration) trigger.Effect {
	t.Helper()
	rows, err := b.real.EffectClaim(t.Context(), b.claimParams(lane, 1, lease))
	require.NoError(t, err)
	require.Len(t, rows, 1)
	return rows[0]
}

func (b *bundle) settle(t *testing.T, s trigger.Settle) bool {
	t.Helper()
	stands, err := b.real.EffectSettleMany(t.Context(), []trigger.Settle{s})
	require.NoError(t, err)
	return stands[0]
}

func (b *bundle) done(row trigger.Effect) trigger.Settle {
	return trigger.Settle{Fence: row.Fence(), At: b.real.Now(), To: trigger.StateDone, Outcome: trigger.OutcomeLaunched, RunID: "r"}
}

// allocate takes seqs as an emitter does, making the head if there is none.
func (b *bundle) allocate(ctx context.Context, tenantID string, n int) (int64, error) {
	first, err := b.real.SeqAllocate(ctx, tenantID, n, false)
	if errors.Is(err, tracker.ErrNotFound) {
		if _, err := b.real.HeadLift(ctx, tenantID); err != nil {
			return 0, err
		}
		return b.real.SeqAllocate(ctx, tenantID, n, false)
	}
	return first, err
}
