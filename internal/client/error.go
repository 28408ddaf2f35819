package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Error is an answer that refuses, or that is no answer of the API.
type Error struct {
	Status int
	// Problem tells a problem document of the API (RFC 9457) from what a proxy,
	// or another server, answered.
	Problem bool
	Detail  string
	Fields  []Field
	// RetryAfter is how long the server asks to wait; negative if it does not
	// ask.
	RetryAfter time.Duration
	// Location is where a redirect leads: scheme and host alone.
	Location string
	// Host is who answered.
	Host string
}

// Field is one field that is wrong.
type Field struct {
	Field   string `json:"field"`
	Message string `json:"message"`
	// Line is where it stands, of a file that was sent; 0 if it is none.
	Line int `json:"line,omitempty"`
}

// Error is what the API said, in one line.
func (e *Error) Error() string {
	if !e.Problem {
		return fmt.Sprintf("%s answered %d %s", e.Host, e.Status, http.StatusText(e.Status))
	}
	parts := make([]string, 0, len(e.Fields))
	for _, f := range e.Fields {
		parts = append(parts, f.Field+": "+f.Message)
	}
	if len(parts) == 0 {
		return cmp.Or(e.Detail, http.StatusText(e.Status))
	}
	return strings.Join(parts, "; ")
}

// again reports whether the call may be repeated after RetryAfter.
func (e *Error) again() bool {
	return (e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests) && e.RetryAfter >= 0 && e.RetryAfter <= waitMax
}

func newError(resp *http.Response, text []byte) *Error {
	e := &Error{Status: resp.StatusCode, RetryAfter: -1, Host: resp.Request.URL.Host}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	if u, err := url.Parse(resp.Header.Get("Location")); err == nil && u.Host != "" {
		e.Location = u.Scheme + "://" + u.Host
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media != "application/problem+json" {
		return e
	}
	var doc struct {
		Detail string  `json:"detail"`
		Errors []Field `json:"errors"`
	}
	if json.Unmarshal(text, &doc) == nil {
		e.Problem, e.Detail, e.Fields = true, doc.Detail, doc.Errors
	}
	return e
}
