package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/triggerd/triggerd/pkg/tracker"
)

const (
	// jsonDepthMax is how deep a body may nest.
	jsonDepthMax = 32
	// jsonErrorsMax is how many faults of a body are told at once.
	jsonErrorsMax = 20
)

// multiline is the format of text that may hold line breaks and tabs.
const multiline = "multiline"

// errJSON is a body that is no JSON to rely on, as opposed to one that holds
// something it must not.
var errJSON = errors.New("not JSON")

// fieldForm is what a name of ours looks like. A name that came in is repeated
// only if it does: a secret may stand where a name belongs.
var fieldForm = regexp.MustCompile(`^[a-z_]{1,40}$`)

// checkJSON refuses a body that two readers could understand differently, or
// that hides something from a person: a key given twice, trailing data, text
// that is no Unicode, control characters. Encoding/json takes the last of two
// keys and replaces what is no Unicode without a word. A schema, if there is
// one, tells which text may have several lines. The errors are
// *tracker.FieldErrors; with errJSON among them it is no JSON at all.
func checkJSON(data []byte, schemas huma.Registry, schema *huma.Schema) []error {
	c := jsonCheck{dec: json.NewDecoder(bytes.NewReader(data)), data: data, schemas: schemas, path: []string{"body"}}
	c.dec.UseNumber()
	err := c.value(schema, 0)
	if err == nil {
		if _, more := c.dec.Token(); !errors.Is(more, io.EOF) {
			err = c.broken("must be one JSON value, with nothing after it")
		}
	}
	if err != nil {
		return append(c.errs, errJSON)
	}
	return c.errs
}

type jsonCheck struct {
	dec     *json.Decoder
	data    []byte
	schemas huma.Registry
	path    []string
	errs    []error
}

// broken ends the check.
func (c *jsonCheck) broken(want string) error {
	c.errs = append(c.errs, tracker.Fieldf("body", "%s", want))
	return errJSON
}

func (c *jsonCheck) at() string { return strings.Join(c.path, "") }

func (c *jsonCheck) refuse(field, want string) {
	if len(c.errs) < jsonErrorsMax {
		c.errs = append(c.errs, tracker.Fieldf(field, "%s", want))
	}
}

// token returns the next token; raw is what it was read from.
func (c *jsonCheck) token() (tok json.Token, raw []byte, err error) {
	from := c.dec.InputOffset()
	tok, err = c.dec.Token()
	if err != nil {
		return nil, nil, c.broken("must be JSON")
	}
	return tok, c.data[from:c.dec.InputOffset()], nil
}

func (c *jsonCheck) value(schema *huma.Schema, depth int) error {
	tok, raw, err := c.token()
	if err != nil {
		return err
	}
	schema = resolve(c.schemas, schema)
	switch tok := tok.(type) {
	case json.Delim:
		if depth == jsonDepthMax {
			return c.broken("must not nest deeper than " + strconv.Itoa(jsonDepthMax) + " levels")
		}
		if tok == '{' {
			return c.object(schema, depth+1)
		}
		return c.array(schema, depth+1)
	case string:
		// What has no schema is JSON that is kept or read as a whole.
		lines := schema == nil || schema.Type == "" || schema.Format == multiline
		if fault := textFault(tok, raw, lines); fault != "" {
			c.refuse(c.at(), fault)
		}
	case json.Number:
		if fault := numberFault(tok, schema != nil && schema.Type == huma.TypeInteger); fault != "" {
			c.refuse(c.at(), fault)
		}
	}
	return nil
}

// numberFault says what is wrong with a number. Encoding/json would say it, too,
// but with the number, and without its field.
func numberFault(n json.Number, integer bool) string {
	if integer {
		if _, err := n.Int64(); err != nil {
			return "must be an integer of 64 bits, in digits alone"
		}
	}
	if _, err := n.Float64(); err != nil {
		return "must be a number of double precision"
	}
	return ""
}

func (c *jsonCheck) array(schema *huma.Schema, depth int) error {
	var items *huma.Schema
	if schema != nil {
		items = schema.Items
	}
	for i := 0; c.dec.More(); i++ {
		c.path = append(c.path, "["+strconv.Itoa(i)+"]")
		if err := c.value(items, depth); err != nil {
			return err
		}
		c.path = c.path[:len(c.path)-1]
	}
	_, _, err := c.token()
	return err
}

func (c *jsonCheck) object(schema *huma.Schema, depth int) error {
	seen := make(map[string]bool)
	for c.dec.More() {
		tok, raw, err := c.token()
		if err != nil {
			return err
		}
		key, _ := tok.(string)
		if textFault(key, raw, false) != "" {
			c.refuse(c.at(), "its keys must be text without control characters")
			key = "" // and is not repeated
		}
		prop, known := property(schema, key)
		name := c.at()
		if known || fieldForm.MatchString(key) {
			name += "." + key
		}
		if seen[key] {
			c.refuse(name, "is given twice")
		}
		seen[key] = true
		if !known && schema != nil && schema.AdditionalProperties == false {
			c.refuse(name, "is not a field")
		}
		c.path = append(c.path, strings.TrimPrefix(name, c.at()))
		if err := c.value(prop, depth); err != nil {
			return err
		}
		c.path = c.path[:len(c.path)-1]
	}
	_, _, err := c.token()
	return err
}

// property returns the schema of a key's value, and whether the key is a name
// of ours.
func property(schema *huma.Schema, key string) (*huma.Schema, bool) {
	if schema == nil {
		return nil, false
	}
	if prop, ok := schema.Properties[key]; ok {
		return prop, true
	}
	rest, _ := schema.AdditionalProperties.(*huma.Schema)
	return rest, false
}

// resolve follows references; nil where nothing is known.
func resolve(schemas huma.Registry, schema *huma.Schema) *huma.Schema {
	for schema != nil && schema.Ref != "" {
		schema = schemas.SchemaFromRef(schema.Ref)
	}
	return schema
}

// textFault says what is wrong with a text; raw is the JSON that it was read
// from, nil if it came otherwise. Lines allows line breaks and tabs.
func textFault(text string, raw []byte, lines bool) string {
	if !utf8.ValidString(text) || !utf8.Valid(raw) || loneSurrogate(raw) {
		return "must be valid Unicode"
	}
	for _, r := range text {
		if unicode.IsControl(r) && (!lines || !strings.ContainsRune("\n\r\t", r)) {
			if lines {
				return "must not have control characters but line breaks and tabs"
			}
			return "must not have control characters, nor line breaks"
		}
	}
	return ""
}

// loneSurrogate reports whether JSON escapes half a character, which is
// replaced by another one when it is read.
func loneSurrogate(raw []byte) bool {
	for i := 0; i+1 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		switch u := hex4(raw[i:]); {
		case u >= 0xdc00 && u < 0xe000:
			return true
		case u >= 0xd800 && u < 0xdc00:
			i += 5 // at the backslash of the other half
			if i >= len(raw) || raw[i] != '\\' {
				return true
			}
			if low := hex4(raw[i+1:]); low < 0xdc00 || low >= 0xe000 {
				return true
			}
			i++
		}
	}
	return false
}

// hex4 reads "uXXXX"; 0 if it is something else.
func hex4(b []byte) uint64 {
	if len(b) < 5 || b[0] != 'u' {
		return 0
	}
	u, _ := strconv.ParseUint(string(b[1:5]), 16, 32)
	return u
}
