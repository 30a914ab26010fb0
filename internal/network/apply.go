package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// protocol marks routes as ours; the kernel leaves its meaning to us.
const protocol = 98

// hostNetwork is the network of one host, or of one namespace in tests.
type hostNetwork struct {
	handle *netlink.Handle
	// cluster are the ranges of all pods: only routes within are ours.
	cluster []netip.Prefix
	tunnel  string
	guard   *guardian
}

func openHost(cluster []netip.Prefix, tunnel, guard string, ns ...netns.NsHandle) (*hostNetwork, error) {
	var h *netlink.Handle
	var err error
	if len(ns) > 0 {
		h, err = netlink.NewHandleAt(ns[0], unix.NETLINK_ROUTE)
	} else {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the machine's network: %w", err)
	}
	return &hostNetwork{h, cluster, tunnel, &guardian{name: guard, space: ns}}, nil
}

func (m *hostNetwork) close() {
	m.guard.close()
	m.handle.Close()
}

// wholeTries is how often a listing is asked for again; pods that come and go
// change the tables many times a second, but not every time.
const wholeTries = 100

// whole lists until nothing changed meanwhile: what the kernel reads out while
// it changes may have holes.
func whole[T any](list func() ([]T, error)) (out []T, err error) {
	for range wholeTries {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

// links lists the interfaces and their addresses.
func (m *hostNetwork) links() ([]link, error) {
	list, err := whole(m.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("listing the machine's links: %w", err)
	}
	var out []link
	for _, l := range list {
		addrs, err := whole(func() ([]netlink.Addr, error) { return m.handle.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return nil, fmt.Errorf("listing the addresses of %s: %w", l.Attrs().Name, err)
		}
		link := link{Name: l.Attrs().Name, Index: l.Attrs().Index, MTU: l.Attrs().MTU}
		for _, a := range addrs {
			if p, ok := prefix(a.IPNet); ok {
				link.Addrs = append(link.Addrs, p)
			}
		}
		out = append(out, link)
	}
	return out, nil
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits), ok
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// apply makes the host look as planned. It changes only what differs, so it
// may be repeated; changed counts what it did.
func (m *hostNetwork) apply(p plan) (changed int, err error) {
	did := func(n int, e error) bool {
		changed += n
		err = errors.Join(err, e)
		return e == nil
	}
	routes := p.Routes
	if p.Tunnel != nil {
		device, n, err := m.ensureTunnel(*p.Tunnel)
		if !did(n, err) || !did(m.ensurePeers(device, p)) {
			return changed, err
		}
	}
	if p.Guard != nil && !did(m.ensureGuard(*p.Guard)) {
		// What is not encrypted must end all the same: ways of another mode go,
		// and those through the device lead to known peers or nowhere.
		if _, err := m.handle.LinkByName(p.Guard.Name); err != nil {
			routes = slices.DeleteFunc(slices.Clone(routes), func(r route) bool { return !r.Unreachable })
		}
	}
	if !did(m.ensureRoutes(routes)) {
		return changed, err
	}
	if p.Tunnel == nil {
		did(m.removeLink(m.tunnel))
	}
	if p.Guard == nil {
		did(m.removeLink(m.guard.name))
	}
	return changed, err
}

func (m *hostNetwork) removeLink(name string) (changed int, err error) {
	if name == "" {
		return 0, nil
	}
	l, err := m.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, nil
	}
	if err == nil {
		err = m.handle.LinkDel(l)
	}
	if err != nil {
		return 0, fmt.Errorf("removing the tunnel %s: %w", name, err)
	}
	return 1, nil
}

// ensureTunnel makes the device, or makes it again if it is another one.
func (m *hostNetwork) ensureTunnel(t tunnel) (netlink.Link, int, error) {
	mac, err := net.ParseMAC(t.MAC)
	if err != nil {
		return nil, 0, err
	}
	under, err := m.linkOf(t.Local)
	if err != nil {
		return nil, 0, err
	}
	want := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: t.Name, MTU: t.MTU, HardwareAddr: mac}, VxlanId: t.VNI, Port: Port,
		SrcAddr: t.Local.AsSlice(), VtepDevIndex: under, Learning: false}
	changed := 0
	link, err := m.handle.LinkByName(t.Name)
	if err == nil && !sameTunnel(link, want) {
		if err := m.handle.LinkDel(link); err != nil {
			return nil, 0, fmt.Errorf("replacing the tunnel %s: %w", t.Name, err)
		}
		changed++
		link, err = m.handle.LinkByName(t.Name)
	}
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		changed++
		if err := m.handle.LinkAdd(want); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				err = fmt.Errorf("%w: does this kernel have CONFIG_VXLAN?", err)
			}
			return nil, changed, fmt.Errorf("making the tunnel %s: %w", t.Name, err)
		}
		link, err = m.handle.LinkByName(t.Name)
	}
	if err != nil {
		return nil, changed, fmt.Errorf("looking at the tunnel %s: %w", t.Name, err)
	}
	n, err := m.ensureAddrs(link, t.Addrs)
	changed += n
	if err == nil && link.Attrs().Flags&net.FlagUp == 0 {
		changed++
		err = m.handle.LinkSetUp(link)
	}
	if err != nil {
		return nil, changed, fmt.Errorf("setting up the tunnel %s: %w", t.Name, err)
	}
	return link, changed, nil
}

