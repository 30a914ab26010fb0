// Package model turns Services, EndpointSlices and the own Node into the rows
// of a few shared kernel maps, incrementally and without side effects.
//
// A shell tells it what changed (SetService, SetSlice, SetNode, ...) and asks
// for the difference with Commit. There is one Model per address family. It
// holds no clock, client, lock or goroutine; one goroutine owns it.
package model

import (
	"cmp"
	"encoding/binary"
	"fmt"
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
// end (UDP, SCTP) that were sent to one of Fronts and are answered by an
// address that is not in Keep.
type Stale struct {
	Service Name
	Proto   byte
	// Fronts are destinations; an invalid address stands for any address
	// of the node (a node port).
	Fronts []netip.AddrPort
	Keep   []netip.AddrPort
}

// Trigger is the last-change annotation of one slice that was applied.
type Trigger struct {
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
	ids      map[uint32]portKey
	classes  map[uint32]Class
	classIDs map[Class]uint32
	fresh    []ClassID
	fronts   map[frontKey]*front
	touched  map[frontKey]struct{}
	counts   [NumTables]map[string]int
	changed  [NumTables]map[string]bool
	pools    map[uint32]seed
	changes  *Changes
}

type service struct {
	name   Name
	spec   *corev1.Service
	slices map[string]*discoveryv1.EndpointSlice
	ports  map[portKey]*port
	// triggers of slices changed since the last Commit.
	triggers []string
}

type portKey struct {
	service Name
	port    string
	proto   corev1.Protocol
}

func (k portKey) String() string { return k.service.String() + ":" + k.port + "/" + string(k.proto) }

// port is a service port as it stands in the kernel.
type port struct {
	key            portKey
	id             uint32
	cluster, local []netip.AddrPort
	sticky         bool
	hairpin        []netip.Addr
	clusterIP      netip.Addr
	fronts         []frontend
	ranges         []netip.Prefix
	usable         []netip.AddrPort
	any            bool
}

// front is one frontend key, with the value last given out for it.
type front struct {
	value  frontValue
	claims []claim
}

// frontValue is zero for a frontend without a row; real numbers never are.
type frontValue struct{ class, id uint32 }

type claim struct {
	port  *port
	born  int64
	class Class
}

type seed struct{ cluster, local []netip.AddrPort }

// New returns an empty Model.
func New(cfg Config) *Model {
	m := &Model{
		cfg: cfg, services: map[Name]*service{}, dirty: map[Name]*service{}, ids: map[uint32]portKey{},
		classes: map[uint32]Class{}, classIDs: map[Class]uint32{}, fronts: map[frontKey]*front{},
		touched: map[frontKey]struct{}{}, pools: map[uint32]seed{}, changes: &Changes{},
	}
	for _, t := range []Table{Hairpin, ClusterIPs, NodeAddrs} {
		m.counts[t], m.changed[t] = map[string]int{}, map[string]bool{}
	}
	return m
}

// Seed tells the Model in which order the endpoints already stand in the
// kernel, before its first Commit, so that adopting them moves none. Key and
// value are rows of Endpoints.
func (m *Model) Seed(key, value []byte) {
	id, index := binary.NativeEndian.Uint32(key), binary.NativeEndian.Uint32(key[4:])
	a := m.cfg.Family.AddrLen()
	at := netip.AddrPortFrom(getAddr(value, m.cfg.Family), binary.BigEndian.Uint16(value[a:]))
	if m.pools == nil {
		m.pools = map[uint32]seed{}
	}
	s := m.pools[id]
	pool := &s.cluster
	if index >= LocalBase {
		pool, index = &s.local, index-LocalBase
	}
	if index >= LocalBase {
		return
	}
	for len(*pool) <= int(index) {
		*pool = append(*pool, netip.AddrPort{})
	}
	(*pool)[index] = at
	m.pools[id] = s
}

// SetService adds or replaces a Service. The Model keeps s and reads it only.
func (m *Model) SetService(s *corev1.Service) {
	v := m.service(Name{s.Namespace, s.Name})
	v.spec = s
	m.dirty[v.name] = v
}

// DeleteService forgets a Service.
func (m *Model) DeleteService(n Name) {
	if v := m.services[n]; v != nil {
		v.spec = nil
		m.dirty[n] = v
	}
}

// SetSlice adds or replaces an EndpointSlice. The Model keeps and only reads it.
func (m *Model) SetSlice(s *discoveryv1.EndpointSlice) {
	name := s.Labels[discoveryv1.LabelServiceName]
	_, headless := s.Labels[labelHeadless]
	if name == "" || headless || string(s.AddressType) != m.cfg.Family.String() {
		return
	}
	v := m.service(Name{s.Namespace, name})
	v.slices[s.Name] = s
	if t := s.Annotations[corev1.EndpointsLastChangeTriggerTime]; t != "" {
		v.triggers = append(v.triggers, t)
	}
	m.dirty[v.name] = v
}

// DeleteSlice forgets a slice. For a slice whose labels changed the shell
// deletes the old one before it sets the new one.
func (m *Model) DeleteSlice(s *discoveryv1.EndpointSlice) {
	v := m.services[Name{s.Namespace, s.Labels[discoveryv1.LabelServiceName]}]
	if v == nil || v.slices[s.Name] == nil {
		return
	}
	delete(v.slices, s.Name)
	m.dirty[v.name] = v
}

// SetNode says which zone the own Node is in and which addresses it has. A
// new zone means that every Service is looked at again.
func (m *Model) SetNode(zone string, ips []netip.Addr) {
	if zone == m.zone && slices.Equal(ips, m.nodeIPs) {
		return
	}
	m.zone, m.nodeIPs = zone, slices.Clone(ips)
	for n, v := range m.services {
		m.dirty[n] = v
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
		v = &service{name: n, slices: map[string]*discoveryv1.EndpointSlice{}, ports: map[portKey]*port{}}
		m.services[n] = v
	}
	return v
}

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
// rows wanted now. The caller applies it whole or, if it cannot, rebuilds.
func (m *Model) Commit() *Changes {
	m.changes = &Changes{}
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
	// New maps: clearing one costs what it held at its largest, for ever.
	m.dirty = map[Name]*service{}
	m.pools = nil // what is placed now is the order from here on
	m.settleFronts()
	m.settleCounts()
	m.changes.Classes = m.fresh
	m.fresh = nil
	c := m.changes
	m.changes = nil
	return c
}

// update brings every port of one Service up to date.
func (m *Model) update(v *service) {
	want := map[portKey]*corev1.ServicePort{}
	if served(v.spec) {
		if _, ok := clusterIP(v.spec, m.cfg.Family); ok {
			for i := range v.spec.Spec.Ports {
				sp := &v.spec.Spec.Ports[i]
				if protoNum(sp.Protocol) == 0 || sp.Port < 1 || sp.Port > 65535 {
					continue
				}
				want[portKey{v.name, sp.Name, orTCP(sp.Protocol)}] = sp
			}
		}
	}
	for k, p := range v.ports {
		if want[k] == nil {
			m.apply(v, p, nil, pools{})
			delete(m.ids, p.id)
			delete(v.ports, k)
		}
	}
	keys := make([]portKey, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b portKey) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		p := v.ports[k]
		if p == nil {
			p = m.newPort(k)
			v.ports[k] = p
		}
		m.apply(v, p, want[k], choose(m.collect(v.slices, k.port, k.proto)))
	}
	for _, t := range v.triggers {
		m.changes.Triggers = append(m.changes.Triggers, Trigger{v.name, t})
	}
	v.triggers = nil
}

