package network

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/e2e/kit"
)

// TestDualStack gives pods and Services addresses of both families: a pod
// reaches every kind of Service at each of its addresses, and finds both by name.
func TestDualStack(t *testing.T) {
	c := kit.NewCluster(t, "--cluster-cidr", "10.218.0.0/16,fd00:10:218::/56", "--service-cidr", "10.219.0.0/16,fd00:10:219::/112")
	c.Up()
	c.Apply(twoFamilies)
	pods := c.WaitReady("default", "app=both", 2)
	for _, p := range pods {
		if len(p.Status.PodIPs) != 2 || netip.MustParseAddr(p.Status.PodIPs[0].IP).Is6() ||
			netip.MustParseAddr(p.Status.PodIPs[1].IP).Is4() {
			t.Fatalf("addresses of %s: %v", p.Name, p.Status.PodIPs)
		}
	}
	reach := func(what, ip, port string) {
		t.Helper()
		c.Eventually(what, func() (bool, string) { return reaches(c, &pods[0], net.JoinHostPort(ip, port)) })
	}
	reach("a pod's IPv6 address", pods[1].Status.PodIPs[1].IP, "8080")
	for name, want := range map[string]string{"both": "IPv4 IPv6", "prefers": "IPv4 IPv6", "six": "IPv6", "four": "IPv4"} {
		s := service(c, name)
		var got []string
		for i, f := range s.Spec.IPFamilies {
			got = append(got, string(f))
			if netip.MustParseAddr(s.Spec.ClusterIPs[i]).Is6() != (f == v1.IPv6Protocol) {
				t.Errorf("%s: address %s of family %s", name, s.Spec.ClusterIPs[i], f)
			}
			reach(name+" over "+string(f), s.Spec.ClusterIPs[i], "80")
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s has families %v, want %s", name, got, want)
		}
		out := c.Kubectl("exec", pods[0].Name, "--", "toolbox", "nslookup", name)
		for _, ip := range s.Spec.ClusterIPs {
			if !strings.Contains(out, ip+"\n") {
				t.Errorf("DNS does not know %s of %s: %s", ip, name, out)
			}
		}
	}
}

// TestOnlyIPv6 runs a cluster on a host that has no IPv4 at all.
func TestOnlyIPv6(t *testing.T) {
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "be6only"}}
	kit.Must(t, netlink.LinkAdd(link))
	t.Cleanup(func() { kit.Must(t, netlink.LinkDel(link)) })
	addr, err := netlink.ParseAddr("fd77::10/64")
	kit.Must(t, err)
	addr.Flags = unix.IFA_F_NODAD
	kit.Must(t, netlink.AddrAdd(link, addr))
	kit.Must(t, netlink.LinkSetUp(link))
	c := kit.NewCluster(t, "--node-ip", "fd77::10", "--cluster-cidr", "fd00:10:220::/56", "--service-cidr", "fd00:10:221::/112")
	c.Up()
	c.Apply(kit.SpreadManifest)
	pods := c.WaitReady("default", "app=spread", 1)
	if ips := pods[0].Status.PodIPs; len(ips) != 1 || netip.MustParseAddr(ips[0].IP).Is4() ||
		netip.MustParseAddr(pods[0].Status.HostIP).Is4() {
		t.Errorf("addresses %v on %s", ips, pods[0].Status.HostIP)
	}
	c.Eventually("the Service by name", func() (bool, string) { return reaches(c, &pods[0], "spread.default.svc.cluster.local:80") })
	if ip := service(c, "kubernetes").Spec.ClusterIP; ip != "fd00:10:221::1" {
		t.Errorf("the Service kubernetes is at %s", ip)
	}
}

func service(c *kit.Cluster, name string) *v1.Service {
	c.T.Helper()
	s, err := c.Client.CoreV1().Services("default").Get(context.Background(), name, metav1.GetOptions{})
	kit.Must(c.T, err)
	return s
}

const twoFamilies = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: both}
spec:
  replicas: 2
  selector: {matchLabels: {app: both}}
  template:
    metadata: {labels: {app: both}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - {name: c, image: "berth.dev/toolbox:1", args: [serve, "8080"]}
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {app: both}, ipFamilyPolicy: RequireDualStack, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: prefers}
spec: {selector: {app: both}, ipFamilyPolicy: PreferDualStack, type: NodePort, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: six}
spec: {selector: {app: both}, ipFamilies: [IPv6], ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: four}
spec: {selector: {app: both}, ports: [{port: 80, targetPort: 8080}]}
`
