package launch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
)

func TestCheckURL(t *testing.T) {
	t.Parallel()
	base := "https://bots.example/"
	for _, good := range []string{
		"http://localhost", "http://127.0.0.1:8080/launch", "https://[::1]:8443/x", "http://[fe80::1%25eth0]/",
		"HTTPS://Bots.Example/a/b?token=x&y=%20", "http://my_bot.internal:65535", "http://bücher.example/ä?ö",
		base + strings.Repeat("a", URLMaxBytes-len(base)),
	} {
		require.NoError(t, CheckURL(good), good)
	}
	for _, bad := range []string{
		"", "x-hidden", "/x-hidden", "//x-hidden/launch", "ftp://x-hidden/", "http:x-hidden", "http://", "https:///x-hidden",
		"http://:80/x-hidden", "http://x-hidden:0/", "http://x-hidden:65536/", "http://x-hidden:http/", "http://x-hidden:/",
		"http://user:x-hidden@host/", "http://x-hidden@host/", "http://@x-hidden/", "http://host/#x-hidden", "http://x-hidden/#",
		" http://x-hidden/", "http://x-hidden/ ", "http://x-hidden/a b", "http://x-hidden/\n", "http://x-hidden/\x00", "http://x-hidden/\xff",
		"http://x-hid%den/", "http://x-hid<den/", "http://x-hid\u202eden/", "http://[x-hidden]/", "http://" + strings.Repeat("x-hidden.", 30) + "com/",
		base + strings.Repeat("a", URLMaxBytes-len(base)+1),
	} {
		var fe *tracker.FieldError
		require.ErrorAs(t, CheckURL(bad), &fe, bad)
		require.Equal(t, "url", fe.Field)
		require.NotContains(t, fe.Error(), "hid", bad)
	}
}

func FuzzCheckURL(f *testing.F) {
	f.Add("https://bots.example:8443/launch?token=x")
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := parseURL(raw)
		if err != nil {
			return
		}
		if u.Host == "" || u.User != nil || strings.ContainsAny(u.Host, "@/?# ") {
			t.Fatalf("%q: host %q", raw, u.Host)
		}
	})
}
