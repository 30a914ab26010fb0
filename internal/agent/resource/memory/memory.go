// Package memory decides which NUMA nodes containers get their memory and huge
// pages from (the static policy of the memory manager). It is pure; package
// assign keeps what it decides.
//
// A node serves either containers that it can hold alone or one group of nodes
// that containers too large for one share: mixing both would let the kernel
// run one node dry while the books say that there is room.
package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Table is one kind of memory of a node, in bytes. Field and JSON names here
// and below are those of the kubelet's own state file, so that a node can
// change over with its pods running.
type Table struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// NodeState is the books of one node.
type NodeState struct {
	// NumberOfAssignments counts blocks that use the node.
	NumberOfAssignments int                        `json:"numberOfAssignments"`
	MemoryMap           map[v1.ResourceName]*Table `json:"memoryMap"`
	// Cells is the group the node belongs to, itself included.
	Cells []int `json:"cells"`
}

// Block is memory of one kind that a container got, from one group of nodes.
type Block struct {
	NUMAAffinity []int           `json:"numaAffinity"`
	Type         v1.ResourceName `json:"type"`
	Size         uint64          `json:"size"`
}

// State is who got what, and what that leaves.
type State struct {
	Nodes map[int]*NodeState
	// Owned by pod and container.
	Owned map[string]map[string][]Block
}

// Clone returns a copy that may be changed.
func (s State) Clone() State {
	out := State{Nodes: map[int]*NodeState{}, Owned: map[string]map[string][]Block{}}
	for id, n := range s.Nodes {
		c := &NodeState{NumberOfAssignments: n.NumberOfAssignments, MemoryMap: map[v1.ResourceName]*Table{}, Cells: slices.Clone(n.Cells)}
		for name, t := range n.MemoryMap {
			table := *t
			c.MemoryMap[name] = &table
		}
		out.Nodes[id] = c
	}
	for pod, containers := range s.Owned {
		out.Owned[pod] = map[string][]Block{}
		for name, blocks := range containers {
			out.Owned[pod][name] = slices.Clone(blocks)
		}
	}
	return out
}

// Reservation is what is kept for the system, by node and kind.
type Reservation map[int]map[v1.ResourceName]uint64

// CheckReservation demands that what the nodes reserve is what the node as a
// whole reserves, which is what keeps both books in step.
func CheckReservation(m *topology.Host, r Reservation, whole v1.ResourceList) error {
	sum := map[v1.ResourceName]uint64{}
	for id, kinds := range r {
		if !m.NodeMask().Has(id) {
			return fmt.Errorf("reservedMemory: the host has no NUMA node %d", id)
		}
		for kind, bytes := range kinds {
			if kind != v1.ResourceMemory && !strings.HasPrefix(string(kind), v1.ResourceHugePagesPrefix) {
				return fmt.Errorf("reservedMemory of NUMA node %d: %q is not memory: allowed are memory and hugepages-<size>", id, kind)
			}
			sum[kind] += bytes
		}
	}
	kinds := map[v1.ResourceName]bool{v1.ResourceMemory: true}
	for kind := range sum {
		kinds[kind] = true
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		want := whole[kind]
		if want.Value() != int64(sum[kind]) {
			have := apiresource.NewQuantity(int64(sum[kind]), apiresource.BinarySI)
			return fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature: make "+
				"reservedMemory the sum of kubeReserved, systemReserved and the hard eviction threshold", have, kind, want.String())
		}
	}
	if sum[v1.ResourceMemory] == 0 {
		return errors.New("memoryManagerPolicy Static needs reservedMemory")
	}
	return nil
}

