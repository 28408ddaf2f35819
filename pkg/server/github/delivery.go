// Package github turns GitHub's webhook deliveries into changes of cards. It
// does no I/O.
package github

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Provider names this forge on cards and hooks.
const Provider = "github"

// BodyMaxBytes is the most that a delivery's body may hold: GitHub's own cap.
const BodyMaxBytes = 25 << 20

// Headers of a delivery.
const (
	HeaderEvent     = "X-GitHub-Event"
	HeaderDelivery  = "X-GitHub-Delivery"
	HeaderSignature = "X-Hub-Signature-256"
)

// ErrSignature says that a delivery is not signed with the hook's secret.
var ErrSignature = errors.New("the signature does not match")

// Sign returns the X-Hub-Signature-256 of a body.
func Sign(secret, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// Verify checks a body's signature in constant time.
func Verify(secret, body []byte, signature string) error {
	if !hmac.Equal([]byte(Sign(secret, body)), []byte(signature)) {
		return ErrSignature
	}
	return nil
}

// IssueDelivery is what an `issues` delivery says.
type IssueDelivery struct {
	Action     string      `json:"action"`
	Issue      *Issue      `json:"issue"`
	Label      *Label      `json:"label"`
	Assignee   *User       `json:"assignee"`
	Changes    Changes     `json:"changes"`
	Repository *Repository `json:"repository"`
	Sender     User        `json:"sender"`
}

// ByBot reports whether a bot sent it: a GitHub App. A bot that uses a
// person's token looks like that person.
func (d *IssueDelivery) ByBot() bool { return d.Sender.Type == "Bot" }

// Issue is the whole issue as of a delivery.
type Issue struct {
	Number    int64     `json:"number"`
	Title     string    `json:"title"`
	Body      string    `json:"body"` // null comes as empty
	State     string    `json:"state"`
	HTMLURL   string    `json:"html_url"`
	Labels    []Label   `json:"labels"`
	Assignees []User    `json:"assignees"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Label is a label.
type Label struct {
	Name string `json:"name"`
}

// User is an account; Type is "User", "Bot" or "Organization".
type User struct {
	Login string `json:"login"`
	Type  string `json:"type"`
}

// Repository is where the issue is.
type Repository struct {
	FullName string `json:"full_name"`
}

// Changes holds what an `edited` delivery says was edited.
type Changes struct {
	Title *struct{} `json:"title"`
	Body  *struct{} `json:"body"`
}

// InputError refuses a delivery that can't be a GitHub delivery; it names what
// is wrong and repeats no value.
type InputError struct{ Message string }

func (e *InputError) Error() string { return e.Message }

// ParseIssue reads an `issues` delivery.
func ParseIssue(body []byte) (*IssueDelivery, error) {
	if !utf8.Valid(body) {
		return nil, &InputError{"the body is not UTF-8"}
	}
	var d IssueDelivery
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, jsonError(err)
	}
	switch {
	case d.Action == "":
		return nil, &InputError{"action: is missing"}
	case d.Issue == nil || d.Issue.Number <= 0:
		return nil, &InputError{"issue.number: is missing"}
	case d.Repository == nil || d.Repository.FullName == "":
		return nil, &InputError{"repository.full_name: is missing"}
	case d.Issue.UpdatedAt.IsZero():
		return nil, &InputError{"issue.updated_at: is missing"}
	case d.Issue.State != stateOpen && d.Issue.State != stateClosed:
		return nil, &InputError{"issue.state: must be open or closed"}
	case d.Sender.Login == "":
		return nil, &InputError{"sender.login: is missing"}
	case (d.Action == actionLabeled || d.Action == actionUnlabeled) && (d.Label == nil || d.Label.Name == ""):
		return nil, &InputError{"label.name: is missing"}
	}
	return &d, nil
}

// CheckJSON refuses a body that isn't a JSON object.
func CheckJSON(body []byte) error {
	var o map[string]json.RawMessage
	if err := json.Unmarshal(body, &o); err != nil {
		return jsonError(err)
	}
	if o == nil {
		return &InputError{"the body is not a JSON object"}
	}
	return nil
}

func jsonError(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) && typ.Field != "" {
		return &InputError{fmt.Sprintf("%s: must not be a JSON %s", typ.Field, kindOf(typ.Value))}
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return &InputError{fmt.Sprintf("the body is not JSON: byte %d", syntax.Offset)}
	}
	return &InputError{"the body is not a JSON object of the expected form"}
}

// kindOf drops the value that encoding/json puts behind "number".
func kindOf(v string) string {
	kind, _, _ := strings.Cut(v, " ")
	return kind
}

// cardNamespace is the namespace of the cards' UUIDs.
var cardNamespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/triggerd/triggerd/card"))

// CardID is the id of the card that mirrors an issue: a UUIDv5 of (tenant,
// provider, repo, number). Repository names ignore case, as GitHub does.
func CardID(tenantID, repo string, number int64) string {
	name := strings.Join([]string{tenantID, Provider, strings.ToLower(repo), strconv.FormatInt(number, 10)}, "\x00")
	return uuid.NewSHA1(cardNamespace, []byte(name)).String()
}
