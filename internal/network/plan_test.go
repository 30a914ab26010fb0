package network

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func ip(s string) netip.Addr     { return netip.MustParseAddr(s) }
func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func node(name, at string, pods ...string) clusterNode {
	n := clusterNode{Name: name, IPs: []netip.Addr{ip(at)}}
	for _, p := range pods {
		n.PodCIDRs = append(n.PodCIDRs, cidr(p))
	}
	return n
}

var (
	lan = []link{{Name: "eth0", Index: 2, MTU: 1500, Addrs: []netip.Prefix{cidr("192.0.2.1/24")}},
		{Name: "lo", Index: 1, Addrs: []netip.Prefix{cidr("127.0.0.1/8")}}}
	names = linkNames{Tunnel: "vx", VNI: 7}
)

func text(p plan) string {
	var b strings.Builder
	for _, r := range p.Routes {
		switch {
		case r.Unreachable:
			fmt.Fprintf(&b, "unreachable %s\n", r.Dst)
		case !r.Via.IsValid():
			fmt.Fprintf(&b, "%s dev %s\n", r.Dst, r.Link)
		default:
			fmt.Fprintf(&b, "%s via %s dev %s\n", r.Dst, r.Via, r.Link)
		}
	}
	if g := p.Guard; g != nil {
		fmt.Fprintf(&b, "guard %s port %d mtu %d %v\n", g.Name, g.Port, g.MTU, g.Addrs)
		for _, peer := range g.Peers {
			fmt.Fprintf(&b, "peer %s at %s %v every %s\n", nameOf[peer.PublicKey], peer.Endpoint, peer.Allowed, peer.Keepalive)
		}
	}
	if t := p.Tunnel; t != nil {
		fmt.Fprintf(&b, "tunnel %s vni %d from %s mtu %d %v\n", t.Name, t.VNI, t.Local, t.MTU, t.Addrs)
	}
	for _, n := range p.Neighbours {
		fmt.Fprintf(&b, "%s is %s\n", n.IP, n.MAC)
	}
	for _, f := range p.Forwards {
		fmt.Fprintf(&b, "%s is behind %s\n", f.MAC, f.Node)
	}
	for _, s := range p.Problems {
		fmt.Fprintf(&b, "problem: %s\n", s)
	}
	return b.String()
}

func TestDecide(t *testing.T) {
	a, b, c := node("a", "192.0.2.1", "10.244.0.0/24"), node("b", "192.0.2.2", "10.244.1.0/24"), node("c", "198.51.100.3", "10.244.2.0/24")
	macB, macC := macOf("b"), macOf("c")
	for _, tc := range []struct {
		name  string
		mode  Mode
		nodes []clusterNode
		want  string
	}{
		{"alone", Auto, []clusterNode{a}, ""},
		{"not there yet", Auto, []clusterNode{b}, ""},
		{"a neighbour", Auto, []clusterNode{a, b}, "10.244.1.0/24 via 192.0.2.2 dev eth0\n"},
		{"beyond a router", Auto, []clusterNode{a, b, c}, "10.244.1.0/24 via 192.0.2.2 dev eth0\n10.244.2.0/24 via 10.244.2.0 dev vx\n" +
			"tunnel vx vni 7 from 192.0.2.1 mtu 1450 [10.244.0.0]\n10.244.2.0 is " + macC + "\n" + macC + " is behind 198.51.100.3\n"},
		{"routes only", Routes, []clusterNode{a, b, c},
			"10.244.1.0/24 via 192.0.2.2 dev eth0\nproblem: node c ([198.51.100.3]) is on no link of this node: use network auto or " +
				"vxlan\n"},
		{"tunnels only", VXLAN, []clusterNode{a, b},
			"10.244.1.0/24 via 10.244.1.0 dev vx\ntunnel vx vni 7 from 192.0.2.1 mtu 1450 [10.244.0.0]\n10.244.1.0 is " + macB + "\n" +
				macB + " is behind 192.0.2.2\n"},
		{"a node without pods", Auto, []clusterNode{a, node("b", "192.0.2.2")}, ""},
		{"two nodes with one range", Auto, []clusterNode{a, node("z", "192.0.2.9", "10.244.1.0/24"), b},
			"10.244.1.0/24 via 192.0.2.2 dev eth0\n"},
		{"both families through a tunnel of one", VXLAN, []clusterNode{node("a", "192.0.2.1", "10.244.0.0/24", "fd00:0::/64"),
			node("b", "192.0.2.2", "10.244.1.0/24", "fd00:0:0:1::/64")},
			"10.244.1.0/24 via 10.244.1.0 dev vx\nfd00:0:0:1::/64 via fd00:0:0:1:: dev vx\ntunnel vx vni 7 from 192.0.2.1 mtu 1450 " +
				"[10.244.0.0 fd00::]\n" +
				"10.244.1.0 is " + macB + "\nfd00:0:0:1:: is " + macB + "\n" + macB + " is behind 192.0.2.2\n"},
		{"a range whose family no neighbour has", Auto, []clusterNode{a, node("b", "192.0.2.2", "fd00:0:0:1::/64")},
			"fd00:0:0:1::/64 via fd00:0:0:1:: dev vx\ntunnel vx vni 7 from 192.0.2.1 mtu 1450 [10.244.0.0]\nfd00:0:0:1:: is " + macB +
				"\n" + macB + " is behind 192.0.2.2\n"},
		{"no common family", VXLAN, []clusterNode{a, node("b", "2001:db8::2", "10.244.1.0/24")},
			"problem: node b ([2001:db8::2]) has no address of a family that this node ([192.0.2.1]) has\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := text(decide(tc.mode, "a", tc.nodes, lan, names)); got != tc.want {
				t.Errorf("got:\n%swant:\n%s", got, tc.want)
			}
		})
	}
}

