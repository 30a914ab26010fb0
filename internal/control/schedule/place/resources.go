package place

import (
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Resources is a vector of quantities. CPU is in millicores, memory and
// ephemeral storage in bytes, every other resource in whole units.
type Resources struct {
	MilliCPU  int64
	Memory    int64
	Ephemeral int64
	// Pods is the number of pods: a node's limit, or how many are placed.
	Pods int64
	// Scalar holds extended resources, huge pages and attachable volumes. It
	// is nil when there are none, which is the usual case.
	Scalar map[v1.ResourceName]int64
}

func resourcesOf(list v1.ResourceList) Resources {
	var r Resources
	for name, q := range list {
		switch name {
		case v1.ResourceCPU:
			r.MilliCPU = q.MilliValue()
		case v1.ResourceMemory:
			r.Memory = q.Value()
		case v1.ResourceEphemeralStorage:
			r.Ephemeral = q.Value()
		case v1.ResourcePods:
			r.Pods = q.Value()
		default:
			if !isScalar(name) {
				continue
			}
			if r.Scalar == nil {
				r.Scalar = map[v1.ResourceName]int64{}
			}
			r.Scalar[name] = q.Value()
		}
	}
	return r
}

// isScalar says whether a resource is one the scheduler counts: extended
// (domain-prefixed outside kubernetes.io), huge pages, attachable volumes.
func isScalar(name v1.ResourceName) bool {
	s := string(name)
	if strings.HasPrefix(s, v1.ResourceHugePagesPrefix) || strings.HasPrefix(s, v1.ResourceAttachableVolumesPrefix) {
		return true
	}
	if strings.HasPrefix(s, v1.DefaultResourceRequestsPrefix) {
		return false
	}
	domain, _, ok := strings.Cut(s, "/")
	return ok && domain != "" && !strings.HasSuffix(domain, "kubernetes.io")
}

// add returns r with sign times o added; sign is +1 or -1. The scalar map is
// copied only when it changes, so a Resources value may be shared.
func (r Resources) add(o Resources, sign int64) Resources {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.Ephemeral += sign * o.Ephemeral
	r.Pods += sign * o.Pods
	if len(o.Scalar) > 0 {
		sum := make(map[v1.ResourceName]int64, len(r.Scalar)+len(o.Scalar))
		maps.Copy(sum, r.Scalar)
		for k, v := range o.Scalar {
			sum[k] += sign * v
		}
		r.Scalar = sum
	}
	return r
}

// Stand-ins for a container that requests nothing, used only for scoring, so
// that pods without requests still spread.
const (
	defaultMilliCPU = 100
	defaultMemory   = 200 << 20
)

// requestOf computes what a pod reserves on its node: the sum over containers
// and sidecars, or the largest init phase, plus overhead; during a resize the
// larger of what it asks for and what it holds.
func requestOf(pod *v1.Pod) (exact Resources, cpu, mem int64) {
	opts := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	exact = resourcesOf(resourcehelper.PodRequests(pod, opts))
	exact.Pods = 1
	if requestsEverywhere(pod) {
		return exact, exact.MilliCPU, exact.Memory
	}
	opts.NonMissingContainerRequests = standIns
	scored := resourcesOf(resourcehelper.PodRequests(pod, opts))
	return exact, scored.MilliCPU, scored.Memory
}

func requestsEverywhere(pod *v1.Pod) bool {
	for i := range pod.Spec.Containers {
		r := pod.Spec.Containers[i].Resources.Requests
		if _, ok := r[v1.ResourceCPU]; !ok {
			return false
		}
		if _, ok := r[v1.ResourceMemory]; !ok {
			return false
		}
	}
	return len(pod.Spec.InitContainers) == 0
}
