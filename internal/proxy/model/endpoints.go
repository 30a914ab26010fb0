package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one address of a slice with what decides about its use.
type endpoint struct {
	at                                 netip.AddrPort
	ready, serving, terminating, local bool
	hintsNode, forNode                 bool
	hintsZone, forZone                 bool
}

// pools is what the endpoints of a service port come to.
type pools struct {
	cluster, local []netip.AddrPort
	// localAll are the endpoints on this node that may receive traffic.
	localAll []netip.Addr
	// usable are all endpoints an existing flow may still be on.
	usable []netip.AddrPort
	any    bool
}

// collect reads the endpoints of one service port out of the slices of its
// Service. The same address and port in two slices counts once, and the
// entry that is not terminating wins: slices overlap while endpoints move.
func (m *Model) collect(slices map[string]*discoveryv1.EndpointSlice, port string, proto corev1.Protocol) map[netip.AddrPort]endpoint {
	found := map[netip.AddrPort]endpoint{}
	for _, s := range slices {
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Name == nil || *p.Name != port || p.Port == nil || *p.Port < 1 || *p.Port > 65535 || protoOf(p.Protocol) != proto {
				continue
			}
			for j := range s.Endpoints {
				e := &s.Endpoints[j]
				if len(e.Addresses) == 0 {
					continue
				}
				addr, err := netip.ParseAddr(e.Addresses[0])
				if err != nil || !m.cfg.Family.Has(addr) {
					continue
				}
				at := netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port))
				n := m.read(at, e)
				if old, ok := found[at]; ok && better(old, n) {
					continue
				}
				found[at] = n
			}
		}
	}
	return found
}

// better says whether a is the entry to keep of two for one address. The
// order is total over what is read, so that the order of slices is no matter.
func better(a, b endpoint) bool {
	if a.terminating != b.terminating {
		return !a.terminating
	}
	for _, c := range [][2]bool{{a.ready, b.ready}, {a.serving, b.serving}, {a.local, b.local},
		{a.hintsNode, b.hintsNode}, {a.forNode, b.forNode}, {a.hintsZone, b.hintsZone}, {a.forZone, b.forZone}} {
		if c[0] != c[1] {
			return c[0]
		}
	}
	return true
}

func (m *Model) read(at netip.AddrPort, e *discoveryv1.Endpoint) endpoint {
	n := endpoint{
		at:          at,
		ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
		serving:     e.Conditions.Serving == nil || *e.Conditions.Serving,
		terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
		local:       e.NodeName != nil && *e.NodeName == m.cfg.NodeName,
	}
	if e.Hints != nil {
		n.hintsNode, n.hintsZone = len(e.Hints.ForNodes) > 0, len(e.Hints.ForZones) > 0
		for _, h := range e.Hints.ForNodes {
			n.forNode = n.forNode || h.Name == m.cfg.NodeName
		}
		for _, h := range e.Hints.ForZones {
			n.forZone = n.forZone || (m.zone != "" && h.Name == m.zone)
		}
	}
	return n
}

// choose sorts endpoints into the two pools. Ready endpoints come first;
// only when a pool would be empty the serving ones that terminate fill it.
func choose(all map[netip.AddrPort]endpoint) pools {
	var p pools
	var ready, fallback []endpoint
	for _, e := range all {
		if e.ready {
			ready = append(ready, e)
		} else if e.serving && e.terminating {
			fallback = append(fallback, e)
		}
		if e.serving || e.ready {
			p.usable = append(p.usable, e.at)
		}
	}
	slices.SortFunc(p.usable, netip.AddrPort.Compare)
	p.any = len(ready) > 0 || len(fallback) > 0
	p.cluster = addresses(topology(ready))
	if len(p.cluster) == 0 {
		p.cluster = addresses(fallback)
	}
	onNode := func(e endpoint) bool { return !e.local }
	localReady := slices.DeleteFunc(slices.Clone(ready), onNode)
	localFallback := slices.DeleteFunc(slices.Clone(fallback), onNode)
	for _, e := range append(slices.Clone(localReady), localFallback...) {
		p.localAll = append(p.localAll, e.at.Addr())
	}
	slices.SortFunc(p.localAll, netip.Addr.Compare)
	p.localAll = slices.Compact(p.localAll)
	if len(localReady) == 0 {
		localReady = localFallback
	}
	p.local = addresses(localReady)
	return p
}

// topology keeps the ready endpoints hinted at this node, else those hinted
// at its zone, and all of them unless every one carries such a hint.
func topology(ready []endpoint) []endpoint {
	keep := func(has, mine func(endpoint) bool) []endpoint {
		var kept []endpoint
		for _, e := range ready {
			if !has(e) {
				return nil
			}
			if mine(e) {
				kept = append(kept, e)
			}
		}
		return kept
	}
	if k := keep(func(e endpoint) bool { return e.hintsNode }, func(e endpoint) bool { return e.forNode }); k != nil {
		return k
	}
	if k := keep(func(e endpoint) bool { return e.hintsZone }, func(e endpoint) bool { return e.forZone }); k != nil {
		return k
	}
	return ready
}

func addresses(es []endpoint) []netip.AddrPort {
	out := make([]netip.AddrPort, len(es))
	for i, e := range es {
		out[i] = e.at
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// place gives every wanted endpoint an index, moving as few as it can: what
// is wanted and within the new length stays where it is, the rest fills the
// holes in order. One endpoint more or less costs at most two rows.
func place(slots, want []netip.AddrPort) []netip.AddrPort {
	next := make([]netip.AddrPort, len(want))
	wanted := make(map[netip.AddrPort]bool, len(want))
	for _, w := range want {
		wanted[w] = true
	}
	for i, s := range slots {
		if i < len(next) && wanted[s] {
			next[i] = s
			delete(wanted, s)
		}
	}
	hole := 0
	for _, w := range want {
		if !wanted[w] {
			continue
		}
		for next[hole].IsValid() {
			hole++
		}
		next[hole] = w
	}
	return next
}

func protoOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}
