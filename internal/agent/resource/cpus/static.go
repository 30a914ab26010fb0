package cpus

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Static is the static policy on one host.
type Static struct {
	Host    *topology.Host
	Options options
	// Reserved CPUs are never given to anybody alone.
	Reserved cpuset.CPUSet
}

// Reserve picks the CPUs that are kept for the system: the named ones,
// or, where none are named, as many whole ones as milli asks for.
func Reserve(m *topology.Host, named string, milli int64) (cpuset.CPUSet, error) {
	if named != "" {
		set, err := cpuset.Parse(named)
		if err != nil {
			return set, fmt.Errorf("reading reservedSystemCPUs %q: %w", named, err)
		}
		if !set.IsSubsetOf(m.All()) {
			return set, fmt.Errorf("reservedSystemCPUs %q: only processors %s are online", named, m.All())
		}
		return set, nil
	}
	count := int((milli + 999) / 1000)
	if count == 0 {
		return cpuset.New(), fmt.Errorf("cpuManagerPolicy static needs a cpu reservation above zero: set reservedSystemCPUs, or cpu in " +
			"systemReserved or kubeReserved")
	}
	set, err := take(m, m.All(), count, options{})
	if err != nil {
		return set, fmt.Errorf("reserving processors for the system: %w", err)
	}
	return set, nil
}

// State is who owns what.
type State struct {
	// Shared are the CPUs of everybody who owns none.
	Shared cpuset.CPUSet
	// Owned by pod and container.
	Owned map[string]map[string]cpuset.CPUSet
}

// Initial is the state of a node without pods.
func (p *Static) Initial() State {
	return State{Shared: p.all(), Owned: map[string]map[string]cpuset.CPUSet{}}
}

// all is what the policy deals with: strictly reserved CPUs are no one's.
func (p *Static) all() cpuset.CPUSet {
	if p.Options.StrictReserved {
		return p.Host.All().Difference(p.Reserved)
	}
	return p.Host.All()
}

// Clone returns a copy that may be changed.
func (s State) Clone() State {
	out := State{Shared: s.Shared, Owned: make(map[string]map[string]cpuset.CPUSet, len(s.Owned))}
	for pod, containers := range s.Owned {
		out.Owned[pod] = maps.Clone(containers)
	}
	return out
}

// Check tells why a state from disk does not fit this host and policy.
func (p *Static) Check(s State) error {
	if p.Options.StrictReserved {
		if both := p.Reserved.Intersection(s.Shared); !both.IsEmpty() {
			return fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", both, s.Shared)
		}
	} else if !p.Reserved.IsSubsetOf(s.Shared) {
		return fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", p.Reserved, s.Shared)
	}
	known := s.Shared
	for pod, containers := range s.Owned {
		for name, set := range containers {
			if !set.Intersection(s.Shared).IsEmpty() {
				return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", pod, name, set, s.Shared)
			}
			known = known.Union(set)
		}
	}
	if !known.Equals(p.all()) {
		return fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", p.all(), known)
	}
	return nil
}

// Count is how many CPUs a container is to own: all it asks for, if its
// pod is Guaranteed and it asks for whole ones. Containers of a pod that asks
// as a whole share what it has and own none.
func Count(pod *v1.Pod, c *v1.Container) int {
	if resource.QOS(pod) != v1.PodQOSGuaranteed || helpers.IsPodLevelResourcesSet(pod) {
		return 0
	}
	asked, ok := c.Resources.Requests[v1.ResourceCPU]
	if !ok {
		asked = c.Resources.Limits[v1.ResourceCPU] // a static pod that no one defaulted
	}
	if asked.MilliValue()%1000 != 0 {
		return 0
	}
	return int(asked.Value())
}

// AlignmentError is a request that full-pcpus-only cannot satisfy.
type AlignmentError struct {
	Requested, Threads int
	// Available whole cores' CPUs; -1 if they are not what lacks.
	Available int
}

func (e *AlignmentError) Error() string {
	if e.Available >= 0 {
		return fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs "+
			"per core = %d", e.Available, e.Requested, e.Threads)
	}
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.Threads)
}

// free are CPUs that a container of the pod may own: those no one does,
// and those that the pod's init containers before it leave to it.
func (p *Static) free(s State, pod *v1.Pod, c *v1.Container) (free, again cpuset.CPUSet) {
	again = reusable(pod, c.Name, s.Owned[string(pod.UID)])
	return s.Shared.Difference(p.Reserved).Union(again), again
}

// reusable are what init containers that run before a container own and no
// container that runs beside it does.
func reusable(pod *v1.Pod, name string, owned map[string]cpuset.CPUSet) cpuset.CPUSet {
	out := cpuset.New()
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name {
			return out
		}
		set := owned[c.Name]
		if sidecar(c) {
			out = out.Difference(set)
		} else {
			out = out.Union(set)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if c.Name == name {
			return out
		}
		out = out.Difference(owned[c.Name])
	}
	return out
}

func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// Allocate gives a container its CPUs, from the given nodes as far as
// they have any (0: anywhere). What it owns already it keeps. s is changed.
func (p *Static) Allocate(s State, pod *v1.Pod, c *v1.Container, nodes topology.Mask) (State, error) {
	uid := string(pod.UID)
	count := Count(pod, c)
	if _, has := s.Owned[uid][c.Name]; has || count == 0 {
		return s, nil
	}
	free, again := p.free(s, pod, c)
	if err := p.aligned(free, count); err != nil {
		return s, err
	}
	set, err := p.take(free, again, count, nodes)
	if err != nil {
		return s, err
	}
	if s.Owned[uid] == nil {
		s.Owned[uid] = map[string]cpuset.CPUSet{}
	}
	s.Owned[uid][c.Name] = set
	s.Shared = s.Shared.Difference(set)
	return s, nil
}

