package proxy

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/model"
)

// forget removes connections that lead to endpoints no longer there. Nothing
// ends a UDP flow: the kernel would keep sending a client that uses one
// source port to the old endpoint for as long as it sends.
func (r *runner) forget(w *writer, c *model.Changes) {
	if len(c.Stale) == 0 {
		return
	}
	family := netlink.InetFamily(unix.AF_INET)
	if w.layout.Family == model.V6 {
		family = unix.AF_INET6
	}
	var filters []netlink.CustomConntrackFilter
	for _, s := range c.Stale {
		filters = append(filters, staleFilter{s})
	}
	n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...)
	if err != nil {
		r.cfg.Log.Error("removing stale connections", "removed", n, "err", err)
	}
	r.metrics.stale.WithLabelValues(w.layout.Family.String()).Add(float64(n))
}

type staleFilter struct{ model.Stale }

// MatchConntrackFlow says whether a flow went to a frontend and is answered
// by something that is not an endpoint of it any more.
func (f staleFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != f.Proto {
		return false
	}
	dst, reply := addrPort(flow.Forward.DstIP, flow.Forward.DstPort), addrPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	hit := slices.ContainsFunc(f.Fronts, func(a netip.AddrPort) bool {
		return a == dst || !a.Addr().IsValid() && a.Port() == dst.Port() && dst != reply
	})
	if len(f.Gone) > 0 {
		return hit && slices.Contains(f.Gone, reply)
	}
	return hit && !slices.Contains(f.Keep, reply)
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
