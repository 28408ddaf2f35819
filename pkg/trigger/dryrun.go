package trigger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Bounds of a dry run.
const (
	DryRunLastDefault = 50
	DryRunLastMax     = 1000
	// dryRunSlack is how many seqs without an event one dry run looks past.
	dryRunSlack = 1000
	dryRunPage  = 100
)

// DryRunParams choose the stored events of a dry run.
type DryRunParams struct {
	// CardID, if set, chooses one card's events.
	CardID string
	// Last is how many events; DryRunLastDefault if 0, DryRunLastMax at most.
	Last int
	// BeforeSeq, if set, chooses events before a seq: the Next of the page
	// before.
	BeforeSeq int64
}

// DryRun is what a subscription would make of stored events.
type DryRun struct {
	// Verdicts are one for each event, newest first.
	Verdicts []DryRunVerdict `json:"verdicts"`
	// Fired counts those that fire.
	Fired int `json:"fired"`
	// Next is the BeforeSeq to go on with; 0 when there is nothing before. A
	// page may be short where the log has no events.
	Next  int64    `json:"next,omitempty"`
	Notes []string `json:"notes"`
}

// DryRunVerdict is what the subscription makes of one event.
type DryRunVerdict struct {
	Verdict
	EventKind tracker.Kind  `json:"event_kind"`
	CardID    string        `json:"card_id"`
	At        time.Time     `json:"at"`
	Actor     tracker.Actor `json:"actor"`
	// LoopCut: it fires, and would be cut to end a loop.
	LoopCut bool `json:"loop_cut,omitempty"`
}

// DryRun evaluates a draft or stored subscription against stored events, and
// writes nothing. It does not look at whether the subscription is enabled, since
// when, or paused. A draft that can't be saved is refused with a
// *tracker.FieldError.
func (x *Explainer) DryRun(ctx context.Context, tenantID string, s *Subscription, p DryRunParams) (*DryRun, error) {
	wrap := func(err error) error { return fmt.Errorf("dry run of subscription %q of %s: %w", s.ID, tenantID, err) }
	draft := *s
	if draft.TenantID == "" {
		draft.TenantID = tenantID
	}
	if p.Last == 0 {
		p.Last = DryRunLastDefault
	}
	switch {
	case draft.TenantID != tenantID:
		return nil, tracker.Fieldf("tenant_id", "must be the tenant, or nothing")
	case p.Last < 1 || p.Last > DryRunLastMax:
		return nil, tracker.Fieldf("last", "must be 1 to %d", DryRunLastMax)
	case p.BeforeSeq < 0:
		return nil, tracker.Fieldf("before", "must be a seq")
	}
	if err := checkFeatures("the subscription", draft.Requires); err != nil {
		return nil, tracker.Fieldf("requires", "names a feature that this version does not know")
	}
	if err := draft.Validate(); err != nil {
		if fe, ok := errors.AsType[*tracker.FieldError](err); ok && fe.Field == "bot" {
			return nil, &tracker.FieldError{Field: "bot_id", Want: fe.Want} // as a draft names it
		}
		return nil, err
	}
	a, err := ask(&draft)
	if err != nil {
		return nil, err
	}
	end, err := x.end(ctx, tenantID)
	if err != nil {
		return nil, wrap(err)
	}
	if p.BeforeSeq == 0 || p.BeforeSeq > end {
		p.BeforeSeq = end
	}
	out := &DryRun{Verdicts: []DryRunVerdict{}, Notes: []string{
		"Whether the subscription is enabled, since when, and whether it is paused is not looked at.",
	}}
	if p.CardID != "" {
		err = x.dryRunCard(ctx, tenantID, a, p, out)
	} else {
		err = x.dryRunLog(ctx, tenantID, a, p, out)
	}
	if err != nil {
		return nil, wrap(err)
	}
	return out, nil
}

var fieldName = regexp.MustCompile(`^json: unknown field "([a-z_]{1,30})"$`)

// DraftDecode reads a subscription in the JSON form that it is stored in, and
// refuses what it does not have; whether it can be saved is for DryRun to say.
// The error is a *tracker.FieldError.
func DraftDecode(data []byte) (*Subscription, error) {
	var s Subscription
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(&s)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			return nil, tracker.Fieldf("subscription", "must be one object")
		}
		return &s, nil
	}
	if typ, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && typ.Field != "" {
		return nil, tracker.Fieldf(typ.Field, "must not be a %s", strings.Fields(typ.Value)[0])
	}
	if m := fieldName.FindStringSubmatch(err.Error()); m != nil {
		return nil, tracker.Fieldf(m[1], "is not a field of a subscription")
	}
	return nil, tracker.Fieldf("subscription", "must be a subscription as a JSON object, without other fields")
}

// dryRunLog goes through the tenant's log.
func (x *Explainer) dryRunLog(ctx context.Context, tenantID string, a asked, p DryRunParams, out *DryRun) error {
	before := p.BeforeSeq
	for slack := int64(p.Last + dryRunSlack); before > 1 && slack > 0 && len(out.Verdicts) < p.Last; slack -= dryRunPage {
		from := max(before-dryRunPage, 1)
		events, err := x.Log.EventList(ctx, tenantID, from-1, before-1)
		if err != nil {
			return err
		}
		slices.Reverse(events)
		if err := x.judgeDry(ctx, tenantID, a, events, p.Last, out); err != nil {
			return err
		}
		before = from
	}
	switch {
	case len(out.Verdicts) == p.Last:
		before = out.Verdicts[p.Last-1].EventSeq
	case before > 1:
		out.Notes = append(out.Notes, fmt.Sprintf("The log has no more events down to number %d.", before))
	}
	if before > 1 {
		out.Next = before
	}
	return nil
}

// dryRunCard goes through one card's events.
func (x *Explainer) dryRunCard(ctx context.Context, tenantID string, a asked, p DryRunParams, out *DryRun) error {
	for before := p.BeforeSeq; len(out.Verdicts) < p.Last; {
		want := min(dryRunPage, p.Last-len(out.Verdicts))
		events, err := x.Log.EventListByCard(ctx, tenantID, p.CardID, before, want)
		if err != nil {
			return err
		}
		if err := x.judgeDry(ctx, tenantID, a, events, p.Last, out); err != nil {
			return err
		}
		if len(events) < want {
			out.Next = 0
			return nil
		}
		before = events[len(events)-1].Seq
		out.Next = before
	}
	return nil
}

// judgeDry adds the verdicts of events, up to a number of all.
func (x *Explainer) judgeDry(ctx context.Context, tenantID string, a asked, events []Event, most int, out *DryRun) error {
	errs, err := x.normalize(ctx, tenantID, events)
	if err != nil {
		return err
	}
	s := a.m.Subscription()
	for i := range events {
		e := &events[i]
		if e.Source == SourceVoid || len(out.Verdicts) == most {
			continue
		}
		v := DryRunVerdict{Verdict: a.verdict(e, errs[i]), EventKind: e.Kind, CardID: e.CardID, At: e.At, Actor: e.Actor}
		if v.Fires {
			out.Fired++
			v.LoopCut = cut(e.Cause, s.ID, e.CardID)
		}
		out.Verdicts = append(out.Verdicts, v)
	}
	return nil
}
