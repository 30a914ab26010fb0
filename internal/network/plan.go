package network

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Mode is how packets of pods reach other nodes.
type Mode string

// The modes.
const (
	// Auto routes to nodes on a shared link and tunnels to all others.
	Auto Mode = "auto"
	// Routes never tunnels; nodes beyond a router are reported.
	Routes Mode = "routes"
	// VXLAN tunnels to every node.
	VXLAN Mode = "vxlan"
	// WireGuard encrypts what goes to any node, and sends nothing in clear.
	WireGuard Mode = "wireguard"
	// None leaves the pod network to another party.
	None Mode = "none"
)

// ParseMode reads a flag; empty is Auto.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return Auto, nil
	case Auto, Routes, VXLAN, WireGuard, None:
		return m, nil
	}
	return "", fmt.Errorf("network %q: allowed are auto, routes, vxlan, wireguard and none", s)
}

// Port is the UDP port of VXLAN, as assigned by IANA: the one that firewalls
// and network cards know.
const Port = 4789

// Overhead is what tunnels of a mode take from every packet on a node whose
// address is of this family.
func (m Mode) Overhead(node netip.Addr) int {
	ip := 40
	if node.Is4() {
		ip = 20
	}
	switch m {
	case Routes, None:
		return 0
	case WireGuard:
		return ip + 8 + 32 // UDP 8, WireGuard's header and tag 32
	}
	return ip + 8 + 22 // UDP 8, VXLAN 8, Ethernet 14
}

// clusterNode is what the network knows of a node.
type clusterNode struct {
	Name string
	// IPs are its internal addresses, the main one first.
	IPs      []netip.Addr
	PodCIDRs []netip.Prefix
	// Published is its Annotation; empty if it has none.
	Published string
}

// link is an interface of this host with its addresses.
type link struct {
	Name  string
	Index int
	MTU   int
	Addrs []netip.Prefix
}

// route leads to the pods of another node.
type route struct {
	Dst  netip.Prefix
	Via  netip.Addr // invalid: what is behind Link
	Link string
	// Unreachable ends what no other route takes.
	Unreachable bool
}

// tunnel is the VXLAN device of this node.
type tunnel struct {
	Name  string
	VNI   int
	Local netip.Addr
	MTU   int
	MAC   string
	// Addrs are what this node sends with and others send to through it: the
	// first of its pod CIDRs, which no pod gets.
	Addrs []netip.Addr
}

// neighbour tells the tunnel which device an address belongs to.
type neighbour struct {
	IP  netip.Addr
	MAC string
}

// forward tells the tunnel which node a device is behind.
type forward struct {
	MAC  string
	Node netip.Addr
}

// plan is what this host's network must look like.
type plan struct {
	Routes     []route
	Tunnel     *tunnel
	Neighbours []neighbour
	Forwards   []forward
	Guard      *guard
	// Own are the ranges of this node's pods.
	Own []netip.Prefix
	// Problems are nodes whose pods cannot be reached, and why.
	Problems []string
}

// linkNames are those of this cluster on this host.
type linkNames struct {
	// Tunnel is the name of the VXLAN device.
	Tunnel string
	// VNI is the same on every node, and differs between clusters that share
	// a host.
	VNI int
	// Guard is the name of the WireGuard device.
	Guard string
	// published is what this node tells others of it.
	published
	// Cluster are the ranges of all pods.
	Cluster []netip.Prefix
}

// vniOf derives the number of a cluster's tunnels from its pod CIDRs, which
// all its nodes know and no cluster on the same machine shares.
func vniOf(clusterCIDRs []netip.Prefix) int {
	h := sha256.New()
	for _, c := range clusterCIDRs {
		fmt.Fprintln(h, c.Masked())
	}
	return 1 + int(binary.BigEndian.Uint32(h.Sum(nil))%(1<<24-1))
}

// macOf is the address of a node's tunnel device: derived from its name, so
// that no one has to publish it.
func macOf(node string) string {
	sum := sha256.Sum256([]byte(node))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2 // local, unicast
	return mac.String()
}

