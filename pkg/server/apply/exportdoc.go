package apply

import (
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/triggerd/triggerd/pkg/trigger"
)

// The docs are a file as it is written: fields in the order of the
// documentation, defaults left out.
// txt is a text that comes out of the file as it went in.
type txt string

// MarshalYAML implements yaml.Marshaler. The encoder's own choice of a style
// loses some texts, and what YAML 1.1 takes for true or false is quoted for its
// readers.
func (t txt) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: string(t)}
	lines := strings.Split(strings.TrimSuffix(string(t), "\n"), "\n")
	odd := func(line string) bool { return strings.TrimSpace(line) != line || !printable(line) }
	switch {
	case !utf8.ValidString(n.Value): // which the format can't hold; it is seen
		n.Tag, n.Value = "!!binary", base64.StdEncoding.EncodeToString([]byte(t))
	case len(lines) > 1 && lines[0] != "" && lines[0][0] != ' ' && !slices.ContainsFunc(lines, func(l string) bool {
		return strings.TrimRight(l, " ") != l || l == "" || !printable(l)
	}):
		n.Style = yaml.LiteralStyle
	case slices.ContainsFunc(lines, odd) || len(lines) > 1 || n.Value == "" || oldBool.MatchString(n.Value):
		n.Style = yaml.DoubleQuotedStyle
	}
	return n, nil
}

// oldBool is what YAML 1.1 takes for true or false.
var oldBool = regexp.MustCompile(`^(?i:y|n|yes|no|on|off)$`)

type (
	fileDoc struct {
		Tenants []tenantDoc `yaml:"tenants"`
	}
	tenantDoc struct {
		ID            txt               `yaml:"id"`
		Name          txt               `yaml:"name,omitempty"`
		Boards        []boardDoc        `yaml:"boards,omitempty"`
		Bots          []botDoc          `yaml:"bots,omitempty"`
		Hooks         []hookDoc         `yaml:"hooks,omitempty"`
		Subscriptions []subscriptionDoc `yaml:"subscriptions,omitempty"`
		Projections   []projectionDoc   `yaml:"projections,omitempty"`
	}
	boardDoc struct {
		Name    txt         `yaml:"name"`
		Columns []columnDoc `yaml:"columns"`
	}
	columnDoc struct {
		ID       txt  `yaml:"id"`
		Name     txt  `yaml:"name,omitempty"`
		Terminal bool `yaml:"terminal,omitempty"`
	}
	botDoc struct {
		Name   txt       `yaml:"name"`
		URL    txt       `yaml:"url"`
		Replay txt       `yaml:"replay,omitempty"`
		Secret secretDoc `yaml:"secret"`
	}
	secretDoc struct {
		Env     txt  `yaml:"env"`
		Initial bool `yaml:"initial"`
	}
	hookDoc struct {
		Name     txt            `yaml:"name"`
		Provider txt            `yaml:"provider"`
		Board    txt            `yaml:"board"`
		Columns  hookColumnsDoc `yaml:"columns"`
		Secret   secretDoc      `yaml:"secret"`
	}
	hookColumnsDoc struct {
		Open   txt `yaml:"open"`
		Closed txt `yaml:"closed"`
	}
	subscriptionDoc struct {
		Name         txt         `yaml:"name"`
		Enabled      *bool       `yaml:"enabled,omitempty"`
		On           *onDoc      `yaml:"on,omitempty"`
		If           *ifDoc      `yaml:"if,omitempty"`
		When         txt         `yaml:"when,omitempty"`
		Bot          txt         `yaml:"bot"`
		Mode         txt         `yaml:"mode,omitempty"`
		ToColumn     txt         `yaml:"to_column,omitempty"`
		Consume      []txt       `yaml:"consume,omitempty"`
		Rank         int         `yaml:"rank,omitempty"`
		MaxPerMinute *int        `yaml:"max_per_minute,omitempty"`
		Args         map[txt]txt `yaml:"args,omitempty"`
		Vars         map[txt]txt `yaml:"vars,omitempty"`
	}
	onDoc struct {
		Kinds   []txt `yaml:"kinds,omitempty"`
		Board   txt   `yaml:"board,omitempty"`
		From    txt   `yaml:"from,omitempty"`
		To      txt   `yaml:"to,omitempty"`
		Sources []txt `yaml:"sources,omitempty"`
		Actors  []any `yaml:"actors,omitempty"` // a login, or a botRefDoc
	}
	botRefDoc struct {
		Bot txt `yaml:"bot"`
	}
	ifDoc struct {
		Columns    []txt `yaml:"columns,omitempty"`
		LabelsAll  []txt `yaml:"labels_all,omitempty"`
		LabelsAny  []txt `yaml:"labels_any,omitempty"`
		LabelsNone []txt `yaml:"labels_none,omitempty"`
		Assignees  []txt `yaml:"assignees,omitempty"`
	}
	projectionDoc struct {
		Name    txt         `yaml:"name"`
		Enabled *bool       `yaml:"enabled,omitempty"`
		From    txt         `yaml:"from"`
		To      txt         `yaml:"to"`
		Columns map[txt]txt `yaml:"columns"`
	}
)

// off is an `enabled` that is written only where it is false.
func off(enabled bool) *bool {
	if enabled {
		return nil
	}
	return &enabled
}

func newSubscriptionDoc(s *trigger.Subscription, boards, bots map[string]string) subscriptionDoc {
	doc := subscriptionDoc{
		Name: txt(s.Name), Enabled: off(s.Enabled), When: txt(s.When), Bot: txt(bots[s.BotID]), ToColumn: txt(s.ToColumn), Consume: txts(s.Consume),
		Rank: s.Rank, MaxPerMinute: s.MaxPerMinute, Args: txtMap(s.Args), Vars: txtMap(s.Vars),
	}
	if s.Mode != trigger.ModeDirect {
		doc.Mode = txt(s.Mode)
	}
	on := onDoc{Board: txt(boards[s.On.BoardID]), From: txt(s.On.From), To: txt(s.On.To), Kinds: txts(s.On.Kinds), Sources: txts(s.On.Sources)}
	for _, id := range s.On.Actors {
		if name := bots[id]; name != "" {
			on.Actors = append(on.Actors, botRefDoc{txt(name)})
		} else {
			on.Actors = append(on.Actors, txt(id))
		}
	}
	if on.Board+on.From+on.To != "" || len(on.Kinds)+len(on.Sources)+len(on.Actors) > 0 {
		doc.On = &on
	}
	c := s.If
	if len(c.Columns)+len(c.LabelsAll)+len(c.LabelsAny)+len(c.LabelsNone)+len(c.Assignees) > 0 {
		doc.If = &ifDoc{txts(c.Columns), txts(c.LabelsAll), txts(c.LabelsAny), txts(c.LabelsNone), txts(c.Assignees)}
	}
	return doc
}

func txts[T ~string](list []T) []txt {
	out := make([]txt, len(list))
	for i, v := range list {
		out[i] = txt(v)
	}
	return out
}

func txtMap(m map[string]string) map[txt]txt {
	out := make(map[txt]txt, len(m))
	for k, v := range m {
		out[txt(k)] = txt(v)
	}
	return out
}
