package tracker

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound says that the tenant has no such thing. For a card it is definitive
	// (T2): every other error is taken for transient.
	ErrNotFound = errors.New("not found")
	// ErrConflict says that the condition of a write did not hold: nothing
	// was written. Read again and decide anew.
	ErrConflict = errors.New("conflict")
	// ErrPendingFull says that the card already holds PendingMax events that are not
	// in the log yet (E3). Nothing was written; try again later.
	ErrPendingFull = fmt.Errorf("the card has %d events that are not in the log yet", PendingMax)
)

// FieldError refuses an input: it names the field and what is allowed, and
// does not repeat the value, which may be secret.
type FieldError struct {
	Field string
	Want  string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Want }

// Fieldf makes a FieldError.
func Fieldf(field, want string, args ...any) error {
	return &FieldError{Field: field, Want: fmt.Sprintf(want, args...)}
}
