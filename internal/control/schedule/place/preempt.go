package place

import (
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Preemption is a node that would take the pod once the victims are gone.
type Preemption struct {
	Node string
	// Victims are to be deleted, most important first.
	Victims []*v1.Pod
	// Violations is how many of them a disruption budget would have kept.
	Violations int
}

// maxCandidates bounds how many nodes preemption compares.
const maxCandidates = 100

// preempt looks for the node where making room costs least. The order of
// preference: fewest budgets violated, lowest most important victim, lowest
// sum of priorities, fewest victims, latest start of the most important one.
func (c *cycle) preempt(refused map[*node]verdict) (*Preemption, string) {
	total := len(c.s.order)
	if p := c.pod.Obj.Spec.PreemptionPolicy; p != nil && *p == v1.PreemptNever {
		return nil, "not eligible due to preemptionPolicy=Never."
	}
	if at := c.s.nominations[c.pod.Obj.UID]; at != "" && c.victimsLeaving(at) {
		return nil, "not eligible due to terminating pod on the nominated node."
	}
	notes := map[string][]string{}
	var best *candidate
	found := 0
	// In node order, so that the outcome does not depend on map iteration.
	for i := 0; i < total && found < maxCandidates; i++ {
		n := c.s.order[(c.s.next+i)%total]
		v, ok := refused[n]
		if !ok {
			continue
		}
		if v.final {
			notes[n.name] = []string{"Preemption is not helpful for scheduling"}
			continue
		}
		cand, note := c.selectVictims(n)
		if note != "" {
			notes[n.name] = []string{note}
			continue
		}
		found++
		if best == nil || cand.better(best) {
			best = cand
		}
	}
	if best == nil {
		return nil, fmt.Sprintf("0/%d nodes are available: %s.", total, tally(notes))
	}
	return &best.Preemption, ""
}

// victimsLeaving says whether pods of lower priority are still going away on
// the node promised earlier.
func (c *cycle) victimsLeaving(at string) bool {
	n := c.s.nodes[at]
	if n == nil {
		return false
	}
	for _, pl := range n.pods {
		if pl.Obj.DeletionTimestamp != nil && pl.Priority < c.pod.Priority {
			return true
		}
	}
	return false
}

type candidate struct {
	Preemption
	highest int32
	sum     int64
	start   *metav1.Time // of the most important victims, the earliest
}

func (a *candidate) better(b *candidate) bool {
	switch {
	case a.Violations != b.Violations:
		return a.Violations < b.Violations
	case a.highest != b.highest:
		return a.highest < b.highest
	case a.sum != b.sum:
		return a.sum < b.sum
	case len(a.Victims) != len(b.Victims):
		return len(a.Victims) < len(b.Victims)
	}
	return b.start.Before(a.start)
}

// selectVictims finds the fewest victims on one node: it removes every pod of lower
// priority, then puts back all that the incoming pod can live with, most important
// first and those protected by a disruption budget before others.
func (c *cycle) selectVictims(n *node) (*candidate, string) {
	w := viewOf(n)
	for uid, p := range c.s.nominated[n.name] {
		if uid != c.pod.Obj.UID && p.Priority >= c.pod.Priority {
			w.extra = append(w.extra, p)
			w.requested = w.requested.add(p.Request, 1)
			c.shift(p, n, 1)
		}
	}
	var lower []*Pod
	for _, pl := range n.pods {
		if pl.Priority < c.pod.Priority {
			lower = append(lower, pl.Pod)
		}
	}
	sort.Slice(lower, func(i, j int) bool { return moreImportant(lower[i], lower[j]) })
	for _, p := range lower {
		c.take(&w, p)
	}
	defer func() { // leave the cycle's counts as they were
		for _, p := range lower {
			if w.gone[p.Obj.UID] {
				c.give(&w, p)
			}
		}
		for _, p := range w.extra {
			c.shift(p, n, -1)
		}
	}()
	if len(lower) == 0 {
		return nil, "No preemption victims found for incoming pod"
	}
	if v := c.run(&w); !v.ok() {
		return nil, v.reasons[0]
	}
	protected, others := c.byBudget(lower)
	cand := &candidate{Preemption: Preemption{Node: n.name}}
	spare := func(pods []*Pod) (victims int) {
		for _, p := range pods {
			c.give(&w, p)
			if v := c.run(&w); v.ok() {
				continue
			}
			c.take(&w, p)
			cand.add(p)
			victims++
		}
		return victims
	}
	cand.Violations = spare(protected)
	spare(others)
	if len(cand.Victims) == 0 {
		return nil, "No preemption victims found for incoming pod"
	}
	sort.SliceStable(cand.Victims, func(i, j int) bool { return priority(cand.Victims[i]) > priority(cand.Victims[j]) })
	return cand, ""
}

func (a *candidate) add(p *Pod) {
	start := p.Obj.Status.StartTime
	if start == nil {
		start = &p.Obj.CreationTimestamp
	}
	switch {
	case len(a.Victims) == 0 || p.Priority > a.highest:
		a.highest, a.start = p.Priority, start
	case p.Priority == a.highest && start.Before(a.start):
		a.start = start
	}
	// Shifted so that many low victims never look better than fewer.
	a.sum += int64(p.Priority) + (1 << 31)
	a.Victims = append(a.Victims, p.Obj)
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// moreImportant orders by priority, then by age: an older pod matters more.
func moreImportant(a, b *Pod) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	at, bt := a.Obj.Status.StartTime, b.Obj.Status.StartTime
	if at == nil || bt == nil || at.Equal(bt) {
		return a.Obj.UID < b.Obj.UID
	}
	return at.Before(bt)
}

// byBudget splits pods into those whose removal would violate a disruption
// budget, counting what earlier ones use up, and the rest.
func (c *cycle) byBudget(pods []*Pod) (protected, others []*Pod) {
	left := map[*policyv1.PodDisruptionBudget]int32{}
	type guard struct {
		b   *policyv1.PodDisruptionBudget
		sel labels.Selector
	}
	var guards []guard
	for _, b := range c.s.budgets {
		sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || sel.Empty() {
			continue
		}
		left[b] = b.Status.DisruptionsAllowed
		guards = append(guards, guard{b, sel})
	}
	for _, p := range pods {
		violates := false
		for _, g := range guards {
			if g.b.Namespace != p.Obj.Namespace || len(p.Obj.Labels) == 0 || !g.sel.Matches(labels.Set(p.Obj.Labels)) {
				continue
			}
			if _, counted := g.b.Status.DisruptedPods[p.Obj.Name]; counted {
				continue
			}
			left[g.b]--
			violates = violates || left[g.b] < 0
		}
		if violates {
			protected = append(protected, p)
		} else {
			others = append(others, p)
		}
	}
	return protected, others
}
