package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/internal/cluster/host"
	podnetwork "github.com/berth-dev/berth/internal/network"
)

// TestInterfaceNames: two clusters on a host share no interface, and each name
// fits the kernel's 15 bytes.
func TestInterfaceNames(t *testing.T) {
	seen := map[string]string{}
	for _, dir := range []string{host.DefaultDataDir, "/tmp/a", "/tmp/b", "/" + strings.Repeat("long/", 20)} {
		c := &Config{DataDir: dir}
		names := []string{c.Bridge(), c.Tunnel(), c.WireGuard().Name}
		for _, n := range names {
			if len(n) > 15 {
				t.Errorf("%s: interface %s has %d bytes", dir, n, len(n))
			}
			if seen[n] != "" {
				t.Errorf("%s and %s share the interface %s", dir, seen[n], n)
			}
			seen[n] = dir
		}
		if dir == host.DefaultDataDir && !slices.Equal(names, []string{"berth0", "berth0-vx", "berth0-wg"}) {
			t.Errorf("the default cluster has %v", names)
		}
		if c.CgroupRoot() != "/"+c.Instance() {
			t.Errorf("%s: cgroup %s", dir, c.CgroupRoot())
		}
	}
}

// TestCIDRs reads one CIDR or one of each family.
func TestCIDRs(t *testing.T) {
	for _, c := range []struct{ list, want, fault string }{
		{"10.1.0.0/16", "10.1.0.0/16", ""},
		{"10.1.2.3/16", "10.1.0.0/16", ""}, // host bits do not count
		{"fd00::/56,10.1.0.0/16", "fd00::/56 10.1.0.0/16", ""},
		{"", "", "not a CIDR"},
		{"10.1.0.0", "", "not a CIDR"},
		{"10.1.0.0/16, fd00::/56", "", "with a comma between"},
		{"10.1.0.0/16,10.2.0.0/16", "", "more than one CIDR of a family"},
		{"fd00::/56,fd01::/56", "", "more than one CIDR of a family"},
		{"10.1.0.0/16,fd00::/56,fd01::/56", "", "more than one CIDR of a family"},
	} {
		got, err := cidrs("--x", c.list)
		var words []string
		for _, p := range got {
			words = append(words, p.String())
		}
		if c.fault == "" && (err != nil || strings.Join(words, " ") != c.want) {
			t.Errorf("%q: %v, %v", c.list, got, err)
		}
		if c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || !strings.Contains(err.Error(), "--x")) {
			t.Errorf("%q: %v, want %q", c.list, err, c.fault)
		}
	}
}

// TestDNSAddress: cluster DNS has the tenth address of the first service CIDR.
func TestDNSAddress(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.96.0.0/16": "10.96.0.10", "10.96.0.0/28": "10.96.0.10", "fd00::/112,10.96.0.0/16": "fd00::a",
		"10.96.0.0/29": "too small", "fd00::/125": "too small",
	} {
		ip, err := (&Config{Settings: Settings{ServiceCIDR: cidr}}).dnsIP()
		switch {
		case want == "too small" && (err == nil || !strings.Contains(err.Error(), "/28") || !strings.Contains(err.Error(),
			"--service-cidr")):
			t.Errorf("%s: %v, %v", cidr, ip, err)
		case want != "too small" && (err != nil || ip.String() != want):
			t.Errorf("%s: %v, %v; want %s", cidr, ip, err, want)
		}
	}
}

