package trigger

import "time"

// Tenant owns boards, cards and everything else. Nothing crosses tenants.
type Tenant struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Revision  int64     `json:"revision"`
	UpdatedAt time.Time `json:"updated_at"`
	// DeletingAt is when the tenant was marked to be deleted; zero if it is not.
	DeletingAt time.Time `json:"deleting_at,omitempty,omitzero"`
	// ReapUntil is until when one reaper has it to itself.
	ReapUntil time.Time `json:"reap_until,omitempty,omitzero"`
}

// ReplayClass says whether a launch may be repeated (W8).
type ReplayClass string

const (
	// ReplaySafe says that the bot honours the idempotency key, so that an attempt
	// whose outcome is unknown is simply made again.
	ReplaySafe ReplayClass = "safe"
	// ReplayUnsafe says that a second request could do harm.
	ReplayUnsafe ReplayClass = "unsafe"
)

// Bot is what a subscription launches.
type Bot struct {
	TenantID string      `json:"tenant_id"`
	ID       string      `json:"id"`
	Name     string      `json:"name"`
	URL      string      `json:"url"`
	Replay   ReplayClass `json:"replay"`
	// Secret signs the launches; sealed at rest.
	Secret Sealed `json:"secret"`
	// NextSecret, while the secret is being rotated, signs them too; when the
	// rotation ends it takes the place of Secret. A replica that does not know
	// it signs with the secret that the bot has had all along (ADR 0032).
	NextSecret Sealed `json:"next_secret,omitempty"`
	// RotatingSince is when NextSecret came.
	RotatingSince time.Time `json:"rotating_since,omitempty,omitzero"`
	Revision      int64     `json:"revision"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// Hook lets a forge deliver to a board.
type Hook struct {
	TenantID string `json:"tenant_id"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	Provider string `json:"provider"` // "github"
	BoardID  string `json:"board_id"`
	// OpenColumn and ClosedColumn are where open and closed issues stand.
	OpenColumn   string `json:"open_column"`
	ClosedColumn string `json:"closed_column"`
	// Secret is what deliveries are signed with; NextSecret and RotatingSince
	// are as a bot's: while there is one, either is good.
	Secret        Sealed    `json:"secret"`
	NextSecret    Sealed    `json:"next_secret,omitempty"`
	RotatingSince time.Time `json:"rotating_since,omitempty,omitzero"`
	Revision      int64     `json:"revision"`
	UpdatedAt     time.Time `json:"updated_at"`
}

// Sealed is a secret as it lies in a store: encrypted, bound to its owner.
// Only a Sealer opens it. It shows itself nowhere.
type Sealed string

// String hides even the ciphertext.
func (Sealed) String() string { return "[sealed]" }

// Sealer encrypts and decrypts secrets. Owner is what the secret belongs to
// ("<tenant>/bot/<id>"): a sealed secret opens only for the owner that it was
// sealed for. Safe for concurrent use.
type Sealer interface {
	Seal(owner string, secret []byte) (Sealed, error)
	Open(owner string, sealed Sealed) ([]byte, error)
}

// Role is what a token may do.
type Role string

const (
	// RoleAdmin reads every tenant, and acts within each.
	RoleAdmin Role = "admin"
	// RoleEditor reads the tenant that the token is bound to, and acts within
	// it.
	RoleEditor Role = "editor"
	// RoleViewer reads the tenant that the token is bound to.
	RoleViewer Role = "viewer"
	// RoleBot is a bot's own: it reads what is the bot's, of the tenant that
	// the token is bound to.
	RoleBot Role = "bot"
)

// Token is an API token without the token itself: only its hash is kept.
type Token struct {
	ID   string `json:"id"`
	Hash string `json:"hash"` // hex SHA-256 of the token
	Name string `json:"name"`
	Role Role   `json:"role"`
	// TenantID binds the token; empty for an admin.
	TenantID string `json:"tenant_id,omitempty"`
	// BotID is the bot that the token of a RoleBot is.
	BotID     string    `json:"bot_id,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at,omitempty,omitzero"`
	RevokedAt time.Time `json:"revoked_at,omitempty,omitzero"`
}

// Active reports whether the token opens anything at the time.
func (t *Token) Active(now time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || now.Before(t.ExpiresAt))
}
