package storetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// actions are what the schedule can do next. Each run leaves out about half of
// them, and of what can be started: the fewer sorts of things happen, the more
// of each do, and meet.
func (w *world) actions(rt *rapid.T) map[string]func(*rapid.T) {
	out := make(map[string]func(*rapid.T))
	add := func(name string, weight int, do func(*rapid.T)) {
		for i := range weight {
			out[fmt.Sprintf("%s %d", name, i)] = do
		}
	}
	some := func(name string) bool { return rapid.Bool().Draw(rt, name) }
	w.cards = cardIDs[:rapid.IntRange(1, len(cardIDs)).Draw(rt, "cards")]
	w.kinds = []string{"change", "change"}
	for _, kind := range []string{"relay", "drain", "sweep", "delete", "bulk", "amend", "lift"} {
		if some(kind) {
			w.kinds = append(w.kinds, kind)
		}
	}
	add("start", 6, w.startOne)
	add("go on", 6, w.goOn)
	add("race", 4, w.race)
	if some("failures") {
		add("fail", 2, w.failOne)
		add("land late", 1, w.landOne)
	}
	if some("deaths") {
		add("die", 1, w.killOne)
	}
	if some("cancellations") {
		add("leave", 1, w.leave)
	}
	if some("time") {
		add("wait", 1, w.pass)
	}
	if some("voids") {
		add("void", 1, w.void)
	}
	if some("holes") {
		add("hole", 1, w.hole)
	}
	return out
}

// one draws one of the actors under way.
func (w *world) one(rt *rapid.T) *actor {
	if len(w.actors) == 0 {
		rt.Skip("nobody is under way")
	}
	return w.actors[rapid.IntRange(0, len(w.actors)-1).Draw(rt, "actor")]
}

// goOn lets an actor make some of its steps, or all.
func (w *world) goOn(rt *rapid.T) { w.let(rt, w.one(rt)) }

// How far an actor goes. What matters most happens between what it has read
// and what it writes, so it often stops before a write.
const (
	toTheEnd = "to the end"
	toAWrite = "to a write"
	notAtAll = "not at all"
)

var howFar = []string{
	toTheEnd, toAWrite, notAtAll, "1", "2", toTheEnd, toAWrite, "3",
	"to CardWrite", "to SeqAllocate", "to EventInsertMany", "to EventFillVoids", "to CardPendingRemove",
	"to HeadWatchHole", "to EffectMaterialize", "to HeadAdvance",
}

func (w *world) let(rt *rapid.T, a *actor) {
	far := rapid.SampledFrom(howFar).Draw(rt, "how far")
	n, err := strconv.Atoi(far)
	name := strings.TrimPrefix(far, "to ")
	for i := 0; w.runs(a) && far != notAtAll && (err != nil || i < n); i++ {
		w.resume(a, made)
		if far == toAWrite && a.next.writes || strings.HasPrefix(a.next.name, name) {
			return
		}
	}
}

// race lets two actors make their steps in a random order, as long as both
// have any.
func (w *world) race(rt *rapid.T) {
	if len(w.actors) < 2 {
		rt.Skip("too few are under way")
	}
	i := rapid.IntRange(0, len(w.actors)-2).Draw(rt, "one")
	j := rapid.IntRange(i+1, len(w.actors)-1).Draw(rt, "other")
	two := [2]*actor{w.actors[i], w.actors[j]}
	turns := rapid.Uint64().Draw(rt, "turns of the other")
	for turn := 0; turn < 64 && w.runs(two[0]) && w.runs(two[1]); turn++ {
		w.resume(two[turns>>turn&1], made)
	}
}

func (w *world) failOne(rt *rapid.T) {
	if w.faults == faultsMax {
		rt.Skip("enough faults")
	}
	a := w.one(rt)
	w.faults++
	w.resume(a, rapid.SampledFrom([]verdict{failed, lost, delayed}).Draw(rt, "how"))
}

func (w *world) killOne(rt *rapid.T) {
	a := w.one(rt)
	w.die(a, rapid.SampledFrom([]verdict{failed, lost, delayed}).Draw(rt, "how"))
}

