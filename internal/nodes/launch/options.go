// Package launch runs the node controllers as a process of their own against
// any API server: the flags of kube-controller-manager and
// cloud-controller-manager for them, leader election, and the HTTPS port.
package launch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/server/options"
	cpconfig "k8s.io/cloud-provider/config"
	cpoptions "k8s.io/cloud-provider/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/metrics"
	cmconfig "k8s.io/controller-manager/config"
	cmoptions "k8s.io/controller-manager/options"

	"github.com/berth-dev/berth/internal/nodes"
	"github.com/berth-dev/berth/internal/nodes/cloud"
	"github.com/berth-dev/berth/internal/nodes/health"
	"github.com/berth-dev/berth/internal/nodes/ipam"
	"github.com/berth-dev/berth/internal/nodes/route"
)

// Ports and names of upstream's, and the lease that is ours: anyone who runs these
// controllers beside an upstream controller manager must not wait for its lease.
const (
	securePort = 10257
	leaseName  = "berth-controllers"
)

// Options are the command line.
type Options struct {
	Generic      *cmoptions.GenericControllerManagerConfigurationOptions
	Shared       *cpoptions.KubeCloudSharedOptions
	Serving      *options.SecureServingOptions
	Authenticate *options.DelegatingAuthenticationOptions
	Authorize    *options.DelegatingAuthorizationOptions
	Metrics      *metrics.Options
	Health       health.Settings
	addressOptions
	cloudOptions
	KeepFinished       int
	Kubeconfig, Master string
	DataDir            string
	Verbosity          int
	LogFormat          string
	flush              time.Duration
	// set is the command line itself, for /flagz; nil is none.
	set *pflag.FlagSet
}

// addressOptions are for the controller that gives nodes their pod CIDRs: the
// Service CIDRs, and mask sizes of pod CIDRs; 0 means the default.
type addressOptions struct {
	ServiceRange       string
	Mask, Mask4, Mask6 int
}

// cloudOptions are for the controllers that ask the cloud. Updates and
// lifecycleSyncs are accepted and change nothing.
type cloudOptions struct {
	MonitorPeriod, Refresh         time.Duration
	Syncs, Updates, lifecycleSyncs int
	CloudRate                      float32
}

// NewOptions are the defaults: upstream's, but for the lease's name and the
// client's rate, which nothing limits here: a thousand dead nodes are a
// thousand writes, and the server knows better what it bears.
func NewOptions() *Options {
	generic := &cmconfig.GenericControllerManagerConfiguration{Controllers: []string{"*"}}
	generic.MinResyncPeriod.Duration = 12 * time.Hour
	generic.ClientConnection.ContentType = "application/vnd.kubernetes.protobuf"
	generic.ClientConnection.QPS, generic.ClientConnection.Burst = -1, 30
	le := &generic.LeaderElection
	le.LeaderElect, le.ResourceLock, le.ResourceNamespace, le.ResourceName = true, "leases", "kube-system", leaseName
	le.LeaseDuration.Duration, le.RenewDeadline.Duration, le.RetryPeriod.Duration = 15*time.Second, 10*time.Second, 2*time.Second
	shared := &cpconfig.KubeCloudSharedConfiguration{ClusterName: "kubernetes"}
	shared.RouteReconciliationPeriod.Duration = route.DefaultPeriod
	o := &Options{
		Generic: cmoptions.NewGenericControllerManagerConfigurationOptions(generic), Shared: cpoptions.NewKubeCloudSharedOptions(shared),
		Serving: options.NewSecureServingOptions(), Authenticate: options.NewDelegatingAuthenticationOptions(),
		Authorize: options.NewDelegatingAuthorizationOptions(),
		Metrics:   metrics.NewOptions(), Health: health.Defaults(), KeepFinished: nodes.DefaultKeepFinished, LogFormat: "text",
		cloudOptions: cloudOptions{MonitorPeriod: cloud.DefaultMonitor, Refresh: cloud.DefaultRefresh, Syncs: 1,
			CloudRate: cloud.DefaultLimits.Rate},
	}
	o.Serving.BindPort = securePort
	o.Serving.ServerCert.CertDirectory, o.Serving.ServerCert.PairName = "", "berth-controllers"
	o.Authenticate.RemoteKubeConfigFileOptional, o.Authorize.RemoteKubeConfigFileOptional = true, true
	return o
}

