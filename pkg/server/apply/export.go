package apply

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// Exported is a tenant as a file describes it.
type Exported struct {
	// File is the text of a triggers.yaml. Applied to where it comes from, it
	// changes nothing; applied elsewhere, with the secrets, it makes the same.
	File string `json:"file" doc:"the text of a triggers.yaml"`
	// Secrets are the environment variables that the file takes secrets from
	// where there are none yet.
	Secrets []string `json:"secrets" doc:"the environment variables that it takes the secrets of new things from"`
	// LeftOut is what a file can't describe.
	LeftOut []LeftOut `json:"left_out" doc:"what a file can't describe"`
}

// LeftOut is a thing that a file can't describe, and why.
type LeftOut struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Export describes a tenant by a file, without its secrets. What it returns was
// applied, as a dry run, to what was read: what would be refused or changed then
// is left out, and said. It returns tracker.ErrNotFound, a *trigger.RefusedError
// if the tenant is too large for a file, or the store's error. p is what would
// apply the file; its secrets are not asked for.
func Export(ctx context.Context, tenantID string, p Params) (*Exported, error) {
	fixed := &frozen{Store: p.Store}
	if err := fixed.read(ctx, tenantID); err != nil {
		return nil, fmt.Errorf("export %s: %w", tenantID, err)
	}
	p.Store, p.DryRun, p.Secrets, p.Tenant = fixed, true, map[SecretRef]string{}, ""
	x := &exporter{frozen: fixed, out: &Exported{Secrets: []string{}, LeftOut: []LeftOut{}}}
	x.describe()
	for {
		text, err := x.render()
		if err != nil {
			return nil, fmt.Errorf("export %s: %w", tenantID, err)
		}
		done, err := x.verify(ctx, text, p)
		if err != nil {
			return nil, fmt.Errorf("export %s: %w", tenantID, err)
		}
		if done {
			x.finish(text)
			return x.out, nil
		}
	}
}

// frozen is a tenant as it was read: what is made of it is checked against the
// same.
type frozen struct {
	Store
	tenant        *trigger.Tenant
	boards        []tracker.Board
	bots          []trigger.Bot
	hooks         []trigger.Hook
	subscriptions []trigger.Subscription
	projections   []trigger.Projection
}

