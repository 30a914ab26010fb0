package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Step is one thing that decides about a packet or a Service, in words. If a
// row of the kernel stands behind it, Set and Key name that row.
type Step struct {
	Text string
	Set  *Set
	Key  []byte
}

// Packet is the first packet of a connection.
type Packet struct {
	Source, Destination netip.Addr
	Proto               byte
	Port                uint16
}

// Origin is what is known of a packet's source.
type Origin struct {
	// Node: one of the node's own addresses. Pod: a pod on this node.
	Node, Pod bool
	// Told says what Pod was told by; empty if nothing can tell.
	Told string
	// MasqueradeAll masquerades all traffic to cluster IPs.
	MasqueradeAll bool
}

// Explain tells, from what was last committed, where a packet goes and why.
func (m *Model) Explain(p Packet, from Origin) []Step {
	e := explainer{m: m}
	key := vipKey{p.Destination, p.Proto, p.Port}
	fr := m.vips[key]
	switch {
	case fr != nil:
	case m.counts[ClusterIPs][m.addrKey(p.Destination)] > 0:
		e.row(ClusterIPs, putAddr(nil, m.cfg.Family, p.Destination), "%s is a cluster IP, but no Service has %s: refused", p.Destination,
			vipText(key))
		return e.steps
	case m.counts[NodeAddrs][m.addrKey(p.Destination)] > 0:
		key.addr = netip.Addr{}
		if fr = m.vips[key]; fr != nil {
			e.row(NodeAddrs, putAddr(nil, m.cfg.Family, p.Destination), "%s is an address of this node on which node ports answer",
				p.Destination)
		}
	}
	if fr == nil {
		e.say("no Service has %s on port %d: the packet goes on as it is", p.Destination, p.Port)
		return e.steps
	}
	e.vip(key, fr)
	if fr.class.Ranges && !slices.ContainsFunc(fr.ranges, func(r netip.Prefix) bool { return r.Contains(p.Source) }) {
		e.say("loadBalancerSourceRanges let in %v, not %s: dropped", fr.ranges, p.Source)
		return e.steps
	}
	switch fr.class.Kind {
	case Reject:
		e.say("there is no endpoint anywhere: refused")
		return e.steps
	case Drop:
		e.say("the traffic policy is Local and no endpoint is on this node: dropped")
		return e.steps
	}
	pool := e.policy(fr.class, from)
	e.pool(key, fr, pool)
	return e.steps
}

type explainer struct {
	m     *Model
	steps []Step
}

func (e *explainer) say(format string, args ...any) {
	e.steps = append(e.steps, Step{Text: fmt.Sprintf(format, args...)})
}

func (e *explainer) row(t Table, key []byte, format string, args ...any) {
	e.steps = append(e.steps, Step{Text: fmt.Sprintf(format, args...), Set: &Set{Table: t}, Key: key})
}

func vipText(k vipKey) string {
	name := map[byte]string{6: "tcp", 17: "udp", 132: "sctp"}[k.proto]
	if !k.addr.IsValid() {
		return fmt.Sprintf("node port %d/%s", k.port, name)
	}
	return fmt.Sprintf("%s/%s", k.addrPort(), name)
}

func (e *explainer) vip(key vipKey, fr *vip) {
	s := Set{Table: key.of(VIPs), Class: fr.class}
	e.steps = append(e.steps, Step{Text: fmt.Sprintf("%s belongs to port %q of Service %s, class %s", vipText(key), fr.owner.key.port,
		fr.owner.key.service, fr.class.Name()),
		Set: &s, Key: key.put(nil, e.m.cfg.Family)})
	for _, c := range fr.claims {
		if c.port != fr.owner {
			e.say("Service %s claims it too; the older Service has it", c.port.key.service)
		}
	}
}

// policy tells which pool a packet is sent to, and whether its source is kept.
func (e *explainer) policy(c Class, from Origin) Pool {
	switch {
	case !c.External && from.MasqueradeAll:
		e.say("masqueradeAll: the source becomes this node")
	case !c.External && from.Told == "":
		e.say("nothing tells pods from others: the source is kept")
	case !c.External && !from.Pod:
		e.say("the source is no pod of this node (by %s): it becomes this node", from.Told)
	case !c.External:
		e.say("the source is a pod of this node (by %s): it is kept", from.Told)
	case !c.LocalPolicy:
		e.say("externalTrafficPolicy Cluster: the source becomes this node, so that answers come back here")
	case from.Pod && c.Cluster > 0:
		e.say("externalTrafficPolicy Local, but from a pod of this node (by %s): treated as inside the cluster", from.Told)
		return ClusterPool
	case from.Node && c.Cluster > 0:
		e.say("externalTrafficPolicy Local, but from the node itself: any endpoint, and the source becomes this node")
		return ClusterPool
	default:
		e.say("externalTrafficPolicy Local: endpoints of this node only, the source is kept")
	}
	if c.LocalPolicy {
		if !c.External {
			e.say("internalTrafficPolicy Local: endpoints of this node only")
		}
		return LocalPool
	}
	return ClusterPool
}

