// Package device lets device plugins (v1beta1) offer devices, gives them to
// containers, and tells who has what (podresources v1).
package device

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/agent/container"
)

const (
	socketName     = "kubelet.sock"
	checkpointName = "kubelet_internal_checkpoint"
	// lingering is how long a resource keeps its capacity without its plugin,
	// which may just be starting again.
	lingering     = 5 * time.Minute
	callMax       = 30 * time.Second
	preStartMax   = 30 * time.Second
	dialTimeout   = 10 * time.Second
	maxReceiveLen = 16 << 20
)

// Config is all a Manager needs.
type Config struct {
	Log *slog.Logger
	// RootDir is the agent's directory.
	RootDir string
	// Offer is told what there is; a resource that was offered stays in both
	// lists, with amount zero when it is gone.
	Offer func(capacity, allocatable v1.ResourceList)
	// Pods lists the pods of the node with their current status.
	Pods func() []*v1.Pod
}

// Manager gives devices to containers. It is safe for concurrent use.
type Manager struct {
	cfg Config
	dir string

	allocating sync.Mutex // one pod at a time
	mu         sync.Mutex
	ledger     *Ledger
	plugins    map[string]*plugin
	wg         sync.WaitGroup
	ctx        context.Context
}

// plugin is the connection to one device plugin.
type plugin struct {
	resource string
	client   pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
	stop     context.CancelFunc
}

// New returns a Manager that remembers what containers held before.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil || cfg.RootDir == "" || cfg.Offer == nil || cfg.Pods == nil {
		return nil, errors.New("configuring device plugins: Log, RootDir, Offer and Pods are required")
	}
	m := &Manager{cfg: cfg, dir: filepath.Join(cfg.RootDir, "device-plugins"), ledger: NewLedger(), plugins: map[string]*plugin{}}
	if err := os.MkdirAll(m.dir, 0o750); err != nil {
		return nil, fmt.Errorf("making the device plugin directory: %w", err)
	}
	return m, m.load()
}

// Run serves registrations until the context ends. Sockets of plugins in the
// directory are removed first: that is how plugins notice that they have to
// register again.
func (m *Manager) Run(ctx context.Context) error {
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return fmt.Errorf("reading the device plugin directory: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == checkpointName || entry.IsDir() {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.dir, entry.Name())); err != nil {
			return fmt.Errorf("clearing the device plugin directory: %w", err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(m.dir, socketName))
	if err != nil {
		return fmt.Errorf("serving device plugin registration: %w", err)
	}
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	m.offer()
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, registration{m: m})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	err = server.Serve(listener)
	m.wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving device plugin registration: %w", err)
}

type registration struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
}

// Register takes in a plugin.
func (r registration) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	switch {
	case req.Version != pluginapi.Version:
		return nil, fmt.Errorf("device plugin API version %q is not supported: want %s", req.Version, pluginapi.Version)
	case !strings.Contains(req.ResourceName, "/") || strings.HasPrefix(req.ResourceName, "kubernetes.io/") || strings.HasPrefix(req.ResourceName, "requests."):
		return nil, fmt.Errorf("the ResourceName %q is invalid: want vendor-domain/resource", req.ResourceName)
	case req.Endpoint == "" || filepath.Base(req.Endpoint) != req.Endpoint:
		return nil, fmt.Errorf("endpoint %q is no file name in the device plugin directory", req.Endpoint)
	}
	r.m.connect(req)
	return &pluginapi.Empty{}, nil
}

// connect replaces the plugin of a resource.
func (m *Manager) connect(req *pluginapi.RegisterRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.plugins[req.ResourceName]; old != nil {
		old.stop()
	}
	ctx, stop := context.WithCancel(m.ctx)
	p := &plugin{resource: req.ResourceName, options: req.Options, stop: stop}
	m.plugins[req.ResourceName] = p
	m.wg.Go(func() {
		defer stop()
		if err := m.follow(ctx, p, filepath.Join(m.dir, req.Endpoint)); err != nil && ctx.Err() == nil {
			m.cfg.Log.Warn("a device plugin ended", "resource", p.resource, "err", err)
		}
		m.lost(p)
	})
}

