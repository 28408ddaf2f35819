package bench

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGrowthIsJudged: what is slower than the bar, sends more, scans or goes by
// another index fails a run, and nothing else does.
func TestGrowthIsJudged(t *testing.T) {
	t.Parallel()
	op := growthOps[slices.IndexFunc(growthOps, func(op growthOp) bool { return op.name == opClaim })]
	least := GrowthCase{Op: opClaim, Grown: "history", Rows: 1000, MedianMS: 10, Commands: 3}
	for name, c := range map[string]struct {
		set    func(*GrowthCase, *samples)
		failed string
	}{
		"as before":     {func(*GrowthCase, *samples) {}, ""},
		"slower":        {func(c *GrowthCase, _ *samples) { c.Ratio = 1.6 }, "1.60 times as long as at 1 k"},
		"another op":    {func(c *GrowthCase, _ *samples) { c.Ratio, c.Op = 3, opSettle }, ""},
		"more commands": {func(c *GrowthCase, _ *samples) { c.Commands = 4 }, "sends 4 commands, 3 at 1 k"},
		"another index": {func(_ *GrowthCase, s *samples) { s.used[1][0] = "tenant_state_updated" }, "instead of [live_tenant_lane _id_ _id_]"},
		"one too many":  {func(_ *GrowthCase, s *samples) { s.used[0] = append(s.used[0], "_id_") }, "instead of"},
		"not explained": {func(_ *GrowthCase, s *samples) { s.used[1] = nil }, "instead of"},
		"fewer":         {func(_ *GrowthCase, s *samples) { s.used[1] = s.used[1][:1] }, ""},
		"a scan":        {func(_ *GrowthCase, s *samples) { s.scans = []string{"Seq Scan"} }, "scans: [Seq Scan]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grown := least
			grown.Rows, grown.Ratio = 1_000_000, 1.4
			s := &samples{used: [][]string{slices.Clone(op.indexes), slices.Clone(op.indexes)}}
			c.set(&grown, s)
			g := &growth{report: &Growth{}}
			g.judge(grown, least, s, op)
			if c.failed == "" {
				require.Empty(t, g.report.Failures)
				return
			}
			require.Len(t, g.report.Failures, 1)
			require.Contains(t, g.report.Failures[0], c.failed)
			require.Contains(t, g.report.Failures[0], "at 1 M rows of history")
		})
	}
}

// A page that is read in spans has as many commands as it needs, within a
// bound, by its two indexes.
func TestPagesAreJudged(t *testing.T) {
	t.Parallel()
	op := growthOps[slices.IndexFunc(growthOps, func(op growthOp) bool { return op.name == opDead })]
	const parked, id = "parked_tenant_state", "_id_"
	for _, used := range [][]string{{parked}, {id, parked}, {id, parked, id, parked}} {
		require.True(t, op.by(used), used)
	}
	for _, used := range [][]string{nil, {id}, {parked, "tenant_state_updated"}} {
		require.False(t, op.by(used), used)
	}
	g := &growth{report: &Growth{}}
	s := &samples{used: [][]string{{parked, parked}}}
	g.judge(GrowthCase{Op: opDead, Commands: 4}, GrowthCase{Commands: 2}, s, op)
	require.Empty(t, g.report.Failures)
	g.judge(GrowthCase{Op: opDead, Commands: 5}, GrowthCase{Commands: 2}, s, op)
	require.Len(t, g.report.Failures, 1)
}
