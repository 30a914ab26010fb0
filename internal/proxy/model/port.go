package model

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

type portKey struct {
	service Name
	port    string
	proto   corev1.Protocol
}

func (k portKey) String() string { return k.service.String() + ":" + k.port + "/" + string(k.proto) }

// port is a service port as it stands in the kernel.
type port struct {
	key    portKey
	eps    map[netip.AddrPort]ep
	counts counts
	pools  [2]slots
	seeds  [2][]netip.AddrPort
	vips   []frontend
	ranges []netip.Prefix
	// timeout is how long, in seconds, clients return to their endpoint.
	timeout int32
	// stuck are the numbers of a port with session affinity, nil without;
	// sticks says for which pools its rows stand.
	stuck  *stuck
	sticks [2]bool
	// gone are endpoints that stopped being usable since the last Commit.
	gone []netip.AddrPort
}

// settled forgets what only the Commit that ends needed.
func (p *port) settled() {
	p.pools[0].diff, p.pools[1].diff, p.gone = nil, nil, nil
	p.seeds = [2][]netip.AddrPort{}
}

// sliceChange is one slice as it was and as it is; nil stands for none.
type sliceChange struct{ old, now *discoveryv1.EndpointSlice }

// update brings every port of one Service up to date.
func (m *Model) update(v *service) {
	m.changes.Services++
	if v.whole {
		m.updateWhole(v)
	} else {
		var change []sliceChange
		for name, old := range v.was {
			change = append(change, sliceChange{old, v.slices[name]})
		}
		m.changes.Slices += len(change)
		for _, p := range v.ports {
			was := p.counts.any()
			m.merge(v, p, change, false)
			m.apply(v, p, p.spec(v.spec), was)
		}
	}
	m.sum(v)
	for _, t := range v.triggers {
		m.changes.Triggers = append(m.changes.Triggers, trigger{v.name, t})
	}
	v.triggers, v.was, v.whole = nil, nil, false
}

func (m *Model) updateWhole(v *service) {
	type wanted struct {
		key  portKey
		port *corev1.ServicePort
	}
	var want []wanted
	find := func(k portKey) *corev1.ServicePort {
		if i := slices.IndexFunc(want, func(w wanted) bool { return w.key == k }); i >= 0 {
			return want[i].port
		}
		return nil
	}
	if v.spec != nil {
		for i := range v.spec.Spec.Ports {
			sp := &v.spec.Spec.Ports[i]
			if k := (portKey{v.name, sp.Name, protoOf(&sp.Protocol)}); protoNum(sp.Protocol) != 0 && sp.Port >= 1 && sp.Port <= 65535 &&
				find(k) == nil {
				want = append(want, wanted{k, sp})
			}
		}
	}
	var all []sliceChange
	for _, s := range v.slices {
		all = append(all, sliceChange{now: s})
	}
	m.changes.Slices += len(all)
	v.ports = slices.DeleteFunc(v.ports, func(p *port) bool {
		if find(p.key) != nil {
			return false
		}
		was := p.counts.any()
		m.merge(v, p, nil, true)
		m.apply(v, p, nil, was)
		m.unnumber(p)
		return true
	})
	for _, w := range want {
		if !slices.ContainsFunc(v.ports, func(p *port) bool { return p.key == w.key }) {
			v.ports = append(v.ports, &port{key: w.key})
		}
	}
	slices.SortFunc(v.ports, func(a, b *port) int {
		return cmp.Or(strings.Compare(a.key.port, b.key.port), strings.Compare(string(a.key.proto), string(b.key.proto)))
	})
	for _, p := range v.ports {
		was, sp := p.counts.any(), find(p.key)
		if len(p.vips) == 0 {
			m.seed(p, frontends(v.spec, sp, m.cfg, p, 0))
		}
		m.merge(v, p, all, true)
		m.apply(v, p, sp, was)
	}
}

// seed remembers the kernel's order of a port's endpoints.
func (m *Model) seed(p *port, vips []frontend) {
	for _, f := range vips {
		if s := m.seeds[f.key]; s != nil {
			for i := range s {
				if len(p.seeds[i]) == 0 {
					p.seeds[i] = s[i]
				}
			}
		}
	}
}

