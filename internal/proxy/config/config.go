// Package config reads a KubeProxyConfiguration (v1alpha1) and kube-proxy's
// flags, completes and checks them. What the proxy cannot do is refused by
// the name of its field.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxyconfigv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// KubeProxyConfiguration is the file's form.
type KubeProxyConfiguration = kubeproxyconfigv1alpha1.KubeProxyConfiguration

// apiVersion and kind must stand in a file.
const (
	apiVersion = kubeproxyconfigv1alpha1.GroupName + "/v1alpha1"
	kind       = "KubeProxyConfiguration"
)

// The ways to tell local traffic.
const (
	LocalByClusterCIDR = "ClusterCIDR"
	LocalByNodeCIDR    = "NodeCIDR"
	LocalByBridge      = "BridgeInterface"
	LocalByPrefix      = "InterfaceNamePrefix"
)

// Defaults fills what c leaves open, as kube-proxy's nftables mode does.
func Defaults(c *KubeProxyConfiguration) {
	c.APIVersion, c.Kind = apiVersion, kind
	text := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	period := func(d *metav1.Duration, v time.Duration) {
		if d.Duration == 0 {
			d.Duration = v
		}
	}
	number := func(n **int32, v int32) {
		if *n == nil {
			*n = ptr.To(v)
		}
	}
	text(&c.BindAddress, "0.0.0.0")
	everywhere := netip.IPv4Unspecified()
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Is6() {
		everywhere = netip.IPv6Unspecified()
	}
	text(&c.HealthzBindAddress, netip.AddrPortFrom(everywhere, 10256).String())
	text(&c.MetricsBindAddress, "127.0.0.1:10249")
	text((*string)(&c.Mode), "nftables")
	text((*string)(&c.DetectLocalMode), LocalByClusterCIDR)
	text(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	if c.ClientConnection.QPS == 0 {
		c.ClientConnection.QPS = 5
	}
	if c.ClientConnection.Burst == 0 {
		c.ClientConnection.Burst = 10
	}
	period(&c.ConfigSyncPeriod, 15*time.Minute)
	period(&c.NFTables.SyncPeriod, 30*time.Second)
	number(&c.NFTables.MasqueradeBit, 14)
	number(&c.OOMScoreAdj, -999)
	number(&c.Conntrack.MaxPerCore, 32<<10)
	number(&c.Conntrack.Min, 128<<10)
	if c.Conntrack.TCPEstablishedTimeout == nil {
		c.Conntrack.TCPEstablishedTimeout = &metav1.Duration{Duration: 24 * time.Hour}
	}
	if c.Conntrack.TCPCloseWaitTimeout == nil {
		c.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{Duration: time.Hour}
	}
	text(&c.Logging.Format, "text")
}

// read decodes a file strictly: unknown and repeated fields are errors.
func read(path string, into *KubeProxyConfiguration) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading --config: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		return fmt.Errorf("reading --config %s: %w", path, err)
	}
	if into.APIVersion != apiVersion || into.Kind != kind {
		return fmt.Errorf("reading --config %s: it holds %s %s, want %s %s", path, into.APIVersion, into.Kind, apiVersion, kind)
	}
	return nil
}

// validate reports everything wrong or not supported in a completed
// configuration, each with its field.
func validate(c *KubeProxyConfiguration) error {
	v := &checks{}
	v.unsupported(c)
	v.one("mode", string(c.Mode), "nftables")
	v.one("detectLocalMode", string(c.DetectLocalMode), LocalByClusterCIDR, LocalByNodeCIDR, LocalByBridge, LocalByPrefix)
	switch c.DetectLocalMode {
	case LocalByBridge:
		v.check(c.DetectLocal.BridgeInterface != "", "detectLocal.bridgeInterface", "must be set with detectLocalMode BridgeInterface")
	case LocalByPrefix:
		v.check(c.DetectLocal.InterfaceNamePrefix != "", "detectLocal.interfaceNamePrefix",
			"must be set with detectLocalMode InterfaceNamePrefix")
	}
	v.check(len(c.DetectLocal.BridgeInterface) <= 15, "detectLocal.bridgeInterface", "is longer than an interface name can be (15)")
	v.check(len(c.DetectLocal.InterfaceNamePrefix) <= 15, "detectLocal.interfaceNamePrefix", "is longer than an interface name can be (15)")
	_, err := netip.ParseAddr(c.BindAddress)
	v.check(err == nil, "bindAddress", "%q is no IP address", c.BindAddress)
	v.hostPort("healthzBindAddress", c.HealthzBindAddress)
	v.hostPort("metricsBindAddress", c.MetricsBindAddress)
	if c.ClusterCIDR != "" {
		v.cidrs("clusterCIDR", strings.Split(c.ClusterCIDR, ","), true)
	}
	if slices.Contains(c.NodePortAddresses, "primary") {
		v.check(len(c.NodePortAddresses) == 1, "nodePortAddresses", "\"primary\" cannot be mixed with CIDRs")
	} else {
		v.cidrs("nodePortAddresses", c.NodePortAddresses, false)
	}
	n := c.NFTables
	v.check(*n.MasqueradeBit >= 0 && *n.MasqueradeBit <= 31, "nftables.masqueradeBit", "%d is not within 0..31", *n.MasqueradeBit)
	v.check(n.SyncPeriod.Duration > 0, "nftables.syncPeriod", "must be greater than 0")
	v.check(n.MinSyncPeriod.Duration >= 0 && n.MinSyncPeriod.Duration <= n.SyncPeriod.Duration, "nftables.minSyncPeriod",
		"must be between 0 and nftables.syncPeriod")
	v.check(c.ConfigSyncPeriod.Duration > 0, "configSyncPeriod", "must be greater than 0")
	v.check(*c.OOMScoreAdj >= -1000 && *c.OOMScoreAdj <= 1000, "oomScoreAdj", "%d is not within -1000..1000", *c.OOMScoreAdj)
	t := c.Conntrack
	v.check(*t.MaxPerCore >= 0, "conntrack.maxPerCore", "must not be negative")
	v.check(*t.Min >= 0, "conntrack.min", "must not be negative")
	for name, d := range map[string]time.Duration{"tcpEstablishedTimeout": t.TCPEstablishedTimeout.Duration,
		"tcpCloseWaitTimeout": t.TCPCloseWaitTimeout.Duration,
		"udpTimeout":          t.UDPTimeout.Duration, "udpStreamTimeout": t.UDPStreamTimeout.Duration} {
		v.check(d >= 0, "conntrack."+name, "must not be negative")
	}
	v.one("logging.format", c.Logging.Format, "text", "json")
	return errors.Join(v.errs...)
}

