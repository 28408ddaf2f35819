package server

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"time"

	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/server/github"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	// storeWait bounds looking a hook up, and storing a delivery: a change
	// that meets a hanging store tries again and again. GitHub gives a
	// delivery up after 10 s.
	storeWait = 9 * time.Second
	// relayWait bounds the relay within the request: the delivery is durable
	// before it, and is answered whether or not the relay got through.
	relayWait = 3 * time.Second
)

var (
	deliveryIDForm = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)
	eventNameForm  = regexp.MustCompile(`^[a-z_]{1,64}$`)
)

// HookAnswer is the answer to a delivery.
type HookAnswer struct {
	// Status is "pong", "accepted", "duplicate" or "ignored".
	Status string `json:"status"`
	// Reason says why a delivery was ignored.
	Reason string `json:"reason,omitempty"`
	CardID string `json:"card_id,omitempty"`
	// Event is the kind of the event that the delivery made; empty if it
	// changed nothing that an event tells of.
	Event string `json:"event,omitempty"`
	// Seq is the event's place in the log; absent while it is still pending
	// on the card.
	Seq int64 `json:"seq,omitempty"`
}

// hook takes one inbound delivery. It answers 202 only once the delivery is
// stored.
func (s *Server) hook(w http.ResponseWriter, r *http.Request) {
	tenantID, hookID := r.PathValue("tenant"), r.PathValue("hook")
	log := s.log.With().Str("tenant", tenantID).Str("hook", hookID).Logger()
	if id := r.Header.Get(github.HeaderDelivery); deliveryIDForm.MatchString(id) { // anybody may send anything
		log = log.With().Str("delivery", id).Logger()
	}
	if !tracker.ValidTenantID(tenantID) || !tracker.ValidTenantID(hookID) {
		writeProblem(w, http.StatusNotFound, notFound)
		return
	}
	hook, err := s.hookGet(r.Context(), tenantID, hookID)
	if errors.Is(err, tracker.ErrNotFound) {
		writeProblem(w, http.StatusNotFound, notFound)
		return
	}
	if err != nil {
		unstored(w, log.Warn().Err(err), "hook: the hook could not be looked up")
		return
	}
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	signed, err := s.signed(hook, body, r.Header.Get(github.HeaderSignature))
	if err != nil {
		unstored(w, log.Warn().Err(err), "hook: the hook's secret could not be opened")
		return
	}
	if !signed {
		log.Info().Msg("hook: bad signature")
		writeProblem(w, http.StatusUnauthorized, github.HeaderSignature+" does not match")
		return
	}
	event, deliveryID := r.Header.Get(github.HeaderEvent), r.Header.Get(github.HeaderDelivery)
	if err := checkDelivery(r, event, deliveryID, body); err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errMediaType) {
			status = http.StatusUnsupportedMediaType
		}
		writeProblem(w, status, err.Error())
		return
	}
	switch event {
	case "ping":
		writeJSON(w, http.StatusOK, HookAnswer{Status: "pong"})
	case "issues":
		s.issue(w, r, hook, deliveryID, body, &log)
	default:
		ignore(w, "deliveries of "+event+" are not used")
	}
}

// unstored answers a delivery that could not be stored, and logs why.
func unstored(w http.ResponseWriter, log *zerolog.Event, message string) {
	log.Msg(message)
	writeProblem(w, http.StatusServiceUnavailable, "the delivery could not be stored; deliver it again")
}

// signed reports whether the delivery is signed with the hook's secret, or
// with the next one while it is being rotated.
func (s *Server) signed(hook *trigger.Hook, body []byte, signature string) (bool, error) {
	secrets := []trigger.Sealed{hook.Secret}
	if hook.NextSecret != "" {
		secrets = append(secrets, hook.NextSecret)
	}
	for _, sealed := range secrets {
		secret, err := s.p.Sealer.Open(trigger.HookOwner(hook.TenantID, hook.ID), sealed)
		if err != nil {
			return false, err
		}
		if github.Verify(secret, body, signature) == nil {
			return true, nil
		}
	}
	return false, nil
}

func (s *Server) hookGet(ctx context.Context, tenantID, hookID string) (*trigger.Hook, error) {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	return s.p.Store.HookGet(ctx, tenantID, hookID)
}

func ignore(w http.ResponseWriter, why string) {
	writeJSON(w, http.StatusAccepted, HookAnswer{Status: "ignored", Reason: why})
}

