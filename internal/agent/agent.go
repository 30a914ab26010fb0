// Package agent is the node agent: it wires the parts below it, each of which
// does one job, into one role.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/berth-dev/berth/internal/agent/device"
	"github.com/berth-dev/berth/internal/agent/dra"
	"github.com/berth-dev/berth/internal/agent/image"
	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/plugins"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/pressure"
	"github.com/berth-dev/berth/internal/agent/probe"
	"github.com/berth-dev/berth/internal/agent/resource"
	"github.com/berth-dev/berth/internal/agent/resource/assign"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/serve"
	"github.com/berth-dev/berth/internal/agent/shutdown"
	"github.com/berth-dev/berth/internal/agent/source"
	"github.com/berth-dev/berth/internal/agent/stats"
	"github.com/berth-dev/berth/internal/agent/userns"
	"github.com/berth-dev/berth/internal/agent/volume"
	"github.com/berth-dev/berth/internal/journal"
)

// GuardFunc makes a pod with these addresses safe to run.
type GuardFunc func(ctx context.Context, pod *v1.Pod, ips []string) error

// Config is what the agent runs with. NodeName, RuntimeEndpoint, RootDir,
// Kubelet and Log are required.
type Config struct {
	// NodeName is the Node this agent is.
	NodeName string
	// Client is the API; nil runs static pods alone. It should have no limit on
	// its request rate: the agent bounds itself, and a limit would delay pods.
	Client kubernetes.Interface
	// Leases should have a connection of its own; nil uses Client.
	Leases coordination.LeasesGetter
	// Informers is shared with other roles of the process; nil makes its own.
	Informers informers.SharedInformerFactory
	// RuntimeEndpoint is the CRI socket; ImageEndpoint, where it differs, that
	// of the image service.
	RuntimeEndpoint, ImageEndpoint string
	// RootDir holds pods, volumes and checkpoints.
	RootDir string
	// PodLogsDir holds the pods' logs; empty takes it from Kubelet.
	PodLogsDir string
	// LogLinkDir gets a link per container log (/var/log/containers); empty for
	// none.
	LogLinkDir string
	// Kubelet is the effective configuration with defaults filled in.
	Kubelet *kubeletv1beta1.KubeletConfiguration

	// Node shapes the Node object; its identity's name is set from NodeName.
	Node node.Settings
	// ClientCertificate is what the agent shows to the API server, for the
	// metric of its lifetime; may be nil.
	ClientCertificate func() *tls.Certificate
	// Register is false when somebody else makes the Node object.
	Register bool
	// NodeIPs are addresses to use until the Node object has some.
	NodeIPs []string
	// PodCIDRs are the node's pod ranges until the Node object has some.
	PodCIDRs []string
	// CNIConfDir, when set, gets a bridge network made from the pod range.
	CNIConfDir string
	CNI        network.CNIOptions
	// Guard, if set, is called with a pod's addresses before each of its
	// containers starts; an error puts the start off.
	Guard GuardFunc
	// Masked paths and the like: see container.NodeSettings.
	AppArmor bool

	// TLS serves the agent's API on Kubelet's port; nil serves none.
	TLS *tls.Config
	// Serve completes the API's configuration: stats, gatherers, listeners.
	Serve serve.Config
	// Admit are further opinions on whether a pod may run here.
	Admit []AdmitFunc
	// Resizable are opinions on whether a running pod, as it would be, may have
	// other resources at all; a refusal is for good (Infeasible).
	Resizable []AdmitFunc
	// Plugins handles types of plugins besides storage drivers, by type.
	Plugins map[string]plugins.Handler
	// DeadContainers bounds which dead containers stay; nil keeps one of each.
	DeadContainers *pressure.ContainerLimits
	// RuntimeCgroup is the runtime's, shown in stats; empty shows none.
	RuntimeCgroup string
	// System delays and announces the machine's shutdown; nil is systemd-logind.
	System shutdown.System
	// CredentialProviders is the configuration of credential provider plugins, a
	// file or directory, and CredentialProviderDir where the plugins are; empty
	// for none.
	CredentialProviders, CredentialProviderDir string
	// Parts are further roles that work on the agent's own view (eviction,
	// garbage collection); they run until the context ends.
	Parts []func(ctx context.Context, a *Agent) error

	Log     *slog.Logger
	Metrics prometheus.Registerer
	Journal journal.Sink
	// OnNode, if set, is told of every new state of the Node object.
	OnNode func(*v1.Node)
	// Events records events; nil makes a recorder on Client.
	Events record.EventRecorder
}

