package device

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/resource/checkpoint"
)

// nowhere is the NUMA node in the file of devices that do not say theirs.
const nowhere = -1

// save writes down who holds what.
func (m *Manager) save() error {
	m.saving.Lock()
	defer m.saving.Unlock()
	m.mu.Lock()
	entries := []checkpoint.PodDevicesEntry{}
	for _, pod := range slices.Sorted(maps.Keys(m.ledger.held)) {
		for _, name := range m.ledger.Containers(pod) {
			for _, share := range m.ledger.Held(pod, name) {
				e := checkpoint.PodDevicesEntry{PodUID: string(pod), ContainerName: name, ResourceName: share.Resource,
					DeviceIDs: checkpoint.DevicesPerNUMA{}, AllocResp: share.Response}
				for _, id := range share.IDs {
					node, ok := share.Nodes[id]
					if !ok {
						node = nowhere
					}
					e.DeviceIDs[node] = append(e.DeviceIDs[node], id)
				}
				entries = append(entries, e)
			}
		}
	}
	registered := map[string][]string{}
	for resource, devices := range m.ledger.devices {
		registered[resource] = []string{}
		for _, id := range slices.Sorted(maps.Keys(devices)) {
			if devices[id].Healthy {
				registered[resource] = append(registered[resource], id)
			}
		}
	}
	m.mu.Unlock()
	return checkpoint.Write(filepath.Join(m.dir, checkpointName), checkpoint.NewDevices(entries, registered))
}

// load takes in what a former agent noted. A torn file is reported and left out:
// running containers keep their devices whatever the agent knows.
func (m *Manager) load() error {
	entries, registered, err := checkpoint.ReadDevices(filepath.Join(m.dir, checkpointName))
	var corrupt *checkpoint.CorruptError
	if errors.As(err, &corrupt) {
		m.cfg.Log.Error("devices of running containers may be given out twice", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	for resource := range registered {
		m.ledger.Drop(resource)
	}
	for _, e := range entries {
		share := containerDevices{Resource: e.ResourceName, Nodes: map[string]int64{}, Response: e.AllocResp}
		for _, node := range slices.Sorted(maps.Keys(e.DeviceIDs)) {
			for _, id := range e.DeviceIDs[node] {
				share.IDs = append(share.IDs, id)
				if node != nowhere {
					share.Nodes[id] = node
				}
			}
		}
		m.ledger.Give(types.UID(e.PodUID), e.ContainerName, share)
	}
	return nil
}
