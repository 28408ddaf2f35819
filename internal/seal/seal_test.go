package seal

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const owner = "acme/bot/implementer"

var secret = []byte("whsec-of-the-bot")

func newSealer(t *testing.T, fill byte) *Sealer {
	t.Helper()
	s, err := New(bytes.Repeat([]byte{fill}, KeyBytes))
	require.NoError(t, err)
	return s
}

func TestSealAndOpen(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	for _, plain := range [][]byte{secret, {}, {0}, bytes.Repeat([]byte{0xff}, 4096)} {
		sealed, err := s.Seal(owner, plain)
		require.NoError(t, err)
		got, err := s.Open(owner, sealed)
		require.NoError(t, err)
		require.True(t, bytes.Equal(plain, got))
		again, err := s.Seal(owner, plain)
		require.NoError(t, err)
		require.NotEqual(t, string(sealed), string(again), "a nonce was used twice")
	}
}

// The stored form outlives versions: opened here by the standard library.
func TestSealedForm(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	sealed, err := s.Seal(owner, secret)
	require.NoError(t, err)

	key := bytes.Repeat([]byte{1}, KeyBytes)
	sum := sha256.Sum256(key)
	keyID := hex.EncodeToString(sum[:])[:8]
	require.Equal(t, keyID, s.KeyID())
	text, ok := strings.CutPrefix(string(sealed), "v1:"+keyID+":")
	require.True(t, ok)
	box, err := base64.StdEncoding.DecodeString(text)
	require.NoError(t, err)
	require.Len(t, box, 12+len(secret)+16)
	block, err := aes.NewCipher(key)
	require.NoError(t, err)
	gcm, err := cipher.NewGCM(block)
	require.NoError(t, err)
	plain, err := gcm.Open(nil, box[:12], box[12:], []byte("v1\x00"+keyID+"\x00"+owner))
	require.NoError(t, err)
	require.Equal(t, secret, plain)
}

func TestOtherOwnerDoesNotOpen(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	sealed, err := s.Seal(owner, secret)
	require.NoError(t, err)
	for _, other := range []string{"", "acme/bot/implementer2", "acme/bot/implemente", "acme/hook/implementer", "evil/bot/implementer", owner + "\x00"} {
		got, err := s.Open(other, sealed)
		require.ErrorContains(t, err, "another owner", other)
		require.Nil(t, got)
	}
}

func TestOtherKeyDoesNotOpen(t *testing.T) {
	t.Parallel()
	a, b := newSealer(t, 1), newSealer(t, 2)
	sealed, err := a.Seal(owner, secret)
	require.NoError(t, err)
	_, err = b.Open(owner, sealed)
	for _, want := range []string{a.KeyID(), b.KeyID(), "TRIGGERD_SEAL_KEY", "--seal-key-file"} {
		require.ErrorContains(t, err, want)
	}
	// With the other key's id put in its place, the ciphertext tells.
	moved := trigger.Sealed(strings.Replace(string(sealed), a.KeyID(), b.KeyID(), 1))
	_, err = b.Open(owner, moved)
	require.ErrorContains(t, err, "was changed")
}

func TestNoFlippedBitOpens(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	for n := range 4 { // every padding of base64
		sealed, err := s.Seal(owner, secret[:len(secret)-n])
		require.NoError(t, err)
		for i := range len(sealed) {
			for bit := range 8 {
				flipped := []byte(sealed)
				flipped[i] ^= 1 << bit
				_, err := s.Open(owner, trigger.Sealed(flipped))
				require.Error(t, err, "byte %d, bit %d", i, bit)
				require.NotContains(t, err.Error(), string(secret))
				require.NotContains(t, err.Error(), string(sealed[20:]))
			}
		}
		// The same in the bytes that base64 stands for.
		prefix := "v1:" + s.KeyID() + ":"
		box, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(string(sealed), prefix))
		require.NoError(t, err)
		for i := range box {
			for bit := range 8 {
				flipped := bytes.Clone(box)
				flipped[i] ^= 1 << bit
				_, err := s.Open(owner, trigger.Sealed(prefix+base64.StdEncoding.EncodeToString(flipped)))
				require.ErrorContains(t, err, "was changed", "byte %d, bit %d", i, bit)
			}
		}
	}
}

