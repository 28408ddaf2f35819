package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// String is the report for people.
func (g *Growth) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d CPUs, %s; medians of %d turns, milliseconds\n\n", g.CPUs, g.GoVersion, g.Rounds)
	if len(g.Cases) > 0 {
		// One line for each operation, one column for each size.
		type line struct {
			grown, op string
			cases     []GrowthCase
		}
		var lines []*line
		for _, c := range g.Cases {
			i := slices.IndexFunc(lines, func(l *line) bool { return l.grown == c.Grown && l.op == c.Op })
			if i < 0 {
				lines = append(lines, &line{grown: c.Grown, op: c.Op})
				i = len(lines) - 1
			}
			lines[i].cases = append(lines[i].cases, c)
		}
		slices.SortStableFunc(lines, func(a, b *line) int { return strings.Compare(b.grown, a.grown) })
		grown := ""
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, l := range lines {
			if l.grown != grown {
				grown = l.grown
				fmt.Fprintf(w, "%s, rows", grown)
				for _, c := range l.cases {
					fmt.Fprintf(w, "\t%s", size(c.Rows))
				}
				fmt.Fprint(w, "\tratio\tcommands\tdocuments\tindexes\n")
			}
			last := l.cases[len(l.cases)-1]
			fmt.Fprintf(w, "%s", l.op)
			for _, c := range l.cases {
				fmt.Fprintf(w, "\t%.1f", c.MedianMS)
			}
			fmt.Fprintf(w, "\t%.2f\t%d\t%d\t%s\n", last.Ratio, last.Commands, last.Documents, strings.Join(last.Indexes, ", "))
		}
		_ = w.Flush()
	}
	if len(g.Idle) > 0 {
		b.WriteByte('\n')
		for _, c := range g.Idle {
			fmt.Fprintf(&b, "idle, %s tenants: %.1f commands/s, %.1f documents/s; a janitor's round of %d commands; started in %.1f s\n",
				size(c.Tenants), c.CommandsPerS, c.DocumentsPerS, c.JanitorCommands, c.StartS)
			for _, kind := range slices.Sorted(maps.Keys(c.ByKind)) {
				fmt.Fprintf(&b, "    %5d %s\n", c.ByKind[kind], kind)
			}
		}
	}
	if m := g.Memory; m != nil {
		fmt.Fprintf(&b, "\nmemory, %s pending rows in %d lanes: %d MiB resident at most, while %d were launched; %d warnings\n",
			size(m.PendingRows), m.Lanes, m.RSSPeakBytes>>20, m.Launched, m.Warned)
		if m.Log != "" {
			fmt.Fprintln(&b, m.Log)
		}
	}
	b.WriteByte('\n')
	for _, f := range g.Failures {
		fmt.Fprintf(&b, "FAILED: %s\n", f)
	}
	return b.String()
}
