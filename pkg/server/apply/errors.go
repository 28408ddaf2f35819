package apply

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a file. It names the place and never
// repeats a value of a secret.
type Error struct {
	File string
	// Line counts from 1. A field that is missing has the line of what it is
	// missing from.
	Line int
	// Path is the field: "tenants[0].bots[1].url". Empty for what concerns
	// the text as a whole.
	Path    string
	Message string
}

func (e Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Path, e.Message)
}

// Errors are all that was found wrong with a file, by line.
type Errors []Error

// ErrorsShown is how many errors Error spells out.
const ErrorsShown = 100

// Error returns one line for each error, the first hundred of them.
func (es Errors) Error() string {
	lines := make([]string, 0, min(len(es), ErrorsShown+1))
	for i, e := range es {
		if i == ErrorsShown {
			lines = append(lines, fmt.Sprintf("… and %d more", len(es)-i))
			break
		}
		lines = append(lines, e.Error())
	}
	return strings.Join(lines, "\n")
}

// orNil sorts the errors by line, those of one line as they were found, and
// returns nil when there are none.
func (es Errors) orNil() error {
	if len(es) == 0 {
		return nil
	}
	slices.SortStableFunc(es, func(a, b Error) int { return cmp.Compare(a.Line, b.Line) })
	return es
}
