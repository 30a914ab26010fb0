package ports

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/nft"
	"github.com/berth-dev/berth/internal/nft/row"
)

// binding is what the port of a pod may send from.
type binding struct {
	// Port is the index of the bridge's port, which the kernel never gives twice.
	Port uint32
	// MAC is nil for a port that may send nothing any more.
	MAC   net.HardwareAddr
	Addrs []netip.Addr
}

// The sets: which ports are bound, and what each may send from.
var (
	bound  = row.Shape{Name: "bound", Key: 4}
	macs   = row.Shape{Name: "macs", Key: 12}
	addrs4 = row.Shape{Name: "addresses-4", Key: 8}
	addrs6 = row.Shape{Name: "addresses-6", Key: 20}
)

// What a frame's header says of the packet in it, in network order.
var (
	etherIPv4 = []byte{8, 0}
	etherARP  = []byte{8, 6}
	etherIPv6 = []byte{0x86, 0xdd}
)

// build appends the table's sets, chains and rules. Only ports that are bound
// are looked at; these send nothing but IPv4, IPv6 and ARP.
func build(tx *nft.Tx) {
	v4, v6 := nft.FieldsOf(row.V4).Saddr, nft.FieldsOf(row.V6).Saddr
	for name, key := range map[string][]nft.Type{bound.Name: {nft.TypeLink}, macs.Name: {nft.TypeLink, nft.TypeMAC},
		addrs4.Name: {nft.TypeLink, v4}, addrs6.Name: {nft.TypeLink, v6}} {
		tx.Add(nft.Op{Verb: nft.AddSet, Name: name, Set: &nft.Set{Name: name, Key: key}})
	}
	for _, c := range []string{"check", "ipv4", "arp", "ipv6"} {
		tx.Add(nft.Op{Verb: nft.AddChain, Name: c})
	}
	drop, accept := &expr.Verdict{Kind: expr.VerdictDrop}, &expr.Verdict{Kind: expr.VerdictAccept}
	port := &expr.Meta{Key: expr.MetaKeyIIF, Register: nft.R0}
	unless := func(s row.Shape, load ...expr.Any) []expr.Any {
		return append(append([]expr.Any{port}, load...), &expr.Lookup{SourceRegister: nft.R0, SetName: s.Name, Invert: true}, drop)
	}
	field := func(base expr.PayloadBase, at, size uint32) expr.Any {
		return &expr.Payload{DestRegister: nft.R0 + 1, Base: base, Offset: at, Len: size}
	}
	network, transport := expr.PayloadBaseNetworkHeader, expr.PayloadBaseTransportHeader
	is := func(load expr.Any, data ...byte) []expr.Any {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpEq, Register: nft.R0 + 1, Data: data}}
	}
	tx.Rule("check", unless(macs, field(expr.PayloadBaseLLHeader, 6, 6)))
	kind := &expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: nft.R0 + 1}
	tx.Rule("check", is(kind, etherIPv4...), nft.Goto("ipv4"))
	tx.Rule("check", is(kind, etherARP...), nft.Goto("arp"))
	tx.Rule("check", is(kind, etherIPv6...), nft.Goto("ipv6"))
	tx.Rule("check", drop)

	tx.Rule("ipv4", unless(addrs4, field(network, 12, 4)))

	// RFC 5227: who asks whether an address is free sends from none.
	tx.Rule("arp", unless(macs, field(network, 8, 6)))
	tx.Rule("arp", is(field(network, 14, 4), 0, 0, 0, 0), accept)
	tx.Rule("arp", unless(addrs4, field(network, 14, 4)))

	icmp := is(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: nft.R0 + 1}, unix.IPPROTO_ICMPV6)
	message := func(kind byte) []expr.Any { return append(icmp[:2:2], is(field(transport, 0, 1), kind)...) }
	// No pod is a router (134, 137), nor does it answer for another's address (136).
	tx.Rule("ipv6", message(134), drop)
	tx.Rule("ipv6", message(137), drop)
	tx.Rule("ipv6", message(136), unless(addrs6, field(transport, 8, 16)))
	// RFC 4862: who asks whether an address is free sends from none.
	tx.Rule("ipv6", icmp, is(field(network, 8, 16), make([]byte, 16)...), accept)
	tx.Rule("ipv6", unless(addrs6, field(network, 8, 16)))

	// Before the bridge filter (br_netfilter stands at 0) hands packets on.
	tx.Add(nft.Op{Verb: nft.AddChain, Name: "prerouting", Hook: &nft.Hook{Num: bridgePreRouting, Priority: -300, Type: "filter"}})
	tx.Rule("prerouting", port, &expr.Lookup{SourceRegister: nft.R0, SetName: bound.Name}, nft.Goto("check"))
}

// bridgePreRouting is NF_BR_PRE_ROUTING.
const bridgePreRouting = 0

// rows appends the rows of a binding.
func (b binding) rows(tx *nft.Tx, verb nft.Verb) {
	port := binary.NativeEndian.AppendUint32(nil, b.Port)
	var v4, v6 []byte
	for _, a := range b.Addrs {
		if a.Is4() {
			v4 = append(append(v4, port...), a.AsSlice()...)
		} else {
			v6 = append(append(v6, port...), a.AsSlice()...)
		}
	}
	var mac []byte
	if len(b.MAC) > 0 {
		mac = append(append(port[:4:4], b.MAC...), 0, 0)
	}
	add := func(s row.Shape, rows []byte) {
		if len(rows) > 0 {
			tx.Add(nft.Op{Verb: verb, Name: s.Name, Shape: s, Rows: rows})
		}
	}
	if verb == nft.DeleteRows {
		add(bound, port)
	}
	add(macs, mac)
	add(addrs4, v4)
	add(addrs6, v6)
	if verb == nft.AddRows {
		add(bound, port)
	}
}

// linkLocal is the address that a link gives itself by its MAC (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}
