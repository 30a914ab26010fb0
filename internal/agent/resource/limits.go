// Package resource turns what pods ask for into cgroup settings and keeps the
// cgroup tree of the node: one subtree per quality-of-service class, one cgroup
// per pod, on cgroup v1 or v2, named for the cgroupfs or the systemd driver.
//
// The conversions are pure; only Cgroups touches files.
package resource

import (
	"math"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

const (
	minShares = 2
	maxShares = 262144
	// minQuotaMicros is the smallest quota the kernel accepts (1 ms).
	minQuotaMicros = 1000
	// DefaultCPUPeriodMicros is the CFS period used when none is configured.
	DefaultCPUPeriodMicros = 100000
	// Unlimited marks a limit that must be written as "no limit", as opposed
	// to zero, which leaves the current value alone.
	Unlimited = -1
)

// CPUShares converts thousandths of a CPU to cgroup v1 cpu.shares.
func CPUShares(milli int64) uint64 {
	if milli <= 0 {
		return minShares
	}
	// Compare before multiplying so that absurd requests cannot overflow.
	if milli >= maxShares*1000/1024 {
		return maxShares
	}
	return uint64(max(minShares, milli*1024/1000))
}

// cpuWeight converts cpu.shares to the cgroup v2 cpu.weight that the agent
// writes on the cgroups it owns: a straight line from [2, 262144] to [1, 10000].
// Runtimes use another curve for containers.
func cpuWeight(shares uint64) uint64 {
	if shares == 0 {
		return 0
	}
	s := min(max(shares, minShares), maxShares)
	return 1 + (s-minShares)*9999/(maxShares-minShares)
}

// CPUQuota converts thousandths of a CPU to microseconds of CPU time per
// period. Zero means no quota. Quotas below the kernel's minimum are raised.
func CPUQuota(milli, periodMicros int64) int64 {
	if milli <= 0 || periodMicros <= 0 {
		return 0
	}
	if milli > math.MaxInt64/periodMicros {
		return 0
	}
	return max(minQuotaMicros, milli*periodMicros/1000)
}

// HugepageSize is the page size in a "hugepages-2Mi" resource name written the
// way the kernel names its cgroup files ("2MB"), and whether the name is one.
func HugepageSize(name v1.ResourceName) (string, bool) {
	size, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix)
	if !ok {
		return "", false
	}
	q, err := apiresource.ParseQuantity(size)
	if err != nil || q.Sign() <= 0 {
		return "", false
	}
	return HugepageName(q.Value()), true
}

// HugepageName is the kernel's name for a page size in bytes ("2MB", "1GB").
func HugepageName(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	i := 0
	for bytes >= 1024 && bytes%1024 == 0 && i < len(units)-1 {
		bytes /= 1024
		i++
	}
	return strconv.FormatInt(bytes, 10) + units[i]
}

// QOS is the quality-of-service class of a pod, from its pod-level resources
// when it has them and from all its containers, init containers included,
// otherwise. Ephemeral containers have no resources and do not count.
func QOS(pod *v1.Pod) v1.PodQOSClass {
	sum := qosSum{requests: map[v1.ResourceName]bool{}, limits: map[v1.ResourceName]bool{}, guaranteed: true}
	if helpers.IsPodLevelResourcesSet(pod) {
		sum.add(pod.Spec.Resources)
	} else {
		for i := range pod.Spec.InitContainers {
			sum.add(&pod.Spec.InitContainers[i].Resources)
		}
		for i := range pod.Spec.Containers {
			sum.add(&pod.Spec.Containers[i].Resources)
		}
	}
	switch {
	case len(sum.requests) == 0 && len(sum.limits) == 0:
		return v1.PodQOSBestEffort
	case sum.guaranteed:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}

// qosSum collects which of cpu and memory were asked for, and whether every
// requirement so far has both limits with requests equal to them.
type qosSum struct {
	requests, limits map[v1.ResourceName]bool
	guaranteed       bool
}

func (s *qosSum) add(r *v1.ResourceRequirements) {
	for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
		req, limit := r.Requests[name], r.Limits[name]
		if req.Sign() > 0 {
			s.requests[name] = true
		}
		if limit.Sign() > 0 {
			s.limits[name] = true
		}
		// A missing request is defaulted to the limit by the API; static pods
		// that skipped defaulting must land in the same class.
		if limit.Sign() <= 0 || (req.Sign() > 0 && req.Cmp(limit) != 0) {
			s.guaranteed = false
		}
	}
}

// Limits is what one cgroup is given. Zero fields are left as they are in the
// kernel; Unlimited removes a limit.
type Limits struct {
	CPUShares   uint64
	CPUQuota    int64 // microseconds per CPUPeriod
	CPUPeriod   uint64
	MemoryLimit int64 // bytes
	PidsLimit   int64
	// Hugepages maps the kernel's page size name to bytes.
	Hugepages map[string]int64
	// Unified holds further cgroup v2 files and their values.
	Unified map[string]string
}

