package trigger

import "time"

// laneMarks are the earliest due times of some lanes.
type laneMarks map[laneKey]time.Time

// at marks a lane due, unless it is earlier already.
func (m laneMarks) at(lane laneKey, due time.Time) {
	if have, there := m[lane]; !there || due.Before(have) {
		m[lane] = due
	}
}

// add marks a pending row's lane.
func (m laneMarks) add(row *Effect) laneMarks {
	if row.State == StatePending {
		m.at(laneKey{row.TenantID, row.Lane}, row.NotBefore)
	}
	return m
}

// list returns the marks, in no order.
func (m laneMarks) list() []LaneMark {
	list := make([]LaneMark, 0, len(m))
	for lane, due := range m {
		list = append(list, LaneMark{TenantID: lane.tenant, Lane: lane.lane, Due: due})
	}
	return list
}
