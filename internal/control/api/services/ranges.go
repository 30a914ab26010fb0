package services

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// addressSpace numbers the usable addresses of a prefix: all but the network
// address and, for IPv4, the broadcast address. Prefixes of more than 2^62
// addresses are cut there.
func addressSpace(p netip.Prefix) space[netip.Addr] {
	p = p.Masked()
	host := p.Addr().BitLen() - p.Bits()
	total := uint64(1) << min(host, 62)
	size := uint64(0)
	switch {
	case p.Addr().Is4() && total > 2:
		size = total - 2
	case p.Addr().Is6() && total > 1:
		size = total - 1
	}
	return space[netip.Addr]{
		size:   size,
		offset: clampOffset(size, 16, 256, 16),
		at:     func(i uint64) netip.Addr { return plus(p.Addr(), i+1) },
	}
}

// usable says whether an address may be asked for in the prefix.
func usable(p netip.Prefix, a netip.Addr) bool {
	p = p.Masked()
	if !p.Contains(a) || a == p.Addr() {
		return false
	}
	return !p.Addr().Is4() || a != lastOf(p)
}

func lastOf(p netip.Prefix) netip.Addr {
	host := p.Addr().BitLen() - p.Bits()
	if host >= 63 {
		return netip.Addr{}
	}
	return plus(p.Masked().Addr(), uint64(1)<<host-1)
}

// firstIP is the address of the kubernetes service in a range.
func firstIP(p netip.Prefix) netip.Addr { return plus(p.Masked().Addr(), 1) }

// clampOffset is size/part within [low, high], or 0 when the range is too small
// to be split.
func clampOffset(size, low, high, part uint64) uint64 {
	if size <= low {
		return 0
	}
	return min(max(size/part, low), high)
}

// plus adds n to an address.
func plus(a netip.Addr, n uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	return netip.AddrFrom16(b)
}

func familyOf(a netip.Addr) v1.IPFamily {
	if a.Is4() {
		return v1.IPv4Protocol
	}
	return v1.IPv6Protocol
}

// PortRange is an inclusive range of node ports.
type PortRange struct{ First, Last uint16 }

// DefaultNodePorts is the range of upstream.
var DefaultNodePorts = PortRange{30000, 32767}

func (r PortRange) contains(port int32) bool {
	return port >= int32(r.First) && port <= int32(r.Last)
}

func (r PortRange) space() space[uint16] {
	size := uint64(r.Last) - uint64(r.First) + 1
	return space[uint16]{
		size:   size,
		offset: clampOffset(size, 16, 128, 32),
		at:     func(i uint64) uint16 { return r.First + uint16(i) },
	}
}
