package inventory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	v1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/nodes/cloud"
)

// Name is what --cloud-provider calls it.
const Name = "inventory"

// Provider answers from the last good list.
type Provider struct {
	from loader
	log  *slog.Logger

	mu   sync.Mutex
	list *list
	// bad is why list may be out of date, nil if it is not.
	bad     error
	watcher map[int]func()
	next    int
}

var (
	_ cloudprovider.Interface   = (*Provider)(nil)
	_ cloudprovider.InstancesV2 = (*Provider)(nil)
	_ cloud.Batcher             = (*Provider)(nil)
	_ cloud.Notifier            = (*Provider)(nil)
)

// errBadList marks errors of a list that was read and is wrong.
var errBadList = errors.New("the list as it stands cannot be used")

// Open reads the list that config names: a file with a MachineInventory or a
// MachineInventorySource, or an https:// address. Run keeps it up to date.
func Open(ctx context.Context, config string, log *slog.Logger) (*Provider, error) {
	from, err := newLoader(config)
	if err != nil {
		return nil, err
	}
	p := &Provider{from: from, log: log, watcher: map[int]func(){}}
	data, _, err := from.load(ctx)
	if err != nil {
		return nil, err
	}
	if p.list, err = parse(data); err != nil {
		return nil, fmt.Errorf("%s: %w", from.name(), err)
	}
	return p, nil
}

// Run reloads the list when it changes, until ctx ends. A list that cannot be
// read or is wrong leaves the last good one in force.
func (p *Provider) Run(ctx context.Context) error {
	return p.from.watch(ctx, func() {
		data, changed, err := p.from.load(ctx)
		if ctx.Err() != nil {
			return
		}
		var list *list
		if err == nil && changed {
			if list, err = parse(data); err != nil {
				err = fmt.Errorf("%s: %w (%w)", p.from.name(), err, errBadList)
			}
		}
		p.take(list, err)
	})
}

// take puts a new list in force, or notes why there is none. Neither means
// that the present one is still right.
func (p *Provider) take(list *list, err error) {
	p.mu.Lock()
	if err != nil {
		if p.bad == nil || p.bad.Error() != err.Error() {
			p.log.Error("reading the machine inventory again; the last good list stays in force", "err", err)
		}
		p.bad = err
		p.mu.Unlock()
		return
	}
	if list == nil {
		// Unchanged since the last answer. If that one was wrong, it still is.
		if !errors.Is(p.bad, errBadList) {
			p.bad = nil
		}
		p.mu.Unlock()
		return
	}
	p.bad, p.list = nil, list
	p.log.Info("read the machine inventory", "machines", list.Len())
	var tell []func()
	for _, f := range p.watcher {
		tell = append(tell, f)
	}
	p.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// Notify calls f after each change of the list.
func (p *Provider) Notify(f func()) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	id := p.next
	p.watcher[id] = f
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watcher, id)
	}
}

// find finds a node's machine. While the list may be out of date, a host
// that is not on it may be a new one: that is an error and not an absence.
func (p *Provider) find(n *v1.Node) (*host, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.list.find(n); m != nil || p.bad == nil {
		return m, nil
	}
	return nil, fmt.Errorf("Node %s is not on the list of %d machines, which may be out of date: %w", n.Name, p.list.Len(), p.bad)
}

// InstanceExists is cloudprovider.InstancesV2's.
func (p *Provider) InstanceExists(_ context.Context, n *v1.Node) (bool, error) {
	m, err := p.find(n)
	return m != nil, err
}

// InstanceShutdown is cloudprovider.InstancesV2's.
func (p *Provider) InstanceShutdown(_ context.Context, n *v1.Node) (bool, error) {
	m, err := p.find(n)
	return m != nil && m.State == Stopped, err
}

// InstanceMetadata is cloudprovider.InstancesV2's.
func (p *Provider) InstanceMetadata(_ context.Context, n *v1.Node) (*cloudprovider.InstanceMetadata, error) {
	m, err := p.find(n)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return nil, fmt.Errorf("%s names no machine for Node %s (provider ID %q): %w", p.from.name(), n.Name, n.Spec.ProviderID,
			cloudprovider.InstanceNotFound)
	}
	return m.metadata(), nil
}

// InstanceStates is cloud.Batcher's.
func (p *Provider) InstanceStates(_ context.Context, nodes []*v1.Node) (map[string]cloud.InstanceState, error) {
	out := make(map[string]cloud.InstanceState, len(nodes))
	var first error
	for _, n := range nodes {
		m, err := p.find(n)
		switch {
		case err != nil:
			if first == nil {
				first = err
			}
		case m == nil:
			out[n.Name] = cloud.Absent
		case m.State == Stopped:
			out[n.Name] = cloud.Stopped
		default:
			out[n.Name] = cloud.Running
		}
	}
	return out, first
}

// InstancesV2 is the provider itself.
func (p *Provider) InstancesV2() (cloudprovider.InstancesV2, bool) { return p, true }

// ProviderName is cloudprovider.Interface's.
func (p *Provider) ProviderName() string { return Name }

// Initialize does nothing: Run does the work.
func (p *Provider) Initialize(cloudprovider.ControllerClientBuilder, <-chan struct{}) {}

// HasClusterID is true: a list of hosts belongs to one cluster.
func (p *Provider) HasClusterID() bool { return true }

// LoadBalancer is not offered.
func (p *Provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return nil, false }

// Instances is not offered: InstancesV2 is.
func (p *Provider) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones is not offered: InstancesV2 tells zones.
func (p *Provider) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters is not offered.
func (p *Provider) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes is not offered.
func (p *Provider) Routes() (cloudprovider.Routes, bool) { return nil, false }
