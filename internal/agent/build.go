package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	utilexec "k8s.io/utils/exec"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/agent/config"
	"github.com/berth-dev/berth/internal/agent/container"
	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/logs"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/probe"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/volume"
)

// build makes the parts, leaves first.
func (a *Agent) build(ctx context.Context) error {
	cfg := &a.Config
	k := cfg.Kubelet
	machine, err := node.ReadMachine("/")
	if err != nil {
		return fmt.Errorf("reading the machine: %w", err)
	}
	version, err := a.Runtime.Version(ctx, "0.1.0")
	if err != nil {
		return fmt.Errorf("asking the runtime's version: %w", err)
	}
	hierarchy, err := a.buildCgroups(ctx, machine)
	if err != nil {
		return err
	}
	if err := a.ownMetrics(hierarchy.Version()); err != nil {
		return err
	}
	a.warnOf(machineFacts{cgroupVersion: hierarchy.Version(), swapBytes: machine.SwapBytes, noSwapTmpfs: volume.NoSwapTmpfs()})
	a.features = &handlers{ask: a.Runtime.Status}
	a.features.refresh(ctx)
	if cfg.Node.Features == nil {
		cfg.Node.Features = declaredFeatures(a.features.of(""))
	}

	if err := a.buildStorage(ctx); err != nil {
		return err
	}
	a.Volumes = volume.New(volume.Config{
		Drivers: a.Drivers, InUse: a.Board.SetVolumesInUse,
		RootDir: cfg.RootDir, Client: cfg.Client, NodeName: cfg.NodeName, Allocatable: a.view.allocatable, Node: a.view.get,
		Event: func(p *v1.Pod, kind, why, message string) { a.event(p, "", kind, why, message) }, Wake: a.wakePod,
		ControllerAttach: k.EnableControllerAttachDetach == nil || *k.EnableControllerAttachDetach,
		Log:              cfg.Log, Metrics: cfg.Metrics, Journal: cfg.Journal,
	})
	if err := a.buildImages(); err != nil {
		return err
	}
	a.probes = prometheus.NewRegistry() // they have a path of their own
	a.prober = probe.New(probe.Config{
		Exec: a.exec, Changed: func(uid types.UID) { a.Pods.Poke(uid) }, Log: cfg.Log, Metrics: a.probes,
		Event: func(p *v1.Pod, name, why, message string) { a.event(p, name, v1.EventTypeWarning, why, message) },
	})
	if err := a.buildResources(machine); err != nil {
		return err
	}
	a.buildConfigs(ctx, hierarchy, machine)
	a.Watcher = runtime.NewWatcher(runtime.WatcherConfig{
		Service: a.Runtime, Notify: func(uid types.UID) { a.Pods.RuntimeChanged(uid) }, Log: cfg.Log, Metrics: cfg.Metrics,
	})
	if cfg.Client != nil {
		a.view.ask = func(ctx context.Context) (*v1.Node, error) {
			return cfg.Client.CoreV1().Nodes().Get(ctx, cfg.NodeName, metav1.GetOptions{})
		}
	}
	fallbacks := prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_lifecycle_handler_http_fallbacks_total", Help: "Lifecycle requests that meant HTTPS and were answered over HTTP."})
	a.register(fallbacks)
	a.Pods = pod.NewManager(pod.Config{
		Client: cfg.Client, Service: a.Runtime, Runtime: a.Watcher, RuntimeName: version.GetRuntimeName(),
		Volumes: a.configs, Images: a.imageSet, Configs: a.configs, Cgroups: cgroupSet{a.Cgroups, a.cgroupMetrics()}, Admitter: newAdmission(a), Resizer: a.configs,
		Hooks:  probe.Hooks{Exec: a.exec, Fallbacks: fallbacks, Event: func(p *v1.Pod, name, why, message string) { a.event(p, name, v1.EventTypeWarning, why, message) }},
		Probes: a.prober, Devices: a.deviceHealth,
		Node: func() pod.Node {
			n := pod.Node{IPs: a.view.ips(), NotReady: a.view.notReady()}
			if d := k.CrashLoopBackOff.MaxContainerRestartPeriod; d != nil {
				n.CrashLimit = d.Duration
			}
			return n
		},
		RootDir: cfg.RootDir, LogDir: cfg.PodLogsDir, LinkDir: cfg.LogLinkDir,
		Recorder: a.Events, Journal: cfg.Journal, Log: cfg.Log, Metrics: cfg.Metrics,
		Ended: func(uid types.UID) {
			a.imageSet.forget(uid)
			a.prober.Forget(uid)
			a.collector.Kick() // its dead containers go in a minute
		},
	})
	a.view.on = append(a.view.on, func(*v1.Node) { a.Pods.NodeChanged() })
	return nil
}

