package place

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/journal"
)

// Decision is where a pod goes, or why nowhere.
type Decision struct {
	// Node is the chosen node, empty when none will do.
	Node string
	// Total is how many nodes exist, Evaluated how many were looked at before
	// enough would do, Feasible how many of those would.
	Total, Evaluated, Feasible int
	// Best is the winner's rating, RunnerUp the next best one's.
	Best, RunnerUp Score
	// Volumes must be written before the pod is bound.
	Volumes VolumePlan
	// Devices must be written to resource claims before the pod is bound.
	Devices DevicePlan
	// Release names a claim whose devices no node that would do can reach, and
	// that no one uses: giving them back may help. Nil when there is none.
	Release *types.NamespacedName

	// Everywhere is the one reason that holds on every node; when it is set,
	// Refusals is empty.
	Everywhere string
	// Refusals gives each node's reasons when no node will do.
	Refusals map[string][]string
	// Preempt is the way out that preemption found, nil if there is none;
	// PreemptNote says why not, in the words of the FailedScheduling event.
	Preempt     *Preemption
	PreemptNote string
}

// Options tune a placement.
type Options struct {
	// NoPreemption leaves out the search for victims.
	NoPreemption bool
	// All looks at every node even when fewer would do.
	All bool
}

// enough returns how many feasible nodes suffice for a good choice among n:
// all up to 100, then a share that shrinks from 50 % to 5 %.
func enough(n int) int {
	if n <= 100 {
		return n
	}
	share := max(50-n/125, 5)
	return max(n*share/100, 100)
}

// Place decides for one pod. The snapshot is not changed except for the
// rotation that spreads equal choices.
func (s *Snapshot) Place(p *Pod, opts Options) Decision {
	d := Decision{Total: len(s.order)}
	if len(s.order) == 0 {
		return d
	}
	c := s.begin(p)
	if d.Everywhere = c.lookVolumes(); d.Everywhere == "" {
		d.Everywhere = c.lookDevices()
	}
	if d.Everywhere != "" {
		d.PreemptNote = fmt.Sprintf("0/%d nodes are available: %d Preemption is not helpful for scheduling.", d.Total, d.Total)
		return d
	}
	feasible, refused := c.search(opts, &d)
	d.Feasible = len(feasible)
	if len(feasible) == 0 {
		d.Refusals = make(map[string][]string, len(refused))
		for n, v := range refused {
			d.Refusals[n.name] = v.reasons
		}
		d.Release = c.releaseDevices()
		if !opts.NoPreemption {
			d.Preempt, d.PreemptNote = c.preempt(refused)
		}
		return d
	}
	c.choose(feasible, &d)
	if len(c.claims) > 0 {
		d.Volumes, _ = c.planVolumes(s.nodes[d.Node].obj)
	}
	d.Devices = c.planDevices(s.nodes[d.Node].obj)
	return d
}

// search filters nodes in turn until enough would do.
func (c *cycle) search(opts Options, d *Decision) (feasible []*node, refused map[*node]verdict) {
	s := c.s
	refused = map[*node]verdict{}
	if nominated := s.nominations[c.pod.Obj.UID]; nominated != "" {
		// Its victims may have left: try the promised node first.
		if n := s.nodes[nominated]; n != nil && n.obj != nil {
			if v := c.fits(n); v.ok() {
				d.Evaluated = 1
				return []*node{n}, nil
			}
		}
	}
	want := enough(len(s.order))
	if opts.All {
		want = len(s.order)
	}
	if c.only != nil {
		for name := range c.only {
			if n := s.nodes[name]; n != nil && n.obj != nil && c.fitsPinned(n) {
				feasible = append(feasible, n)
			}
		}
		if len(feasible) > 0 {
			d.Evaluated = len(c.only)
			sort.Slice(feasible, func(i, j int) bool { return feasible[i].name < feasible[j].name })
			return feasible, nil
		}
	}
	start := s.next % len(s.order)
	for i := 0; i < len(s.order) && len(feasible) < want; i++ {
		n := s.order[(start+i)%len(s.order)]
		d.Evaluated++
		if v := c.fits(n); v.ok() {
			feasible = append(feasible, n)
		} else {
			refused[n] = v
		}
	}
	s.next = (start + d.Evaluated) % len(s.order)
	if d.Evaluated == len(s.order) {
		// A full round would otherwise always start at the same node.
		s.next = (start + 1) % len(s.order)
	}
	return feasible, refused
}

