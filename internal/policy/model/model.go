// Package model turns NetworkPolicies, Pods and Namespaces into the chains,
// sets and rows that one node's kernel must hold. It is pure: objects in,
// changes out, and the work for one changed pod does not grow with the
// cluster.
//
// A policy has a chain a direction, and a set of policies that select the
// same pods has a profile: a chain that tries each and then drops. A pod of
// this node is a row that leads from its address to its profile; a pod
// anywhere is a row in each set of peers it belongs to. Only what policies of
// this node's pods need exists at all.
package model

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Direction is the side of a pod that a rule guards.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

var directions = [...]Direction{Ingress, Egress}

// Key names a pod or a policy.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Pod is what matters of a pod. Pods of the host's network, finished pods and
// pods without an address must not be given to the Model.
type Pod struct {
	Key
	Labels map[string]string
	IPs    []netip.Addr
	// Ports are the named ones of its containers.
	Ports []PodPort
	// Local pods are this node's: only they are guarded here.
	Local bool
	// Leaving and Created settle whose an address is when two pods claim it:
	// one that stays before one that leaves, then the younger.
	Leaving bool
	Created int64
}

// PodPort is a port that a pod gives a name.
type PodPort struct {
	Name  Name
	Value uint16
}

// Name is a named port of a protocol.
type Name struct {
	Name  string
	Proto uint8
}

type pod struct {
	Pod
	// guard is the profile of each local address and direction.
	guard map[netip.Addr]*[2]*profile
	rows  map[Row]bool
}

type namespace struct {
	// known is false until the Namespace itself was seen.
	known    bool
	labels   labels.Set
	pods     map[Key]*pod
	policies map[Key]*policy
	// groups are the peers in use that pods of this namespace can belong to.
	groups map[*group]bool
}

// Model holds what was observed and what the kernel was told.
type Model struct {
	namespaces map[string]*namespace
	pods       map[Key]*pod
	claims     map[netip.Addr][]*pod

	profiles map[string]*profile
	groups   map[string]*group
	names    map[Name]*names
	blocks   map[string]*blocks
	number   int

	dirtyPods     map[*pod]bool
	dirtyPolicies map[*policy]bool
	idle          map[unused]bool
	out           *Changes
}

// New returns an empty Model.
func New() *Model {
	m := &Model{
		namespaces: map[string]*namespace{}, pods: map[Key]*pod{}, claims: map[netip.Addr][]*pod{},
		profiles: map[string]*profile{}, groups: map[string]*group{}, names: map[Name]*names{}, blocks: map[string]*blocks{},
	}
	m.begin()
	return m
}

func (m *Model) begin() {
	m.dirtyPods, m.dirtyPolicies, m.idle, m.out = map[*pod]bool{}, map[*policy]bool{}, map[unused]bool{}, &Changes{}
}

func (m *Model) namespace(name string) *namespace {
	n := m.namespaces[name]
	if n == nil {
		n = &namespace{pods: map[Key]*pod{}, policies: map[Key]*policy{}, groups: map[*group]bool{}}
		m.namespaces[name] = n
		for _, g := range m.groups {
			m.place(g, name, n)
		}
	}
	return n
}

// SetPod tells of a pod that is new or changed.
func (m *Model) SetPod(p Pod) {
	if old := m.pods[p.Key]; old != nil {
		m.unclaim(old)
		old.Pod = p
		m.claim(old)
		return
	}
	added := &pod{Pod: p, guard: map[netip.Addr]*[2]*profile{}, rows: map[Row]bool{}}
	m.pods[p.Key] = added
	m.namespace(p.Namespace).pods[p.Key] = added
	m.claim(added)
}

// DeletePod tells that a pod is gone, or has no address of its own any more.
func (m *Model) DeletePod(k Key) {
	p := m.pods[k]
	if p == nil {
		return
	}
	m.unclaim(p)
	delete(m.pods, k)
	n := m.namespaces[k.Namespace]
	delete(n.pods, k)
	m.prune(k.Namespace, n)
}

// prune forgets a namespace that holds nothing.
func (m *Model) prune(name string, n *namespace) {
	if !n.known && len(n.pods)+len(n.policies) == 0 {
		delete(m.namespaces, name)
	}
}

func (m *Model) claim(p *pod) {
	m.dirtyPods[p] = true
	for _, ip := range p.IPs {
		for _, other := range m.claims[ip] {
			m.dirtyPods[other] = true
		}
		m.claims[ip] = append(m.claims[ip], p)
	}
}

func (m *Model) unclaim(p *pod) {
	m.dirtyPods[p] = true
	for _, ip := range p.IPs {
		left := slices.DeleteFunc(m.claims[ip], func(o *pod) bool { return o == p })
		if len(left) == 0 {
			delete(m.claims, ip)
			continue
		}
		m.claims[ip] = left
		for _, other := range left {
			m.dirtyPods[other] = true
		}
	}
}

// owner is the pod that an address belongs to.
func (m *Model) owner(ip netip.Addr) *pod {
	var best *pod
	for _, p := range m.claims[ip] {
		if best == nil || best.older(p) {
			best = p
		}
	}
	return best
}

func (p *pod) older(than *pod) bool {
	if p.Leaving != than.Leaving {
		return p.Leaving
	}
	if p.Created != than.Created {
		return p.Created < than.Created
	}
	return p.Key.String() < than.Key.String()
}

// SetNamespace tells of a namespace that is new or relabelled.
func (m *Model) SetNamespace(name string, l map[string]string) {
	n := m.namespace(name)
	if n.known && maps.Equal(n.labels, l) {
		return
	}
	n.known, n.labels = true, l
	m.relabelled(name, n)
}

// DeleteNamespace tells that a namespace is gone.
func (m *Model) DeleteNamespace(name string) {
	n := m.namespaces[name]
	if n == nil {
		return
	}
	n.known, n.labels = false, nil
	m.relabelled(name, n)
	m.prune(name, n)
}

func (m *Model) relabelled(name string, n *namespace) {
	for _, g := range m.groups {
		m.place(g, name, n)
	}
	for _, p := range n.pods {
		m.dirtyPods[p] = true
	}
}

// place notes whether pods of a namespace can belong to a group.
func (m *Model) place(g *group, name string, n *namespace) {
	if slices.ContainsFunc(g.peers, func(p peer) bool { return p.namespaceMatches(name, n) }) {
		n.groups[g] = true
	} else {
		delete(n.groups, g)
	}
}

func (p peer) namespaceMatches(name string, n *namespace) bool {
	if p.namespaces == nil {
		return p.namespace == name
	}
	return n.known && p.namespaces.Matches(n.labels)
}

func (g *group) matches(name string, n *namespace, l labels.Set) bool {
	return slices.ContainsFunc(g.peers, func(p peer) bool {
		return p.namespaceMatches(name, n) && p.pods.Matches(l)
	})
}

// selecting lists the names of the policies that guard a pod on one side.
func (n *namespace) selecting(p *pod, d Direction) []*policy {
	var out []*policy
	for _, pol := range n.policies {
		if pol.applies[d] && pol.selector.Matches(labels.Set(p.Labels)) {
			out = append(out, pol)
		}
	}
	slices.SortFunc(out, func(a, b *policy) int { return strings.Compare(a.key.Name, b.key.Name) })
	return out
}