func (a *Agent) buildCgroups(ctx context.Context, machine *node.Machine) (resource.Hierarchy, error) {
	k := a.Config.Kubelet
	hierarchy, err := resource.FindHierarchy()
	if err != nil {
		return hierarchy, err
	}
	if k.MemorySwap.SwapBehavior == config.LimitedSwap && hierarchy.Version() == 1 {
		return hierarchy, fmt.Errorf("memorySwap.swapBehavior %s needs cgroup v2 and this machine has v1: use %s", config.LimitedSwap, config.NoSwap)
	}
	quality, _, reserve := config.MemoryQoS(k)
	if quality && hierarchy.Version() == 1 {
		return hierarchy, errors.New("featureGates.MemoryQoS (memoryThrottlingFactor, memoryReservationPolicy) needs cgroup v2 and this machine has v1: leave the gate out")
	}
	driver := resource.Cgroupfs
	if k.CgroupDriver != "" {
		driver = resource.Driver(k.CgroupDriver)
	}
	// The runtime knows better than a file how it names cgroups.
	if rc, err := a.Runtime.RuntimeConfig(ctx); err == nil && rc.GetLinux() != nil {
		driver = resource.Cgroupfs
		if rc.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
			driver = resource.Systemd
		}
	}
	var units resource.Units
	if driver == resource.Systemd {
		s, err := resource.ConnectSystemd(ctx)
		if err != nil {
			return hierarchy, err
		}
		context.AfterFunc(ctx, s.Close)
		units = s
	}
	options := resource.PodOptions{CPUQuota: k.CPUCFSQuota == nil || *k.CPUCFSQuota, HugepageSizes: hugepageSizes(machine), ReserveMemory: reserve}
	if d := k.CPUCFSQuotaPeriod; d != nil {
		options.CPUPeriodMicros = d.Duration.Microseconds()
	}
	if k.PodPidsLimit != nil {
		options.PidsLimit = *k.PodPidsLimit
	}
	a.Cgroups, err = resource.New(resource.Config{
		Driver: driver, Root: k.CgroupRoot, PerQOS: k.CgroupsPerQOS == nil || *k.CgroupsPerQOS,
		Pod: options, Exclusive: func(uid types.UID) bool { return a.assigned.Exclusive(uid) }, Pods: a.podsLimits(machine), Hierarchy: hierarchy, Units: units, Log: a.Config.Log,
	})
	if err != nil {
		return hierarchy, err
	}
	return hierarchy, a.enforce()
}

func hugepageSizes(m *node.Machine) (out []string) {
	for size := range m.HugePages {
		out = append(out, resource.HugepageName(size))
	}
	return out
}

func (a *Agent) buildImages() error {
	k := a.Config.Kubelet
	parallel := 4
	if k.MaxParallelImagePulls != nil {
		parallel = int(*k.MaxParallelImagePulls)
	}
	var qps float64
	if k.RegistryPullQPS != nil {
		qps = float64(*k.RegistryPullQPS)
	}
	providers, err := a.credentialProviders()
	if err != nil {
		return err
	}
	puller, err := image.New(image.Config{
		Service: a.Images, Secret: a.Volumes.Secret, Providers: providers, Event: a.event, MaxParallel: parallel, QPS: qps, Burst: int(k.RegistryBurst),
		Dir: a.Config.RootDir, NodeCredentials: []string{filepath.Join(a.Config.RootDir, "config.json"), "/root/.docker/config.json"},
		Verification: image.Verification{
			Policy: image.Policy(k.ImagePullCredentialsVerificationPolicy), Allowlist: k.PreloadedImagesVerificationAllowlist,
		},
		Log: a.Config.Log, Metrics: a.Config.Metrics, Journal: a.Config.Journal,
	})
	if err != nil {
		return err
	}
	a.Puller = puller
	a.imageSet = &imageSet{puller: puller, now: time.Now, found: map[types.UID]map[string]container.Image{}, volumes: map[types.UID]map[string]string{}, seen: map[string]bool{}, changed: a.Board.ImagesChanged}
	return nil
}

