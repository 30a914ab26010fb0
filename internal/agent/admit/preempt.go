package admit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/resource"
)

// What a pod that had to go for a critical one says of it.
const (
	Preempting        = "Preempting"
	PreemptingMessage = "Preempted in order to admit critical pod"
	DisruptionMessage = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// MayPreempt tells whether others may have to go for a refused pod: it is
// critical and there is only too little of something.
func MayPreempt(p *v1.Pod, refusals []refusal) bool {
	if !container.Critical(p) || len(refusals) == 0 {
		return false
	}
	return !slices.ContainsFunc(refusals, func(r refusal) bool { return r.Resource == "" })
}

// missing is how much of each resource is still to be freed.
type missing map[v1.ResourceName]int64

// less returns what is missing once pods are gone.
func (m missing) less(pods []*v1.Pod) missing {
	out := missing{}
	for name, n := range m {
		for _, p := range pods {
			n -= uses(p, name)
		}
		if n > 0 {
			out[name] = n
		}
	}
	return out
}

// uses is how much of a resource a pod gives back.
func uses(p *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return amount(name, helpers.PodRequests(p, helpers.PodResourcesOptions{})[name])
}

// Victims chooses which of the running pods go for a critical one, as few and
// of as low a quality of service as will do. Only pods that are less important
// are considered. An error means that all of them would not be enough.
func Victims(p *v1.Pod, refusals []refusal, running []*v1.Pod) ([]*v1.Pod, error) {
	need := missing{}
	for _, r := range refusals {
		need[r.Resource] = r.Missing
	}
	byQOS := map[v1.PodQOSClass][]*v1.Pod{}
	var all []*v1.Pod
	for _, o := range running {
		if lessImportant(o, p) {
			class := resource.QOS(o)
			byQOS[class] = append(byQOS[class], o)
			all = append(all, o)
		}
	}
	if left := need.less(all); len(left) > 0 {
		return nil, fmt.Errorf("no set of running pods found to reclaim resources: %s", left)
	}
	guaranteed, burstable, bestEffort := byQOS[v1.PodQOSGuaranteed], byQOS[v1.PodQOSBurstable], byQOS[v1.PodQOSBestEffort]
	// What lower classes cannot give, the higher ones must; then the lower ones
	// give what is still missing.
	out := closest(guaranteed, need.less(burstable).less(bestEffort))
	out = append(out, closest(burstable, need.less(bestEffort).less(out))...)
	return append(out, closest(bestEffort, need.less(out))...), nil
}

// lessImportant: o may go for p, which is critical.
func lessImportant(o, p *v1.Pod) bool {
	if !container.Critical(o) {
		return true
	}
	return o.Spec.Priority != nil && p.Spec.Priority != nil && *o.Spec.Priority < *p.Spec.Priority
}

// closest takes pods until nothing is missing, each time the one that leaves
// the least, of equals the smaller one. The pods together are enough.
func closest(pods []*v1.Pod, need missing) (out []*v1.Pod) {
	pods = slices.Clone(pods)
	for len(need) > 0 && len(pods) > 0 {
		best := slices.MinFunc(pods, func(a, b *v1.Pod) int {
			return cmp.Or(cmp.Compare(need.distance(a), need.distance(b)), cmp.Compare(size(a, need), size(b, need)),
				strings.Compare(string(a.UID), string(b.UID)))
		})
		out = append(out, best)
		need = need.less([]*v1.Pod{best})
		pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool { return p == best })
	}
	return out
}

// distance is how much would still be missing without a pod, each resource by
// its share, 0 when nothing would.
func (m missing) distance(p *v1.Pod) float64 {
	sum := 0.0
	for name, n := range m {
		if share := float64(n-uses(p, name)) / float64(n); share > 0 {
			sum += share * share
		}
	}
	return sum
}

func size(p *v1.Pod, m missing) float64 {
	sum := 0.0
	for name, n := range m {
		sum += float64(uses(p, name)) / float64(n)
	}
	return sum
}

// String lists what is missing, for an error.
func (m missing) String() string {
	var parts []string
	for name, n := range m {
		parts = append(parts, fmt.Sprintf("(res: %s, q: %d)", name, n))
	}
	slices.Sort(parts)
	return "[" + strings.Join(parts, ", ") + "]"
}
