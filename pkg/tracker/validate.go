package tracker

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

var tenantIDPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// ValidTenantID reports whether id may name a tenant (E5). The same form
// serves names that stand in addresses.
func ValidTenantID(id string) bool { return tenantIDPattern.MatchString(id) }

// Validate refuses a card that holds more than it may (E6).
func (c *Card) Validate() error {
	switch {
	case c.Title == "":
		return Fieldf("title", "must not be empty")
	case len(c.Title) > TitleMaxBytes:
		return Fieldf("title", "at most %d bytes", TitleMaxBytes)
	case c.Position != "" && !ValidPosition(c.Position):
		return Fieldf("position", "must be 1 to %d letters and digits that don't end in 0", PositionMaxBytes)
	case len(c.Body) > BodyMaxBytes:
		return Fieldf("body", "at most %d bytes", BodyMaxBytes)
	case !utf8.ValidString(c.Title) || !utf8.ValidString(c.Body):
		return Fieldf("title, body", "must be UTF-8")
	}
	if err := validateNames("labels", c.Labels, LabelsMax, LabelMaxBytes); err != nil {
		return err
	}
	return validateNames("assignees", c.Assignees, AssigneesMax, AssigneeMaxBytes)
}

func validateNames(field string, names []string, most, maxBytes int) error {
	if len(names) > most {
		return Fieldf(field, "at most %d", most)
	}
	for _, n := range names {
		if n == "" || len(n) > maxBytes || !utf8.ValidString(n) {
			return Fieldf(field, "each 1 to %d bytes of UTF-8", maxBytes)
		}
	}
	return nil
}

// Validate refuses a board that can't be shown or referred to. Names and ids
// have the form that triggers.yaml asks for.
func (b *Board) Validate() error {
	switch {
	case !ValidTenantID(b.Name):
		return Fieldf("name", "must match %s", tenantIDPattern)
	case len(b.Columns) == 0 || len(b.Columns) > ColumnsMax:
		return Fieldf("columns", "1 to %d columns", ColumnsMax)
	}
	seen := make(map[string]bool, len(b.Columns))
	for i, c := range b.Columns {
		at := fmt.Sprintf("columns[%d]", i)
		switch {
		case !ValidTenantID(c.ID):
			return Fieldf(at+".id", "must match %s", tenantIDPattern)
		case seen[c.ID]:
			return Fieldf(at+".id", "is another column's too")
		case c.Name == "" || len(c.Name) > NameMaxBytes || !utf8.ValidString(c.Name):
			return Fieldf(at+".name", "1 to %d bytes of UTF-8", NameMaxBytes)
		case strings.TrimSpace(c.Name) != c.Name || strings.ContainsFunc(c.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
			return Fieldf(at+".name", "must be printable, without space around it")
		}
		seen[c.ID] = true
	}
	return nil
}
