package trigger

// Verdict says what Match comes to, condition by condition.
func (m *Matcher) Verdict(e *Event) Verdict {
	fires, _ := m.Match(e)
	return Verdict{EventID: e.ID(), EventSeq: e.Seq, SubscriptionID: m.sub.ID, Fires: fires}
}

// Verdict is what the evaluation of one subscription against one event comes
// to, for people and for a page.
type Verdict struct {
	EventID        string `json:"event_id"`
	EventSeq       int64  `json:"event_seq"`
	SubscriptionID string `json:"subscription_id,omitempty"`
	Fires          bool   `json:"fires"`
	// Summary is one sentence for a board user: what fired it, or the first
	// condition that did not hold.
	Summary string `json:"summary"`
	// Conditions are all conditions that the subscription sets, and those that
	// hold for every one (the actor, the edge), in the order of evaluation.
	Conditions []Condition `json:"conditions"`
	// Error says why the evaluation failed, if it did.
	Error string `json:"error,omitempty"`
}

// Condition is one condition of a verdict.
type Condition struct {
	// Name is the field that sets it ("if.labels_all", "on.to", "when"), or
	// "edge", "actor", "added", "snapshot".
	Name string `json:"name"`
	// Wanted and Found are texts for people.
	Wanted string `json:"wanted"`
	Found  string `json:"found"`
	Held   bool   `json:"held"`
}