// follow keeps the ledger as the plugin says until its stream ends.
func (m *Manager) follow(ctx context.Context, p *plugin, socket string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceiveLen)))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", socket, err)
	}
	defer conn.Close()
	client := pluginapi.NewDevicePluginClient(conn)
	asking, cancel := context.WithTimeout(ctx, dialTimeout)
	options, err := client.GetDevicePluginOptions(asking, &pluginapi.Empty{}, grpc.WaitForReady(true))
	cancel()
	if err != nil {
		return fmt.Errorf("asking for the plugin's options: %w", err)
	}
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("listing devices: %w", err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("listing devices: %w", err)
		}
		devices := make([]Device, 0, len(list.Devices))
		for _, d := range list.Devices {
			device := Device{ID: d.ID, Healthy: d.Health == pluginapi.Healthy}
			for _, numa := range d.GetTopology().GetNodes() {
				device.NUMA = append(device.NUMA, numa.ID)
			}
			devices = append(devices, device)
		}
		m.mu.Lock()
		if m.plugins[p.resource] == p {
			p.client, p.options = client, options
			m.ledger.Know(p.resource, devices)
		}
		m.mu.Unlock()
		m.offer()
	}
}

// lost makes the devices of a plugin unhealthy, and gone if it does not return
// for a while.
func (m *Manager) lost(p *plugin) {
	m.mu.Lock()
	if m.plugins[p.resource] != p {
		m.mu.Unlock()
		return // replaced
	}
	p.client = nil
	m.ledger.Lose(p.resource)
	ctx := m.ctx
	m.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	m.offer()
	m.wg.Go(func() {
		timer := time.NewTimer(lingering)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		m.mu.Lock()
		still := m.plugins[p.resource] == p
		if still {
			m.ledger.Drop(p.resource)
		}
		m.mu.Unlock()
		if still {
			m.offer()
		}
	})
}

func (m *Manager) offer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	all, healthy := m.ledger.Counts()
	capacity, allocatable := v1.ResourceList{}, v1.ResourceList{}
	for name := range all {
		capacity[v1.ResourceName(name)] = *resource.NewQuantity(all[name], resource.DecimalSI)
		allocatable[v1.ResourceName(name)] = *resource.NewQuantity(healthy[name], resource.DecimalSI)
	}
	m.cfg.Offer(capacity, allocatable)
}

// Allocate gives a pod the devices it asks for, or an error and nothing. A pod
// that has them keeps them. What pods hold that are over is free again.
func (m *Manager) Allocate(ctx context.Context, pod *v1.Pod) error {
	m.allocating.Lock()
	defer m.allocating.Unlock()
	live := map[types.UID]bool{pod.UID: true}
	for _, other := range m.cfg.Pods() {
		if other.Status.Phase != v1.PodSucceeded && other.Status.Phase != v1.PodFailed {
			live[other.UID] = true
		}
	}
	m.mu.Lock()
	changed := m.ledger.Keep(func(uid types.UID) bool { return live[uid] })
	m.mu.Unlock()
	for {
		m.mu.Lock()
		want, open, err := m.ledger.Next(pod)
		p := m.plugins[want.Resource]
		var client pluginapi.DevicePluginClient
		if p != nil {
			client = p.client
		}
		m.mu.Unlock()
		if err == nil && !open {
			break
		}
		if err == nil && client == nil {
			err = fmt.Errorf("the device plugin of %s is not connected", want.Resource)
		}
		var share Share
		if err == nil {
			share, err = m.ask(ctx, p, client, want)
		}
		m.mu.Lock()
		if err != nil {
			m.ledger.Take(pod.UID)
			m.mu.Unlock()
			return err
		}
		m.ledger.Give(pod.UID, want.Container, share)
		m.mu.Unlock()
		changed = true
	}
	if !changed {
		return nil
	}
	return m.save()
}

