package node

import (
	"fmt"
	"maps"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/agent/config"
)

// Reservation is what of the host is kept away from pods.
type Reservation struct {
	// System and Kube are systemReserved and kubeReserved.
	System, Kube v1.ResourceList
	// EvictionHard maps resources to the hard eviction threshold that protects
	// them: memory and ephemeral-storage only.
	EvictionHard map[v1.ResourceName]config.Threshold
}

// NameCPUs makes the reservation of CPUs the named ones ("0-1,4"); ""
// leaves it alone.
func (r *Reservation) NameCPUs(list string) error {
	if list == "" {
		return nil
	}
	set, err := cpuset.Parse(list)
	if err != nil {
		return fmt.Errorf("reading reservedSystemCPUs %q: %w", list, err)
	}
	r.System, r.Kube = maps.Clone(r.System), maps.Clone(r.Kube)
	if r.System == nil {
		r.System = v1.ResourceList{}
	}
	delete(r.Kube, v1.ResourceCPU)
	r.System[v1.ResourceCPU] = *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
	return nil
}

// Limits bound the number of pods.
type Limits struct {
	MaxPods     int64
	PodsPerCore int64
}

// evictionReservation picks from hard eviction thresholds those that reduce
// what the node offers.
func evictionReservation(evictionHard map[string]string) (map[v1.ResourceName]config.Threshold, error) {
	out := map[v1.ResourceName]config.Threshold{}
	for signal, name := range map[string]v1.ResourceName{
		"memory.available": v1.ResourceMemory,
		"nodefs.available": v1.ResourceEphemeralStorage,
	} {
		text, ok := evictionHard[signal]
		if !ok {
			continue
		}
		threshold, on, err := config.ParseThreshold(text)
		if err != nil {
			return nil, fmt.Errorf("reading evictionHard[%s]: %w", signal, err)
		}
		if on {
			out[name] = threshold
		}
	}
	return out, nil
}

// Capacity is everything the host has. Without host facts (nil) it
// offers no cpu and no memory, so that nothing is scheduled on a guess.
func Capacity(hostInfo *HostInfo, rootFS *FS, limits Limits, devices v1.ResourceList) v1.ResourceList {
	capacity := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(0, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(0, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(limits.MaxPods, resource.DecimalSI),
	}
	if hostInfo != nil {
		capacity[v1.ResourceCPU] = *resource.NewMilliQuantity(int64(hostInfo.CPUs)*1000, resource.DecimalSI)
		capacity[v1.ResourceMemory] = *resource.NewQuantity(hostInfo.MemoryBytes, resource.BinarySI)
		if perCore := limits.PodsPerCore * int64(hostInfo.CPUs); limits.PodsPerCore > 0 && perCore < limits.MaxPods {
			capacity[v1.ResourcePods] = *resource.NewQuantity(perCore, resource.DecimalSI)
		}
		for size, count := range hostInfo.HugePages {
			name := v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
			capacity[name] = *resource.NewQuantity(size*count, resource.BinarySI)
		}
	}
	if rootFS != nil {
		capacity[v1.ResourceEphemeralStorage] = *resource.NewQuantity(rootFS.CapacityBytes, resource.BinarySI)
	}
	for name, quantity := range devices {
		capacity[name] = quantity.DeepCopy()
	}
	return capacity
}

// Allocatable is what of the capacity pods may ask for.
func Allocatable(capacity v1.ResourceList, reserved Reservation, devices v1.ResourceList) v1.ResourceList {
	allocatable := v1.ResourceList{}
	for name, quantity := range capacity {
		value := quantity.DeepCopy()
		for _, share := range []v1.ResourceList{reserved.System, reserved.Kube} {
			if part, ok := share[name]; ok {
				value.Sub(part)
			}
		}
		if threshold, ok := reserved.EvictionHard[name]; ok {
			value.Sub(*resource.NewQuantity(threshold.Of(quantity.Value()), resource.BinarySI))
		}
		allocatable[name] = floorZero(value)
	}
	for name, quantity := range devices {
		allocatable[name] = quantity.DeepCopy()
	}
	memory := allocatable[v1.ResourceMemory]
	for name, quantity := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			memory.Sub(quantity)
		}
	}
	allocatable[v1.ResourceMemory] = floorZero(memory)
	return allocatable
}

func floorZero(quantity resource.Quantity) resource.Quantity {
	if quantity.Sign() < 0 {
		quantity.Set(0)
	}
	return quantity
}

// checkReservation refuses reservations larger than the host.
func checkReservation(capacity v1.ResourceList, reserved Reservation) error {
	names := make([]string, 0, len(capacity))
	for name := range capacity {
		names = append(names, string(name))
	}
	sort.Strings(names)
	for _, name := range names {
		have := capacity[v1.ResourceName(name)]
		total := resource.Quantity{}
		for _, share := range []v1.ResourceList{reserved.System, reserved.Kube} {
			if part, ok := share[v1.ResourceName(name)]; ok {
				total.Add(part)
			}
		}
		if threshold, ok := reserved.EvictionHard[v1.ResourceName(name)]; ok {
			total.Add(*resource.NewQuantity(threshold.Of(have.Value()), resource.BinarySI))
		}
		if total.Cmp(have) > 0 {
			return fmt.Errorf("invalid Node Allocatable configuration. Resource %q has a reservation of %s but capacity of %s: lower "+
				"systemReserved, kubeReserved or evictionHard",
				name, total.String(), have.String())
		}
	}
	return nil
}

// mergeCapacity keeps what others put into capacity and allocatable (extended
// resources patched in by an administrator), and zeroes what a device plugin
// offered before and no longer does: consumers see it go, not vanish.
func mergeCapacity(previous v1.NodeStatus, capacity, allocatable v1.ResourceList) {
	for name, quantity := range previous.Capacity {
		if _, ours := capacity[name]; ours || isNative(name) {
			continue
		}
		capacity[name] = quantity.DeepCopy()
		if was, ok := previous.Allocatable[name]; ok {
			allocatable[name] = was.DeepCopy()
		} else {
			allocatable[name] = quantity.DeepCopy()
		}
	}
}

// isNative tells resources the agent alone decides about, so that absence
// means removal.
func isNative(name v1.ResourceName) bool {
	switch name {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage:
		return true
	}
	return strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
}
