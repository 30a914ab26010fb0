package device

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registration is the service on kubelet.sock.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
}

// Register takes in a plugin that tells its options; else its registration
// fails, and anyone who offered the resource so far goes on.
func (r registration) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if req.Version != pluginapi.Version {
		return nil, fmt.Errorf("device plugin API version %q is not supported: want %s", req.Version, pluginapi.Version)
	}
	if req.Endpoint == "" || filepath.Base(req.Endpoint) != req.Endpoint {
		return nil, fmt.Errorf("endpoint %q is no file name in the device plugin directory", req.Endpoint)
	}
	if err := checkResource(req.ResourceName); err != nil {
		return nil, err
	}
	if err := r.m.connect(ctx, req.ResourceName, filepath.Join(r.m.dir, req.Endpoint)); err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func checkResource(name string) error {
	domain, _, _ := strings.Cut(name, "/")
	native := domain == name || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
	if native || strings.HasPrefix(name, "requests.") {
		return fmt.Errorf("the ResourceName %q is invalid: want vendor-domain/resource, with a domain outside kubernetes.io", name)
	}
	// The API server refuses the whole Node status because of one bad name, and
	// quota needs the name with its prefix to be good too.
	if bad := validation.IsQualifiedName("requests." + name); len(bad) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid: %s", name, strings.Join(bad, "; "))
	}
	return nil
}

// Watched takes in plugins that the plugin directory's watcher finds, whose
// name is the resource they offer.
type Watched struct{ *Manager }

// Register takes in a plugin once the manager runs.
func (w Watched) Register(ctx context.Context, resource, endpoint string, versions []string) error {
	if !slices.Contains(versions, pluginapi.Version) {
		return fmt.Errorf("device plugin API versions %q are not supported: want %s", versions, pluginapi.Version)
	}
	if err := checkResource(resource); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.running:
	}
	if w.ctx.Err() != nil {
		return errors.New("the agent is stopping")
	}
	return w.connect(ctx, resource, endpoint)
}

// Deregister ends a plugin whose socket is gone.
func (w Watched) Deregister(resource, endpoint string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.plugins[resource] {
		if p.socket == endpoint {
			p.stop()
		}
	}
}

// connect puts a plugin in charge of a resource. It replaces the one that was
// on its socket; others stay, should it go.
func (m *Manager) connect(ctx context.Context, resource, socket string) error {
	m.metrics.registrations.WithLabelValues(resource).Inc()
	p := &plugin{resource: resource, socket: socket}
	if err := m.dial(ctx, p); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	following, stop := context.WithCancel(m.ctx)
	p.stop = stop
	m.plugins[resource] = slices.DeleteFunc(m.plugins[resource], func(old *plugin) bool {
		if old.socket == socket {
			old.stop()
		}
		return old.socket == socket
	})
	m.plugins[resource] = append(m.plugins[resource], p)
	m.wg.Go(func() {
		defer stop()
		if err := m.follow(following, p); err != nil && following.Err() == nil {
			m.cfg.Log.Warn("a device plugin ended", "resource", p.resource, "err", err)
		}
		m.lost(p)
	})
	return nil
}
