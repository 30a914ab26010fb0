package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/metadata"

	"github.com/berth-dev/berth/internal/control/schedule"
	"github.com/berth-dev/berth/internal/control/workload"
	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/kube"
	"github.com/berth-dev/berth/internal/nodes"
	nodeslaunch "github.com/berth-dev/berth/internal/nodes/launch"
	"github.com/berth-dev/berth/internal/supervise"
)

// controllers are those that --controllers may name.
func controllers() []controller.Controller { return slices.Concat(nodes.List(), workload.List()) }

// startControllers runs the scheduler and the controllers on the cluster's own
// client and one set of informers.
func (u *up) startControllers(context.Context) error {
	log, err := u.logs.part("controllers")
	if err != nil {
		return err
	}
	schedLog, err := u.logs.part("scheduler")
	if err != nil {
		return err
	}
	registry, life := u.metrics, u.parts.Context()
	as := controller.Acting(u.api.As)
	enabled, err := controller.Choose(u.Controllers, controllers()...)
	if err != nil {
		return err
	}
	nodesConfig, watchCloud, err := u.nodeOptions(enabled).Build(life, nodeslaunch.Shared{
		Client: u.client, Informers: u.informers, Log: log, Journal: u.journal, Metrics: registry,
		Recorders: kube.NewRecorders(life), Clients: as, Board: &u.board,
	})
	if err != nil {
		return err
	}
	if watchCloud != nil {
		u.keep("machine inventory", watchCloud)
	}
	nodeControllers, err := nodes.Controllers(nodesConfig)
	if err != nil {
		return err
	}
	controllers, err := u.workloadConfig(log, registry)
	if err != nil {
		return err
	}
	controllers.Enabled, controllers.Clients = enabled, as
	var deciders []supervise.Part
	for _, c := range nodeControllers {
		deciders = append(deciders, supervise.Part{Name: c.Name, Run: c.Run, Restart: supervise.Always})
	}
	deciders = append(deciders,
		supervise.Part{Name: "scheduler", Restart: supervise.Always, Run: schedule.Controller(schedule.Config{
			Client: u.client, Informers: u.informers, Log: schedLog, Journal: u.journal, Metrics: registry,
		}).Start(controller.Env{Client: u.client, Informers: u.informers, Log: schedLog}, as)},
		supervise.Part{Name: "controllers", Restart: supervise.Always, Run: func(ctx context.Context) error {
			return workload.Run(ctx, controllers)
		}})
	applier, err := u.manifestsPart()
	if err != nil {
		return err
	}
	u.startDeciders(log, append(deciders, applier...))
	return nil
}

// nodeOptions is the command line that `berth controllers` would have in this
// cluster.
func (c *Config) nodeOptions(enabled controller.Enabled) *nodeslaunch.Options {
	o := nodeslaunch.NewOptions()
	o.Health = c.NodeHealth
	o.Generic.Controllers = nil
	for _, name := range nodes.Names() {
		if !enabled(name) {
			name = "-" + name
		}
		o.Generic.Controllers = append(o.Generic.Controllers, name)
	}
	o.Shared.AllocateNodeCIDRs, o.Shared.ClusterCIDR, o.ServiceRange = true, c.ClusterCIDR, c.ServiceCIDR
	o.Shared.CloudProvider.Name, o.Shared.CloudProvider.CloudConfigFile = c.CloudProvider, c.CloudConfig
	return o
}

// startDeciders runs what only one server of a cluster may run: at once where
// the store is this server's own (it is alone then, and a restart must not wait
// for the lease of its last life), and while it leads where the store is shared.
func (u *up) startDeciders(log *slog.Logger, deciders []supervise.Part) {
	if u.store.Embedded() {
		u.parts.Start(deciders...)
		return
	}
	election := kube.Election{
		Client: u.client, Namespace: metav1.NamespaceSystem, Name: "berth-server", Identity: u.NodeName + "_" + string(uuid.NewUUID()),
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Log: log, Events: kube.Events(u.parts.Context(), u.client)("berth-server"),
	}
	u.keep("leader election", func(ctx context.Context) error {
		return kube.Lead(ctx, election, func(ctx context.Context) error { return supervise.Run(ctx, u.log, deciders...) })
	})
}

// workloadConfig gives the workload controllers the cluster's client and CA.
func (u *up) workloadConfig(log *slog.Logger, metrics prometheus.Registerer) (workload.Config, error) {
	cfg := workload.Config{Client: u.client, Discovery: u.client.Discovery(), Informers: u.informers, Log: log, Journal: u.journal,
		Metrics: metrics}
	var err error
	if cfg.Metadata, err = metadata.NewForConfig(u.admin); err != nil {
		return cfg, fmt.Errorf("making the controllers' client: %w", err)
	}
	if cfg.RootCA, err = os.ReadFile(u.files.CA.Cert); err != nil {
		return cfg, fmt.Errorf("reading the cluster's CA: %w", err)
	}
	cfg.SigningCert, cfg.SigningMost = cfg.RootCA, u.CertificateLife
	if cfg.SigningKey, err = os.ReadFile(u.files.CA.Key); err != nil {
		return cfg, fmt.Errorf("reading the key of the cluster's CA: %w", err)
	}
	cfg.NoLoadBalancer = u.LoadBalancer == LoadBalancerNone
	if cfg.LoadBalancer, err = u.balancerConfig(); err != nil {
		return cfg, err
	}
	return cfg, u.servingConfig(&cfg)
}
