// Package model turns Services, EndpointSlices and its own Node into the rows
// of a few shared kernel maps, incrementally and without side effects.
//
// A shell tells it what changed (SetService, SetSlice, SetNode, ...) and asks
// for the difference with Commit. There is one Model per address family. It
// holds no clock, client, lock or goroutine; one goroutine owns it.
package model

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Config is what a Model knows from its start.
type Config struct {
	Family   Family
	NodeName string
	// IgnoreExternalIPs switches spec.externalIPs off.
	IgnoreExternalIPs bool
}

// Name is the namespace and name of a Service.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

func (n Name) compare(o Name) int {
	return cmp.Or(strings.Compare(n.Namespace, o.Namespace), strings.Compare(n.Name, o.Name))
}

// Stale asks for the removal of connections of a protocol without its own
// end (UDP, SCTP) that were sent to one of Fronts. With Gone they are those
// answered by one of Gone, else those answered by an address not in Keep.
type Stale struct {
	Service Name
	Proto   byte
	// Fronts are destinations; an invalid address stands for any address
	// of the node (a node port).
	Fronts     []netip.AddrPort
	Gone, Keep []netip.AddrPort
}

// trigger is the last-change annotation of one slice that was applied.
type trigger struct {
	Service Name
	Time    string
}

// Model holds what should be in the kernel. See the package comment.
type Model struct {
	cfg      Config
	zone     string
	nodeIPs  []netip.Addr
	services map[Name]*service
	dirty    map[Name]*service
	// ids are the numbers of service ports with affinity.
	ids        map[uint32]portKey
	stuckSeeds stuckSeeds
	vips       map[vipKey]*vip
	touched    map[vipKey]struct{}
	counts     [NumTables]map[string]int
	changed    [NumTables]map[string]bool
	seeds      map[vipKey]*[2][]netip.AddrPort
	noLocal    noLocal
	changes    *Changes
}

// service is one Service with its slices, known or not to the API.
type service struct {
	name   Name
	spec   *corev1.Service
	slices map[string]*discoveryv1.EndpointSlice
	ports  []*port // in the order of their names
	// whole: everything is to be looked at, not only was.
	whole bool
	// was holds the slices changed since the last Commit as they were then.
	was map[string]*discoveryv1.EndpointSlice
	// triggers of slices changed since the last Commit.
	triggers []string
	health   HealthCheck
	noLocal  noLocal
}

// noLocal counts Services with a Local policy for traffic from inside or
// outside the cluster and endpoints, but none on this node.
type noLocal struct{ Internal, External int }

// New returns an empty Model.
func New(cfg Config) *Model {
	m := &Model{
		cfg: cfg, services: map[Name]*service{}, dirty: map[Name]*service{}, ids: map[uint32]portKey{},
		vips: map[vipKey]*vip{}, touched: map[vipKey]struct{}{}, seeds: map[vipKey]*[2][]netip.AddrPort{},
	}
	for _, t := range []Table{Hairpin, ClusterIPs, ExternalIPs, NodeAddrs} {
		m.counts[t], m.changed[t] = map[string]int{}, map[string]bool{}
	}
	return m
}

// SeedTables are those whose rows Seed takes.
var SeedTables = []Table{Endpoints, NodePortEndpoints, Sticky, StickyNodePorts, StickyEndpoints, StickyLocal}

// Seed tells the Model in which order the endpoints already stand in the
// kernel, before its first Commit, so that adopting them moves none, and by
// which numbers those with affinity are remembered. Key and value are rows of
// t, which is one of SeedTables.
func (m *Model) Seed(t Table, key, value []byte) {
	if t != Endpoints && t != NodePortEndpoints {
		m.seedSticky(t, key, value)
		return
	}
	vip, rest := getVIP(key, m.cfg.Family, t == NodePortEndpoints)
	index := binary.NativeEndian.Uint32(rest)
	at := getAddrPort(value, m.cfg.Family)
	s := m.seeds[vip]
	if s == nil {
		s = &[2][]netip.AddrPort{}
		m.seeds[vip] = s
	}
	pool := &s[ClusterPool]
	if index >= LocalBase {
		pool, index = &s[LocalPool], index-LocalBase
	}
	if index >= LocalBase {
		return
	}
	for len(*pool) <= int(index) {
		*pool = append(*pool, netip.AddrPort{})
	}
	(*pool)[index] = at
}

// SetService adds or replaces a Service. The Model keeps s and reads it only.
func (m *Model) SetService(s *corev1.Service) {
	n := Name{s.Namespace, s.Name}
	if _, ok := clusterIP(s, m.cfg.Family); !ok || !served(s) {
		m.DeleteService(n) // nothing to be done in this family
		return
	}
	v := m.service(n)
	v.spec = s
	m.touch(v)
}

// DeleteService forgets a Service.
func (m *Model) DeleteService(n Name) {
	if v := m.services[n]; v != nil {
		v.spec = nil
		m.touch(v)
	}
}

func (m *Model) touch(v *service) {
	v.whole = true
	m.dirty[v.name] = v
}

// SetSlice adds or replaces an EndpointSlice. The Model keeps and only reads it.
func (m *Model) SetSlice(s *discoveryv1.EndpointSlice) {
	name := s.Labels[discoveryv1.LabelServiceName]
	_, headless := s.Labels[labelHeadless]
	if headless {
		m.DeleteSlice(s) // it may have been ours until now
		return
	}
	if name == "" || string(s.AddressType) != m.cfg.Family.String() {
		return
	}
	v := m.service(Name{s.Namespace, name})
	m.slice(v, s.Name, s)
	if t := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; t != "" {
		v.triggers = append(v.triggers, t)
	}
}