// AddFlags declares the command line on fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	var sets cliflag.NamedFlagSets
	o.Generic.AddFlags(&sets, nodes.Names(), nil, nodes.Aliases())
	o.Shared.AddFlags(sets.FlagSet("cloud"))
	o.Serving.AddFlags(sets.FlagSet("serving"))
	o.Authenticate.AddFlags(sets.FlagSet("authentication"))
	o.Authorize.AddFlags(sets.FlagSet("authorization"))
	o.Metrics.AddFlags(sets.FlagSet("metrics"))
	o.addOurs(sets.FlagSet("nodes"))
	for _, set := range sets.FlagSets {
		fs.AddFlagSet(set)
	}
	refuse(fs)
	o.set = fs
}

// GetFlagz implements flagz.Reader: the flags by name with their values.
func (o *Options) GetFlagz() map[string]string {
	all := map[string]string{}
	if o.set != nil {
		o.set.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	}
	return all
}

func (o *Options) addOurs(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the API server; empty: that of the pod this runs in")
	fs.StringVar(&o.Master, "master", "", "address of the API server, instead of the kubeconfig's")
	o.Health.AddFlags(fs)
	fs.DurationVar(&o.MonitorPeriod, "node-monitor-period", o.MonitorPeriod,
		"how often the cloud is asked for the instances of nodes without heartbeats; node health needs no period, it waits for deadlines")
	fs.StringVar(&o.ServiceRange, "service-cluster-ip-range", "", "Service CIDRs, which no node gets pod addresses of")
	fs.IntVar(&o.Mask, "node-cidr-mask-size", 0, "prefix length of a node's pod CIDR, for one family (default 24, 64 for IPv6)")
	fs.IntVar(&o.Mask4, "node-cidr-mask-size-ipv4", 0, "prefix length of a node's IPv4 pod CIDR (default 24)")
	fs.IntVar(&o.Mask6, "node-cidr-mask-size-ipv6", 0, "prefix length of a node's IPv6 pod CIDR (default 64)")
	fs.IntVar(&o.KeepFinished, "terminated-pod-gc-threshold", o.KeepFinished, "finished pods that may stay; 0 or less: all")
	fs.DurationVar(&o.Refresh, "node-status-update-frequency", o.Refresh, "how often the cloud is asked for nodes' addresses")
	fs.IntVar(&o.Syncs, "concurrent-node-syncs", o.Syncs, "nodes initialised from the cloud at a time")
	fs.IntVar(&o.Updates, "concurrent-node-status-updates", 0,
		"accepted; addresses are refreshed by the workers of --concurrent-node-syncs")
	fs.IntVar(&o.lifecycleSyncs, "concurrent-node-lifecycle-syncs", 1, "accepted; instances are asked for in batches")
	fs.Float32Var(&o.CloudRate, "cloud-call-rate", o.CloudRate, "calls a second to the cloud")
	fs.StringVar(&o.DataDir, "data-dir", "", "folder for the decision journal and the socket of berth why; empty: none is kept")
	fs.IntVarP(&o.Verbosity, "v", "v", 0, "4 and more: debug messages")
	fs.DurationVar(&o.flush, "log-flush-frequency", 5*time.Second, "accepted; messages are written at once")
	fs.StringVar(&o.LogFormat, "logging-format", o.LogFormat, "text or json")
}

