package server

import (
	"context"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/rs/zerolog"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// PageMax is the most that one page of a list holds.
const PageMax = 100

// APIParams is what the API works with.
type APIParams struct {
	Store  trigger.Store
	Sealer trigger.Sealer
	Logger zerolog.Logger
	Board  *trigger.Board
	Dead   *trigger.DeadLetters
	// As, if set, is whose call each call is: no token is asked for. It is for
	// a command that works on a database, without a server.
	As *trigger.Token
}

// API answers /v1 from a store. It runs no loop, so that a command can use it
// without being a replica. Safe for concurrent use.
type API struct {
	APIParams
	mux      *http.ServeMux
	failures *failures
	openapi  *huma.OpenAPI
}

// NewAPI makes an API, with a board and dead letters on the store where p has
// none.
func NewAPI(p APIParams) *API {
	if p.Board == nil {
		relay := &trigger.Relay{Cards: p.Store, Log: p.Store, Heads: p.Store, Logger: p.Logger}
		p.Board = &trigger.Board{Cards: p.Store, Log: p.Store, Clock: p.Store, Relay: relay}
	}
	if p.Dead == nil {
		p.Dead = trigger.NewDeadLetters(p.Store, p.Board, p.Logger)
	}
	a := &API{APIParams: p, mux: http.NewServeMux(), failures: newFailures()}
	a.routes()
	return a
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { problems(a.mux).ServeHTTP(w, r) }

func (s *Server) handler() http.Handler {
	mux := s.api.mux
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.tail.Healthy() {
			writeProblem(w, http.StatusServiceUnavailable, "the tail panics again and again")
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", s.metricsHandler())
	mux.HandleFunc("POST /v1/tenants/{tenant}/hooks/{hook}", s.hook)
	return traced(s.api, s.p.Tracer)
}

func (a *API) routes() {
	config := huma.DefaultConfig("triggerd", "1")
	// The reference page of the default loads its code from elsewhere.
	config.DocsPath, config.OpenAPIPath, config.SchemasPath = "", "", ""
	config.CreateHooks = nil // no $schema links into every answer
	config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
	config.Security = []map[string][]string{{"token": {}}}
	api := humago.New(a.mux, config)
	api.UseMiddleware(a.authenticate(api), a.strict(api), a.idempotent(api), a.audited(api))
	a.register(api)
	a.openapi = api.OpenAPI()
	tighten(a.openapi)
	describe(a.openapi)
	a.serveDocs()
}

// problems answers what the mux has no route for with a problem, as all other
// errors are.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		// The mux's own answer has the status, and which methods there are.
		own := statusOnly{header: make(http.Header)}
		h.ServeHTTP(&own, r)
		if allow := own.header.Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
		}
		detail := notFound
		if own.status != http.StatusNotFound {
			detail = "not with this method"
		}
		writeProblem(w, own.status, detail)
	})
}

// statusOnly takes an answer without its body.
type statusOnly struct {
	header http.Header
	status int
}

func (s *statusOnly) Header() http.Header         { return s.header }
func (s *statusOnly) WriteHeader(status int)      { s.status = status }
func (s *statusOnly) Write(b []byte) (int, error) { return len(b), nil }

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

const notFound = "there is no such thing"

