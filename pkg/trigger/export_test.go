package trigger

// StoredMatcher compiles a subscription as the tail does one that it reads.
var StoredMatcher = storedMatcher

// Render renders a subscription's args and vars for an event.
func Render(s *Subscription, e *Event) (args, vars map[string]string, err error) {
	t, err := compileTexts(s)
	if err != nil {
		return nil, nil, err
	}
	r, err := t.render(s, e)
	return r.args, r.vars, err
}
