// Package seal encrypts the secrets that lie in a store.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/triggerd/triggerd/pkg/trigger"
)

const (
	// KeyBytes is the length of a key.
	KeyBytes = 32
	// KeyEnv names the environment variable that holds the key, in errors.
	KeyEnv = "TRIGGERD_SEAL_KEY"
	// KeyFileFlag names the flag that holds the key file's path, in errors.
	KeyFileFlag = "--seal-key-file"

	version      = "v1"
	keyFileBytes = 4 << 10
)

// ErrNoKey says that secrets can't be sealed or opened because no key is set.
var ErrNoKey = errors.New("no seal key is set, so that secrets can be neither kept nor used: make one with `export " +
	KeyEnv + "=$(openssl rand -base64 32)`, keep it, and give it to every replica, there or by " + KeyFileFlag)

var errKeyForm = fmt.Errorf("a seal key must be the base64 of %d bytes, or %d hex digits: `openssl rand -base64 %d` makes one",
	KeyBytes, 2*KeyBytes, KeyBytes)

// Sealer seals with AES-256-GCM under one key. A sealed secret reads
//
//	v1:<key id>:<base64 of nonce and ciphertext>
//
// and its version, key id and owner are authenticated: moved to another owner
// it does not open. Nonces are random: good for 2^32 seals under one key. Safe
// for concurrent use.
type Sealer struct {
	keyID string
	aead  cipher.AEAD
}

var (
	_ trigger.Sealer = (*Sealer)(nil)
	_ trigger.Sealer = Missing{}
)

// New makes a sealer from a key of KeyBytes.
func New(key []byte) (*Sealer, error) {
	if len(key) != KeyBytes {
		return nil, errKeyForm
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("seal key: %w", err)
	}
	sum := sha256.Sum256(key)
	return &Sealer{keyID: hex.EncodeToString(sum[:4]), aead: aead}, nil
}

// KeyID is the first 8 hex digits of the key's SHA-256: it tells keys apart
// and is no secret.
func (s *Sealer) KeyID() string { return s.keyID }

// Format keeps the key schedule out of every verb's output.
func (s *Sealer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "[sealer "+s.keyID+"]") }

// Seal encrypts a secret for its owner. Sealing twice gives two values.
func (s *Sealer) Seal(owner string, secret []byte) (trigger.Sealed, error) {
	box := s.aead.Seal(nil, nil, secret, s.bound(owner)) //nolint:gosec // the AEAD draws a random nonce itself
	return trigger.Sealed(version + ":" + s.keyID + ":" + base64.StdEncoding.EncodeToString(box)), nil
}

// Open returns the secret that was sealed for the owner.
func (s *Sealer) Open(owner string, sealed trigger.Sealed) ([]byte, error) {
	if sealed == "" {
		return nil, errors.New("there is no secret to open")
	}
	form, rest, _ := strings.Cut(string(sealed), ":")
	keyID, text, ok := strings.Cut(rest, ":")
	if id, err := hex.DecodeString(keyID); !ok || form != version || err != nil || len(id) != 4 {
		return nil, fmt.Errorf("not a sealed secret of the form %s:<key id>:<base64>: it was damaged, or sealed by a newer triggerd", version)
	}
	if keyID != s.keyID {
		return nil, fmt.Errorf("the secret was sealed with key %s, and the key here is %s: set %s (or %s) to key %s, or save the secret again",
			keyID, s.keyID, KeyEnv, KeyFileFlag, keyID)
	}
	box, err := base64.StdEncoding.DecodeString(text)
	// One text for one secret: the decoder is lenient about line breaks and
	// the last bits.
	if err != nil || base64.StdEncoding.EncodeToString(box) != text {
		return nil, errors.New("the sealed secret was damaged: it is not base64")
	}
	secret, err := s.aead.Open(nil, nil, box, s.bound(owner))
	if err != nil {
		return nil, fmt.Errorf("the sealed secret was changed, or sealed for another owner than %s", owner)
	}
	return secret, nil
}

// bound is what a sealed secret is authenticated with. Neither version nor key
// id holds a NUL, and the owner comes last: no two triples give the same bytes.
func (s *Sealer) bound(owner string) []byte {
	return []byte(version + "\x00" + s.keyID + "\x00" + owner)
}

// ParseKey reads a key: 64 hex digits or the base64 of 32 bytes. Space around
// it is dropped. The error does not repeat the text.
func ParseKey(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	if key, err := hex.DecodeString(text); err == nil && len(key) == KeyBytes {
		return key, nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(key) != KeyBytes || strings.ContainsAny(text, "\r\n") {
		return nil, errKeyForm
	}
	return key, nil
}

// NewKey makes a random key, as base64 that ParseKey reads.
func NewKey() string {
	key := make([]byte, KeyBytes)
	_, _ = rand.Read(key) // never fails; it ends the process instead
	return base64.StdEncoding.EncodeToString(key)
}

// Load makes the sealer of a process: from the value of TRIGGERD_SEAL_KEY if
// that is not empty, else from the file at filePath if that is not empty, else
// Missing. A file that others than its user and group may read or write is
// refused.
func Load(envValue, filePath string) (trigger.Sealer, error) {
	from, text := KeyEnv, envValue
	if text == "" {
		if filePath == "" {
			return Missing{}, nil
		}
		var err error
		if text, err = readKeyFile(filePath); err != nil {
			return nil, fmt.Errorf("seal key file: %w", err)
		}
		from = filePath
	}
	key, err := ParseKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	sealer, err := New(key)
	if err != nil {
		return nil, err
	}
	return sealer, nil
}

func readKeyFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat() // of what is read, not of what lies there by now
	if err != nil {
		return "", err
	}
	// Windows has no such modes; Go makes them up.
	if info.Mode().Perm()&0o007 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s has mode %04o, which lets everyone at it: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, keyFileBytes))
	if err != nil {
		return "", err
	}
	return string(text), nil
}

// Missing is the sealer of a process without a key: all it returns is ErrNoKey.
type Missing struct{}

// Seal returns ErrNoKey.
func (Missing) Seal(string, []byte) (trigger.Sealed, error) { return "", ErrNoKey }

// Open returns ErrNoKey.
func (Missing) Open(string, trigger.Sealed) ([]byte, error) { return nil, ErrNoKey }
