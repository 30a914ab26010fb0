package agent

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/serve"
	"github.com/berth-dev/berth/internal/agent/shutdown"
	"github.com/berth-dev/berth/internal/agent/stats"
	"github.com/berth-dev/berth/internal/agent/telemetry"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// tell reports what the agent is and what its host lacks.
func tell(b *base, cgroupVersion int) error {
	own := telemetry.Own{Kubelet: b.Kubelet, Version: b.Node.Version, CgroupVersion: cgroupVersion, TLS: b.TLS,
		ClientCertificate: b.API.Certificate}
	if err := own.Register(b.Metrics); err != nil {
		return err
	}
	host := telemetry.Host{CgroupVersion: cgroupVersion, SwapBytes: b.hostInfo.SwapBytes, NoSwapTmpfs: volume.NoSwapTmpfs()}
	for _, w := range host.Warnings() {
		b.events.Node(v1.EventTypeWarning, w[0], w[1])
	}
	return nil
}

func newStats(b *base, cgroups *resource.Cgroups, inventory volume.Inventory) (*stats.Provider, error) {
	mounts, err := stats.FindMounts()
	if err != nil {
		return nil, err
	}
	own := b.Kubelet.KubeletCgroups
	if own == "" {
		own = stats.OwnCgroup(mounts)
	}
	system := map[string]string{}
	for name, path := range map[string]string{"kubelet": own, "runtime": b.RuntimeCgroup} {
		if path != "" {
			system[name] = path
		}
	}
	out, err := stats.New(stats.Config{
		Log: b.Log, NodeName: b.nodeName(), Pods: b.pods.List, PodCgroup: cgroups.PodPath, PodsCgroup: cgroups.PodsPath(),
		Reader: stats.NewReader(mounts), Runtime: b.runtime, Images: b.images, Volumes: inventory.Measurable, SystemCgroups: system,
		RootDir: b.RootDir, LogsDir: b.Kubelet.PodLogsDir, DiskAge: b.Kubelet.VolumeStatsAggPeriod.Duration,
	})
	if err != nil {
		return nil, err
	}
	b.register(out.VolumeMetrics(), out.LogMetrics(), inventory.Counts())
	return out, nil
}

// guard is what keeps the node from running short, and ends it in order.
type guard struct {
	gate      *pressure.Gate
	collector *pressure.Collector
	eviction  pressure.Config
	shutdown  *shutdown.Manager // nil if graceful shutdown is off
}

func newGuard(ctx context.Context, b *base, measured *stats.Provider, cgroups *resource.Cgroups) (*guard, error) {
	cfg, k := b.Config, b.Kubelet
	out := &guard{gate: pressure.NewGate(b.board)}
	var err error
	out.collector, err = pressure.NewCollector(ctx, pressure.CollectorConfig{
		Log: cfg.Log, NodeName: cfg.nodeName(), Runtime: b.runtime, Images: b.images, Events: b.events, Pods: b.pods.List,
		SourcesReady: func() bool {
			select {
			case <-b.told:
				return true
			default:
				return false
			}
		},
		RootDir: cfg.RootDir, LogsDir: k.PodLogsDir, LinkDir: cfg.LogLinkDir,
		HighPercent: ptr.Deref(k.ImageGCHighThresholdPercent, 85), LowPercent: ptr.Deref(k.ImageGCLowThresholdPercent, 80),
		ImageLimits:     pressure.ImageLimits{MinimumAge: k.ImageMinimumGCAge.Duration, MaximumAge: k.ImageMaximumGCAge.Duration},
		ContainerLimits: *cfg.DeadContainers, Journal: cfg.Journal, Metrics: cfg.Metrics,
	})
	if err != nil {
		return nil, err
	}
	// All pods together; no limit means no shortage of their own.
	allocatable := func() (workingSet, limit int64, err error) {
		used, limited, err := measured.Memory(cgroups.PodsPath())
		if err != nil {
			return 0, 0, fmt.Errorf("measuring the cgroup of all pods: %w", err)
		}
		return int64(used), int64(limited), nil
	}
	out.eviction = pressure.Config{
		Log: cfg.Log, NodeName: cfg.nodeName(), Kubelet: k, Status: out.gate, Pods: b.pods.List,
		Usage: func(ctx context.Context, pods []*v1.Pod, disk bool) ([]pressure.PodUsage, error) {
			return pressure.Measure(ctx, measured, pods, disk)
		},
		Kill:      func(p *v1.Pod, e pressure.Eviction) <-chan struct{} { return b.pods.Kill(p.UID, e.Kill()) },
		ForceKill: func(p *v1.Pod) { b.pods.Kill(p.UID, pod.Kill{Now: true}) },
		Events:    b.events, Sensor: &pressure.Sensor{RootDir: cfg.RootDir, ImageDir: out.collector.ImageDir(), Allocatable: allocatable},
		Collector: out.collector, Journal: cfg.Journal, Metrics: cfg.Metrics,
	}
	if mounts, err := stats.FindMounts(); err == nil && mounts.Unified != "" {
		out.eviction.PodsEvents = filepath.Join(mounts.Unified, cgroups.PodsPath(), "memory.events")
	}
	out.shutdown, err = shutdown.New(shutdown.Config{
		Log: cfg.Log, NodeName: cfg.nodeName(), Kubelet: k, System: &shutdown.Logind{}, Status: b.board, Pods: b.pods.List,
		Kill:   shutdown.End(b.pods),
		Events: b.events, Journal: cfg.Journal, Metrics: cfg.Metrics,
	})
	return out, err
}

func nodeConfig(b *base) node.Config {
	return node.Config{
		Log: b.Log, Client: b.API.Client, Leases: b.API.Leases, Runtime: b.runtime, Images: b.images, Board: b.board,
		Events: b.events, Journal: b.Journal, Metrics: b.Metrics, Settings: b.Node, Register: ptr.Deref(b.Kubelet.RegisterNode, true),
		RootDir: b.RootDir, ReportEvery: b.Kubelet.NodeStatusReportFrequency.Duration,
		UpdateEvery: b.Kubelet.NodeStatusUpdateFrequency.Duration, LeaseSeconds: b.Kubelet.NodeLeaseDurationSeconds,
		OnNode: b.view.Set,
	}
}

func serveConfig(b *base, pods serve.Pods, watcher *runtime.Watcher, probes *prometheus.Registry, measured *stats.Provider) serve.Config {
	s := b.Serve
	s.Log, s.NodeName, s.Kubelet, s.Client, s.TLS = b.Log, b.nodeName(), b.Kubelet, b.API.Client, b.TLS
	s.Pods, s.Runtime, s.RootDir, s.Tracer = pods, b.runtime, b.RootDir, b.tracer
	if s.Metrics == nil {
		s.Metrics = b.Metrics
	}
	if s.Probes == nil {
		s.Probes = probes
	}
	if s.Stats == nil {
		s.Stats = measured
	}
	s.Checks = append(s.Checks, serve.Check{Name: "syncloop", Check: watcher.Healthy})
	return s
}

// podsView is the pods as the API shows them.
type podsView struct {
	*pod.Manager
	held *runtime.Watcher
}

// Get returns one pod by name.
func (v podsView) Get(namespace, name string) (*v1.Pod, bool) { return v.GetByName(namespace, name) }

// Exited returns a channel that is closed once the container does not run.
func (v podsView) Exited(ctx context.Context, id string) <-chan struct{} {
	return v.held.Exited(ctx, id)
}
