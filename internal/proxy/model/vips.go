package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// vip is one frontend key with the rows last given out for it.
type vip struct {
	owner  *port
	class  Class
	ranges []netip.Prefix
	claims []claim
	// number is that of the owner if it has affinity.
	number uint32
}

type claim struct {
	port  *port
	born  int64
	class Class
}

// uses says whether frontends of the class send anything to a pool.
func (c Class) uses(p Pool) bool {
	return c.Kind == Spread && (p == ClusterPool && c.Cluster > 0 || p == LocalPool && c.Local > 0)
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
		fr := m.vips[f.key]
		fr.claims = slices.DeleteFunc(fr.claims, func(c claim) bool { return c.port == p })
		m.touched[f.key] = struct{}{}
	}
	for _, f := range next {
		fr := m.vips[f.key]
		if fr == nil {
			fr = &vip{}
			m.vips[f.key] = fr
		}
		i := slices.IndexFunc(fr.claims, func(c claim) bool { return c.port == p })
		if i < 0 {
			fr.claims = append(fr.claims, claim{port: p, born: born, class: f.class})
		} else {
			fr.claims[i].class, fr.claims[i].born = f.class, born
		}
		m.touched[f.key] = struct{}{}
	}
}

// winner is the claim that has the frontend; its port is nil when there is none.
func (fr *vip) winner() claim {
	if len(fr.claims) == 0 {
		return claim{}
	}
	return slices.MinFunc(fr.claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.born, b.born), strings.Compare(a.port.key.String(), b.port.key.String()))
	})
}

func (m *Model) settleVIPs() {
	for _, key := range slices.SortedFunc(maps.Keys(m.touched), vipKey.compare) {
		fr := m.vips[key]
		w := fr.winner()
		m.settleClass(key, fr, w)
		m.settleSticky(key, fr, w)
		for _, pool := range []Pool{ClusterPool, LocalPool} {
			m.settlePool(key, pool, fr, w)
		}
		var ranges []netip.Prefix
		if w.port != nil && w.class.Ranges {
			ranges = w.port.ranges
		}
		m.settleRanges(key, fr.ranges, ranges)
		if fr.owner, fr.class, fr.ranges = w.port, w.class, ranges; w.port == nil {
			delete(m.vips, key)
		}
	}
	m.touched = map[vipKey]struct{}{}
}

// settleClass moves a frontend between the sets of classes.
func (m *Model) settleClass(key vipKey, fr *vip, w claim) {
	if fr.owner != nil && w.port != nil && fr.class == w.class {
		return
	}
	if fr.owner != nil {
		d := m.changes.set(Set{key.of(VIPs), fr.class})
		d.Del = key.put(d.Del, m.cfg.Family)
	}
	if w.port != nil {
		d := m.changes.set(Set{key.of(VIPs), w.class})
		d.Add = key.put(d.Add, m.cfg.Family)
	}
}

// settlePool writes what changes among the endpoints of one frontend.
func (m *Model) settlePool(key vipKey, pool Pool, fr *vip, w claim) {
	had, has := fr.owner != nil && fr.class.uses(pool), w.port != nil && w.class.uses(pool)
	d := func() *Delta { return m.changes.table(key.of(Endpoints)) }
	if had && has && fr.owner == w.port {
		for _, c := range w.port.pools[pool].diff {
			m.endpoint(key, pool, d(), c)
		}
	} else {
		if had {
			for i, a := range fr.owner.pools[pool].before() {
				m.endpoint(key, pool, d(), slotChange{index: i, old: a})
			}
		}
		if has {
			for i, a := range w.port.pools[pool].at {
				m.endpoint(key, pool, d(), slotChange{index: i, now: a})
			}
		}
	}
}

// settleSticky writes which service port's clients those of a frontend are.
func (m *Model) settleSticky(key vipKey, fr *vip, w claim) {
	was, now := fr.number, uint32(0)
	if w.port != nil && w.class.Timeout > 0 {
		now = w.port.stuck.id
	}
	if fr.number = now; was == now {
		return
	}
	d := m.changes.table(key.of(Sticky))
	if was != 0 {
		d.Del, d.Was = key.put(d.Del, m.cfg.Family), putNum(d.Was, was)
	}
	if now != 0 {
		d.Add = putNum(key.put(d.Add, m.cfg.Family), now)
	}
}

func (m *Model) endpoint(key vipKey, pool Pool, d *Delta, c slotChange) {
	row := func(b []byte) []byte { return putNum(key.put(b, m.cfg.Family), pool.base()+uint32(c.index)) }
	if c.old.IsValid() {
		d.Del, d.Was = row(d.Del), putPort(putAddr(d.Was, m.cfg.Family, c.old.Addr()), c.old.Port())
	}
	if c.now.IsValid() {
		d.Add = putPort(putAddr(row(d.Add), m.cfg.Family, c.now.Addr()), c.now.Port())
	}
}

func (m *Model) settleRanges(key vipKey, old, next []netip.Prefix) {
	row := func(b []byte, p netip.Prefix) []byte {
		b = putAddr(key.put(b, m.cfg.Family), m.cfg.Family, p.Addr())
		return putAddr(key.put(b, m.cfg.Family), m.cfg.Family, lastOf(p))
	}
	for _, p := range old {
		if !slices.Contains(next, p) {
			d := m.changes.table(Ranges)
			d.Del = row(d.Del, p)
		}
	}
	for _, p := range next {
		if !slices.Contains(old, p) {
			d := m.changes.table(Ranges)
			d.Add = row(d.Add, p)
		}
	}
}
