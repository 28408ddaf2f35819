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
// an expression, lose what was left to be matched again or given up, or fail
// to compile what names the row that an event tells of.
const (
	featureWhen        = "when"
	featureExpressions = "expressions"
	featureHeld        = "held"
	featureEffects     = "effects"
)

// knownFeatures are the event and subscription features of this version.
var knownFeatures = map[string]bool{featureWhen: true, featureExpressions: true, featureHeld: true, featureEffects: true}

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
	texts := slices.Concat(slices.Collect(maps.Values(s.Args)), slices.Collect(maps.Values(s.Vars)))
	expression := func(text string) bool { return strings.Contains(text, "${") }
	if slices.ContainsFunc(texts, expression) {
		list = append(list, featureExpressions)
	}
	// More than need it say so: no harm, but while two versions run.
	told := func(text string) bool { return expression(text) && strings.Contains(text, "effect") }
	if slices.ContainsFunc(s.On.Kinds, isTold) || strings.Contains(s.When, "effect") || slices.ContainsFunc(texts, told) {
		list = append(list, featureEffects)
	}
	if s.Guard.HeldFrom > 0 || s.Guard.DiscardTo > 0 {
		list = append(list, featureHeld)
	}
	return list
}
