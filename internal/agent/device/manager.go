// Package device lets device plugins (v1beta1) offer devices, gives them to
// containers, and tells how they are.
package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/internal/agent/resource/topology"
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
	// Offer gets what there is; a resource that was offered stays in both
	// lists, with amount zero when it is gone.
	Offer func(capacity, allocatable v1.ResourceList)
	// Nodes are the host's NUMA nodes.
	Nodes topology.Mask
	// Changed gets the pods whose devices' health may have changed.
	Changed func(types.UID)
	Metrics prometheus.Registerer
}

// Manager gives devices to containers. It is safe for concurrent use.
type Manager struct {
	cfg Config
	dir string

	metrics *metrics
	// running is closed once plugins may be followed, which ctx then bounds.
	running chan struct{}
	ctx     context.Context

	allocating sync.Mutex // one container at a time
	saving     sync.Mutex
	mu         sync.Mutex
	ledger     *ledger
	// plugins are the connected ones by resource, the newest last: that one is
	// in charge, and when it goes the one before it is again.
	plugins map[string][]*plugin
	// gone is the last plugin of a resource that has none.
	gone map[string]*plugin
	wg   sync.WaitGroup
}

// plugin is the connection to one device plugin.
type plugin struct {
	resource string
	socket   string
	conn     *grpc.ClientConn
	client   pluginapi.DevicePluginClient
	options  *pluginapi.DevicePluginOptions
	stop     context.CancelFunc
	// devices are those it listed last; it says nothing until listed is true.
	devices []device
	listed  bool
}

// New returns a Manager that remembers what containers held before.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil || cfg.RootDir == "" || cfg.Offer == nil || cfg.Changed == nil {
		return nil, errors.New("configuring device plugins: Log, RootDir, Offer and Changed are required")
	}
	m := &Manager{cfg: cfg, dir: filepath.Join(cfg.RootDir, "device-plugins"), ledger: newLedger(), plugins: map[string][]*plugin{},
		gone: map[string]*plugin{}, running: make(chan struct{})}
	var err error
	if m.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
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
	m.ctx = ctx
	close(m.running)
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

// dial connects to a plugin and asks for its options.
func (m *Manager) dial(ctx context.Context, p *plugin) error {
	conn, err := grpc.NewClient("unix:"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceiveLen)))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", p.socket, err)
	}
	client := pluginapi.NewDevicePluginClient(conn)
	asking, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	options, err := client.GetDevicePluginOptions(asking, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("failed to get device plugin options: %w", err)
	}
	p.conn, p.client, p.options = conn, client, options
	return nil
}

// devicesOf is what a plugin lists, without what cannot be.
func (m *Manager) devicesOf(resource string, list *pluginapi.ListAndWatchResponse) []device {
	devices := make([]device, 0, len(list.GetDevices()))
	for _, d := range list.GetDevices() {
		device := device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy}
		for _, numa := range d.GetTopology().GetNodes() {
			if numa.GetID() < 0 || numa.GetID() >= topology.MaskBits {
				m.cfg.Log.Warn("a device plugin names a NUMA node that cannot exist; it is left out",
					"resource", resource, "device", d.GetID(), "node", numa.GetID())
				continue
			}
			device.NUMA = append(device.NUMA, numa.GetID())
		}
		devices = append(devices, device)
	}
	return devices
}

// follow keeps the ledger as the plugin says until its stream ends.
func (m *Manager) follow(ctx context.Context, p *plugin) error {
	defer p.conn.Close()
	stream, err := p.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("listing devices: %w", err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("listing devices: %w", err)
		}
		devices := m.devicesOf(p.resource, list)
		m.mu.Lock()
		p.devices, p.listed = devices, true
		charge := m.inCharge(p.resource) == p
		if charge {
			m.ledger.Know(p.resource, devices)
		}
		m.mu.Unlock()
		if charge {
			m.offer()
			m.told(p.resource)
		}
	}
}

// inCharge is the plugin that answers for a resource, nil if there is none;
// m.mu is held.
func (m *Manager) inCharge(resource string) *plugin {
	if list := m.plugins[resource]; len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

// lost lets the plugin before it answer for the resource again. Without one
// the devices are unhealthy, and gone if no one comes for a while.
func (m *Manager) lost(p *plugin) {
	m.mu.Lock()
	at := slices.Index(m.plugins[p.resource], p)
	if at < 0 {
		m.mu.Unlock()
		return // replaced
	}
	charge := m.inCharge(p.resource) == p
	m.plugins[p.resource] = slices.Delete(m.plugins[p.resource], at, at+1)
	next := m.inCharge(p.resource)
	switch {
	case next == nil:
		m.gone[p.resource] = p
		m.ledger.Lose(p.resource)
	case charge && next.listed:
		m.ledger.Know(p.resource, next.devices)
	}
	m.mu.Unlock()
	ctx := m.ctx
	if ctx.Err() != nil {
		return
	}
	m.offer()
	m.told(p.resource)
	if next == nil {
		m.wg.Go(func() { m.drop(ctx, p) })
	}
}

// drop forgets the devices of a plugin that no one follows in time.
func (m *Manager) drop(ctx context.Context, p *plugin) {
	timer := time.NewTimer(lingering)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	m.mu.Lock()
	still := m.inCharge(p.resource) == nil && m.gone[p.resource] == p
	if still {
		m.ledger.Drop(p.resource)
	}
	m.mu.Unlock()
	if still {
		m.offer()
		m.told(p.resource)
	}
}

// told calls Changed for the pods that hold devices of a resource.
func (m *Manager) told(resource string) {
	m.mu.Lock()
	holders := m.ledger.Holders(resource)
	m.mu.Unlock()
	for _, pod := range holders {
		m.cfg.Changed(pod)
	}
}

// Health is the health of what a pod's containers hold, by container.
func (m *Manager) Health(pod types.UID) map[string][]v1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]v1.ResourceStatus{}
	for _, name := range m.ledger.Containers(pod) {
		out[name] = m.ledger.Health(pod, name)
	}
	return out
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
