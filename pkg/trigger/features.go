package trigger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// What a replica must know to serve a subscription that makes use of it: one
// that does not would fire without looking at `when`, launch with the text of
// an expression, or lose what was left to be matched again or given up.
const (
	featureWhen        = "when"
	featureExpressions = "expressions"
	featureHeld        = "held"
)

// knownFeatures are the event and subscription features of this version.
var knownFeatures = map[string]bool{featureWhen: true, featureExpressions: true, featureHeld: true}

// UnknownFeatureError says that an event or a subscription needs a feature of
// a newer version. It is never poison: the tenant is left to other replicas.
type UnknownFeatureError struct{ What, Feature string }

func (e *UnknownFeatureError) Error() string {
	return fmt.Sprintf("%s requires the feature %q, which this version does not know", e.What, e.Feature)
}

func checkFeatures(what string, requires []string) error {
	for _, f := range requires {
		if !knownFeatures[f] {
			return &UnknownFeatureError{What: what, Feature: f}
		}
	}
	return nil
}

// Foreign reports whether the subscription has features that this version does
// not know: a save by it would lose what it does not know of.
func (s *Subscription) Foreign() bool { return checkFeatures("", s.Requires) != nil }

// Edited makes the subscription ready to be saved after an edit by this
// version: the next revision, and what a replica must know to serve it. It must
// not be Foreign.
func (s *Subscription) Edited(now time.Time) {
	s.Revision++
	s.UpdatedAt = now
	s.Requires = s.features()
}

func (s *Subscription) features() (list []string) {
	if s.When != "" {
		list = append(list, featureWhen)
	}
	expression := func(text string) bool { return strings.Contains(text, "${") }
	if slices.ContainsFunc(slices.Collect(maps.Values(s.Args)), expression) || slices.ContainsFunc(slices.Collect(maps.Values(s.Vars)), expression) {
		list = append(list, featureExpressions)
	}
	if s.Guard.HeldFrom > 0 || s.Guard.DiscardTo > 0 {
		list = append(list, featureHeld)
	}
	return list
}
