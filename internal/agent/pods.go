package agent

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/agent/admission"
	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/logs"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/probe"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/resource/enforce"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/source"
	"github.com/berth-dev/berth/internal/agent/start"
)

// hostOf is what the configuration and the host say for all pods.
func hostOf(b *base, hierarchy resource.Hierarchy, cgroups *resource.Cgroups) start.Host {
	cfg, k, hostInfo := b.Config, b.Kubelet, b.hostInfo
	settings := container.NodeSettings{
		CgroupVersion: hierarchy.Version(), CPUQuota: k.CPUCFSQuota == nil || *k.CPUCFSQuota, SeccompDefault: k.SeccompDefault != nil &&
			*k.SeccompDefault,
		SingleProcessOOMKill: hierarchy.Version() == 1 || k.SingleProcessOOMKill != nil && *k.SingleProcessOOMKill,
		NoSwapController:     !cgroups.SwapControlled(),
		AllowedUnsafeSysctls: k.AllowedUnsafeSysctls, DropCapabilities: cfg.DropCapabilities, AppArmor: cfg.AppArmor,
		SwapLimited: k.MemorySwap.SwapBehavior == config.LimitedSwap, SwapCapacity: hostInfo.SwapBytes,
	}
	if hierarchy.Has("hugetlb") { // a runtime refuses limits it cannot set (CRI-O does)
		settings.HugepageSizes = enforce.HugepageSizes(hostInfo)
	}
	_, settings.ThrottleFactor, settings.ReserveMemory = config.MemoryQoS(k)
	settings.PageSize, settings.PodMemory = int64(os.Getpagesize()), enforce.PodsLimits(k, cfg.Node, hostInfo).MemoryLimit
	if settings.PodMemory <= 0 {
		settings.PodMemory = hostInfo.MemoryBytes
	}
	if d := k.CPUCFSQuotaPeriod; d != nil {
		settings.CPUPeriodMicros = d.Duration.Microseconds()
	}
	_, _ = fmt.Sscanf(hostInfo.Kernel, "%d.%d", &settings.Kernel[0], &settings.Kernel[1])
	settings.ThermalThrottlePaths, _ = filepath.Glob("/sys/devices/system/cpu/cpu*/thermal_throttle")
	resolv := "/etc/resolv.conf"
	if k.ResolverConfig != nil {
		resolv = *k.ResolverConfig
	}
	return start.Host{
		NodeName: cfg.nodeName(), RootDir: cfg.RootDir, PodLogsDir: k.PodLogsDir, MemoryBytes: hostInfo.MemoryBytes, Settings: settings,
		ClusterDNS: k.ClusterDNS, ClusterDomain: k.ClusterDomain, ResolvConf: resolv,
	}
}

// newStarter completes a configuration with what all parts share.
func newStarter(ctx context.Context, b *base, host start.Host, cfg start.Config) *start.Starter {
	cfg.Host, cfg.Client, cfg.Node, cfg.Runtime, cfg.Guard = host, b.API.Client, b.view, b.runtime, b.Guard
	cfg.Warn = func(p *v1.Pod, w network.Warning) { b.events.Warn(p, "", w.Reason, w.Message) }
	cfg.Reject = func(p *v1.Pod, why, message string) {
		b.events.Warn(p, "", why, message)
		b.pods.Kill(p.UID, pod.Kill{Phase: v1.PodFailed, Reason: why, Message: message})
	}
	cfg.Problem = func(what string, uid types.UID, err error) { b.Log.Warn(what, "uid", uid, "err", err) }
	if b.API.Client != nil {
		cfg.Services = start.WatchServices(ctx, b.API.Client)
	}
	if text, err := os.ReadFile(host.ResolvConf); err == nil { // else each pod that needs it says so
		for _, message := range network.CheckLimits(host.ResolvConf, network.ParseResolvConf(string(text)), host.ClusterDomain) {
			ref := &v1.ObjectReference{Kind: "Node", Name: b.nodeName(), UID: types.UID(b.nodeName())}
			b.events.Event(ref, v1.EventTypeWarning, "CheckLimitsForResolvConf", message)
		}
	}
	return start.New(cfg)
}

