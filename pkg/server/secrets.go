package server

import (
	"context"
	"errors"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/internal/seal"
	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// SecretBody has a new secret; no body: one is made.
type SecretBody struct {
	Secret string `json:"secret,omitempty" maxLength:"4096" doc:"the new secret; one is made, and shown this once, if it is missing"`
}

func (b *SecretBody) secret() string {
	if b == nil {
		return ""
	}
	return b.Secret
}

// secrets is how the secrets of one kind of thing are made and kept.
type secrets[T any] struct {
	*API
	owner  func(tenantID, id string) string
	parse  func(text string) ([]byte, error)
	make   func() string
	fields func(v *T) secretFields
}

// secretFields are where a thing has its secrets.
type secretFields struct {
	secret, next *trigger.Sealed
	since        *time.Time
}

// seal seals the secret that was given, or a new one, which is returned too.
func (s *secrets[T]) seal(tenantID, id, given string) (sealed trigger.Sealed, made string, err error) {
	text := given
	if given == "" {
		made = s.make()
		text = made
	}
	key, err := s.parse(text)
	if err != nil {
		return "", "", err
	}
	sealed, err = s.Sealer.Seal(s.owner(tenantID, id), key)
	if errors.Is(err, seal.ErrNoKey) {
		return "", "", huma.Error409Conflict("the server has no seal key, so that it can't keep a secret: set " + seal.KeyEnv + " or " + seal.KeyFileFlag)
	}
	return sealed, made, err
}

// begin begins a rotation (ADR 0032), unless the given secret's has begun. It
// returns the secret that it made, if it made one.
func (s *secrets[T]) begin(v *T, tenantID, id, given string) (made string, write bool, err error) {
	f := s.fields(v)
	rotating := *f.next != ""
	if given != "" {
		key, err := s.parse(given)
		if err != nil {
			return "", false, err
		}
		is := *f.secret
		if rotating {
			is = *f.next
		}
		same, err := config.SameSecret(s.Sealer, s.owner(tenantID, id), is, key)
		switch {
		case err != nil:
			return "", false, s.unopened(err)
		case same && rotating:
			return "", false, nil
		case same:
			return "", false, tracker.Fieldf("secret", "must be another one than it has")
		}
	}
	if rotating {
		return "", false, huma.Error409Conflict("its secret is being rotated: end that first (DELETE secret/previous), or give it up (DELETE secret/next)")
	}
	// A key that does not open what is there is not the one that the replicas
	// have.
	if _, err := s.Sealer.Open(s.owner(tenantID, id), *f.secret); err != nil {
		return "", false, s.unopened(err)
	}
	sealed, made, err := s.seal(tenantID, id, given)
	if err != nil {
		return "", false, err
	}
	*f.next, *f.since = sealed, s.Store.Now()
	return made, true, nil
}

func (s *secrets[T]) unopened(err error) error {
	s.Logger.Warn().Err(err).Msg("API: a secret could not be opened with the seal key")
	return huma.Error409Conflict("the secret that it has can't be opened with the server's seal key: set the key that it was sealed with")
}

// end ends a rotation: with the next secret, or without.
func (s *secrets[T]) end(v *T, next bool) error {
	f := s.fields(v)
	if *f.next == "" {
		return huma.Error409Conflict("its secret is not being rotated")
	}
	if next {
		*f.secret = *f.next
	}
	*f.next, *f.since = "", time.Time{}
	return nil
}

// rotating is a kind of thing that has a secret.
type rotating[T, V any] struct {
	*configured[T, V]
	secrets secrets[T]
	// stamp makes a thing ready to be saved.
	stamp func(v *T, now time.Time)
}

// rotate begins a rotation, and returns the secret that it made, if it made one.
func (r *rotating[T, V]) rotate(ctx context.Context, tenantID, id string, m *MatchInput, body *SecretBody) (out *tagged[V], made string, err error) {
	out, err = r.edit(ctx, tenantID, id, m, false, func(next *T) (write bool, err error) {
		if made, write, err = r.secrets.begin(next, tenantID, id, body.secret()); write {
			r.stamp(next, r.Store.Now())
		}
		return write, err
	})
	return out, made, err
}

// endRotation ends one: with the next secret, or without.
func (r *rotating[T, V]) endRotation(ctx context.Context, tenantID, id string, m *MatchInput, withNext bool) (*none, error) {
	_, err := r.edit(ctx, tenantID, id, m, false, func(next *T) (bool, error) {
		if err := r.secrets.end(next, withNext); err != nil {
			return false, err
		}
		r.stamp(next, r.Store.Now())
		return true, nil
	})
	return nil, err
}
