package boardmongo_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// shellQuery is a query as it is typed into mongosh:
// db.<collection>.<method>(<args>).sort(…).limit(…)
type shellQuery struct {
	coll, method string
	args         []any
	sort         bson.D
	limit        int64
}

// parseShell parses the part of mongosh that the documents use: one statement
// of literals, new Date(), ISODate('…') and Long('…'). What it does not know is
// an error, so that no query goes untested.
func parseShell(text string, now time.Time) (q shellQuery, err error) {
	p := &shell{rest: text, now: now}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v, before %.40q", r, p.rest)
		}
	}()
	p.want("db")
	p.want(".")
	q.coll = p.word()
	p.want(".")
	q.method = p.word()
	q.args = p.call()
	for p.peek() == '.' {
		p.want(".")
		switch name := p.word(); name {
		case "sort":
			q.sort = p.call()[0].(bson.D)
		case "limit":
			q.limit = int64(p.call()[0].(int32))
		default:
			panic("." + name + " is not known")
		}
	}
	if p.peek() != 0 {
		panic("more than one statement")
	}
	return q, nil
}

type shell struct {
	rest string
	now  time.Time
}

// peek returns the next character that is not white space or a comment; 0 at
// the end.
func (p *shell) peek() rune {
	for {
		p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace)
		if !strings.HasPrefix(p.rest, "//") {
			break
		}
		_, p.rest, _ = strings.Cut(p.rest, "\n")
	}
	for _, r := range p.rest {
		return r
	}
	return 0
}

func (p *shell) want(s string) {
	p.peek()
	if !strings.HasPrefix(p.rest, s) {
		panic("wanted " + s)
	}
	p.rest = p.rest[len(s):]
}

func (p *shell) word() string {
	p.peek()
	n := strings.IndexFunc(p.rest, func(r rune) bool { return r != '_' && r != '$' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if n <= 0 {
		panic("wanted a word")
	}
	word := p.rest[:n]
	p.rest = p.rest[n:]
	return word
}

func (p *shell) str() string {
	quote := p.peek()
	p.rest = p.rest[1:]
	text, rest, ok := strings.Cut(p.rest, string(quote))
	if !ok || strings.ContainsAny(text, "\\\n") {
		panic("wanted a plain string")
	}
	p.rest = rest
	return text
}

// list parses comma-separated things up to the closing character.
func (p *shell) list(open, end string, each func()) {
	p.want(open)
	for p.peek() != rune(end[0]) {
		each()
		if p.peek() != rune(end[0]) {
			p.want(",")
		}
	}
	p.want(end)
}

func (p *shell) call() (args []any) {
	p.list("(", ")", func() { args = append(args, p.value()) })
	return args
}

func (p *shell) value() any {
	switch p.peek() {
	case '{':
		d := bson.D{}
		p.list("{", "}", func() {
			var key string
			if c := p.peek(); c == '\'' || c == '"' {
				key = p.str()
			} else {
				key = p.word()
			}
			p.want(":")
			d = append(d, bson.E{Key: key, Value: p.value()})
		})
		return d
	case '[':
		a := bson.A{}
		p.list("[", "]", func() { a = append(a, p.value()) })
		return a
	case '\'', '"':
		return p.str()
	case '-':
		p.want("-")
		return -p.value().(int32)
	}
	switch word := p.word(); word {
	case "true", "false":
		return word == "true"
	case "null":
		return nil
	case "new":
		p.want("Date")
		if args := p.call(); len(args) > 0 {
			panic("new Date() is now; a given time is ISODate('…')")
		}
		return p.now
	case "ISODate":
		at, err := time.Parse(time.RFC3339Nano, p.call()[0].(string))
		if err != nil {
			panic(err)
		}
		return at
	case "Long":
		n, err := strconv.ParseInt(p.call()[0].(string), 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	default:
		n, err := strconv.ParseInt(word, 10, 32)
		if err != nil {
			panic(word + " is not known")
		}
		return int32(n)
	}
}
