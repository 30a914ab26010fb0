package model

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// A service port with ClientIP affinity, and each of its endpoints, have a
// number that fits into a packet's priority: rules carry it from one lookup to
// the next there. The upper bits are those of stickyFlag, which no queueing
// discipline is named by, then the port's own, then the endpoint's. The port's
// number is that of an endpoint 0, which none is.
const (
	// StickyFlag is below all numbers of service ports, and above whatever
	// else priorities are set to.
	StickyFlag uint32 = 0b11 << 30
	// StickyPort masks the part of a number that tells the service port.
	StickyPort uint32 = 1<<32 - 1<<endpointBits

	endpointBits = 13
	// maxSticky is how many service ports may have affinity, maxStuck how many
	// endpoints of each can be returned to. Those beyond are served as
	// without affinity, and passed over by new clients.
	maxSticky = 1<<(30-endpointBits) - 1
	maxStuck  = 1<<endpointBits - 1
)

// stuck holds the numbers of a service port and its endpoints.
type stuck struct {
	id      uint32
	numbers map[netip.AddrPort]uint32
	holder  map[uint32]netip.AddrPort
}

// stuckSeeds are the numbers that stand in the kernel.
type stuckSeeds struct {
	ports     map[vipKey]uint32
	taken     map[uint32]bool
	endpoints map[uint32]stuckSeed
}

// stuckSeed is one service port's.
type stuckSeed map[netip.AddrPort]uint32

// seedSticky takes in a row of one of the tables of affinity.
func (m *Model) seedSticky(t Table, key, value []byte) {
	s := &m.stuckSeeds
	if s.ports == nil {
		*s = stuckSeeds{map[vipKey]uint32{}, map[uint32]bool{}, map[uint32]stuckSeed{}}
	}
	switch t {
	case Sticky, StickyNodePorts:
		vip, _ := getVIP(key, m.cfg.Family, t == StickyNodePorts)
		if id := binary.NativeEndian.Uint32(value); id > StickyFlag && id&^StickyPort == 0 {
			s.ports[vip], s.taken[id] = id, true
		}
	case StickyEndpoints, StickyLocal:
		n := binary.NativeEndian.Uint32(key)
		id := n & StickyPort
		if n == id || n < StickyFlag {
			return
		}
		if s.endpoints[id] == nil {
			s.endpoints[id] = stuckSeed{}
		}
		s.endpoints[id][getAddrPort(value, m.cfg.Family)] = n
	}
}

// number gives a port its number: the one it had before a restart, or the hash
// of its name, or the next one that is free. It stays nil if none is.
func (m *Model) number(p *port, s *corev1.Service, sp *corev1.ServicePort) {
	if p.stuck != nil {
		return
	}
	var id uint32
	if len(m.stuckSeeds.ports) > 0 {
		for _, f := range frontends(s, sp, m.cfg, p, 0) {
			id = cmp.Or(id, m.stuckSeeds.ports[f.key])
		}
	}
	if _, taken := m.ids[id]; id == 0 || taken {
		if len(m.ids)+len(m.stuckSeeds.taken) >= maxSticky {
			return
		}
		n := hash32(p.key.String()) % maxSticky
		for {
			id = StickyFlag | (n+1)<<endpointBits
			if _, taken := m.ids[id]; !taken && !m.stuckSeeds.taken[id] {
				break
			}
			n = (n + 1) % maxSticky
		}
	}
	m.ids[id] = p.key
	p.stuck = &stuck{id, map[netip.AddrPort]uint32{}, map[uint32]netip.AddrPort{}}
}

// unnumber gives a port's number back; its rows must be gone.
func (m *Model) unnumber(p *port) {
	if p.stuck != nil {
		delete(m.ids, p.stuck.id)
		p.stuck = nil
	}
}

