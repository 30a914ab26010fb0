package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/internal/cluster/host"
	podnetwork "github.com/berth-dev/berth/internal/network"
)

// given is a command line that names all that Complete would ask the host for.
func given(t *testing.T, role Role) Config {
	t.Helper()
	c := Config{Settings: Settings{Role: role, NodeName: "n"}, DataDir: t.TempDir(), NodeIP: "192.0.2.7"}
	if role == RoleNode {
		c.ServerURL = "https://192.0.2.1"
	}
	return c
}

// TestComplete: from command line and cluster.json to what a start uses.
func TestComplete(t *testing.T) {
	for _, c := range []struct {
		name   string
		role   Role
		stored string
		change func(*Config)
		check  func(*Config) bool
	}{
		{name: "nothing given", check: func(c *Config) bool {
			return c.Ports == DefaultPorts && c.ClusterDomain == "cluster.local" && c.Network == podnetwork.Auto &&
				c.ImagesDir == filepath.Join(c.BundleDir, "images") && filepath.IsAbs(c.BundleDir)
		}},
		{name: "a file is named relative to here", change: func(c *Config) { c.AgentConfig = "kubelet.yaml" },
			check: func(c *Config) bool {
				return filepath.IsAbs(c.AgentConfig) && strings.HasSuffix(c.AgentConfig, "/kubelet.yaml")
			}},
		{name: "a bundle brings its images", change: func(c *Config) { c.BundleDir = "/opt/berth" },
			check: func(c *Config) bool { return c.ImagesDir == "/opt/berth/images" }},
		{name: "images elsewhere", change: func(c *Config) { c.BundleDir, c.ImagesDir = "/opt/berth", "/srv/images" },
			check: func(c *Config) bool { return c.ImagesDir == "/srv/images" }},
		{name: "what is stored comes before defaults",
			stored: `{"version":1,"clusterCIDR":"10.7.0.0/16","serviceCIDR":"10.8.0.0/16","clusterDomain":"c.test","nodeName":"n",` +
				`"network":"vxlan","loadBalancer":"none","ports":{"api":7443},"agentConfig":"/k.yaml","volumesDir":"/v",` +
				`"credentialProviders":"/p.yaml","credentialProviderDir":"/p"}`,
			check: func(c *Config) bool {
				return c.ClusterCIDR == "10.7.0.0/16" && c.ServiceCIDR == "10.8.0.0/16" && c.ClusterDomain == "c.test" &&
					c.Network == podnetwork.VXLAN && c.LoadBalancer == LoadBalancerNone && c.Ports.API == 7443 && c.Ports.Agent == 10250 &&
					c.AgentConfig == "/k.yaml" && c.VolumesDir == "/v" && c.CredentialProviders == "/p.yaml" &&
					c.CredentialProviderDir == "/p"
			}},
		{name: "what may change comes from the command line",
			stored: `{"version":1,"network":"vxlan","loadBalancer":"none","ports":{"api":7443},"agentConfig":"/k.yaml",` +
				`"credentialProviders":"/p.yaml","credentialProviderDir":"/p"}`,
			change: func(c *Config) {
				c.Network, c.LoadBalancer, c.AgentConfig, c.Ports.API = podnetwork.Routes, LoadBalancerNode, "/other.yaml", 8443
				c.CredentialProviders = "/q.yaml"
			},
			check: func(c *Config) bool {
				// Plugins and their directory change together: the old
				// directory would not fit the new file.
				return c.Network == podnetwork.Routes && c.LoadBalancer == LoadBalancerNode && c.AgentConfig == "/other.yaml" &&
					c.Ports.API == 8443 && c.CredentialProviders == "/q.yaml" && c.CredentialProviderDir == ""
			}},
		{name: "a node learns its CIDRs from the cluster", role: RoleNode,
			check: func(c *Config) bool {
				return c.ClusterCIDR == "" && c.ServiceCIDR == "" && c.ServerURL == "https://192.0.2.1:6443"
			}},
		{name: "a node that joined before", role: RoleNode,
			stored: `{"version":1,"role":"node","serverURL":"https://192.0.2.9:6443","clusterCIDR":"10.7.0.0/16"}`,
			change: func(c *Config) { c.ServerURL = "" },
			check:  func(c *Config) bool { return c.ServerURL == "https://192.0.2.9:6443" && c.ClusterCIDR == "10.7.0.0/16" }},
	} {
		cfg := given(t, c.role)
		if c.stored != "" {
			if err := os.WriteFile(cfg.settingsFile(), []byte(c.stored), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := entries(t, cfg.DataDir)
		if c.change != nil {
			c.change(&cfg)
		}
		if err := cfg.Complete(); err != nil || !c.check(&cfg) {
			t.Errorf("%s: %v, %+v", c.name, err, cfg)
		}
		if after := entries(t, cfg.DataDir); after != before {
			t.Errorf("%s: Complete left %q in a directory with %q", c.name, after, before)
		}
	}
}

// TestCompleteRefuses: each refusal names the flag and what is allowed.
func TestCompleteRefuses(t *testing.T) {
	const whole = `{"version":1,"clusterCIDR":"10.7.0.0/16","clusterDomain":"c.test","nodeName":"n","runtimeEndpoint":"unix:///a",` +
		`"volumesDir":"/v"}`
	for _, c := range []struct {
		name   string
		role   Role
		stored string
		change func(*Config)
		want   []string
	}{
		{"another role", RoleServer, whole, nil, []string{"made by `berth up`", "another --data-dir"}},
		{"pods elsewhere", RoleWhole, whole, func(c *Config) { c.ClusterCIDR = "10.9.0.0/16" },
			[]string{"--cluster-cidr 10.9.0.0/16", "made with 10.7.0.0/16", "another --data-dir"}},
		{"another domain", RoleWhole, whole, func(c *Config) { c.ClusterDomain = "d.test" }, []string{"--cluster-domain d.test", "c.test"}},
		{"another name", RoleWhole, whole, func(c *Config) { c.NodeName = "m" }, []string{"--node-name m", "made with n"}},
		{"another runtime", RoleWhole, whole, func(c *Config) { c.RuntimeEndpoint = "unix:///b" },
			[]string{"--container-runtime-endpoint unix:///b", "unix:///a"}},
		{"other volumes", RoleWhole, whole, func(c *Config) { c.VolumesDir = "/w" }, []string{"--volumes-dir /w", "made with /v"}},
		{"another cluster", RoleNode, `{"version":1,"role":"node","serverURL":"https://a:6443"}`,
			func(c *Config) { c.ServerURL = "https://b:6443" }, []string{"server https://b:6443", "https://a:6443"}},
		{"which cluster", RoleNode, "", func(c *Config) { c.ServerURL = "" }, []string{"berth join https://SERVER:6443", "token create"}},
		{"plain HTTP", RoleNode, "", func(c *Config) { c.ServerURL = "http://a:6443" }, []string{`server "http://a:6443"`, "https://"}},
		{"a path", RoleNode, "", func(c *Config) { c.ServerURL = "https://a/b" }, []string{`server "https://a/b"`}},
		{"no token", RoleNode, "", func(c *Config) { c.Join.Token = "abc.def" }, []string{"--token", "6 letters or digits, a dot, and 16"}},
		{"damaged settings", RoleWhole, `{"version":`, nil, []string{"cluster.json"}},
		{"a newer layout", RoleWhole, `{"version":2}`, nil, []string{"newer berth", "layout 2", "knows 1"}},
		{"a short life", RoleWhole, "", func(c *Config) { c.CertificateLife = time.Second },
			[]string{"--certificate-lifetime 1s", minCertificateLife.String()}},
		{"three CIDRs", RoleWhole, "", func(c *Config) { c.ClusterCIDR = "10.7.0.0/16,fd00::/56,fd01::/56" },
			[]string{"--cluster-cidr", "more than one CIDR of a family"}},
		{"one family twice", RoleWhole, "", func(c *Config) { c.ServiceCIDR = "10.8.0.0/16,10.9.0.0/16" },
			[]string{"--service-cidr", "more than one CIDR of a family"}},
	} {
		cfg := given(t, c.role)
		if c.stored != "" {
			if err := os.WriteFile(cfg.settingsFile(), []byte(c.stored), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if c.change != nil {
			c.change(&cfg)
		}
		err := cfg.Complete()
		if err == nil {
			t.Errorf("%s is accepted", c.name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in %v", c.name, want, err)
			}
		}
		if c.name == "no token" && strings.Contains(err.Error(), "abc.def") {
			t.Errorf("the message shows the token: %v", err)
		}
	}
}

// TestClustersShareNoAddress: the default CIDRs of pods and Services are disjoint
// whatever the cluster's name, and those of the default cluster are kubeadm's.
func TestClustersShareNoAddress(t *testing.T) {
	of := func(instance string) (pods, services netip.Prefix) {
		var s Settings
		s.defaults(instance)
		return netip.MustParsePrefix(s.ClusterCIDR), netip.MustParsePrefix(s.ServiceCIDR)
	}
	pods, services := of("berth")
	if pods.String() != "10.244.0.0/16" || services.String() != "10.96.0.0/16" {
		t.Errorf("the default cluster has %s and %s", pods, services)
	}
	different := map[netip.Prefix]bool{}
	for i := range 200 {
		p, s := of(host.Instance(fmt.Sprintf("/data/%d", i)))
		for _, a := range []netip.Prefix{p, s} {
			if a.Overlaps(pods) || a.Overlaps(services) {
				t.Fatalf("another cluster has %s, which the default one uses", a)
			}
		}
		if p.Overlaps(s) {
			t.Fatalf("a cluster has %s for pods and %s for Services", p, s)
		}
		different[p] = true
	}
	if len(different) < 40 {
		t.Errorf("200 clusters have only %d CIDRs for their pods", len(different))
	}
}

// TestPorts: consecutive ports are all different, and none is left out.
func TestPorts(t *testing.T) {
	text, err := json.Marshal(PortsFrom(7000))
	if err != nil {
		t.Fatal(err)
	}
	var ports map[string]int
	if err := json.Unmarshal(text, &ports); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if p < 7000 || p >= 7000+len(ports) || seen[p] {
			t.Errorf("ports from 7000 on: %v", ports)
		}
		seen[p] = true
	}
	var filled Ports
	if filled.fill(PortsFrom(7000)); filled != PortsFrom(7000) {
		t.Errorf("filled: %+v", filled)
	}
	if filled.fill(DefaultPorts); filled != PortsFrom(7000) {
		t.Errorf("ports that were given are replaced: %+v", filled)
	}
}