// newPort numbers a new service port by the hash of its name, so that a
// restart finds the same numbers; a taken number moves on to the next.
func (m *Model) newPort(k portKey) *port {
	id := hash32(k.String())
	for {
		if _, taken := m.ids[id]; !taken && id != 0 {
			break
		}
		id++
	}
	m.ids[id] = k
	p := &port{key: k, id: id}
	return p
}

// apply moves one service port from what it was to what it shall be; sp is
// nil when it goes away.
func (m *Model) apply(v *service, p *port, sp *corev1.ServicePort, want pools) {
	var fronts []frontend
	var ranges []netip.Prefix
	var cip netip.Addr
	sticky := false
	if sp != nil {
		fronts = frontends(v.spec, sp, m.cfg, want)
		ranges = m.ranges(v.spec, fronts)
		cip, _ = clusterIP(v.spec, m.cfg.Family)
		sticky = affinity(v.spec) > 0
	}
	needCluster, needLocal := false, false
	for _, f := range fronts {
		needCluster = needCluster || f.class.Cluster > 0
		needLocal = needLocal || f.class.Local > 0
	}
	if !needCluster {
		want.cluster = nil
	}
	if !needLocal {
		want.local = nil
	}
	m.stale(v, p, fronts, want)
	oldCluster, oldLocal := p.cluster, p.local
	p.cluster = m.pool(p.id, 0, p.cluster, want.cluster)
	p.local = m.pool(p.id, LocalBase, p.local, want.local)
	m.members(p.id, Members, p.sticky, oldCluster, sticky, p.cluster)
	m.members(p.id, LocalMembers, p.sticky, oldLocal, sticky, p.local)
	m.rangeRows(p.id, p.ranges, ranges)
	for _, a := range p.hairpin {
		m.count(Hairpin, m.pair(a), -1)
	}
	for _, a := range want.localAll {
		m.count(Hairpin, m.pair(a), 1)
	}
	if p.clusterIP.IsValid() {
		m.count(ClusterIPs, string(putAddr(nil, m.cfg.Family, p.clusterIP)), -1)
	}
	if cip.IsValid() {
		m.count(ClusterIPs, string(putAddr(nil, m.cfg.Family, cip)), 1)
	}
	m.claim(p, p.fronts, fronts, v.spec)
	p.fronts, p.ranges, p.sticky, p.clusterIP = fronts, ranges, sticky, cip
	p.hairpin, p.usable, p.any = want.localAll, want.usable, want.any
}

