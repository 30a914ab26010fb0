package config

import (
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/utils/ptr"
)

// Flags are kube-proxy's flags that people use, and a few of our own.
type Flags struct {
	// Config is what file and flags come to.
	Config KubeProxyConfiguration
	// File is the configuration file.
	File string
	// Master overrides the server of the kubeconfig.
	Master string
	// Cleanup removes our rules and ends; CleanupKubeProxy removes those that
	// kube-proxy left.
	Cleanup, CleanupKubeProxy bool
	// InitOnly prepares the host and ends.
	InitOnly bool
	// WriteTo is a file to write the configuration to.
	WriteTo string
	// Instance names the nftables tables.
	Instance string
	// Socket is where `berth proxy trace` and `berth why service` ask.
	Socket string

	set *pflag.FlagSet
}

// DefaultSocket is where a stand-alone proxy answers questions.
const DefaultSocket = "/run/berth-proxy.sock"

// AddFlags registers the flags.
func AddFlags(set *pflag.FlagSet) *Flags {
	f := &Flags{set: set}
	c := &f.Config
	set.StringVar(&f.File, "config", "", "KubeProxyConfiguration file (v1alpha1); flags that are given override it")
	set.StringVar(&f.Master, "master", "", "URL of the API server, overriding the kubeconfig")
	set.StringVar(&c.ClientConnection.Kubeconfig, "kubeconfig", "", "kubeconfig file (default: the service account of the pod)")
	set.BoolVar(&f.Cleanup, "cleanup", false, "remove the proxy's tables and exit")
	set.BoolVar(&f.CleanupKubeProxy, "cleanup-kube-proxy", false,
		"remove what kube-proxy left in iptables, nftables and IPVS; exits unless the proxy runs")
	set.BoolVar(&f.InitOnly, "init-only", false, "do what needs privileges on the host and exit")
	set.StringVar(&f.WriteTo, "write-config-to", "", "write the configuration that applies to a file and exit")
	set.StringVar(&f.Instance, "instance", "berth", "name of the nftables tables")
	set.StringVar(&f.Socket, "socket", DefaultSocket, "unix socket for berth proxy trace; empty for none")

	set.StringVar(&c.HostnameOverride, "hostname-override", "", "name of this node (default: the host name)")
	set.StringVar(&c.BindAddress, "bind-address", "", "overrides the node's address of its family")
	set.StringVar(&c.HealthzBindAddress, "healthz-bind-address", "", "address of /healthz and /livez (default 0.0.0.0:10256)")
	set.StringVar(&c.MetricsBindAddress, "metrics-bind-address", "", "address of /metrics (default 127.0.0.1:10249)")
	set.BoolVar(&c.BindAddressHardFail, "bind-address-hard-fail", false, "end if an address is taken, instead of trying again")
	set.BoolVar(&c.EnableProfiling, "profiling", false, "serve /debug/pprof beside the metrics")
	set.StringVar((*string)(&c.Mode), "proxy-mode", "", "nftables, which is the only mode")
	set.StringVar(&c.ClusterCIDR, "cluster-cidr", "", "addresses of pods, one CIDR a family")
	set.StringVar((*string)(&c.DetectLocalMode), "detect-local-mode", "", "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")
	set.StringVar(&c.DetectLocal.BridgeInterface, "pod-bridge-interface", "", "bridge of this node's pods")
	set.StringVar(&c.DetectLocal.InterfaceNamePrefix, "pod-interface-name-prefix", "", "what the names of pods' interfaces begin with")
	set.StringSliceVar(&c.NodePortAddresses, "nodeport-addresses", nil, "CIDRs of addresses that node ports answer on, or primary")
	set.BoolVar(&c.NFTables.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to cluster IPs")
	set.Var(number{&c.NFTables.MasqueradeBit}, "nftables-masquerade-bit", "bit of the packet mark that asks for masquerading (default 14)")
	duration(set, &c.NFTables.SyncPeriod, "nftables-sync-period", "how often rules are checked and failures tried again (default 30s)")
	duration(set, &c.NFTables.MinSyncPeriod, "nftables-min-sync-period", "least time between two changes of the rules")
	duration(set, &c.ConfigSyncPeriod, "config-sync-period", "how often the watched objects are gone through again (default 15m)")
	set.Var(number{&c.OOMScoreAdj}, "oom-score-adj", "of this process (default -999)")
	set.Var(number{&c.Conntrack.MaxPerCore}, "conntrack-max-per-core",
		"tracked connections per core; 0 leaves the limit alone (default 32768)")
	set.Var(number{&c.Conntrack.Min}, "conntrack-min", "least limit of tracked connections (default 131072)")
	set.BoolVar(&c.Conntrack.TCPBeLiberal, "conntrack-tcp-be-liberal", false, "let TCP packets outside the window pass")
	f.optional(&c.Conntrack.TCPEstablishedTimeout, "conntrack-tcp-timeout-established",
		"idle time of TCP connections; 0 leaves it alone (default 24h)")
	f.optional(&c.Conntrack.TCPCloseWaitTimeout, "conntrack-tcp-timeout-close-wait", "time in CLOSE_WAIT; 0 leaves it alone (default 1h)")
	duration(set, &c.Conntrack.UDPTimeout, "conntrack-udp-timeout", "idle time of UDP flows; 0 leaves it alone")
	duration(set, &c.Conntrack.UDPStreamTimeout, "conntrack-udp-timeout-stream",
		"idle time of UDP flows that were answered; 0 leaves it alone")
	set.StringVar(&c.ClientConnection.ContentType, "kube-api-content-type", "", "content type of requests (default protobuf)")
	set.Float32Var(&c.ClientConnection.QPS, "kube-api-qps", 0, "requests per second (default 5)")
	set.Int32Var(&c.ClientConnection.Burst, "kube-api-burst", 0, "requests at once (default 10)")
	set.Var(gates{&c.FeatureGates}, "feature-gates", "NAME=true|false,...; known is AllowServiceExternalIPs")
	set.StringVar(&c.Logging.Format, "logging-format", "", "text or json (default text)")
	set.VarP(verbosity{f}, "v", "v", "verbosity; from 4 on debug messages are logged")
	return f
}

// Load reads the file, lays the flags that were given over it, completes and
// checks the result.
func (f *Flags) Load() error {
	given := map[string]string{}
	f.set.Visit(func(p *pflag.Flag) { given[p.Name] = p.Value.String() })
	if f.File != "" {
		var fromFile KubeProxyConfiguration
		if err := read(f.File, &fromFile); err != nil {
			return err
		}
		lists := f.Config.NodePortAddresses
		f.Config = fromFile
		for name, value := range given {
			if name == "nodeport-addresses" {
				f.Config.NodePortAddresses = lists
				continue
			}
			if err := f.set.Lookup(name).Value.Set(value); err != nil {
				return fmt.Errorf("reading --%s: %w", name, err)
			}
		}
	}
	Defaults(&f.Config)
	return validate(&f.Config)
}

// All are the flags by name with the values they have now.
func (f *Flags) All() map[string]string {
	out := map[string]string{}
	f.set.VisitAll(func(p *pflag.Flag) { out[p.Name] = p.Value.String() })
	return out
}

func duration(set *pflag.FlagSet, d *metav1.Duration, name, usage string) {
	set.DurationVar(&d.Duration, name, 0, usage)
}

// number is an int32 that may be unset.
type number struct{ n **int32 }

func (v number) String() string {
	if v.n == nil || *v.n == nil {
		return ""
	}
	return fmt.Sprint(**v.n)
}
func (v number) Type() string { return "int" }
func (v number) Set(s string) error {
	var n int32
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil {
		return fmt.Errorf("%q is no number", s)
	}
	*v.n = ptr.To(n)
	return nil
}

// optionalDuration is a duration that may be unset.
type optionalDuration struct{ d **metav1.Duration }

func (f *Flags) optional(d **metav1.Duration, name, usage string) {
	f.set.Var(optionalDuration{d}, name, usage)
}

func (v optionalDuration) String() string {
	if v.d == nil || *v.d == nil {
		return ""
	}
	return (*v.d).Duration.String()
}
func (v optionalDuration) Type() string { return "duration" }
func (v optionalDuration) Set(s string) error {
	var d metav1.Duration
	if err := d.UnmarshalJSON(fmt.Appendf(nil, "%q", s)); err != nil {
		return err
	}
	*v.d = &d
	return nil
}

type gates struct{ m *map[string]bool }

func (v gates) String() string {
	if v.m == nil {
		return ""
	}
	var out []string
	for k, on := range *v.m {
		out = append(out, fmt.Sprintf("%s=%t", k, on))
	}
	return strings.Join(out, ",")
}
func (v gates) Type() string { return "map" }
func (v gates) Set(s string) error {
	if *v.m == nil {
		*v.m = map[string]bool{}
	}
	for _, kv := range strings.Split(s, ",") {
		name, on, ok := strings.Cut(kv, "=")
		if !ok || on != "true" && on != "false" {
			return fmt.Errorf("%q is not NAME=true or NAME=false", kv)
		}
		(*v.m)[name] = on == "true"
	}
	return nil
}

type verbosity struct{ f *Flags }

func (v verbosity) String() string {
	if v.f == nil {
		return ""
	}
	return fmt.Sprint(uint32(v.f.Config.Logging.Verbosity))
}
func (v verbosity) Type() string { return "int" }
func (v verbosity) Set(s string) error {
	var n uint32
	if _, err := fmt.Sscanf(s, "%d", &n); err != nil {
		return fmt.Errorf("%q is no number", s)
	}
	v.f.Config.Logging.Verbosity = logsapi.VerbosityLevel(n)
	return nil
}

// ListenOn is where to listen for an address of the configuration: nowhere
// with a port of 0.
func ListenOn(addr string) string {
	if _, port, err := net.SplitHostPort(addr); err == nil && port == "0" {
		return ""
	}
	return addr
}
