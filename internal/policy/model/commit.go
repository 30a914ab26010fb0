package model

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// policy is one NetworkPolicy. Its chains exist while a profile tries them.
type policy struct {
	compiled
	key    Key
	number int
	refs   [2]int
	// stale directions are in use with rules of an older version.
	stale [2]bool
	rules [2][]Rule
	holds [2][]hold
}

// profile is what pods have in common that the same policies select. Its
// chain never changes.
type profile struct {
	chain    string
	dir      Direction
	policies []*policy
	refs     int
}

// unused is something the kernel may not need any more.
type unused interface {
	inUse() bool
	drop(m *Model)
}

// side is one direction of a policy.
type side struct {
	*policy
	dir Direction
}

func (p *policy) chain(d Direction) string {
	name := fmt.Sprintf("%s-%d-%s", d, p.number, p.key)
	return name[:min(len(name), 120)] // the kernel takes 127
}

// SetPolicy tells of a policy that is new or changed.
func (m *Model) SetPolicy(np *networkingv1.NetworkPolicy) {
	key := Key{np.Namespace, np.Name}
	n := m.namespace(np.Namespace)
	p := n.policies[key]
	if p == nil {
		m.number++
		p = &policy{key: key, number: m.number}
		n.policies[key] = p
	}
	c, err := compile(np)
	if err != nil {
		m.out.Problems = append(m.out.Problems, err)
	}
	p.compiled, p.stale = c, [2]bool{true, true}
	m.dirtyPolicies[p] = true
}

// DeletePolicy tells that a policy is gone.
func (m *Model) DeletePolicy(key Key) {
	n := m.namespaces[key.Namespace]
	if n == nil || n.policies[key] == nil {
		return
	}
	m.dirtyPolicies[n.policies[key]] = true
	delete(n.policies, key)
	m.prune(key.Namespace, n)
}

// Commit returns what has to change in the kernel since the last Commit. The
// caller must make the changes, or start again from Snapshot.
func (m *Model) Commit() *Changes {
	policies := slices.SortedFunc(maps.Keys(m.dirtyPolicies), func(a, b *policy) int { return a.number - b.number })
	for _, pol := range policies {
		n := m.namespaces[pol.key.Namespace]
		if n == nil {
			continue // the last of it went, and all its pods are dirty
		}
		for _, p := range n.pods {
			if p.Local {
				m.dirtyPods[p] = true
			}
		}
	}
	// In order, so that equal histories give equal names.
	for _, p := range slices.SortedFunc(maps.Keys(m.dirtyPods), func(a, b *pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), cmp.Compare(a.Created, b.Created))
	}) {
		m.guard(p)
	}
	m.sweep()
	for _, pol := range policies {
		for _, d := range directions {
			if pol.refs[d] > 0 && pol.stale[d] {
				m.render(pol, d, false)
			}
		}
	}
	m.sweep()
	dropped := map[string]bool{}
	for _, s := range m.out.DropSets {
		dropped[s.Name] = true
	}
	for p := range m.dirtyPods {
		m.settle(p, dropped)
	}
	out := m.out
	out.sort()
	m.begin()
	return out
}

// sweep drops what no one uses any more.
func (m *Model) sweep() {
	for len(m.idle) > 0 {
		for u := range m.idle {
			delete(m.idle, u)
			if !u.inUse() {
				u.drop(m)
			}
		}
	}
}

