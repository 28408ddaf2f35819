package tracker

import (
	"strings"
	"time"
)

// A position is a fraction between 0 and 1, written in the digits below
// without the point and without zeros at its end: as texts compare, so do the
// fractions, and between any two of them there is another. Cards of one column
// stand in the order of their positions, and where those are equal, or there is
// none, of their ids (docs/boards.md).

// PositionMaxBytes is the longest position. It leaves room for about 280
// insertions at the same place, each between the two that were put there last.
const PositionMaxBytes = 64

const (
	positionDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // ascending as texts
	positionBase   = len(positionDigits)
	// The leading digits of a position at an end of a column count, so that
	// positions at the ends don't grow longer: milliseconds last for 6900 years.
	positionCount = 8
)

// PositionAt is the position at the bottom of any column for a card that comes
// at this time: nobody has to look where the last card stands.
func PositionAt(now time.Time) string { return countedPosition(uint64(max(now.UnixMilli(), 0))) }

// countedPosition ends in a digit that is neither the first nor the last.
func countedPosition(n uint64) string {
	var digits [positionCount + 1]byte
	digits[positionCount] = positionDigits[positionBase/2]
	for i := positionCount - 1; i >= 0; i-- {
		digits[i] = positionDigits[n%uint64(positionBase)]
		n /= uint64(positionBase)
	}
	return string(digits[:])
}

// positionNumber is the count that a position begins with.
func positionNumber(p string) (n uint64) {
	for i := range positionCount {
		n = n*uint64(positionBase) + uint64(digitAt(p, i))
	}
	return n
}

// digitAt returns a digit's value, 0 past the end.
func digitAt(p string, i int) int {
	if i >= len(p) {
		return 0
	}
	return strings.IndexByte(positionDigits, p[i])
}

// ValidPosition reports whether p is a position.
func ValidPosition(p string) bool {
	return p != "" && len(p) <= PositionMaxBytes && strings.Trim(p, positionDigits) == "" && !strings.HasSuffix(p, positionDigits[:1])
}

// PositionsBetween returns n ascending positions after a and before b; an empty
// a or b stands for the top or the bottom of the column. ok is false when there
// is no room: they are not in this order, or a position would be too long.
func PositionsBetween(a, b string, n int) (out []string, ok bool) {
	if (b != "" && a >= b) || (a != "" && !ValidPosition(a)) || (b != "" && !ValidPosition(b)) {
		return nil, false
	}
	out = make([]string, n)
	switch {
	case b == "" && positionNumber(a)+uint64(n) < positionNumber("zzzzzzzz"):
		for i := range out {
			out[i] = countedPosition(positionNumber(a) + uint64(i) + 1)
		}
		return out, true
	case a == "" && b != "" && positionNumber(b) > uint64(n):
		for i := range out {
			out[i] = countedPosition(positionNumber(b) - uint64(n-i))
		}
		return out, true
	}
	return out, bisect(a, b, out)
}

// bisect fills out from its middle on, so that the positions grow by one digit
// for 62 cards and not for each few.
func bisect(a, b string, out []string) bool {
	if len(out) == 0 {
		return true
	}
	mid := len(out) / 2
	out[mid] = between(a, b)
	return len(out[mid]) <= PositionMaxBytes && bisect(a, out[mid], out[:mid]) && bisect(out[mid], b, out[mid+1:])
}

// between returns a position between two different ones, the middle of those of
// the least length or one near it.
func between(a, b string) string {
	var out []byte
	below := b == "" // whatever follows, it stays below b
	for i := 0; ; i++ {
		low, high := digitAt(a, i), positionBase
		if !below {
			high = digitAt(b, i)
		}
		switch {
		case high-low > 1:
			return string(append(out, positionDigits[(low+high)/2]))
		case high-low == 1 && !below:
			if len(b) > i+1 {
				return string(append(out, positionDigits[high])) // b goes on, and this ends
			}
			below = true
		}
		out = append(out, positionDigits[low])
	}
}