func (c *Config) complete() error {
	switch {
	case c.NodeName == "" || c.RuntimeEndpoint == "" || c.RootDir == "" || c.Kubelet == nil || c.Log == nil:
		return errors.New("configuring the agent: NodeName, RuntimeEndpoint, RootDir, Kubelet and Log are required")
	}
	if c.Journal == nil {
		c.Journal = journal.Discard
	}
	if c.DeadContainers == nil {
		c.DeadContainers = &pressure.ContainerLimits{PerContainer: 1, Total: -1}
	}
	if c.PodLogsDir == "" {
		c.PodLogsDir = c.Kubelet.PodLogsDir
	}
	if c.PodLogsDir == "" {
		c.PodLogsDir = "/var/log/pods"
	}
	c.Node.Identity.Name = c.NodeName
	if err := nodeDefaults(&c.Node, c.Kubelet); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Join(c.RootDir, "pods"), c.PodLogsDir, c.LogLinkDir} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("making the agent's directories: %w", err)
		}
	}
	return nil
}

// Agent is what the parts of a running agent see of each other.
type Agent struct {
	Config  Config
	Runtime runtime.Service
	Images  runtime.ImageService
	Watcher *runtime.Watcher
	Pods    *pod.Manager
	Volumes *volume.Manager
	Cgroups *resource.Cgroups
	Puller  *image.Puller
	Drivers *volume.Drivers
	Board   *node.Board
	Stats   *stats.Provider
	Events  record.EventRecorder
	// Node returns the Node as last seen, nil before that.
	Node func() *v1.Node

	view     *nodeView
	configs  *configs
	imageSet *imageSet
	prober   *probe.Prober
	probes   *prometheus.Registry
	features *handlers

	collector   *pressure.Collector
	shutdown    *shutdown.Manager // nil if graceful shutdown is off
	devices     *device.Manager
	assigned    *assign.Manager
	claims      *dra.Manager
	tracer      trace.TracerProvider // nil: nothing is traced
	sourcesTold atomic.Bool
	told        chan struct{} // closed when sourcesTold is set
	pressed     atomic.Pointer[node.Pressure]
	users       *userns.Ranges
	// nodeSeen closes when the Node object is first seen.
	nodeSeen chan struct{}
}

// Run runs the agent until ctx ends. Containers go on running after it and are
// found again by the next one.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.complete(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &Agent{Config: cfg, Board: node.NewBoard(), view: newNodeView(cfg.NodeIPs), nodeSeen: make(chan struct{}), told: make(chan struct{})}
	a.Node = a.view.get
	a.view.on = append(a.view.on, a.writeCNI)
	if cfg.OnNode != nil {
		a.view.on = append(a.view.on, cfg.OnNode)
	}
	a.firstCNI()
	stopTracing, err := a.startTracing(ctx)
	if err != nil {
		return err
	}
	defer stopTracing()
	if a.Runtime, a.Images, err = runtime.Connect(ctx, runtime.ConnectConfig{
		Endpoint: cfg.RuntimeEndpoint, ImageEndpoint: cfg.ImageEndpoint, RequestTimeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Log: cfg.Log, Tracer: a.tracer,
	}); err != nil {
		return err
	}
	var counted []prometheus.Collector
	a.Runtime, a.Images, counted = runtime.Measure(a.Runtime, a.Images)
	a.register(counted...)
	defer func() {
		_ = a.Runtime.Close(context.Background())
		_ = a.Images.Close(context.Background())
	}()
	stopEvents := a.startEvents()
	defer stopEvents()
	if err := a.build(ctx); err != nil {
		return err
	}
	defer a.Volumes.Close()
	if err := a.buildUpkeep(ctx); err != nil {
		return err
	}
	return a.run(ctx, cancel)
}