// stale notes the connections of a port that ends no connection by itself.
func (m *Model) stale(v *service, p *port, fronts []frontend, want pools) {
	if p.key.proto != corev1.ProtocolUDP && p.key.proto != corev1.ProtocolSCTP {
		return
	}
	// A frontend that is new may have had its packets sent elsewhere before;
	// an endpoint that is gone, or a service that is, leaves flows behind.
	set := map[frontKey]bool{}
	for _, f := range p.fronts {
		set[f.key] = true
	}
	grew := false
	for _, f := range fronts {
		grew = grew || !set[f.key]
		set[f.key] = true
	}
	lost := len(fronts) < len(set)
	for _, u := range p.usable {
		_, still := slices.BinarySearchFunc(want.usable, u, netip.AddrPort.Compare)
		lost = lost || !still
	}
	if !grew && !lost && !(want.any && !p.any) {
		return
	}
	s := Stale{Service: v.name, Proto: protoNum(p.key.proto), Keep: want.usable}
	for k := range set {
		s.Fronts = append(s.Fronts, netip.AddrPortFrom(k.addr, k.port))
	}
	slices.SortFunc(s.Fronts, netip.AddrPort.Compare)
	m.changes.Stale = append(m.changes.Stale, s)
}

// pool writes the difference between two orders of a pool.
func (m *Model) pool(id, base uint32, slots, want []netip.AddrPort) []netip.AddrPort {
	if len(slots) == 0 {
		// A first sight of this pool: prefer the order the kernel has.
		if s, ok := m.pools[id]; ok {
			if base == 0 {
				return m.rewrite(id, base, nil, place(s.cluster, want))
			}
			return m.rewrite(id, base, nil, place(s.local, want))
		}
	}
	return m.rewrite(id, base, slots, place(slots, want))
}

func (m *Model) rewrite(id, base uint32, old, next []netip.AddrPort) []netip.AddrPort {
	for i := range max(len(old), len(next)) {
		if i < len(old) && i < len(next) && old[i] == next[i] {
			continue
		}
		if i < len(old) {
			b := &m.changes.Del[Endpoints]
			*b = putNum(putNum(*b, id), base+uint32(i))
		}
		if i < len(next) {
			b := &m.changes.Add[Endpoints]
			*b = putNum(putNum(*b, id), base+uint32(i))
			*b = putPort(putAddr(*b, m.cfg.Family, next[i].Addr()), next[i].Port())
		}
	}
	return next
}

// members writes the difference of the sets that affinity is checked with.
func (m *Model) members(id uint32, t Table, wasSticky bool, old []netip.AddrPort, sticky bool, next []netip.AddrPort) {
	if !wasSticky && !sticky {
		return
	}
	had, has := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	if wasSticky {
		for _, e := range old {
			had[e] = true
		}
	}
	if sticky {
		for _, e := range next {
			has[e] = true
		}
	}
	row := func(b *[]byte, e netip.AddrPort) {
		*b = putPort(putAddr(putNum(*b, id), m.cfg.Family, e.Addr()), e.Port())
	}
	for _, e := range old {
		if had[e] && !has[e] {
			row(&m.changes.Del[t], e)
		}
	}
	for _, e := range next {
		if has[e] && !had[e] {
			row(&m.changes.Add[t], e)
		}
	}
}

