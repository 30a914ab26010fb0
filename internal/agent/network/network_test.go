package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/testkit/golden"
)

func TestParseResolvConf(t *testing.T) {
	r := ParseResolvConf("# head\nnameserver 1.1.1.1 # tail\nnameserver bogus\nnameserver fe80::1%eth0\nsearch old.example\nsearch " +
		"a.example. . b.example\noptions ndots:2 edns0\noptions rotate\nsortlist x\n;nameserver 9.9.9.9\n")
	got := fmt.Sprint(r.Servers, r.Searches, r.Options)
	if want := "[1.1.1.1 fe80::1%eth0] [a.example . b.example] [ndots:2 edns0 rotate]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a b\noptions x")
	f.Add("search \x00\nnameserver\n")
	f.Fuzz(func(t *testing.T, s string) {
		r := ParseResolvConf(s)
		// What was read, written again, reads the same.
		var b strings.Builder
		for _, x := range r.Servers {
			b.WriteString("nameserver " + x + "\n")
		}
		if len(r.Searches) > 0 {
			b.WriteString("search " + strings.Join(r.Searches, " ") + "\n")
		}
		again := ParseResolvConf(b.String())
		if len(again.Servers) != len(r.Servers) {
			t.Errorf("servers %q became %q", r.Servers, again.Servers)
		}
	})
}

func pod(policy v1.DNSPolicy, hostNetwork bool, c *v1.PodDNSConfig) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec:       v1.PodSpec{DNSPolicy: policy, HostNetwork: hostNetwork, DNSConfig: c},
	}
}

func TestComposeDNS(t *testing.T) {
	two := "2"
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("s%d.example", i)
	}
	cluster := []string{"10.0.0.10"}
	host := Resolver{Servers: []string{"9.9.9.9"}, Searches: []string{"corp", "svc.dom"}, Options: []string{"timeout:3"}}
	const first = "ns.svc.dom svc.dom dom corp"
	for _, c := range []struct {
		name    string
		in      DNSInput
		want    string
		warning string
	}{
		{"cluster first", DNSInput{Pod: pod(v1.DNSClusterFirst, false, nil), ClusterDNS: cluster}, "10.0.0.10|" + first + "|ndots:5", ""},
		{"unset is cluster first", DNSInput{Pod: pod("", false, nil), ClusterDNS: cluster}, "10.0.0.10|" + first + "|ndots:5", ""},
		{"host network", DNSInput{Pod: pod(v1.DNSClusterFirst, true, nil), ClusterDNS: cluster}, "9.9.9.9|corp svc.dom|timeout:3", ""},
		{"with host network", DNSInput{Pod: pod(v1.DNSClusterFirstWithHostNet, true, nil), ClusterDNS: cluster},
			"10.0.0.10|" + first + "|ndots:5", ""},
		{"default", DNSInput{Pod: pod(v1.DNSDefault, false, nil), ClusterDNS: cluster}, "9.9.9.9|corp svc.dom|timeout:3", ""},
		{"default without a host resolver", DNSInput{Pod: pod(v1.DNSDefault, false, nil), NoHost: true, HostIP: "192.0.2.1"},
			"127.0.0.1|.|", ""},
		{"the same on IPv6", DNSInput{Pod: pod(v1.DNSDefault, false, nil), NoHost: true, HostIP: "2001:db8::1"}, "::1|.|", ""},
		{"none", DNSInput{Pod: pod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}}), ClusterDNS: cluster},
			"1.1.1.1||", ""},
		{"no cluster resolver", DNSInput{Pod: pod(v1.DNSClusterFirst, false, nil)}, "9.9.9.9|corp svc.dom|timeout:3", "MissingClusterDNS"},
		{
			"options override by name",
			DNSInput{Pod: pod(v1.DNSClusterFirst, false, &v1.PodDNSConfig{Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two},
				{Name: "edns0"}}, Searches: []string{"dom", "mine"}}), ClusterDNS: cluster},
			"10.0.0.10|" + first + " mine|ndots:2 edns0", "",
		},
		{
			"too many of everything",
			DNSInput{Pod: pod(v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"},
				Searches: many})},
			"1.1.1.1 1.1.1.2 1.1.1.3|" + strings.Join(many[:32], " ") + "|", "DNSConfigForming DNSConfigForming",
		},
		{
			"too long a search line",
			DNSInput{Pod: pod(v1.DNSNone, false, &v1.PodDNSConfig{Searches: []string{strings.Repeat("a", 2048), "b"}})},
			"|" + strings.Repeat("a", 2048) + "|", "DNSConfigForming",
		},
	} {
		c.in.Host, c.in.ClusterDomain = host, "dom"
		r, warnings, err := ComposeDNS(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		got := strings.Join(r.Servers, " ") + "|" + strings.Join(r.Searches, " ") + "|" + strings.Join(r.Options, " ")
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
		var reasons []string
		for _, w := range warnings {
			reasons = append(reasons, w.Reason)
		}
		if strings.Join(reasons, " ") != c.warning {
			t.Errorf("%s: warnings %v", c.name, warnings)
		}
	}
	if _, _, err := ComposeDNS(DNSInput{Pod: pod("Odd", false, nil)}); err == nil {
		t.Error("an unknown policy was accepted")
	}
}