// part is one long-running part of the agent.
type part struct {
	name string
	run  func(context.Context) error
}

// parts is everything that runs, in one list.
func (a *Agent) parts() []part {
	cfg := &a.Config
	list := []part{
		{"runtime watcher", a.Watcher.Run},
		{"volumes", a.Volumes.Run},
		{"plugins", a.runPlugins},
		{"probes", a.prober.Run},
		{"pods", a.Pods.Run},
		{"log rotation", a.rotateLogs},
		{"orphans", a.clearOrphans},
		{"sources", func(ctx context.Context) error { return source.Run(ctx, a.sourceConfig()) }},
		{"eviction", func(ctx context.Context) error { return pressure.Run(ctx, a.pressureConfig()) }},
	}
	list = append(list, part{"device plugins", a.devices.Run}, part{"pod resources", a.servePodResources}, part{"resource drivers", a.claims.Run})
	if pinning(cfg.Kubelet) {
		list = append(list, part{"processors", a.followResources})
	}
	if a.shutdown != nil {
		list = append(list, part{"graceful shutdown", a.shutdown.Run})
	}
	if cfg.Client != nil {
		list = append(list, part{"node", func(ctx context.Context) error { return node.Run(ctx, a.nodeConfig()) }},
			part{"storage announcement", a.announceStorage})
	}
	if cfg.TLS != nil {
		list = append(list, part{"api", func(ctx context.Context) error { return serve.Run(ctx, a.serveConfig()) }})
	}
	for i, f := range cfg.Parts {
		list = append(list, part{fmt.Sprintf("part %d", i), func(ctx context.Context) error { return f(ctx, a) }})
	}
	return list
}

// run runs all parts; the first that ends with an error of its own ends all.
func (a *Agent) run(ctx context.Context, cancel context.CancelFunc) error {
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for _, p := range a.parts() {
		wg.Go(func() {
			err := p.run(ctx)
			if err != nil && ctx.Err() == nil {
				once.Do(func() { first = fmt.Errorf("running the agent's %s: %w", p.name, err) })
				cancel()
			}
		})
	}
	wg.Wait()
	if first != nil {
		return first
	}
	return ctx.Err()
}

// startEvents makes the recorder unless there is one.
func (a *Agent) startEvents() (stop func()) {
	if a.Config.Events != nil {
		a.Events = a.Config.Events
		return func() {}
	}
	if a.Config.Client == nil {
		a.Events = &record.FakeRecorder{}
		return func() {}
	}
	b := newEventBroadcaster(a.Config.Client, a.Config.Kubelet)
	a.Events = newRecorder(b, a.Config.NodeName)
	return b.Shutdown
}

// firstCNI writes the network from the ranges that are known before the Node.
func (a *Agent) firstCNI() {
	if len(a.Config.PodCIDRs) > 0 {
		a.writeCNI(&v1.Node{Spec: v1.NodeSpec{PodCIDRs: a.Config.PodCIDRs}})
	}
}

// writeCNI keeps the pod network's configuration as the Node's range says.
func (a *Agent) writeCNI(n *v1.Node) {
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	if a.Config.CNIConfDir == "" || len(cidrs) == 0 {
		return
	}
	if err := network.WriteCNI(a.Config.CNIConfDir, cidrs, a.Config.CNI); err != nil {
		a.Config.Log.Error("writing the pod network's configuration", "err", err)
		return
	}
	a.Board.ProbeRuntime()
}