// guard leads each address of a pod to the profile of the policies that
// select it now.
func (m *Model) guard(p *pod) {
	here := p.Local && m.pods[p.Key] == p
	addrs := slices.Collect(maps.Keys(p.guard))
	for _, ip := range p.IPs {
		if p.guard[ip] == nil {
			addrs = append(addrs, ip)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, ip := range slices.Compact(addrs) {
		old := p.guard[ip]
		if old == nil {
			old = &[2]*profile{}
		}
		var now [2]*profile
		for _, d := range directions {
			if here && m.owner(ip) == p {
				now[d] = m.profile(d, m.namespaces[p.Namespace].selecting(p, d))
			}
			if now[d] == old[d] {
				continue
			}
			if now[d] != nil {
				now[d].refs++
				m.out.Guard = append(m.out.Guard, Guard{d, ip, now[d].chain})
			}
			if old[d] != nil {
				old[d].refs--
				m.idle[old[d]] = true
				m.out.Unguard = append(m.out.Unguard, Guard{d, ip, old[d].chain})
			}
		}
		if now == [2]*profile{} {
			delete(p.guard, ip)
		} else {
			p.guard[ip] = &now
		}
	}
}

// Selected says whether a policy selects a pod of this node, as of the last Commit.
func (m *Model) Selected(key Key) bool {
	p := m.pods[key]
	return p != nil && len(p.guard) > 0
}

// profile finds or makes the profile of some policies; nil if there is none:
// then everything passes.
func (m *Model) profile(d Direction, policies []*policy) *profile {
	if len(policies) == 0 {
		return nil
	}
	key := d.String()
	for _, pol := range policies {
		key += fmt.Sprintf(" %d", pol.number)
	}
	if p := m.profiles[key]; p != nil {
		return p
	}
	m.number++
	p := &profile{chain: fmt.Sprintf("%s-profile-%d", d, m.number), dir: d, policies: policies}
	m.profiles[key] = p
	for _, pol := range policies {
		if pol.refs[d]++; pol.refs[d] == 1 {
			m.render(pol, d, true)
		}
	}
	m.out.Chains = append(m.out.Chains, p.render())
	return p
}

func (p *profile) render() Chain {
	c := Chain{Name: p.chain, Direction: p.dir, Fresh: true}
	for _, pol := range p.policies {
		c.Rules = append(c.Rules, Rule{Jump: pol.chain(p.dir)})
	}
	c.Rules = append(c.Rules, Rule{})
	return c
}

func (p *profile) inUse() bool { return p.refs > 0 }

func (p *profile) drop(m *Model) {
	maps.DeleteFunc(m.profiles, func(_ string, o *profile) bool { return o == p })
	m.out.DropChains = append(m.out.DropChains, p.chain)
	for _, pol := range p.policies {
		pol.refs[p.dir]--
		m.idle[side{pol, p.dir}] = true
	}
}

// render writes the chain of one direction of a policy.
func (m *Model) render(p *policy, d Direction, fresh bool) {
	old := p.holds[d]
	p.rules[d], p.holds[d], p.stale[d] = nil, nil, false
	hold := func(h hold) {
		h.take(m, d)
		p.holds[d] = append(p.holds[d], h)
	}
	for _, r := range p.compiled.rules[d] {
		var from, to []Rule
		if r.anyPeer {
			from = append(from, Rule{})
		}
		if len(r.peers) > 0 {
			g := m.group(r.peers)
			hold(g)
			from = append(from, Rule{Peers: g.set})
		}
		if len(r.blocks) > 0 {
			s := m.blocksOf(r.blocks)
			hold(s)
			from = append(from, Rule{Peers: s.Name})
		}
		if r.anyPort {
			to = append(to, Rule{})
		}
		for _, p := range r.ports {
			to = append(to, Rule{Ports: p})
		}
		for _, name := range r.names {
			s := m.named(name)
			hold(s)
			to = append(to, Rule{Named: s.set})
		}
		for _, f := range from {
			for _, t := range to {
				p.rules[d] = append(p.rules[d], Rule{Accept: true, Peers: f.Peers, Named: t.Named, Ports: t.Ports})
			}
		}
	}
	for _, h := range old {
		h.release(m, d)
	}
	m.out.Chains = append(m.out.Chains, Chain{Name: p.chain(d), Direction: d, Fresh: fresh, Rules: p.rules[d]})
}

func (s side) inUse() bool { return s.refs[s.dir] > 0 }

func (s side) drop(m *Model) {
	m.out.DropChains = append(m.out.DropChains, s.chain(s.dir))
	for _, h := range s.holds[s.dir] {
		h.release(m, s.dir)
	}
	s.holds[s.dir] = nil
}

// settle brings the rows of a pod up to date.
func (m *Model) settle(p *pod, dropped map[string]bool) {
	want := map[Row]bool{}
	if m.pods[p.Key] == p {
		m.rows(p, want)
	}
	for r := range p.rows {
		if !want[r] && !dropped[r.Set] {
			m.out.Del = append(m.out.Del, r)
		}
	}
	for r := range want {
		if !p.rows[r] {
			m.out.Add = append(m.out.Add, r)
		}
	}
	p.rows = want
}

func (m *Model) rows(p *pod, want map[Row]bool) {
	n := m.namespaces[p.Namespace]
	for _, ip := range p.IPs {
		if m.owner(ip) != p {
			continue
		}
		if p.guard[ip] != nil {
			want[Row{Set: SelfSet, Kind: Selves, Addr: ip}] = true
		}
		for g := range n.groups {
			if g.matches(p.Namespace, n, p.Labels) {
				want[Row{Set: g.set, Kind: Peers, Addr: ip}] = true
			}
		}
		for _, pp := range p.Ports {
			if s := m.names[pp.Name]; s != nil && s.wants(p) {
				want[Row{Set: s.set, Kind: Named, Addr: ip, Proto: pp.Name.Proto, Port: pp.Value}] = true
			}
		}
	}
}

// Snapshot is everything the kernel must hold as of the last Commit.
func (m *Model) Snapshot() *Changes {
	out := &Changes{}
	for _, g := range m.groups {
		out.Sets = append(out.Sets, Set{Name: g.set, Kind: Peers})
	}
	for _, s := range m.names {
		out.Sets = append(out.Sets, Set{Name: s.set, Kind: Named})
	}
	for _, s := range m.blocks {
		out.Sets = append(out.Sets, s.Set)
	}
	for _, p := range m.profiles {
		out.Chains = append(out.Chains, p.render())
	}
	for _, n := range m.namespaces {
		for _, p := range n.policies {
			for _, d := range directions {
				if p.refs[d] > 0 {
					out.Chains = append(out.Chains, Chain{Name: p.chain(d), Direction: d, Fresh: true, Rules: p.rules[d]})
				}
			}
		}
	}
	for _, p := range m.pods {
		for r := range p.rows {
			out.Add = append(out.Add, r)
		}
		for ip, profiles := range p.guard {
			for _, d := range directions {
				if profiles[d] != nil {
					out.Guard = append(out.Guard, Guard{d, ip, profiles[d].chain})
				}
			}
		}
	}
	out.sort()
	return out
}
