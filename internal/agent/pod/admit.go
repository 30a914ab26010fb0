package pod

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// IsStatic tells a static pod by its annotations.
func IsStatic(pod *v1.Pod) bool {
	src := pod.Annotations["kubernetes.io/config.source"]
	return src != "" && src != "api"
}

// Fit decides whether a node has room for a pod beside others, which are the
// pods admitted before that are not over. It returns nil when it has.
func Fit(pod *v1.Pod, node *v1.Node, others []*v1.Pod) *Rejection {
	if os, ok := pod.Labels[v1.LabelOSStable]; ok && os != "linux" {
		return &Rejection{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if os := pod.Spec.OS; os != nil && os.Name != v1.Linux {
		return &Rejection{"PodOSNotSupported", fmt.Sprintf("Failed to admit pod as the OS field %q doesn't match node OS", os.Name)}
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return &Rejection{"NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name"}
	}
	if r := fitResources(pod, node, others); r != nil {
		return r
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		return &Rejection{"NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
	}
	if portsTaken(pod, others) {
		return &Rejection{"NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
	}
	if !IsStatic(pod) {
		evicts := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
		if _, bad := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, evicts, true); bad {
			return &Rejection{"TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"}
		}
	}
	return nil
}

func fitResources(pod *v1.Pod, node *v1.Node, others []*v1.Pod) *Rejection {
	room := node.Status.Allocatable
	if limit, ok := room[v1.ResourcePods]; ok && int64(len(others))+1 > limit.Value() {
		return outOf(v1.ResourcePods, 1, int64(len(others)), limit.Value())
	}
	want := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	if len(want) == 0 {
		return nil
	}
	used := v1.ResourceList{}
	for _, o := range others {
		for name, q := range helpers.PodRequests(o, helpers.PodResourcesOptions{}) {
			have := used[name]
			have.Add(q)
			used[name] = have
		}
	}
	for _, name := range sortedResources(want) {
		limit, known := room[name]
		if !known {
			continue // not this node's to give: a cluster-level resource
		}
		need, taken := amount(name, want[name]), amount(name, used[name])
		if total := amount(name, limit); need > 0 && need+taken > total {
			return outOf(name, need, taken, total)
		}
	}
	return nil
}

// amount is a quantity in the unit that messages use: milli for cpu.
func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func outOf(name v1.ResourceName, need, used, total int64) *Rejection {
	return &Rejection{
		"OutOf" + string(name),
		fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, need, used, total),
	}
}

// sortedResources puts cpu and memory first, which is the order users expect
// to be told of.
func sortedResources(l v1.ResourceList) []v1.ResourceName {
	out := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	var rest []string
	for name := range l {
		if name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage {
			rest = append(rest, string(name))
		}
	}
	slices.Sort(rest)
	for _, name := range rest {
		out = append(out, v1.ResourceName(name))
	}
	return out
}

// hostPort is a port of the node that a pod asks for.
type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

func hostPorts(pod *v1.Pod) (out []hostPort) {
	for _, m := range members(pod, nil, nil) {
		if m.role != mainRole && m.role != sidecarRole {
			continue
		}
		for _, p := range m.c.Ports {
			if p.HostPort > 0 {
				ip := p.HostIP
				if ip == "" || strings.Trim(ip, "0.:") == "" {
					ip = ""
				}
				out = append(out, hostPort{ip, p.Protocol, p.HostPort})
			}
		}
	}
	return out
}

func portsTaken(pod *v1.Pod, others []*v1.Pod) bool {
	for _, want := range hostPorts(pod) {
		for _, o := range others {
			for _, have := range hostPorts(o) {
				if want.port == have.port && want.protocol == have.protocol && (want.ip == have.ip || want.ip == "" || have.ip == "") {
					return true
				}
			}
		}
	}
	return false
}