// sum brings up to date what is told of a Service as a whole.
func (m *Model) sum(v *service) {
	var lacks noLocal
	h := HealthCheck{Service: v.name}
	if v.spec != nil && v.spec.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		v.spec.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && len(v.ports) > 0 {
		h.Port = v.spec.Spec.HealthCheckNodePort
	}
	here := map[netip.Addr]bool{}
	for _, p := range v.ports {
		for _, f := range p.vips {
			if p.counts.any() && f.class.LocalPolicy && f.class.Local == 0 || f.class.Kind == Drop {
				if f.external {
					lacks.External = 1
				} else {
					lacks.Internal = 1
				}
			}
		}
		if h.Port == 0 || p.counts.localReady == 0 {
			continue
		}
		for a, e := range p.eps {
			if e.facts.has(ready | local) {
				here[a.Addr()] = true
			}
		}
	}
	h.Local = len(here)
	if h != v.health && (h.Port != 0 || v.health.Port != 0) {
		m.changes.Health = append(m.changes.Health, h)
	}
	m.noLocal.Internal += lacks.Internal - v.noLocal.Internal
	m.noLocal.External += lacks.External - v.noLocal.External
	v.health, v.noLocal = h, lacks
}

// spec finds the port in a Service.
func (p *port) spec(s *corev1.Service) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		if sp := &s.Spec.Ports[i]; sp.Name == p.key.port && protoOf(&sp.Protocol) == p.key.proto {
			return sp
		}
	}
	return nil
}

// apply moves one service port to what its endpoints and spec ask for; sp is
// nil when it goes away. hadAny says whether it had endpoints before.
func (m *Model) apply(v *service, p *port, sp *corev1.ServicePort, hadAny bool) {
	p.pools[0].settle()
	p.pools[1].settle()
	var vips []frontend
	var ranges []netip.Prefix
	var timeout int32
	if sp != nil {
		if timeout = affinity(v.spec); timeout > 0 {
			if m.number(p, v.spec, sp); p.stuck == nil {
				timeout = 0
			}
		}
		vips = frontends(v.spec, sp, m.cfg, p, timeout)
		ranges = m.ranges(v.spec, vips)
	}
	m.stale(v, p, vips, hadAny)
	for _, f := range p.vips {
		m.countVIP(f, -1)
	}
	for _, f := range vips {
		m.countVIP(f, 1)
	}
	p.timeout = timeout
	m.stick(p, vips)
	m.claim(p, p.vips, vips, v.spec)
	p.vips, p.ranges = vips, ranges
}

func (m *Model) countVIP(f frontend, by int) {
	switch {
	case !f.key.addr.IsValid():
	case f.external:
		m.count(ExternalIPs, m.addrKey(f.key.addr), by)
	default:
		m.count(ClusterIPs, m.addrKey(f.key.addr), by)
	}
}

// stale notes the connections of a port that ends no connection by itself.
func (m *Model) stale(v *service, p *port, vips []frontend, hadAny bool) {
	if p.key.proto != corev1.ProtocolUDP && p.key.proto != corev1.ProtocolSCTP {
		return
	}
	is := func(fs []frontend, k vipKey) bool {
		return slices.ContainsFunc(fs, func(f frontend) bool { return f.key == k })
	}
	// New frontends may have had their packets sent elsewhere before.
	var stay, come, leave []netip.AddrPort
	for _, f := range vips {
		if is(p.vips, f.key) && (hadAny || !p.counts.any()) {
			stay = append(stay, f.key.addrPort())
		} else {
			come = append(come, f.key.addrPort())
		}
	}
	for _, f := range p.vips {
		if !is(vips, f.key) {
			leave = append(leave, f.key.addrPort())
		}
	}
	add := func(s Stale) {
		if len(s.Fronts) == 0 {
			return
		}
		s.Service, s.Proto = v.name, protoNum(p.key.proto)
		m.changes.Stale = append(m.changes.Stale, s)
	}
	add(Stale{Fronts: leave})
	if len(come) > 0 {
		add(Stale{Fronts: come, Keep: p.usable()})
	}
	if len(p.gone) > 0 {
		slices.SortFunc(p.gone, netip.AddrPort.Compare)
		add(Stale{Fronts: stay, Gone: p.gone})
	}
}

// ranges are the sources let in to the load balancer addresses of s. A range
// that holds one of the node's addresses lets the load balancer's own
// addresses in too, since that is how the node reaches itself through it.
func (m *Model) ranges(s *corev1.Service, vips []frontend) []netip.Prefix {
	limited := slices.ContainsFunc(vips, func(f frontend) bool { return f.class.Ranges })
	if !limited {
		return nil
	}
	out, _ := sourceRanges(s, m.cfg.Family)
	if slices.ContainsFunc(out, func(p netip.Prefix) bool { return slices.ContainsFunc(m.nodeIPs, p.Contains) }) {
		for _, a := range loadBalancerIPs(s, m.cfg.Family) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return disjoint(out)
}
