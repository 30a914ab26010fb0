package launch

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/nodes"
	"github.com/berth-dev/berth/internal/nodes/cloud"
	"github.com/berth-dev/berth/internal/nodes/cloud/inventory"
	"github.com/berth-dev/berth/internal/nodes/health"
)

// Shared is what the controllers get from the process that they run in: one of
// their own or one with other roles. See nodes.Config for what may be left out.
type Shared struct {
	Client    kubernetes.Interface
	Clients   controller.Clients
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	Recorders controller.Recorders
	Board     *health.Board
}

// Build makes the controllers' configuration from the command line; it is the
// only place that does. watch, if not nil, keeps the list of the cloud's
// hosts up to date and must run beside the controllers.
func (o *Options) Build(ctx context.Context, s Shared) (cfg nodes.Config, watch func(context.Context) error, err error) {
	ranges, reserved, err := o.Ranges()
	if err != nil {
		return cfg, nil, err
	}
	enabled, err := controller.Choose(o.Generic.Controllers, nodes.List()...)
	if err != nil {
		return cfg, nil, err
	}
	cfg = nodes.Config{
		Client: s.Client, Clients: s.Clients, Informers: s.Informers, Log: s.Log, Journal: s.Journal, Metrics: s.Metrics,
		Recorders: s.Recorders,
		Enabled:   enabled, Health: o.Health, Board: s.Board, Ranges: ranges, Reserved: reserved, KeepFinished: o.KeepFinished,
	}
	given := o.Shared.CloudProvider
	switch given.Name {
	case "", "external":
		return cfg, nil, nil
	case inventory.Name:
	default:
		return cfg, nil, fmt.Errorf("--cloud-provider %q: not built in; allowed are %q, external and the empty one", given.Name,
			inventory.Name)
	}
	provider, err := inventory.Open(ctx, given.CloudConfigFile, s.Log)
	if err != nil {
		return cfg, nil, fmt.Errorf("--cloud-config: %w", err)
	}
	limits := cloud.DefaultLimits
	limits.Rate = o.CloudRate
	cfg.Cloud = &nodes.Cloud{
		Provider: provider, Limits: limits, Refresh: o.Refresh, Monitor: o.MonitorPeriod, Workers: o.Syncs,
		Routes:      o.Shared.AllocateNodeCIDRs && o.Shared.ConfigureCloudRoutes,
		RoutePeriod: o.Shared.RouteReconciliationPeriod.Duration, ClusterName: o.Shared.ClusterName,
	}
	for _, r := range ranges {
		cfg.Cloud.ClusterCIDRs = append(cfg.Cloud.ClusterCIDRs, r.Cluster)
	}
	return cfg, provider.Run, nil
}
