package trigger

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// Limits of args and vars that hold expressions.
const (
	// templateExprsMax is how many expressions one subscription may hold.
	templateExprsMax = 100
	// templateValueMax and templateTotalMax bound what comes out, in bytes:
	// of one value, and of all of a launch.
	templateValueMax = 16 << 10
	templateTotalMax = 256 << 10
)

// template is a text with expressions in it.
type template []templatePart

// templatePart is a text, or an expression.
type templatePart struct {
	text string
	x    *expression
}

// texts are a subscription's args and vars, compiled; only those that hold
// expressions.
type texts struct{ args, vars map[string]template }

// rendered are the args and vars of one launch.
type rendered struct{ args, vars map[string]string }

// compileTexts compiles args and vars; the error is a *tracker.FieldError.
func compileTexts(s *Subscription) (*texts, error) {
	var t texts
	var err error
	count := 0
	if t.args, err = compileTemplates("args", s.Args, &count); err != nil {
		return nil, err
	}
	t.vars, err = compileTemplates("vars", s.Vars, &count)
	return &t, err
}

func compileTemplates(field string, values map[string]string, count *int) (map[string]template, error) {
	var out map[string]template
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		if !strings.Contains(value, "${") {
			continue
		}
		t, err := compileTemplate(value, count)
		if err != nil {
			return nil, tracker.Fieldf(field+"."+name, "%s", err.Error())
		}
		if out == nil {
			out = make(map[string]template)
		}
		out[name] = t
	}
	return out, nil
}

// compileTemplate compiles one value. ${ begins an expression, $${ is the text
// "${".
func compileTemplate(value string, count *int) (template, *exprError) {
	var t template
	var text strings.Builder
	for pos := 0; ; {
		i := strings.Index(value[pos:], "${")
		if i < 0 {
			text.WriteString(value[pos:])
			break
		}
		at := pos + i
		if i > 0 && value[at-1] == '$' {
			text.WriteString(value[pos:at-1] + "${")
			pos = at + 2
			continue
		}
		text.WriteString(value[pos:at])
		end := expressionEnd(value, at+2)
		if end < 0 {
			return nil, (&exprError{1, 1, "${ has no } that ends it; write $${ for the text ${"}).after(value[:at])
		}
		if *count++; *count > templateExprsMax {
			return nil, &exprError{message: fmt.Sprintf("at most %d expressions in all args and vars", templateExprsMax)}
		}
		x, err := compileExpression(whenOfEvent, value[at+2:end], argMaxBytes)
		if err != nil {
			return nil, err.after(value[:at+2])
		}
		if !slices.ContainsFunc([]*types.Type{cel.StringType, cel.IntType, cel.DoubleType, cel.BoolType}, x.out.IsExactType) {
			return nil, (&exprError{1, 1, fmt.Sprintf("must yield a text, a number, true or false, not %s", x.out)}).after(value[:at+2])
		}
		t = append(t, templatePart{text: text.String()}, templatePart{x: x})
		text.Reset()
		pos = end + 1
	}
	return append(t, templatePart{text: text.String()}), nil
}

// after moves the place of a fault behind what stands before the expression.
func (e *exprError) after(before string) *exprError {
	if e.line == 0 {
		return e
	}
	lines := strings.Count(before, "\n")
	if e.line == 1 {
		e.column += len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))
	}
	e.line += lines
	return e
}

// expressionEnd returns where the } stands that ends the expression which
// begins at from, or -1. One in a CEL text or a comment ends nothing.
func expressionEnd(s string, from int) int {
	depth := 0
	for i := from; i < len(s); i++ {
		switch c := s[i]; {
		case c == '{':
			depth++
		case c == '}' && depth == 0:
			return i
		case c == '}':
			depth--
		case c == '/' && strings.HasPrefix(s[i:], "//"):
			end := strings.IndexByte(s[i:], '\n')
			if end < 0 {
				return -1
			}
			i += end
		case c == '"' || c == '\'':
			raw := i > from && (s[i-1] == 'r' || s[i-1] == 'R')
			i = textEnd(s, i, raw)
		}
	}
	return -1
}

// textEnd returns where the CEL text that begins with a quote at i ends.
func textEnd(s string, i int, raw bool) int {
	quote := s[i : i+1]
	if three := strings.Repeat(quote, 3); strings.HasPrefix(s[i:], three) {
		quote = three
	}
	for i += len(quote); i < len(s); i++ {
		switch {
		case s[i] == '\\' && !raw:
			i++
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote) - 1
		}
	}
	return i
}

// render renders args and vars for an event. The error names the field; trying
// again can't help.
func (t *texts) render(s *Subscription, e *Event) (rendered, error) {
	f := newFacts(e)
	total := 0
	one := func(field string, values map[string]string, templates map[string]template) (map[string]string, error) {
		if len(templates) == 0 {
			return values, nil
		}
		out := maps.Clone(values)
		for _, name := range slices.Sorted(maps.Keys(templates)) {
			text, err := templates[name].render(f)
			if err != nil {
				return nil, permanentError("%s.%s: %v", field, name, err)
			}
			if total += len(text); total > templateTotalMax {
				return nil, permanentError("%s.%s: all args and vars come to more than %d bytes", field, name, templateTotalMax)
			}
			out[name] = text
		}
		return out, nil
	}
	args, err := one("args", s.Args, t.args)
	if err != nil {
		return rendered{}, err
	}
	vars, err := one("vars", s.Vars, t.vars)
	return rendered{args, vars}, err
}

func (t template) render(f *facts) (string, error) {
	var out strings.Builder
	for _, p := range t {
		text := p.text
		if p.x != nil {
			v, err := p.x.value(f, &f.after)
			if err != nil {
				return "", err
			}
			if text, err = valueText(v); err != nil {
				return "", err
			}
		}
		if out.Len()+len(text) > templateValueMax {
			return "", fmt.Errorf("comes to more than %d bytes", templateValueMax)
		}
		out.WriteString(text)
	}
	return out.String(), nil
}

func valueText(v ref.Val) (string, error) {
	switch v := v.(type) {
	case types.String:
		return string(v), nil
	case types.Int:
		return strconv.FormatInt(int64(v), 10), nil
	case types.Double:
		return strconv.FormatFloat(float64(v), 'g', -1, 64), nil
	case types.Bool:
		return strconv.FormatBool(bool(v)), nil
	}
	return "", errOtherType
}
