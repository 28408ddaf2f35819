package apply

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Limits of a file. Those of what a tenant has count what the store holds
// beside the file.
const (
	FileMaxBytes     = 1 << 20
	TenantsMax       = 100
	BoardsMax        = tracker.BoardsMax
	ColumnsMax       = tracker.ColumnsMax
	BotsMax          = config.BotsMax
	HooksMax         = config.HooksMax
	SubscriptionsMax = config.SubscriptionsMax
	ProjectionsMax   = trigger.ProjectionsMax
	NameMaxBytes     = tracker.NameMaxBytes
)

// File is a triggers.yaml that was read and is well formed. Whether what it
// refers to exists is for Apply to see. It is never changed once made, so
// that any number of goroutines may use it.
type File struct {
	name    string
	tenants []tenantSpec
	// lines has the line of each field that was read, by path.
	lines map[string]int
}

// The specs are what a file says, names not yet resolved. Each knows its path.
type (
	tenantSpec struct {
		path, id, name string
		boards         []boardSpec
		bots           []botSpec
		hooks          []hookSpec
		subscriptions  []subscriptionSpec
		projections    []projectionSpec
	}
	boardSpec struct {
		path, name string
		columns    []tracker.Column
	}
	botSpec struct {
		path, name, url string
		replay          trigger.ReplayClass
		secret          secretRef
	}
	hookSpec struct {
		path, name, provider, board string
		open, closed                string
		secret                      secretRef
	}
	subscriptionSpec struct {
		path       string
		board, bot string
		actors     []actorRef
		// want is the subscription but for what the names above stand for.
		want trigger.Subscription
	}
	projectionSpec struct {
		path, name, from, to string
		enabled              bool
		columns              map[string]string
	}
	// actorRef is a login, or a bot's name.
	actorRef struct{ login, bot string }
	// secretRef says where a secret's text is; an empty one that it is left as
	// it is.
	secretRef struct {
		SecretRef
		path string
		// initial: the secret of what is made. A stored one is left as it is.
		initial bool
	}
)

// lineOf returns the line of the path, or of the nearest thing around it that
// has one.
func (f *File) lineOf(path string) int {
	for path != "" {
		if line, ok := f.lines[path]; ok {
			return line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return max(1, f.lines[""])
}

func (f *File) errorf(path, format string, args ...any) Error {
	return Error{File: f.name, Line: f.lineOf(path), Path: path, Message: fmt.Sprintf(format, args...)}
}

// Parse reads a file; name is what errors call it. The error is an Errors
// with everything that was found: text that is not YAML, more than one
// document, aliases, fields that are unknown, missing, given twice or of a
// wrong type, names that are malformed or taken, and what is past a limit.
func Parse(name string, data []byte) (*File, error) {
	p := &parser{file: &File{name: name, lines: make(map[string]int)}}
	if root := p.document(data); root != nil {
		p.root(root)
	}
	if err := p.errs.orNil(); err != nil {
		return nil, err
	}
	return p.file, nil
}

// document returns the one document's top node, or nil after an error.
func (p *parser) document(data []byte) *yaml.Node {
	if len(data) > FileMaxBytes {
		p.errorAt(1, "", "the file has %d bytes, at most %d are allowed", len(data), FileMaxBytes)
		return nil
	}
	docs, err := decode(data)
	switch {
	case err != nil:
		p.syntaxError(data, err)
		return nil
	case len(docs) == 0:
		p.errorAt(1, "", "the file is empty: tenants is required")
		return nil
	case len(docs) > 1:
		p.errorAt(docs[1].Line, "", "a second document: a file is one document")
	}
	return docs[0].Content[0]
}

// decode returns the documents, two at the most.
func decode(data []byte) (docs []yaml.Node, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for len(docs) < 2 {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return docs, nil
		case err != nil:
			return nil, err
		}
		docs = append(docs, doc)
	}
	return docs, nil
}

var syntaxLine = regexp.MustCompile(`^yaml: (line \d+: )?`)

// syntaxError reports what the YAML parser says, but not where it says so: it
// names the line before the beginning of the block, often far from the fault,
// or none. The fault is on the first line that makes the error what it is: all
// shorter beginnings of the file are read otherwise.
func (p *parser) syntaxError(data []byte, err error) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	line := 1 + sort.Search(len(lines)-1, func(i int) bool {
		_, shorter := decode(bytes.Join(lines[:i+1], nil))
		return shorter != nil && shorter.Error() == err.Error()
	})
	msg := syntaxLine.ReplaceAllString(err.Error(), "not YAML: ")
	if strings.Contains(msg, "unknown anchor") {
		// The one message that repeats a value, which could be a secret that
		// begins with an asterisk.
		msg = aliasMessage
	}
	p.errorAt(line, "", "%s", msg)
}
