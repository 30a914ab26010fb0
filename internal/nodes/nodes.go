// Package nodes is the list of node controllers and what each is given. One
// list serves every role that runs them: up, server and controllers.
package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/controller"
	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/nodes/cloud"
	"github.com/berth-dev/berth/internal/nodes/eviction"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/nodes/ipam"
	"github.com/berth-dev/berth/internal/nodes/podgc"
	"github.com/berth-dev/berth/internal/nodes/route"
	"github.com/berth-dev/berth/internal/nodes/ttl"
	"github.com/berth-dev/berth/internal/supervise"
)

// DefaultKeepFinished is upstream's --terminated-pod-gc-threshold.
const DefaultKeepFinished = 12500

// Config is what the controllers need. Client, Informers, Log and Recorders are
// required; Journal and Metrics may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	// Clients, if set, makes what each controller writes with; reading is done
	// with Client.
	Clients controller.Clients
	// Recorders make the recorders of events; kube.NewRecorders makes one.
	Recorders controller.Recorders

	// Enabled selects controllers; nil means all. A controller that lacks what
	// it needs (CIDRs, a cloud) is left out all the same.
	Enabled controller.Enabled

	// Health are the rules; the zero value means upstream's.
	Health health.Settings
	// Board, if set, tells how nodes stand while the health controller runs.
	Board *health.Board
	// Ranges are split among the nodes; without any, no one gets pod CIDRs.
	// Nothing that overlaps Reserved is given out.
	Ranges   []ipam.Range
	Reserved []netip.Prefix
	// KeepFinished is how many finished pods stay; 0 keeps all.
	KeepFinished int
	// Cloud, if set, is followed.
	Cloud *Cloud
}

// Cloud is a provider and how to use it. Zero values mean upstream's defaults.
type Cloud struct {
	Provider         cloudprovider.Interface
	Limits           cloud.Limits
	Refresh, Monitor time.Duration
	Workers          int
	// Routes says whether to keep routes, for providers that have them;
	// ClusterName and ClusterCIDRs say whose they are.
	Routes       bool
	RoutePeriod  time.Duration
	ClusterName  string
	ClusterCIDRs []netip.Prefix
}

// Controller is one line of the list: an upstream name, and the function that
// is the controller. Run returns when ctx ends, or with what ended it.
type Controller struct {
	Name string
	Run  func(ctx context.Context) error
}

// events is what it takes to record events.
const events = "\ncreate,patch events"

// controllers is every node controller, in the order they start. Run is nil
// where the configuration has nothing for one to do.
func controllers(c *Config) []controller.Controller {
	return []controller.Controller{
		{Name: "node-ipam-controller", Alias: "nodeipam", Account: "node-controller", Watches: "nodes", Writes: "patch nodes" + events,
			Run: runIPAM(c)},
		{Name: "node-lifecycle-controller", Alias: "nodelifecycle", Account: "node-controller",
			Watches: "nodes pods leases.coordination.k8s.io",
			Reads:   "get nodes", Writes: "patch nodes nodes/status pods/status" + events,
			Run: func(ctx context.Context, e controller.Env) error {
				return health.Run(ctx, health.Config{Client: e.Client, Leases: e.Reader, Informers: e.Informers, Log: e.Log,
					Events:  e.Recorder("node-controller"),
					Journal: e.Journal, Metrics: e.Registerer, Settings: c.Health, Board: c.Board})
			}},
		{Name: "taint-eviction-controller", Account: "node-controller", Watches: "nodes pods", Reads: "get nodes pods",
			Writes: "patch pods/status\ndelete pods" + events, Run: eviction.Run},
		{Name: "pod-garbage-collector-controller", Alias: "podgc", Account: "pod-garbage-collector", Watches: "nodes pods",
			Reads:  "get nodes",
			Writes: "patch pods/status\ndelete pods", Run: func(ctx context.Context, e controller.Env) error {
				return podgc.Run(ctx, e,
					c.KeepFinished)
			}},
		{Name: "ttl-controller", Alias: "ttl", Account: "ttl-controller", Watches: "nodes", Writes: "patch nodes", Run: ttl.Run},
		{Name: "cloud-node-controller", Alias: "cloud-node", Account: "cloud-node-controller", Watches: "nodes",
			Writes: "patch nodes nodes/status" + events, Run: followCloud(c, cloud.RunNodes)},
		{Name: "cloud-node-lifecycle-controller", Alias: "cloud-node-lifecycle", Account: "cloud-node-controller", Watches: "nodes",
			Reads:  "get nodes",
			Writes: "patch,delete nodes" + events, Run: followCloud(c, cloud.RunLifecycle)},
		{Name: "node-route-controller", Alias: "route", Account: "route-controller", Watches: "nodes", Writes: "patch nodes/status" +
			events, Run: runRoutes(c)},
	}
}

