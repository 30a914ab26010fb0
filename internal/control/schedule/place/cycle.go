package place

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-dev/berth/internal/podutil"
)

// cycle is what one call of Place computes once and then asks per node: the
// pod's own wishes, and counts per topology value for the constraints between
// pods. Counts follow pods that preemption takes away on trial.
type cycle struct {
	s   *Snapshot
	pod *Pod

	required  *nodeaffinity.RequiredNodeAffinity
	preferred *nodeaffinity.PreferredSchedulingTerms
	// only holds the node names allowed when affinity pins them; nil: any.
	only map[string]bool

	// refused counts, per topology pair, placed pods whose required
	// anti-affinity selects the incoming pod.
	refused map[pair]int
	// wanted and unwanted count, per required (anti-)affinity term of the
	// incoming pod and topology value, the placed pods it selects.
	wanted, unwanted []map[string]int
	// selfMatch says the pod satisfies all its own affinity terms, so that the
	// first pod of a group can start somewhere.
	selfMatch bool
	spreads   []spreadState
	claims    []claimNeed
	volumes   []*v1.PersistentVolume // all, sorted; listed when first needed
	devices   *deviceNeeds           // nil for a pod without resource claims
}

type pair struct{ key, value string }

// spreadState counts matching pods per value of one constraint's topology key,
// over the nodes the pod could use.
type spreadState struct {
	*spread
	counts map[string]int
	self   int // 1 if the pod counts itself
	min    int
	dirty  bool
}

func (s *Snapshot) begin(p *Pod) *cycle {
	c := &cycle{s: s, pod: p, required: requiredNodes(p.Obj)}
	if a := p.Obj.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if terms := a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
			// Terms that do not parse prefer nothing.
			c.preferred, _ = nodeaffinity.NewPreferredSchedulingTerms(terms)
		}
	}
	if names, ok := pinned(p.Obj); ok {
		c.only = names
	}
	c.countAffinity()
	c.countSpread()
	return c
}

func (c *cycle) nsLabels(ns string) labels.Set { return c.s.namespaces[ns] }

func (c *cycle) countAffinity() {
	for _, pl := range c.s.choosy {
		c.countRefusal(pl.Pod, pl.node, 1)
	}
	p := c.pod
	if len(p.affinity)+len(p.anti) == 0 {
		return
	}
	c.wanted, c.unwanted = make([]map[string]int, len(p.affinity)), make([]map[string]int, len(p.anti))
	for i := range c.wanted {
		c.wanted[i] = map[string]int{}
	}
	for i := range c.unwanted {
		c.unwanted[i] = map[string]int{}
	}
	for _, pl := range c.s.pods {
		c.countTerms(pl.Pod, pl.node, 1)
	}
	c.selfMatch = true
	for i := range p.affinity {
		c.selfMatch = c.selfMatch && p.affinity[i].matches(p.Obj, c.nsLabels(p.Obj.Namespace))
	}
}

func (c *cycle) countRefusal(other *Pod, n *node, sign int) {
	if n.obj == nil {
		return
	}
	for i := range other.anti {
		t := &other.anti[i]
		value, ok := n.obj.Labels[t.key]
		if !ok || !t.matches(c.pod.Obj, c.nsLabels(c.pod.Obj.Namespace)) {
			continue
		}
		if c.refused == nil {
			c.refused = map[pair]int{}
		}
		c.refused[pair{t.key, value}] += sign
	}
}

// countTerms counts one placed pod for the incoming pod's required terms. A
// pod counts for affinity only if it is selected by every affinity term.
func (c *cycle) countTerms(other *Pod, n *node, sign int) {
	if n.obj == nil {
		return
	}
	ns := c.nsLabels(other.Obj.Namespace)
	all := true
	for i := range c.pod.affinity {
		all = all && c.pod.affinity[i].matches(other.Obj, ns)
	}
	for i := range c.pod.affinity {
		if v, ok := n.obj.Labels[c.pod.affinity[i].key]; ok && all {
			bump(c.wanted[i], v, sign)
		}
	}
	for i := range c.pod.anti {
		if v, ok := n.obj.Labels[c.pod.anti[i].key]; ok && c.pod.anti[i].matches(other.Obj, ns) {
			bump(c.unwanted[i], v, sign)
		}
	}
}

