package apply

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// The kinds of things and what can become of one.
const (
	KindTenant       = "tenant"
	KindBoard        = "board"
	KindBot          = "bot"
	KindHook         = "hook"
	KindSubscription = "subscription"
	KindProjection   = "projection"

	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
)

// Change is what became of one thing that the file describes.
type Change struct {
	Tenant string `json:"tenant"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	// ID is empty for what a dry run would create.
	ID     string `json:"id,omitempty"`
	Action string `json:"action"`
	// Details say which fields changed, "rank: 0 → 10"; of secrets, URLs and
	// what is handed to the bot only that they did.
	Details []string `json:"details,omitempty"`
	// Before and After are what was and is stored, a *trigger.Bot for a bot
	// and so on; nil if there was or is none. They hold sealed secrets.
	Before any `json:"-"`
	After  any `json:"-"`
}

type changeKey struct{ tenant, kind, name string }

func (c Change) key() changeKey { return changeKey{c.Tenant, c.Kind, c.Name} }

// then is the change followed by a later one of the same thing.
func (c Change) then(later Change) Change {
	if c.Action == "" {
		return later
	}
	later.Action, later.Before = c.Action, c.Before
	details := slices.Clone(c.Details)
	for _, d := range later.Details {
		if !slices.Contains(details, d) {
			details = append(details, d)
		}
	}
	later.Details = details
	return later
}

var signs = map[string]string{Created: "+", Updated: "~", Unchanged: "="}

// String is one line, without the tenant: "~ bot implementer (id): url:
// changed". A hook's ends with the path that the forge delivers to.
func (c Change) String() string {
	var b strings.Builder
	b.WriteString(signs[c.Action] + " " + c.Kind + " " + c.Name)
	if c.ID != "" && c.Kind != KindTenant {
		b.WriteString(" (" + c.ID + ")")
	}
	if len(c.Details) > 0 {
		b.WriteString(": " + strings.Join(c.Details, "; "))
	}
	if c.Kind == KindHook && c.ID != "" {
		b.WriteString("  POST " + c.HookPath())
	}
	return b.String()
}

// HookPath is the path that a forge delivers a hook's events to; empty for
// what is not a hook or has no id.
func (c Change) HookPath() string {
	if c.Kind != KindHook || c.ID == "" {
		return ""
	}
	return "/v1/tenants/" + c.Tenant + "/hooks/" + c.ID
}

// Result is what an Apply did, or in a dry run would do: each tenant followed
// by its things, in the file's order.
type Result struct {
	DryRun  bool     `json:"dry_run,omitempty"`
	Changes []Change `json:"changes"`
}

// Changed reports whether anything was, or would be, written.
func (r Result) Changed() bool {
	return slices.ContainsFunc(r.Changes, func(c Change) bool { return c.Action != Unchanged })
}

// String is one line for each thing and a summary, each with a line end.
func (r Result) String() string {
	var b strings.Builder
	count := make(map[string]int)
	for _, c := range r.Changes {
		count[c.Action]++
		b.WriteString(c.String() + "\n")
	}
	switch {
	case !r.Changed():
		fmt.Fprintf(&b, "nothing to change: %d as the file says\n", count[Unchanged])
	case r.DryRun:
		fmt.Fprintf(&b, "dry run, nothing was written: %d to create, %d to update, %d unchanged\n", count[Created], count[Updated], count[Unchanged])
	default:
		fmt.Fprintf(&b, "%d created, %d updated, %d unchanged\n", count[Created], count[Updated], count[Unchanged])
	}
	return b.String()
}

// WriteTo writes what String returns.
func (r Result) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, r.String())
	return int64(n), err
}

// written is the result after an error: only what was written.
func written(done map[changeKey]Change) Result {
	return Result{Changes: slices.SortedFunc(maps.Values(done), func(a, b Change) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})}
}

// diff collects details.
type diff []string

func diffValue[T comparable](d *diff, field string, before, after T) {
	if before != after {
		*d = append(*d, fmt.Sprintf("%s: %s → %s", field, show(fmt.Sprint(before)), show(fmt.Sprint(after))))
	}
}

func diffList[T ~string](d *diff, field string, before, after []T) {
	if !slices.Equal(before, after) {
		*d = append(*d, fmt.Sprintf("%s: %s → %s", field, showList(before), showList(after)))
	}
}

// diffMap tells the names alone: people put tokens in arguments.
func diffMap(d *diff, field string, before, after map[string]string) {
	keys := make(map[string]bool)
	for k := range before {
		keys[k] = true
	}
	for k := range after {
		keys[k] = true
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		was, had := before[k]
		is, has := after[k]
		switch {
		case !had:
			*d = append(*d, field+"."+show(k)+": added")
		case !has:
			*d = append(*d, field+"."+show(k)+": removed")
		case was != is:
			*d = append(*d, field+"."+show(k)+": changed")
		}
	}
}

func showList[T ~string](list []T) string {
	shown := make([]string, len(list))
	for i, v := range list {
		shown[i] = show(string(v))
	}
	return "[" + strings.Join(shown, ", ") + "]"
}

// show quotes what would be misread in a line of details, or could move a
// terminal's cursor.
func show(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune(`"[],;→`, r) }
	if s == "" || strings.TrimSpace(s) != s || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}