func (e *explainer) pool(key vipKey, fr *vip, pool Pool) {
	p := fr.owner
	e.mode(p, pool)
	if fr.class.Timeout > 0 {
		e.row(key.of(Sticky), key.put(nil, e.m.cfg.Family), "ClientIP affinity: a client seen within %d s returns to the endpoint it had",
			p.timeout)
	}
	at := p.pools[pool].at
	if len(at) == 0 {
		e.say("no endpoint is there: dropped")
	}
	for i, a := range at {
		if n := p.numberOf(a); n != 0 && fr.class.Timeout > 0 {
			e.row(pool.ends(), putNum(nil, n), "1 in %d: %s, remembered as %x", len(at), a, n)
			continue
		}
		e.row(key.of(Endpoints), putNum(key.put(nil, e.m.cfg.Family), pool.base()+uint32(i)), "1 in %d: %s", len(at), a)
	}
}

// mode tells how the endpoints of a pool were chosen.
func (e *explainer) mode(p *port, pool Pool) {
	c := p.counts
	m := c.modes()
	of := m.cluster
	if pool == LocalPool {
		of = m.local
	}
	switch of {
	case fallbackMode:
		e.say("no endpoint is ready: those that terminate and still serve (%d)", c.fallback)
	case ready | forNode:
		e.say("all %d ready endpoints have node hints: those for this node (%d)", c.ready, c.forNode)
	case ready | forZone:
		e.say("all %d ready endpoints have zone hints: those for zone %s (%d)", c.ready, e.m.zone, c.forZone)
	default:
		if pool == LocalPool {
			e.say("ready endpoints on this node (%d of %d)", c.localReady, c.ready)
		} else {
			e.say("ready endpoints (%d)", c.ready)
		}
	}
}

// Describe tells what is programmed for a Service and because of what.
func (m *Model) Describe(n Name) []Step {
	e := explainer{m: m}
	v := m.services[n]
	if v == nil || v.spec == nil {
		e.say("%s: no Service %s is proxied; it does not exist, has no cluster IP of this family, or carries the label %s", m.cfg.Family, n,
			labelProxyName)
		return e.steps
	}
	for _, p := range v.ports {
		e.port(p)
	}
	return e.steps
}

func (e *explainer) port(p *port) {
	e.say("port %q (%s), %d endpoints in %s", p.key.port, p.key.proto, len(p.eps), e.m.cfg.Family)
	used := map[Pool]bool{}
	for _, f := range p.vips {
		fr := e.m.vips[f.key]
		if fr == nil {
			continue
		}
		if fr.owner != p {
			e.say("%s belongs to Service %s, which is older", vipText(f.key), fr.owner.key.service)
			continue
		}
		e.vip(f.key, fr)
		used[ClusterPool] = used[ClusterPool] || fr.class.uses(ClusterPool)
		used[LocalPool] = used[LocalPool] || fr.class.uses(LocalPool)
		if fr.class.Kind != Spread {
			e.say("%s", map[Kind]string{Reject: "connections are refused: there is no endpoint",
				Drop: "connections are dropped: the policy is Local and no endpoint is on this node"}[fr.class.Kind])
		}
	}
	for _, pool := range []Pool{ClusterPool, LocalPool} {
		if used[pool] {
			e.mode(p, pool)
			e.say("%s: %s", []string{"endpoints", "endpoints of this node"}[pool], addrList(p.pools[pool].at))
		}
	}
	var unused []netip.AddrPort
	for a, ep := range p.eps {
		if !ep.facts.has(ready) && !ep.facts.fallback() {
			unused = append(unused, a)
		}
	}
	if len(unused) > 0 {
		e.say("not ready: %s", addrList(unused))
	}
}

func addrList(at []netip.AddrPort) string {
	var out []string
	for _, a := range slices.SortedFunc(slices.Values(at), netip.AddrPort.Compare) {
		out = append(out, a.String())
	}
	return strings.Join(out, " ")
}