// Initial is the state of a node without pods.
func Initial(m *topology.Host, reserved Reservation) State {
	s := State{Nodes: map[int]*NodeState{}, Owned: map[string]map[string][]Block{}}
	for _, n := range m.Nodes {
		state := &NodeState{MemoryMap: map[v1.ResourceName]*Table{}, Cells: []int{n.ID}}
		pages := uint64(0)
		for size, bytes := range n.HugePages {
			kind := v1.ResourceName(v1.ResourceHugePagesPrefix + apiresource.NewQuantity(size, apiresource.BinarySI).String())
			state.MemoryMap[kind] = table(bytes, reserved[n.ID][kind], 0)
			pages += bytes
		}
		state.MemoryMap[v1.ResourceMemory] = table(n.Memory, reserved[n.ID][v1.ResourceMemory], pages)
		s.Nodes[n.ID] = state
	}
	return s
}

func table(total, reserved, elsewhere uint64) *Table {
	t := &Table{TotalMemSize: total, SystemReserved: reserved}
	if total > reserved+elsewhere {
		t.Allocatable = total - reserved - elsewhere
	}
	t.Free = t.Allocatable
	return t
}

// Check tells why a state from disk does not fit the host.
func Check(s, initial State) error {
	if len(s.Nodes) != len(initial.Nodes) {
		return fmt.Errorf("the state has %d NUMA nodes, the host %d", len(s.Nodes), len(initial.Nodes))
	}
	owned := map[v1.ResourceName]uint64{}
	for _, containers := range s.Owned {
		for _, blocks := range containers {
			for _, b := range blocks {
				owned[b.Type] += b.Size
			}
		}
	}
	booked := map[v1.ResourceName]uint64{}
	for id, n := range initial.Nodes {
		have := s.Nodes[id]
		if have == nil || len(have.MemoryMap) != len(n.MemoryMap) {
			return fmt.Errorf("the memory of NUMA node %d is not what the state says", id)
		}
		for kind, t := range n.MemoryMap {
			was := have.MemoryMap[kind]
			if was == nil || was.Allocatable != t.Allocatable || was.SystemReserved != t.SystemReserved ||
				was.TotalMemSize != t.TotalMemSize {
				return fmt.Errorf("%s of NUMA node %d is not what the state says", kind, id)
			}
			if was.Reserved+was.Free != t.Allocatable {
				return fmt.Errorf("%s of NUMA node %d: reserved and free do not add up", kind, id)
			}
			booked[kind] += was.Reserved
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(booked)) {
		if booked[kind] != owned[kind] {
			return fmt.Errorf("containers own %d bytes of %s, the nodes have %d booked", owned[kind], kind, booked[kind])
		}
	}
	return nil
}

// Requests is what a container gets memory for: all it asks for, if its pod is
// Guaranteed and does not ask as a whole.
func Requests(pod *v1.Pod, c *v1.Container) map[v1.ResourceName]uint64 {
	if resource.QOS(pod) != v1.PodQOSGuaranteed || helpers.IsPodLevelResourcesSet(pod) {
		return nil
	}
	out := map[v1.ResourceName]uint64{}
	for name, q := range c.Resources.Limits { // equal to the requests, which static pods may lack
		if (name == v1.ResourceMemory || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)) && q.Sign() > 0 {
			out[name] = uint64(q.Value())
		}
	}
	return out
}

// podRequests is what a whole pod needs at most at one time.
func podRequests(pod *v1.Pod) map[v1.ResourceName]uint64 {
	peak, beside := map[v1.ResourceName]uint64{}, map[v1.ResourceName]uint64{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		for name, n := range Requests(pod, c) {
			if sidecar(c) {
				beside[name] += n
				n = 0
			}
			peak[name] = max(peak[name], beside[name]+n)
		}
	}
	for i := range pod.Spec.Containers {
		for name, n := range Requests(pod, &pod.Spec.Containers[i]) {
			beside[name] += n
		}
	}
	for name, n := range beside {
		peak[name] = max(peak[name], n)
	}
	return peak
}

func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// NodesOf are the NUMA nodes that a container's memory comes from.
func (s State) NodesOf(pod, container string) topology.Mask {
	var out topology.Mask
	for _, b := range s.Owned[pod][container] {
		out |= topology.Of(b.NUMAAffinity...)
	}
	return out
}