func bump(m map[string]int, k string, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

func (c *cycle) countSpread() {
	hard := c.pod.hardSpread
	if len(hard) == 0 {
		return
	}
	c.spreads = make([]spreadState, len(hard))
	for i := range hard {
		st := &c.spreads[i]
		*st = spreadState{spread: &hard[i], counts: map[string]int{}, dirty: true}
		if st.selector.Matches(labels.Set(c.pod.Obj.Labels)) {
			st.self = 1
		}
	}
	for _, n := range c.s.order {
		for i := range c.spreads {
			st := &c.spreads[i]
			v, ok := n.obj.Labels[st.key]
			if !ok || !c.hasAllSpreadKeys(n) || !c.eligible(n, st.spread) {
				continue
			}
			st.counts[v] += c.spreadMatches(n, st.spread)
		}
	}
}

func (c *cycle) hasAllSpreadKeys(n *node) bool {
	for i := range c.pod.hardSpread {
		if _, ok := n.obj.Labels[c.pod.hardSpread[i].key]; !ok {
			return false
		}
	}
	return true
}

// eligible says whether a node's pods count for a spread constraint, by the
// constraint's node inclusion policies.
func (c *cycle) eligible(n *node, st *spread) bool {
	if !st.anyNode && c.required != nil {
		if ok, err := c.required.Match(n.obj); !ok || err != nil {
			return false
		}
	}
	return !st.honorTaints || untolerated(n.obj.Spec.Taints, c.pod.Obj.Spec.Tolerations) == nil
}

func (c *cycle) spreadMatches(n *node, st *spread) int {
	count := 0
	for _, pl := range n.pods {
		if c.spreadCounts(pl.Pod, st) {
			count++
		}
	}
	return count
}

func (c *cycle) spreadCounts(other *Pod, st *spread) bool {
	return other.Obj.Namespace == c.pod.Obj.Namespace && other.Obj.DeletionTimestamp == nil &&
		st.selector.Matches(labels.Set(other.Obj.Labels))
}

// lowest returns the smallest count over all topology values, or 0 when there
// are fewer values than minDomains.
func (st *spreadState) lowest() int {
	if !st.dirty {
		return st.min
	}
	st.dirty, st.min = false, 0
	if len(st.counts) < st.minDomains {
		return 0
	}
	first := true
	for _, n := range st.counts {
		if first || n < st.min {
			st.min, first = n, false
		}
	}
	return st.min
}

// shift counts a pod in (+1) or out (-1) of the cycle's topology counts.
func (c *cycle) shift(other *Pod, n *node, sign int) {
	c.countRefusal(other, n, sign)
	if c.wanted != nil {
		c.countTerms(other, n, sign)
	}
	for i := range c.spreads {
		st := &c.spreads[i]
		v, ok := n.obj.Labels[st.key]
		if !ok || !c.spreadCounts(other, st.spread) || !c.hasAllSpreadKeys(n) || !c.eligible(n, st.spread) {
			continue
		}
		st.counts[v] += sign
		st.dirty = true
	}
}

// view is a node as the pod would find it: with nominated pods added, or
// victims removed. The maps are nil while it is the node as it is.
type view struct {
	*node
	requested Resources
	gone      map[types.UID]bool
	extra     []*Pod
}

func viewOf(n *node) view { return view{node: n, requested: n.requested} }

func (c *cycle) take(w *view, pl *Pod) {
	if w.gone == nil {
		w.gone = map[types.UID]bool{}
	}
	w.gone[pl.Obj.UID] = true
	w.requested = w.requested.add(pl.Request, -1)
	c.shift(pl, w.node, -1)
}

func (c *cycle) give(w *view, pl *Pod) {
	delete(w.gone, pl.Obj.UID)
	w.requested = w.requested.add(pl.Request, 1)
	c.shift(pl, w.node, 1)
}

func (w *view) eachPod(f func(*Pod) bool) {
	for uid, pl := range w.pods {
		if !w.gone[uid] && !f(pl.Pod) {
			return
		}
	}
	for _, p := range w.extra {
		if !f(p) {
			return
		}
	}
}

func untolerated(taints []v1.Taint, tolerations []v1.Toleration) *v1.Taint {
	for i := range taints {
		t := &taints[i]
		if (t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute) && !podutil.Tolerates(tolerations, t) {
			return t
		}
	}
	return nil
}

// Tolerates says whether no taint keeps a pod with these tolerations away.
func Tolerates(taints []v1.Taint, tolerations []v1.Toleration) bool {
	return untolerated(taints, tolerations) == nil
}
