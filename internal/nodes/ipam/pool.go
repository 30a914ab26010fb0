// Package ipam gives every node its ranges of pod addresses.
//
// Pool is the pure allocator of one address family; Controller is the shell
// that feeds it nodes and writes spec.podCIDRs.
package ipam

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
)

// maxSpread bounds the number of node ranges in one pool (2^16): the bitmap
// stays small whatever is asked.
const maxSpread = 16

// ErrExhausted says that every range of a pool is taken.
var ErrExhausted = errors.New("no free pod CIDR is left")

// Range is a cluster range and the prefix length of the ranges it is split
// into.
type Range struct {
	Cluster  netip.Prefix
	NodeBits int
}

// Pool hands out equal ranges of one cluster range, next fit: a released range
// is not reused before the others had their turn, so that a late packet does
// not reach a new owner. Every operation is O(1) for the sizes allowed here.
// A Pool is not safe for concurrent use.
type Pool struct {
	cluster netip.Prefix
	nodeLen int
	total   int
	taken   int
	next    int
	// used has a bit per range; full has a bit per word of used that has no
	// free range, so a free one is found without walking used.
	used, full []uint64
}

// newPool splits cluster into ranges of prefix length nodeLen.
func newPool(cluster netip.Prefix, nodeLen int) (*Pool, error) {
	cluster = cluster.Masked()
	max := cluster.Addr().BitLen()
	spread := nodeLen - cluster.Bits()
	switch {
	case !cluster.IsValid():
		return nil, errors.New("cluster CIDR: not a valid prefix")
	case nodeLen < cluster.Bits() || nodeLen > max:
		return nil, fmt.Errorf("node CIDR mask size %d: must be between %d (that of cluster CIDR %s) and %d", nodeLen, cluster.Bits(),
			cluster, max)
	case spread > maxSpread:
		return nil, fmt.Errorf("node CIDR mask size %d: at most %d more than that of cluster CIDR %s", nodeLen, maxSpread, cluster)
	}
	p := &Pool{cluster: cluster, nodeLen: nodeLen, total: 1 << spread}
	words := (p.total + 63) / 64
	p.used, p.full = make([]uint64, words), make([]uint64, (words+63)/64)
	// Bits beyond the last range count as taken.
	if rest := p.total % 64; rest != 0 {
		p.used[words-1] = ^uint64(0) << rest
	}
	if rest := words % 64; rest != 0 {
		p.full[len(p.full)-1] = ^uint64(0) << rest
	}
	return p, nil
}

// Pools makes the pools of the ranges and takes out of them what is reserved.
func Pools(ranges []Range, reserved []netip.Prefix) ([]*Pool, error) {
	var pools []*Pool
	for i, r := range ranges {
		p, err := newPool(r.Cluster, r.NodeBits)
		if err != nil {
			return nil, err
		}
		for _, other := range ranges[:i] {
			if other.Cluster.Addr().Is4() == r.Cluster.Addr().Is4() {
				return nil, fmt.Errorf("cluster CIDRs %s and %s are of the same family: at most one each of IPv4 and IPv6 is allowed",
					other.Cluster, r.Cluster)
			}
		}
		for _, c := range reserved {
			if c.Masked().Overlaps(p.cluster) {
				if err := p.Occupy(c); err != nil {
					return nil, err
				}
			}
		}
		pools = append(pools, p)
	}
	return pools, nil
}

// Allocate takes the next free range.
func (p *Pool) Allocate() (netip.Prefix, error) {
	i, ok := p.free(p.next)
	if !ok {
		if i, ok = p.free(0); !ok {
			return netip.Prefix{}, fmt.Errorf("cluster CIDR %s: %w", p.cluster, ErrExhausted)
		}
	}
	p.set(i)
	p.next = (i + 1) % p.total
	return p.prefix(i), nil
}

// Occupy takes the ranges that overlap c, for nodes that have one already.
// Taking a taken range is not an error: the caller knows who owns it.
func (p *Pool) Occupy(c netip.Prefix) error { return p.each(c, p.set) }

