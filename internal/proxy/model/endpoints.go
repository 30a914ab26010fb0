package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// facts are what decides about the use of an endpoint, as bits.
type facts uint16

const (
	ready facts = 1 << iota
	serving
	staying // not terminating
	local
	hintsNode
	forNode
	hintsZone
	forZone
)

func (f facts) has(b facts) bool { return f&b == b }

// fallback endpoints serve while they terminate: they are used when there is
// no ready one.
func (f facts) fallback() bool { return f&(ready|serving|staying) == serving }

// usable says that an existing flow may still be on the endpoint.
func (f facts) usable() bool { return f&(ready|serving) != 0 }

// ep is one address and port of a service port.
type ep struct {
	facts facts
	// slices is how many entries of slices name it.
	slices uint16
}

// better returns the facts to keep of two entries for one address. The order
// is total, so that the order of slices is no matter.
func better(a, b facts) facts {
	rank := func(f facts) uint32 {
		r := uint32(0)
		for i, bit := range []facts{staying, ready, serving, local, hintsNode, forNode, hintsZone, forZone} {
			if f.has(bit) {
				r |= 1 << (15 - i)
			}
		}
		return r
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// each calls f for every endpoint that a slice has for a service port. Ports
// without a name or number and addresses that are none are passed over.
func (m *Model) each(s *discoveryv1.EndpointSlice, key portKey, f func(netip.AddrPort, facts)) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil || *p.Name != key.port || p.Port == nil || *p.Port < 1 || *p.Port > 65535 || protoOf(p.Protocol) != key.proto {
			continue
		}
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			if len(e.Addresses) == 0 {
				continue
			}
			addr, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || addr.Zone() != "" || !m.cfg.Family.Has(addr) {
				continue
			}
			f(netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port)), m.read(e))
		}
	}
}

func (m *Model) read(e *discoveryv1.Endpoint) facts {
	var n facts
	set := func(on bool, bit facts) {
		if on {
			n |= bit
		}
	}
	set(e.Conditions.Ready == nil || *e.Conditions.Ready, ready)
	set(e.Conditions.Serving == nil || *e.Conditions.Serving, serving)
	set(e.Conditions.Terminating == nil || !*e.Conditions.Terminating, staying)
	set(e.NodeName != nil && *e.NodeName == m.cfg.NodeName, local)
	if e.Hints != nil {
		set(len(e.Hints.ForNodes) > 0, hintsNode)
		set(len(e.Hints.ForZones) > 0, hintsZone)
		for _, h := range e.Hints.ForNodes {
			set(h.Name == m.cfg.NodeName, forNode)
		}
		for _, h := range e.Hints.ForZones {
			set(m.zone != "" && h.Name == m.zone, forZone)
		}
	}
	return n
}

// counts are what the modes of a service port follow from.
type counts struct {
	ready, fallback, localReady, localFallback int
	hintsNode, forNode, hintsZone, forZone     int
}

func (c *counts) add(f facts, by int) {
	count := func(n *int, on bool) {
		if on {
			*n += by
		}
	}
	count(&c.ready, f.has(ready))
	count(&c.fallback, f.fallback())
	count(&c.localReady, f.has(ready|local))
	count(&c.localFallback, f.fallback() && f.has(local))
	count(&c.hintsNode, f.has(ready|hintsNode))
	count(&c.forNode, f.has(ready|forNode))
	count(&c.hintsZone, f.has(ready|hintsZone))
	count(&c.forZone, f.has(ready|forZone))
}

func (c *counts) any() bool { return c.ready+c.fallback > 0 }

// modes say which endpoints make up the two pools.
type modes struct{ cluster, local facts }

// fallbackMode stands for the serving endpoints that terminate.
const fallbackMode facts = 1 << 15

// modes chooses: ready endpoints come first, and of those the ones hinted at
// this node or else at its zone, provided every one carries such a hint. Only
// a pool that would be empty is filled with endpoints that terminate.
func (c *counts) modes() modes {
	m := modes{cluster: ready, local: ready}
	switch {
	case c.ready == 0:
		m.cluster = fallbackMode
	case c.hintsNode == c.ready && c.forNode > 0:
		m.cluster = ready | forNode
	case c.hintsZone == c.ready && c.forZone > 0:
		m.cluster = ready | forZone
	}
	if c.localReady == 0 {
		m.local = fallbackMode
	}
	return m
}

