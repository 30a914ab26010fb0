package device

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// HeldBy is what a container holds, as the pod resources API tells it.
func (m *Manager) HeldBy(pod types.UID, name string) []*podresourcesapi.ContainerDevices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresourcesapi.ContainerDevices
	for _, share := range m.ledger.Held(pod, name) {
		nodes := map[int64]bool{}
		for _, id := range share.IDs {
			for _, node := range m.ledger.devices[share.Resource][id].NUMA {
				nodes[node] = true
			}
			if node, known := share.Nodes[id]; known {
				nodes[node] = true // its plugin may be away
			}
		}
		out = append(out, listed(share.Resource, share.IDs, slices.Sorted(maps.Keys(nodes))))
	}
	return out
}

// Offered is every healthy device, one per entry.
func (m *Manager) Offered() []*podresourcesapi.ContainerDevices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresourcesapi.ContainerDevices
	for _, resource := range slices.Sorted(maps.Keys(m.ledger.devices)) {
		devices := m.ledger.devices[resource]
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			if devices[id].Healthy {
				out = append(out, listed(resource, []string{id}, slices.Sorted(slices.Values(devices[id].NUMA))))
			}
		}
	}
	return out
}

func listed(resource string, ids []string, nodes []int64) *podresourcesapi.ContainerDevices {
	out := &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: ids}
	for _, node := range nodes {
		if out.Topology == nil {
			out.Topology = &podresourcesapi.TopologyInfo{}
		}
		out.Topology.Nodes = append(out.Topology.Nodes, &podresourcesapi.NUMANode{ID: node})
	}
	return out
}
