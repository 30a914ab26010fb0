package device

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
)

// Hints are the NUMA nodes that have the devices a container (with c nil: the
// pod) asks for.
func (m *Manager) Hints(pod *v1.Pod, c *v1.Container) topology.Wishes {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Hints(m.cfg.Nodes, pod, c)
}

// Allocate gives a container the devices it asks for, near the nodes (0:
// anywhere) as far as there are any. What it has it keeps. After an error the
// caller releases the pod.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod, c *v1.Container, nodes topology.Mask) error {
	m.allocating.Lock()
	defer m.allocating.Unlock()
	changed := false
	for {
		m.mu.Lock()
		want, open, err := m.ledger.Next(pod, c, nodes)
		client, options := m.clientOf(want.Resource)
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if !open {
			break
		}
		if client == nil {
			return fmt.Errorf("the device plugin of %s is not connected", want.Resource)
		}
		share, err := m.ask(ctx, client, options, want)
		if err != nil {
			return err
		}
		m.mu.Lock()
		share.Nodes = m.ledger.nodesOf(share.Resource, share.IDs)
		m.ledger.Give(pod.UID, c.Name, share)
		m.mu.Unlock()
		changed = true
	}
	if !changed {
		return nil
	}
	return m.save()
}

// clientOf is how to reach the plugin of a resource; m.mu is held.
func (m *Manager) clientOf(resource string) (pluginapi.DevicePluginClient, *pluginapi.DevicePluginOptions) {
	p := m.inCharge(resource)
	if p == nil {
		return nil, nil
	}
	return p.client, p.options
}

// Release takes back what a pod holds. That it stays on disk until the next
// change is noted harms no one: a pod that is gone is not kept on start.
func (m *Manager) Release(pod types.UID) {
	m.mu.Lock()
	had := m.ledger.Take(pod)
	m.mu.Unlock()
	if !had {
		return
	}
	if err := m.save(); err != nil {
		m.cfg.Log.Warn("noting that a pod's devices are free", "pod", pod, "err", err)
	}
}

// Keep takes back what pods hold that are not to be kept.
func (m *Manager) Keep(keep func(types.UID) bool) error {
	m.mu.Lock()
	changed := m.ledger.Keep(keep)
	m.mu.Unlock()
	if !changed {
		return nil
	}
	return m.save()
}

// ask lets the plugin prefer and allocate.
func (m *Manager) ask(ctx context.Context, client pluginapi.DevicePluginClient, options *pluginapi.DevicePluginOptions,
	want want) (containerDevices,
	error) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	var preferred []string
	if options.GetGetPreferredAllocationAvailable() {
		answer, err := client.GetPreferredAllocation(ctx,
			&pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: append(slices.Clone(want.Must), want.Available...), MustIncludeDeviceIDs: want.Must,
				AllocationSize: int32(want.Count)}}})
		if err != nil {
			return containerDevices{}, fmt.Errorf("device plugin GetPreferredAllocation of %s failed: %w", want.Resource, err)
		}
		if responses := answer.GetContainerResponses(); len(responses) == 1 {
			preferred = responses[0].DeviceIDs
		}
	}
	ids := want.Choose(preferred)
	began := time.Now()
	answer, err := client.Allocate(ctx,
		&pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	m.metrics.allocation.WithLabelValues(want.Resource).Observe(time.Since(began).Seconds())
	if err != nil {
		return containerDevices{}, fmt.Errorf("device plugin Allocate of %s failed: %w", want.Resource, err)
	}
	if len(answer.GetContainerResponses()) != 1 {
		return containerDevices{}, fmt.Errorf("device plugin of %s answered with %d responses instead of 1", want.Resource,
			len(answer.GetContainerResponses()))
	}
	response, err := proto.Marshal(protoadapt.MessageV2Of(answer.ContainerResponses[0]))
	if err != nil {
		return containerDevices{}, fmt.Errorf("keeping the answer of the device plugin of %s: %w", want.Resource, err)
	}
	return containerDevices{Resource: want.Resource, IDs: ids, Response: response}, nil
}

// Grant is what a container gets with its devices.
func (m *Manager) Grant(pod types.UID, name string) (container.DeviceGrant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	grant := container.DeviceGrant{Envs: map[string]string{}, Annotations: map[string]string{}}
	for _, share := range m.ledger.Held(pod, name) {
		response := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(share.Response, protoadapt.MessageV2Of(response)); err != nil {
			return grant, fmt.Errorf("reading what the device plugin of %s allocated: %w", share.Resource, err)
		}
		maps.Copy(grant.Envs, response.Envs)
		maps.Copy(grant.Annotations, response.Annotations)
		for _, d := range response.Devices {
			grant.Devices = append(grant.Devices, container.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath,
				Permissions: d.Permissions})
		}
		for _, mount := range response.Mounts {
			grant.Mounts = append(grant.Mounts, container.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath,
				ReadOnly: mount.ReadOnly})
		}
		for _, cdi := range response.CdiDevices {
			grant.CDI = append(grant.CDI, cdi.Name)
		}
	}
	return grant, nil
}

// PreStart tells plugins that want to know that a container is about to start.
func (m *Manager) PreStart(ctx context.Context, pod types.UID, name string) error {
	m.mu.Lock()
	shares := m.ledger.Held(pod, name)
	m.mu.Unlock()
	for _, share := range shares {
		m.mu.Lock()
		p := m.inCharge(share.Resource)
		var client pluginapi.DevicePluginClient
		if p != nil && p.options.GetPreStartRequired() {
			client = p.client
		}
		m.mu.Unlock()
		if client == nil {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, preStartMax)
		_, err := client.PreStartContainer(asking, &pluginapi.PreStartContainerRequest{DevicesIds: share.IDs})
		cancel()
		if err != nil {
			return fmt.Errorf("device plugin PreStartContainer of %s failed: %w", share.Resource, err)
		}
	}
	return nil
}
