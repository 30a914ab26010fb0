package place

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/podutil"
)

// maxScore is the best score one scorer gives.
const maxScore = 100

// scorers rate every feasible node from 0 to maxScore; the weighted sum
// decides. raw gives a number per node, finish brings them to the scale.
var scorers = []struct {
	name   string
	weight int64
	// skip says that the pod gives the scorer nothing to go by.
	skip   func(*cycle) bool
	raw    func(*cycle, *node) int64
	finish func([]int64)
}{
	{"least allocated", 1, nil, (*cycle).leastAllocated, nil},
	{"balanced", 1, nil, (*cycle).balanced, nil},
	{"taints", 3, nil, (*cycle).softTaints, lowBest},
	{"node affinity", 2, func(c *cycle) bool { return c.preferred == nil }, (*cycle).likesNode, highBest},
	{"siblings apart", 2, (*cycle).spreadsItself, (*cycle).siblings, lowBest},
	{"topology spread", 2, func(c *cycle) bool { return len(c.pod.softSpread) == 0 }, nil, nil},
	{"pod affinity", 2, (*cycle).noOpinions, nil, minMax},
	{"images", 1, nil, (*cycle).imagesHere, nil},
}

// Score is one node's rating: the sum, and the part each scorer gave.
type Score struct {
	Node  string
	Total int64
	Parts map[string]int64
}

// rate returns the total per node and, for the winner's record, each scorer's
// weighted part.
func (c *cycle) rate(nodes []*node) (totals []int64, parts [][]int64) {
	totals = make([]int64, len(nodes))
	parts = make([][]int64, len(scorers))
	for i := range scorers {
		sc := &scorers[i]
		if sc.skip != nil && sc.skip(c) {
			continue
		}
		var got []int64
		switch sc.name {
		case "topology spread":
			got = c.softSpreads(nodes)
		case "pod affinity":
			got = c.opinions(nodes)
		default:
			got = make([]int64, len(nodes))
			for j, n := range nodes {
				got[j] = sc.raw(c, n)
			}
		}
		if sc.finish != nil {
			sc.finish(got)
		}
		for j := range got {
			got[j] *= sc.weight
			totals[j] += got[j]
		}
		parts[i] = got
	}
	return totals, parts
}

func (c *cycle) leastAllocated(n *node) int64 {
	return (free(n.scoreCPU+c.pod.scoreCPU, n.allocatable.MilliCPU) + free(n.scoreMem+c.pod.scoreMem, n.allocatable.Memory)) / 2
}

func free(used, have int64) int64 {
	if have <= 0 || used > have {
		return 0
	}
	return (have - used) * maxScore / have
}

// balanced prefers nodes whose CPU and memory fill up alike.
func (c *cycle) balanced(n *node) int64 {
	cpu := fraction(n.scoreCPU+c.pod.scoreCPU, n.allocatable.MilliCPU)
	mem := fraction(n.scoreMem+c.pod.scoreMem, n.allocatable.Memory)
	return int64((1 - math.Abs(cpu-mem)/2) * maxScore)
}

func fraction(used, have int64) float64 {
	if have <= 0 {
		return 1
	}
	return math.Min(1, float64(used)/float64(have))
}

func (c *cycle) softTaints(n *node) int64 {
	var count int64
	for i := range n.obj.Spec.Taints {
		t := &n.obj.Spec.Taints[i]
		if t.Effect == v1.TaintEffectPreferNoSchedule && !podutil.Tolerates(c.pod.Obj.Spec.Tolerations, t) {
			count++
		}
	}
	return count
}

func (c *cycle) likesNode(n *node) int64 { return c.preferred.Score(n.obj) }

// siblings spreads the pods of one controller over nodes, when the pod says
// nothing about spreading itself.
func (c *cycle) siblings(n *node) int64 { return int64(n.owners[c.pod.owner]) }

func (c *cycle) spreadsItself() bool {
	return c.pod.owner == "" || len(c.pod.softSpread)+len(c.pod.hardSpread) > 0
}

// Image locality counts images between these sizes, in bytes per container.
const (
	smallImage = 23 << 20
	largeImage = 1000 << 20
)

func (c *cycle) imagesHere(n *node) int64 {
	if len(n.images) == 0 {
		return 0
	}
	var sum int64
	containers := c.pod.Obj.Spec.Containers
	for i := range containers {
		name := imageName(containers[i].Image)
		if size, ok := n.images[name]; ok {
			// Weighted by how many nodes have it, so that one node with a big
			// image does not draw every pod.
			sum += size * int64(c.s.images[name].nodes) / int64(len(c.s.order))
		}
	}
	high := int64(largeImage) * int64(len(containers))
	return maxScore * (min(max(sum, smallImage), high) - smallImage) / (high - smallImage)
}