// ranges are the sources let in to the load balancer addresses of s. A range
// that holds one of the node's addresses lets the load balancer's own
// addresses in too, since that is how the node reaches itself through it.
func (m *Model) ranges(s *corev1.Service, fronts []frontend) []netip.Prefix {
	limited := slices.ContainsFunc(fronts, func(f frontend) bool { return f.class.Ranges })
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

func (m *Model) rangeRows(id uint32, old, next []netip.Prefix) {
	row := func(b *[]byte, p netip.Prefix) {
		*b = putAddr(putNum(*b, id), m.cfg.Family, p.Addr())
		*b = putAddr(putNum(*b, id), m.cfg.Family, lastOf(p))
	}
	for _, p := range old {
		if !slices.Contains(next, p) {
			row(&m.changes.Del[Ranges], p)
		}
	}
	for _, p := range next {
		if !slices.Contains(old, p) {
			row(&m.changes.Add[Ranges], p)
		}
	}
}

func (m *Model) pair(a netip.Addr) string {
	return string(putAddr(putAddr(nil, m.cfg.Family, a), m.cfg.Family, a))
}

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
		for key, was := range m.changed[t] {
			now := m.counts[t][key] > 0
			if was && !now {
				m.changes.Del[t] = append(m.changes.Del[t], key...)
			} else if now && !was {
				m.changes.Add[t] = append(m.changes.Add[t], key...)
			}
		}
		if len(m.changed[t]) > 0 {
			m.changed[t] = map[string]bool{}
		}
	}
}

// claim moves a port's frontends from old to next. Two Services may claim
// one address and port (external IPs); the older Service has it.
func (m *Model) claim(p *port, old, next []frontend, s *corev1.Service) {
	var born int64
	if s != nil {
		born = s.CreationTimestamp.Unix()
	}
	for _, f := range old {
		if slices.ContainsFunc(next, func(n frontend) bool { return n.key == f.key }) {
			continue
		}
		fr := m.fronts[f.key]
		fr.claims = slices.DeleteFunc(fr.claims, func(c claim) bool { return c.port == p })
		m.touched[f.key] = struct{}{}
	}
	for _, f := range next {
		fr := m.fronts[f.key]
		if fr == nil {
			fr = &front{}
			m.fronts[f.key] = fr
		}
		i := slices.IndexFunc(fr.claims, func(c claim) bool { return c.port == p })
		if i < 0 {
			fr.claims = append(fr.claims, claim{port: p, born: born, class: f.class})
			m.touched[f.key] = struct{}{}
		} else if fr.claims[i].class != f.class || fr.claims[i].born != born {
			fr.claims[i].class, fr.claims[i].born = f.class, born
			m.touched[f.key] = struct{}{}
		}
	}
}

func (m *Model) settleFronts() {
	for key := range m.touched {
		fr := m.fronts[key]
		t, row := key.row(m.cfg.Family)
		var now frontValue
		if len(fr.claims) > 0 {
			w := slices.MinFunc(fr.claims, func(a, b claim) int {
				return cmp.Or(cmp.Compare(a.born, b.born), strings.Compare(a.port.key.String(), b.port.key.String()))
			})
			now = frontValue{m.classID(w.class), w.port.id}
		}
		m.replace(t, row, fr.value.class, now.class)
		m.replace(t+1, row, fr.value.id, now.id) // the map of ids follows
		if fr.value = now; now.id == 0 {
			delete(m.fronts, key)
		}
	}
	m.touched = map[frontKey]struct{}{}
}

// replace changes the number a row holds; 0 stands for no row.
func (m *Model) replace(t Table, row []byte, was, now uint32) {
	if was == now {
		return
	}
	if was != 0 {
		m.changes.Del[t] = append(m.changes.Del[t], row...)
	}
	if now != 0 {
		m.changes.Add[t] = putNum(append(m.changes.Add[t], row...), now)
	}
}

// classID numbers a class by the hash of its name. Classes are never taken
// back: there are few, and an unused chain costs nothing.
func (m *Model) classID(c Class) uint32 {
	if id, ok := m.classIDs[c]; ok {
		return id
	}
	id := hash32(c.Name())
	for {
		if _, taken := m.classes[id]; !taken && id != 0 {
			break
		}
		id++
	}
	m.classes[id], m.classIDs[c] = c, id
	m.fresh = append(m.fresh, ClassID{id, c})
	return id
}

// Class returns the class with a number that a row of Services or NodePorts
// holds.
func (m *Model) Class(id uint32) (Class, error) {
	c, ok := m.classes[id]
	if !ok {
		return Class{}, fmt.Errorf("looking up class %d: no frontend uses it", id)
	}
	return c, nil
}

func orTCP(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
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
		v.ports = map[portKey]*port{}
		n.services[name], n.dirty[name] = v, v
	}
	for k := range m.counts[NodeAddrs] {
		n.count(NodeAddrs, k, 1)
	}
	*m = *n
}