func (a *Agent) sourceConfig() source.Config {
	k := a.Config.Kubelet
	header := http.Header{}
	for name, values := range k.StaticPodURLHeader {
		header[http.CanonicalHeaderKey(name)] = values
	}
	return source.Config{
		NodeName: a.Config.NodeName, Client: a.Config.Client, Node: a.view.uid, NodeReady: a.view.ready, Ending: a.Pods.Left,
		Path: k.StaticPodPath, PathPeriod: k.FileCheckFrequency.Duration, URL: k.StaticPodURL, Header: header, URLPeriod: k.HTTPCheckFrequency.Duration,
		StatePath: filepath.Join(a.Config.RootDir, "static_pods_state"), Runtime: a.Runtime,
		Sink: &toldSink{Manager: a.Pods, told: &a.sourcesTold, then: a.told}, Recorder: a.Events, Log: a.Config.Log,
	}
}

func (a *Agent) nodeConfig() node.Config {
	return node.Config{
		Log: a.Config.Log, Client: a.Config.Client, Leases: a.Config.Leases, Runtime: a.Runtime, Images: a.Images, Board: a.Board,
		Events: a.Events, Journal: a.Config.Journal, Metrics: a.Config.Metrics, Settings: a.Config.Node, Register: a.Config.Register,
		RootDir: a.Config.RootDir, ReportEvery: a.Config.Kubelet.NodeStatusReportFrequency.Duration,
		UpdateEvery: a.Config.Kubelet.NodeStatusUpdateFrequency.Duration, LeaseSeconds: a.Config.Kubelet.NodeLeaseDurationSeconds,
		OnNode: a.view.set,
	}
}

func (a *Agent) serveConfig() serve.Config {
	s := a.Config.Serve
	s.Log, s.NodeName, s.Kubelet, s.Client, s.TLS = a.Config.Log, a.Config.NodeName, a.Config.Kubelet, a.Config.Client, a.Config.TLS
	s.Pods, s.Runtime, s.RootDir = podsView{a}, a.Runtime, a.Config.RootDir
	s.Tracer = a.tracer
	if s.Metrics == nil {
		s.Metrics = a.Config.Metrics
	}
	if s.Probes == nil {
		s.Probes = a.probes
	}
	if s.Stats == nil {
		s.Stats = a.Stats
	}
	s.Checks = append(s.Checks, serve.Check{Name: "syncloop", Check: a.Watcher.Healthy})
	return s
}

// podsView is the pods as the API shows them.
type podsView struct{ a *Agent }

// List returns all pods with their present status.
func (v podsView) List() []*v1.Pod { return v.a.Pods.List() }

// Get returns one pod by name.
func (v podsView) Get(namespace, name string) (*v1.Pod, bool) {
	return v.a.Pods.GetByName(namespace, name)
}

// Exited returns a channel that is closed once the container does not run.
func (v podsView) Exited(ctx context.Context, id string) <-chan struct{} {
	return v.a.Watcher.Exited(ctx, id)
}

// services makes sure that the services are watched and returns how to wait
// for the first list of them.
func (a *Agent) services(ctx context.Context, c *configs) {
	if a.Config.Client == nil {
		return
	}
	factory := a.Config.Informers
	if factory == nil {
		factory = informers.NewSharedInformerFactory(a.Config.Client, 0)
	}
	s := factory.Core().V1().Services()
	synced := s.Informer().HasSyncedChecker()
	c.services = s.Lister()
	c.servicesSynced = func(ctx context.Context) error {
		if cache.IsDone(synced) {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		if !cache.WaitFor(ctx, "", synced) {
			return ctx.Err()
		}
		return nil
	}
	factory.Start(ctx.Done())
}

// event reports an event about a pod or one of its containers.
func (a *Agent) event(p *v1.Pod, containerName, kind, why, message string) {
	a.Events.Event(pod.Reference(p, containerName), kind, why, message)
}

func (a *Agent) wakePod(uid types.UID) { a.Pods.Retry(uid) }
