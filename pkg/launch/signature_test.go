package launch

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestParseSecret(t *testing.T) {
	t.Parallel()
	whsec := func(n int) string { return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb}, n)) }
	for _, n := range []int{24, 25, 32, 64} {
		key, err := ParseSecret(whsec(n))
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{0xfb}, n), key)
	}
	key, err := ParseSecret("sixteen bytes !!")
	require.NoError(t, err)
	require.Equal(t, []byte("sixteen bytes !!"), key)

	for _, bad := range []string{
		"", "hidden", "fifteen hidden!", "whsec_", "whsec_hidden-hidden-hidden-hidden-hidden",
		whsec(23), whsec(65), whsec(32)[:20] + "\n" + whsec(32)[20:], whsec(32) + "\n", strings.TrimRight(whsec(32), "="),
	} {
		_, err := ParseSecret(bad)
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, bad)
		require.Equal(t, "secret", fe.Field)
		require.Contains(t, fe.Want, "24 to 64 bytes")
		require.NotContains(t, fe.Error(), "hidden")
		require.NotContains(t, fe.Error(), "+/v7")
	}
}

// The example of the Standard Webhooks specification's reference libraries.
func TestVerifyKnownAnswer(t *testing.T) {
	t.Parallel()
	secret, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	header := http.Header{}
	header.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("webhook-timestamp", "1614265330")
	header.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	require.NoError(t, Verify(secret, header, []byte(`{"test": 2432232314}`), time.Unix(1614265330, 0), 0))
}

func TestVerify(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_772_366_400, 0)
	body := []byte(`{"type":"launch"}`)
	good := signature(testSecret, testKey, "1772366400", body)
	const tolerance = 5 * time.Minute
	type input struct {
		secret              []byte
		id, timestamp, sigs string
		body                []byte
		now                 time.Time
	}
	check := func(change func(*input)) error {
		in := input{testSecret, testKey, "1772366400", good, body, now}
		change(&in)
		header := http.Header{}
		for name, value := range map[string]string{"webhook-id": in.id, "webhook-timestamp": in.timestamp, "webhook-signature": in.sigs} {
			if value != "" {
				header.Set(name, value)
			}
		}
		return Verify(in.secret, header, in.body, in.now, tolerance)
	}
	for name, change := range map[string]func(*input){
		"as sent":              func(*input) {},
		"as old as allowed":    func(in *input) { in.now = now.Add(tolerance) },
		"as early as allowed":  func(in *input) { in.now = now.Add(-tolerance) },
		"second of three":      func(in *input) { in.sigs = "v1,AAAA " + good + " v2,xyz" },
		"after others' errors": func(in *input) { in.sigs = "v1 v1, v1,% v1a,x  " + good },
	} {
		require.NoError(t, check(change), name)
	}
	for name, change := range map[string]func(*input){
		"other secret":        func(in *input) { in.secret = []byte("another secret of 32 bytes......") },
		"no secret":           func(in *input) { in.secret = nil },
		"other id":            func(in *input) { in.id += "x" },
		"no id":               func(in *input) { in.id = "" },
		"other timestamp":     func(in *input) { in.timestamp = "1772366401" },
		"no timestamp":        func(in *input) { in.timestamp = "" },
		"signed timestamp":    func(in *input) { in.timestamp = "+1772366400" },
		"fraction":            func(in *input) { in.timestamp = "1772366400.0" },
		"timestamp past all":  func(in *input) { in.timestamp = "18446744073709551615" },
		"too old":             func(in *input) { in.now = now.Add(tolerance + time.Second) },
		"too early":           func(in *input) { in.now = now.Add(-tolerance - time.Second) },
		"other body":          func(in *input) { in.body = []byte(`{"type":"lunch"}`) },
		"no signature":        func(in *input) { in.sigs = "" },
		"other version":       func(in *input) { in.sigs = "v2" + strings.TrimPrefix(good, "v1") },
		"cut signature":       func(in *input) { in.sigs = "v1," + base64.StdEncoding.EncodeToString(make([]byte, 16)) },
		"empty signature":     func(in *input) { in.sigs = "v1," },
		"signature after dot": func(in *input) { in.id, in.body = "acme", []byte("x") },
	} {
		err := check(change)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), string(testSecret), name)
		require.NotContains(t, err.Error(), good[3:], name)
	}
}