// unsupported refuses what is set for parts of kube-proxy that are not here.
func (v *checks) unsupported(c *KubeProxyConfiguration) {
	for name := range c.FeatureGates {
		v.one("featureGates", name, "AllowServiceExternalIPs")
	}
	no := func(set bool, field, instead string) {
		v.check(!set, field, "is not supported: %s", instead)
	}
	i := c.IPTables
	no(i.MasqueradeAll, "iptables.masqueradeAll", "set nftables.masqueradeAll")
	no(i.MasqueradeBit != nil && *i.MasqueradeBit != *c.NFTables.MasqueradeBit, "iptables.masqueradeBit", "set nftables.masqueradeBit")
	fixed := func(d, usual time.Duration, field string) {
		no(d != 0 && d != usual, field, "it is of another mode; set nftables.syncPeriod and nftables.minSyncPeriod")
	}
	fixed(i.SyncPeriod.Duration, 30*time.Second, "iptables.syncPeriod")
	fixed(i.MinSyncPeriod.Duration, time.Second, "iptables.minSyncPeriod")
	p := c.IPVS
	fixed(p.SyncPeriod.Duration, 30*time.Second, "ipvs.syncPeriod")
	no(p.MinSyncPeriod.Duration != 0, "ipvs.minSyncPeriod", "it is of another mode")
	no(p.Scheduler != "" || len(p.ExcludeCIDRs) > 0 || p.StrictARP || p.TCPTimeout.Duration != 0 || p.TCPFinTimeout.Duration != 0 ||
		p.UDPTimeout.Duration != 0, "ipvs",
		"the only mode is nftables")
	no(c.Winkernel != kubeproxyconfigv1alpha1.KubeProxyWinkernelConfiguration{}, "winkernel", "the only mode is nftables")
	no(c.WindowsRunAsService, "windowsRunAsService", "this is Linux")
	no(c.ShowHiddenMetricsForVersion != "", "showHiddenMetricsForVersion", "there are no hidden metrics")
	no(len(c.Logging.VModule) > 0, "logging.vmodule", "set logging.verbosity")
	text, json := c.Logging.Options.Text, c.Logging.Options.JSON
	no(text.SplitStream || json.SplitStream || text.InfoBufferSize.Value() != 0 || json.InfoBufferSize.Value() != 0, "logging.options",
		"everything goes to standard error, unbuffered")
	no(c.PortRange != "", "portRange", "it has had no effect since userspace mode went")
}

type checks struct{ errs []error }

func (v *checks) check(ok bool, field, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
}

func (v *checks) one(field, got string, allowed ...string) {
	v.check(slices.Contains(allowed, got), field, "%q is not supported; allowed: %s", got, strings.Join(allowed, ", "))
}

func (v *checks) hostPort(field, s string) {
	_, err := netip.ParseAddrPort(s)
	v.check(err == nil, field, "%q is no address with a port", s)
}

func (v *checks) cidrs(field string, cidrs []string, onePerFamily bool) {
	seen := map[bool]bool{}
	for _, s := range cidrs {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		v.check(err == nil, field, "%q is no CIDR", s)
		if err != nil {
			continue
		}
		v.check(!onePerFamily || !seen[p.Addr().Is4()], field, "more than one CIDR of a family")
		seen[p.Addr().Is4()] = true
	}
}