// decide says what the network of node self must look like. Before that node
// has an address nothing is known of what it should reach.
func decide(mode Mode, self string, nodes []clusterNode, links []link, names linkNames) plan {
	var p plan
	at := slices.IndexFunc(nodes, func(n clusterNode) bool { return n.Name == self })
	if at < 0 || len(nodes[at].IPs) == 0 {
		return p
	}
	own := nodes[at]
	p.Own = own.PodCIDRs
	d := decider{mode: mode, own: own, links: links, names: names, plan: &p, taken: map[netip.Prefix]bool{}}
	if mode == WireGuard {
		d.startGuard()
	}
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b clusterNode) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if n.Name != self && len(n.PodCIDRs) > 0 {
			d.reach(n)
		}
	}
	slices.SortFunc(p.Routes, func(a, b route) int {
		return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()))
	})
	// A node that is on its way out may still hold the range that a new one
	// was given: the first by name keeps it until the other is gone.
	p.Routes = slices.CompactFunc(p.Routes, func(a, b route) bool { return a.Dst == b.Dst && a.Unreachable == b.Unreachable })
	return p
}

type decider struct {
	mode  Mode
	own   clusterNode
	links []link
	names linkNames
	plan  *plan
	// taken are the ranges that are on this node or behind a peer already, keys
	// who has a key: in mode WireGuard only.
	taken map[netip.Prefix]bool
	keys  map[wgtypes.Key]string
}

// reach adds the way to one node.
func (d *decider) reach(n clusterNode) {
	if d.mode == WireGuard {
		d.guard(n)
		return
	}
	if d.mode != VXLAN {
		if d.direct(n) {
			return
		}
		if d.mode == Routes {
			d.plan.Problems = append(d.plan.Problems, fmt.Sprintf("node %s (%v) is on no link of this node: use network auto or vxlan",
				n.Name, n.IPs))
			return
		}
	}
	d.tunnel(n)
}

// direct routes to a node that shares a link with this one; a pod CIDR needs
// a neighbour of its own family.
func (d *decider) direct(n clusterNode) bool {
	var routes []route
	for _, cidr := range n.PodCIDRs {
		i := slices.IndexFunc(n.IPs, func(ip netip.Addr) bool { return ip.Is4() == cidr.Addr().Is4() && d.sharedLink(ip) != "" })
		if i < 0 {
			return false
		}
		routes = append(routes, route{Dst: cidr.Masked(), Via: n.IPs[i], Link: d.sharedLink(n.IPs[i])})
	}
	d.plan.Routes = append(d.plan.Routes, routes...)
	return true
}

// sharedLink is the link that one of this node's own addresses and ip are on.
func (d *decider) sharedLink(ip netip.Addr) string {
	for _, l := range d.links {
		for _, a := range l.Addrs {
			if slices.Contains(d.own.IPs, a.Addr()) && a.Contains(ip) && a.Addr() != ip {
				return l.Name
			}
		}
	}
	return ""
}

// tunnel sends to a node through VXLAN.
func (d *decider) tunnel(n clusterNode) {
	local, remote, ok := d.endpoints(n)
	if !ok {
		d.plan.Problems = append(d.plan.Problems, fmt.Sprintf("node %s (%v) has no address of a family that this node (%v) has", n.Name,
			n.IPs, d.own.IPs))
		return
	}
	t := d.plan.Tunnel
	if t == nil {
		t = &tunnel{Name: d.names.Tunnel, VNI: d.names.VNI, Local: local, MTU: d.mtu(local, VXLAN), MAC: macOf(d.own.Name)}
		for _, c := range d.own.PodCIDRs {
			t.Addrs = append(t.Addrs, c.Masked().Addr())
		}
		d.plan.Tunnel = t
	}
	if t.Local.Is4() != remote.Is4() {
		d.plan.Problems = append(d.plan.Problems, fmt.Sprintf("node %s (%s) cannot be reached through a tunnel from %s", n.Name, remote,
			t.Local))
		return
	}
	mac := macOf(n.Name)
	d.plan.Forwards = append(d.plan.Forwards, forward{mac, remote})
	for _, c := range n.PodCIDRs {
		via := c.Masked().Addr()
		d.plan.Neighbours = append(d.plan.Neighbours, neighbour{via, mac})
		d.plan.Routes = append(d.plan.Routes, route{Dst: c.Masked(), Via: via, Link: t.Name})
	}
}

func (d *decider) endpoints(n clusterNode) (local, remote netip.Addr, ok bool) {
	for _, local := range d.own.IPs {
		for _, remote := range n.IPs {
			if local.Is4() == remote.Is4() {
				return local, remote, true
			}
		}
	}
	return local, remote, false
}

// mtu is what fits into the link of an address through tunnels of a mode.
func (d *decider) mtu(local netip.Addr, mode Mode) int {
	for _, l := range d.links {
		if slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == local }) {
			return l.MTU - mode.Overhead(local)
		}
	}
	return 1500 - mode.Overhead(local)
}