// PodOptions are the node settings that shape a pod's cgroup.
type PodOptions struct {
	// CPUQuota enforces CPU limits with CFS quotas (cpuCFSQuota).
	CPUQuota bool
	// CPUPeriodMicros is the CFS period; 0 means 100 ms.
	CPUPeriodMicros int64
	// PidsLimit bounds processes per pod; 0 or less means no limit.
	PidsLimit int64
	// HugepageSizes are the page sizes of this host, in kernel names. Sizes
	// that the pod does not ask for are set to zero.
	HugepageSizes []string
	// ReserveMemory protects what pods asked for from reclaim, on v2 alone.
	ReserveMemory bool
	// ExclusiveCPUs marks a pod whose containers own whole CPUs: no quota.
	ExclusiveCPUs bool
}

// PodLimits is the cgroup of a whole pod: the sum over its containers with the
// rule for init and sidecar containers, its overhead included. A quota or a
// memory limit is set only if every container has one, because otherwise the
// sum would bound containers that asked for no bound.
func PodLimits(pod *v1.Pod, o PodOptions) Limits {
	period := o.CPUPeriodMicros
	if period <= 0 {
		period = DefaultCPUPeriodMicros
	}
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	limits := helpers.PodLimits(pod, helpers.PodResourcesOptions{})
	cpuBound, memoryBound := bounded(pod)

	cpu := requests.Cpu().MilliValue()
	if cpu == 0 && cpuBound {
		cpu = limits.Cpu().MilliValue()
	}
	out := Limits{CPUShares: CPUShares(cpu), Hugepages: map[string]int64{}}
	qos := QOS(pod)
	if qos == v1.PodQOSBestEffort {
		out.CPUShares = minShares
	}
	if cpuBound && o.CPUQuota {
		out.CPUQuota, out.CPUPeriod = CPUQuota(limits.Cpu().MilliValue(), period), uint64(period)
		if o.ExclusiveCPUs {
			out.CPUQuota = Unlimited
		}
	}
	if memoryBound {
		out.MemoryLimit = limits.Memory().Value()
	}
	if o.PidsLimit > 0 {
		out.PidsLimit = o.PidsLimit
	}
	for _, size := range o.HugepageSizes {
		out.Hugepages[size] = 0
	}
	for name, q := range requests {
		if size, ok := HugepageSize(name); ok {
			out.Hugepages[size] = q.Value()
		}
	}
	if o.ReserveMemory {
		out.Unified = Reservation(qos, requests.Memory().Value())
	}
	return out
}

// Files of cgroup v2 that protect memory from reclaim: min for good, low while
// there is other memory to take.
const (
	memoryMin = "memory.min"
	memoryLow = "memory.low"
)

// Reservation is what protects a request of a pod, or of one of its
// containers: guaranteed pods keep it whatever happens, burstable ones as long
// as there is memory no one asked for, best-effort ones have none.
func Reservation(qos v1.PodQOSClass, request int64) map[string]string {
	out := map[string]string{memoryMin: "0", memoryLow: "0"}
	switch qos {
	case v1.PodQOSGuaranteed:
		out[memoryMin] = strconv.FormatInt(request, 10)
	case v1.PodQOSBurstable:
		out[memoryLow] = strconv.FormatInt(request, 10)
	}
	return out
}

// MemoryHigh is above which use of memory a container is slowed down, in
// bytes: its request and a share of what lies between that and its limit, or
// what the node has for pods if it has none; whole pages. Zero is no bound: for
// containers that cannot use more than they asked for, or asked for nothing and
// have no limit.
func MemoryHigh(request, limit, allocatable, page int64, factor float64) int64 {
	top := limit
	if top == 0 {
		top = allocatable
	}
	if factor <= 0 || page <= 0 || top <= 0 || request == limit {
		return 0
	}
	high := int64(math.Floor((float64(request)+float64(top-request)*factor)/float64(page))) * page
	if high <= request {
		return 0
	}
	return high
}

// bounded says whether the pod's CPU and memory are limited as a whole.
func bounded(pod *v1.Pod) (cpu, memory bool) {
	cpu, memory = true, true
	check := func(c *v1.Container) {
		if c.Resources.Limits.Cpu().Sign() <= 0 {
			cpu = false
		}
		if c.Resources.Limits.Memory().Sign() <= 0 {
			memory = false
		}
	}
	for i := range pod.Spec.Containers {
		check(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		check(&pod.Spec.InitContainers[i])
	}
	if pod.Spec.Resources != nil {
		cpu = cpu || pod.Spec.Resources.Limits.Cpu().Sign() > 0
		memory = memory || pod.Spec.Resources.Limits.Memory().Sign() > 0
	}
	return cpu, memory
}