func (c *cycle) fitsPinned(n *node) bool { v := c.fits(n); return v.ok() }

// choose takes the best rated node; of equals the first one in turn.
func (c *cycle) choose(nodes []*node, d *Decision) {
	if len(nodes) == 1 {
		d.Node = nodes[0].name
		d.Best = Score{Node: d.Node}
		return
	}
	totals, parts := c.rate(nodes)
	best, second := 0, -1
	for i := 1; i < len(nodes); i++ {
		if totals[i] > totals[best] {
			best, second = i, best
		} else if second < 0 || totals[i] > totals[second] {
			second = i
		}
	}
	detail := func(i int) Score {
		sc := Score{Node: nodes[i].name, Total: totals[i], Parts: map[string]int64{}}
		for k := range scorers {
			if parts[k] != nil {
				sc.Parts[scorers[k].name] = parts[k][i]
			}
		}
		return sc
	}
	d.Node, d.Best, d.RunnerUp = nodes[best].name, detail(best), detail(second)
}

// Message says why no node will do, in the words of the FailedScheduling event.
func (d *Decision) Message() string {
	if d.Total == 0 {
		return "no nodes available to schedule pods"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "0/%d nodes are available:", d.Total)
	if d.Everywhere != "" {
		b.WriteString(" " + d.Everywhere + ".")
	} else {
		b.WriteString(" " + tally(d.Refusals) + ".")
	}
	if d.PreemptNote != "" {
		b.WriteString(" preemption: " + d.PreemptNote)
	}
	return b.String()
}

// tally counts equal reasons over nodes: "1 Insufficient cpu, 2 Too many pods".
func tally(by map[string][]string) string {
	counts := map[string]int{}
	for _, reasons := range by {
		for _, r := range reasons {
			counts[r]++
		}
	}
	lines := make([]string, 0, len(counts))
	for r, n := range counts {
		lines = append(lines, strconv.Itoa(n)+" "+r)
	}
	sort.Strings(lines)
	return strings.Join(lines, ", ")
}

// Because lists the causes for the decision journal.
func (d *Decision) Because() []journal.Fact {
	facts := []journal.Fact{{Name: "nodes", Value: fmt.Sprintf("%d of %d looked at, %d would do", d.Evaluated, d.Total, d.Feasible)}}
	switch {
	case d.Node == "":
		facts = append(facts, journal.Fact{Name: "refused", Value: d.Message()})
		if d.Preempt != nil {
			facts = append(facts, journal.Fact{Name: "preempting", Value: fmt.Sprintf("%d pods on %s", len(d.Preempt.Victims),
				d.Preempt.Node)})
		}
	case d.RunnerUp.Node != "":
		facts = append(facts, d.Best.fact("score"), d.RunnerUp.fact("next best"))
	}
	return facts
}

func (s Score) fact(name string) journal.Fact {
	keys := make([]string, 0, len(s.Parts))
	for k := range s.Parts {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	parts := make([]string, 0, len(keys))
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%s %d", k, s.Parts[k]))
	}
	return journal.Fact{Name: name, Value: fmt.Sprintf("%s: %d (%s)", s.Node, s.Total, strings.Join(parts, ", "))}
}

// Gated says whether scheduling gates hold the pod back.
func Gated(pod *v1.Pod) bool { return len(pod.Spec.SchedulingGates) > 0 }