// Release frees the ranges that overlap c. Freeing a free range is no error.
func (p *Pool) Release(c netip.Prefix) error { return p.each(c, p.clear) }

// Contains says whether c is a range this pool hands out.
func (p *Pool) Contains(c netip.Prefix) bool {
	return c.Bits() == p.nodeLen && c.Addr().Is4() == p.cluster.Addr().Is4() && p.cluster.Contains(c.Masked().Addr())
}

// Total and Taken count ranges.
func (p *Pool) Total() int { return p.total }

// Used is the number of ranges in use.
func (p *Pool) Used() int { return p.taken }

func (p *Pool) each(c netip.Prefix, do func(int)) error {
	c = c.Masked()
	if !c.IsValid() || c.Addr().Is4() != p.cluster.Addr().Is4() || !p.cluster.Overlaps(c) {
		return fmt.Errorf("%s is outside cluster CIDR %s", c, p.cluster)
	}
	if c.Bits() <= p.cluster.Bits() {
		for i := range p.total {
			do(i)
		}
		return nil
	}
	first := p.index(c.Addr())
	count := 1
	if c.Bits() < p.nodeLen {
		count = 1 << (p.nodeLen - c.Bits())
	}
	for i := first; i < first+count; i++ {
		do(i)
	}
	return nil
}

func (p *Pool) set(i int) {
	w, bit := i/64, uint64(1)<<(i%64)
	if p.used[w]&bit != 0 {
		return
	}
	p.used[w] |= bit
	p.taken++
	if p.used[w] == ^uint64(0) {
		p.full[w/64] |= 1 << (w % 64)
	}
}

func (p *Pool) clear(i int) {
	w, bit := i/64, uint64(1)<<(i%64)
	if p.used[w]&bit == 0 {
		return
	}
	p.used[w] &^= bit
	p.taken--
	p.full[w/64] &^= 1 << (w % 64)
}

// free finds the first free range at or after from.
func (p *Pool) free(from int) (int, bool) {
	w := from / 64
	if rest := ^p.used[w] & (^uint64(0) << (from % 64)); rest != 0 {
		return w*64 + bits.TrailingZeros64(rest), true
	}
	for s := (w + 1) / 64; s < len(p.full); s++ {
		open := ^p.full[s]
		if s == (w+1)/64 {
			open &= ^uint64(0) << ((w + 1) % 64)
		}
		if open != 0 {
			w := s*64 + bits.TrailingZeros64(open)
			return w*64 + bits.TrailingZeros64(^p.used[w]), true
		}
	}
	return 0, false
}

// prefix is range i: its number sits right above the node's own bits.
func (p *Pool) prefix(i int) netip.Prefix {
	addr := p.cluster.Addr()
	raw := addr.As16()
	shift := addr.BitLen() - p.nodeLen
	// Add i << shift, byte by byte from the right.
	carry := uint64(i)
	at := 15 - shift/8
	carry <<= shift % 8
	for ; at >= 0 && carry != 0; at-- {
		sum := uint64(raw[at]) + carry&0xff
		raw[at] = byte(sum)
		carry = carry>>8 + sum>>8
	}
	out := netip.AddrFrom16(raw)
	if addr.Is4() {
		out = out.Unmap()
	}
	return netip.PrefixFrom(out, p.nodeLen)
}

// index is the number of the range that holds addr.
func (p *Pool) index(addr netip.Addr) int {
	raw, base := addr.As16(), p.cluster.Addr().As16()
	shift := addr.BitLen() - p.nodeLen
	n := 0
	// The spread is at most 16 bits, so three bytes cover it.
	at := 15 - shift/8
	for k := 2; k >= 0; k-- {
		if i := at - k; i >= 0 {
			n = n<<8 | int(raw[i]^base[i])
		}
	}
	return n >> (shift % 8) & (p.total - 1)
}
