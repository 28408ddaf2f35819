package server

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	// auditMaxBytes bounds what things were before and after, of one entry.
	auditMaxBytes = 32 << 10
	// auditMaxPath bounds the path of one entry: the longest that an operation
	// takes, with each byte percent-encoded, is shorter.
	auditMaxPath = 2 << 10
	// auditMaxChanges bounds how many changes one entry names.
	auditMaxChanges = 1000
)

// audited enters each call that changes something into the audit log before it
// runs, and how it ended after. What can't be entered is refused: nothing that
// a person does goes by unseen.
func (a *API) audited(api huma.API) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		op := ctx.Operation()
		if mayRead(op, ctx.Method()) {
			next(ctx)
			return
		}
		e := a.auditEntry(ctx)
		if err := a.Store.AuditBegin(ctx.Context(), e); err != nil {
			a.Logger.Warn().Err(err).Msg("audit: a call could not be entered and was refused")
			ctx.SetHeader("Retry-After", retryAfter)
			_ = huma.WriteErr(api, ctx, http.StatusServiceUnavailable, "the store does not answer")
			return
		}
		var trail []change
		next(huma.WithValue(ctx, trailKey{}, &trail))
		end := auditEnd(ctx.Status(), trail)
		end.EndedAt, end.Truncated = a.Store.Now(), end.Truncated || e.Truncated
		// Also for a caller that has gone. If it fails the entry says that the
		// call was begun, which is true.
		ectx, cancel := context.WithTimeout(context.WithoutCancel(ctx.Context()), afterwards)
		defer cancel()
		if err := a.Store.AuditComplete(ectx, e.TenantID, e.ID, end); err != nil {
			a.Logger.Warn().Err(err).Str("operation", e.Operation).Str("tenant", e.TenantID).Str("entry", e.ID).Msg("audit: how the call ended could not be entered")
		}
	}
}

func (a *API) auditEntry(ctx huma.Context) trigger.AuditEntry {
	now, token, u, op := a.Store.Now(), caller(ctx.Context()), ctx.URL(), ctx.Operation()
	e := trigger.AuditEntry{
		TenantID: ctx.Param("tenant"), ID: trigger.AuditID(now), At: now,
		TokenID: token.ID, TokenName: token.Name, Role: token.Role, Address: hostOf(ctx.RemoteAddr()),
		Operation: op.OperationID, Method: ctx.Method(), Path: u.EscapedPath(),
		AuditEnd: trigger.AuditEnd{Outcome: trigger.AuditBegun},
	}
	if len(e.Path) > auditMaxPath { // it will be refused
		e.Path, e.Truncated = e.Path[:auditMaxPath], true
	}
	if op.Metadata["tenant_as_a_whole"] == true {
		e.TenantID = "" // it outlives the tenant
	}
	return e
}

// hostOf returns an address without its port.
func hostOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}

// auditEnd says how a call ended that changed the trail.
func auditEnd(status int, trail []change) trigger.AuditEnd {
	end := trigger.AuditEnd{Status: status}
	switch {
	case status >= 500:
		end.Outcome = trigger.AuditFailed
	case status >= 400:
		end.Outcome = trigger.AuditRefused
	default:
		end.Outcome = trigger.AuditDone
	}
	room := auditMaxBytes
	for i, c := range trail {
		if i == auditMaxChanges {
			end.Truncated = true
			break
		}
		out := trigger.Change{Kind: c.Kind, ID: c.ID, Before: asJSON(c.Before), After: asJSON(c.After)}
		if n := len(out.Before) + len(out.After); n <= room {
			room -= n
		} else {
			out.Before, out.After, end.Truncated = "", "", true
		}
		end.Changes = append(end.Changes, out)
	}
	return end
}

// asJSON returns what a thing was like; "" of none.
func asJSON(v any) string {
	if v == nil {
		return ""
	}
	out, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(out)
}