// Validate names everything that is wrong.
func (o *Options) Validate() error {
	errs := o.Generic.Validate(nodes.Names(), nil, nodes.Aliases())
	errs = append(errs, o.Shared.Validate()...)
	errs = append(errs, o.Serving.Validate()...)
	errs = append(errs, o.Authenticate.Validate()...)
	errs = append(errs, o.Authorize.Validate()...)
	if o.Metrics.ShowHiddenMetricsForVersion == "" { // else the library complains of a field of its own
		errs = append(errs, o.Metrics.Validate()...)
	}
	errs = append(errs, o.Health.Validate())
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(o.Metrics.ShowHiddenMetricsForVersion != "", "--show-hidden-metrics-for-version: not supported: berth controllers hides no metrics")
	add(o.Generic.LeaderMigration.Enabled,
		"--enable-leader-migration: not supported: the node controllers have one lease, --leader-elect-resource-name")
	add(o.Shared.ExternalCloudVolumePlugin != "", "--external-cloud-volume-plugin: not supported: there are no volume controllers here")
	add(o.Shared.CIDRAllocatorType != "RangeAllocator", "--cidr-allocator-type %q: only RangeAllocator is supported",
		o.Shared.CIDRAllocatorType)
	add(o.MonitorPeriod <= 0 || o.Refresh <= 0 || o.Shared.RouteReconciliationPeriod.Duration <= 0,
		"--node-monitor-period, --node-status-update-frequency and --route-reconciliation-period must be more than 0")
	add(o.Syncs < 1, "--concurrent-node-syncs %d: must be at least 1", o.Syncs)
	add(o.CloudRate <= 0, "--cloud-call-rate %g: must be more than 0", o.CloudRate)
	add(o.LogFormat != "text" && o.LogFormat != "json", "--logging-format %q: allowed are text and json", o.LogFormat)
	_, _, err := o.Ranges()
	return utilerrors.NewAggregate(append(errs, err))
}

// Ranges are what nodes get their pod CIDRs from, and what no one gets.
func (o *Options) Ranges() (ranges []ipam.Range, reserved []netip.Prefix, err error) {
	if !o.Shared.AllocateNodeCIDRs {
		return nil, nil, nil
	}
	cluster, err := prefixes("--cluster-cidr", o.Shared.ClusterCIDR)
	if err != nil {
		return nil, nil, err
	}
	if len(cluster) == 0 {
		return nil, nil, errors.New("--allocate-node-cidrs needs --cluster-cidr")
	}
	if reserved, err = prefixes("--service-cluster-ip-range", o.ServiceRange); err != nil {
		return nil, nil, err
	}
	if len(cluster) > 1 && o.Mask != 0 {
		return nil, nil, errors.New("--node-cidr-mask-size is not allowed with two families: use --node-cidr-mask-size-ipv4 and " +
			"--node-cidr-mask-size-ipv6")
	}
	if o.Mask != 0 && o.Mask4+o.Mask6 != 0 {
		return nil, nil, errors.New("--node-cidr-mask-size is not allowed together with --node-cidr-mask-size-ipv4 or " +
			"--node-cidr-mask-size-ipv6")
	}
	if len(cluster) == 1 && (cluster[0].Addr().Is4() && o.Mask6 != 0 || cluster[0].Addr().Is6() && o.Mask4 != 0) {
		return nil, nil, fmt.Errorf("a node mask size is set for a family that --cluster-cidr %s is not of", cluster[0])
	}
	for _, c := range cluster {
		bits := 24
		own := o.Mask4
		if c.Addr().Is6() {
			bits, own = 64, o.Mask6
		}
		for _, set := range []int{own, o.Mask} {
			if set != 0 {
				bits = set
			}
		}
		ranges = append(ranges, ipam.Range{Cluster: c, NodeBits: bits})
	}
	_, err = ipam.Pools(ranges, reserved)
	return ranges, reserved, err
}

// prefixes reads one or two ranges, separated by a comma.
func prefixes(flag, text string) (out []netip.Prefix, err error) {
	for _, word := range strings.Split(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", flag, word, err)
		}
		out = append(out, p.Masked())
	}
	if len(out) > 2 {
		return nil, fmt.Errorf("%s %q: at most two ranges are allowed, one of each family", flag, text)
	}
	return out, nil
}

// address is where the port is, for messages.
func (o *Options) address() string {
	return net.JoinHostPort(o.Serving.BindAddress.String(), strconv.Itoa(o.Serving.BindPort))
}
