package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// load reads a file and flags as the command does.
func load(t *testing.T, file string, args ...string) (*Flags, error) {
	t.Helper()
	set := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	f := AddFlags(set)
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+file),
			0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := set.Parse(args); err != nil {
		return nil, err
	}
	return f, f.Load()
}

func TestDefaults(t *testing.T) {
	f, err := load(t, "")
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if c.HealthzBindAddress != "0.0.0.0:10256" || c.MetricsBindAddress != "127.0.0.1:10249" || c.Mode != "nftables" ||
		*c.NFTables.MasqueradeBit != 14 || *c.OOMScoreAdj != -999 ||
		c.ClientConnection.QPS != 5 || c.ClientConnection.Burst != 10 || c.NFTables.SyncPeriod.Duration != 30*time.Second ||
		*c.Conntrack.MaxPerCore != 32768 ||
		c.Conntrack.TCPEstablishedTimeout.Duration != 24*time.Hour || c.DetectLocalMode != "ClusterCIDR" ||
		c.ConfigSyncPeriod.Duration != 15*time.Minute {
		t.Errorf("defaults: %+v", c)
	}
	if f, err = load(t, "bindAddress: '::'"); err != nil || f.Config.HealthzBindAddress != "[::]:10256" {
		t.Errorf("an IPv6 bindAddress: %v, health on %s", err, f.Config.HealthzBindAddress)
	}
}

// TestFlagsOverFile checks that given flags win over the file, and others not.
func TestFlagsOverFile(t *testing.T) {
	f, err := load(t, "clusterCIDR: 10.1.0.0/16\nhostnameOverride: filed\nnodePortAddresses: [10.0.0.0/8]\nnftables: {syncPeriod: "+
		"5s}\nfeatureGates: {AllowServiceExternalIPs: false}\n",
		"--hostname-override=given", "--conntrack-max-per-core=0", "--nodeport-addresses=192.0.2.0/24,fd00::/8",
		"--conntrack-tcp-timeout-established=5m", "-v=4")
	if err != nil {
		t.Fatal(err)
	}
	c := f.Config
	if c.HostnameOverride != "given" || c.ClusterCIDR != "10.1.0.0/16" || *c.Conntrack.MaxPerCore != 0 || strings.Join(c.NodePortAddresses,
		" ") != "192.0.2.0/24 fd00::/8" ||
		c.Conntrack.TCPEstablishedTimeout.Duration != 5*time.Minute || c.NFTables.SyncPeriod.Duration != 5*time.Second ||
		c.Logging.Verbosity != 4 || c.FeatureGates["AllowServiceExternalIPs"] {
		t.Errorf("got %+v", c)
	}
}

// TestRefused checks that what is wrong or not supported is refused with the
// name of its field.
func TestRefused(t *testing.T) {
	for file, want := range map[string]string{
		"clusterCIDRs: x":                                        "clusterCIDRs",
		"clusterCIDR: a\nclusterCIDR: b":                         "clusterCIDR",
		"clusterCIDR: 10.1.0.0/16,10.2.0.0/16":                   "clusterCIDR: more than one",
		"clusterCIDR: 10.1.0.0":                                  "clusterCIDR: \"10.1.0.0\" is no CIDR",
		"mode: ipvs":                                             "mode: \"ipvs\"",
		"mode: iptables":                                         "mode: \"iptables\"",
		"iptables: {masqueradeAll: true}":                        "iptables.masqueradeAll",
		"ipvs: {scheduler: rr}":                                  "ipvs: is not supported",
		"winkernel: {networkName: x}":                            "winkernel",
		"featureGates: {Magic: true}":                            "featureGates: \"Magic\"",
		"detectLocalMode: BridgeInterface":                       "detectLocal.bridgeInterface",
		"detectLocalMode: InterfaceNamePrefix":                   "detectLocal.interfaceNamePrefix",
		"detectLocalMode: Guess":                                 "detectLocalMode: \"Guess\"",
		"detectLocal: {interfaceNamePrefix: abcdefghijklmnopqr}": "detectLocal.interfaceNamePrefix",
		"nodePortAddresses: [primary, 10.0.0.0/8]":               "nodePortAddresses: \"primary\"",
		"nftables: {masqueradeBit: 32}":                          "nftables.masqueradeBit: 32",
		"nftables: {syncPeriod: -1s}":                            "nftables.syncPeriod",
		"nftables: {minSyncPeriod: 1m}":                          "nftables.minSyncPeriod",
		"oomScoreAdj: -1001":                                     "oomScoreAdj: -1001",
		"bindAddress: here":                                      "bindAddress: \"here\"",
		"healthzBindAddress: '10256'":                            "healthzBindAddress",
		"conntrack: {udpTimeout: -1s}":                           "conntrack.udpTimeout",
		"portRange: 1-2":                                         "portRange",
		"showHiddenMetricsForVersion: '1.30'":                    "showHiddenMetricsForVersion",
		"logging: {format: xml}":                                 "logging.format: \"xml\"",
		"kind: Pod":                                              "kind",
	} {
		if _, err := load(t, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error about %s", file, err, want)
		}
	}
}
