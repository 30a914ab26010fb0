package announce

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// Sizes and numbers of RFC 826 (ARP), RFC 8200 (IPv6) and RFC 4861 (neighbour
// discovery).
const (
	etherLen = 14
	arpLen   = 28
	ip6Len   = 40
	naLen    = 32 // with the option that holds the link's address

	etherARP = 0x0806
	etherIP6 = 0x86dd

	arpRequest = 1
	arpReply   = 2

	nextICMPv6   = 58
	solicitation = 135
	advertise    = 136
	solicited    = 0x40
	override     = 0x20
)

var (
	broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// question is who asks for which address.
type question struct {
	target netip.Addr
	// asker has the zero address when it only probes whether the target is free.
	asker netip.Addr
	mac   net.HardwareAddr
	// claim is a sender that says the target is its own.
	claim bool
}

// parse reads a frame; ok is false for one that is of no interest.
func parse(frame []byte) (q question, ok bool) {
	if len(frame) < etherLen {
		return q, false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		return parseARP(frame[etherLen:])
	case etherIP6:
		return parseNS(frame)
	}
	return q, false
}

func parseARP(b []byte) (q question, ok bool) {
	// Ethernet, IPv4, lengths 6 and 4.
	if len(b) < arpLen || !bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) {
		return q, false
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	q = question{target: target, asker: sender, mac: bytes.Clone(b[8:14])}
	if op := binary.BigEndian.Uint16(b[6:]); op == arpReply || sender == target {
		q.target, q.claim = sender, true
	} else if op != arpRequest {
		return q, false
	}
	return q, true
}

func parseNS(frame []byte) (q question, ok bool) {
	b := frame[etherLen:]
	if len(b) < ip6Len+24 || b[6] != nextICMPv6 || b[ip6Len] != solicitation || b[ip6Len+1] != 0 {
		return q, false
	}
	size := int(binary.BigEndian.Uint16(b[4:]))
	// Only a neighbour can send with the hop limit 255 (RFC 4861, 7.1.1).
	if b[7] != 255 || size < 24 || len(b) < ip6Len+size {
		return q, false
	}
	icmp := b[ip6Len : ip6Len+size]
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	if checksum(src, dst, icmp) != 0 {
		return q, false
	}
	q = question{target: netip.AddrFrom16([16]byte(icmp[8:24])), asker: src, mac: bytes.Clone(frame[6:12])}
	for o := icmp[24:]; len(o) >= 8; {
		n := int(o[1]) * 8
		if n == 0 || n > len(o) {
			return q, false
		}
		if o[0] == 1 && !src.IsUnspecified() {
			q.mac = bytes.Clone(o[2:8])
		}
		o = o[n:]
	}
	return q, !q.target.IsMulticast()
}

// checksum is that of an ICMPv6 message with its pseudo header; 0 when the
// message has the right one.
func checksum(src, dst netip.Addr, icmp []byte) uint16 {
	var head [40]byte
	s, d := src.As16(), dst.As16()
	copy(head[:], s[:])
	copy(head[16:], d[:])
	binary.BigEndian.PutUint32(head[32:], uint32(len(icmp)))
	head[39] = nextICMPv6
	var sum uint32
	for _, b := range [][]byte{head[:], icmp} {
		for i, x := range b {
			if i%2 == 0 {
				sum += uint32(x) << 8
			} else {
				sum += uint32(x)
			}
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// answer is the frame that answers a question with a link's address.
func answer(q question, mac net.HardwareAddr) []byte {
	if q.target.Is4() {
		return arp(arpReply, mac, q.target, q.mac, q.asker, q.mac)
	}
	if q.asker.IsUnspecified() {
		return na(mac, q.target, allNodes, multicastMAC(allNodes), override)
	}
	return na(mac, q.target, q.asker, q.mac, solicited|override)
}

// gratuitous are the frames that tell all neighbours at once. Of ARP they are
// both a request and a reply, since some devices look at one only.
func gratuitous(a netip.Addr, mac net.HardwareAddr) [][]byte {
	if a.Is4() {
		return [][]byte{arp(arpRequest, mac, a, make([]byte, 6), a, broadcast), arp(arpReply, mac, a, broadcast, a, broadcast)}
	}
	return [][]byte{na(mac, a, allNodes, multicastMAC(allNodes), override)}
}

func arp(op uint16, mac net.HardwareAddr, from netip.Addr, targetMAC net.HardwareAddr, target netip.Addr, to net.HardwareAddr) []byte {
	f, t := from.As4(), target.As4()
	b := ether(to, mac, etherARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, mac...), f[:]...)
	return append(append(b, targetMAC...), t[:]...)
}

func na(mac net.HardwareAddr, a, dst netip.Addr, to net.HardwareAddr, flags byte) []byte {
	src, d := a.As16(), dst.As16()
	icmp := make([]byte, naLen)
	icmp[0], icmp[4] = advertise, flags
	copy(icmp[8:], src[:])
	icmp[24], icmp[25] = 2, 1
	copy(icmp[26:], mac)
	binary.BigEndian.PutUint16(icmp[2:], checksum(a, dst, icmp))
	b := ether(to, mac, etherIP6)
	b = append(b, 0x60, 0, 0, 0, 0, naLen, nextICMPv6, 255)
	b = append(append(b, src[:]...), d[:]...)
	return append(b, icmp...)
}

func ether(to, from net.HardwareAddr, kind uint16) []byte {
	b := make([]byte, 0, etherLen+ip6Len+naLen)
	b = append(append(b, to...), from...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// multicastMAC is where frames for a group go (RFC 2464, 7).
func multicastMAC(group netip.Addr) net.HardwareAddr {
	b := group.As16()
	return net.HardwareAddr{0x33, 0x33, b[12], b[13], b[14], b[15]}
}

// solicitedGroup is the group in which neighbours ask for an address (RFC 4291,
// 2.7.1).
func solicitedGroup(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}
