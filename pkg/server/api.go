package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// PageMax is the most that one page of a list holds.
const PageMax = 100

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.tail.Healthy() {
			writeProblem(w, http.StatusServiceUnavailable, "the tail panics again and again")
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("POST /v1/tenants/{tenant}/hooks/{hook}", s.hook)

	config := huma.DefaultConfig("triggerd", "1")
	// The reference page of the default loads its code from elsewhere.
	config.DocsPath, config.OpenAPIPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil // no $schema links into every answer
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	api := humago.New(mux, config)
	api.UseMiddleware(s.authenticate(api))
	s.register(api)
	return mux
}

// readyz reports whether the replica takes part: it started, does not stop,
// and its store answers.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	if !s.ready.Load() {
		writeProblem(w, http.StatusServiceUnavailable, "starting or stopping")
		return
	}
	if err := s.p.Store.Ping(r.Context()); err != nil {
		s.log.Warn().Err(err).Msg("readyz: the store does not answer")
		writeProblem(w, http.StatusServiceUnavailable, "the store does not answer")
		return
	}
	writeJSON(w, http.StatusOK, map[string]string{"status": "ready"})
}

// authenticate lets a call through that carries an active token for the tenant
// it names. Another tenant looks like one that does not exist.
func (s *Server) authenticate(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		refuse := func(status int, detail string) {
			if status == http.StatusUnauthorized {
				ctx.SetHeader("WWW-Authenticate", "Bearer")
			}
			_ = huma.WriteErr(api, ctx, status, detail)
		}
		text, ok := bearer(ctx.Header("Authorization"))
		if !ok {
			refuse(http.StatusUnauthorized, "a token is required: Authorization: Bearer trg_…")
			return
		}
		token, err := s.p.Store.TokenByHash(ctx.Context(), tokenHash(text))
		switch {
		case errors.Is(err, tracker.ErrNotFound) || (err == nil && !token.Active(s.p.Store.Now())):
			refuse(http.StatusUnauthorized, "the token is not known, expired or revoked")
			return
		case err != nil:
			s.log.Warn().Err(err).Msg("authenticate")
			refuse(http.StatusServiceUnavailable, "the store does not answer")
			return
		}
		if tenant := ctx.Param("tenant"); token.Role != trigger.RoleAdmin && token.TenantID != tenant {
			refuse(http.StatusNotFound, notFound)
			return
		}
		next(ctx)
	}
}

const notFound = "there is no such thing"

// fail translates an error of the store for the caller.
func (s *Server) fail(err error) error {
	var field *tracker.FieldError
	switch {
	case errors.Is(err, tracker.ErrNotFound):
		return huma.Error404NotFound(notFound)
	case errors.As(err, &field):
		return huma.Error422UnprocessableEntity("refused", field)
	}
	s.log.Warn().Err(err).Msg("API")
	return huma.Error503ServiceUnavailable("the store does not answer")
}

// TenantInput is the tenant of a call. It is exported because huma fills no
// field of an embedded type that is not.
type TenantInput struct {
	Tenant string `path:"tenant" maxLength:"63" pattern:"^[a-z0-9][a-z0-9-]{0,62}$"`
}

type one[T any] struct{ Body T }

// Page is a page of a list.
type Page[T any] struct {
	Items []T `json:"items"`
	// Next is the cursor of the next page; empty on the last.
	Next string `json:"next,omitempty"`
}

