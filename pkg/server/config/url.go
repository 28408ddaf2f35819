package config

import (
	"strings"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// hiddenQuery stands for the query of a bot's URL where the URL is shown: that
// is where a token belongs (docs/bots.md).
const hiddenQuery = "?***"

// ShowURL returns a bot's URL without what may be secret in it.
func ShowURL(url string) string {
	if at := strings.IndexByte(url, '?'); at >= 0 {
		return url[:at] + hiddenQuery
	}
	return url
}

// KeepURL returns the URL that is meant by one that is given for a bot: one
// that was given as it is shown stands for the stored one. If its hidden query
// is that of another URL, or of none, the error is a *tracker.FieldError on
// "url".
func KeepURL(stored, given string) (string, error) {
	switch {
	case !strings.HasSuffix(given, hiddenQuery):
		return given, nil
	case stored != "" && given == ShowURL(stored):
		return stored, nil
	}
	return "", tracker.Fieldf("url", "give the whole URL: what stands for its query is known only with the URL that the bot has")
}
