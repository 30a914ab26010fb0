package pressure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// criticalPriority is the least priority of pods the node cannot do without
// (system-cluster-critical).
const criticalPriority = 2_000_000_000

// diskReading is what something occupies.
type diskReading struct{ Bytes, Inodes int64 }

func (d diskReading) add(other diskReading) diskReading {
	return diskReading{d.Bytes + other.Bytes, d.Inodes + other.Inodes}
}

// PodUsage is a running pod with what it uses.
type PodUsage struct {
	Pod *v1.Pod
	// Measured is false if nothing is known of its usage.
	Measured  bool
	Memory    int64 // working set in bytes
	Processes int64
	// Containers are by name, Volumes (emptyDirs on disk) too.
	Containers map[string]containerUsage
	Volumes    map[string]diskReading
}

// containerUsage is what one container uses.
type containerUsage struct {
	Memory       int64
	Rootfs, Logs diskReading
}

// critical pods are never evicted: they run by order of the node's
// administrator, or the cluster does not work without them.
func critical(pod *v1.Pod) bool {
	if source := pod.Annotations["kubernetes.io/config.source"]; source != "" && source != "api" {
		return true
	}
	if pod.Annotations[v1.MirrorPodAnnotationKey] != "" {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalPriority
}

func bestEffort(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, amounts := range []v1.ResourceList{list[i].Resources.Requests, list[i].Resources.Limits} {
				for name, quantity := range amounts {
					if (name == v1.ResourceCPU || name == v1.ResourceMemory) && quantity.Sign() > 0 {
						return false
					}
				}
			}
		}
	}
	return true
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// requested is what a pod asked for of a resource, as it was scheduled: main
// containers and sidecars together, or the hungriest init container.
func requested(pod *v1.Pod, name v1.ResourceName) int64 {
	if pod.Spec.Resources != nil {
		if quantity, ok := pod.Spec.Resources.Requests[name]; ok {
			return quantity.Value()
		}
	}
	sum, hungriest := int64(0), int64(0)
	for i := range pod.Spec.Containers {
		sum += valueOf(pod.Spec.Containers[i].Resources.Requests, name)
	}
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		want := valueOf(container.Resources.Requests, name)
		if container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sum += want
			continue
		}
		hungriest = max(hungriest, want)
	}
	return max(sum, hungriest) + valueOf(pod.Spec.Overhead, name)
}

func valueOf(list v1.ResourceList, name v1.ResourceName) int64 {
	quantity, ok := list[name]
	if !ok {
		return 0
	}
	return quantity.Value()
}

// score is what pods are ordered by for one signal.
type score struct {
	usage, request int64
}

func (p *PodUsage) score(signal Signal, dedicatedImageFS bool) score {
	switch signal {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return score{p.Memory, requested(p.Pod, v1.ResourceMemory)}
	case PIDAvailable:
		return score{usage: p.Processes}
	}
	disk := p.disk(signal, dedicatedImageFS)
	if signal == NodeFSInodesFree || signal == ImageFSInodesFree {
		return score{usage: disk.Inodes}
	}
	return score{disk.Bytes, requested(p.Pod, v1.ResourceEphemeralStorage)}
}

// disk is what counts against a file system: everything if there is one only.
func (p *PodUsage) disk(signal Signal, dedicatedImageFS bool) diskReading {
	onImages := signal == ImageFSAvailable || signal == ImageFSInodesFree
	var total diskReading
	for _, container := range p.Containers {
		if !dedicatedImageFS || onImages {
			total = total.add(container.Rootfs)
		}
		if !dedicatedImageFS || !onImages {
			total = total.add(container.Logs)
		}
	}
	if !dedicatedImageFS || !onImages {
		for _, volume := range p.Volumes {
			total = total.add(volume)
		}
	}
	return total
}

// rankPods orders pods by who goes first: of whom nothing is known, who uses
// more than requested, lower priority, larger excess.
func rankPods(signal Signal, pods []PodUsage, dedicatedImageFS bool) []PodUsage {
	ranked := slices.Clone(pods)
	scores := make(map[*v1.Pod]score, len(ranked))
	for i := range ranked {
		scores[ranked[i].Pod] = ranked[i].score(signal, dedicatedImageFS)
	}
	byRequest := signal != PIDAvailable
	slices.SortStableFunc(ranked, func(a, b PodUsage) int {
		x, y := scores[a.Pod], scores[b.Pod]
		if a.Measured != b.Measured {
			return boolFirst(!a.Measured, !b.Measured)
		}
		if over, other := x.usage > x.request, y.usage > y.request; byRequest && over != other {
			return boolFirst(over, other)
		}
		if order := cmp.Compare(priority(a.Pod), priority(b.Pod)); order != 0 {
			return order
		}
		if order := cmp.Compare(y.usage-y.request, x.usage-x.request); order != 0 {
			return order
		}
		return cmp.Compare(a.Pod.UID, b.Pod.UID)
	})
	return ranked
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// explain writes the status message of an evicted pod and the annotations of
// its event, in the established words.
func explain(threshold threshold, reading reading, victim PodUsage) (string, map[string]string) {
	row := rowOf(threshold.Signal)
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. ", row.resource)
	if threshold.Signal != "" {
		limit := threshold.Limit.Quantity
		if threshold.Limit.Relative {
			limit = *resource.NewQuantity(threshold.Limit.Of(reading.Capacity), resource.BinarySI)
		}
		fmt.Fprintf(&text, "Threshold quantity: %s, available: %s. ", limit.String(), amount(reading.Available))
	}
	annotations := map[string]string{"starved_resource": row.resource}
	var names, usages []string
	for i := range victim.Pod.Spec.Containers {
		container := &victim.Pod.Spec.Containers[i]
		used, known := victim.Containers[container.Name]
		if !known {
			continue
		}
		var usage, request int64
		switch row.resource {
		case "memory":
			usage, request = used.Memory, valueOf(container.Resources.Requests, v1.ResourceMemory)
		case "ephemeral-storage":
			usage, request = used.Rootfs.Bytes+used.Logs.Bytes, valueOf(container.Resources.Requests, v1.ResourceEphemeralStorage)
		default:
			continue
		}
		if usage <= request {
			continue
		}
		fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %s. ", container.Name, amount(usage),
			amount(request), row.resource)
		names = append(names, container.Name)
		usages = append(usages, amount(usage))
	}
	if len(names) > 0 {
		annotations["offending_containers"] = strings.Join(names, ",")
		annotations["offending_containers_usage"] = strings.Join(usages, ",")
	}
	return text.String(), annotations
}
