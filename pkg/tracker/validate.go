package tracker

import (
	"regexp"
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
