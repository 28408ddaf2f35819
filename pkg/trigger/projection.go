package trigger

import (
	"time"
)

// ProjectionsMax is the most projections that a tenant may have.
const ProjectionsMax = 100

// Projection mirrors the column of one board's cards onto another board.
type Projection struct {
	TenantID string `json:"tenant_id"`
	ID       string `json:"id"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	Enabled  bool   `json:"enabled"`
	// ActiveFromSeq is the tenant's seq as read before the write that enabled
	// the projection: it looks only at later events (T7).
	ActiveFromSeq int64  `json:"active_from_seq"`
	FromBoardID   string `json:"from_board_id"`
	ToBoardID     string `json:"to_board_id"`
	// Columns maps column ids of the one board to column ids of the other,
	// no two to the same.
	Columns   []ColumnPair `json:"columns"`
	UpdatedAt time.Time    `json:"updated_at"`
}

// ColumnPair maps one column.
type ColumnPair struct {
	From string `json:"from"`
	To   string `json:"to"`
}
