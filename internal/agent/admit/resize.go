package admit

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/resource"
)

// Want is an admitted pod that asks for other resources.
type Want struct {
	// Has and Wants are the pod with the resources it was promised, and with
	// those it asks for.
	Has, Wants *v1.Pod
	// Since orders those that wait: a smaller number waits longer.
	Since int
}

// order is whose turn it is first: who does not grow, then the more important,
// then Guaranteed, then who waits longest.
func order(a, b Want) int {
	flag := func(first bool) int {
		if first {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(flag(!grows(a)), flag(!grows(b))),
		cmp.Compare(priority(b.Wants), priority(a.Wants)),
		cmp.Compare(flag(resource.QOS(a.Wants) == v1.PodQOSGuaranteed), flag(resource.QOS(b.Wants) == v1.PodQOSGuaranteed)),
		cmp.Compare(a.Since, b.Since))
}

func grows(w Want) bool {
	before := helpers.PodRequests(w.Has, helpers.PodResourcesOptions{})
	for name, q := range helpers.PodRequests(w.Wants, helpers.PodResourcesOptions{}) {
		if have := before[name]; q.Cmp(have) > 0 {
			return true
		}
	}
	return false
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// Resize decides whether the pod of that UID, one of wants, gets what it asks
// for. Room that someone before it in the order could use is not given away.
// admitted are all pods of the node with what they were promised.
func Resize(uid types.UID, wants []Want, node *v1.Node, admitted []*v1.Pod) *pod.Rejection {
	wants = slices.Clone(wants)
	slices.SortFunc(wants, order)
	admitted = slices.Clone(admitted)
	for _, w := range wants {
		others := slices.DeleteFunc(slices.Clone(admitted), func(p *v1.Pod) bool { return p.UID == w.Wants.UID })
		refused := Fit(w.Wants, node, others)
		if w.Wants.UID == uid {
			return refused
		}
		if refused == nil {
			admitted = append(others, w.Wants)
		}
	}
	return nil
}
