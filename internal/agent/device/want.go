package device

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// want is what one container is to get of one resource.
type want struct {
	Container, Resource string
	Count               int
	// Must are taken before all others: those of the pod's own init containers,
	// and those near the wanted nodes where there are not enough near.
	// Available are those to choose the rest from. Both sorted.
	Must, Available []string
}

// asked are the resources of device plugins that a container asks for.
func (l *ledger) asked(c *v1.Container) map[string]int {
	out := map[string]int{}
	for name, quantity := range c.Resources.Limits {
		if _, known := l.devices[string(name)]; known && quantity.Value() > 0 {
			out[string(name)] = int(quantity.Value())
		}
	}
	return out
}

// Next returns the next thing to allocate for a container near the given nodes
// (0: anywhere), or false when it has all it asks for. What it has from before a
// restart counts only while it is healthy: after a reboot of the host the
// plugin may not have come back, or without that device.
func (l *ledger) Next(pod *v1.Pod, c *v1.Container, nodes topology.Mask) (want, bool, error) {
	asked := l.asked(c)
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if l.healthy(name) == 0 {
			return want{}, false, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
		}
		if held, has := l.held[pod.UID][c.Name][name]; has {
			if slices.ContainsFunc(held.IDs, func(id string) bool { return !l.devices[name][id].Healthy }) {
				return want{}, false, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s",
					name)
			}
			continue
		}
		want := want{Container: c.Name, Resource: name, Count: asked[name]}
		again := l.reusable(pod, c.Name, name)
		free := l.free(name)
		if have := len(again) + len(free); have < want.Count {
			return want, false, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, want.Count,
				have)
		}
		want.Must = again[:min(len(again), want.Count)]
		for _, group := range l.byDistance(name, free, nodes) {
			if len(want.Must)+len(group) >= want.Count {
				want.Available = group
				break
			}
			want.Must = append(want.Must, group...)
		}
		return want, true, nil
	}
	return want{}, false, nil
}

// healthy counts the devices of a resource that work, no matter who holds them.
func (l *ledger) healthy(resource string) (n int) {
	for _, device := range l.devices[resource] {
		if device.Healthy {
			n++
		}
	}
	return n
}

// reusable are devices of init containers that end before a container starts
// and that no one beside it took.
func (l *ledger) reusable(pod *v1.Pod, name, resource string) []string {
	again := map[string]bool{}
	add := func(container string, have bool) {
		for _, id := range l.held[pod.UID][container][resource].IDs {
			if have {
				again[id] = true
			} else {
				delete(again, id)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == name {
			return slices.Sorted(maps.Keys(again))
		}
		add(c.Name, !sidecar(c))
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			break
		}
		add(pod.Spec.Containers[i].Name, false)
	}
	return slices.Sorted(maps.Keys(again))
}

func sidecar(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// byDistance splits devices into those near the nodes, those that do not say,
// and those elsewhere.
func (l *ledger) byDistance(resource string, ids []string, nodes topology.Mask) [][]string {
	if nodes == 0 {
		return [][]string{ids}
	}
	groups := make([][]string, 3)
	for _, id := range ids {
		i := 2
		switch near := l.devices[resource][id].near(); {
		case near == 0:
			i = 1
		case near&nodes != 0:
			i = 0
		}
		groups[i] = append(groups[i], id)
	}
	return groups
}

// free are the healthy devices of a resource that no one holds.
func (l *ledger) free(resource string) []string {
	busy := map[string]bool{}
	for _, containers := range l.held {
		for _, shares := range containers {
			for _, id := range shares[resource].IDs {
				busy[id] = true
			}
		}
	}
	var ids []string
	for id, device := range l.devices[resource] {
		if device.Healthy && !busy[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Choose picks the devices: those that must, then those preferred, then any.
func (w want) Choose(preferred []string) []string {
	chosen := slices.Clone(w.Must)
	for _, list := range [][]string{preferred, w.Available} {
		for _, id := range list {
			if len(chosen) == w.Count {
				return chosen
			}
			if !slices.Contains(chosen, id) && slices.Contains(w.Available, id) {
				chosen = append(chosen, id)
			}
		}
	}
	return chosen
}

// nodesOf are the NUMA nodes of devices, as a Share keeps them.
func (l *ledger) nodesOf(resource string, ids []string) map[string]int64 {
	out := map[string]int64{}
	for _, id := range ids {
		if near := l.devices[resource][id].NUMA; len(near) > 0 {
			out[id] = near[0]
		}
	}
	return out
}

// Hints are the sets of the host's nodes that have enough devices for a
// container (or, with c nil, for the whole pod). Resources whose devices say
// nothing of nodes have no preference.
func (l *ledger) Hints(host topology.Mask, pod *v1.Pod, c *v1.Container) topology.Wishes {
	out := topology.Wishes{}
	if c != nil {
		for name, count := range l.asked(c) {
			held, has := l.held[pod.UID][c.Name][name]
			out[name] = l.hints(host, name, count, held.IDs, has, l.reusable(pod, c.Name, name))
		}
		return out
	}
	for name, count := range l.podAsks(pod) {
		var ids []string
		for _, shares := range l.held[pod.UID] {
			ids = append(ids, shares[name].IDs...)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		out[name] = l.hints(host, name, count, ids, len(ids) > 0, nil)
	}
	return out
}

// podAsks is what a pod holds of each resource at most at one time.
func (l *ledger) podAsks(pod *v1.Pod) map[string]int {
	peak, beside := map[string]int{}, map[string]int{}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		for name, n := range l.asked(c) {
			if sidecar(c) {
				beside[name] += n
				n = 0
			}
			peak[name] = max(peak[name], beside[name]+n)
		}
	}
	for i := range pod.Spec.Containers {
		for name, n := range l.asked(&pod.Spec.Containers[i]) {
			beside[name] += n
		}
	}
	for name, n := range beside {
		peak[name] = max(peak[name], n)
	}
	return peak
}

func (l *ledger) hints(host topology.Mask, resource string, count int, held []string, has bool, again []string) []topology.Hint {
	if !slices.ContainsFunc(slices.Collect(maps.Values(l.devices[resource])), func(d device) bool { return len(d.NUMA) > 0 }) {
		return nil
	}
	usable := append(l.free(resource), again...)
	if has {
		if len(held) != count {
			return []topology.Hint{}
		}
		usable, again = held, held
	}
	out, least := []topology.Hint{}, 0
	topology.Subsets(host, func(nodes topology.Mask) {
		if all := slices.Collect(maps.Keys(l.devices[resource])); least == 0 && l.within(resource, all, nodes) >= count {
			least = nodes.Count() // narrowest come first
		}
		if l.within(resource, usable, nodes) >= count && l.within(resource, again, nodes) >= min(count, len(again)) {
			out = append(out, topology.Hint{Mask: nodes, Preferred: nodes.Count() == least})
		}
	})
	return out
}

// within counts the devices near any of the nodes.
func (l *ledger) within(resource string, ids []string, nodes topology.Mask) (n int) {
	for _, id := range ids {
		if l.devices[resource][id].near()&nodes != 0 {
			n++
		}
	}
	return n
}
