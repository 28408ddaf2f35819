package launch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Headers of Standard Webhooks (https://www.standardwebhooks.com).
const (
	HeaderWebhookID        = "webhook-id"
	HeaderWebhookTimestamp = "webhook-timestamp"
	HeaderWebhookSignature = "webhook-signature"
)

// VerifyToleranceDefault is a sensible tolerance for Verify.
const VerifyToleranceDefault = 5 * time.Minute

const (
	secretPrefix      = "whsec_"
	secretMinBytes    = 24 // of a whsec_ secret, by Standard Webhooks
	secretMaxBytes    = 64
	secretRawMinBytes = 16

	signatureVersion = "v1,"
)

// ParseSecret returns the key that a bot's secret stands for: what is base64
// after "whsec_" (24 to 64 bytes), or the bytes of any other string (at least
// 16). Its error is a *tracker.FieldError on "secret".
func ParseSecret(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(s, secretPrefix)
	if !ok {
		if len(s) < secretRawMinBytes {
			return nil, tracker.Fieldf("secret", "must be %s<base64 of %d to %d bytes>, or any other text of at least %d bytes",
				secretPrefix, secretMinBytes, secretMaxBytes, secretRawMinBytes)
		}
		return []byte(s), nil
	}
	key, err := base64.StdEncoding.DecodeString(encoded)
	// The decoder skips line breaks; a receiver's may not.
	if err != nil || strings.ContainsAny(encoded, "\r\n") || len(key) < secretMinBytes || len(key) > secretMaxBytes {
		return nil, tracker.Fieldf("secret", "after %s there must be the base64 (with padding) of %d to %d bytes",
			secretPrefix, secretMinBytes, secretMaxBytes)
	}
	return key, nil
}

// signature is the value of webhook-signature.
func signature(secret []byte, id, timestamp string, body []byte) string {
	return signatureVersion + base64.StdEncoding.EncodeToString(mac(secret, id, timestamp, body))
}

func mac(secret []byte, id, timestamp string, body []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(id + "." + timestamp + "."))
	m.Write(body)
	return m.Sum(nil)
}

// Verify is for receivers: it checks that body was signed with the secret (raw
// key bytes, see ParseSecret), no longer than tolerance from now. One valid
// signature of several is enough; versions other than v1 are passed over.
// Errors hold neither secret nor signature. A receiver still has to remember
// the webhook-id: an attempt that is made again carries the same one.
func Verify(secret []byte, header http.Header, body []byte, now time.Time, tolerance time.Duration) error {
	if len(secret) == 0 {
		return errors.New("verify: no secret")
	}
	id, timestamp := header.Get(HeaderWebhookID), header.Get(HeaderWebhookTimestamp)
	signatures := strings.Fields(header.Get(HeaderWebhookSignature))
	if id == "" || timestamp == "" || len(signatures) == 0 {
		return fmt.Errorf("verify: the headers %s, %s and %s are required",
			HeaderWebhookID, HeaderWebhookTimestamp, HeaderWebhookSignature)
	}
	seconds, err := strconv.ParseUint(timestamp, 10, 40)
	if err != nil {
		return fmt.Errorf("verify: %s must be Unix seconds", HeaderWebhookTimestamp)
	}
	if age := now.Sub(time.Unix(int64(seconds), 0)); age.Abs() > tolerance {
		return fmt.Errorf("verify: %s is more than %s from now", HeaderWebhookTimestamp, tolerance)
	}
	want := mac(secret, id, timestamp, body)
	for _, s := range signatures {
		encoded, ok := strings.CutPrefix(s, signatureVersion)
		if !ok {
			continue
		}
		if got, err := base64.StdEncoding.DecodeString(encoded); err == nil && hmac.Equal(got, want) {
			return nil
		}
	}
	return fmt.Errorf("verify: no signature in %s fits", HeaderWebhookSignature)
}