func (a *Agent) buildConfigs(ctx context.Context, hierarchy resource.Hierarchy, machine *node.Machine) {
	cfg := &a.Config
	k := cfg.Kubelet
	settings := container.NodeSettings{
		CgroupVersion: hierarchy.Version(), CPUQuota: k.CPUCFSQuota == nil || *k.CPUCFSQuota, SeccompDefault: k.SeccompDefault != nil && *k.SeccompDefault,
		SingleProcessOOMKill: hierarchy.Version() == 1 || k.SingleProcessOOMKill != nil && *k.SingleProcessOOMKill,
		NoSwapController:     !a.Cgroups.SwapControlled(),
		AllowedUnsafeSysctls: k.AllowedUnsafeSysctls, AppArmor: cfg.AppArmor,
		SwapLimited: k.MemorySwap.SwapBehavior == config.LimitedSwap, SwapCapacity: machine.SwapBytes,
	}
	if hierarchy.Has("hugetlb") { // a runtime refuses limits it cannot set (CRI-O does)
		settings.HugepageSizes = hugepageSizes(machine)
	}
	_, settings.ThrottleFactor, settings.ReserveMemory = config.MemoryQoS(k)
	settings.PageSize, settings.PodMemory = int64(os.Getpagesize()), a.podsLimits(machine).MemoryLimit
	if settings.PodMemory <= 0 {
		settings.PodMemory = machine.MemoryBytes
	}
	if d := k.CPUCFSQuotaPeriod; d != nil {
		settings.CPUPeriodMicros = d.Duration.Microseconds()
	}
	_, _ = fmt.Sscanf(machine.Kernel, "%d.%d", &settings.Kernel[0], &settings.Kernel[1])
	settings.ThermalThrottlePaths, _ = filepath.Glob("/sys/devices/system/cpu/cpu*/thermal_throttle")
	resolv := "/etc/resolv.conf"
	if k.ResolverConfig != nil {
		resolv = *k.ResolverConfig
	}
	a.configs = &configs{
		nodeName: cfg.NodeName, client: cfg.Client, node: a.view, volumes: a.Volumes, users: a.users, cgroups: a.Cgroups, guard: cfg.Guard, images: a.imageSet.image,
		imageVolume: a.imageSet.volumeRef, features: a.features.of, settings: settings, memory: machine.MemoryBytes,
		clusterDNS: k.ClusterDNS, clusterDomain: k.ClusterDomain, resolvConf: resolv, rootDir: cfg.RootDir, logsDir: cfg.PodLogsDir,
		warn: func(p *v1.Pod, w network.Warning) { a.event(p, "", v1.EventTypeWarning, w.Reason, w.Message) },
		reject: func(p *v1.Pod, why, message string) {
			a.event(p, "", v1.EventTypeWarning, why, message)
			a.Pods.Kill(p.UID, pod.Kill{Phase: v1.PodFailed, Reason: why, Message: message})
		},
		update: a.Runtime.UpdateContainerResources, updateSandbox: a.updateSandbox, enforced: a.enforced,
		memoryUsed: func(p *v1.Pod) (int64, error) {
			used, _, err := a.Stats.Memory(a.Cgroups.PodPath(p))
			return int64(used), err
		},
		mounted: map[types.UID]map[string]volume.Mounted{}, devices: a.devices, assigned: a.assigned, claims: a.claims,
	}
	a.services(ctx, a.configs)
	a.tellLimits(resolv)
}

// enforced is what the runtime last said a container may use, nil if it did not.
func (a *Agent) enforced(uid types.UID, id string) *runtimeapi.LinuxContainerResources {
	if held := a.Watcher.Pod(uid); held != nil {
		for _, c := range held.Containers {
			if c.ID == id {
				return c.Resources.GetLinux()
			}
		}
	}
	return nil
}

