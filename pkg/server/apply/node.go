package apply

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	aliasMessage = "an alias (*name): aliases are not part of this format; quote a text that begins with an asterisk"
	notHere      = "not part of this version"
)

// later are fields of the design that this version does not have.
var later = []string{"schedules"}

// parser walks the nodes of one document. It works on nodes instead of
// decoding into structs: only those know the line of everything.
type parser struct {
	file *File
	errs Errors
}

func (p *parser) errorAt(line int, path, format string, args ...any) {
	p.errs = append(p.errs, Error{File: p.file.name, Line: line, Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *parser) errorf(path, format string, args ...any) {
	p.errs = append(p.errs, p.file.errorf(path, format, args...))
}

// is reports whether the node has the wanted tag, and says so if not. Tags
// tell a text from what only looks like one: 12 is !!int, "12" is !!str.
func (p *parser) is(n *yaml.Node, path, tag, want string) bool {
	switch {
	case n.Kind == yaml.AliasNode:
		p.errorf(path, "%s", aliasMessage)
	case n.ShortTag() == tag:
		return true
	case n.ShortTag() == "!!null":
		p.errorf(path, "has no value: must be %s", want)
	case tag == "!!str" && n.Kind == yaml.ScalarNode:
		p.errorf(path, "must be %s: quote it", want)
	default:
		p.errorf(path, "must be %s", want)
	}
	return false
}

// object is a mapping with known fields. Of one that was not a mapping every
// read yields nothing and no further error.
type object struct {
	p      *parser
	path   string
	ok     bool
	fields map[string]*yaml.Node
}

// object reads a mapping and refuses what the schema does not have.
func (p *parser) object(n *yaml.Node, path string, s schema) object {
	o := object{p: p, path: path, fields: make(map[string]*yaml.Node)}
	if !p.is(n, path, "!!map", "a mapping") {
		return o
	}
	o.ok = true
	p.pairs(n, path, s.secret, func(key, value *yaml.Node, at string) {
		switch {
		case s.has(key.Value):
			p.file.lines[at] = key.Line
			o.fields[key.Value] = value
		case s.secret:
			p.errorAt(key.Line, path, "unknown field (allowed: %s)", s.names())
		case slices.Contains(later, key.Value):
			p.errorAt(key.Line, at, "unknown field: %s", notHere)
		default:
			p.errorAt(key.Line, at, "unknown field (allowed: %s)", s.names())
		}
	})
	return o
}

// pairs calls f for each key of the mapping, once, with the key's path.
func (p *parser) pairs(n *yaml.Node, path string, secret bool, f func(key, value *yaml.Node, at string)) {
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || (key.ShortTag() != "!!str" && key.ShortTag() != "!!merge") {
			p.errorAt(key.Line, path, "the name of a field must be a text: quote it")
			continue
		}
		at := config.FieldPath(path, key.Value)
		if line, twice := first[key.Value]; twice {
			if secret {
				at = path
			}
			p.errorAt(key.Line, at, "given twice, first on line %d", line)
			continue
		}
		first[key.Value] = key.Line
		f(key, value, at)
	}
}

func (o object) at(key string) string { return config.FieldPath(o.path, key) }

// has reports whether the field is there, and says so if not.
func (o object) has(key string) bool {
	if o.fields[key] != nil {
		return true
	}
	if o.ok {
		o.p.errorf(o.at(key), "is required")
	}
	return false
}

// text returns an optional text, never an empty one that was written.
func (o object) text(key string) string {
	n := o.fields[key]
	if n == nil || !o.p.is(n, o.at(key), "!!str", "a text") {
		return ""
	}
	if n.Value == "" {
		o.p.errorf(o.at(key), "must not be empty")
	}
	return n.Value
}

// must returns a required text.
func (o object) must(key string) string {
	if !o.has(key) {
		return ""
	}
	return o.text(key)
}

// slug returns a required text of the form that tenant ids have.
func (o object) slug(key string) string {
	s := o.must(key)
	if s != "" && !tracker.ValidTenantID(s) {
		o.p.errorf(o.at(key), "must match [a-z0-9][a-z0-9-]{0,62}")
	}
	return s
}

// title returns a name for people, or the default.
func (o object) title(key, byDefault string) string {
	s := o.text(key)
	switch {
	case s == "":
		return byDefault
	case len(s) > NameMaxBytes:
		o.p.errorf(o.at(key), "at most %d bytes", NameMaxBytes)
	case !printable(s) || strings.TrimSpace(s) != s:
		o.p.errorf(o.at(key), "must be printable, without space around it")
	}
	return s
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (o object) boolean(key string, byDefault bool) bool {
	n := o.fields[key]
	if n == nil || !o.p.is(n, o.at(key), "!!bool", "true or false") {
		return byDefault
	}
	var b bool
	if err := n.Decode(&b); err != nil { // not the error itself: it repeats the value
		o.p.errorf(o.at(key), "must be true or false")
	}
	return b
}

func (o object) integer(key string) int {
	n := o.fields[key]
	if n == nil || !o.p.is(n, o.at(key), "!!int", "a whole number") {
		return 0
	}
	var i int32 // what every store and client keeps exactly
	if err := n.Decode(&i); err != nil {
		o.p.errorf(o.at(key), "must be a whole number of 32 bits")
	}
	return int(i)
}

// each calls f for the list's items, at most most of them.
func (o object) each(key string, most int, f func(n *yaml.Node, path string)) {
	n := o.fields[key]
	if n == nil || !o.p.is(n, o.at(key), "!!seq", "a list") {
		return
	}
	for i, item := range n.Content {
		path := fmt.Sprintf("%s[%d]", o.at(key), i)
		o.p.file.lines[path] = item.Line
		if i == most {
			o.p.errorf(path, "at most %d %s are allowed here, the list has %d", most, key, len(n.Content))
			return
		}
		f(item, path)
	}
}

// listMax bounds the lists of texts, as Subscription.Validate does.
const listMax = 100

func (o object) texts(key string) []string {
	var out []string
	o.each(key, listMax, func(n *yaml.Node, path string) {
		if o.p.is(n, path, "!!str", "a text") {
			out = append(out, n.Value)
		}
	})
	return out
}

// textMap returns a mapping of texts with any names.
func (o object) textMap(key string) map[string]string {
	n := o.fields[key]
	if n == nil || !o.p.is(n, o.at(key), "!!map", "a mapping") {
		return nil
	}
	out := make(map[string]string, len(n.Content)/2)
	o.p.pairs(n, o.at(key), false, func(key, value *yaml.Node, at string) {
		o.p.file.lines[at] = key.Line
		if o.p.is(value, at, "!!str", "a text") {
			out[key.Value] = value.Value
		}
	})
	return out
}

// names refuses a name that was given before in the same list.
type names map[string]int

func (ns names) add(o object, key, name string) {
	if !tracker.ValidTenantID(name) {
		return // an error was noted
	}
	if line, taken := ns[name]; taken {
		o.p.errorf(o.at(key), "%s is taken, on line %d", name, line)
		return
	}
	ns[name] = o.p.file.lineOf(o.at(key))
}
