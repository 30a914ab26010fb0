package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/agent/admission"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/podresources"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/probe"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/resource/enforce"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/serve"
	"github.com/berth-dev/berth/internal/agent/source"
	"github.com/berth-dev/berth/internal/agent/start"
	"github.com/berth-dev/berth/internal/agent/stats"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// inside is what tests look at, and what is closed when all parts have ended.
type inside struct {
	pods    *pod.Manager
	watcher *runtime.Watcher
	runtime runtime.Service
	exec    runtime.ExecFunc
	volumes *volume.Manager
}

// wire makes the parts, leaves first, and returns the list of those that run.
// What has to reach a pod before there is a manager of pods goes through
// pod.Signals.
func wire(ctx context.Context, b *base) (list []part, in inside, err error) {
	cfg, k := b.Config, b.Kubelet
	given, err := exclusive(b)
	if err != nil {
		return nil, in, err
	}
	cgroups, hierarchy, err := enforce.Open(ctx, enforce.Config{
		Kubelet: k, Node: cfg.Node, Host: b.hostInfo, Runtime: b.runtime, Exclusive: given.Assigned.Exclusive, Event: b.events.Node,
		Log: cfg.Log})
	if err != nil {
		return nil, in, err
	}
	if err := tell(b, hierarchy.Version()); err != nil {
		return nil, in, err
	}
	handlers := &start.Handlers{}
	if handlers.Ask(ctx, b.runtime); cfg.Node.Features == nil {
		cfg.Node.Features = admission.DeclaredFeatures(handlers.Of(""))
	}
	store, err := openStorage(ctx, b)
	if err != nil {
		return nil, in, err
	}
	in.volumes, in.runtime, in.exec = store.volumes, b.runtime, b.exec
	images, err := newImages(b, store.volumes)
	if err != nil {
		return nil, in, err
	}
	mounts := start.NewMounts(images)
	measured, err := newStats(b, cgroups, volume.Inventory{Manager: store.volumes, Pods: b.pods.List, Pod: b.pods.Get, Mounted: mounts.Of})
	if err != nil {
		return nil, in, err
	}
	probes := prometheus.NewRegistry() // they have a path of their own
	prober := probe.New(probe.Config{Exec: b.exec, Changed: b.pods.Enqueue, Log: cfg.Log, Metrics: probes, Event: b.events.Warn})
	in.watcher = runtime.NewWatcher(runtime.WatcherConfig{Service: b.runtime, Notify: b.pods.RuntimeChanged, Log: cfg.Log,
		Metrics: cfg.Metrics})
	host := hostOf(b, hierarchy, cgroups)
	starter := newStarter(ctx, b, host, start.Config{
		Held: in.watcher, Handlers: handlers, Volumes: store.volumes, Users: store.users, Cgroups: cgroups, Images: images, Mounts: mounts,
		Exclusive: given, MemoryUsed: measured.MemoryOfPods(cgroups.PodPath)})
	guard, err := newGuard(ctx, b, measured, cgroups)
	if err != nil {
		return nil, in, err
	}
	alone := &admission.Exclusive{Devices: given.Devices, Assigned: given.Assigned, Claims: given.Claims, Pods: b.pods, AllKnown: b.told,
		Log: cfg.Log}
	in.pods = newPods(b, pod.Config{
		Runtime: in.watcher, Probes: prober, Admitter: newAdmission(b, host, guard, alone, in.watcher),
		Providers: pod.Providers{Volumes: starter, Images: images, Configs: starter, Resizer: starter, Devices: alone.Health,
			Cgroups: start.NewCgroups(cgroups, b.register)},
		Ended: func(uid types.UID) {
			images.Forget(uid)
			prober.Forget(uid)
			guard.collector.Trigger() // its dead containers go in a minute
		},
	})
	list = []part{
		{"runtime watcher", in.watcher.Run},
		{"volumes", store.volumes.Run},
		{"plugins", store.plugins(b, given)},
		{"probes", prober.Run},
		{"pods", in.pods.Run},
		{"log rotation", rotateLogs(b, in.watcher)},
		{"orphans", func(ctx context.Context) error {
			return in.pods.ClearOrphans(ctx, b.told, given.Claims.Orphans, store.volumes.Orphans, cgroups.Orphans)
		}},
		{"sources", func(ctx context.Context) error { return source.Run(ctx, sources(b, in.pods)) }},
		{"eviction", func(ctx context.Context) error { return pressure.Run(ctx, guard.eviction) }},
		{"device plugins", given.Devices.Run},
		{"pod resources", func(ctx context.Context) error {
			return podresources.Run(ctx, podresources.Config{Log: cfg.Log, RootDir: cfg.RootDir, Pods: in.pods.List, Devices: given.Devices,
				Assignments: given.Assigned, Claims: given.Claims, Metrics: cfg.Metrics})
		}},
		{"resource drivers", given.Claims.Run},
	}
	if assign.Pinning(k) {
		list = append(list, part{"CPU assignment", follow(b, given.Assigned, alone, in.watcher)})
	}
	if guard.shutdown != nil {
		list = append(list, part{"graceful shutdown", guard.shutdown.Run})
	}
	return append(list, withAPI(b, in, store.drivers, probes, measured)...), in, nil
}

// withAPI are the parts that only run where there is an API to talk to or to
// serve.
func withAPI(b *base, in inside, drivers *volume.Drivers, probes *prometheus.Registry, measured *stats.Provider) (list []part) {
	if b.API.Client != nil {
		list = append(list, part{"node", func(ctx context.Context) error { return node.Run(ctx, nodeConfig(b)) }},
			part{"storage announcement", func(ctx context.Context) error { return drivers.Announce(ctx, b.view.Ready()) }})
	}
	if b.TLS != nil {
		api := serveConfig(b, podsView{in.pods, in.watcher}, in.watcher, probes, measured)
		list = append(list, part{"api", func(ctx context.Context) error { return serve.Run(ctx, api) }})
	}
	return list
}
