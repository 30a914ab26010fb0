package proxy

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/proxy/conntrack"
	"github.com/berth-dev/berth/internal/proxy/model"
)

// forget removes connections that lead to endpoints no longer there. Nothing
// ends a UDP flow: the kernel would keep sending a client that uses one
// source port to the old endpoint for as long as it sends.
func (r *runner) forget(w *writer, stale []model.Stale) {
	if len(stale) == 0 {
		return
	}
	start := time.Now()
	n, err := forget(w.layout.Family, stale)
	family := w.layout.Family.String()
	if err != nil {
		r.cfg.Log.Error("removing stale connections", "family", family, "removed", n, "err", err)
	}
	r.metrics.stale.WithLabelValues(family).Add(float64(n))
	r.metrics.staleTook.WithLabelValues(family).Observe(time.Since(start).Seconds())
}

// askEach is up to how many endpoints the kernel is asked for their flows one
// by one; beyond, it is asked for all flows of the protocol at once. So it is
// for IPv6: Linux 6.18 leaves out the very flows whose IPv6 address is asked for.
const askEach = 8

func forget(f model.Family, stale []model.Stale) (int, error) {
	family := uint8(unix.AF_INET)
	if f == model.V6 {
		family = unix.AF_INET6
	}
	total := 0
	var errs []error
	for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_SCTP} {
		of := newStaleFlows(proto, stale)
		if len(of.byVIP) == 0 {
			continue
		}
		filters := []conntrack.Filter{{Proto: proto}}
		if f == model.V4 && len(of.gone) > 0 && len(of.gone) <= askEach {
			filters = nil
			for a := range of.gone {
				filters = append(filters, conntrack.Filter{Proto: proto, Answers: a})
			}
		}
		for _, filter := range filters {
			n, err := conntrack.Remove(family, filter, of.match)
			total += n
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return total, errors.Join(errs...)
}

// staleFlows finds the rule for a flow by its destination.
type staleFlows struct {
	byVIP map[netip.AddrPort][]model.Stale
	// gone are the addresses that answer stale flows, if those are all
	// that is looked for; else it is nil.
	gone map[netip.Addr]bool
}

func newStaleFlows(proto byte, stale []model.Stale) staleFlows {
	s := staleFlows{map[netip.AddrPort][]model.Stale{}, map[netip.Addr]bool{}}
	for _, x := range stale {
		if x.Proto != proto {
			continue
		}
		for _, a := range x.Fronts {
			s.byVIP[a] = append(s.byVIP[a], x)
		}
		if len(x.Gone) == 0 {
			s.gone = nil
		}
		for _, g := range x.Gone {
			if s.gone != nil {
				s.gone[g.Addr()] = true
			}
		}
	}
	return s
}

// match says whether a flow went to a frontend and is answered by something
// that is not an endpoint of it any more. What goes to a node's own socket
// on a number that is also a node port is no concern.
func (s staleFlows) match(f conntrack.Flow) bool {
	rules := s.byVIP[f.Destination]
	if f.Answers != f.Destination {
		rules = append(slices.Clone(rules), s.byVIP[netip.AddrPortFrom(netip.Addr{}, f.Destination.Port())]...)
	}
	return slices.ContainsFunc(rules, func(r model.Stale) bool {
		if len(r.Gone) > 0 {
			return slices.Contains(r.Gone, f.Answers)
		}
		return !slices.Contains(r.Keep, f.Answers)
	})
}
