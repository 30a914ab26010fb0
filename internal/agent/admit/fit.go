// Package admit decides whether a node takes a pod: what speaks against it,
// which pods would have to go for it, and whose turn it is when room comes for
// those that want to grow. It is pure.
package admit

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

	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/podutil"
)

// NodeAffinity is the reason of a pod whose affinity or selector the node does
// not match.
const NodeAffinity = "NodeAffinity"

// refusal is one thing that speaks against a pod on a node.
type refusal struct {
	pod.Rejection
	// Resource is what there is too little of, and Missing how much, in the
	// unit of messages (milli for cpu); empty for anything else.
	Resource v1.ResourceName
	Missing  int64
}

func refuse(reason, format string, args ...any) []refusal {
	return []refusal{{Rejection: pod.Rejection{Reason: reason, Message: fmt.Sprintf(format, args...)}}}
}

// Refusals lists what speaks against a pod on a node beside others, which are
// the pods admitted before that are not over. The first is the one to tell.
func Refusals(p *v1.Pod, node *v1.Node, others []*v1.Pod) []refusal {
	if os, ok := p.Labels[v1.LabelOSStable]; ok && os != "linux" {
		return refuse("PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label")
	}
	if os := p.Spec.OS; os != nil && os.Name != v1.Linux {
		return refuse("PodOSNotSupported", "Failed to admit pod as the OS field %q doesn't match node OS", os.Name)
	}
	if s := p.Spec.SecurityContext; s != nil && s.SupplementalGroupsPolicy != nil &&
		*s.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		if f := node.Status.Features; f == nil || f.SupplementalGroupsPolicy == nil || !*f.SupplementalGroupsPolicy {
			return refuse("SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node")
		}
	}
	out := lacking(p, node, others)
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !ok {
		out = append(out, refuse(NodeAffinity, "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector")...)
	}
	if p.Spec.NodeName != "" && p.Spec.NodeName != node.Name {
		out = append(out, refuse("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name")...)
	}
	if portsTaken(p, others) {
		out = append(out, refuse("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports")...)
	}
	if !podutil.Static(p) {
		evicts := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
		if _, bad := corev1.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, p.Spec.Tolerations, evicts, true); bad {
			out = append(out, refuse("TaintToleration",
				"Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")...)
		}
	}
	return out
}

// Fit returns the first refusal of a pod, nil when the node has room for it.
func Fit(p *v1.Pod, node *v1.Node, others []*v1.Pod) *pod.Rejection {
	if all := Refusals(p, node, others); len(all) > 0 {
		return &all[0].Rejection
	}
	return nil
}

// lacking lists the resources of which there is not enough.
func lacking(p *v1.Pod, node *v1.Node, others []*v1.Pod) (out []refusal) {
	room := node.Status.Allocatable
	if limit, ok := room[v1.ResourcePods]; ok && int64(len(others))+1 > limit.Value() {
		out = append(out, outOf(v1.ResourcePods, 1, int64(len(others)), limit.Value()))
	}
	want := helpers.PodRequests(p, helpers.PodResourcesOptions{})
	if len(want) == 0 {
		return out
	}
	used := map[v1.ResourceName]int64{}
	for _, o := range others {
		for name, q := range helpers.PodRequests(o, helpers.PodResourcesOptions{}) {
			used[name] += amount(name, q)
		}
	}
	for _, name := range sortedResources(want) {
		limit, known := room[name]
		if !known {
			continue // not this node's to give: a cluster-level resource
		}
		need, total := amount(name, want[name]), amount(name, limit)
		if need > 0 && need+used[name] > total {
			out = append(out, outOf(name, need, used[name], total))
		}
	}
	return out
}

// amount is a quantity in the unit that messages use: milli for cpu.
func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

func outOf(name v1.ResourceName, need, used, total int64) refusal {
	r := refuse("OutOf"+string(name), "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, need, used,
		total)[0]
	r.Resource, r.Missing = name, need+used-total
	return r
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

// hostPorts are those of main containers and sidecars.
func hostPorts(p *v1.Pod) (out []hostPort) {
	add := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				ip := port.HostIP
				if strings.Trim(ip, "0.:") == "" {
					ip = ""
				}
				out = append(out, hostPort{ip, port.Protocol, port.HostPort})
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if policy := p.Spec.InitContainers[i].RestartPolicy; policy != nil && *policy == v1.ContainerRestartPolicyAlways {
			add(&p.Spec.InitContainers[i])
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return out
}

func portsTaken(p *v1.Pod, others []*v1.Pod) bool {
	for _, want := range hostPorts(p) {
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