func TestHostname(t *testing.T) {
	yes, override := true, "over.ride"
	for _, c := range []struct {
		name               string
		spec               v1.PodSpec
		host, domain, fqdn string
		fails              bool
	}{
		{"p", v1.PodSpec{}, "p", "", "p", false},
		{"p", v1.PodSpec{Hostname: "h", Subdomain: "s"}, "h", "s.ns.svc.dom", "h", false},
		{"p", v1.PodSpec{Hostname: "h", Subdomain: "s", SetHostnameAsFQDN: &yes}, "h", "s.ns.svc.dom", "h.s.ns.svc.dom", false},
		{"p", v1.PodSpec{SetHostnameAsFQDN: &yes}, "p", "", "p", false},
		{strings.Repeat("a", 62) + "-.x", v1.PodSpec{}, strings.Repeat("a", 62), "", strings.Repeat("a", 62), false},
		{strings.Repeat("a", 60), v1.PodSpec{Subdomain: "s", SetHostnameAsFQDN: &yes}, "", "", "", true},
		{"p", v1.PodSpec{HostnameOverride: &override, Subdomain: "s"}, "over.ride", "", "over.ride", false},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: c.name}, Spec: c.spec}
		host, domain, fqdn, err := Hostname(p, "dom")
		if (err != nil) != c.fails || host != c.host || domain != c.domain || fqdn != c.fqdn {
			t.Errorf("%s: %q %q %q %v", c.name, host, domain, fqdn, err)
		}
	}
}

func TestHostsFile(t *testing.T) {
	got := HostsFile([]string{"10.0.0.1", "fd00::1"}, "h", "s.ns.svc.dom", []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"x", "y"}}})
	want := "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost " +
		"ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n" +
		"10.0.0.1\th.s.ns.svc.dom\th\nfd00::1\th.s.ns.svc.dom\th\n\n# Entries added by HostAliases.\n1.2.3.4\tx\ty\n"
	if got != want {
		t.Errorf("got:\n%s", got)
	}
}

func TestWriteCNI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cni", "net.d")
	cidrs := []string{"10.1.0.0/24", "fd00:1::/64"}
	opts := CNIOptions{Bridge: "br-test", MTU: 1400, Masquerade: true, DataDir: "/leases"}
	if err := WriteCNI(dir, cidrs, opts); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "10-berth.conflist")
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/dual.conflist", string(got))
	one, err := cniConfig(cidrs, CNIOptions{Bridge: "br-test", OneStep: true})
	if err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/onestep.conflist", string(one))
	before, _ := os.Stat(file)
	if err := WriteCNI(dir, cidrs, opts); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(file); !os.SameFile(before, after) {
		t.Error("an unchanged file was replaced")
	}
	if err := WriteCNI(dir, []string{"10.2.0.0/24"}, opts); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(file); !strings.Contains(string(b), "10.2.0.0/24") || strings.Contains(string(b), "10.1.0.0/24") {
		t.Errorf("the new range is not there:\n%s", b)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left %v", entries)
	}
	for range 2 {
		if err := RemoveCNI(dir, opts); err != nil {
			t.Error(err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("removing left %v", entries)
	}
	for _, bad := range []struct {
		cidrs []string
		opts  CNIOptions
	}{{nil, opts}, {[]string{"nonsense"}, opts}, {cidrs, CNIOptions{Bridge: "a-name-that-is-too-long"}},
		{cidrs, CNIOptions{MasqueradeBackend: "ebtables"}}} {
		if err := WriteCNI(dir, bad.cidrs, bad.opts); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestCheckLimits(t *testing.T) {
	many := strings.Fields(strings.Repeat("a.b ", 30))
	long := []string{strings.Repeat("a", 2049)}
	for _, c := range []struct {
		searches []string
		domain   string
		want     string
	}{
		{many, "", ""},
		{many, "cluster.local", "Resolv.conf file '/r' contains search line consisting of more than 29 domains!"},
		{long, "cluster.local", "Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"},
		{many[:29], "cluster.local", ""},
	} {
		if got := strings.Join(CheckLimits("/r", Resolver{Searches: c.searches}, c.domain), "; "); got != c.want {
			t.Errorf("%d domains of a node with %q: %q, want %q", len(c.searches), c.domain, got, c.want)
		}
	}
}
