package launch

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/proxy"
	"github.com/berth-dev/berth/internal/proxy/config"
)

// Process is what a proxy gets from the process that it runs in: one of its own
// or one with other roles. See proxy.Config for what may be left out.
type Process struct {
	NodeName, Instance string
	// BridgeName is the bridge this node's pods hang on, if there is one.
	BridgeName string
	Client     kubernetes.Interface
	Informers  informers.SharedInformerFactory
	Nodes      cache.SharedIndexInformer
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	Journal    journal.Sink
	Tracer     *proxy.Tracer
	Flags      map[string]string
	Synced     func()
}

// RunIn prepares the host as configured and runs the proxy until ctx ends. The
// configuration must have its defaults.
func RunIn(ctx context.Context, p Process, c *config.KubeProxyConfiguration) error {
	prepare(c, p.Log, "/")
	return proxy.Run(ctx, build(p, c))
}

// build makes the proxy's configuration; it is the only place that does.
func build(p Process, c *config.KubeProxyConfiguration) proxy.Config {
	return proxy.Config{
		NodeName: p.NodeName, Client: p.Client, Informers: p.Informers, Nodes: p.Nodes, Instance: p.Instance, BridgeName: p.BridgeName,
		HealthzBind: config.ListenOn(c.HealthzBindAddress), MetricsBind: config.ListenOn(c.MetricsBindAddress),
		Config: c, Log: p.Log, Metrics: p.Metrics, Journal: p.Journal, Synced: p.Synced, Tracer: p.Tracer, Flags: p.Flags,
	}
}
