package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// TokenPrefix begins every API token, so that it is recognized where it leaks.
const TokenPrefix = "trg_"

// TokenParams describes a token to make.
type TokenParams struct {
	Name     string
	Role     trigger.Role
	TenantID string // required for an editor, a viewer and a bot, empty for an admin
	BotID    string // required for a bot, empty for others
	// ID is what the token is to be called; a fresh one if empty.
	ID string
	// TTL is how long the token opens anything; for ever if 0.
	TTL time.Duration
}

var roles = []trigger.Role{trigger.RoleAdmin, trigger.RoleEditor, trigger.RoleViewer, trigger.RoleBot}

// TokenCreate makes a token of 256 random bits and stores its hash. The token
// itself is returned this once.
func TokenCreate(ctx context.Context, store trigger.Store, p TokenParams) (*trigger.Token, string, error) {
	switch {
	case p.Name == "" || len(p.Name) > 100:
		return nil, "", tracker.Fieldf("name", "1 to 100 bytes")
	case !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, unicode.IsControl):
		return nil, "", tracker.Fieldf("name", "must be text on one line, without control characters: rows name who decided about them")
	case !slices.Contains(roles, p.Role):
		return nil, "", tracker.Fieldf("role", "must be one of %v", roles)
	case p.Role == trigger.RoleAdmin && p.TenantID != "":
		return nil, "", tracker.Fieldf("tenant", "an admin's token is not bound to a tenant")
	case p.Role != trigger.RoleAdmin && p.TenantID == "":
		return nil, "", tracker.Fieldf("tenant", "is required for the token of a %s", p.Role)
	case p.Role == trigger.RoleBot && p.BotID == "":
		return nil, "", tracker.Fieldf("bot", "is required for the token of a bot")
	case p.Role != trigger.RoleBot && p.BotID != "":
		return nil, "", tracker.Fieldf("bot", "is for tokens of the role bot alone")
	case p.TTL < 0:
		return nil, "", tracker.Fieldf("ttl", "must not be negative")
	}
	if p.TenantID != "" {
		tenant, err := store.TenantGet(ctx, p.TenantID)
		if err != nil {
			return nil, "", err
		}
		if !tenant.DeletingAt.IsZero() {
			return nil, "", tracker.Fieldf("tenant", "is being deleted")
		}
	}
	if p.BotID != "" {
		_, err := store.BotGet(ctx, p.TenantID, p.BotID)
		if errors.Is(err, tracker.ErrNotFound) {
			return nil, "", tracker.Fieldf("bot", "the tenant has no bot with this id")
		}
		if err != nil {
			return nil, "", err
		}
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails (crypto/rand)
	text := TokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
	now := store.Now()
	token := &trigger.Token{
		ID: cmp.Or(p.ID, uuid.Must(uuid.NewV7()).String()), Hash: tokenHash(text), Name: p.Name, Role: p.Role, TenantID: p.TenantID, BotID: p.BotID, CreatedAt: now,
	}
	if p.TTL > 0 {
		token.ExpiresAt = now.Add(p.TTL)
	}
	if err := store.TokenCreate(ctx, token); err != nil {
		return nil, "", err
	}
	return token, text, nil
}

// tokenHash is what of a token is stored. 256 random bits need no slow hash.
func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// bearer returns the token of an Authorization header.
func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimSpace(token)
	return token, ok && strings.EqualFold(scheme, "Bearer") && strings.HasPrefix(token, TokenPrefix) && len(token) <= 128
}
