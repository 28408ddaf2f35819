package trigger_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

func TestArgsAreCheckedWhenSaved(t *testing.T) {
	t.Parallel()
	with := func(value string) error {
		s := onState(`has(card.title)`)
		s.Args = map[string]string{"a": value}
		return s.Validate()
	}
	for _, value := range []string{
		"", "$", "{}", "${card.title}", "a ${card.title} b ${event.kind}", "${actor.id}", "$${", "$${not CEL", "${size(card.labels)}",
		"${1.5}", "${true}", `${"}"}`, `${'\'}'}`, `${r"\"}`, `${"""}"""}`, `${{"a": "b"}["a"]}`, "${card.title // }\n}",
	} {
		require.NoError(t, with(value), value)
	}
	for value, want := range map[string]string{
		"${card.title":              "line 1, column 1: ${ has no } that ends it",
		"é ${":                      "line 1, column 3: ${ has no } that ends it",
		`${"}`:                      "${ has no } that ends it",
		"${card.title // }":         "${ has no } that ends it",
		"${}":                       "line 1, column 3: is empty",
		"ab ${card.titel}":          "line 1, column 10: undefined field 'titel'",
		"a\né ${card.title +\n 1}":  "line 2, column 16: found no matching overload",
		"x ${card.labels}":          "line 1, column 5: must yield a text, a number, true or false, not list(string)",
		"${card}":                   "is an object: name one of its fields",
		"${card.external}":          "is an object",
		"${null}":                   "must yield a text",
		"${card.body}":              "undefined field 'body'",
		strings.Repeat("${1}", 101): "at most 100 expressions",
		"${card.labels.map(a, card.labels.map(b, a + b + card.title)).size()}": "costs too much",
	} {
		var fe *tracker.FieldError
		require.ErrorAs(t, with(value), &fe, value)
		require.Equal(t, "args.a", fe.Field)
		require.Contains(t, fe.Want, want, value)
	}
}

func TestRenderedArgsAreBounded(t *testing.T) {
	t.Parallel()
	render := func(s *trigger.Subscription, title string) (map[string]string, map[string]string, error) {
		return trigger.Render(s, event(tracker.KindEdited, nil, &tracker.Snapshot{Title: title}))
	}
	s := &trigger.Subscription{Args: map[string]string{"a": strings.Repeat("${card.title}", 16)}}
	title := strings.Repeat("x", tracker.TitleMaxBytes)
	args, vars, err := render(s, title)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a": strings.Repeat(title, 16)}, args)
	require.Nil(t, vars)
	_, _, err = render(s, title+"x")
	require.ErrorContains(t, err, "args.a: comes to more than 16384 bytes")
	s = &trigger.Subscription{Args: map[string]string{}, Vars: map[string]string{}}
	for c := range 17 {
		s.Vars[string(rune('a'+c))] = strings.Repeat("${card.title}", 5)
	}
	_, _, err = render(s, strings.Repeat("x", 3_200))
	require.ErrorContains(t, err, "vars.q: all args and vars come to more than 262144 bytes")
	for value, want := range map[string]string{"${1.50}": "1.5", "${-3}": "-3", "${1 == 2}": "false", "$$${x": "$${x", "${1}$": "1$", "${ 'a' }$${": "a${"} {
		args, _, err = render(&trigger.Subscription{Args: map[string]string{"a": value}}, "")
		require.NoError(t, err, value)
		require.Equal(t, want, args["a"], value)
	}
}
