package device

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Limits of the pod resources API: its callers are monitoring agents that must
// not wear the node down.
const (
	podResourcesQPS   = 100
	podResourcesBurst = 10
)

// RunPodResources serves the pod resources API until the context ends.
func (m *Manager) RunPodResources(ctx context.Context) error {
	dir := filepath.Join(m.cfg.RootDir, "pod-resources")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	socket := filepath.Join(dir, socketName)
	if err := os.RemoveAll(socket); err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	limiter := rate.NewLimiter(podResourcesQPS, podResourcesBurst)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !limiter.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "the pod resources API is asked too often")
		}
		return next(ctx, req)
	}))
	podresourcesapi.RegisterPodResourcesListerServer(server, podResources{m: m})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	return nil
}

type podResources struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	m *Manager
}

// List tells what each pod that is not over holds.
func (p podResources) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	response := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range p.m.cfg.Pods() {
		if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			response.PodResources = append(response.PodResources, p.of(pod))
		}
	}
	return response, nil
}

// Get tells what one pod holds.
func (p podResources) Get(_ context.Context, req *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	for _, pod := range p.m.cfg.Pods() {
		if pod.Name == req.PodName && pod.Namespace == req.PodNamespace {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: p.of(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}

func (p podResources) of(pod *v1.Pod) *podresourcesapi.PodResources {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			entry := &podresourcesapi.ContainerResources{Name: list[i].Name}
			for _, share := range p.m.ledger.Held(pod.UID, list[i].Name) {
				entry.Devices = append(entry.Devices, p.devices(share.Resource, share.IDs))
			}
			out.Containers = append(out.Containers, entry)
		}
	}
	return out
}

func (p podResources) devices(resource string, ids []string) *podresourcesapi.ContainerDevices {
	near := map[int64]bool{}
	out := &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: ids}
	for _, id := range ids {
		for _, numa := range p.m.ledger.devices[resource][id].NUMA {
			if !near[numa] {
				near[numa] = true
				if out.Topology == nil {
					out.Topology = &podresourcesapi.TopologyInfo{}
				}
				out.Topology.Nodes = append(out.Topology.Nodes, &podresourcesapi.NUMANode{ID: numa})
			}
		}
	}
	return out
}

// GetAllocatableResources tells which devices there are for pods.
func (p podResources) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	response := &podresourcesapi.AllocatableResourcesResponse{}
	for resource, devices := range p.m.ledger.devices {
		for id, device := range devices {
			if device.Healthy {
				response.Devices = append(response.Devices, p.devices(resource, []string{id}))
			}
		}
	}
	return response, nil
}
