package device

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// device is one device of a resource.
type device struct {
	ID      string
	Healthy bool
	// NUMA are the nodes it is near to; empty if it does not say.
	NUMA []int64
}

func (d device) near() (out topology.Mask) {
	for _, n := range d.NUMA {
		out |= topology.Of(int(n))
	}
	return out
}

// containerDevices is the devices of one resource that a container holds.
type containerDevices struct {
	Resource string
	IDs      []string
	// Nodes is the NUMA node each device was near to when it was given, by ID;
	// devices that did not say are missing.
	Nodes map[string]int64
	// Response is what the plugin answered to the allocation, as it came.
	Response []byte
}

// ledger knows the devices there are and who holds them. It is not safe for
// concurrent use; Manager guards it.
type ledger struct {
	// devices by resource and ID. A resource whose plugin went stays, with all
	// devices unhealthy, until it is dropped; then it stays without devices.
	devices map[string]map[string]device
	// held by pod, container and resource.
	held map[types.UID]map[string]map[string]containerDevices
}

// newLedger returns an empty Ledger.
func newLedger() *ledger {
	return &ledger{devices: map[string]map[string]device{}, held: map[types.UID]map[string]map[string]containerDevices{}}
}

// Know sets the devices of a resource.
func (l *ledger) Know(resource string, devices []device) {
	byID := map[string]device{}
	for _, device := range devices {
		byID[device.ID] = device
	}
	l.devices[resource] = byID
}

// Lose makes all devices of a resource unhealthy. A resource whose plugin never
// listed any is known from then on, with none.
func (l *ledger) Lose(resource string) {
	if l.devices[resource] == nil {
		l.Drop(resource)
	}
	for id, device := range l.devices[resource] {
		device.Healthy = false
		l.devices[resource][id] = device
	}
}

// Drop forgets the devices of a resource, not the resource.
func (l *ledger) Drop(resource string) { l.devices[resource] = map[string]device{} }

// Counts returns all devices and the healthy ones, by resource.
func (l *ledger) Counts() (all, healthy map[string]int64) {
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

// Held returns what a container holds, sorted by resource.
func (l *ledger) Held(pod types.UID, container string) []containerDevices {
	return slices.SortedFunc(maps.Values(l.held[pod][container]), func(a, b containerDevices) int {
		return strings.Compare(a.Resource,
			b.Resource)
	})
}

// Containers returns the names of the containers of a pod that hold devices.
func (l *ledger) Containers(pod types.UID) []string { return slices.Sorted(maps.Keys(l.held[pod])) }

// Holders are the pods that hold devices of a resource.
func (l *ledger) Holders(resource string) []types.UID {
	var out []types.UID
	for pod, containers := range l.held {
		for _, shares := range containers {
			if _, ok := shares[resource]; ok {
				out = append(out, pod)
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

// Give notes that a container holds devices.
func (l *ledger) Give(pod types.UID, container string, share containerDevices) {
	if l.held[pod] == nil {
		l.held[pod] = map[string]map[string]containerDevices{}
	}
	if l.held[pod][container] == nil {
		l.held[pod][container] = map[string]containerDevices{}
	}
	l.held[pod][container][share.Resource] = share
}

// Take takes back everything a pod holds, and tells whether there was any.
func (l *ledger) Take(pod types.UID) bool {
	_, had := l.held[pod]
	delete(l.held, pod)
	return had
}

// Keep takes back what pods hold that are not to be kept, and tells whether
// there were any.
func (l *ledger) Keep(keep func(types.UID) bool) bool {
	changed := false
	for pod := range l.held {
		if !keep(pod) {
			changed = l.Take(pod) || changed
		}
	}
	return changed
}

// Health is the health of the devices that a container holds, in the words of
// the pod's status.
func (l *ledger) Health(pod types.UID, container string) []v1.ResourceStatus {
	var out []v1.ResourceStatus
	for _, share := range l.Held(pod, container) {
		status := v1.ResourceStatus{Name: v1.ResourceName(share.Resource)}
		for _, id := range slices.Sorted(slices.Values(share.IDs)) {
			health := v1.ResourceHealthStatusUnknown
			if device, known := l.devices[share.Resource][id]; known {
				health = v1.ResourceHealthStatusUnhealthy
				if device.Healthy {
					health = v1.ResourceHealthStatusHealthy
				}
			}
			status.Resources = append(status.Resources, v1.ResourceHealth{ResourceID: v1.ResourceID(id), Health: health})
		}
		out = append(out, status)
	}
	return out
}
