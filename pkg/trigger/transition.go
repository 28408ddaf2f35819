package trigger

// Transition is one way for a row to change its state.
type Transition struct {
	// From is empty for a row that was not there.
	From, To State
	// By says what does it: the engine's step, or a person's action.
	By string
}

// Transitions lists every way for a row to change its state
// (docs/state-machine.md).
func Transitions() []Transition {
	return []Transition{
		{"", StatePending, "materialize"},
		{"", StateHeld, "materialize, paused"},
		{"", StateDone, "materialize, loop cut"},
		{"", StateFailed, "materialize, poison"},
		{StatePending, StateClaimed, "claim"},
		{StateClaimed, StateClaimed, "reclaim"},
		{StateClaimed, StateFailed, "reclaim, attempts exhausted"},
		{StateClaimed, StateReconcile, "reclaim, delivery started"},
		{StateClaimed, StateDone, "settle"},
		{StateClaimed, StatePending, "settle, retry or hand back"},
		{StateClaimed, StateFailed, "settle"},
		{StateClaimed, StateReconcile, "settle, no definite answer"},
		{StateClaimed, StateHeld, "settle, paused"},
		{StateReconcile, StateDone, "late settle"},
		{StateReconcile, StatePending, "late settle, retry"},
		{StateReconcile, StateFailed, "late settle"},
		{StateFailed, StatePending, string(ActionReplay)},
		{StateDone, StatePending, string(ActionRerun)},
		{StateFailed, StateDiscarded, string(ActionDiscard)},
		{StateReconcile, StateDiscarded, string(ActionDiscard)},
		{StateHeld, StateDiscarded, string(ActionDiscard)},
		{StateReconcile, StateDone, string(ActionConfirm)},
		{StateReconcile, StatePending, string(ActionForce)},
		{StateHeld, StatePending, string(ActionRelease)},
	}
}
