package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vishvananda/netlink"
)

// Host is what the host's network says about addresses.
type Host struct {
	// Interfaces are the addresses of interfaces that are up.
	Interfaces []netip.Addr
	// Name is the host name parsed as an address; invalid if it is none.
	Name netip.Addr
	// Lookup are the addresses that DNS has for the node's name.
	Lookup []netip.Addr
	// Default4 and Default6 are the source addresses of the default routes.
	Default4, Default6 netip.Addr
}

// Addresses chooses what the node calls its addresses: --node-ip, else a host
// name that is an address, else what DNS says, else the default route's, else
// the only thing left: the first usable address of an interface. IPv4 goes
// first unless --node-ip is "::".
func Addresses(id Identity, host Host) ([]v1.NodeAddress, error) {
	given := id.NodeIPs
	if len(given) > 0 && !given[0].IsUnspecified() {
		for _, ip := range given {
			if err := checkNodeIP(ip, host.Interfaces); err != nil {
				return nil, err
			}
		}
		return nodeAddresses(id.Name, given), nil
	}
	wantSix := len(given) == 1 && given[0].Is6()
	forced := len(given) == 1
	candidates := []netip.Addr{}
	if !forced {
		candidates = append(candidates, host.Name)
		candidates = append(candidates, preferred(host.Lookup, wantSix)...)
	}
	candidates = append(candidates, preferred([]netip.Addr{host.Default4, host.Default6}, wantSix)...)
	candidates = append(candidates, preferred(host.Interfaces, wantSix)...)
	for _, ip := range candidates {
		if !ip.IsValid() || forced && ip.Is6() != wantSix {
			continue
		}
		if checkNodeIP(ip, host.Interfaces) == nil {
			return nodeAddresses(id.Name, []netip.Addr{ip}), nil
		}
	}
	return nil, fmt.Errorf("can't get ip address of node %s. error: no usable address on any interface, set --node-ip", id.Name)
}

// preferred orders addresses by family, keeping the order within one.
func preferred(ips []netip.Addr, six bool) []netip.Addr {
	var first, second []netip.Addr
	for _, ip := range ips {
		if ip.Is6() == six {
			first = append(first, ip)
		} else {
			second = append(second, ip)
		}
	}
	return append(first, second...)
}

func checkNodeIP(ip netip.Addr, interfaces []netip.Addr) error {
	switch {
	case ip.IsLoopback():
		return fmt.Errorf("node IP: %q is a loopback address", ip)
	case ip.IsMulticast():
		return fmt.Errorf("node IP: %q is a multicast address", ip)
	case ip.IsLinkLocalUnicast():
		return fmt.Errorf("node IP: %q is a link-local address", ip)
	case ip.IsUnspecified():
		return fmt.Errorf("node IP: %q is unspecified", ip)
	}
	for _, have := range interfaces {
		if have == ip {
			return nil
		}
	}
	return fmt.Errorf("node IP: %q not found in the host's network interfaces", ip)
}

// lookupBudget bounds the DNS question: a host without a reachable server
// must not come up seconds later for it.
const lookupBudget = 300 * time.Millisecond

// gatherHost asks the kernel, and DNS where lookup says so.
func gatherHost(ctx context.Context, name string, lookup bool) (Host, error) {
	var host Host
	var err error
	if host.Interfaces, err = upAddresses(); err != nil {
		return host, err
	}
	host.Name, _ = netip.ParseAddr(name)
	if lookup && !host.Name.IsValid() {
		asking, cancel := context.WithTimeout(ctx, lookupBudget)
		defer cancel()
		found, err := net.DefaultResolver.LookupNetIP(asking, "ip", name)
		if err == nil {
			for _, ip := range found {
				host.Lookup = append(host.Lookup, ip.Unmap())
			}
		}
	}
	host.Default4 = defaultSource(netlink.FAMILY_V4, host.Interfaces)
	host.Default6 = defaultSource(netlink.FAMILY_V6, host.Interfaces)
	return host, nil
}

// upAddresses are the addresses of interfaces that are up, in the order of
// these. It asks the kernel twice, however many interfaces there are: a node
// has one for each pod.
func upAddresses() ([]netip.Addr, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	up := make(map[int]bool, len(links))
	for _, link := range links {
		up[link.Index] = link.Flags&net.FlagUp != 0
	}
	found, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of network interfaces: %w", err)
	}
	var out []netip.Addr
	for _, addr := range found {
		if ip, ok := netip.AddrFromSlice(addr.IP); ok && up[addr.LinkIndex] {
			out = append(out, ip.Unmap())
		}
	}
	return out, nil
}

// defaultSource is the address the kernel would send from by default.
func defaultSource(family int, interfaces []netip.Addr) netip.Addr {
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: nil}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	best := routes[0]
	for _, route := range routes[1:] {
		if route.Priority < best.Priority {
			best = route
		}
	}
	if src, ok := netip.AddrFromSlice(best.Src); ok {
		return src.Unmap()
	}
	link, err := net.InterfaceByIndex(best.LinkIndex)
	if err != nil {
		return netip.Addr{}
	}
	addrs, err := link.Addrs()
	if err != nil {
		return netip.Addr{}
	}
	for _, addr := range addrs {
		prefix, ok := addr.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(prefix.IP)
		ip = ip.Unmap()
		if ok && ip.Is4() == (family == netlink.FAMILY_V4) && checkNodeIP(ip, interfaces) == nil {
			return ip
		}
	}
	return netip.Addr{}
}

// addressChanges subscribes to the kernel's notifications. Link-local addresses
// are left out: no node is called by one, and each pod's link gets one.
func addressChanges(ctx context.Context) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate, 16)
	if err := netlink.AddrSubscribe(updates, ctx.Done()); err != nil {
		return nil, fmt.Errorf("subscribing to address changes: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		for update := range updates { // closed when the context ends
			if !update.LinkAddress.IP.IsLinkLocalUnicast() {
				trigger(changed)
			}
		}
	}()
	return changed, nil
}