func sameTunnel(l netlink.Link, want *netlink.Vxlan) bool {
	have, ok := l.(*netlink.Vxlan)
	return ok && have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) &&
		have.VtepDevIndex == want.VtepDevIndex &&
		!have.Learning && have.MTU == want.MTU && have.HardwareAddr.String() == want.HardwareAddr.String()
}

// linkOf is the index of the link that has an address.
func (m *hostNetwork) linkOf(ip netip.Addr) (int, error) {
	links, err := m.links()
	if err != nil {
		return 0, err
	}
	for _, l := range links {
		if slices.ContainsFunc(l.Addrs, func(a netip.Prefix) bool { return a.Addr() == ip }) {
			return l.Index, nil
		}
	}
	return 0, fmt.Errorf("no link of this machine has the node's address %s", ip)
}

func (m *hostNetwork) ensureAddrs(l netlink.Link, want []netip.Addr) (changed int, err error) {
	have, err := whole(func() ([]netlink.Addr, error) { return m.handle.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return 0, err
	}
	held := map[netip.Prefix]bool{}
	for _, a := range have {
		p, ok := prefix(a.IPNet)
		if !ok || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if !p.IsSingleIP() || !slices.Contains(want, p.Addr()) {
			changed++
			if err := m.handle.AddrDel(l, &a); err != nil {
				return changed, err
			}
			continue
		}
		held[p] = true
	}
	for _, ip := range want {
		p := netip.PrefixFrom(ip, ip.BitLen())
		if held[p] {
			continue
		}
		changed++
		a := &netlink.Addr{IPNet: ipNet(p)}
		if ip.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := m.handle.AddrReplace(l, a); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// ensurePeers fills the tunnel's two tables and empties them of others.
func (m *hostNetwork) ensurePeers(l netlink.Link, p plan) (changed int, err error) {
	want := map[string]netlink.Neigh{}
	for _, n := range p.Neighbours {
		family := unix.AF_INET
		if n.IP.Is6() {
			family = unix.AF_INET6
		}
		want[n.IP.String()] = neigh(l, family, n.IP, n.MAC)
	}
	for _, f := range p.Forwards {
		n := neigh(l, unix.AF_BRIDGE, f.Node, f.MAC)
		n.Flags = unix.NTF_SELF
		want["behind "+f.MAC] = n
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		have, err := m.handle.NeighList(l.Attrs().Index, family)
		if err != nil {
			return changed, fmt.Errorf("listing the peers of tunnel %s: %w", l.Attrs().Name, err)
		}
		for _, n := range have {
			key := n.IP.String()
			if family == unix.AF_BRIDGE {
				key = "behind " + n.HardwareAddr.String()
			} else if n.State&unix.NUD_PERMANENT == 0 || n.IP.IsMulticast() {
				continue // the kernel's own
			}
			w, ok := want[key]
			if ok && w.IP.Equal(n.IP) && w.HardwareAddr.String() == n.HardwareAddr.String() {
				delete(want, key)
				continue
			}
			changed++
			if err := m.handle.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				return changed, fmt.Errorf("removing a peer from tunnel %s: %w", l.Attrs().Name, err)
			}
		}
	}
	for _, n := range want {
		changed++
		if err := m.handle.NeighSet(&n); err != nil {
			return changed, fmt.Errorf("adding peer %s (%s) to tunnel %s: %w", n.IP, n.HardwareAddr, l.Attrs().Name, err)
		}
	}
	return changed, nil
}

func neigh(l netlink.Link, family int, ip netip.Addr, mac string) netlink.Neigh {
	hw, _ := net.ParseMAC(mac) // made by MACOf
	return netlink.Neigh{LinkIndex: l.Attrs().Index, Family: family, State: unix.NUD_PERMANENT, IP: ip.AsSlice(), HardwareAddr: hw}
}

// lastResort is the metric of routes that end what no other takes: one to the
// same range, such as that of a bridge, goes before.
const lastResort = 1 << 20

// way tells routes apart: one that leads somewhere may have the range of one
// that ends there.
type way struct {
	dst         netip.Prefix
	unreachable bool
}

// ensureRoutes makes the routes and removes those of ours that are not wanted,
// first: they may lead where nothing must be sent any more. One that cannot be
// made stands in no other's way.
func (m *hostNetwork) ensureRoutes(want []route) (changed int, err error) {
	have, err := m.ours()
	if err != nil {
		return 0, err
	}
	old := map[way]netlink.Route{}
	for _, r := range have {
		if p, ok := prefix(r.Dst); ok {
			old[way{p, r.Type == unix.RTN_UNREACHABLE}] = r
		}
	}
	kept := map[way]bool{}
	for _, w := range want {
		kept[way{w.Dst, w.Unreachable}] = true
	}
	for w, r := range old {
		if kept[w] {
			continue
		}
		changed++
		if e := m.handle.RouteDel(&r); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("removing the route to %s: %w", w.dst, e))
		}
	}
	for _, w := range want {
		o, ok := old[way{w.Dst, w.Unreachable}]
		n, e := m.ensureRoute(w, o, ok)
		changed += n
		err = errors.Join(err, e)
	}
	return changed, err
}