func TestMalformedDoesNotOpenAndIsNotEchoed(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	sealed, err := s.Seal(owner, secret)
	require.NoError(t, err)
	prefix := "v1:" + s.KeyID() + ":"
	for _, bad := range []string{
		"", "hidden", "v1", "v1:", "v1:hidden", "v1:hidden:AAAA", "v1:" + s.KeyID(), prefix, prefix + "hid", prefix + "AAAA",
		"v2" + string(sealed[2:]), ":" + string(sealed), string(sealed) + "\n", string(sealed[:30]) + "\n" + string(sealed[30:]),
		string(sealed) + ":hidden", string(sealed[:len(sealed)-4]),
	} {
		_, err := s.Open(owner, trigger.Sealed(bad))
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "hid")
	}
}

func TestSealerPrintsNoKey(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 0xab)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		require.Equal(t, "[sealer "+s.KeyID()+"]", fmt.Sprintf(verb, s))
	}
}

func TestSealerIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	s := newSealer(t, 1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				sealed, err := s.Seal(owner, secret)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := s.Open(owner, sealed); err != nil || !bytes.Equal(got, secret) {
					t.Error(got, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestParseKey(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte{0xfb}, KeyBytes)
	b64 := base64.StdEncoding.EncodeToString(want)
	hexed := hex.EncodeToString(want)
	for _, good := range []string{b64, hexed, strings.ToUpper(hexed), " " + b64 + "\r\n", "\t" + hexed + "\n"} {
		key, err := ParseKey(good)
		require.NoError(t, err, good)
		require.Equal(t, want, key)
	}
	for _, bad := range []string{
		"", "hidden", hexed[:62], hexed + "00", b64[:43], b64[:20] + "\n" + b64[20:], base64.URLEncoding.EncodeToString(want),
		base64.StdEncoding.EncodeToString(want[:31]), base64.StdEncoding.EncodeToString(append(want, 0)), strings.Repeat("hidden", 8),
	} {
		_, err := ParseKey(bad)
		require.ErrorContains(t, err, "openssl rand -base64 32", bad)
		for _, part := range []string{"hidden", "fbfb", "+/v7", "-_v7"} {
			require.NotContains(t, err.Error(), part)
		}
	}
	for _, n := range []int{0, 16, 24, 31, 33, 64} {
		_, err := New(make([]byte, n))
		require.Error(t, err)
	}
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	a, b := NewKey(), NewKey()
	require.NotEqual(t, a, b)
	key, err := ParseKey(a)
	require.NoError(t, err)
	require.Len(t, key, KeyBytes)
}

func TestLoad(t *testing.T) {
	t.Parallel()
	keyA, keyB := NewKey(), NewKey()
	file := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "seal.key")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chmod(path, mode)) // whatever the umask is
		return path
	}
	id := func(key string) string {
		raw, err := ParseKey(key)
		require.NoError(t, err)
		s, err := New(raw)
		require.NoError(t, err)
		return s.KeyID()
	}

	for _, c := range []struct{ env, file, want string }{
		{keyA, "", keyA},
		{keyA, file(keyB, 0o600), keyA},
		{keyA, "/does/not/exist", keyA},
		{"", file(keyB+"\n", 0o600), keyB},
		{"", file(keyB, 0o400), keyB},
		{"", file(keyB, 0o640), keyB},
	} {
		s, err := Load(c.env, c.file)
		require.NoError(t, err)
		require.Equal(t, id(c.want), s.(*Sealer).KeyID())
	}

	s, err := Load("", "")
	require.NoError(t, err)
	require.Equal(t, Missing{}, s)

	for _, mode := range []os.FileMode{0o644, 0o604, 0o602, 0o601, 0o666} {
		path := file(keyA, mode)
		s, err := Load("", path)
		require.ErrorContains(t, err, "chmod 600 "+path)
		require.Nil(t, s)
	}
	for _, c := range []struct{ env, file, want string }{
		{"hidden", "", KeyEnv},
		{" ", file(keyA, 0o600), KeyEnv},
		{"", file("hidden", 0o600), "seal.key"},
		{"", file("", 0o600), "seal.key"},
		{"", file(keyA+strings.Repeat("hidden", 2000), 0o600), "seal.key"},
		{"", "/does/not/exist", "/does/not/exist"},
		{"", "/", "/"},
	} {
		s, err := Load(c.env, c.file)
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "hidden")
		require.NotContains(t, err.Error(), keyA)
		require.Nil(t, s)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	_, err := Missing{}.Seal(owner, secret)
	require.ErrorIs(t, err, ErrNoKey)
	require.ErrorContains(t, err, "export TRIGGERD_SEAL_KEY=$(openssl rand -base64 32)")
	require.ErrorContains(t, err, "--seal-key-file")
	_, err = Missing{}.Open(owner, "v1:00000000:AAAA")
	require.ErrorIs(t, err, ErrNoKey)
}
