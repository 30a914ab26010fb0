// Package nodes is the list of node controllers and what each is given. One
// list serves every role that runs them: up, server and controllers.
package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/berth-dev/berth/internal/journal"
	"github.com/berth-dev/berth/internal/nodes/cloud"
	"github.com/berth-dev/berth/internal/nodes/eviction"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/nodes/ipam"
	"github.com/berth-dev/berth/internal/nodes/podgc"
	"github.com/berth-dev/berth/internal/nodes/route"
	"github.com/berth-dev/berth/internal/nodes/ttl"
)

// DefaultKeepFinished is upstream's --terminated-pod-gc-threshold.
const DefaultKeepFinished = 12500

// Config is what the controllers need. Client, Informers, Log and Events are
// required; Journal and Metrics may be nil.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	Log       *slog.Logger
	Journal   journal.Sink
	Metrics   prometheus.Registerer
	// ClientFor, if set, makes the client a controller writes with, from the
	// name of upstream's service account for it; reading is done with Client.
	ClientFor func(account string) (kubernetes.Interface, error)
	// Events makes a recorder for a component; kube.Events is one.
	Events func(component string) record.EventRecorder

	// Enable selects controllers as --controllers does: "*" is all, "name" adds
	// one, "-name" leaves one out; empty means all. A controller that lacks what
	// it needs (ranges, a cloud) is left out all the same.
	Enable []string

	// Health are the rules; the zero value means upstream's.
	Health health.Settings
	// Board, if set, tells how nodes stand while the health controller runs.
	Board *health.Board
	// Ranges are split among the nodes; without any, nobody gets pod CIDRs.
	// Nothing that overlaps Reserved is given out.
	Ranges   []ipam.Range
	Reserved []netip.Prefix
	// KeepFinished is how many finished pods stay; 0 keeps all.
	KeepFinished int
	// Cloud, if set, is followed.
	Cloud *Cloud

	// leases reads the nodes' leases, which a controller's own account may not.
	leases kubernetes.Interface
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

// entry is a line of the list before it has what it needs; run is nil where the
// configuration has nothing for it to do.
type entry struct {
	name, alias, account string
	run                  func(c *Config) func(context.Context) error
}

// list is every node controller, in the order they start.
var list = []entry{
	{"node-ipam-controller", "nodeipam", "node-controller", runIPAM},
	{"node-lifecycle-controller", "nodelifecycle", "node-controller", func(c *Config) func(context.Context) error {
		return func(ctx context.Context) error {
			return health.Run(ctx, health.Config{Client: c.Client, Leases: c.leases, Informers: c.Informers, Log: c.Log, Events: c.Events("node-controller"),
				Journal: c.Journal, Metrics: c.Metrics, Settings: c.Health, Board: c.Board})
		}
	}},
	{"taint-eviction-controller", "", "node-controller", func(c *Config) func(context.Context) error {
		return func(ctx context.Context) error {
			return eviction.Run(ctx, eviction.Config{Client: c.Client, Informers: c.Informers, Log: c.Log, Events: c.Events("taint-eviction-controller"),
				Journal: c.Journal, Metrics: c.Metrics})
		}
	}},
	{"pod-garbage-collector-controller", "podgc", "pod-garbage-collector", func(c *Config) func(context.Context) error {
		return func(ctx context.Context) error {
			return podgc.Run(ctx, podgc.Config{Client: c.Client, Informers: c.Informers, Log: c.Log, Journal: c.Journal, Metrics: c.Metrics, Keep: c.KeepFinished})
		}
	}},
	{"ttl-controller", "ttl", "ttl-controller", func(c *Config) func(context.Context) error {
		return func(ctx context.Context) error {
			return ttl.Run(ctx, ttl.Config{Client: c.Client, Informers: c.Informers, Log: c.Log})
		}
	}},
	{"cloud-node-controller", "cloud-node", "cloud-node-controller", func(c *Config) func(context.Context) error {
		return followCloud(c, "cloud-node-controller", cloud.RunNodes)
	}},
	{"cloud-node-lifecycle-controller", "cloud-node-lifecycle", "cloud-node-controller", func(c *Config) func(context.Context) error {
		return followCloud(c, "cloud-node-lifecycle-controller", cloud.RunLifecycle)
	}},
	{"node-route-controller", "route", "route-controller", runRoutes},
}

