// Package topology knows how the host's CPUs and memory lie to each
// other, and merges what several resources would like (hints) into one choice
// of NUMA nodes. Only Read touches files; the rest is pure.
package topology

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/cpuset"
)

// CPU is one logical CPU and the units it belongs to. IDs of cores,
// caches and sockets are unique over the whole host.
type CPU struct {
	ID, Core, Cache, Socket, NUMA int
}

// Node is one NUMA node.
type Node struct {
	ID int
	// Memory is its size in bytes.
	Memory uint64
	// HugePages is bytes reserved per page size in bytes.
	HugePages map[int64]uint64
	// Distances to the nodes of the host, in the order of Machine.Nodes.
	Distances []int
}

// Host is the online CPUs, sorted by ID, and the NUMA nodes, sorted
// by ID.
type Host struct {
	CPUs  []CPU
	Nodes []Node
}

// All is every online CPU.
func (m *Host) All() cpuset.CPUSet {
	ids := make([]int, 0, len(m.CPUs))
	for _, c := range m.CPUs {
		ids = append(ids, c.ID)
	}
	return cpuset.New(ids...)
}

// ThreadsPerCore is how many CPUs a core has; 1 on a host that does
// not divide evenly.
func (m *Host) ThreadsPerCore() int {
	cores := map[int]bool{}
	for _, c := range m.CPUs {
		cores[c.Core] = true
	}
	if len(cores) == 0 || len(m.CPUs)%len(cores) != 0 {
		return 1
	}
	return len(m.CPUs) / len(cores)
}

// NodeMask has a bit per NUMA node.
func (m *Host) NodeMask() Mask {
	var out Mask
	for _, n := range m.Nodes {
		out |= Of(n.ID)
	}
	return out
}

// In returns the CPUs of the NUMA nodes.
func (m *Host) In(nodes Mask) cpuset.CPUSet {
	var ids []int
	for _, c := range m.CPUs {
		if nodes.Has(c.NUMA) {
			ids = append(ids, c.ID)
		}
	}
	return cpuset.New(ids...)
}

// NodesOf are the NUMA nodes of CPUs.
func (m *Host) NodesOf(set cpuset.CPUSet) Mask {
	var out Mask
	for _, c := range m.CPUs {
		if set.Contains(c.ID) {
			out |= Of(c.NUMA)
		}
	}
	return out
}

// OneCache tells whether CPUs lie behind one last-level cache.
func (m *Host) OneCache(set cpuset.CPUSet) bool {
	caches := map[int]bool{}
	for _, c := range m.CPUs {
		if set.Contains(c.ID) {
			caches[c.Cache] = true
		}
	}
	return len(caches) == 1
}

// Sockets are the sockets that the NUMA nodes lie in.
func (m *Host) Sockets(nodes Mask) map[int]bool {
	out := map[int]bool{}
	for _, c := range m.CPUs {
		if nodes.Has(c.NUMA) {
			out[c.Socket] = true
		}
	}
	return out
}

// Distance is the mean distance between the nodes of a mask, a node to itself
// included; 0 where the host does not tell.
func (m *Host) Distance(nodes Mask) float64 {
	sum, count := 0, 0
	for i, from := range m.Nodes {
		if !nodes.Has(from.ID) {
			continue
		}
		for j, to := range m.Nodes {
			if nodes.Has(to.ID) && j < len(m.Nodes[i].Distances) {
				sum += m.Nodes[i].Distances[j]
				count++
			}
		}
	}
	if count == 0 {
		return 0
	}
	return float64(sum) / float64(count)
}

// Mask is a set of NUMA nodes; node i is bit i. The kernel numbers nodes from
// 0 and this package refuses hosts with a node above 63.
type Mask uint64

// MaskBits is how many nodes a Mask can hold.
const MaskBits = 64

// Of is the mask of the given nodes. It leaves out what is no node: device
// plugins name nodes too.
func Of(nodes ...int) Mask {
	var m Mask
	for _, n := range nodes {
		if n >= 0 && n < MaskBits {
			m |= 1 << n
		}
	}
	return m
}

// Has tells whether a node is in the mask.
func (m Mask) Has(node int) bool { return node >= 0 && node < MaskBits && m&(1<<node) != 0 }

// Nodes lists the nodes, sorted.
func (m Mask) Nodes() []int {
	var out []int
	for i := range MaskBits {
		if m.Has(i) {
			out = append(out, i)
		}
	}
	return out
}

// Count is the number of nodes.
func (m Mask) Count() int { return len(m.Nodes()) }

// String lists the nodes as the kernel does ("0-1,3").
func (m Mask) String() string { return cpuset.New(m.Nodes()...).String() }

// Narrower orders masks: fewer nodes first, then lower numbers.
func (m Mask) Narrower(than Mask) bool {
	if a, b := m.Count(), than.Count(); a != b {
		return a < b
	}
	return m < than
}

// Subsets calls f for every non-empty subset of a mask, narrowest first.
func Subsets(of Mask, f func(Mask)) {
	nodes := of.Nodes()
	all := make([]Mask, 0, 1<<len(nodes)-1)
	for bits := 1; bits < 1<<len(nodes); bits++ {
		var m Mask
		for i, n := range nodes {
			if bits&(1<<i) != 0 {
				m |= Of(n)
			}
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Mask) int {
		switch {
		case a == b:
			return 0
		case a.Narrower(b):
			return -1
		}
		return 1
	})
	for _, m := range all {
		f(m)
	}
}

// describe is for errors and tests: a line per CPU.
func (m *Host) describe() string {
	var b strings.Builder
	for _, c := range m.CPUs {
		fmt.Fprintf(&b, "cpu %d core %d cache %d socket %d numa %d\n", c.ID, c.Core, c.Cache, c.Socket, c.NUMA)
	}
	for _, n := range m.Nodes {
		fmt.Fprintf(&b, "node %d memory %d hugepages %v distances %v\n", n.ID, n.Memory, n.HugePages, n.Distances)
	}
	return b.String()
}