// TestEveryNodeFindsEveryOther walks packets through the plans of all nodes of
// random clusters: what one sends another must take for its own.
func TestEveryNodeFindsEveryOther(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		var nodes []clusterNode
		links := map[string][]link{}
		for i := range 2 + r.IntN(6) {
			name := fmt.Sprintf("n%d", i)
			subnet := r.IntN(3)
			at := fmt.Sprintf("192.0.%d.%d", subnet, 10+i)
			nodes = append(nodes, guarded(name, at, fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:0:0:%x::/64", i+1)))
			links[name] = []link{{Name: "eth0", MTU: 1500, Addrs: []netip.Prefix{cidr(at + "/24")}}}
		}
		mode := []Mode{Auto, VXLAN, WireGuard}[r.IntN(3)]
		plans := map[string]plan{}
		for _, n := range slices.Clone(nodes) {
			r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			plans[n.Name] = decide(mode, n.Name, nodes, links[n.Name], guardNames(n.Name))
		}
		for _, from := range nodes {
			for _, to := range nodes {
				for _, dst := range to.PodCIDRs {
					if from.Name == to.Name {
						continue
					}
					if why := arrives(plans[from.Name], plans[to.Name], from, to, dst.Addr().Next()); why != "" {
						t.Fatalf("seed %d, %s: %s -> %s (%s): %s", seed, mode, from.Name, to.Name, dst, why)
					}
				}
			}
		}
	}
}

// arrives is the way of a packet, as the kernel would take it.
func arrives(from, to plan, sender, receiver clusterNode, dst netip.Addr) string {
	var r route
	for _, x := range from.Routes {
		if x.Dst.Contains(dst) && (!r.Dst.IsValid() || x.Dst.Bits() > r.Dst.Bits()) {
			r = x
		}
	}
	if !r.Dst.IsValid() || r.Unreachable {
		return "no route"
	}
	if from.Guard != nil && r.Link == from.Guard.Name {
		return unlocks(*from.Guard, *to.Guard, sender, receiver, dst)
	}
	if r.Link == "eth0" {
		if !slices.Contains(receiver.IPs, r.Via) || r.Via.Is4() != dst.Is4() {
			return "routed to " + r.Via.String()
		}
		return ""
	}
	n := slices.IndexFunc(from.Neighbours, func(n neighbour) bool { return n.IP == r.Via })
	if n < 0 {
		return "nobody knows " + r.Via.String()
	}
	f := slices.IndexFunc(from.Forwards, func(f forward) bool { return f.MAC == from.Neighbours[n].MAC })
	switch {
	case f < 0:
		return "no node has " + from.Neighbours[n].MAC
	case !slices.Contains(receiver.IPs, from.Forwards[f].Node):
		return "tunnelled to " + from.Forwards[f].Node.String()
	case to.Tunnel == nil || to.Tunnel.MAC != from.Forwards[f].MAC || to.Tunnel.VNI != from.Tunnel.VNI || !slices.Contains(sender.IPs,
		from.Tunnel.Local):
		return "the other end is another"
	case !slices.Contains(to.Tunnel.Addrs, r.Via):
		return "the other end does not have " + r.Via.String()
	}
	return ""
}

// unlocks is the way of a packet through WireGuard: the sender's device picks
// the peer by destination, the receiver's takes it by source.
func unlocks(from, to guard, sender, receiver clusterNode, dst netip.Addr) string {
	holds := func(p peer, ip netip.Addr) bool {
		return slices.ContainsFunc(p.Allowed, func(r netip.Prefix) bool { return r.Contains(ip) })
	}
	i := slices.IndexFunc(from.Peers, func(p peer) bool { return holds(p, dst) })
	j := slices.IndexFunc(to.Peers, func(p peer) bool { return p.PublicKey == from.PublicKey })
	switch {
	case i < 0 || from.Peers[i].PublicKey != to.PublicKey:
		return "encrypted for another"
	case !slices.Contains(receiver.IPs, from.Peers[i].Endpoint.Addr()) || int(from.Peers[i].Endpoint.Port()) != to.Port:
		return "sent to " + from.Peers[i].Endpoint.String()
	case j < 0:
		return "the other end does not know the key"
	}
	for _, r := range sender.PodCIDRs {
		if !holds(to.Peers[j], r.Addr()) || !holds(to.Peers[j], r.Addr().Next()) {
			return "the other end does not take what is from " + r.String()
		}
	}
	return ""
}

func TestRoomForTunnels(t *testing.T) {
	for _, tc := range []struct {
		mode Mode
		node string
		want int
	}{{Auto, "192.0.2.1", 50}, {"", "192.0.2.1", 50}, {VXLAN, "2001:db8::1", 70}, {WireGuard, "192.0.2.1", 60},
		{WireGuard, "2001:db8::1", 80}, {Routes, "192.0.2.1", 0}, {None, "192.0.2.1", 0}} {
		if got := tc.mode.Overhead(ip(tc.node)); got != tc.want {
			t.Errorf("%q on %s takes %d bytes, want %d", tc.mode, tc.node, got, tc.want)
		}
	}
}

func TestNumbersOfClusters(t *testing.T) {
	a, b := vniOf([]netip.Prefix{cidr("10.244.0.0/16")}), vniOf([]netip.Prefix{cidr("10.245.0.0/16")})
	if a == b || a < 1 || a > 1<<24-1 || a != vniOf([]netip.Prefix{cidr("10.244.3.4/16")}) {
		t.Errorf("numbers %d and %d: they must differ, fit 24 bits and follow the range alone", a, b)
	}
	if _, err := ParseMode("ipsec"); err == nil || !strings.Contains(err.Error(), "allowed are") {
		t.Errorf("an unknown mode gives %v", err)
	}
}
