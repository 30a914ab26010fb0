// Package cpus decides which CPUs containers own (the static policy of
// the CPU manager): which to take, what that leaves for all others, and what
// the topology manager should know of it. It is pure; package assign keeps
// what it decides.
package cpus

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// take picks count CPUs out of free so that they lie as close together
// as they can: in the fewest NUMA nodes, then sockets, then (with AlignCache)
// caches, in as many whole cores as possible, where least room is left over,
// at the lowest numbers. SpreadNUMA and SpreadCores change what is close.
func take(m *topology.Host, free cpuset.CPUSet, count int, o options) (cpuset.CPUSet, error) {
	if free.Size() < count {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, free.Size())
	}
	if count <= 0 {
		return cpuset.New(), nil
	}
	t := taker{host: m, options: o, free: map[int][]topology.CPU{}}
	for _, c := range m.CPUs {
		if free.Contains(c.ID) {
			t.free[c.NUMA] = append(t.free[c.NUMA], c)
		}
	}
	if o.SpreadNUMA {
		if set, ok := t.spread(count); ok {
			return set, nil
		}
	}
	return t.packed(count), nil
}

type taker struct {
	host    *topology.Host
	options options
	free    map[int][]topology.CPU // by NUMA node
}

func (t *taker) in(nodes topology.Mask) (out []topology.CPU) {
	for _, n := range nodes.Nodes() {
		out = append(out, t.free[n]...)
	}
	return out
}

// packed tries every set of nodes that has room and keeps the best.
func (t *taker) packed(count int) cpuset.CPUSet {
	var best cpuset.CPUSet
	var cost []int
	topology.Subsets(t.host.NodeMask(), func(nodes topology.Mask) {
		if cost != nil && nodes.Count() > cost[0] {
			return // narrowest come first
		}
		there := t.in(nodes)
		if len(there) < count {
			return
		}
		set, now := t.within(nodes, there, count)
		if cost == nil || slices.Compare(now, cost) < 0 {
			best, cost = set, now
		}
	})
	return best
}

// within picks out of one set of nodes and prices the pick.
func (t *taker) within(nodes topology.Mask, there []topology.CPU, count int) (cpuset.CPUSet, []int) {
	var ids []int
	if t.options.SpreadCores {
		ids = spreadCores(there, count)
	} else {
		ids = t.pick(there, count)
	}
	set := cpuset.New(ids...)
	caches := 0
	if t.options.AlignCache {
		caches = units(t.host, set, func(c topology.CPU) int { return c.Cache })
	}
	sockets := units(t.host, set, func(c topology.CPU) int { return c.Socket })
	cost := []int{nodes.Count(), sockets, caches, -wholeCores(t.host, set), len(there) - count}
	if t.options.SpreadCores {
		cost[3] = -units(t.host, set, func(c topology.CPU) int { return c.Core })
	}
	return set, cost
}

// pick goes cache by cache where that matters, and packs each.
func (t *taker) pick(there []topology.CPU, count int) []int {
	if !t.options.AlignCache {
		return t.packCores(there, count)
	}
	caches := group(there, func(c topology.CPU) int { return c.Cache })
	// The fullest caches first needs the fewest; the last goes where least is
	// left over.
	slices.SortStableFunc(caches, func(a, b []topology.CPU) int { return cmp.Compare(len(b), len(a)) })
	var ids []int
	for i, cache := range caches {
		left := count - len(ids)
		if left == 0 {
			break
		}
		if left < len(cache) {
			for _, smaller := range caches[i+1:] {
				if len(smaller) >= left && len(smaller) < len(cache) {
					cache = smaller
				}
			}
			return append(ids, t.packCores(cache, left)...)
		}
		ids = append(ids, t.packCores(cache, len(cache))...)
	}
	return ids
}

// packCores takes whole cores first, then threads of cores that are broken
// already, and breaks a core last.
func (t *taker) packCores(there []topology.CPU, count int) []int {
	threads := t.host.ThreadsPerCore()
	var whole, broken [][]topology.CPU
	for _, core := range group(there, func(c topology.CPU) int { return c.Core }) {
		if len(core) == threads {
			whole = append(whole, core)
		} else {
			broken = append(broken, core)
		}
	}
	slices.SortStableFunc(broken, func(a, b []topology.CPU) int { return cmp.Compare(len(a), len(b)) })
	var ids []int
	for len(whole) > 0 && count-len(ids) >= threads {
		ids = append(ids, numbers(whole[0])...)
		whole = whole[1:]
	}
	for _, core := range append(broken, whole...) {
		ids = append(ids, numbers(core)[:min(len(core), count-len(ids))]...)
	}
	return ids
}