// number gives an endpoint its number, by seed or by the hash of its address.
// It is 0 if all are taken.
func (s *stuck) number(a netip.AddrPort, seed stuckSeed) uint32 {
	if n := s.numbers[a]; n != 0 {
		return n
	}
	n := seed[a]
	if s.holder[n].IsValid() {
		n = 0
	}
	if n == 0 {
		if len(s.numbers) >= maxStuck {
			return 0
		}
		reserved := func(n uint32) bool {
			if len(seed) == 0 || len(s.numbers)+len(seed) >= maxStuck {
				return false
			}
			for _, o := range seed {
				if o == n {
					return true
				}
			}
			return false
		}
		for h := hash32(a.String()) % maxStuck; ; h = (h + 1) % maxStuck {
			if n = s.id | (h + 1); !s.holder[n].IsValid() && !reserved(n) {
				break
			}
		}
	}
	s.numbers[a], s.holder[n] = n, a
	return n
}

// forget frees an endpoint's number.
func (s *stuck) forget(a netip.AddrPort) {
	delete(s.holder, s.numbers[a])
	delete(s.numbers, a)
}

// stick brings the rows of a port with affinity up to date: where a drawn index
// leads to, and where the endpoints are. What one endpoint costs does not depend
// on how many there are.
func (m *Model) stick(p *port, vips []frontend) {
	if p.stuck == nil {
		return
	}
	var left []netip.AddrPort
	for pool := range p.pools {
		used := p.timeout > 0 && slices.ContainsFunc(vips, func(f frontend) bool { return f.class.uses(Pool(pool)) })
		diff := p.pools[pool].diff
		switch was := p.sticks[pool]; {
		case was && used:
		case was:
			diff = nil
			for i, a := range p.pools[pool].before() {
				diff = append(diff, slotChange{index: i, old: a})
			}
		case used:
			diff = nil
			for i, a := range p.pools[pool].at {
				diff = append(diff, slotChange{index: i, now: a})
			}
		default:
			continue
		}
		p.sticks[pool] = used
		left = append(left, m.move(p.stuck, Pool(pool), diff)...)
	}
	for _, a := range left {
		if !slices.ContainsFunc([]Pool{ClusterPool, LocalPool}, func(q Pool) bool { return p.sticks[q] && p.pools[q].find(a) >= 0 }) {
			p.stuck.forget(a)
		}
	}
}

// move writes the rows of one pool that change, and returns the endpoints that
// are no longer in it.
func (m *Model) move(s *stuck, pool Pool, diff []slotChange) (left []netip.AddrPort) {
	if len(diff) == 0 {
		return nil
	}
	places := map[netip.AddrPort]int{} // how many indexes each has now, less those before
	var order []netip.AddrPort
	picks, ends := m.changes.table(Picks), m.changes.table(pool.ends())
	seed := m.stuckSeeds.endpoints[s.id]
	for _, c := range diff {
		key := func(b []byte) []byte { return putNum(putNum(b, s.id), pool.base()+uint32(c.index)) }
		if n := s.numbers[c.old]; n != 0 {
			picks.Del, picks.Was = key(picks.Del), putNum(picks.Was, n)
			places[c.old]--
			order = append(order, c.old)
		}
		if !c.now.IsValid() {
			continue
		}
		if n := s.number(c.now, seed); n != 0 {
			picks.Add = putNum(key(picks.Add), n)
			places[c.now]++
			order = append(order, c.now)
		}
	}
	slices.SortFunc(order, netip.AddrPort.Compare)
	for _, a := range slices.Compact(order) {
		n, at := s.numbers[a], putPort(putAddr(nil, m.cfg.Family, a.Addr()), a.Port())
		switch cmp.Compare(places[a], 0) {
		case -1:
			ends.Del, ends.Was, left = putNum(ends.Del, n), append(ends.Was, at...), append(left, a)
		case 1:
			ends.Add = append(putNum(ends.Add, n), at...)
		}
	}
	return left
}

// ends is the table of where the endpoints of a pool are.
func (p Pool) ends() Table {
	if p == LocalPool {
		return StickyLocal
	}
	return StickyEndpoints
}

// numberOf is the number of an endpoint, 0 if it has none.
func (p *port) numberOf(a netip.AddrPort) uint32 {
	if p.stuck == nil {
		return 0
	}
	return p.stuck.numbers[a]
}
