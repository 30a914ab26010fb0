package model

import (
	"fmt"
	"slices"
	"strings"
)

// hold is a set that a policy's rules name.
type hold interface {
	take(m *Model, d Direction)
	release(m *Model, d Direction)
}

// group is a set of pods that some rule allows.
type group struct {
	set   string
	key   string
	peers []peer
	refs  int
}

// names is the set of the pods' ports that have one name.
type names struct {
	set  string
	name Name
	refs [2]int
}

// blocks is a set of address ranges; it never changes.
type blocks struct {
	Set
	key  string
	refs int
}

func (m *Model) group(peers []peer) *group {
	var parts []string
	for _, p := range peers {
		parts = append(parts, p.String())
	}
	key := strings.Join(parts, "; ")
	g := m.groups[key]
	if g == nil {
		m.number++
		g = &group{set: fmt.Sprintf("pods-%d", m.number), key: key, peers: peers}
		m.groups[key] = g
		m.out.Sets = append(m.out.Sets, Set{Name: g.set, Kind: Peers})
		for name, n := range m.namespaces {
			m.place(g, name, n)
		}
		m.touch(g)
	}
	return g
}

// touch has every pod that can belong to a group looked at again.
func (m *Model) touch(g *group) {
	for _, n := range m.namespaces {
		if !n.groups[g] {
			continue
		}
		for _, p := range n.pods {
			m.dirtyPods[p] = true
		}
	}
}

func (g *group) take(*Model, Direction) { g.refs++ }
func (g *group) inUse() bool            { return g.refs > 0 }
func (g *group) release(m *Model, _ Direction) {
	g.refs--
	m.idle[g] = true
}

func (g *group) drop(m *Model) {
	m.touch(g)
	delete(m.groups, g.key)
	for _, n := range m.namespaces {
		delete(n.groups, g)
	}
	m.out.DropSets = append(m.out.DropSets, Set{Name: g.set, Kind: Peers})
}

func (m *Model) named(name Name) *names {
	s := m.names[name]
	if s == nil {
		m.number++
		s = &names{set: fmt.Sprintf("port-%d-%s", m.number, name.Name), name: name}
		m.names[name] = s
		m.out.Sets = append(m.out.Sets, Set{Name: s.set, Kind: Named})
	}
	return s
}

// wants says whether a pod's port of this name has a row: for ingress only
// ports of pods that are guarded here can be asked for, for egress all.
func (s *names) wants(p *pod) bool {
	return s.refs[Egress] > 0 || s.refs[Ingress] > 0 && p.Local
}

// touch has every pod looked at again; it happens when the first policy uses
// a name or the last stops using it.
func (s *names) touch(m *Model) {
	for _, p := range m.pods {
		if slices.ContainsFunc(p.Ports, func(pp PodPort) bool { return pp.Name == s.name }) {
			m.dirtyPods[p] = true
		}
	}
}

func (s *names) inUse() bool { return s.refs[Ingress]+s.refs[Egress] > 0 }

func (s *names) take(m *Model, d Direction) {
	if s.refs[d]++; s.refs[d] == 1 {
		s.touch(m)
	}
}

func (s *names) release(m *Model, d Direction) {
	if s.refs[d]--; s.refs[d] == 0 {
		s.touch(m)
	}
	m.idle[s] = true
}

func (s *names) drop(m *Model) {
	delete(m.names, s.name)
	m.out.DropSets = append(m.out.DropSets, Set{Name: s.set, Kind: Named})
}

func (m *Model) blocksOf(ranges []addrRange) *blocks {
	set := Set{Kind: Blocks, Blocks: ranges}
	key := set.contents()
	s := m.blocks[key]
	if s == nil {
		m.number++
		set.Name = fmt.Sprintf("blocks-%d", m.number)
		s = &blocks{Set: set, key: key}
		m.blocks[key] = s
		m.out.Sets = append(m.out.Sets, set)
	}
	return s
}

func (s *blocks) take(*Model, Direction) { s.refs++ }
func (s *blocks) inUse() bool            { return s.refs > 0 }
func (s *blocks) release(m *Model, _ Direction) {
	s.refs--
	m.idle[s] = true
}

func (s *blocks) drop(m *Model) {
	delete(m.blocks, s.key)
	m.out.DropSets = append(m.out.DropSets, Set{Name: s.Name, Kind: s.Kind})
}