// fail translates an error of the store for the caller.
func (a *API) fail(err error) error {
	var field *tracker.FieldError
	var refused *trigger.RefusedError
	var status huma.StatusError
	switch {
	case errors.As(err, &status): // one of ours, from within a change
		return status
	case errors.Is(err, tracker.ErrPendingFull):
		a.Logger.Warn().Err(err).Msg("API: the card is full of pending events")
		return huma.Error503ServiceUnavailable(tracker.ErrPendingFull.Error() + "; try again")
	case errors.Is(err, tracker.ErrNotFound):
		return huma.Error404NotFound(notFound)
	case errors.As(err, &refused):
		return huma.Error409Conflict(refused.Why)
	case errors.Is(err, tracker.ErrConflict):
		return huma.Error409Conflict("somebody else wrote to it at the same moment: look again")
	case errors.As(err, &field):
		return huma.Error422UnprocessableEntity("refused", field)
	}
	a.Logger.Warn().Err(err).Msg("API: the store failed")
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

func (a *API) register(api huma.API) {
	huma.Get(api, "/v1/tenants", func(ctx context.Context, in *struct {
		After string `query:"after" maxLength:"63" pattern:"^[a-z0-9-]*$" doc:"only tenants after this id"`
		Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[Page[trigger.TenantStatus]], error) {
		return a.tenantPage(ctx, in.After, in.Limit)
	}, named("list-tenants", "The tenants, and where each one's log stands. For admins."), forAdmins)

	huma.Get(api, "/v1/tenants/{tenant}", func(ctx context.Context, in *struct{ TenantInput }) (*tagged[trigger.TenantStatus], error) {
		tenant, err := a.Store.TenantGet(ctx, in.Tenant)
		if err != nil {
			return nil, a.fail(err)
		}
		head, err := a.Store.HeadGet(ctx, in.Tenant)
		if errors.Is(err, tracker.ErrNotFound) {
			head, err = &trigger.Head{TenantID: in.Tenant}, nil
		}
		if err != nil {
			return nil, a.fail(err)
		}
		status, err := trigger.Status(ctx, a.Store, a.Store, head)
		if err != nil {
			return nil, a.fail(err)
		}
		status.Name, status.Status = tenant.Name, newTenant(tenant).Status
		return &tagged[trigger.TenantStatus]{etag(tenant.Revision), status}, nil
	}, named("get-tenant", "Where the tenant's log stands, and whether it is being deleted."), whileDeleting)

	huma.Get(api, "/v1/tenants/{tenant}/events", func(ctx context.Context, in *struct {
		TenantInput
		After int64 `query:"after" minimum:"0" maximum:"999999999999" default:"0" doc:"only events after this seq"`
		Limit int64 `query:"limit" minimum:"1" maximum:"100" default:"50"`
	},
	) (*one[EventPage], error) {
		events, err := a.Store.EventList(ctx, in.Tenant, in.After, in.After+in.Limit)
		if err != nil {
			return nil, a.fail(err)
		}
		page := EventPage{Items: []trigger.Event{}}
		page.Items = append(page.Items, events...)
		// Seqs without an event (holes, and what retention removed) make a
		// page short, not the last one.
		head, err := a.Store.HeadGet(ctx, in.Tenant)
		if err != nil && !errors.Is(err, tracker.ErrNotFound) {
			return nil, a.fail(err)
		}
		if head != nil && head.Seq > in.After+in.Limit {
			page.Next = in.After + in.Limit
		}
		return &one[EventPage]{page}, nil
	}, named("list-events", "A page of the tenant's log, by seq."))

	a.registerEffects(api)
	a.registerBulk(api)
	a.registerPauses(api)
	a.registerBoards(api)
	a.registerAllPauses(api)
	a.registerApply(api)
	a.registerCards(api)
	a.registerCardChanges(api)
	a.registerBulkCards(api)
	a.registerComments(api)
	a.registerEvents(api)
	a.registerExplain(api)
	a.registerAudit(api)
	a.registerTokens(api)
	a.registerSubscriptions(api)
	a.registerBots(api)
	a.registerHooks(api)
	a.registerProjections(api)
	a.registerTenants(api)
}

// EventPage is a page of the log.
type EventPage struct {
	Items []trigger.Event `json:"items"`
	// Next is the seq to go on after; absent on the last page.
	Next int64 `json:"next,omitempty"`
}

// write is for operations that take a body: it bounds that.
func write(o *huma.Operation) { o.MaxBodyBytes = 16 << 10 }

func named(id, summary string) func(*huma.Operation) {
	return func(o *huma.Operation) { o.OperationID, o.Summary = id, summary }
}
