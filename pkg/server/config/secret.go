package config

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Limits of the text of a secret.
const (
	SecretMaxBytes     = 4096
	HookSecretMinBytes = 16
	// secretBytes is how many random bytes a made secret has.
	secretBytes = 32
)

// ParseHookSecret returns the key that a hook's secret stands for: its bytes.
// Its error is a *tracker.FieldError on "secret".
func ParseHookSecret(text string) ([]byte, error) {
	if len(text) < HookSecretMinBytes {
		return nil, tracker.Fieldf("secret", "at least %d bytes are required", HookSecretMinBytes)
	}
	return []byte(text), nil
}

// NewBotSecret makes the text of a bot's secret, in the form of Standard
// Webhooks.
func NewBotSecret() string { return "whsec_" + base64.StdEncoding.EncodeToString(random()) }

// NewHookSecret makes the text of a hook's secret.
func NewHookSecret() string { return base64.RawURLEncoding.EncodeToString(random()) }

func random() []byte {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}

// SameSecret reports whether the secret is the one that was sealed for the
// owner. An error is the sealer's: whoever runs this may have another key than
// the replicas.
func SameSecret(sealer trigger.Sealer, owner string, sealed trigger.Sealed, secret []byte) (bool, error) {
	opened, err := sealer.Open(owner, sealed)
	return err == nil && subtle.ConstantTimeCompare(opened, secret) == 1, err
}
