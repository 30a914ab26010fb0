package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// drawn are the panels of a series that a test makes by hand.
func drawn(r *Result) string {
	var out []string
	for _, p := range panelsOf(r) {
		var bands []string
		for _, b := range p.bands {
			bands = append(bands, b.name)
		}
		out = append(out, p.title+": "+strings.Join(bands, ", "))
	}
	return strings.Join(out, "\n")
}

// TestPanels: a plot shows what happened, and no line for what did not.
func TestPanels(t *testing.T) {
	r := &Result{Step: duration(5 * time.Second), Series: []sample{
		{Nodes: nodeCounts{Ready: 3}, Pods: podCounts{Serving: 9}, Writes: 4,
			Zones: []zoneSample{{Zone: "a", Rate: 0.1}, {Zone: "b", Rate: 0.1}}},
		{Nodes: nodeCounts{Unknown: 2, Evicting: 1}, Pods: podCounts{Lost: 4, Pending: 4},
			Zones: []zoneSample{{Zone: "a", Rate: 0.1}, {Zone: "b", Rate: 0.01}, {Zone: "c", Rate: 0.1, Waiting: 2}}},
	}}
	want := `nodes that are not simply Ready: Unknown, tainted NoExecute
pods that do not serve: pending, missing, not made up
nodes an hour that may be tainted NoExecute, by zone: b, c
nodes waiting to be tainted, by zone: c
API writes a second, mean over 5s: all writes`
	if got := drawn(r); got != want {
		t.Errorf("drawn\n%s\nwant\n%s", got, want)
	}
	one := []sample{{Zones: []zoneSample{{Zone: "a", Rate: 0.1}}}}
	if got := drawn(&Result{Step: duration(time.Minute), Series: one}); strings.Contains(got, "zone") {
		t.Errorf("where nothing happened, zones are drawn:\n%s", got)
	}
}

// TestRunsShareAScale: panels of one title have the scale of the higher run, so
// that a compared run does not look like the other one; areas are stacked.
func TestRunsShareAScale(t *testing.T) {
	low := &Result{Series: []sample{{Nodes: nodeCounts{Unknown: 1}, Pods: podCounts{Pending: 1}, Writes: 90}}}
	high := &Result{Series: []sample{{Nodes: nodeCounts{Unknown: 3, Evicting: 4}, Pods: podCounts{Pending: 2, Lost: 5}, Writes: 10}}}
	runs := []*Result{low, high}
	tops := sharedTops(runs, [][]panel{panelsOf(low), panelsOf(high)})
	for title, want := range map[string]float64{"nodes that are not simply Ready": 7, "pods that do not serve": 5,
		"API writes a second, mean over 0s": 90} {
		if tops[title] != want {
			t.Errorf("%s: up to %g, want %g of %v", title, tops[title], want, tops)
		}
	}
}

// TestEventsOfAPlot are numbered in the picture and explained below it.
func TestEventsOfAPlot(t *testing.T) {
	r := play(t, three("duration: 10m\nevents: [{at: 1m, kill: {zone: a, for: 1m}}, {at: 5m, heal: {}}]"))
	svg := string(SVG([]*Result{r}))
	for i, e := range eventsOf(r) {
		if line := fmt.Sprintf("%d  %s  %s", i+1, stamp(e.At), e.What); !strings.Contains(svg, line) {
			t.Errorf("the plot does not explain %q", line)
		}
	}
	if n := len(eventsOf(r)); n != 2 || strings.Count(svg, "stroke-dasharray") < n {
		t.Errorf("%d events, %d lines", n, strings.Count(svg, "stroke-dasharray"))
	}
}
