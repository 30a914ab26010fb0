package assign

import (
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/resource/cpus"
	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Policies fills in what the kubelet's configuration decides: who gets CPUs and
// memory of their own, and from where. Machine must be set.
func (c *Config) Policies(k *kubeletv1beta1.KubeletConfiguration, reserved node.Reservation, memoryBytes int64) error {
	options, err := topology.ParseOptions(k.TopologyManagerPolicyOptions)
	if err != nil {
		return err
	}
	c.Topology = topology.Merger{Policy: topology.Policy(k.TopologyManagerPolicy), Options: options}
	c.PodScope = k.TopologyManagerScope == "pod"
	if k.CPUManagerPolicy == "static" {
		if c.CPUs, err = staticCPUs(c.Host, k, reserved); err != nil {
			return err
		}
	}
	if k.MemoryManagerPolicy == kubeletv1beta1.StaticMemoryManagerPolicy {
		if c.Memory, err = staticMemory(c.Host, k, reserved, memoryBytes); err != nil {
			return err
		}
	}
	return nil
}

// Pinning tells whether anything of the configuration needs the topology.
func Pinning(k *kubeletv1beta1.KubeletConfiguration) bool {
	return k.CPUManagerPolicy == "static" || k.MemoryManagerPolicy == kubeletv1beta1.StaticMemoryManagerPolicy ||
		k.TopologyManagerPolicy != "" && k.TopologyManagerPolicy != string(topology.None)
}

func staticCPUs(m *topology.Host, k *kubeletv1beta1.KubeletConfiguration, reserved node.Reservation) (*cpus.Static, error) {
	options, err := cpus.ParseOptions(k.CPUManagerPolicyOptions)
	if err != nil {
		return nil, err
	}
	if err := options.CheckTopology(topology.Policy(k.TopologyManagerPolicy)); err != nil {
		return nil, err
	}
	milli := reserved.System.Cpu().MilliValue() + reserved.Kube.Cpu().MilliValue()
	kept, err := cpus.Reserve(m, k.ReservedSystemCPUs, milli)
	if err != nil {
		return nil, err
	}
	return &cpus.Static{Host: m, Options: options, Reserved: kept}, nil
}

func staticMemory(m *topology.Host, k *kubeletv1beta1.KubeletConfiguration, reserved node.Reservation, capacity int64) (memory.Reservation,
	error) {
	out := memory.Reservation{}
	for _, r := range k.ReservedMemory {
		out[int(r.NumaNode)] = map[v1.ResourceName]uint64{}
		for kind, q := range r.Limits {
			out[int(r.NumaNode)][kind] = uint64(q.Value())
		}
	}
	whole := v1.ResourceList{}
	for _, part := range []v1.ResourceList{reserved.System, reserved.Kube} {
		for name, q := range part {
			sum := whole[name]
			sum.Add(q)
			whole[name] = sum
		}
	}
	if threshold, ok := reserved.EvictionHard[v1.ResourceMemory]; ok {
		sum := whole[v1.ResourceMemory]
		sum.Add(*apiresource.NewQuantity(threshold.Of(capacity), apiresource.BinarySI))
		whole[v1.ResourceMemory] = sum
	}
	return out, memory.CheckReservation(m, out, whole)
}
