package trigger_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// docs/explain.md has each answer, with an example.
func TestAnswersAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/explain.md")
	require.NoError(t, err)
	var have []trigger.Answer
	for _, m := range regexp.MustCompile("(?m)^### `([a-z_]+)`\n\n> ").FindAllSubmatch(text, -1) {
		have = append(have, trigger.Answer(m[1]))
	}
	require.ElementsMatch(t, trigger.Answers(), have)
}

func TestDraftDecode(t *testing.T) {
	t.Parallel()
	got, err := trigger.DraftDecode([]byte(`{"name":"x","bot_id":"b","on":{"kinds":["card.moved"],"to":"ready"},"if":{"labels_any":["l"]},"args":{"a":"1"},"rank":3}`))
	require.NoError(t, err)
	require.Equal(t, &trigger.Subscription{
		Name: "x", BotID: "b", On: trigger.EventFilter{Kinds: []tracker.Kind{tracker.KindMoved}, To: "ready"},
		If: trigger.Conditions{LabelsAny: []string{"l"}}, Args: map[string]string{"a": "1"}, Rank: 3,
	}, got)
	for text, field := range map[string]string{
		`{"name":"x","nick":"s3cret"}`:      "nick",
		`{"on":{"kind":["s3cret"]}}`:        "kind",
		`{"s3cret field":1}`:                "subscription",
		`{"rank":"s3cret"}`:                 "rank",
		`{"rank":1e400}`:                    "rank",
		`{"if":{"columns":"s3cret"}}`:       "if.columns",
		`{"args":{"a":["s3cret"]}}`:         "args",
		`["s3cret"]`:                        "subscription",
		`{"name":"s3cret"`:                  "subscription",
		`{"name":"x"}{"name":"s3cret"}`:     "subscription",
		`{"updated_at":"s3cret yesterday"}`: "subscription",
		``:                                  "subscription",
	} {
		_, err := trigger.DraftDecode([]byte(text))
		var fe *tracker.FieldError
		require.ErrorAs(t, err, &fe, text)
		require.Equal(t, field, fe.Field, text)
		require.NotContains(t, err.Error(), "s3cret", "no value is repeated")
	}
}
