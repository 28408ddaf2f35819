package github

import (
	"embed"
	"strings"
)

//go:embed payloads/*.json
var payloadFiles embed.FS

// Payload is a real delivery that ships with the program: for the demo, and
// for tests. See payloads/README.md for where they come from.
type Payload struct {
	Name  string // "issues.opened"
	Event string // "issues"
	Body  []byte
}

// Payloads returns the deliveries that ship with the program, by name.
func Payloads() ([]Payload, error) {
	entries, err := payloadFiles.ReadDir("payloads")
	if err != nil {
		return nil, err
	}
	var out []Payload
	for _, e := range entries {
		body, err := payloadFiles.ReadFile("payloads/" + e.Name())
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(e.Name(), ".json")
		event, _, _ := strings.Cut(name, ".")
		out = append(out, Payload{Name: name, Event: event, Body: body})
	}
	return out, nil
}