func (f *frozen) read(ctx context.Context, id string) (err error) {
	if f.tenant, err = f.Store.TenantGet(ctx, id); err != nil {
		return err
	}
	if f.boards, err = f.Store.BoardList(ctx, id); err != nil {
		return err
	}
	if f.bots, err = f.Store.BotList(ctx, id); err != nil {
		return err
	}
	if f.hooks, err = f.Store.HookList(ctx, id); err != nil {
		return err
	}
	if f.subscriptions, err = f.Store.SubscriptionList(ctx, id); err != nil {
		return err
	}
	if f.projections, err = f.Store.ProjectionList(ctx, id); err != nil {
		return err
	}
	slices.SortFunc(f.boards, func(a, b tracker.Board) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.bots, func(a, b trigger.Bot) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.hooks, func(a, b trigger.Hook) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.subscriptions, func(a, b trigger.Subscription) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(f.projections, func(a, b trigger.Projection) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func (f *frozen) TenantGet(context.Context, string) (*trigger.Tenant, error) {
	tenant := *f.tenant
	return &tenant, nil
}

func (f *frozen) BoardList(context.Context, string) ([]tracker.Board, error) {
	return slices.Clone(f.boards), nil
}

func (f *frozen) BotList(context.Context, string) ([]trigger.Bot, error) {
	return slices.Clone(f.bots), nil
}

func (f *frozen) HookList(context.Context, string) ([]trigger.Hook, error) {
	return slices.Clone(f.hooks), nil
}

func (f *frozen) SubscriptionList(context.Context, string) ([]trigger.Subscription, error) {
	return slices.Clone(f.subscriptions), nil
}

func (f *frozen) ProjectionList(context.Context, string) ([]trigger.Projection, error) {
	return slices.Clone(f.projections), nil
}

// exporter makes the file of a tenant.
type exporter struct {
	*frozen
	out *Exported
	doc tenantDoc
	// things are what the lists of doc describe, in the same order.
	things map[string][]LeftOut
}

func (x *exporter) leaveOut(what LeftOut, why string) {
	what.Why = why
	x.out.LeftOut = append(x.out.LeftOut, what)
}

var thingPath = regexp.MustCompile(`^tenants\[0\]\.(boards|bots|hooks|subscriptions|projections)\[(\d+)\]`)

// lists are the kinds' lists.
var lists = map[string]string{
	KindBoard: "boards", KindBot: "bots", KindHook: "hooks", KindSubscription: "subscriptions", KindProjection: "projections",
}

// verify applies the file as a dry run. It takes out of doc what would be
// refused or changed, and reports whether there was nothing of it.
func (x *exporter) verify(ctx context.Context, text string, p Params) (bool, error) {
	file, err := Parse("the export", []byte(text))
	var pl *plan
	if err == nil {
		pl, err = newPlan(ctx, file, p)
	}
	bad := make(map[string]map[int]string) // by list and index: why
	note := func(list string, i int, why string) {
		if bad[list] == nil {
			bad[list] = make(map[int]string)
		}
		bad[list][i] = cmp.Or(bad[list][i], why)
	}
	var errs Errors
	switch {
	case errors.As(err, &errs):
		for _, e := range errs {
			m := thingPath.FindStringSubmatch(e.Path)
			if m == nil {
				return false, &trigger.RefusedError{Why: "a file can't describe this tenant: " + strings.TrimPrefix(e.Path+": "+e.Message, ": ")}
			}
			i, err := strconv.Atoi(m[2])
			if err != nil {
				return false, fmt.Errorf("read the path %s: %w", e.Path, err)
			}
			note(m[1], i, strings.TrimPrefix(e.Path[len(m[0]):]+": "+e.Message, "."))
		}
	case err != nil:
		return false, err
	default:
		for _, c := range pl.changes {
			if c.Action == Unchanged {
				continue
			}
			list := lists[c.Kind]
			i := slices.IndexFunc(x.things[list], func(t LeftOut) bool { return t.Name == c.Name })
			if i < 0 {
				return false, &trigger.RefusedError{Why: "a file can't describe this tenant as it is: " + c.String()}
			}
			note(list, i, "a file can't tell all of it: "+strings.Join(c.Details, "; "))
		}
	}
	for list, which := range bad {
		for i, why := range which {
			x.leaveOut(x.things[list][i], why)
		}
		gone := func(i int) bool { _, is := which[i]; return is }
		x.things[list] = without(x.things[list], gone)
		switch list {
		case "boards":
			x.doc.Boards = without(x.doc.Boards, gone)
		case "bots":
			x.doc.Bots = without(x.doc.Bots, gone)
		case "hooks":
			x.doc.Hooks = without(x.doc.Hooks, gone)
		case "subscriptions":
			x.doc.Subscriptions = without(x.doc.Subscriptions, gone)
		case "projections":
			x.doc.Projections = without(x.doc.Projections, gone)
		}
	}
	return len(bad) == 0, nil
}

func without[T any](list []T, gone func(int) bool) []T {
	var out []T
	for i := range list {
		if !gone(i) {
			out = append(out, list[i])
		}
	}
	return out
}

// finish adds what people should know.
func (x *exporter) finish(text string) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# yaml-language-server: $schema=%s\n# The tenant %s of triggerd.", SchemaURL, x.tenant.ID)
	for _, bot := range x.doc.Bots {
		x.out.Secrets = append(x.out.Secrets, string(bot.Secret.Env))
	}
	for _, hook := range x.doc.Hooks {
		x.out.Secrets = append(x.out.Secrets, string(hook.Secret.Env))
	}
	if len(x.out.Secrets) > 0 {
		b.WriteString(" Where it is applied to is asked for the secrets of what is not\n# there yet; stored ones stay.")
	}
	b.WriteString("\n")
	if slices.ContainsFunc(x.doc.Bots, func(bot botDoc) bool { return strings.Contains(string(bot.URL), "?") }) {
		b.WriteString("# The query of a bot's URL is not shown: write it out where the bot is not there yet.\n")
	}
	slices.SortFunc(x.out.LeftOut, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	for _, l := range x.out.LeftOut {
		fmt.Fprintf(&b, "# left out: %s %s (%s): %s\n", l.Kind, show(l.Name), l.ID, strings.Join(strings.Fields(l.Why), " "))
	}
	x.out.File = b.String() + text
}

// render writes doc as YAML.
func (x *exporter) render() (string, error) {
	var root yaml.Node
	if err := root.Encode(fileDoc{[]tenantDoc{x.doc}}); err != nil {
		return "", fmt.Errorf("encode the file: %w", err)
	}
	compact(&root, "")
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&root), enc.Close()); err != nil {
		return "", fmt.Errorf("encode the file: %w", err)
	}
	return b.String(), nil
}

// compact writes small things on one line, and `on` without quotes, which YAML
// 1.1 would need.
func compact(n *yaml.Node, key string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "on" {
				n.Content[i].Style = 0
			}
			compact(n.Content[i+1], n.Content[i].Value)
		}
		switch key {
		case "on", "if", "secret", "columns", "columns[]":
			n.Style = yaml.FlowStyle
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			compact(item, key+"[]")
		}
		if key == "consume" {
			n.Style = yaml.FlowStyle
		}
	}
}

