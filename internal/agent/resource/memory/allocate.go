package memory

import (
	"errors"
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Hints are the groups of nodes that have room for a container (or, with c
// nil, for the whole pod).
func Hints(s State, pod *v1.Pod, c *v1.Container) topology.Wishes {
	uid := string(pod.UID)
	var want map[v1.ResourceName]uint64
	var held topology.Mask
	again := func(topology.Mask, v1.ResourceName) uint64 { return 0 }
	if c == nil {
		want = podRequests(pod)
		for name := range s.Owned[uid] {
			held |= s.NodesOf(uid, name)
		}
	} else {
		want, held = Requests(pod, c), s.NodesOf(uid, c.Name)
		again = func(m topology.Mask, kind v1.ResourceName) uint64 { return reusable(s, pod, c.Name, m, kind) }
	}
	if len(want) == 0 {
		return nil
	}
	list := []topology.Hint{{Mask: held, Preferred: true}}
	if held == 0 {
		list = s.hints(want, again)
	}
	out := topology.Wishes{}
	for kind := range want {
		out[string(kind)] = list
	}
	return out
}

// hints lists the groups with enough free of every kind; those no wider than
// an empty host would need are preferred.
func (s State) hints(want map[v1.ResourceName]uint64, again func(topology.Mask, v1.ResourceName) uint64) []topology.Hint {
	least := 0
	out := []topology.Hint{}
	topology.Subsets(topology.Of(slices.Collect(maps.Keys(s.Nodes))...), func(m topology.Mask) {
		if least == 0 && s.sums(m, want, func(t *Table) uint64 { return t.Allocatable }, nil) {
			least = m.Count() // narrowest come first
		}
		if s.violates(m) || !s.sums(m, want, func(t *Table) uint64 { return t.Free }, again) {
			return
		}
		out = append(out, topology.Hint{Mask: m, Preferred: m.Count() == least})
	})
	return out
}

// sums tells whether a group has as much of everything as is wanted.
func (s State) sums(m topology.Mask, want map[v1.ResourceName]uint64, of func(*Table) uint64,
	again func(topology.Mask, v1.ResourceName) uint64) bool {
	for kind, need := range want {
		var have uint64
		for _, id := range m.Nodes() {
			if n := s.Nodes[id]; n != nil && n.MemoryMap[kind] != nil {
				have += of(n.MemoryMap[kind])
			}
		}
		if again != nil {
			have += again(m, kind)
		}
		if have < need {
			return false
		}
	}
	return true
}

// violates tells whether a group would mix with other groups in use.
func (s State) violates(m topology.Mask) bool {
	for _, id := range m.Nodes() {
		n := s.Nodes[id]
		if n == nil || n.NumberOfAssignments > 0 && topology.Of(n.Cells...) != m {
			return true
		}
	}
	return false
}

// reusable is what init containers before a container leave to it of one
// group: what they hold and no one after them took over.
func reusable(s State, pod *v1.Pod, name string, m topology.Mask, kind v1.ResourceName) uint64 {
	var out uint64
	for b := range s.leftBefore(pod, name, m, kind) {
		out += b.Size
	}
	return out
}

// leftBefore are the blocks of one group and kind that init containers before
// a container leave to it: those of sidecars, which run on, are not among them.
func (s State) leftBefore(pod *v1.Pod, name string, m topology.Mask, kind v1.ResourceName) iter.Seq[*Block] {
	return func(yield func(*Block) bool) {
		for i := range pod.Spec.InitContainers {
			c := &pod.Spec.InitContainers[i]
			if c.Name == name {
				return
			}
			if sidecar(c) {
				continue
			}
			blocks := s.Owned[string(pod.UID)][c.Name]
			for j := range blocks {
				b := &blocks[j]
				if b.Type == kind && topology.Of(b.NUMAAffinity...) == m && !yield(b) {
					return
				}
			}
		}
	}
}

// Allocate books a container's memory on the nodes chosen for it (0: where it
// fits best). What it has already it keeps. s is changed, also on error.
func Allocate(merger topology.Merger, s State, pod *v1.Pod, c *v1.Container, chosen topology.Hint) error {
	want := Requests(pod, c)
	uid := string(pod.UID)
	if _, has := s.Owned[uid][c.Name]; has || len(want) == 0 {
		return nil
	}
	again := func(m topology.Mask, kind v1.ResourceName) uint64 { return reusable(s, pod, c.Name, m, kind) }
	group := chosen.Mask
	if group == 0 || !s.sums(group, want, func(t *Table) uint64 { return t.Free }, again) {
		var ok bool
		if group, ok = s.extend(merger, group, want, again); !ok {
			return errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
	}
	if s.violates(group) {
		return errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		need := want[kind]
		taken := s.takeOver(pod, c.Name, group, kind, need)
		s.book(group, kind, need-taken)
		if s.Owned[uid] == nil {
			s.Owned[uid] = map[string][]Block{}
		}
		s.Owned[uid][c.Name] = append(s.Owned[uid][c.Name], Block{NUMAAffinity: group.Nodes(), Type: kind, Size: need})
	}
	return nil
}

// extend finds the best group with room around nodes that were chosen and do
// not have it.
func (s State) extend(merger topology.Merger, around topology.Mask, want map[v1.ResourceName]uint64,
	again func(topology.Mask, v1.ResourceName) uint64) (topology.Mask, bool) {
	var fits []topology.Hint
	for _, h := range s.hints(want, again) {
		if h.Mask&around == around {
			fits = append(fits, h)
		}
	}
	if len(fits) == 0 {
		return 0, false
	}
	merger.Policy = topology.BestEffort
	best, _ := merger.Merge([]topology.Wishes{{"memory": fits}})
	return best.Mask, true
}

// takeOver moves what init containers hold to a later container, and tells how
// much. Blocks stay, at what is left of them.
func (s State) takeOver(pod *v1.Pod, name string, group topology.Mask, kind v1.ResourceName, need uint64) uint64 {
	var taken uint64
	for b := range s.leftBefore(pod, name, group, kind) {
		part := min(b.Size, need-taken)
		b.Size -= part
		taken += part
	}
	return taken
}

// book takes free memory of a group, node by node.
func (s State) book(group topology.Mask, kind v1.ResourceName, need uint64) {
	for _, id := range group.Nodes() {
		n := s.Nodes[id]
		n.NumberOfAssignments++
		n.Cells = group.Nodes()
		t := n.MemoryMap[kind]
		if t == nil {
			continue
		}
		part := min(need, t.Free)
		t.Free -= part
		t.Reserved += part
		need -= part
	}
}

// Release takes back what pods own that are not to be kept, and tells whether
// there was any. s is changed.
func Release(s State, keep func(pod string) bool) bool {
	gone := false
	for _, pod := range slices.Sorted(maps.Keys(s.Owned)) {
		if keep(pod) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(s.Owned[pod])) {
			for _, b := range s.Owned[pod][name] {
				s.unbook(b)
			}
		}
		delete(s.Owned, pod)
		gone = true
	}
	return gone
}

func (s State) unbook(b Block) {
	left := b.Size
	for _, id := range b.NUMAAffinity {
		n := s.Nodes[id]
		n.NumberOfAssignments--
		if n.NumberOfAssignments == 0 {
			n.Cells = []int{id}
		}
		t := n.MemoryMap[b.Type]
		if t == nil {
			continue
		}
		part := min(left, t.Reserved)
		t.Reserved -= part
		t.Free += part
		left -= part
	}
}
