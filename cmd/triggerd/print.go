package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/triggerd/triggerd/pkg/tracker"
)

// streams are where a command writes; tests read them.
type streams struct{ out, err io.Writer }

// say writes one line to standard output, and note to standard error.
func (s streams) say(format string, args ...any) error {
	_, err := fmt.Fprintln(s.out, plain(fmt.Sprintf(format, args...)))
	return err
}

func (s streams) note(format string, args ...any) {
	fmt.Fprintln(s.err, plain(fmt.Sprintf(format, args...)))
}

// plain keeps text of others (labels, what a bot answered) from spoiling a
// terminal or a table: control characters, and those that turn the direction of
// text, become spaces.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// plainLines is plain for text of several lines.
func plainLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = plain(lines[i])
	}
	return strings.Join(lines, "\n")
}

// printJSON writes JSON for programs. JSON itself escapes control characters
// but for DEL and the C1 ones, which terminals know, too.
func printJSON(w io.Writer, v any) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out bytes.Buffer
	for _, r := range buf.String() {
		if r >= 0x7f && r <= 0x9f {
			fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

func printTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, plain(cell))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// outputFlag is the form of what is printed.
type outputFlag struct {
	Output string `short:"o" help:"Form: ${enum}." enum:"table,json" default:"table"`
}

func (f outputFlag) json() bool { return f.Output == "json" }

// item is a thing as the API shows it.
type item map[string]any

func (i item) str(path string) string {
	var v any = map[string]any(i)
	for name := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return cell(path, v)
}

// decodeItem keeps numbers as they are written.
func decodeItem(text json.RawMessage) (item, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var i item
	err := dec.Decode(&i)
	return i, err
}

// column is one column of a table.
type column struct {
	head string
	// path is the field that it shows, "guard.held_from"; show is for what is
	// more than one.
	path string
	show func(item) string
}

// columns makes columns of "HEAD:path" each.
func columns(specs ...string) []column {
	out := make([]column, len(specs))
	for i, s := range specs {
		out[i].head, out[i].path, _ = strings.Cut(s, ":")
	}
	return out
}

// cell is a value as a table shows it.
func cell(path string, v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		if path == "at" || strings.HasSuffix(path, "_at") {
			if at, err := time.Parse(time.RFC3339Nano, v); err == nil {
				return at.UTC().Format(time.RFC3339)
			}
		}
		return v
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = cell("", v[i])
		}
		return strings.Join(parts, ", ")
	case map[string]any:
		text, _ := json.Marshal(v) // it was decoded
		return string(text)
	}
	return fmt.Sprint(v)
}

// printItems prints items, in the form that the flag says.
func (f outputFlag) printItems(w io.Writer, cols []column, items []json.RawMessage) error {
	if f.json() {
		return printJSON(w, items)
	}
	rows := make([][]string, 1, len(items)+1)
	for _, c := range cols {
		rows[0] = append(rows[0], c.head)
	}
	for _, text := range items {
		i, err := decodeItem(text)
		if err != nil {
			return err
		}
		var row []string
		for _, c := range cols {
			if c.show != nil {
				row = append(row, c.show(i))
			} else {
				row = append(row, i.str(c.path))
			}
		}
		rows = append(rows, row)
	}
	return printTable(w, rows)
}

// listFlags are those of lists.
type listFlags struct {
	Limit int    `help:"At most this many: 1 to 10000." default:"100"`
	After string `help:"Go on where an earlier list ended, as it said." placeholder:"CURSOR"`
	outputFlag
}

func (f *listFlags) check() error { return checkRange("--limit", f.Limit, 1, 10_000) }

func checkRange(flag string, n, least, most int) error {
	if n < least || n > most {
		return tracker.Fieldf(flag, "must be %d to %d", least, most)
	}
	return nil
}

// list prints a list, and says on standard error whether there is more.
func (f *listFlags) list(ctx context.Context, a *api, path string, query url.Values, cols []column) error {
	if query == nil {
		query = url.Values{}
	}
	if f.After != "" {
		query.Set("after", f.After)
	}
	items, next, err := a.List(ctx, path, query, f.Limit)
	if err == nil && len(items) == 0 {
		err = a.tenantThere(ctx, path)
	}
	if err != nil {
		return err
	}
	if err := f.printItems(a.out, cols, items); err != nil {
		return err
	}
	if next != "" {
		a.note("There are more: go on with --after '%s', or raise --limit.", next)
	}
	return nil
}

// show prints one thing.
func (f outputFlag) show(w io.Writer, text json.RawMessage) error {
	if f.json() {
		return printJSON(w, text)
	}
	i, err := decodeItem(text)
	if err != nil {
		return err
	}
	var rows [][]string
	flatten("", map[string]any(i), &rows)
	return printTable(w, rows)
}

// flatten makes a row of each field, by name: "guard.held_from".
func flatten(path string, v any, rows *[][]string) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.SortedFunc(maps.Keys(v), idFirst) {
			flatten(strings.TrimPrefix(path+"."+name, "."), v[name], rows)
		}
		return
	case []any:
		if slices.ContainsFunc(v, func(e any) bool { _, nested := e.(map[string]any); return nested }) {
			for i, e := range v {
				flatten(fmt.Sprintf("%s[%d]", path, i), e, rows)
			}
			return
		}
	}
	*rows = append(*rows, []string{path, cell(path, v)})
}

// idFirst orders the fields of a thing: what it is called, then the others.
func idFirst(a, b string) int {
	rank := func(s string) int { return slices.Index([]string{"title", "name", "id"}, s) }
	return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a, b))
}
