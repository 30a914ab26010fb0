package sim

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Text writes runs of one scenario for people: the timeline of each, and the
// numbers side by side.
func Text(out io.Writer, runs []*Result) error {
	var b strings.Builder
	for i, r := range runs {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s: %s, seed %d%s\n\n", r.Name, short(r.Duration), r.Seed, flagText(r.Flags))
		for _, e := range r.Timeline {
			b.WriteString(e.line())
		}
	}
	b.WriteString("\n")
	b.WriteString(SummaryText(runs))
	_, err := io.WriteString(out, b.String())
	return err
}

func flagText(flags []string) string {
	if len(flags) == 0 {
		return ", default flags"
	}
	return ", " + strings.Join(flags, " ")
}

// line is an entry of the timeline as text.
func (e *entry) line() string {
	what := e.What
	if e.Kind == "event" {
		what = "== " + what
	}
	if e.Count > 0 {
		thing := "node"
		for _, b := range bursts {
			if b.verb == e.What {
				thing = b.thing
			}
		}
		what = count(e.Count, thing) + " " + e.What
		if e.Zone != "" {
			what = "zone " + e.Zone + ": " + what
		}
		if e.Times > 0 {
			what += fmt.Sprintf(", %s times in all", thousands(e.Times))
		}
		if e.Until > e.At {
			what += ", until " + stamp(e.Until)
		}
		if len(e.Names) > 0 {
			more := ""
			if e.Count > len(e.Names) && len(e.Names) > 1 {
				more = ", ..."
			}
			what += " (" + strings.Join(e.Names, ", ") + more + ")"
		}
	}
	return stamp(e.At) + "  " + what + "\n"
}

// SummaryText is the numbers of runs, one column each.
func SummaryText(runs []*Result) string {
	var b strings.Builder
	row := func(name string, cell func(*summary) string) {
		fmt.Fprintf(&b, "%-46s", name)
		for _, r := range runs {
			fmt.Fprintf(&b, " %26s", cell(&r.Summary))
		}
		b.WriteString("\n")
	}
	if len(runs) > 1 {
		fmt.Fprintf(&b, "%-46s", "")
		for i := range runs {
			fmt.Fprintf(&b, " %26s", column(i))
		}
		b.WriteString("\n")
	}
	spread := func(name string, of func(*summary) spreadRule) {
		row(name, func(s *summary) string {
			d := of(s)
			if d.Count == 0 {
				return "-"
			}
			return fmt.Sprintf("%s / %s / %s", short(d.P50), short(d.P99), short(d.Max))
		})
	}
	number := func(name string, of func(*summary) int) {
		row(name, func(s *summary) string { return thousands(of(s)) })
	}
	row("cluster", func(s *summary) string { return count(s.Nodes, "node") + ", " + count(s.Pods, "pod") })
	b.WriteString("how long (p50 / p99 / max)\n")
	spread("  silent node -> marked Unknown", func(s *summary) spreadRule { return s.Detection })
	spread("  silent node -> tainted NoExecute", func(s *summary) spreadRule { return s.Tainting })
	spread("  node back -> Ready, free of taints", func(s *summary) spreadRule { return s.NodeRecovery })
	spread("  pod down -> one serves in its place", func(s *summary) spreadRule { return s.PodRecovery })
	b.WriteString("how much\n")
	number("  times a node was marked Unknown", func(s *summary) int { return s.Detection.Count })
	number("  times a node was, though alive", func(s *summary) int { return s.FalseUnknown })
	number("  times a node was tainted NoExecute", func(s *summary) int { return s.Tainting.Count })
	number("  pods deleted from tainted nodes", func(s *summary) int { return s.Evictions })
	number("    of these, still running well", func(s *summary) int { return s.Needless })
	number("  pods drained", func(s *summary) int { return s.Drained })
	number("  pods of deleted nodes removed", func(s *summary) int { return s.Collected })
	row("  pods missing, summed up", func(s *summary) string { return podTime(s.LostPodTime) })
	row("  pods called ready while dead, summed up", func(s *summary) string { return podTime(s.DeadPodTime) })
	b.WriteString("API writes\n")
	row("  mean a second", func(s *summary) string { return fmt.Sprintf("%.0f", s.SteadyWrites) })
	row("  peak a second", func(s *summary) string { return thousands(s.PeakWrites) + " at " + stamp(s.PeakAt) })
	b.WriteString("at the end\n")
	row("  nodes not Ready", func(s *summary) string {
		n := s.EndNodes
		return thousands(n.Unnoticed + n.NotReady + n.Unknown + n.Evicting)
	})
	number("  pods missing", func(s *summary) int { return s.Unrecovered })
	number("  pods pending", func(s *summary) int { return s.EndPods.Pending })
	number("  pods terminating", func(s *summary) int { return s.EndPods.Terminating })
	for i, r := range runs {
		for _, name := range slices.Sorted(maps.Keys(r.Summary.Pending)) {
			label := ""
			if len(runs) > 1 {
				label = column(i) + ": "
			}
			fmt.Fprintf(&b, "    %s%s: %s\n", label, name, r.Summary.Pending[name])
		}
	}
	return b.String()
}

// column is the name of a run among several.
func column(i int) string {
	if i == 0 {
		return "as is"
	}
	if i == 1 {
		return "compared"
	}
	return fmt.Sprintf("compared %d", i)
}

func podTime(d duration) string {
	hours := d.D().Hours()
	switch {
	case d == 0:
		return "none"
	case hours < 1:
		return fmt.Sprintf("%.1f pod minutes", d.D().Minutes())
	}
	return fmt.Sprintf("%.1f pod hours", hours)
}