// tellLimits reports what of the node's resolver configuration cannot reach
// pods.
func (a *Agent) tellLimits(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		return // each pod that needs it says so
	}
	for _, message := range network.CheckLimits(path, network.ParseResolvConf(string(text)), a.Config.Kubelet.ClusterDomain) {
		ref := &v1.ObjectReference{Kind: "Node", Name: a.Config.NodeName, UID: types.UID(a.Config.NodeName)}
		a.Events.Event(ref, v1.EventTypeWarning, "CheckLimitsForResolvConf", message)
	}
}

// updateSandbox tells the runtime what a pod as a whole may use. That is for
// runtimes that keep account of it; most do not know the call.
func (a *Agent) updateSandbox(ctx context.Context, uid types.UID, cfg *runtimeapi.LinuxPodSandboxConfig) {
	held := a.Watcher.Pod(uid)
	if held == nil || len(held.Sandboxes) == 0 {
		return
	}
	_, err := a.Runtime.UpdatePodSandboxResources(klog.NewContext(ctx, klog.Logger{}), &runtimeapi.UpdatePodSandboxResourcesRequest{
		PodSandboxId: held.Sandboxes[0].ID, Overhead: cfg.GetOverhead(), Resources: cfg.GetResources(),
	})
	if err != nil && !runtime.IsUnimplemented(err) {
		a.Config.Log.Warn("telling the runtime of a pod's resources", "uid", uid, "err", err)
	}
}

// sysctls refuses pods whose sysctls the node does not allow.
func (a *Agent) sysctls(p *v1.Pod) (why, message string, ok bool) {
	return refusal(container.CheckSysctls(p, a.configs.settings), "SysctlForbidden")
}

// refusal is an admission error as an opinion; otherwise names one that brings
// no reason of its own.
func refusal(err error, otherwise string) (why, message string, ok bool) {
	if err == nil {
		return "", "", true
	}
	var e *container.AdmissionError
	if errors.As(err, &e) {
		return e.Reason, e.Message, false
	}
	return otherwise, err.Error(), false
}

// exec runs a command in a container; an exit code is an answer, not an error.
func (a *Agent) exec(ctx context.Context, id string, cmd []string, timeout time.Duration) ([]byte, int, error) {
	// The client would log each failing probe as an error of its own.
	stdout, stderr, err := a.Runtime.ExecSync(klog.NewContext(ctx, klog.Logger{}), id, cmd, timeout)
	out := append(stdout, stderr...)
	var exit utilexec.ExitError
	if errors.As(err, &exit) {
		return out, exit.ExitStatus(), nil
	}
	if errors.Is(err, cri.ErrCommandTimedOut) {
		// The runtime's clock may strike before ours; both mean the same.
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return out, 0, err
}

// handlers knows what the runtime's handlers can do.
type handlers struct {
	ask func(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)

	mu   sync.Mutex
	what map[string]container.RuntimeFeatures
}

// refresh asks the runtime; what it does not say is taken as missing.
func (h *handlers) refresh(ctx context.Context) {
	st, err := h.ask(ctx, false)
	if err != nil {
		return
	}
	what := map[string]container.RuntimeFeatures{}
	for _, r := range st.GetRuntimeHandlers() {
		f := r.GetFeatures()
		what[r.GetName()] = container.RuntimeFeatures{
			RecursiveReadOnly: f.GetRecursiveReadOnlyMounts(), UserNamespaces: f.GetUserNamespaces(),
			SupplementalGroupsPolicy: st.GetFeatures().GetSupplementalGroupsPolicy(),
			MountOptions:             st.GetFeatures().GetMountOptions(),
		}
	}
	h.mu.Lock()
	h.what = what
	h.mu.Unlock()
}

func (h *handlers) of(name string) container.RuntimeFeatures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.what[name]
}