// readBody reads at most github.BodyMaxBytes of the body, and answers if that
// is not all of it.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := func() ([]byte, bool) {
		w.Header().Set("Connection", "close")
		writeProblem(w, http.StatusRequestEntityTooLarge, "the body may hold 25 MiB")
		return nil, false
	}
	if r.ContentLength > github.BodyMaxBytes {
		return tooLarge()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, github.BodyMaxBytes))
	if tooBig := (*http.MaxBytesError)(nil); errors.As(err, &tooBig) {
		return tooLarge()
	}
	if err != nil {
		writeProblem(w, http.StatusBadRequest, "the body could not be read")
		return nil, false
	}
	return body, true
}

var errMediaType = errors.New("Content-Type must be application/json: set the webhook's content type so")

func checkDelivery(r *http.Request, event, deliveryID string, body []byte) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return errMediaType
	}
	if !eventNameForm.MatchString(event) {
		return &github.InputError{Message: github.HeaderEvent + ": must match " + eventNameForm.String()}
	}
	if !deliveryIDForm.MatchString(deliveryID) {
		return &github.InputError{Message: github.HeaderDelivery + ": must match " + deliveryIDForm.String()}
	}
	return github.CheckJSON(body)
}

// issue stores one `issues` delivery: the card's one conditional write holds
// the change, its event and the delivery's id, so that what failed before it
// was stored is accepted when it comes again.
func (s *Server) issue(w http.ResponseWriter, r *http.Request, hook *trigger.Hook, deliveryID string, body []byte, log *zerolog.Logger) {
	d, err := github.ParseIssue(body)
	if err != nil {
		writeProblem(w, http.StatusBadRequest, err.Error())
		return
	}
	if why := github.Unused(d.Action); why != "" {
		ignore(w, why)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), storeWait)
	defer cancel()
	cardID := github.CardID(hook.TenantID, d.Repository.FullName, d.Issue.Number)
	answer := HookAnswer{Status: "duplicate", CardID: cardID}
	seen, err := s.p.Store.DeliverySeen(ctx, hook.TenantID, hook.ID, deliveryID)
	if err != nil {
		unstored(w, log.Warn().Err(err), "hook: could not look whether the delivery came before")
		return
	}
	var changed tracker.Changed
	if !seen {
		mapping := github.Mapping{
			TenantID: hook.TenantID, HookID: hook.ID, BoardID: hook.BoardID,
			OpenColumn: hook.OpenColumn, ClosedColumn: hook.ClosedColumn,
		}
		if d.ByBot() {
			// It may be the answer to a launch: a loop is told by its cause.
			if mapping.Cause, err = trigger.InheritedCause(ctx, s.p.Store, hook.TenantID, hook.BoardID, cardID, s.p.Store.Now()); err != nil {
				unstored(w, log.Warn().Err(err), "hook: the cause could not be looked up")
				return
			}
		}
		changed, err = s.board.Change(ctx, hook.TenantID, cardID, github.Merge(mapping, deliveryID, d))
		var field *tracker.FieldError
		if errors.As(err, &field) {
			writeProblem(w, http.StatusUnprocessableEntity, "the issue does not fit on a card", field)
			return
		}
		if errors.Is(err, tracker.ErrPendingFull) {
			log.Warn().Err(err).Str("card", cardID).Msg("hook: the card is full of pending events")
			writeProblem(w, http.StatusServiceUnavailable, tracker.ErrPendingFull.Error()+"; deliver it again")
			return
		}
		if err != nil {
			unstored(w, log.Warn().Err(err), "hook: the delivery could not be stored")
			return
		}
		// The card holds the id of a delivery that was stored just now: this
		// record is for the days after it has forgotten.
		if err := s.p.Store.DeliveryRecord(ctx, hook.TenantID, hook.ID, deliveryID, s.p.Store.Now()); err != nil {
			log.Warn().Err(err).Str("card", cardID).Msg("hook: the delivery's id could not be recorded for later")
		}
	}
	if changed.Written {
		answer.Status = "accepted"
	}
	// A duplicate relays too: what an earlier try left pending goes on.
	rctx, rcancel := context.WithTimeout(context.WithoutCancel(ctx), relayWait)
	defer rcancel()
	seqs, err := s.board.Relay.Card(rctx, hook.TenantID, cardID)
	if err != nil {
		log.Warn().Err(err).Str("card", cardID).Msg("hook: the relay did not get through, the sweeper goes on with it")
	}
	if changed.Event != nil {
		answer.Event, answer.Seq = string(changed.Event.Kind), seqs[changed.Event.EID]
	}
	writeJSON(w, http.StatusAccepted, answer)
}
