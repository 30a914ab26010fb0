package agent

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/agent/network"
	"github.com/berth-dev/berth/internal/agent/node"
	"github.com/berth-dev/berth/internal/agent/pod"
	"github.com/berth-dev/berth/internal/agent/runtime"
	"github.com/berth-dev/berth/internal/agent/telemetry"
	"github.com/berth-dev/berth/internal/podutil"
)

// base is what all parts stand on. It is complete before the first of them is
// made, and never changes.
type base struct {
	*Config
	runtime     runtime.Service
	images      runtime.ImageService
	runtimeName string
	exec        runtime.ExecFunc
	hostInfo    *node.HostInfo
	board       *node.StatusInputs
	view        *node.View
	events      telemetry.Events
	tracer      trace.TracerProvider // nil: nothing is traced
	register    func(...prometheus.Collector)
	// pods reach the pods before there is a manager of them.
	pods *pod.Signals
	// told is closed once every source has delivered its pods.
	told chan struct{}
}

// openBase connects to the runtime and gathers what all parts need. The returned
// function closes what was opened, also after an error.
func openBase(ctx context.Context, cfg *Config) (b *base, closeAll func(), err error) {
	var closers []func()
	closeAll = func() {
		for i := len(closers) - 1; i >= 0; i-- {
			closers[i]()
		}
	}
	b = &base{Config: cfg, board: node.NewStatusInputs(), pods: &pod.Signals{}, told: make(chan struct{}),
		register: telemetry.Registrar(cfg.Metrics, cfg.Log)}
	b.view = newView(cfg, b.board)
	var stop func()
	if b.tracer, stop, err = telemetry.Trace(ctx, cfg.Kubelet.Tracing, cfg.nodeName(), cfg.Log); err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, stop)
	if b.runtime, b.images, err = runtime.Connect(ctx, runtime.ConnectConfig{
		Endpoint: cfg.Kubelet.ContainerRuntimeEndpoint, ImageEndpoint: cfg.Kubelet.ImageServiceEndpoint,
		RequestTimeout: cfg.Kubelet.RuntimeRequestTimeout.Duration, Log: cfg.Log, Tracer: b.tracer,
	}); err != nil {
		return nil, closeAll, err
	}
	var counted []prometheus.Collector
	b.runtime, b.images, counted = runtime.Measure(b.runtime, b.images)
	b.register(counted...)
	closers = append(closers, func() {
		_ = b.runtime.Close(context.Background())
		_ = b.images.Close(context.Background())
	})
	b.exec = runtime.Exec(b.runtime)
	b.events = telemetry.Events{EventRecorder: cfg.API.Events, NodeName: cfg.nodeName()}
	if cfg.API.Events == nil {
		b.events, stop = telemetry.NewEvents(cfg.API.Client, cfg.Kubelet, cfg.nodeName())
		closers = append(closers, stop)
	}
	if b.hostInfo, err = node.ReadHostInfo("/"); err != nil {
		return nil, closeAll, fmt.Errorf("reading the host: %w", err)
	}
	version, err := b.runtime.Version(ctx, "0.1.0")
	if err != nil {
		return nil, closeAll, fmt.Errorf("asking the runtime's version: %w", err)
	}
	b.runtimeName = version.GetRuntimeName()
	return b, closeAll, nil
}

// newView is this node as others see it, with the pod network's configuration
// behind it.
func newView(cfg *Config, board *node.StatusInputs) *node.View {
	var ask func(context.Context) (*v1.Node, error)
	if client := cfg.API.Client; client != nil {
		ask = func(ctx context.Context) (*v1.Node, error) {
			return client.CoreV1().Nodes().Get(ctx, cfg.nodeName(), metav1.GetOptions{})
		}
	}
	view := node.NewView(cfg.Node.Identity.KnownIPs(), ask)
	view.OnChange(func(n *v1.Node) {
		cidrs := podutil.PodCIDRs(n)
		if cfg.Network.ConfDir == "" || len(cidrs) == 0 {
			return
		}
		if err := network.WriteCNI(cfg.Network.ConfDir, cidrs, cfg.Network.CNI); err != nil {
			cfg.Log.Error("writing the pod network's configuration", "err", err)
			return
		}
		board.ProbeRuntime()
	})
	if cfg.OnNode != nil {
		view.OnChange(cfg.OnNode)
	}
	return view
}