func runIPAM(c *Config) func(context.Context) error {
	if len(c.Ranges) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		return ipam.Run(ctx, ipam.Config{Client: c.Client, Informers: c.Informers, Ranges: c.Ranges, Reserved: c.Reserved, Log: c.Log,
			Events: c.Events("cidrAllocator"), Journal: c.Journal, Metrics: c.Metrics})
	}
}

func followCloud(c *Config, component string, run func(context.Context, cloud.Config) error) func(context.Context) error {
	if c.Cloud == nil {
		return nil
	}
	return func(ctx context.Context) error {
		ask, err := cloud.NewAsker(c.Cloud.Provider, c.Cloud.Limits)
		if err != nil {
			return err
		}
		return run(ctx, cloud.Config{Client: c.Client, Informers: c.Informers, Log: c.Log, Events: c.Events(component), Journal: c.Journal, Metrics: c.Metrics,
			Ask: ask, Refresh: c.Cloud.Refresh, Monitor: c.Cloud.Monitor, Workers: c.Cloud.Workers})
	}
}

func runRoutes(c *Config) func(context.Context) error {
	if c.Cloud == nil || !c.Cloud.Routes {
		return nil
	}
	routes, ok := c.Cloud.Provider.Routes()
	if !ok {
		return nil
	}
	return func(ctx context.Context) error {
		return route.Run(ctx, route.Config{Client: c.Client, Informers: c.Informers, Log: c.Log, Events: c.Events("route_controller"), Journal: c.Journal, Metrics: c.Metrics,
			Routes: routes, ClusterName: c.Cloud.ClusterName, ClusterCIDRs: c.Cloud.ClusterCIDRs, Period: c.Cloud.RoutePeriod})
	}
}

// Names lists the controllers in order.
func Names() []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.name
	}
	return out
}

// Aliases maps the short names that old command lines use to the long ones.
func Aliases() map[string]string {
	out := map[string]string{}
	for _, e := range list {
		if e.alias != "" {
			out[e.alias] = e.name
		}
	}
	return out
}

// Controllers are those that are enabled and have something to do.
func Controllers(cfg Config) ([]Controller, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Log == nil || cfg.Events == nil {
		return nil, fmt.Errorf("node controllers: Client, Informers, Log and Events must be set")
	}
	if cfg.Journal == nil {
		cfg.Journal = journal.Discard
	}
	if cfg.Cloud != nil {
		cfg.Cloud = cfg.Cloud.complete()
	}
	on, err := enabled(cfg.Enable)
	if err != nil {
		return nil, err
	}
	var out []Controller
	for _, e := range list {
		if !on[e.name] {
			continue
		}
		c := cfg
		c.Log = cfg.Log.With("controller", e.name)
		c.leases = cfg.Client
		if cfg.ClientFor != nil {
			if c.Client, err = cfg.ClientFor(e.account); err != nil {
				return nil, fmt.Errorf("%s: making its client: %w", e.name, err)
			}
		}
		if run := e.run(&c); run != nil {
			out = append(out, Controller{Name: e.name, Run: run})
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

// enabled applies the selection; of several words about one controller the
// first counts, as upstream.
func enabled(selection []string) (map[string]bool, error) {
	names, aliases := Names(), Aliases()
	all := len(selection) == 0 || slices.Contains(selection, "*")
	on := map[string]bool{}
	for _, s := range selection {
		n, off := strings.CutPrefix(s, "-")
		if long, ok := aliases[n]; ok {
			n = long
		}
		if s == "*" {
			continue
		}
		if !slices.Contains(names, n) {
			return nil, fmt.Errorf("--controllers: %q is not one of %s", n, strings.Join(names, ", "))
		}
		if _, said := on[n]; !said {
			on[n] = !off
		}
	}
	for _, n := range names {
		if _, said := on[n]; !said {
			on[n] = all
		}
	}
	return on, nil
}

// Run runs the enabled controllers until ctx ends, or until one cannot go on
// for a reason that does not pass by itself.
func Run(ctx context.Context, cfg Config) error {
	controllers, err := Controllers(cfg)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, c := range controllers {
		group.Go(func() error {
			if err := c.Run(ctx); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}
