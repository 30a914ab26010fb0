package device

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Device is one device of a resource.
type Device struct {
	ID      string
	Healthy bool
	// NUMA are the nodes it is near to; empty if it does not say.
	NUMA []int64
}

// Share is the devices of one resource that a container holds.
type Share struct {
	Resource string
	IDs      []string
	// Response is what the plugin answered to the allocation, as it came.
	Response []byte
}

// Ledger knows the devices there are and who holds them. It is not safe for
// concurrent use; Manager guards it.
type Ledger struct {
	// devices by resource and ID. A resource whose plugin went stays, with all
	// devices unhealthy, until it is dropped; then it stays without devices.
	devices map[string]map[string]Device
	// held by pod, container and resource.
	held map[types.UID]map[string]map[string]Share
}

// NewLedger returns an empty Ledger.
func NewLedger() *Ledger {
	return &Ledger{devices: map[string]map[string]Device{}, held: map[types.UID]map[string]map[string]Share{}}
}

// Know sets the devices of a resource.
func (l *Ledger) Know(resource string, devices []Device) {
	byID := map[string]Device{}
	for _, device := range devices {
		byID[device.ID] = device
	}
	l.devices[resource] = byID
}

// Lose makes all devices of a resource unhealthy.
func (l *Ledger) Lose(resource string) {
	for id, device := range l.devices[resource] {
		device.Healthy = false
		l.devices[resource][id] = device
	}
}

// Drop forgets the devices of a resource, not the resource.
func (l *Ledger) Drop(resource string) { l.devices[resource] = map[string]Device{} }

// Counts returns all devices and the healthy ones, by resource.
func (l *Ledger) Counts() (all, healthy map[string]int64) {
	all, healthy = map[string]int64{}, map[string]int64{}
	for resource, devices := range l.devices {
		all[resource], healthy[resource] = int64(len(devices)), 0
		for _, device := range devices {
			if device.Healthy {
				healthy[resource]++
			}
		}
	}
	return all, healthy
}

// Want is what one container is to get of one resource.
type Want struct {
	Container, Resource string
	Count               int
	// Available are healthy devices that nobody holds, Must those of the pod's
	// own init containers, which are taken first. Both sorted.
	Available, Must []string
}

// Held returns what a container holds, sorted by resource.
func (l *Ledger) Held(pod types.UID, container string) []Share {
	return slices.SortedFunc(maps.Values(l.held[pod][container]), func(a, b Share) int { return strings.Compare(a.Resource, b.Resource) })
}

// Containers returns the names of the containers of a pod that hold devices.
func (l *Ledger) Containers(pod types.UID) []string { return slices.Sorted(maps.Keys(l.held[pod])) }

// Give notes that a container holds devices.
func (l *Ledger) Give(pod types.UID, container string, share Share) {
	if l.held[pod] == nil {
		l.held[pod] = map[string]map[string]Share{}
	}
	if l.held[pod][container] == nil {
		l.held[pod][container] = map[string]Share{}
	}
	l.held[pod][container][share.Resource] = share
}

// Take takes back everything a pod holds.
func (l *Ledger) Take(pod types.UID) { delete(l.held, pod) }

// Keep takes back what pods hold that are not to be kept, and tells whether
// there were any.
func (l *Ledger) Keep(keep func(types.UID) bool) bool {
	changed := false
	for pod := range l.held {
		if !keep(pod) {
			delete(l.held, pod)
			changed = true
		}
	}
	return changed
}

// Next returns the next thing to allocate for a pod, or false when it has all
// it asks for. Init containers run one after the other before all others, so
// what they hold is used again.
func (l *Ledger) Next(pod *v1.Pod) (Want, bool, error) {
	var reusable []string // containers whose devices are free again by then
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		want, open, err := l.next(pod.UID, container, reusable)
		if open || err != nil {
			return want, open, err
		}
		if container.RestartPolicy == nil || *container.RestartPolicy != v1.ContainerRestartPolicyAlways {
			reusable = append(reusable, container.Name)
		}
	}
	taken := map[string]bool{}
	for i := range pod.Spec.Containers {
		container := &pod.Spec.Containers[i]
		want, open, err := l.nextBeside(pod.UID, container, reusable, taken)
		if open || err != nil {
			return want, open, err
		}
		for resource, share := range l.held[pod.UID][container.Name] {
			for _, id := range share.IDs {
				taken[resource+"/"+id] = true
			}
		}
	}
	return Want{}, false, nil
}

func (l *Ledger) next(pod types.UID, container *v1.Container, reusable []string) (Want, bool, error) {
	return l.nextBeside(pod, container, reusable, nil)
}

// nextBeside does not reuse devices that containers which run beside it took.
func (l *Ledger) nextBeside(pod types.UID, container *v1.Container, reusable []string, taken map[string]bool) (Want, bool, error) {
	var names []string
	for name := range container.Resources.Limits {
		names = append(names, string(name))
	}
	sort.Strings(names)
	for _, name := range names {
		if _, known := l.devices[name]; !known {
			continue // not of a device plugin
		}
		quantity := container.Resources.Limits[v1.ResourceName(name)]
		count := int(quantity.Value())
		if count == 0 {
			continue
		}
		if _, has := l.held[pod][container.Name][name]; has {
			continue
		}
		want := Want{Container: container.Name, Resource: name, Count: count}
		again := map[string]bool{}
		for _, from := range reusable {
			for _, id := range l.held[pod][from][name].IDs {
				if !taken[name+"/"+id] {
					again[id] = true
				}
			}
		}
		want.Must = slices.Sorted(maps.Keys(again))
		if len(want.Must) > count {
			want.Must = want.Must[:count]
		}
		want.Available = l.free(name)
		if have := len(want.Must) + len(want.Available); have < count {
			return want, false, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, count, have)
		}
		return want, true, nil
	}
	return Want{}, false, nil
}

// free are the healthy devices of a resource that nobody holds.
func (l *Ledger) free(resource string) []string {
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
	sort.Strings(ids)
	return ids
}

// Choose picks the devices: those that must, then those preferred, then any.
func (w Want) Choose(preferred []string) []string {
	chosen := slices.Clone(w.Must)
	for _, list := range [][]string{preferred, w.Available} {
		for _, id := range list {
			if len(chosen) == w.Count {
				return chosen
			}
			if !slices.Contains(chosen, id) && (slices.Contains(w.Available, id) || slices.Contains(w.Must, id)) {
				chosen = append(chosen, id)
			}
		}
	}
	return chosen
}
