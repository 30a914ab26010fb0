package model

import (
	"net/netip"
	"slices"
)

// slots is the order in which the endpoints of a pool stand in the kernel.
type slots struct {
	at []netip.AddrPort
	// index finds an endpoint in a pool that is too long to look through.
	index map[netip.AddrPort]int32
	// diff holds what changed since the last Commit, in order.
	diff []slotChange
}

// slotChange is one index that got another endpoint; an invalid address
// stands for none.
type slotChange struct {
	index    int
	old, now netip.AddrPort
}

func (s *slots) set(i int, now netip.AddrPort) {
	c := slotChange{index: i, now: now}
	if i == len(s.at) {
		s.at = append(s.at, netip.AddrPort{})
	}
	c.old = s.at[i]
	s.at[i] = now
	switch {
	case !now.IsValid():
		s.at = s.at[:i]
	case s.index != nil:
		s.index[now] = int32(i)
	case len(s.at) > lookThrough:
		s.number()
	}
	s.diff = append(s.diff, c)
}

// hold is what a pool that was empty holds first.
func (s *slots) hold(at []netip.AddrPort) {
	if s.at = at; len(at) > lookThrough {
		s.number()
	}
}

// number makes the index.
func (s *slots) number() {
	s.index = make(map[netip.AddrPort]int32, len(s.at))
	for i, a := range s.at {
		s.index[a] = int32(i)
	}
}

// lookThrough is the length up to which a pool is searched without an index.
const lookThrough = 32

func (s *slots) find(a netip.AddrPort) int {
	if i, ok := s.index[a]; ok {
		return int(i)
	}
	return slices.Index(s.at, a)
}

// change takes endpoints out and brings others in, moving as few as it can:
// newcomers fill the holes, and holes left are filled from the end.
func (s *slots) change(out, in []netip.AddrPort) {
	holes := make([]int, 0, len(out))
	for _, a := range out {
		holes = append(holes, s.find(a))
		delete(s.index, a)
	}
	slices.Sort(holes)
	slices.SortFunc(in, netip.AddrPort.Compare)
	n := min(len(holes), len(in))
	for i, h := range holes[:n] {
		s.set(h, in[i])
	}
	for _, a := range in[n:] {
		s.set(len(s.at), a)
	}
	for holes = holes[n:]; len(holes) > 0; {
		last, hole := len(s.at)-1, holes[len(holes)-1]
		if last == hole {
			holes = holes[:len(holes)-1]
		} else {
			s.set(holes[0], s.at[last])
			holes = holes[1:]
		}
		s.set(last, netip.AddrPort{})
	}
}

// settle shortens diff to one change an index, and drops those that came to nothing.
func (s *slots) settle() {
	if len(s.diff) < 2 {
		return
	}
	first := map[int]int{}
	var out []slotChange
	for _, c := range s.diff {
		if i, ok := first[c.index]; ok {
			out[i].now = c.now
			continue
		}
		first[c.index] = len(out)
		out = append(out, c)
	}
	s.diff = slices.DeleteFunc(out, func(c slotChange) bool { return c.old == c.now })
}

// before is the order at the last Commit.
func (s *slots) before() []netip.AddrPort {
	was := slices.Clone(s.at)
	for i := len(s.diff) - 1; i >= 0; i-- {
		c := s.diff[i]
		for len(was) <= c.index {
			was = append(was, netip.AddrPort{})
		}
		was[c.index] = c.old
	}
	for len(was) > 0 && !was[len(was)-1].IsValid() {
		was = was[:len(was)-1]
	}
	return was
}

// place returns an order for want that keeps what stands in seed within the
// new length where it is and fills the rest in order.
func place(seed, want []netip.AddrPort) []netip.AddrPort {
	next := make([]netip.AddrPort, len(want))
	wanted := make(map[netip.AddrPort]bool, len(want))
	for _, w := range want {
		wanted[w] = true
	}
	for i, s := range seed {
		if i < len(next) && wanted[s] {
			next[i] = s
			delete(wanted, s)
		}
	}
	hole := 0
	for _, w := range want {
		if !wanted[w] {
			continue
		}
		for next[hole].IsValid() {
			hole++
		}
		next[hole] = w
	}
	return next
}
