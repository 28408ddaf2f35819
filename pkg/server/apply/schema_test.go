package apply

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

//go:generate go test -run TestSchemaDoc . -update-docs

var updateDocs = flag.Bool("update-docs", false, "write docs/triggers.schema.json")

const schemaDoc = "../../../docs/triggers.schema.json"

func TestSchemaDoc(t *testing.T) {
	t.Parallel()
	if *updateDocs {
		require.NoError(t, os.WriteFile(schemaDoc, JSONSchema(), 0o644))
		return
	}
	have, err := os.ReadFile(schemaDoc)
	require.NoError(t, err)
	require.True(t, bytes.Equal(JSONSchema(), have), "docs/triggers.schema.json is not what the parser takes: run `make docs`")
}

// valid says what the schema has against a document, by another's validator.
func valid(t *testing.T, doc any) []error {
	t.Helper()
	var s huma.Schema
	require.NoError(t, yaml.Unmarshal(JSONSchema(), &s), "JSON is YAML")
	s.PrecomputeMessages()
	precompute(&s)
	result := &huma.ValidateResult{}
	huma.Validate(huma.NewMapRegistry("#/", huma.DefaultSchemaNamer), &s, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, doc, result)
	return result.Errors
}

// precompute readies what hangs below, also where huma does not go.
func precompute(s *huma.Schema) {
	if s == nil {
		return
	}
	for _, p := range s.Properties {
		p.PrecomputeMessages()
		precompute(p)
	}
	if s.Items != nil {
		s.Items.PrecomputeMessages()
		precompute(s.Items)
	}
	for _, alt := range slices.Concat(s.AnyOf, s.OneOf) {
		alt.PrecomputeMessages()
		precompute(alt)
	}
	// The type of this field is any: what it was read as is a plain map.
	if m, ok := s.AdditionalProperties.(map[string]any); ok {
		text, _ := json.Marshal(m)
		var sub huma.Schema
		_ = yaml.Unmarshal(text, &sub)
		sub.PrecomputeMessages()
		s.AdditionalProperties = &sub
	}
}

// fullDoc is the file with every field of docs/triggers-yaml.md.
func fullDoc(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/triggers-yaml.md")
	require.NoError(t, err)
	_, doc, ok := strings.Cut(string(text), "## A file with every field\n\n```yaml\n")
	require.True(t, ok)
	doc, _, _ = strings.Cut(doc, "```")
	return doc
}

func decoded(t *testing.T, text string) (doc any) {
	t.Helper()
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	return doc
}

func encoded(t *testing.T, doc any) string {
	t.Helper()
	text, err := yaml.Marshal(doc)
	require.NoError(t, err)
	return string(text)
}

// Examples are what the parser and the schema both take.
func TestExamplesAreOfTheSchema(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../docs/examples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	texts := map[string]string{"the file with every field": fullDoc(t), "the tests' file": fullFile}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		texts[f] = string(text)
		require.Contains(t, string(text), "# yaml-language-server: $schema=", f)
	}
	for name, text := range texts {
		_, err := Parse(name, []byte(text))
		require.NoError(t, err)
		require.Empty(t, valid(t, decoded(t, text)), name)
	}
}

// place is a mapping in a document, and its schema.
type place struct {
	path   string
	at     map[string]any
	schema map[string]any
}

// places finds the mappings of a document that have fields of the format.
func places(path string, doc any, schema map[string]any) (found []place) {
	if anyOf, ok := schema["anyOf"].([]any); ok {
		if _, is := doc.(map[string]any); !is {
			return nil
		}
		schema = anyOf[1].(map[string]any)
	}
	switch doc := doc.(type) {
	case map[string]any:
		properties, ok := schema["properties"].(map[string]any)
		if !ok {
			return nil // names and texts of the user's
		}
		found = append(found, place{path, doc, schema})
		for k, v := range doc {
			if p, ok := properties[k].(map[string]any); ok {
				found = append(found, places(path+"."+k, v, p)...)
			}
		}
	case []any:
		for i, v := range doc {
			found = append(found, places(fmt.Sprintf("%s[%d]", path, i), v, schema["items"].(map[string]any))...)
		}
	}
	return found
}

// Every field of the schema is one that the parser takes, which the file with
// every field shows, and the reverse; what one requires the other does, too.
func TestSchemaAndParserAgree(t *testing.T) {
	t.Parallel()
	var schema map[string]any
	require.NoError(t, json.Unmarshal(JSONSchema(), &schema))
	agree := func(what string, doc any) (taken bool) {
		text := encoded(t, doc)
		_, err := Parse("x", []byte(text))
		require.Equal(t, err == nil, len(valid(t, decoded(t, text))) == 0, "%s: the parser says %v, the schema %v", what, err, valid(t, decoded(t, text)))
		return err == nil
	}
	full := decoded(t, fullDoc(t))
	require.True(t, agree("all", full))
	shown := make(map[string]bool)
	index := strings.NewReplacer("[0]", "[]", "[1]", "[]", "[2]", "[]")
	all := places("", full, schema)
	require.Greater(t, len(all), 15)
	for _, p := range all {
		at := index.Replace(p.path)
		properties := p.schema["properties"].(map[string]any)
		for name := range properties {
			shown[at+"."+name] = shown[at+"."+name] || p.at[name] != nil
		}
		p.at["nonsense"] = "x"
		require.False(t, agree(p.path+".nonsense", full), p.path)
		delete(p.at, "nonsense")
		for _, name := range slices.Sorted(maps.Keys(p.at)) {
			was := p.at[name]
			delete(p.at, name)
			required, _ := p.schema["required"].([]any)
			alone := strings.HasSuffix(p.path, ".secret") && name != "initial"
			if name != "on" && !strings.HasSuffix(p.path, ".on") { // what needs on.board, the parser alone knows
				taken := agree(p.path+"."+name+" left out", full)
				require.Equal(t, !slices.Contains(required, any(name)) && !alone, taken, "%s.%s", p.path, name)
			}
			p.at[name] = []any{map[string]any{"x": 1}}
			require.False(t, agree(p.path+"."+name+" of another type", full))
			p.at[name] = was
		}
	}
	for field, is := range shown {
		if !strings.Contains(field, ".secret.") { // of which one file has one at a time
			require.True(t, is, "the file with every field of docs/triggers-yaml.md has no %s", field)
		}
	}
}
