package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/plugins"
	"github.com/berth-dev/berth/internal/agent/stats"
	"github.com/berth-dev/berth/internal/agent/userns"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// buildStorage makes what volumes of drivers and user namespaces need.
func (a *Agent) buildStorage(ctx context.Context) error {
	cfg := &a.Config
	a.Drivers = volume.NewDrivers(cfg.Client, cfg.NodeName, cfg.Log)
	var perPod uint64
	if u := cfg.Kubelet.UserNamespaces; u != nil && u.IDsPerPod != nil {
		perPod = uint64(*u.IDsPerPod)
	}
	first, count, err := userns.Subordinate(ctx)
	if err != nil {
		return fmt.Errorf("finding user namespaces: %w", err)
	}
	if a.users, err = userns.Open(userns.Config{RootDir: cfg.RootDir, PerPod: perPod, First: first, Count: count, Pods: int(cfg.Node.Limits.MaxPods)}); err != nil {
		return fmt.Errorf("finding user namespaces: %w", err)
	}
	if cfg.Client != nil {
		var once sync.Once
		a.view.on = append(a.view.on, func(*v1.Node) {
			a.Volumes.NodeChanged()
			once.Do(func() { close(a.nodeSeen) })
		})
	}
	return nil
}

// runPlugins registers the plugins of this node until ctx ends. Types beyond
// storage come from the configuration.
func (a *Agent) runPlugins(ctx context.Context) error {
	handlers := map[string]plugins.Handler{plugins.CSIPlugin: a.Drivers, plugins.DevicePlugin: device.Watched{Manager: a.devices}, plugins.DRAPlugin: a.claims}
	for kind, h := range a.Config.Plugins {
		handlers[kind] = h
	}
	defer a.Drivers.Close()
	a.Board.SetVolumesInUse(a.Volumes.VolumesInUse())
	return plugins.Run(ctx, plugins.Config{Dir: filepath.Join(a.Config.RootDir, "plugins_registry"), Handlers: handlers, Log: a.Config.Log})
}

// announceStorage makes the CSINode once there is a Node to own it.
func (a *Agent) announceStorage(ctx context.Context) error {
	select {
	case <-a.nodeSeen:
	case <-ctx.Done():
		return nil
	}
	for delay := time.Second; ; delay = min(2*delay, 5*time.Minute) {
		err := a.Drivers.EnsureCSINode(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		a.Config.Log.Warn("making the node's CSINode", "err", err, "retry", delay)
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// measurable lists the volumes of a pod whose size says something: all but
// host paths, images and network file systems, which are not the pod's.
func (a *Agent) measurable(uid types.UID) []stats.Volume {
	p, ok := a.Pods.Get(uid)
	if !ok {
		return nil
	}
	mounted := a.configs.mountsOf(uid)
	var list []stats.Volume
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		m, ok := mounted[v.Name]
		if !ok || m.HostPath == "" {
			continue
		}
		out, ok := measurableAs(p, v)
		if !ok {
			continue
		}
		out.Path = m.HostPath
		ask, driven := a.Volumes.Measure(uid, v.Name)
		switch {
		case ask != nil:
			out.Measure = func(ctx context.Context) (stats.VolumeSize, error) {
				size, err := ask(ctx)
				return stats.VolumeSize(size), err
			}
		case driven || m.Block:
			continue // nobody knows
		}
		list = append(list, out)
	}
	return list
}

// measurableAs says how a volume is measured; ok is false for one that is not.
// Secrets, tokens and downward API files have a file system of their own in
// memory, config maps lie on the node's disk.
func measurableAs(p *v1.Pod, v *v1.Volume) (out stats.Volume, ok bool) {
	out.Name = v.Name
	switch {
	case v.EmptyDir != nil:
		out.Shared = v.EmptyDir.Medium == v1.StorageMediumDefault
	case v.ConfigMap != nil:
		out.Shared = true
	case v.PersistentVolumeClaim != nil:
		out.Claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		out.Claim = p.Name + "-" + v.Name
	case v.CSI == nil && v.Secret == nil && v.Projected == nil && v.DownwardAPI == nil:
		return out, false
	}
	return out, true
}