// leave cancels an actor's context: its caller has left, or it shuts down.
func (w *world) leave(rt *rapid.T) {
	a := w.one(rt)
	w.note(a.name, "is cancelled")
	a.cancel()
}

func (w *world) landOne(rt *rapid.T) {
	if len(w.late) == 0 {
		rt.Skip("nothing is late")
	}
	w.land(w.late[rapid.IntRange(0, len(w.late)-1).Draw(rt, "which")])
}

func (w *world) pass(rt *rapid.T) {
	d := rapid.SampledFrom([]time.Duration{5 * time.Second, 2 * time.Minute}).Draw(rt, "how long")
	w.note("time", d.String()+" pass")
	w.wait(d)
}

// void closes a hole at once: no insert may rely on being faster.
func (w *world) void(rt *rapid.T) {
	missing := w.missing(rt)
	if len(missing) == 0 {
		rt.Skip("no hole")
	}
	seq := missing[rapid.IntRange(0, len(missing)-1).Draw(rt, "which")]
	w.note("void", strconv.FormatInt(seq, 10))
	if err := w.Store.EventFillVoids(w.ctx, w.tenant, []int64{seq}); err != nil {
		rt.Fatal(err)
	}
}

func (w *world) missing(rt *rapid.T) (missing []int64) {
	head, err := w.Store.HeadGet(w.ctx, w.tenant)
	if err != nil {
		return nil
	}
	taken, err := w.Store.EventSeqs(w.ctx, w.tenant, 0, head.Seq)
	if err != nil {
		rt.Fatal(err)
	}
	for seq := int64(1); seq <= head.Seq; seq++ {
		if !slices.Contains(taken, seq) {
			missing = append(missing, seq)
		}
	}
	return missing
}

// hole takes seqs that nobody will use.
func (w *world) hole(rt *rapid.T) {
	if _, err := w.Store.HeadGet(w.ctx, w.tenant); err != nil {
		rt.Skip("no head")
	}
	n := rapid.IntRange(1, 2).Draw(rt, "seqs")
	if _, err := w.SeqAllocate(w.ctx, w.tenant, n, false); err != nil {
		rt.Fatal(err)
	}
}

// startOne starts a caller, a relay, a sweeper's pass or a drain.
func (w *world) startOne(rt *rapid.T) {
	if len(w.actors) == actorsMax {
		rt.Skip("enough of them")
	}
	card := rapid.SampledFrom(w.cards).Draw(rt, "card")
	var a *actor
	switch kind := rapid.SampledFrom(w.kinds).Draw(rt, "what"); kind {
	case "change":
		how := rapid.SampledFrom(changerNames).Draw(rt, "how")
		a = w.start(fmt.Sprintf("change of %s (%s)", card, how), -1, func(ctx context.Context, a *actor) {
			changed, err := w.board.Change(ctx, w.tenant, card, changers[how])
			w.request(ctx, a, card, changed, err)
		})
	case "delete":
		a = w.start("deletion of "+card, -1, func(ctx context.Context, a *actor) {
			changed, err := w.board.Delete(ctx, w.tenant, card, human)
			w.request(ctx, a, card, changed, err)
		})
	case "bulk":
		how := rapid.SampledFrom(changerNames).Draw(rt, "how")
		a = w.start(fmt.Sprintf("bulk change (%s)", how), -1, func(ctx context.Context, a *actor) {
			out, err := w.board.ChangeMany(ctx, w.tenant, cardIDs[:2], changers[how])
			for _, c := range out {
				w.ledger.answered(a, c.CardID, c.Changed, c.Err)
			}
			if err != nil && len(a.calls) > 0 && !a.dead {
				w.ledger.breaks("%s was told that nothing was written, and wrote", a.name)
			}
		})
	case "amend":
		a = w.start("amendment of "+card, -1, func(ctx context.Context, _ *actor) { w.amend(ctx, card) })
	case "relay":
		a = w.start("relay of "+card, -1, func(ctx context.Context, _ *actor) { _, _ = w.relay.Card(ctx, w.tenant, card) })
	case "sweep":
		a = w.start("sweep", -1, func(ctx context.Context, _ *actor) { _, _ = w.sweeper.Sweep(ctx) })
	case "lift":
		a = w.start("scan at start-up", -1, func(ctx context.Context, _ *actor) { _, _ = w.HeadLift(ctx, w.tenant) })
	case "drain":
		replica := rapid.IntRange(0, 1).Draw(rt, "replica")
		if slices.ContainsFunc(w.actors, func(a *actor) bool { return a.replica == replica }) {
			return // it drains already
		}
		tail := w.tails[replica]
		a = w.start(fmt.Sprintf("drain by replica %d", replica), replica, func(ctx context.Context, _ *actor) { poll(ctx, tail, w.tenant) })
	}
	w.let(rt, a)
}

