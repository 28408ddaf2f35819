package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Problem is an error of the API (RFC 9457). It names fields and what is
// allowed in them, and never repeats a value: that may be a secret.
type Problem struct {
	Title  string         `json:"title"`
	Status int            `json:"status"`
	Detail string         `json:"detail,omitempty"`
	Errors []ProblemField `json:"errors,omitempty"`
}

// ProblemField is one field that is wrong.
type ProblemField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
	// Line is where the field stands in a file that was sent.
	Line int `json:"line,omitempty"`
}

// Error implements error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus implements huma.StatusError.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType implements huma.ContentTypeFilter.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// retryAfter is how long a caller is asked to wait, in seconds, when the store
// does not answer.
const retryAfter = "5"

// GetHeaders implements huma.HeadersError.
func (p *Problem) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {retryAfter}}
	}
	return nil
}

func newProblem(status int, detail string, errs ...error) *Problem {
	p := &Problem{Title: http.StatusText(status), Status: status, Detail: detail}
	for _, err := range errs {
		var field *tracker.FieldError
		var detailer huma.ErrorDetailer
		switch {
		case errors.As(err, &field):
			p.Errors = append(p.Errors, ProblemField{Field: field.Field, Message: field.Want})
		case errors.As(err, &detailer):
			d := detailer.ErrorDetail()
			if decoding(d.Message) {
				d.Message = "must be as the operation's schema has it"
			}
			p.Errors = append(p.Errors, ProblemField{Field: d.Location, Message: d.Message})
		}
		// Any other error is the server's own affair.
	}
	return p
}

// decoding reports whether a message of huma's is one of encoding/json, or of a
// type that it decodes: these repeat what they could not read.
func decoding(message string) bool {
	for _, prefix := range []string{"json: ", "parsing time ", "Time.UnmarshalJSON", "invalid character ", "invalid value: "} {
		if strings.HasPrefix(message, prefix) {
			return true
		}
	}
	return false
}

// Variables of huma: no list of the API is null. And it asks NewError for every
// error; its own repeats the values.
func init() {
	huma.DefaultArrayNullable = false
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		if status == http.StatusUnsupportedMediaType {
			// huma names the type that came, not the one that is wanted.
			return newProblem(status, "the body must be JSON, with Content-Type: application/json")
		}
		return newProblem(status, msg, errs...)
	}
}

func writeProblem(w http.ResponseWriter, status int, detail string, errs ...error) {
	w.Header().Set("Content-Type", "application/problem+json")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(newProblem(status, detail, errs...))
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
