package container

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/resource"
)

const (
	guaranteedOOM  = -997
	bestEffortOOM  = 1000
	criticalMin    = 2000000000
	nodeCritical   = "system-node-critical"
	mirrorKey      = "kubernetes.io/config.mirror"
	sourceKey      = "kubernetes.io/config.source"
	unifiedOOM     = "memory.oom.group"
	unifiedSwapMax = "memory.swap.max"

	unifiedMemoryHigh = "memory.high"
)

// Critical says whether a pod may not be sacrificed for others: static,
// mirror, or of a system priority.
func Critical(pod *v1.Pod) bool {
	if _, ok := pod.Annotations[mirrorKey]; ok {
		return true
	}
	if s, ok := pod.Annotations[sourceKey]; ok && s != "api" {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= criticalMin
}

// oomScoreAdj is how readily the kernel kills a container when the node runs
// out of memory. capacity is the node's memory in bytes.
func oomScoreAdj(pod *v1.Pod, c *v1.Container, capacity int64) int64 {
	if Critical(pod) && pod.Spec.PriorityClassName == nodeCritical {
		return guaranteedOOM
	}
	switch resource.QOS(pod) {
	case v1.PodQOSGuaranteed:
		return guaranteedOOM
	case v1.PodQOSBestEffort:
		return bestEffortOOM
	}
	if capacity <= 0 {
		return bestEffortOOM - 1
	}
	request := memoryShare(pod, c)
	if isSidecar(pod, c.Name) {
		// A sidecar must outlive the containers it serves, so it scores as
		// the regular container that asked for least, or better.
		if smallest, ok := smallestRegular(pod); ok {
			request = max(request, smallest)
		}
	}
	score := 1000 - (1000*request)/capacity
	return min(max(score, 1000+guaranteedOOM), bestEffortOOM-1)
}

// memoryShare is what a container may count as its own: its request, and an
// equal part of what the pod asked for beyond its containers.
func memoryShare(pod *v1.Pod, c *v1.Container) int64 {
	own := c.Resources.Requests.Memory().Value()
	if pod.Spec.Resources == nil {
		return own
	}
	whole, ok := pod.Spec.Resources.Requests[v1.ResourceMemory]
	if !ok {
		return own
	}
	sum := helpers.AggregateContainerRequests(pod, helpers.PodResourcesOptions{})
	n := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	if rest := whole.Value() - sum.Memory().Value(); rest > 0 && n > 0 {
		own += rest / n
	}
	return own
}

func isSidecar(pod *v1.Pod, name string) bool {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name {
			return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
		}
	}
	return false
}

func smallestRegular(pod *v1.Pod) (int64, bool) {
	var out int64
	for i := range pod.Spec.Containers {
		r := memoryShare(pod, &pod.Spec.Containers[i])
		if i == 0 || r < out {
			out = r
		}
	}
	return out, len(pod.Spec.Containers) > 0
}

// Resources are the runtime's settings of one container. The same function
// serves creation and in-place resize.
func Resources(in Input, c *v1.Container) *runtimeapi.LinuxContainerResources {
	limits := podBounded(in.Pod, c)
	request, hasRequest := c.Resources.Requests[v1.ResourceCPU]
	cpuLimit := limits.Cpu()
	out := &runtimeapi.LinuxContainerResources{
		MemoryLimitInBytes: limits.Memory().Value(),
		OomScoreAdj:        oomScoreAdj(in.Pod, c, in.MemoryCapacity),
	}
	milli := request.MilliValue()
	if !hasRequest && !cpuLimit.IsZero() {
		milli = cpuLimit.MilliValue()
	}
	out.CpuShares = int64(resource.CPUShares(milli))
	if in.Node.CPUQuota {
		period := in.Node.CPUPeriodMicros
		if period <= 0 {
			period = resource.DefaultCPUPeriodMicros
		}
		out.CpuPeriod = period
		out.CpuQuota = resource.CPUQuota(cpuLimit.MilliValue(), period)
	}
	if set, ok := in.CPUSet[c.Name]; ok {
		out.CpusetCpus, out.CpusetMems = set.CPUs, set.Mems
		if set.Exclusive {
			out.CpuQuota = resource.Unlimited
		}
	}
	out.HugepageLimits = hugepages(in.Node.HugepageSizes, c)
	swap(in, c, out)
	if in.Node.CgroupVersion == 2 && !in.Node.SingleProcessOOMKill {
		setUnified(out, unifiedOOM, "1")
	}
	if in.Node.CgroupVersion == 2 {
		memoryQuality(in, c, out)
	}
	return out
}