// newEventBroadcaster sends events to the API without ever making a pod wait.
func newEventBroadcaster(client kubernetes.Interface, k *kubeletv1beta1.KubeletConfiguration) record.EventBroadcaster {
	// What it remembers in order to count an event that comes again instead of
	// writing another: a few for each pod that fits. The
	// default of 4096 is memory that pods which come and go fill in an hour.
	b := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: max(512, 4*int(k.MaxPods))}))
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return b
}

func newRecorder(b record.EventBroadcaster, nodeName string) record.EventRecorder {
	return b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName})
}

// nodeDefaults fills in what Node settings leave open from the configuration.
func nodeDefaults(s *node.Settings, k *kubeletv1beta1.KubeletConfiguration) error {
	if s.Limits.MaxPods == 0 {
		s.Limits.MaxPods = 110
		if k.MaxPods > 0 {
			s.Limits.MaxPods = int64(k.MaxPods)
		}
	}
	if s.Limits.PodsPerCore == 0 {
		s.Limits.PodsPerCore = int64(k.PodsPerCore)
	}
	if s.Port == 0 {
		s.Port = k.Port
	}
	if s.MaxImages == 0 {
		s.MaxImages = 50
		if k.NodeStatusMaxImages != nil {
			s.MaxImages = int(*k.NodeStatusMaxImages)
		}
	}
	if s.Identity.ProviderID == "" {
		s.Identity.ProviderID = k.ProviderID
	}
	var err error
	if s.Reserved.System == nil {
		if s.Reserved.System, err = quantities("systemReserved", k.SystemReserved); err != nil {
			return err
		}
	}
	if s.Reserved.Kube == nil {
		if s.Reserved.Kube, err = quantities("kubeReserved", k.KubeReserved); err != nil {
			return err
		}
	}
	if err := s.Reserved.NameCPUs(k.ReservedSystemCPUs); err != nil {
		return err
	}
	if s.Reserved.EvictionHard == nil {
		s.Reserved.EvictionHard, err = node.EvictionReservation(k.EvictionHard)
	}
	return err
}

func quantities(field string, in map[string]string) (v1.ResourceList, error) {
	out := v1.ResourceList{}
	for name, text := range in {
		q, err := apiresource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("reading %s[%s] %q: %w", field, name, text, err)
		}
		out[v1.ResourceName(name)] = q
	}
	return out, nil
}

// rotateLogs keeps container logs within the configured bounds.
func (a *Agent) rotateLogs(ctx context.Context) error {
	k := a.Config.Kubelet
	cfg := logs.Config{MaxSize: 10 << 20, MaxFiles: 5, Workers: int(ptr.Deref(k.ContainerLogMaxWorkers, 1)), Log: a.Config.Log, Reopen: a.Runtime.ReopenContainerLog,
		Running: func() (out []logs.Log) {
			for _, c := range a.Watcher.Running() {
				if c.LogPath != "" {
					out = append(out, logs.Log{ContainerID: c.ID, Path: c.LogPath})
				}
			}
			return out
		},
	}
	if k.ContainerLogMaxSize != "" {
		q, err := apiresource.ParseQuantity(k.ContainerLogMaxSize)
		if err != nil {
			return fmt.Errorf("reading containerLogMaxSize %q: %w", k.ContainerLogMaxSize, err)
		}
		cfg.MaxSize = q.Value()
	}
	if k.ContainerLogMaxFiles != nil {
		cfg.MaxFiles = int(*k.ContainerLogMaxFiles)
	}
	if k.ContainerLogMonitorInterval != nil {
		cfg.Interval = k.ContainerLogMonitorInterval.Duration
	}
	return logs.Run(ctx, cfg)
}

// clearOrphans removes, once every source has told its pods, what volumes and
// cgroups are left of pods that nobody has. Pods that left a directory or
// something in the runtime are the pod manager's to clear.
func (a *Agent) clearOrphans(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-a.told:
	}
	for pause := time.Second; ; pause = min(2*pause, 5*time.Minute) {
		err := errors.Join(a.claims.Orphans(ctx, a.Pods.Has), a.Volumes.Orphans(ctx, a.Pods.Has), a.Cgroups.Orphans(ctx, a.Pods.Has))
		if err == nil || ctx.Err() != nil {
			return nil
		}
		a.Config.Log.Warn("clearing what is left of former pods", "err", err, "again", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}
