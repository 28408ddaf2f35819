package apply

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/triggerd/triggerd/pkg/server/config"
	"github.com/triggerd/triggerd/pkg/tracker"
	"github.com/triggerd/triggerd/pkg/trigger"
)

// schema is what a mapping of the format may hold: what the parser goes by, and
// docs/triggers.schema.json says.
type schema struct {
	fields []field
	// secret: the names of unknown fields are not repeated, since somebody
	// may have written the secret there.
	secret bool
	// also are keywords beside the fields'.
	also form
}

type field struct {
	name string
	form form
	doc  string
	// required is for editors; the parser asks for the field where it reads it.
	required bool
}

// form is what a value looks like, in the words of JSON Schema.
type form map[string]any

func (s schema) has(name string) bool {
	return slices.ContainsFunc(s.fields, func(f field) bool { return f.name == name })
}

func (s schema) names() string {
	names := make([]string, len(s.fields))
	for i, f := range s.fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

// form is the mapping in the words of JSON Schema.
func (s schema) form() form {
	required, properties := []string{}, form{}
	for _, f := range s.fields {
		p := form{}
		for k, v := range f.form {
			p[k] = v
		}
		if f.doc != "" {
			p["description"] = f.doc
		}
		properties[f.name] = p
		if f.required {
			required = append(required, f.name)
		}
	}
	out := form{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		out["required"] = required
	}
	for k, v := range s.also {
		out[k] = v
	}
	return out
}

const slugPattern = "^[a-z0-9][a-z0-9-]{0,62}$"

var (
	slugForm  = form{"type": "string", "pattern": slugPattern}
	titleForm = form{"type": "string", "minLength": 1, "maxLength": NameMaxBytes}
	textForm  = form{"type": "string", "minLength": 1}
)

func boolForm(byDefault bool) form { return form{"type": "boolean", "default": byDefault} }

func enumForm[T ~string](values ...T) form { return form{"type": "string", "enum": values} }

func listForm(items form, least, most int) form {
	f := form{"type": "array", "items": items, "maxItems": most}
	if least > 0 {
		f["minItems"] = least
	}
	return f
}

// textsForm is a list of labels, columns or people.
var textsForm = listForm(form{"type": "string", "minLength": 1, "maxLength": tracker.LabelMaxBytes}, 0, listMax)

func mapForm(keys, values form, most int) form {
	return form{"type": "object", "propertyNames": keys, "additionalProperties": values, "maxProperties": most}
}

// has is any mapping with that field.
func has(name string) form {
	return form{"type": "object", "required": []string{name}, "properties": form{name: form{}}}
}

// The fields of the format.
var (
	columnSchema = schema{fields: []field{
		{"id", slugForm, "What the file, events and conditions call it.", true},
		{"name", titleForm, "For people; the id by default.", false},
		{"terminal", boolForm(false), "Finished cards stand here.", false},
	}}
	boardSchema = schema{fields: []field{
		{"name", slugForm, "", true},
		{"columns", listForm(columnSchema.form(), 1, ColumnsMax), "From left to right.", true},
	}}
	secretSchema = schema{
		fields: []field{
			{"env", textForm, "An environment variable of whoever applies the file.", false},
			{"file", textForm, "A file, relative to the folder of this one.", false},
			{"initial", boolForm(false), "It is for what has no secret yet; a stored one is left as it is.", false},
		},
		secret: true,
		also:   form{"oneOf": []form{has("env"), has("file")}},
	}
	secretHelp = "Where its secret's text is. Left out, a stored one is left as it is."
	botSchema  = schema{fields: []field{
		{"name", slugForm, "", true},
		{"url", form{"type": "string", "minLength": 1, "maxLength": 2048, "pattern": "^[hH][tT][tT][pP][sS]?://"}, "Where it is launched: http or https.", true},
		{"replay", enumForm(trigger.ReplaySafe, trigger.ReplayUnsafe), "safe: it honours the idempotency key. unsafe: a second request could do harm.", false},
		{"secret", secretSchema.form(), secretHelp, false},
	}}
	hookColumnsSchema = schema{fields: []field{
		{"open", textForm, "Where open issues stand.", true},
		{"closed", textForm, "Where closed issues stand.", true},
	}}
	hookSchema = schema{fields: []field{
		{"name", slugForm, "", true},
		{"provider", enumForm(config.ProviderGitHub), "", true},
		{"board", textForm, "The name of the board that the cards go to.", true},
		{"columns", hookColumnsSchema.form(), "Ids of that board's columns.", true},
		{"secret", secretSchema.form(), secretHelp, false},
	}}
	actorSchema = schema{fields: []field{{"bot", textForm, "The name of a bot.", true}}}
	onSchema    = schema{fields: []field{
		{"kinds", listForm(enumForm(tracker.Kinds()...), 0, listMax), "It is of one of these.", false},
		{"board", textForm, "The name of the board that the card is on.", false},
		{"from", textForm, "The column (an id) that the card leaves.", false},
		{"to", textForm, "The column (an id) that the card enters.", false},
		{"sources", listForm(form{"type": "string"}, 0, listMax), "It is of one of these.", false},
		{"actors", listForm(form{"anyOf": []form{{"type": "string", "minLength": 1}, actorSchema.form()}}, 0, listMax), "One of these caused it: a login, or a bot.", false},
	}}
	ifSchema = schema{fields: []field{
		{"columns", textsForm, "It stands in one of these columns (ids).", false},
		{"labels_all", textsForm, "It has all of these labels.", false},
		{"labels_any", textsForm, "It has one of these labels.", false},
		{"labels_none", textsForm, "It has none of these labels.", false},
		{"assignees", textsForm, "One of these is assigned.", false},
	}}
	argsForm           = mapForm(form{"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,62}$"}, form{"type": "string", "maxLength": 4096}, 50)
	subscriptionSchema = schema{fields: []field{
		{"name", slugForm, "", true},
		{"enabled", boolForm(true), "", false},
		{"on", onSchema.form(), "Which events it looks at.", false},
		{"if", ifSchema.form(), "Conditions on the card.", false},
		{"when", form{"type": "string", "minLength": 1, "maxLength": 4096}, "A condition in CEL.", false},
		{"bot", textForm, "The name of the bot to launch, or to promote.", true},
		{"mode", enumForm(trigger.ModeDirect, trigger.ModePromote), "direct launches the bot; promote stamps it onto the card.", false},
		{"to_column", textForm, "With promote: the column (an id) that the card moves to.", false},
		{"consume", textsForm, "Labels that are spent, once for each effect.", false},
		{"rank", form{"type": "integer", "minimum": -1 << 31, "maximum": 1<<31 - 1, "default": 0}, "Of several that want to spend one label, the lowest gets it.", false},
		{"max_per_minute", form{"type": "integer", "minimum": 0, "maximum": trigger.MaxPerMinuteMax, "default": trigger.MaxPerMinuteDefault}, "More matches within a minute pause it; 0: never.", false},
		{"args", argsForm, "Handed to the bot; ${…} is evaluated.", false},
		{"vars", argsForm, "Handed to the bot; ${…} is evaluated.", false},
	}}
	projectionSchema = schema{fields: []field{
		{"name", slugForm, "", true},
		{"enabled", boolForm(true), "", false},
		{"from", textForm, "The name of the board whose columns are mirrored.", true},
		{"to", textForm, "The name of the board that mirrors them.", true},
		{"columns", mapForm(form{"minLength": 1}, textForm, ColumnsMax), "Which column of from (an id) stands for which of to.", true},
	}}
	tenantSchema = schema{fields: []field{
		{"id", slugForm, "", true},
		{"name", titleForm, "For people; the id by default.", false},
		{"boards", listForm(boardSchema.form(), 0, BoardsMax), "", false},
		{"bots", listForm(botSchema.form(), 0, BotsMax), "", false},
		{"hooks", listForm(hookSchema.form(), 0, HooksMax), "", false},
		{"subscriptions", listForm(subscriptionSchema.form(), 0, SubscriptionsMax), "", false},
		{"projections", listForm(projectionSchema.form(), 0, ProjectionsMax), "", false},
	}}
	rootSchema = schema{fields: []field{{"tenants", listForm(tenantSchema.form(), 0, TenantsMax), "", true}}}
)

// JSONSchema describes the format for editors (JSON Schema 2020-12). It knows
// the form of a file, not whether what it refers to exists.
func JSONSchema() []byte {
	root := rootSchema.form()
	root["$schema"], root["$id"] = "https://json-schema.org/draft/2020-12/schema", SchemaURL
	root["title"], root["description"] = "triggers.yaml", "Tenants of triggerd, and what they have: docs/triggers-yaml.md."
	out, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic("apply: the schema can't be encoded: " + err.Error()) // it is made of texts and numbers
	}
	return append(out, '\n')
}

// SchemaURL is where editors find the schema.
const SchemaURL = "https://raw.githubusercontent.com/triggerd/triggerd/main/docs/triggers.schema.json"