// TestNetworkOfAnotherParty: with --network=none no bridge is berth's, and the
// agent writes no CNI configuration.
func TestNetworkOfAnotherParty(t *testing.T) {
	c := &Config{Settings: Settings{Network: podnetwork.None}, DataDir: "/d", NodeIP: "not asked for"}
	if c.bridge() != "" || c.cniConfDir() != "" {
		t.Errorf("bridge %q, configuration in %q", c.bridge(), c.cniConfDir())
	}
	if o, err := c.cni(); err != nil || o.MTU != 0 {
		t.Errorf("links of another party's network: %+v, %v", o, err)
	}
	c.Network = podnetwork.VXLAN
	if c.bridge() != c.Bridge() || c.cniConfDir() != "/d/agent/cni" {
		t.Errorf("bridge %q, configuration in %q", c.bridge(), c.cniConfDir())
	}
	if _, err := c.cni(); err == nil || !strings.Contains(err.Error(), `--node-ip "not asked for"`) {
		t.Errorf("the links of a node without an address: %v", err)
	}
	// A runtime of the user's own calls the plugins of a configuration one
	// after the other.
	c.NodeIP = "127.0.0.1"
	for endpoint, oneStep := range map[string]bool{"": true, "unix:///run/crio.sock": false} {
		c.RuntimeEndpoint = endpoint
		if o, err := c.cni(); err != nil || o.OneStep != oneStep {
			t.Errorf("runtime %q: one step %v, %v", endpoint, o.OneStep, err)
		}
	}
}

// TestVolumesDir: where a node keeps local volumes, and who keeps none.
func TestVolumesDir(t *testing.T) {
	for _, c := range []struct {
		role      Role
		dir, want string
	}{
		{RoleWhole, "", "/d/volumes"}, {RoleNode, "", "/d/volumes"}, {RoleWhole, "/disks", "/disks"},
		{RoleWhole, NoVolumes, ""}, {RoleServer, "", ""}, {RoleServer, "/disks", ""},
	} {
		cfg := Config{Settings: Settings{Role: c.role, VolumesDir: c.dir}, DataDir: "/d"}
		if got := cfg.volumesDir(); got != c.want {
			t.Errorf("berth %s --volumes-dir=%s keeps volumes in %q, want %q", c.role.Command(), c.dir, got, c.want)
		}
	}
}

// TestAdaptedToTheHost: systemd manages cgroups only where it runs on the
// unified hierarchy; the API server knows an agent of its own process alone.
func TestAdaptedToTheHost(t *testing.T) {
	for _, c := range []struct {
		facts host.Facts
		want  bool
	}{
		{host.Facts{Systemd: true, Cgroups: host.CgroupV2}, true},
		{host.Facts{Systemd: true, Cgroups: host.CgroupHybrid}, false},
		{host.Facts{Systemd: true, Cgroups: host.CgroupV1}, false},
		{host.Facts{Cgroups: host.CgroupV2}, false},
	} {
		if got := (&Config{}).systemdCgroups(c.facts); got != c.want {
			t.Errorf("%+v: systemd manages cgroups: %v", c.facts, got)
		}
	}
	for role, want := range map[Role]int{RoleWhole: 7001, RoleServer: 0} {
		u := &up{Config: &Config{Settings: Settings{Role: role, NodeName: "n", Ports: PortsFrom(7000)}}}
		if got := u.localAgent(); got.Port != want {
			t.Errorf("berth %s: the API server expects an agent at %+v", role.Command(), got)
		}
	}
	if trimUnix("unix:///run/a.sock") != "/run/a.sock" || trimUnix("/run/a.sock") != "/run/a.sock" {
		t.Error("an endpoint is a path, with or without unix://")
	}
}

// TestReservedPorts: no Service takes the address of the API server, of ssh or
// of what nodes speak among themselves.
func TestReservedPorts(t *testing.T) {
	u := &up{Config: &Config{Settings: Settings{Ports: PortsFrom(7000)}}}
	got := map[string]string{}
	for p, holder := range u.reservedPorts() {
		got[string(p.Protocol)+" "+netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(p.Number)).String()] = holder
	}
	for port, holder := range map[string]string{"TCP 0.0.0.0:22": "ssh of the hosts", "TCP 0.0.0.0:7000": "the API server",
		"TCP 0.0.0.0:7001": "the node agents", "TCP 0.0.0.0:7003": "the proxies' health check", "TCP 0.0.0.0:7006": "cluster DNS",
		"UDP 0.0.0.0:7006": "cluster DNS", "UDP 0.0.0.0:7007": "WireGuard between the nodes", "UDP 0.0.0.0:4789": "VXLAN between the nodes",
	} {
		if got[port] != holder {
			t.Errorf("%s is held by %q, want %q", port, got[port], holder)
		}
	}
	if got["UDP 0.0.0.0:7000"] != "" {
		t.Error("the API server has no UDP port")
	}
}
