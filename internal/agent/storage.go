package agent

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/plugins"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/resource/topology"
	"github.com/berth-dev/berth/internal/agent/start"
	"github.com/berth-dev/berth/internal/agent/userns"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// exclusive makes what gives CPUs, memory and devices to pods.
func exclusive(b *base) (out start.Exclusive, err error) {
	cfg, k := b.Config, b.Kubelet
	layout, err := topology.Read("/")
	if err != nil {
		if assign.Pinning(k) {
			return out, err
		}
		cfg.Log.Info("the host does not report its topology; nothing needs it", "err", err)
		layout = &topology.Host{}
	}
	if out.Devices, err = device.New(device.Config{
		Log: cfg.Log, RootDir: cfg.RootDir, Offer: b.board.SetDevices, Nodes: layout.NodeMask(), Changed: b.pods.Enqueue,
		Metrics: cfg.Metrics,
	}); err != nil {
		return out, err
	}
	if out.Claims, err = dra.New(dra.Config{
		Log: cfg.Log, RootDir: cfg.RootDir, NodeName: cfg.nodeName(), Client: cfg.API.Client, Changed: b.pods.Enqueue, Metrics: cfg.Metrics,
	}); err != nil {
		return out, err
	}
	give := assign.Config{Log: cfg.Log, RootDir: cfg.RootDir, Host: layout, Devices: out.Devices, Metrics: cfg.Metrics,
		Journal: cfg.Journal}
	if err := give.Policies(k, cfg.Node.Reserved, b.hostInfo.MemoryBytes); err != nil {
		return out, err
	}
	out.Assigned, err = assign.New(give)
	return out, err
}

// storage is what brings volumes to pods.
type storage struct {
	drivers *volume.Drivers
	users   *userns.Ranges
	volumes *volume.Manager
}

func openStorage(ctx context.Context, b *base) (out storage, err error) {
	cfg, k := b.Config, b.Kubelet
	out.drivers = volume.NewDrivers(cfg.API.Client, cfg.nodeName(), cfg.Log)
	var perPod uint64
	if u := k.UserNamespaces; u != nil && u.IDsPerPod != nil {
		perPod = uint64(*u.IDsPerPod)
	}
	first, count, err := userns.Subordinate(ctx)
	if err != nil {
		return out, fmt.Errorf("finding user namespaces: %w", err)
	}
	if out.users, err = userns.Open(userns.Config{
		RootDir: cfg.RootDir, PerPod: perPod, First: first, Count: count, Pods: int(cfg.Node.Limits.MaxPods),
	}); err != nil {
		return out, fmt.Errorf("finding user namespaces: %w", err)
	}
	out.volumes = volume.New(volume.Config{
		Drivers: out.drivers, InUse: b.board.SetVolumesInUse, RootDir: cfg.RootDir, Client: cfg.API.Client, NodeName: cfg.nodeName(),
		Allocatable: b.view.Allocatable, Node: b.view.Get, Event: b.events.Pod, Wake: b.pods.Retry,
		ControllerAttach: k.EnableControllerAttachDetach == nil || *k.EnableControllerAttachDetach,
		Log:              cfg.Log, Metrics: cfg.Metrics, Journal: cfg.Journal,
	})
	if cfg.API.Client != nil {
		b.view.OnChange(func(*v1.Node) { out.volumes.NodeChanged() })
	}
	return out, nil
}

// plugins registers the plugins of this node until ctx ends.
func (s storage) plugins(b *base, given start.Exclusive) func(context.Context) error {
	return func(ctx context.Context) error {
		defer s.drivers.Close()
		b.board.SetVolumesInUse(s.volumes.VolumesInUse())
		return plugins.Run(ctx, plugins.Config{Dir: filepath.Join(b.RootDir, "plugins_registry"), Log: b.Log,
			Handlers: map[string]plugins.Handler{
				plugins.CSIPlugin:    s.drivers.RegisterAfter(b.view.Ready(), b.Serve.Issued),
				plugins.DevicePlugin: device.Watched{Manager: given.Devices}, plugins.DRAPlugin: given.Claims,
			}})
	}
}

// newImages makes what has the images of pods.
func newImages(b *base, volumes *volume.Manager) (*start.Images, error) {
	cfg, k := b.Config, b.Kubelet
	parallel := 4
	if k.MaxParallelImagePulls != nil {
		parallel = int(*k.MaxParallelImagePulls)
	}
	var qps float64
	if k.RegistryPullQPS != nil {
		qps = float64(*k.RegistryPullQPS)
	}
	providers, err := start.CredentialProviders(cfg.Credentials.Config, cfg.Credentials.Dir, cfg.API.Client, volumes)
	if err != nil {
		return nil, err
	}
	puller, err := image.New(image.Config{
		Service: b.images, Secret: volumes.Secret, Providers: providers, Event: b.events.Container, MaxParallel: parallel, QPS: qps,
		Burst: int(k.RegistryBurst),
		Dir:   cfg.RootDir, NodeCredentials: []string{filepath.Join(cfg.RootDir, "config.json"), "/root/.docker/config.json"},
		Verification: image.Verification{
			Policy: image.Policy(k.ImagePullCredentialsVerificationPolicy), Allowlist: k.PreloadedImagesVerificationAllowlist,
		},
		Log: cfg.Log, Metrics: cfg.Metrics, Journal: cfg.Journal,
	})
	if err != nil {
		return nil, err
	}
	return start.NewImages(puller, b.board.ImagesChanged), nil
}