func (p *Static) aligned(free cpuset.CPUSet, count int) error {
	if !p.Options.FullCores {
		return nil
	}
	threads := p.Host.ThreadsPerCore()
	if count%threads != 0 {
		return &AlignmentError{Requested: count, Threads: threads, Available: -1}
	}
	if whole := fullCores(p.Host, free).Size(); whole < count {
		return &AlignmentError{Requested: count, Threads: threads, Available: whole}
	}
	return nil
}

// take uses what the pod's init containers leave first, and within that what
// lies in the wanted nodes.
func (p *Static) take(free, again cpuset.CPUSet, count int, nodes topology.Mask) (cpuset.CPUSet, error) {
	if p.Options.FullCores {
		free = fullCores(p.Host, free)
		again = fullCores(p.Host, again)
	}
	near := free
	if nodes != 0 {
		near = free.Intersection(p.Host.In(p.widen(nodes)))
	}
	out := cpuset.New()
	for _, from := range []cpuset.CPUSet{near.Intersection(again), near, free} {
		from = from.Difference(out)
		some, err := take(p.Host, from, min(count-out.Size(), from.Size()), p.Options)
		if err != nil {
			return out, err
		}
		out = out.Union(some)
	}
	if out.Size() < count {
		return out, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, free.Size())
	}
	return out, nil
}

// widen makes whole sockets of nodes if sockets are what alignment is about.
func (p *Static) widen(nodes topology.Mask) topology.Mask {
	if !p.Options.AlignSocket {
		return nodes
	}
	sockets := p.Host.Sockets(nodes)
	for _, c := range p.Host.CPUs {
		if sockets[c.Socket] {
			nodes |= topology.Of(c.NUMA)
		}
	}
	return nodes
}

// Release takes back what pods own that are not to be kept, and tells whether
// there was any. s is changed.
func (p *Static) Release(s State, keep func(pod string) bool) (State, bool) {
	back := cpuset.New()
	gone := false
	for _, pod := range slices.Sorted(maps.Keys(s.Owned)) {
		if keep(pod) {
			continue
		}
		for _, set := range s.Owned[pod] {
			back = back.Union(set)
		}
		delete(s.Owned, pod)
		gone = true
	}
	s.Shared = s.Shared.Union(back)
	return s, gone
}

// Hints are the sets of NUMA nodes that have count CPUs for a container
// (or, for a whole pod, with c nil).
func (p *Static) Hints(s State, pod *v1.Pod, c *v1.Container) topology.Wishes {
	if c == nil {
		return p.podHints(s, pod)
	}
	count := Count(pod, c)
	if count == 0 {
		return nil
	}
	if held, has := s.Owned[string(pod.UID)][c.Name]; has {
		if held.Size() != count {
			return topology.Wishes{string(v1.ResourceCPU): {}}
		}
		return p.hints(held, held, count)
	}
	free, again := p.free(s, pod, c)
	return p.hints(free, again, count)
}

func (p *Static) podHints(s State, pod *v1.Pod) topology.Wishes {
	count := podCount(pod)
	if count == 0 {
		return nil
	}
	if owned := s.Owned[string(pod.UID)]; len(owned) > 0 {
		held := cpuset.New()
		for _, set := range owned {
			held = held.Union(set)
		}
		return p.hints(held, held, min(count, held.Size()))
	}
	return p.hints(s.Shared.Difference(p.Reserved), cpuset.New(), count)
}

// podCount is how many CPUs a pod owns at most at one time.
func podCount(pod *v1.Pod) int {
	sidecars, peak := 0, 0
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		n := Count(pod, c)
		if sidecar(c) {
			sidecars += n
			n = 0
		}
		peak = max(peak, sidecars+n)
	}
	sum := sidecars
	for i := range pod.Spec.Containers {
		sum += Count(pod, &pod.Spec.Containers[i])
	}
	return max(sum, peak)
}

// hints lists the masks with enough free; those no wider than the host
// needs for so many are preferred. What must be used again must be inside.
func (p *Static) hints(free, again cpuset.CPUSet, count int) topology.Wishes {
	if p.Options.FullCores {
		free, again = fullCores(p.Host, free), fullCores(p.Host, again)
	}
	least := 0
	out := []topology.Hint{}
	topology.Subsets(p.Host.NodeMask(), func(nodes topology.Mask) {
		there := p.Host.In(nodes)
		if least == 0 && there.Size() >= count {
			least = nodes.Count() // narrowest come first
		}
		if free.Intersection(there).Size() < count || again.Intersection(there).Size() < min(count, again.Size()) {
			return
		}
		preferred := nodes.Count() == least
		if p.Options.AlignSocket {
			preferred = preferred || len(p.Host.Sockets(nodes)) == leastSockets(p.Host, count)
		}
		out = append(out, topology.Hint{Mask: nodes, Preferred: preferred})
	})
	return topology.Wishes{string(v1.ResourceCPU): out}
}

// leastSockets is how many sockets a request of so many CPUs needs.
func leastSockets(m *topology.Host, count int) int {
	least := 0
	topology.Subsets(m.NodeMask(), func(nodes topology.Mask) {
		if n := len(m.Sockets(nodes)); m.In(nodes).Size() >= count && (least == 0 || n < least) {
			least = n
		}
	})
	return least
}