func (f facts) in(mode facts) bool {
	if mode == fallbackMode {
		return f.fallback()
	}
	return f.has(mode)
}

// merge takes entries of slices in and out of a port's endpoints and brings
// its pools up to date. Its cost is that of the slices given, unless the
// port's modes change or slices overlap. With whole, change is all there is.
func (m *Model) merge(v *service, p *port, change []sliceChange, whole bool) {
	if len(p.eps) == 0 {
		m.load(v, p, change)
		return
	}
	touched := map[netip.AddrPort]facts{}
	if whole {
		for a, e := range p.eps {
			e.slices = 0
			p.eps[a], touched[a] = e, 0
		}
	}
	for _, c := range change {
		if c.old == nil {
			continue
		}
		m.each(c.old, p.key, func(a netip.AddrPort, _ facts) {
			e := p.eps[a]
			e.slices--
			p.eps[a], touched[a] = e, 0
		})
	}
	for _, c := range change {
		if c.now == nil {
			continue
		}
		m.each(c.now, p.key, func(a netip.AddrPort, f facts) {
			e := p.eps[a]
			e.slices++
			p.eps[a], touched[a] = e, f|known
		})
	}
	was := p.counts.modes()
	before := make(map[netip.AddrPort]facts, len(touched))
	for a, f := range touched {
		e := p.eps[a]
		before[a] = e.facts
		if e.slices > 1 || e.slices == 1 && f == 0 {
			f = m.look(v, p.key, a) // slices overlap: only all of them tell
		}
		m.setFacts(p, a, e.facts, f&^known)
		if e.facts = f &^ known; e.slices == 0 {
			delete(p.eps, a)
		} else {
			p.eps[a] = e
		}
	}
	now := p.counts.modes()
	p.pool(ClusterPool, was.cluster, now.cluster, before)
	p.pool(LocalPool, was.local, now.local, before)
}

// known marks facts as read, so that they differ from none.
const known facts = 1 << 14

// look reads the facts of one address from all slices of a Service.
func (m *Model) look(v *service, key portKey, at netip.AddrPort) facts {
	found, best := false, facts(0)
	for _, s := range v.slices {
		m.each(s, key, func(a netip.AddrPort, f facts) {
			if a != at {
				return
			}
			if found {
				f = better(best, f)
			}
			found, best = true, f
		})
	}
	return best
}

// setFacts counts an endpoint's facts, and notes it if flows on it must end.
func (m *Model) setFacts(p *port, a netip.AddrPort, old, now facts) {
	if old == now {
		return
	}
	p.counts.add(old, -1)
	p.counts.add(now, 1)
	onNode := func(f facts) bool { return f.has(local) && (f.has(ready) || f.fallback()) }
	if was, is := onNode(old), onNode(now); was != is {
		by := 1
		if was {
			by = -1
		}
		m.count(Hairpin, m.pair(a.Addr()), by)
	}
	if old.usable() && !now.usable() {
		p.gone = append(p.gone, a)
	}
}

// within says whether an endpoint belongs to a pool.
func (f facts) within(which Pool, mode facts) bool {
	return f.in(mode) && (which == ClusterPool || f.has(local))
}

// pool moves the touched endpoints of one pool, or all if the mode is new.
func (p *port) pool(which Pool, was, now facts, before map[netip.AddrPort]facts) {
	s := &p.pools[which]
	in := func(mode, f facts) bool { return f.within(which, mode) }
	var out, come []netip.AddrPort
	if was == now {
		for a, old := range before {
			switch is := in(now, p.eps[a].facts); {
			case is == in(was, old):
			case is:
				come = append(come, a)
			default:
				out = append(out, a)
			}
		}
		s.change(out, come)
		return
	}
	for _, a := range s.at {
		if !in(now, p.eps[a].facts) {
			out = append(out, a)
		}
	}
	for a, e := range p.eps {
		if in(now, e.facts) && s.find(a) < 0 {
			come = append(come, a)
		}
	}
	s.change(out, come)
}

// usable lists the endpoints that an existing flow may be on.
func (p *port) usable() []netip.AddrPort {
	var out []netip.AddrPort
	for a, e := range p.eps {
		if e.facts.usable() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func protoOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}