// AuditEntry is an entry of the audit log as the API shows it.
type AuditEntry struct {
	ID        string               `json:"id"`
	TenantID  string               `json:"tenant_id,omitempty"`
	At        time.Time            `json:"at"`
	TokenID   string               `json:"token_id,omitempty" doc:"absent for a command that works on the database"`
	TokenName string               `json:"token_name"`
	Role      trigger.Role         `json:"role"`
	Address   string               `json:"address,omitempty"`
	Operation string               `json:"operation" doc:"its id in this document"`
	Method    string               `json:"method"`
	Path      string               `json:"path"`
	Outcome   trigger.AuditOutcome `json:"outcome" enum:"begun,done,refused,failed" doc:"begun: it has not ended, or its replica died; whether it changed anything is open"`
	Status    int                  `json:"status,omitempty"`
	EndedAt   *time.Time           `json:"ended_at,omitempty"`
	Changes   []AuditChange        `json:"changes"`
	Truncated bool                 `json:"truncated,omitempty" doc:"changes lacks some of them, or of what they were before and after, or the path is not all of it"`
}

// AuditChange is one thing that a call changed.
type AuditChange struct {
	Kind   string          `json:"kind"`
	ID     string          `json:"id"`
	Before json.RawMessage `json:"before,omitempty" doc:"as the API showed it; absent if there was none"`
	After  json.RawMessage `json:"after,omitempty"`
}

func newAuditEntry(e *trigger.AuditEntry) AuditEntry {
	out := AuditEntry{
		ID: e.ID, TenantID: e.TenantID, At: e.At, TokenID: e.TokenID, TokenName: e.TokenName, Role: e.Role, Address: e.Address,
		Operation: e.Operation, Method: e.Method, Path: e.Path, Outcome: e.Outcome, Status: e.Status, Truncated: e.Truncated,
		Changes: []AuditChange{},
	}
	if !e.EndedAt.IsZero() {
		out.EndedAt = &e.EndedAt
	}
	for _, c := range e.Changes {
		out.Changes = append(out.Changes, AuditChange{c.Kind, c.ID, json.RawMessage(c.Before), json.RawMessage(c.After)})
	}
	return out
}

// PageInput asks for a page of a list.
type PageInput struct {
	After string `query:"after" maxLength:"400" pattern:"^[A-Za-z0-9_-]*$" doc:"the cursor that the page before gave"`
	Limit int    `query:"limit" minimum:"1" maximum:"100" default:"50"`
}

func (a *API) registerAudit(api huma.API) {
	huma.Get(api, "/v1/audit", func(ctx context.Context, in *struct{ PageInput }) (*one[Page[AuditEntry]], error) {
		return a.auditPage(ctx, "", in.PageInput)
	}, named("list-fleet-audit", "A page of the audit log, newest first, of what concerns the fleet, tokens, and tenants as a whole. For admins."), forAdmins)
	huma.Get(api, "/v1/tenants/{tenant}/audit", func(ctx context.Context, in *struct {
		TenantInput
		PageInput
	},
	) (*one[Page[AuditEntry]], error) {
		return a.auditPage(ctx, in.Tenant, in.PageInput)
	}, named("list-audit", "A page of the tenant's audit log, newest first. For admins."), forAdmins)
}

func (a *API) auditPage(ctx context.Context, tenantID string, in PageInput) (*one[Page[AuditEntry]], error) {
	list := "audit/" + tenantID
	after, err := readCursor(list, in.After)
	if err != nil {
		return nil, a.fail(err)
	}
	entries, err := a.Store.AuditList(ctx, tenantID, after, in.Limit+1)
	if err != nil {
		return nil, a.fail(err)
	}
	page := Page[AuditEntry]{Items: []AuditEntry{}}
	for i := range entries {
		if i == in.Limit {
			page.Next = newCursor(list, entries[i-1].ID)
			break
		}
		page.Items = append(page.Items, newAuditEntry(&entries[i]))
	}
	return &one[Page[AuditEntry]]{page}, nil
}
