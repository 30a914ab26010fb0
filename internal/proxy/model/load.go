package model

import (
	"net/netip"
	"slices"
)

// found is an endpoint as a slice has it.
type found struct {
	at    netip.AddrPort
	facts facts
}

// load does what merge does for a port without endpoints, as all are when a
// proxy starts, with less ado.
func (m *Model) load(v *service, p *port, change []sliceChange) {
	n := 0
	for _, c := range change {
		if c.now != nil {
			n += len(c.now.Endpoints)
		}
	}
	if n == 0 {
		return
	}
	p.eps = make(map[netip.AddrPort]ep, n)
	all, twice := make([]found, 0, n), false
	for _, c := range change {
		if c.now == nil {
			continue
		}
		m.each(c.now, p.key, func(a netip.AddrPort, f facts) {
			e := p.eps[a]
			if e.slices++; e.slices == 1 {
				e.facts, all = f, append(all, found{a, f})
			} else {
				twice = true
			}
			p.eps[a] = e
		})
	}
	for i := range all {
		f := &all[i]
		if e := p.eps[f.at]; twice && e.slices > 1 {
			f.facts = m.look(v, p.key, f.at)
			e.facts = f.facts
			p.eps[f.at] = e
		}
		m.setFacts(p, f.at, 0, f.facts)
	}
	modes := p.counts.modes()
	p.fill(ClusterPool, modes.cluster, all)
	p.fill(LocalPool, modes.local, all)
}

// fill gives a pool that was empty its endpoints out of those found, in the
// kernel's order where that is known. Nothing changes for rows that stand, so
// that there is no diff.
func (p *port) fill(which Pool, mode facts, of []found) {
	n := 0
	for _, f := range of {
		if f.facts.within(which, mode) {
			n++
		}
	}
	if n == 0 {
		return
	}
	at := make([]netip.AddrPort, 0, n)
	for _, f := range of {
		if f.facts.within(which, mode) {
			at = append(at, f.at)
		}
	}
	slices.SortFunc(at, netip.AddrPort.Compare)
	if seed := p.seeds[which]; len(seed) > 0 {
		at = place(seed, at)
		p.seeds[which] = nil
	}
	p.pools[which].hold(at)
}