// DeleteSlice forgets a slice. For a slice whose labels changed the shell
// deletes the old one before it sets the new one.
func (m *Model) DeleteSlice(s *discoveryv1.EndpointSlice) {
	v := m.services[Name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}]
	if v == nil || v.slices[s.Name] == nil {
		return
	}
	m.slice(v, s.Name, nil)
}

// slice replaces a slice and remembers what it was at the last Commit.
func (m *Model) slice(v *service, name string, now *discoveryv1.EndpointSlice) {
	if _, ok := v.was[name]; !ok {
		if v.was == nil {
			v.was = map[string]*discoveryv1.EndpointSlice{}
		}
		v.was[name] = v.slices[name]
	}
	if v.slices[name] = now; now == nil {
		delete(v.slices, name)
	}
	m.dirty[v.name] = v
}

// SetNode says which zone its own Node is in and which addresses it has. A
// new zone means that every Service is looked at again.
func (m *Model) SetNode(zone string, ips []netip.Addr) {
	if zone == m.zone && slices.Equal(ips, m.nodeIPs) {
		return
	}
	m.zone, m.nodeIPs = zone, slices.Clone(ips)
	for _, v := range m.services {
		m.touch(v)
	}
}

// SetNodePortAddrs replaces the addresses on which node ports answer.
func (m *Model) SetNodePortAddrs(ips []netip.Addr) {
	want := map[string]bool{}
	for _, ip := range ips {
		if m.cfg.Family.Has(ip) {
			want[string(putAddr(nil, m.cfg.Family, ip))] = true
		}
	}
	for k := range m.counts[NodeAddrs] {
		if !want[k] {
			m.count(NodeAddrs, k, -1)
		}
	}
	for k := range want {
		if m.counts[NodeAddrs][k] == 0 {
			m.count(NodeAddrs, k, 1)
		}
	}
}

func (m *Model) service(n Name) *service {
	v := m.services[n]
	if v == nil {
		v = &service{name: n, slices: map[string]*discoveryv1.EndpointSlice{}, whole: true}
		m.services[n] = v
	}
	return v
}

// noLocal counts Services as of the last Commit.
func (m *Model) NoLocal() noLocal { return m.noLocal }

// Pending says that there is something to Commit.
func (m *Model) Pending() bool {
	if len(m.dirty) > 0 {
		return true
	}
	for t := range m.changed {
		if len(m.changed[t]) > 0 {
			return true
		}
	}
	return false
}

// Commit returns the difference between the rows handed out so far and the
// rows wanted now. The caller applies it whole or, if it cannot, starts over
// with Reset.
func (m *Model) Commit() *Changes {
	c := newChanges()
	m.changes = c
	names := make([]Name, 0, len(m.dirty))
	for n := range m.dirty {
		names = append(names, n)
	}
	slices.SortFunc(names, Name.compare)
	for _, n := range names {
		v := m.dirty[n]
		m.update(v)
		if v.spec == nil && len(v.slices) == 0 {
			delete(m.services, n)
		}
	}
	m.settleVIPs()
	for _, n := range names {
		for _, p := range m.dirty[n].ports {
			p.settled()
		}
	}
	m.settleCounts()
	// New maps: clearing one costs what it held at its largest, for ever.
	m.dirty, m.seeds = map[Name]*service{}, map[vipKey]*[2][]netip.AddrPort{}
	m.stuckSeeds = stuckSeeds{}
	m.changes = nil
	return c
}

func (m *Model) pair(a netip.Addr) string {
	return string(putAddr(putAddr(nil, m.cfg.Family, a), m.cfg.Family, a))
}

func (m *Model) addrKey(a netip.Addr) string { return string(putAddr(nil, m.cfg.Family, a)) }

// count changes how many owners a shared row has and remembers whether the
// row stood in the kernel before.
func (m *Model) count(t Table, key string, by int) {
	if _, ok := m.changed[t][key]; !ok {
		m.changed[t][key] = m.counts[t][key] > 0
	}
	m.counts[t][key] += by
	if m.counts[t][key] == 0 {
		delete(m.counts[t], key)
	}
}

func (m *Model) settleCounts() {
	for t := range m.changed {
		if len(m.changed[t]) == 0 {
			continue
		}
		d := m.changes.table(Table(t))
		for key, was := range m.changed[t] {
			now := m.counts[t][key] > 0
			if was && !now {
				d.Del = append(d.Del, key...)
			} else if now && !was {
				d.Add = append(d.Add, key...)
			}
		}
		m.changed[t] = map[string]bool{}
	}
}

// Reset makes m forget which rows it handed out, but not what it knows of
// the API: its next Commit hands out everything.
func (m *Model) Reset() {
	n := New(m.cfg)
	n.zone, n.nodeIPs = m.zone, m.nodeIPs
	for name, v := range m.services {
		if v.spec == nil && len(v.slices) == 0 {
			continue
		}
		v.ports, v.was, v.whole, v.noLocal = nil, nil, true, noLocal{}
		n.services[name], n.dirty[name] = v, v
	}
	for k := range m.counts[NodeAddrs] {
		n.count(NodeAddrs, k, 1)
	}
	*m = *n
}