// memoryQuality slows a container down before it reaches its limit, and
// protects what it asked for, where the node is set to do so.
func memoryQuality(in Input, c *v1.Container, out *runtimeapi.LinuxContainerResources) {
	request := c.Resources.Requests.Memory().Value()
	if in.Node.ThrottleFactor > 0 {
		value := "max" // after a resize there may be an older bound
		if high := resource.MemoryHigh(request, out.MemoryLimitInBytes, in.Node.PodMemory, in.Node.PageSize,
			in.Node.ThrottleFactor); high > 0 {
			value = strconv.FormatInt(high, 10)
		}
		setUnified(out, unifiedMemoryHigh, value)
	}
	if in.Node.ReserveMemory {
		for file, value := range resource.Reservation(resource.QOS(in.Pod), request) {
			setUnified(out, file, value)
		}
	}
}

// podBounded are the container's limits, with the pod's where it has none.
func podBounded(pod *v1.Pod, c *v1.Container) v1.ResourceList {
	out := v1.ResourceList{}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		if q, ok := c.Resources.Limits[name]; ok && !q.IsZero() {
			out[name] = q
		} else if pod.Spec.Resources != nil {
			if q, ok := pod.Spec.Resources.Limits[name]; ok {
				out[name] = q
			}
		}
	}
	return out
}

func hugepages(sizes []string, c *v1.Container) []*runtimeapi.HugepageLimit {
	want := map[string]uint64{}
	for name, q := range c.Resources.Limits {
		if size, ok := resource.HugepageSize(name); ok {
			want[size] = uint64(q.Value())
		}
	}
	var out []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: want[size]})
	}
	return out
}

// MaySwap says whether a pod has containers that may use swap here.
func MaySwap(pod *v1.Pod, node NodeSettings) bool {
	if !node.SwapLimited || node.NoSwapController || node.CgroupVersion == 1 || Critical(pod) || resource.QOS(pod) != v1.PodQOSBurstable {
		return false
	}
	for _, c := range All(pod) {
		if request := c.Resources.Requests.Memory(); !request.IsZero() && request.Cmp(*c.Resources.Limits.Memory()) != 0 {
			return true
		}
	}
	return false
}

func swap(in Input, c *v1.Container, out *runtimeapi.LinuxContainerResources) {
	if in.Node.CgroupVersion != 2 {
		// On v1 the swap limit counts memory too: equal means no swap.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
		return
	}
	if in.Node.NoSwapController {
		return
	}
	allowed := int64(0)
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if in.Node.SwapLimited && in.MemoryCapacity > 0 && resource.QOS(in.Pod) == v1.PodQOSBurstable &&
		!Critical(in.Pod) && !request.IsZero() && request.Cmp(*limit) != 0 {
		allowed = int64(float64(request.Value()) / float64(in.MemoryCapacity) * float64(in.Node.SwapCapacity))
	}
	if out.MemoryLimitInBytes > 0 {
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes + allowed
	}
	setUnified(out, unifiedSwapMax, strconv.FormatInt(allowed, 10))
}

func setUnified(out *runtimeapi.LinuxContainerResources, file, value string) {
	if out.Unified == nil {
		out.Unified = map[string]string{}
	}
	out.Unified[file] = value
}

// sandboxResources is the sum of the containers for runtimes that size a
// virtual machine, and the overhead apart from it.
func sandboxResources(in Input) (sum, overhead *runtimeapi.LinuxContainerResources) {
	opts := helpers.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := helpers.PodRequests(in.Pod, opts), helpers.PodLimits(in.Pod, opts)
	return plainResources(in, requests, limits), plainResources(in, in.Pod.Spec.Overhead, in.Pod.Spec.Overhead)
}

func plainResources(in Input, requests, limits v1.ResourceList) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          int64(resource.CPUShares(requests.Cpu().MilliValue())),
		MemoryLimitInBytes: limits.Memory().Value(),
	}
	if in.Node.CPUQuota {
		period := in.Node.CPUPeriodMicros
		if period <= 0 {
			period = resource.DefaultCPUPeriodMicros
		}
		out.CpuPeriod, out.CpuQuota = period, resource.CPUQuota(limits.Cpu().MilliValue(), period)
	}
	return out
}