// secretName is the environment variable for a thing's secret.
func secretName(tenant, kind, name string) txt {
	return txt(strings.ToUpper(strings.ReplaceAll(strings.Join([]string{tenant, kind, name, "secret"}, "_"), "-", "_")))
}

// nameOr returns the name, unless it is the default.
func nameOr(name, byDefault string) txt {
	if name == byDefault {
		return ""
	}
	return txt(name)
}

// describe fills doc, names for ids.
func (x *exporter) describe() {
	x.doc = tenantDoc{ID: txt(x.tenant.ID), Name: nameOr(x.tenant.Name, x.tenant.ID)}
	x.things = make(map[string][]LeftOut)
	add := func(kind, id, name string) {
		x.things[lists[kind]] = append(x.things[lists[kind]], LeftOut{Kind: kind, ID: id, Name: name})
	}
	boards, bots := make(map[string]string), make(map[string]string)
	for _, b := range x.boards {
		boards[b.ID] = b.Name
		doc := boardDoc{Name: txt(b.Name)}
		for _, c := range b.Columns {
			doc.Columns = append(doc.Columns, columnDoc{txt(c.ID), nameOr(c.Name, c.ID), c.Terminal})
		}
		x.doc.Boards = append(x.doc.Boards, doc)
		add(KindBoard, b.ID, b.Name)
	}
	for _, b := range x.bots {
		bots[b.ID] = b.Name
		doc := botDoc{Name: txt(b.Name), URL: txt(config.ShowURL(b.URL)), Secret: secretDoc{secretName(x.tenant.ID, KindBot, b.Name), true}}
		if b.Replay != trigger.ReplaySafe {
			doc.Replay = txt(b.Replay)
		}
		x.doc.Bots = append(x.doc.Bots, doc)
		add(KindBot, b.ID, b.Name)
	}
	for _, h := range x.hooks {
		x.doc.Hooks = append(x.doc.Hooks, hookDoc{
			Name: txt(h.Name), Provider: txt(h.Provider), Board: txt(boards[h.BoardID]), Columns: hookColumnsDoc{txt(h.OpenColumn), txt(h.ClosedColumn)},
			Secret: secretDoc{secretName(x.tenant.ID, KindHook, h.Name), true},
		})
		add(KindHook, h.ID, h.Name)
	}
	for i := range x.subscriptions {
		s := &x.subscriptions[i]
		what := LeftOut{Kind: KindSubscription, ID: s.ID, Name: s.Name}
		switch {
		case s.Foreign():
			x.leaveOut(what, "it requires a newer version: "+strings.Join(s.Requires, ", "))
			continue
		case bots[s.BotID] == "":
			x.leaveOut(what, "its bot is gone")
			continue
		case s.On.BoardID != "" && boards[s.On.BoardID] == "":
			x.leaveOut(what, "its board is gone")
			continue
		}
		x.doc.Subscriptions = append(x.doc.Subscriptions, newSubscriptionDoc(s, boards, bots))
		add(KindSubscription, s.ID, s.Name)
	}
	for _, p := range x.projections {
		doc := projectionDoc{Name: txt(p.Name), Enabled: off(p.Enabled), From: txt(boards[p.FromBoardID]), To: txt(boards[p.ToBoardID]), Columns: make(map[txt]txt)}
		for _, c := range p.Columns {
			doc.Columns[txt(c.From)] = txt(c.To)
		}
		x.doc.Projections = append(x.doc.Projections, doc)
		add(KindProjection, p.ID, p.Name)
	}
}