func (s *Server) register(api huma.API) {
	huma.Get(api, "/v1/tenants", func(ctx context.Context, in *struct {
		After string `query:"after" maxLength:"63" pattern:"^[a-z0-9-]*$" doc:"only tenants after this id"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[trigger.TenantStatus]], error) {
		heads, err := s.p.Store.HeadList(ctx, in.After, in.Limit)
		if err != nil {
			return nil, s.fail(err)
		}
		page := Page[trigger.TenantStatus]{Items: []trigger.TenantStatus{}}
		for i := range heads {
			status, err := trigger.Status(ctx, s.p.Store, s.p.Store, &heads[i])
			if err != nil {
				return nil, s.fail(err)
			}
			page.Items = append(page.Items, status)
		}
		if len(heads) == in.Limit {
			page.Next = heads[len(heads)-1].TenantID
		}
		return &one[Page[trigger.TenantStatus]]{page}, nil
	}, named("list-tenants", "Where each tenant's log stands. For admins."))

	huma.Get(api, "/v1/tenants/{tenant}", func(ctx context.Context, in *struct{ TenantInput }) (*one[trigger.TenantStatus], error) {
		if _, err := s.p.Store.TenantGet(ctx, in.Tenant); err != nil {
			return nil, s.fail(err)
		}
		head, err := s.p.Store.HeadGet(ctx, in.Tenant)
		if errors.Is(err, tracker.ErrNotFound) {
			head, err = &trigger.Head{TenantID: in.Tenant}, nil
		}
		if err != nil {
			return nil, s.fail(err)
		}
		status, err := trigger.Status(ctx, s.p.Store, s.p.Store, head)
		if err != nil {
			return nil, s.fail(err)
		}
		return &one[trigger.TenantStatus]{status}, nil
	}, named("get-tenant", "Where the tenant's log stands."))

	huma.Get(api, "/v1/tenants/{tenant}/effects", func(ctx context.Context, in *struct {
		TenantInput
		State string `query:"state" enum:"pending,claimed,done,failed" doc:"only rows in this state"`
		After string `query:"after" maxLength:"200" doc:"the cursor that the page before gave"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[Effect]], error) {
		after, err := decodeCursor(in.Tenant, in.After)
		if err != nil {
			return nil, s.fail(err)
		}
		rows, err := s.p.Store.EffectList(ctx, trigger.EffectListParams{
			TenantID: in.Tenant, EffectFilter: trigger.EffectFilter{State: trigger.State(in.State)}, AfterID: after, Limit: in.Limit + 1,
		})
		if err != nil {
			return nil, s.fail(err)
		}
		page := Page[Effect]{Items: []Effect{}}
		for i := range rows {
			if i == in.Limit {
				page.Next = encodeCursor(rows[i-1].ID)
				break
			}
			page.Items = append(page.Items, newEffect(&rows[i]))
		}
		return &one[Page[Effect]]{page}, nil
	}, named("list-effects", "A page of the tenant's effects, oldest event first."))

	huma.Get(api, "/v1/tenants/{tenant}/effects/{effect}", func(ctx context.Context, in *struct {
		TenantInput
		Effect string `path:"effect" maxLength:"200" pattern:"^[a-z0-9][a-z0-9-]*/[0-9]{12,}[|>!][A-Za-z0-9-]*$" doc:"the effect's id, percent-encoded"`
	},
	) (*one[Effect], error) {
		row, err := s.p.Store.EffectGet(ctx, in.Tenant, in.Effect)
		if err != nil {
			return nil, s.fail(err)
		}
		return &one[Effect]{newEffect(row)}, nil
	}, named("get-effect", "One effect."))

	huma.Get(api, "/v1/tenants/{tenant}/cards/{card}", func(ctx context.Context, in *struct {
		TenantInput
		Card string `path:"card" maxLength:"64" pattern:"^[A-Za-z0-9-]+$"`
	},
	) (*one[Card], error) {
		card, err := s.board.CardGet(ctx, in.Tenant, in.Card)
		if err != nil {
			return nil, s.fail(err)
		}
		return &one[Card]{newCard(card)}, nil
	}, named("get-card", "One card."))

	huma.Get(api, "/v1/tenants/{tenant}/events", func(ctx context.Context, in *struct {
		TenantInput
		After int64 `query:"after" minimum:"0" maximum:"999999999999" default:"0" doc:"only events after this seq"`
		Limit int64 `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[EventPage], error) {
		events, err := s.p.Store.EventList(ctx, in.Tenant, in.After, in.After+in.Limit)
		if err != nil {
			return nil, s.fail(err)
		}
		page := EventPage{Items: []trigger.Event{}}
		page.Items = append(page.Items, events...)
		// Seqs without an event (holes, and what retention removed) make a
		// page short, not the last one.
		head, err := s.p.Store.HeadGet(ctx, in.Tenant)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return nil, s.fail(err)
		}
		if head != nil && head.Seq > in.After+in.Limit {
			page.Next = in.After + in.Limit
		}
		return &one[EventPage]{page}, nil
	}, named("list-events", "A page of the tenant's log, by seq."))
}

// EventPage is a page of the log.
type EventPage struct {
	Items []trigger.Event `json:"items"`
	// Next is the seq to go on after; absent on the last page.
	Next int64 `json:"next,omitempty"`
}

func named(id, summary string) func(*huma.Operation) {
	return func(o *huma.Operation) { o.OperationID, o.Summary = id, summary }
}