// request ends a request that changed a card: it is answered, and relays.
func (w *world) request(ctx context.Context, a *actor, card string, changed tracker.Changed, err error) {
	w.ledger.answered(a, card, changed, err)
	if err == nil {
		_, _ = w.relay.Card(ctx, w.tenant, card)
	}
}

// amend adds an event to a tombstone, which no Change does.
func (w *world) amend(ctx context.Context, id string) {
	card, err := w.CardGet(ctx, w.tenant, id)
	if err != nil || !card.Deleted {
		return
	}
	next := card.Clone()
	next.Rev++
	next.LastWrite = tracker.NewBoardEID()
	event := &tracker.BoardEvent{
		EID: tracker.NewBoardEID(), Kind: tracker.KindUnlabeled, At: w.Now(), Actor: human,
		BoardID: card.BoardID, CardID: id, CardRev: next.Rev, Before: card.Snapshot(), After: next.Snapshot(),
	}
	_ = w.CardWrite(ctx, tracker.CardWrite{PrevIncarnation: card.Incarnation, PrevRev: card.Rev, Next: next, Event: event})
}

// changers are the changes that callers make.
var changers = map[string]tracker.Changer{
	"edit": orNew(func(card *tracker.Card) *tracker.BoardEvent {
		card.Title += "!"
		return &tracker.BoardEvent{Kind: tracker.KindEdited}
	}),
	"label": orNew(func(card *tracker.Card) *tracker.BoardEvent {
		if i := slices.Index(card.Labels, shipIt); i >= 0 {
			card.Labels = slices.Delete(card.Labels, i, i+1)
			return &tracker.BoardEvent{Kind: tracker.KindUnlabeled, Removed: []string{shipIt}}
		}
		card.Labels = append(card.Labels, shipIt)
		return &tracker.BoardEvent{Kind: tracker.KindLabeled, Added: []string{shipIt}}
	}),
	"move": orNew(func(card *tracker.Card) *tracker.BoardEvent {
		from, to := card.ColumnID, "ready"
		if from == to {
			to = "open"
		}
		card.ColumnID = to
		return &tracker.BoardEvent{Kind: tracker.KindMoved, FromColumn: from, ToColumn: to}
	}),
	"only if new": func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card != nil {
			return nil, nil, nil
		}
		return newCard(), &tracker.BoardEvent{Kind: tracker.KindCreated, Actor: human, ToColumn: "ready"}, nil
	},
	"bookkeeping": func(card *tracker.Card, now time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		if card == nil {
			return newCard(), nil, nil
		}
		card.AddDelivery("hook", strconv.Itoa(len(card.Deliveries)), now)
		return card, nil, nil
	},
}

var changerNames = slices.Sorted(maps.Keys(changers))

func newCard() *tracker.Card {
	return &tracker.Card{BoardID: "b1", ColumnID: "ready", Title: "Card", Labels: []string{shipIt}}
}

// orNew makes the card where there is none.
func orNew(change func(card *tracker.Card) *tracker.BoardEvent) tracker.Changer {
	return func(card *tracker.Card, _ time.Time) (*tracker.Card, *tracker.BoardEvent, error) {
		event := &tracker.BoardEvent{Kind: tracker.KindCreated, ToColumn: "ready"}
		if card == nil {
			card = newCard()
		} else {
			event = change(card)
		}
		event.Actor = human
		return card, event, nil
	}
}