// spreadCores takes one thread of each core, of those with most free first,
// and begins again until it has enough.
func spreadCores(there []topology.CPU, count int) []int {
	cores := group(there, func(c topology.CPU) int { return c.Core })
	slices.SortStableFunc(cores, func(a, b []topology.CPU) int { return cmp.Compare(len(b), len(a)) })
	var ids []int
	for round := 0; len(ids) < count; round++ {
		for _, core := range cores {
			if round < len(core) && len(ids) < count {
				ids = append(ids, core[round].ID)
			}
		}
	}
	return ids
}

// spread shares count out evenly over the fewest nodes that can take an even
// share; of several such sets, over the one that stays most balanced.
func (t *taker) spread(count int) (cpuset.CPUSet, bool) {
	unit := 1
	if t.options.FullCores {
		unit = t.host.ThreadsPerCore()
	}
	if count%unit != 0 {
		return cpuset.New(), false
	}
	var best map[int]int
	bestNodes, balance := 0, 0
	topology.Subsets(t.host.NodeMask(), func(nodes topology.Mask) {
		if best != nil && nodes.Count() > bestNodes {
			return
		}
		shares, ok := t.shares(nodes.Nodes(), count, unit)
		if !ok {
			return
		}
		// The sum of squares of what stays free is least where it is even.
		uneven := 0
		for node, cpus := range t.free {
			uneven += (len(cpus) - shares[node]) * (len(cpus) - shares[node])
		}
		if best == nil || uneven < balance {
			best, bestNodes, balance = shares, nodes.Count(), uneven
		}
	})
	if best == nil {
		return cpuset.New(), false
	}
	var ids []int
	for _, node := range topology.Of(keys(best)...).Nodes() {
		ids = append(ids, t.pick(t.free[node], best[node])...)
	}
	return cpuset.New(ids...), true
}

// shares gives every node the same, and units that do not divide to those with
// most room. A node that cannot take its share spoils the set.
func (t *taker) shares(nodes []int, count, unit int) (map[int]int, bool) {
	each := count / len(nodes) / unit * unit
	over := (count - each*len(nodes)) / unit
	byRoom := slices.Clone(nodes)
	slices.SortStableFunc(byRoom, func(a, b int) int { return cmp.Compare(len(t.free[b]), len(t.free[a])) })
	out := map[int]int{}
	for i, n := range byRoom {
		out[n] = each
		if i < over {
			out[n] += unit
		}
		if out[n] == 0 || len(t.free[n]) < out[n] {
			return nil, false
		}
	}
	return out, true
}

func keys(m map[int]int) []int {
	var out []int
	for k := range m {
		out = append(out, k)
	}
	return out
}

// group splits CPUs by a unit, in the order the units are met.
func group(list []topology.CPU, unit func(topology.CPU) int) [][]topology.CPU {
	index := map[int]int{}
	var out [][]topology.CPU
	for _, c := range list {
		i, ok := index[unit(c)]
		if !ok {
			i = len(out)
			index[unit(c)] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], c)
	}
	return out
}

func numbers(list []topology.CPU) []int {
	out := make([]int, 0, len(list))
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out
}

// units counts the distinct units that a set touches.
func units(m *topology.Host, set cpuset.CPUSet, unit func(topology.CPU) int) int {
	seen := map[int]bool{}
	for _, c := range m.CPUs {
		if set.Contains(c.ID) {
			seen[unit(c)] = true
		}
	}
	return len(seen)
}

// wholeCores counts the cores that a set has all threads of.
func wholeCores(m *topology.Host, set cpuset.CPUSet) int {
	return fullCores(m, set).Size() / m.ThreadsPerCore()
}

// fullCores are the CPUs of a set whose siblings are all in the set.
func fullCores(m *topology.Host, set cpuset.CPUSet) cpuset.CPUSet {
	var ids []int
	for _, core := range group(m.CPUs, func(c topology.CPU) int { return c.Core }) {
		if all := cpuset.New(numbers(core)...); all.IsSubsetOf(set) {
			ids = append(ids, all.List()...)
		}
	}
	return cpuset.New(ids...)
}