func (m *hostNetwork) ensureRoute(w route, old netlink.Route, is bool) (changed int, err error) {
	r := &netlink.Route{Dst: ipNet(w.Dst), Protocol: protocol, Type: unix.RTN_UNREACHABLE, Priority: lastResort}
	if !w.Unreachable {
		link, err := m.handle.LinkByName(w.Link)
		if err != nil {
			return 0, fmt.Errorf("routing %s through %s: %w", w.Dst, w.Link, err)
		}
		r = &netlink.Route{Dst: r.Dst, Protocol: protocol, LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK}
		if w.Via.IsValid() {
			r.Gw, r.Scope, r.Flags = w.Via.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
		}
	}
	if is && (w.Unreachable || old.LinkIndex == r.LinkIndex && old.Gw.Equal(r.Gw)) {
		return 0, nil
	}
	if is && w.Dst.Addr().Is6() {
		// IPv6 replaces only a route through the same link.
		if err := m.handle.RouteDel(&old); err != nil && !errors.Is(err, unix.ESRCH) {
			return 1, fmt.Errorf("replacing the route to %s: %w", w.Dst, err)
		}
	}
	if err := m.handle.RouteReplace(r); err != nil {
		return 1, fmt.Errorf("routing %s via %s through %s: %w", w.Dst, w.Via, w.Link, err)
	}
	return 1, nil
}

// ours are the routes that some run of this cluster made.
func (m *hostNetwork) ours() ([]netlink.Route, error) {
	var out []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := whole(func() ([]netlink.Route, error) {
			return m.handle.RouteListFiltered(family, &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_MAIN},
				netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for _, r := range list {
			p, ok := prefix(r.Dst)
			if ok && slices.ContainsFunc(m.cluster, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) }) {
				out = append(out, r)
			}
		}
	}
	return out, nil
}
