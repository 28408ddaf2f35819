package tracker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Stamp orders the changes of one field of a card, whatever order they arrive
// in. A forge's times have one second, so a tie is common: the action's own
// delta then wins over a value that merely stood in a snapshot, and of two of
// the same sort the later delivery wins (Tie).
type Stamp struct {
	At    time.Time `json:"at,omitempty,omitzero"`
	Delta bool      `json:"delta,omitempty"`
	Tie   string    `json:"tie,omitempty"`
}

// Compare orders stamps: negative when s is older than o.
func (s Stamp) Compare(o Stamp) int {
	if c := s.At.Compare(o.At); c != 0 {
		return c
	}
	if s.Delta != o.Delta {
		if s.Delta {
			return 1
		}
		return -1
	}
	return cmp.Compare(s.Tie, o.Tie)
}

// Newer reports whether s is later than o.
func (s Stamp) Newer(o Stamp) bool { return s.Compare(o) > 0 }

// LabelStamp is the last change of one label: Label is folded. SpentBy names
// the effect that consumed it, when that was its last change; only a labeling
// newer than the consumption brings the label back.
type LabelStamp struct {
	Label   string `json:"label"`
	Present bool   `json:"present,omitempty"`
	Stamp   Stamp  `json:"stamp"`
	SpentBy string `json:"spent_by,omitempty"`
}

// AssigneeTie is the latest delivery of one second that named an assignee
// (folded).
type AssigneeTie struct {
	Assignee string `json:"assignee"`
	Tie      string `json:"tie"`
}

// Stamps holds the last change of each of a card's fields.
type Stamps struct {
	Title     Stamp `json:"title,omitempty,omitzero"`
	Body      Stamp `json:"body,omitempty,omitzero"`
	Assignees Stamp `json:"assignees,omitempty,omitzero"`
	Column    Stamp `json:"column,omitempty,omitzero"`
	// AssigneeTies are the assignments of the second that Assignees names.
	AssigneeTies []AssigneeTie `json:"assignee_ties,omitempty"`
	// LabelFloor is the time at which every label that Labels does not name
	// was absent.
	LabelFloor Stamp        `json:"label_floor,omitempty,omitzero"`
	Labels     []LabelStamp `json:"labels,omitempty"`
}

// Label returns what is known of the label's last change.
func (s *Stamps) Label(label string) LabelStamp {
	f := Fold(label)
	for _, l := range s.Labels {
		if l.Label == f {
			return l
		}
	}
	return LabelStamp{Label: f, Stamp: s.LabelFloor}
}

// SetLabel records the label's last change. Past LabelStampsMax the oldest
// absent ones are folded into the floor: their times become the time at which
// everything unnamed was absent.
func (s *Stamps) SetLabel(ls LabelStamp) {
	ls.Label = Fold(ls.Label)
	if i := slices.IndexFunc(s.Labels, func(l LabelStamp) bool { return l.Label == ls.Label }); i >= 0 {
		s.Labels[i] = ls
		return
	}
	s.Labels = append(s.Labels, ls)
	for len(s.Labels) > LabelStampsMax {
		oldest := -1
		for i, l := range s.Labels {
			if !l.Present && (oldest < 0 || l.Stamp.Compare(s.Labels[oldest].Stamp) < 0) {
				oldest = i
			}
		}
		if oldest < 0 {
			return
		}
		if st := s.Labels[oldest].Stamp; st.Newer(s.LabelFloor) {
			s.LabelFloor = st
		}
		s.Labels = slices.Delete(s.Labels, oldest, oldest+1)
	}
}

// DeliveryTie is the Tie of a delivery: deliveries whose id is a version 1
// UUID (RFC 9562) sort by the time in it, to 100 ns; others sort below those,
// by id. GitHub's ids are of version 1.
func DeliveryTie(deliveryID string) string {
	if id, err := uuid.Parse(deliveryID); err == nil && id.Version() == 1 {
		sec, nsec := id.Time().UnixTime()
		return "1" + time.Unix(sec, nsec).UTC().Format("20060102150405.0000000") + strings.ToLower(deliveryID)
	}
	return "0" + deliveryID
}
