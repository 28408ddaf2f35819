package tracker

import (
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
)

// Fold is the one form in which labels and actors are compared: trimmed,
// Unicode NFC, full case folding (docs/triggers-yaml.md). Matching, consuming and
// uniqueness all use it, so that they never disagree.
func Fold(s string) string {
	s = strings.TrimSpace(s)
	if isASCII(s) {
		return strings.ToLower(s) // the same, much cheaper
	}
	// A Caser keeps state, so each call makes its own. Folding can undo the
	// composition, hence the second NFC.
	return norm.NFC.String(cases.Fold().String(norm.NFC.String(s)))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func containsFold(list []string, s string) bool { return indexFold(list, s) >= 0 }

func indexFold(list []string, s string) int {
	f := Fold(s)
	return slices.IndexFunc(list, func(have string) bool { return Fold(have) == f })
}

// UniqueFold drops what is equal under Fold to an earlier entry, and what is
// empty, and keeps the order.
func UniqueFold(list []string) []string {
	seen := make(map[string]bool, len(list))
	var out []string
	for _, s := range list {
		f := Fold(s)
		if f == "" || seen[f] {
			continue
		}
		seen[f] = true
		out = append(out, strings.TrimSpace(s))
	}
	return out
}