func runIPAM(c *Config) func(context.Context, controller.Env) error {
	if len(c.Ranges) == 0 {
		return nil
	}
	return func(ctx context.Context, e controller.Env) error {
		return ipam.Run(ctx, e, ipam.Config{Ranges: c.Ranges, Reserved: c.Reserved})
	}
}

func followCloud(c *Config, run func(context.Context, controller.Env, cloud.Config) error) func(context.Context, controller.Env) error {
	if c.Cloud == nil {
		return nil
	}
	return func(ctx context.Context, e controller.Env) error {
		ask, err := cloud.NewAsker(c.Cloud.Provider, c.Cloud.Limits)
		if err != nil {
			return err
		}
		return run(ctx, e, cloud.Config{Ask: ask, Refresh: c.Cloud.Refresh, Monitor: c.Cloud.Monitor, Workers: c.Cloud.Workers})
	}
}

func runRoutes(c *Config) func(context.Context, controller.Env) error {
	if c.Cloud == nil || !c.Cloud.Routes {
		return nil
	}
	routes, ok := c.Cloud.Provider.Routes()
	if !ok {
		return nil
	}
	return func(ctx context.Context, e controller.Env) error {
		return route.Run(ctx, e, route.Config{Routes: routes, ClusterName: c.Cloud.ClusterName, ClusterCIDRs: c.Cloud.ClusterCIDRs,
			Period: c.Cloud.RoutePeriod})
	}
}

// List declares every node controller; what it returns does not run.
func List() []controller.Controller { return controllers(&Config{}) }

// Names lists the controllers in order.
func Names() []string {
	var out []string
	for _, c := range List() {
		out = append(out, c.Name)
	}
	return out
}

// Aliases maps the short names that old command lines use to the long ones.
func Aliases() map[string]string {
	out := map[string]string{}
	for _, c := range List() {
		if c.Alias != "" {
			out[c.Alias] = c.Name
		}
	}
	return out
}

// Controllers are those that are enabled and have something to do.
func Controllers(cfg Config) ([]Controller, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Log == nil || cfg.Recorders == nil {
		return nil, fmt.Errorf("node controllers: Client, Informers, Log and Recorders must be set")
	}
	if cfg.Cloud != nil {
		cfg.Cloud = cfg.Cloud.complete()
	}
	env := controller.Env{Client: cfg.Client, Informers: cfg.Informers, Log: cfg.Log, Journal: cfg.Journal, Registerer: cfg.Metrics,
		Recorders: cfg.Recorders}
	var out []Controller
	for _, c := range controllers(&cfg) {
		if c.Run != nil && (cfg.Enabled == nil || cfg.Enabled(c.Name)) {
			out = append(out, Controller{Name: c.Name, Run: c.Start(env, cfg.Clients)})
		}
	}
	return out, nil
}

// complete fills in upstream's defaults.
func (c Cloud) complete() *Cloud {
	if c.Limits == (cloud.Limits{}) {
		c.Limits = cloud.DefaultLimits
	}
	if c.Refresh <= 0 {
		c.Refresh = cloud.DefaultRefresh
	}
	if c.Monitor <= 0 {
		c.Monitor = cloud.DefaultMonitor
	}
	if c.Workers <= 0 {
		c.Workers = 1
	}
	if c.RoutePeriod <= 0 {
		c.RoutePeriod = route.DefaultPeriod
	}
	return &c
}

// Run runs the enabled controllers until ctx ends, or until one cannot go on
// for a reason that does not pass by itself.
func Run(ctx context.Context, cfg Config) error {
	controllers, err := Controllers(cfg)
	if err != nil {
		return err
	}
	var parts []supervise.Part
	for _, c := range controllers {
		parts = append(parts, supervise.Part{Name: c.Name, Run: c.Run})
	}
	return supervise.Run(ctx, cfg.Log, parts...)
}