// ask lets the plugin prefer and allocate.
func (m *Manager) ask(ctx context.Context, p *plugin, client pluginapi.DevicePluginClient, want Want) (Share, error) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	var preferred []string
	if p.options.GetGetPreferredAllocationAvailable() {
		answer, err := client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: append(slices.Clone(want.Must), want.Available...), MustIncludeDeviceIDs: want.Must, AllocationSize: int32(want.Count)}}})
		if err != nil {
			return Share{}, fmt.Errorf("device plugin GetPreferredAllocation of %s failed: %w", want.Resource, err)
		}
		if responses := answer.GetContainerResponses(); len(responses) == 1 {
			preferred = responses[0].DeviceIDs
		}
	}
	ids := want.Choose(preferred)
	answer, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return Share{}, fmt.Errorf("device plugin Allocate of %s failed: %w", want.Resource, err)
	}
	if len(answer.GetContainerResponses()) != 1 {
		return Share{}, fmt.Errorf("device plugin of %s answered with %d responses instead of 1", want.Resource, len(answer.GetContainerResponses()))
	}
	response, err := proto.Marshal(protoadapt.MessageV2Of(answer.ContainerResponses[0]))
	if err != nil {
		return Share{}, fmt.Errorf("keeping the answer of the device plugin of %s: %w", want.Resource, err)
	}
	return Share{Resource: want.Resource, IDs: ids, Response: response}, nil
}

// Admit is Allocate in the words of admission.
func (m *Manager) Admit(pod *v1.Pod) (reason, message string, ok bool) {
	if err := m.Allocate(context.Background(), pod); err != nil {
		return "UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err), false
	}
	return "", "", true
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
			grant.Devices = append(grant.Devices, container.Device{HostPath: d.HostPath, ContainerPath: d.ContainerPath, Permissions: d.Permissions})
		}
		for _, mount := range response.Mounts {
			grant.Mounts = append(grant.Mounts, container.Mount{HostPath: mount.HostPath, ContainerPath: mount.ContainerPath, ReadOnly: mount.ReadOnly})
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
		p := m.plugins[share.Resource]
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

// checkpoint is what must survive a restart: who holds what.
type checkpoint struct {
	Entries  []entry  `json:"entries"`
	Known    []string `json:"known"` // resources that were ever offered
	Checksum string   `json:"checksum"`
}

type entry struct {
	Pod       types.UID `json:"pod"`
	Container string    `json:"container"`
	Resource  string    `json:"resource"`
	IDs       []string  `json:"ids"`
	Response  []byte    `json:"response"`
}

func (c checkpoint) sum() string {
	c.Checksum = ""
	text, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

func (m *Manager) save() error {
	m.mu.Lock()
	var c checkpoint
	for _, pod := range slices.Sorted(maps.Keys(m.ledger.held)) {
		for _, name := range m.ledger.Containers(pod) {
			for _, share := range m.ledger.Held(pod, name) {
				c.Entries = append(c.Entries, entry{Pod: pod, Container: name, Resource: share.Resource, IDs: share.IDs, Response: share.Response})
			}
		}
	}
	c.Known = slices.Sorted(maps.Keys(m.ledger.devices))
	m.mu.Unlock()
	c.Checksum = c.sum()
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("writing the device checkpoint: %w", err)
	}
	path := filepath.Join(m.dir, checkpointName)
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return fmt.Errorf("writing the device checkpoint: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("writing the device checkpoint: %w", err)
	}
	return nil
}

// load takes in what a former agent noted. A torn file is told and left out:
// running containers keep their devices whatever the agent knows.
func (m *Manager) load() error {
	text, err := os.ReadFile(filepath.Join(m.dir, checkpointName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the device checkpoint: %w", err)
	}
	var c checkpoint
	if err := json.Unmarshal(text, &c); err != nil || c.Checksum != c.sum() {
		m.cfg.Log.Error("the device checkpoint is damaged; devices of running containers may be given out twice: drain the node", "file", filepath.Join(m.dir, checkpointName))
		return nil
	}
	for _, name := range c.Known {
		m.ledger.Drop(name)
	}
	for _, e := range c.Entries {
		m.ledger.Give(e.Pod, e.Container, Share{Resource: e.Resource, IDs: e.IDs, Response: e.Response})
	}
	return nil
}