func newAdmission(b *base, host start.Host, g *guard, alone *admission.Exclusive, held *runtime.Watcher) *admission.Admission {
	after := []admission.Opinion{admission.AppArmor(b.AppArmor)}
	if g.shutdown != nil {
		after = append(after, g.shutdown.Admit)
	}
	return admission.New(admission.Config{
		Node: b.view, Pods: b.pods, Runtime: held, Exclusive: alone, Register: b.register,
		Before: []admission.Opinion{g.gate.Admit, admission.Featured(b.Node.Features), admission.Sysctls(host.Settings)}, After: after,
		Resizable: []admission.Opinion{admission.Swapless(host.Settings)},
		Preempted: func(p *v1.Pod, reason, message string) { b.events.Warn(p, "", reason, message) },
	})
}

// newPods completes a configuration with what all parts share.
func newPods(b *base, cfg pod.Config) *pod.Manager {
	fallbacks := prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_lifecycle_handler_http_fallbacks_total",
		Help: "Lifecycle requests that meant HTTPS and were answered over HTTP."})
	b.register(fallbacks)
	cfg.Client, cfg.Service, cfg.RuntimeName, cfg.Signals = b.API.Client, b.runtime, b.runtimeName, b.pods
	cfg.Hooks = probe.Hooks{Exec: b.exec, Fallbacks: fallbacks, Event: b.events.Warn}
	cfg.Node = func() pod.Node {
		n := pod.Node{IPs: b.view.IPs(), NotReady: b.view.NotReady()}
		if d := b.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
			n.CrashLimit = d.Duration
		}
		return n
	}
	cfg.Dirs = pod.Dirs{Root: b.RootDir, Logs: b.Kubelet.PodLogsDir, Links: b.LogLinkDir}
	cfg.Recorder, cfg.Journal, cfg.Log, cfg.Metrics = b.events, b.Journal, b.Log, b.Metrics
	pods := pod.NewManager(cfg)
	b.view.OnChange(func(*v1.Node) { pods.NodeChanged() })
	return pods
}

// sources says where pods come from.
func sources(b *base, pods *pod.Manager) source.Config {
	k := b.Kubelet
	header := http.Header{}
	for name, values := range k.StaticPodURLHeader {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return source.Config{
		NodeName: b.nodeName(), Client: b.API.Client, Node: b.view.UID, NodeReady: b.view.Ready(), Ending: pods.Terminated,
		Path: k.StaticPodPath, PathPeriod: k.FileCheckFrequency.Duration, URL: k.StaticPodURL, Header: header,
		URLPeriod: k.HTTPCheckFrequency.Duration,
		StatePath: filepath.Join(b.RootDir, "static_pods_state"), Runtime: b.runtime,
		Sink: source.WhenReady(pods, sync.OnceFunc(func() { close(b.told) })), Recorder: b.events, Log: b.Log,
	}
}

// rotateLogs keeps container logs within the configured bounds.
func rotateLogs(b *base, held *runtime.Watcher) func(context.Context) error {
	return func(ctx context.Context) error {
		cfg := logs.Config{Log: b.Log, Reopen: b.runtime.ReopenContainerLog, Running: func() (out []logs.Log) {
			for _, c := range held.Running() {
				if c.LogPath != "" {
					out = append(out, logs.Log{ContainerID: c.ID, Path: c.LogPath})
				}
			}
			return out
		}}
		if err := cfg.Bounds(b.Kubelet); err != nil {
			return err
		}
		return logs.Run(ctx, cfg)
	}
}

// follow keeps running containers on the CPUs that are theirs.
func follow(b *base, assigned *assign.Manager, alone *admission.Exclusive, held *runtime.Watcher) func(context.Context) error {
	period := 10 * time.Second
	if d := b.Kubelet.CPUManagerReconcilePeriod.Duration; d > 0 {
		period = d
	}
	f := assign.Follower{
		Manager: assigned, Period: period, Ready: b.told, Keep: alone.Needed, Changed: held.Changed,
		Running: func() (out []assign.Running) {
			for _, c := range held.Running() {
				if uid, ok := held.Owner(c.ID); ok {
					out = append(out, assign.Running{Pod: uid, Name: c.Name, ID: c.ID})
				}
			}
			return out
		},
		Move: func(ctx context.Context, id, set string) error {
			linux := &runtimeapi.LinuxContainerResources{CpusetCpus: set}
			if err := b.runtime.UpdateContainerResources(ctx, id, &runtimeapi.ContainerResources{Linux: linux}); err != nil {
				return fmt.Errorf("updating the container: %w", err)
			}
			return nil
		},
	}
	return f.Run
}
