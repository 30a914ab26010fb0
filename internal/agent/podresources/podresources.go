// Package podresources serves the pod resources API (v1, and v1alpha1 for old
// callers): which pod has which CPUs, memory, devices and claims.
package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berth-dev/berth/internal/agent/resource/memory"
	"github.com/berth-dev/berth/internal/podutil"
)

// Limits of the API: its callers are monitoring agents that must not wear the
// node down.
const (
	perSecond = 100
	burst     = 10
)

// devices are the node's devices.
type devices interface {
	HeldBy(pod types.UID, container string) []*api.ContainerDevices
	Offered() []*api.ContainerDevices
}

// assignments are the node's CPUs and memory.
type assignments interface {
	CPUsOf(pod types.UID, container string) []int
	MemoryOf(pod types.UID, container string) []memory.Block
	AllocatableCPUs() []int
	AllocatableMemory() []memory.Block
}

// Claims are the resource claims of pods.
type Claims interface {
	HeldBy(pod *v1.Pod, container *v1.Container) []*api.DynamicResource
}

// Config is all that serving needs; all but Metrics is required.
type Config struct {
	Log     *slog.Logger
	RootDir string
	// Pods lists the pods of the node with their current status.
	Pods        func() []*v1.Pod
	Devices     devices
	Assignments assignments
	Claims      Claims
	Metrics     prometheus.Registerer
}

// Run serves until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return err
	}
	dir := filepath.Join(cfg.RootDir, "pod-resources")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	socket := filepath.Join(dir, "kubelet.sock")
	if err := os.RemoveAll(socket); err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	limiter := rate.NewLimiter(perSecond, burst)
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (any, error) {
		if !limiter.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "the pod resources API is asked too often")
		}
		answer, err := next(ctx, req)
		metrics.count(info.FullMethod, err)
		return answer, err
	}))
	api.RegisterPodResourcesListerServer(server, lister{cfg: cfg})
	v1alpha1.RegisterPodResourcesListerServer(server, oldLister{cfg: cfg})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving pod resources: %w", err)
	}
	return nil
}

type lister struct {
	api.UnimplementedPodResourcesListerServer
	cfg Config
}

// live are the pods that are not over.
func (c Config) live() (out []*v1.Pod) {
	for _, pod := range c.Pods() {
		if !podutil.Terminal(pod) {
			out = append(out, pod)
		}
	}
	return out
}

// List tells what each pod that is not over holds.
func (l lister) List(context.Context, *api.ListPodResourcesRequest) (*api.ListPodResourcesResponse, error) {
	response := &api.ListPodResourcesResponse{}
	for _, pod := range l.cfg.live() {
		response.PodResources = append(response.PodResources, l.of(pod))
	}
	return response, nil
}

// Get tells what one pod holds.
func (l lister) Get(_ context.Context, req *api.GetPodResourcesRequest) (*api.GetPodResourcesResponse, error) {
	for _, pod := range l.cfg.live() {
		if pod.Name == req.PodName && pod.Namespace == req.PodNamespace {
			return &api.GetPodResourcesResponse{PodResources: l.of(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}

// of lists the containers that run for long: init containers that end first
// leave what they had to these.
func (l lister) of(pod *v1.Pod) *api.PodResources {
	out := &api.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for _, c := range longRunning(pod) {
		entry := &api.ContainerResources{Name: c.Name, Devices: l.cfg.Devices.HeldBy(pod.UID, c.Name),
			DynamicResources: l.cfg.Claims.HeldBy(pod, c)}
		for _, cpu := range l.cfg.Assignments.CPUsOf(pod.UID, c.Name) {
			entry.CpuIds = append(entry.CpuIds, int64(cpu))
		}
		entry.Memory = blocks(l.cfg.Assignments.MemoryOf(pod.UID, c.Name))
		out.Containers = append(out.Containers, entry)
	}
	return out
}

func longRunning(pod *v1.Pod) (out []*v1.Container) {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			out = append(out, c)
		}
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

func blocks(list []memory.Block) (out []*api.ContainerMemory) {
	for _, b := range list {
		entry := &api.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &api.TopologyInfo{}}
		for _, node := range b.NUMAAffinity {
			entry.Topology.Nodes = append(entry.Topology.Nodes, &api.NUMANode{ID: int64(node)})
		}
		out = append(out, entry)
	}
	return out
}

// GetAllocatableResources tells what there is for pods.
func (l lister) GetAllocatableResources(context.Context, *api.AllocatableResourcesRequest) (*api.AllocatableResourcesResponse, error) {
	response := &api.AllocatableResourcesResponse{Devices: l.cfg.Devices.Offered(), Memory: blocks(l.cfg.Assignments.AllocatableMemory())}
	for _, cpu := range l.cfg.Assignments.AllocatableCPUs() {
		response.CpuIds = append(response.CpuIds, int64(cpu))
	}
	return response, nil
}

// oldLister is the API as it was first: devices only.
type oldLister struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	cfg Config
}

// List tells which devices each pod that is not over holds.
func (l oldLister) List(context.Context, *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	response := &v1alpha1.ListPodResourcesResponse{}
	for _, pod := range l.cfg.live() {
		out := &v1alpha1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
		for _, c := range longRunning(pod) {
			entry := &v1alpha1.ContainerResources{Name: c.Name}
			for _, d := range l.cfg.Devices.HeldBy(pod.UID, c.Name) {
				entry.Devices = append(entry.Devices, &v1alpha1.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds})
			}
			out.Containers = append(out.Containers, entry)
		}
		response.PodResources = append(response.PodResources, out)
	}
	return response, nil
}
