package launch

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	// URLMaxBytes is the longest URL that a bot may have.
	URLMaxBytes = 2048

	hostMaxBytes = 253 // of a DNS name
)

// CheckURL reports whether a bot can be reached at raw: an absolute http or
// https URL with a host, without user info and fragment, of at most
// URLMaxBytes. Its error is a *tracker.FieldError on "url". The host is the
// only part of a URL that errors repeat: a token belongs in the query.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// parseURL drops url.Parse's error, which repeats the URL.
func parseURL(raw string) (*url.URL, error) {
	refuse := func(want string, args ...any) (*url.URL, error) { return nil, tracker.Fieldf("url", want, args...) }
	if raw == "" {
		return refuse("is required")
	}
	if len(raw) > URLMaxBytes {
		return refuse("at most %d bytes", URLMaxBytes)
	}
	if !utf8.ValidString(raw) || strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
		return refuse("must be UTF-8 without spaces and control characters")
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" {
		return refuse("must be an absolute http:// or https:// URL")
	}
	if u.User != nil {
		return refuse("must not hold a user name or password: requests are signed with the bot's secret")
	}
	if strings.Contains(raw, "#") {
		return refuse("must not have a fragment (#…)")
	}
	if !hostValid(u.Hostname()) {
		return refuse("must name a host: a DNS name or an IP address")
	}
	if strings.HasSuffix(u.Host, ":") {
		return refuse("must have a port after the host's colon")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return refuse("must have a port from 1 to 65535")
		}
	}
	return u, nil
}

func hostValid(host string) bool {
	if host == "" || len(host) > hostMaxBytes {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !strings.ContainsRune("-_.", r)
	})
}