func (c *cycle) softSpreads(nodes []*node) []int64 {
	sums := make([]float64, len(nodes))
	missing := make([]bool, len(nodes))
	for i := range c.pod.softSpread {
		st := &c.pod.softSpread[i]
		counts := map[string]int{}
		for _, n := range c.s.order {
			if v, ok := n.obj.Labels[st.key]; ok && c.eligible(n, st) {
				counts[v] += c.spreadMatches(n, st)
			}
		}
		// Many small domains weigh more than few large ones.
		weight := math.Log(float64(len(counts) + 2))
		for j, n := range nodes {
			v, ok := n.obj.Labels[st.key]
			if !ok {
				missing[j] = true
				continue
			}
			sums[j] += float64(counts[v])*weight + float64(st.maxSkew-1)
		}
	}
	lo, hi := math.Inf(1), math.Inf(-1)
	for j, s := range sums {
		if !missing[j] {
			lo, hi = math.Min(lo, s), math.Max(hi, s)
		}
	}
	out := make([]int64, len(nodes))
	for j, s := range sums {
		switch {
		case missing[j]:
		case hi == 0:
			out[j] = maxScore
		default:
			out[j] = int64(maxScore * (hi + lo - s) / hi)
		}
	}
	return out
}

func (c *cycle) noOpinions() bool {
	return len(c.pod.likes)+len(c.pod.dislikes) == 0 && len(c.s.opinionated) == 0
}

// hardAffinityWeight is the pull that a placed pod's required affinity has on
// pods it selects.
const hardAffinityWeight = 1

// opinions sums preferred affinity both ways: of the incoming pod for placed
// ones, and of placed pods for the incoming one.
func (c *cycle) opinions(nodes []*node) []int64 {
	sums := map[pair]int64{}
	add := func(t *term, chosen *v1.Pod, n *node, weight int64) {
		if v, ok := n.obj.Labels[t.key]; ok && t.matches(chosen, c.nsLabels(chosen.Namespace)) {
			sums[pair{t.key, v}] += weight
		}
	}
	if len(c.pod.likes)+len(c.pod.dislikes) > 0 {
		for _, pl := range c.s.pods {
			if pl.node.obj == nil {
				continue
			}
			for i := range c.pod.likes {
				add(&c.pod.likes[i].term, pl.Obj, pl.node, c.pod.likes[i].weight)
			}
			for i := range c.pod.dislikes {
				add(&c.pod.dislikes[i].term, pl.Obj, pl.node, -c.pod.dislikes[i].weight)
			}
		}
	}
	for _, pl := range c.s.opinionated {
		if pl.node.obj == nil {
			continue
		}
		for i := range pl.affinity {
			add(&pl.affinity[i], c.pod.Obj, pl.node, hardAffinityWeight)
		}
		for i := range pl.likes {
			add(&pl.likes[i].term, c.pod.Obj, pl.node, pl.likes[i].weight)
		}
		for i := range pl.dislikes {
			add(&pl.dislikes[i].term, c.pod.Obj, pl.node, -pl.dislikes[i].weight)
		}
	}
	out := make([]int64, len(nodes))
	for j, n := range nodes {
		for p, w := range sums {
			if labels.Set(n.obj.Labels).Has(p.key) && n.obj.Labels[p.key] == p.value {
				out[j] += w
			}
		}
	}
	return out
}

// highBest scales so that the largest becomes maxScore.
func highBest(v []int64) {
	var hi int64
	for _, x := range v {
		hi = max(hi, x)
	}
	for i := range v {
		if hi > 0 {
			v[i] = v[i] * maxScore / hi
		}
	}
}

// lowBest scales so that 0 becomes maxScore and the largest becomes 0.
func lowBest(v []int64) {
	highBest(v)
	for i := range v {
		v[i] = maxScore - v[i]
	}
}

// minMax scales the range found to 0..maxScore.
func minMax(v []int64) {
	if len(v) == 0 {
		return
	}
	lo, hi := v[0], v[0]
	for _, x := range v {
		lo, hi = min(lo, x), max(hi, x)
	}
	for i := range v {
		if hi > lo {
			v[i] = (v[i] - lo) * maxScore / (hi - lo)
		} else {
			v[i] = 0
		}
	}
}
